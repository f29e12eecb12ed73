"""Primitives of other packages: their own jax rule is used, and it is said so wherever they appear."""

from __future__ import annotations

from contextlib import suppress

import jax
import jax.numpy as jnp

from tapejax.errors import MissingRule
from tapejax.ground import compat
from tapejax.program.program import live, trace
from tapejax.rules.registry import RuleCall, zeros_like


class ForeignRule:
    """The rule of a primitive that only jax knows how to differentiate; never an independent check."""

    kind = "rule"
    foreign = True
    cheap = False
    family = "foreign"

    def __init__(self, name: str):
        self.name = name
        self.doc = f"{name}: differentiated by its own jax rule"

    def specialise(self, eqn, in_avals, out_avals, active_in, tools) -> RuleCall:
        function = compat.equation_as_function(eqn.origin)
        try:
            return vjp_step(function, in_avals, out_avals, active_in)
        except NotImplementedError as cause:
            if tools.options.linear:
                with suppress(NotImplementedError):
                    return transpose_step(function, in_avals, out_avals, active_in)
            raise MissingRule(
                f"no reverse rule for `{eqn.name}`, neither ours nor jax's",
                at=eqn.line,
                action=eqn,
                fix="add one (docs/how-to/add-a-rule.md), or wrap the call in stop_gradient",
            ) from cause


def foreign_rule(eqn, policy: str) -> ForeignRule:
    if policy == "error":
        raise MissingRule(
            f"no reverse rule for `{eqn.name}`",
            at=eqn.line,
            action=eqn,
            fix='add one (docs/how-to/add-a-rule.md), or lift(f, foreign="jax") to use its own jax rule',
        )
    return ForeignRule(eqn.name)


def vjp_step(function, in_avals, out_avals, active_in) -> RuleCall:
    """A Step that reaches a rule written by someone else through jax.vjp of one equation.

    The vjp function that jax returns is a pytree: its leaves are what to keep. The forward is traced
    once, to see which of them are operands or results anyway and need not be kept a second time.
    """
    wanted = [i for i, active in enumerate(active_in) if active]
    inexact = [i for i, aval in enumerate(out_avals) if jnp.issubdtype(aval.dtype, jnp.inexact)]
    structure = None

    def results_and_leaves(*operands):
        nonlocal structure

        def of_wanted(*values):
            full = list(operands)
            for i, value in zip(wanted, values, strict=True):
                full[i] = value
            results = function(*full)
            return [results[i] for i in inexact], results

        _, pullback, results = jax.vjp(of_wanted, *[operands[i] for i in wanted], has_aux=True)
        leaves, structure = jax.tree_util.tree_flatten(pullback)
        return [*results, *leaves]

    program, _ = trace(results_and_leaves, in_avals)
    results, leaves = program.outputs[: len(out_avals)], program.outputs[len(out_avals) :]
    position_in = {slot: i for i, slot in enumerate(program.inputs)}
    position_out = {slot: i for i, slot in enumerate(results) if slot not in position_in}
    found = set(leaves) - set(program.constants)
    saves_in = tuple(sorted(position_in[slot] for slot in found if slot in position_in))
    saves_out = tuple(sorted(position_out[slot] for slot in found if slot in position_out))
    extras = sorted(slot for slot in found if slot not in position_in and slot not in position_out)
    kept = [*(program.inputs[i] for i in saves_in), *(results[i] for i in saves_out), *extras]
    program.outputs = [*results, *extras]
    program.eqns = live(program.eqns, program.outputs)

    def forward(operands):
        found = program.run(*operands)
        return found[: len(results)], found[len(results) :]

    def backward(saved, cts):
        values = program.constants | dict(zip(kept, saved, strict=True))
        # Constants may be NumPy arrays, which refuse a tracer as their index: somebody's code may have one.
        arrays = [value if isinstance(value, jax.Array) else jnp.asarray(value) for value in map(values.get, leaves)]
        pullback = jax.tree_util.tree_unflatten(structure, arrays)
        filled = [zeros_like(out_avals[i]) if cts[i] is None else cts[i] for i in inexact]
        in_cts = [None] * len(in_avals)
        for i, ct in zip(wanted, pullback(filled), strict=True):
            in_cts[i] = ct
        return in_cts

    return RuleCall(saves_in, saves_out, backward, forward, tuple(program.avals[slot] for slot in extras))


def transpose_step(function, in_avals, out_avals, active_in) -> RuleCall:
    """A Step for a primitive that has a transpose rule only, as the tangent of a custom_jvp may: it is linear in what is active."""
    wanted = [i for i, active in enumerate(active_in) if active]
    others = tuple(i for i, active in enumerate(active_in) if not active)

    def backward(saved, cts):
        full = dict(zip(others, saved, strict=True))

        def linear(*values):
            operands = full | dict(zip(wanted, values, strict=True))
            return list(function(*[operands[i] for i in range(len(in_avals))]))

        filled = [zeros_like(aval) if ct is None else ct for aval, ct in zip(out_avals, cts, strict=True)]
        pulled = dict(zip(wanted, jax.linear_transpose(linear, *[in_avals[i] for i in wanted])(filled), strict=True))
        return [pulled.get(i) for i in range(len(in_avals))]

    jax.eval_shape(backward, [in_avals[i] for i in others], list(out_avals))
    return RuleCall(others, (), backward)
