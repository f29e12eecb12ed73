"""Rules that users write themselves: custom_jvp and custom_vjp.

They are called, not ignored (`ignore_custom_rules=True` opens them before they get here). This is
the one place, with foreign.py, where jax's own transforms run: on the user's function alone, to
reach a rule that is not ours.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import primitives as p

from tapejax.errors import RefusedPrimitive
from tapejax.ground import compat
from tapejax.program.program import CUSTOM, flatten
from tapejax.rules.control import inlined
from tapejax.rules.foreign import vjp_step
from tapejax.rules.registry import RuleCall, StructuralRule, lookup, structural, zeros_like


def cheap_inside(eqn, is_cheap) -> bool:
    """A custom function may be run again in the backward if everything in its primal code may."""
    return all(is_cheap(inner) for inner in flatten(eqn.params[CUSTOM[eqn.name]]).eqns)


@structural(p.custom_vjp_call_p, cheap=cheap_inside)
def custom_vjp_call(eqn, in_avals, out_avals, active_in, tools):
    """results = f(operands), where the user wrote the forward and the backward"""
    return vjp_step(compat.equation_as_function(eqn.origin), in_avals, out_avals, active_in)


@structural(p.custom_jvp_call_p, cheap=cheap_inside)
def custom_jvp_call(eqn, in_avals, out_avals, active_in, tools):
    """results = f(operands), where the user wrote the derivative along a direction

    The user's rule is traced as a program (operands, tangents) -> (results, their tangents). It is
    linear in the tangents, so our own rules transpose it at tangents of zero. If it applies a
    function like this one to tangents, itself perhaps, that one is opened, as jax does.
    """
    if tools.options.linear:
        return inlined(eqn.params["call_jaxpr"], active_in, tools)
    function = compat.equation_as_function(eqn.origin)
    try:
        pushed = pushforward(function, in_avals, out_avals, active_in, tools)
    except jax.errors.UnexpectedTracerError as error:
        raise RefusedPrimitive(
            "the rule of a `custom_jvp` reads one of its nondiff_argnums, which is a traced array here",
            at=eqn.line,
            action=eqn,
            fix="fix that argument before lifting, as in lift(lambda x: f(2, x)); jax.jit needs the same",
        ) from error
    if any(inner.name == "custom_lin" for inner in pushed.eqns):
        # The user's rule differentiates a custom_vjp in forward mode, which has no program.
        return vjp_step(function, in_avals, out_avals, active_in)
    return transposed(pushed, in_avals, out_avals, active_in, tools)


@structural("call_hi_primitive")
def call_hi_primitive(eqn, in_avals, out_avals, active_in, tools):
    """results = f(operands), where f is a class of the user's or of jax's (custom_root in 0.12)"""
    function = compat.equation_as_function(eqn.origin)
    pushed = pushforward(function, in_avals, out_avals, active_in, tools)
    changing = set(pushed.inputs[len(in_avals) :])
    for inner in pushed.eqns:
        if not changing.isdisjoint(inner.inputs):
            changing.update(inner.outputs)
            if inner.name == eqn.name:  # only its own class knows how to transpose it
                return replace(vjp_step(function, in_avals, out_avals, active_in), foreign=(eqn.name,))
    return transposed(pushed, in_avals, out_avals, active_in, tools)


@structural("linear_call")
def linear_call(eqn, in_avals, out_avals, active_in, tools):
    """results = f(residuals, operands), linear in the operands, where the user wrote the transpose"""
    if tools.options.ignore_custom_rules:
        return inlined(eqn.params["callee"], active_in, tools)
    if any(active_in[: eqn.params["num_callee_consts"] + eqn.params["num_res"]]):
        raise RefusedPrimitive(
            "`linear_call` cannot be differentiated with respect to its residuals: only its transpose is known",
            at=eqn.line,
            action=eqn,
            fix="wrap the residuals in stop_gradient, or use jax.custom_vjp",
        )
    return vjp_step(compat.equation_as_function(eqn.origin), in_avals, out_avals, active_in)


def pushforward(function, in_avals, out_avals, active_in, tools):
    """The program (operands, tangents of the active ones) -> (results, tangents of the inexact ones)."""
    wanted = [i for i, active in enumerate(active_in) if active]
    inexact = [i for i, aval in enumerate(out_avals) if jnp.issubdtype(aval.dtype, jnp.inexact)]

    def push(operands, tangents):
        def of_wanted(*values):
            full = list(operands)
            for i, value in zip(wanted, values, strict=True):
                full[i] = value
            return function(*full)

        results, slopes = jax.jvp(of_wanted, [operands[i] for i in wanted], tangents)
        return results, [slopes[i] for i in inexact]

    pushed = tools.trace(push, (list(in_avals), [in_avals[i].strip_weak_type() for i in wanted]))
    for value in pushed.constants.values():
        if isinstance(value, jax.core.Tracer):
            lax.optimization_barrier(value)  # raises if the trace it belongs to is over
    return pushed


def transposed(pushed, in_avals, out_avals, active_in, tools) -> RuleCall:
    """The Step whose backward is the transpose of a pushforward."""
    n_in, n_out = len(in_avals), len(out_avals)
    wanted = [i for i, active in enumerate(active_in) if active]
    inexact = [i for i, aval in enumerate(out_avals) if jnp.issubdtype(aval.dtype, jnp.inexact)]
    operands, tangents = pushed.inputs[:n_in], pushed.inputs[n_in:]
    results = pushed.outputs[:n_out]
    back = tools.for_linear().reverse(
        pushed,
        [False] * n_in + [True] * len(tangents),
        wanted=[False] * n_out + [not tools.wanted or tools.wanted[i] for i in inexact],
        references={*operands, *results},
    )
    linear = linear_slots(pushed, tangents)
    extras = [slot for slot in back.extras if slot not in linear]
    eqns = back.leading_to([*results, *extras], effects=True)
    read = {slot for eqn in eqns for slot in eqn.inputs} | {*results, *extras}

    def forward(values):
        env = dict(pushed.constants)
        env.update(zip(operands, values, strict=True))
        env.update((slot, zeros_like(pushed.avals[slot])) for slot in tangents if slot in read)
        back.run(eqns, env)
        return [env[slot] for slot in results], [env[slot] for slot in extras]

    def backward(saved, cts):
        here = dict(zip([slot for slot in back.kept_slots if slot not in linear], saved, strict=True))
        kept = [here[slot] if slot in here else zeros_like(back.avals[slot]) for slot in back.kept_slots]
        found = back.backward(kept, [None] * n_out + [cts[i] for i in inexact])
        in_cts = [None] * n_in
        for i, ct in zip(wanted, found[n_in:], strict=True):
            in_cts[i] = ct
        return in_cts

    avals = tuple(back.avals[slot] for slot in extras)
    return RuleCall(back.saves_in, back.saves_out, backward, forward, avals, back.foreign)


def linear_slots(program, tangents) -> set[int]:
    """The slots that are zero when the tangents are.

    A loop or a branch may compute values and their tangents together: what comes out of one, and
    all that follows, is not counted.
    """
    linear, mixed = set(tangents), set()
    for eqn in program.eqns:
        entry = lookup(eqn.primitive)
        if not mixed.isdisjoint(eqn.inputs):
            mixed.update(eqn.outputs)
        elif not linear.isdisjoint(eqn.inputs):
            inside = entry is None or isinstance(entry, StructuralRule)
            (mixed if inside else linear).update(eqn.outputs)
    return linear
