"""Single actions as subjects: an op's plan, a custom op in Python, an action of the user's, a custom rule."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

import tapejax
from tapejax.calculus.reverse import Options
from tapejax.ground import compat
from tapejax.ground.where import shown
from tapejax.plan.plan import OpAction, Plan
from tapejax.program.program import CUSTOM, Eqn, flatten
from tapejax.tape.action import TapeAction
from tapejax.tensor.gradients import Gradients
from tapejax.verify.check import our_vjp
from tapejax.verify.subject import Subject, at_positions, inexact, vjp_at
from tapejax.verify.watch import Seen, custom_name

_leaves = jax.tree_util.tree_leaves
OURS = os.path.dirname(os.path.abspath(tapejax.__file__)) + os.sep


# These take their operand to be symmetric, and read a half of it: it must stay so when it moves.
SYMMETRIC = {"cholesky", "eigh", "tridiagonal"}


class PlanSubject(Subject):
    """The op of a plan; its opinion is the plan's own backward."""

    def __init__(self, plan: Plan, values: Sequence[Any]):
        self.plan = plan

        def flat(*values):
            return [leaf for leaf in _leaves(plan.function(*values)) if inexact(leaf)]

        names = [f"input {position}" for position in range(plan.n_in)]
        super().__init__(plan.name, names, flat, flat, list(values))
        self.__dict__["_insists_on_tensors"] = False
        self.positions = [position for position, wanted in enumerate(plan.wrt) if wanted]
        self.symmetric = [eqn.name for eqn in plan.flat_program.eqns] in ([name] for name in SYMMETRIC)

    @property
    def thorough(self) -> bool:  # what is jax's own op, jax judges element by element
        return self.has_custom_rules

    def allowed_cts(self, cts):
        # The upper half of what the primitive gives is not specified.
        return (
            [jnp.tril(ct) for ct in cts]
            if self.symmetric and self.plan.flat_program.eqns[0].name == "cholesky"
            else cts
        )

    def allowed_move(self, position, direction):
        return (direction + np.conj(np.swapaxes(direction, -1, -2))) / 2 if self.symmetric else direction

    def by_tape(self, values):
        plan = self.plan
        results = plan.forward(*values)
        results = (results,) if plan.single else results
        kept = plan.keep((*values, *results))[: plan.n_read]
        outputs = list(results[: plan.n_out])

        def pullback(cts):
            given = iter(cts)
            filled = [next(given) if inexact(out) else jnp.zeros((), jnp.float32) for out in outputs]
            return at_positions(plan.backward(*kept, *filled), self.positions, plan.n_in)

        return [out for out in outputs if inexact(out)], pullback


class ActionSubject(Subject):
    """An action whose forward is a Python function: a custom op with jit=False, or a user's own with `primal`."""

    def __init__(self, seen: Seen, forward: Callable[..., Any], wanted: Sequence[bool]):
        # A tensor that is read twice has one gradient: it is one input here.
        numbers = [tensor_id.number for tensor_id in seen.action.inputs]
        self.first = [position for position, number in enumerate(numbers) if numbers.index(number) == position]
        order = {numbers[position]: place for place, position in enumerate(self.first)}

        def flat(*values):
            results = forward(*[values[order[number]] for number in numbers])
            return [jnp.asarray(leaf) for leaf in _leaves(results) if inexact(leaf)]

        names = [f"input {position}" for position in self.first]
        super().__init__(seen.op, names, flat, flat, [jnp.asarray(seen.inputs[i]) for i in self.first])
        self.__dict__["_insists_on_tensors"] = False
        needed = {number for number, want in zip(numbers, wanted, strict=True) if want}
        self.positions = [i for i, p in enumerate(self.first) if numbers[p] in needed and inexact(self.values[i])]
        self.seen = seen

    def by_tape(self, values):
        def pullback(cts):
            found = pulled(self.seen.action, self.seen.inputs, cts, self.seen.outputs)
            return [found[position] for position in self.first]

        return self.for_jax(*values), pullback


def pulled(action: TapeAction, inputs: Sequence[Any], cts: Sequence[Any], outputs: Sequence[Any] | None) -> list[Any]:
    """What an action's own backward gives its inputs, from cotangents of its inexact outputs."""
    grads = Gradients()
    given = iter(cts)
    for position, tensor_id in enumerate(action.outputs):
        value = outputs[position] if outputs is not None else None
        if value is None or inexact(value):
            grads.add(tensor_id.number, next(given))
    before = dict(grads.sums)
    action.backward(grads)
    found = []
    for tensor_id, value in zip(action.inputs, inputs, strict=True):
        gradient = grads.get(tensor_id)
        if gradient is not None and tensor_id.number in before:  # an input that is an output, too
            gradient = gradient - before[tensor_id.number] if gradient is not before[tensor_id.number] else None
        found.append(jnp.zeros_like(value) if gradient is None and inexact(value) else gradient)
    return found


class CustomRuleSubject(Subject):
    """A call of a custom_vjp or custom_jvp function: the user's rule against the primal code by our rules."""

    judge = "its primal code"
    speaker = "the rule"
    kinks_are_conventions = True

    def __init__(self, eqn: Eqn, values: Sequence[Any], wanted: Sequence[bool]):
        self.eqn = eqn
        called = compat.equation_as_function(eqn.origin)
        flat = lambda *values: [leaf for leaf in called(*values) if inexact(leaf)]
        self.n_consts = eqn.params.get("num_consts", 0)
        names = [_argument(position - self.n_consts) for position in range(len(values))]
        super().__init__(custom_name(eqn), names, flat, flat, list(values))
        self.__dict__["_insists_on_tensors"] = False
        self.positions = [i for i, (want, v) in enumerate(zip(wanted, values, strict=True)) if want and inexact(v)]

    def by_tape(self, values):
        outputs = self.for_jax(*values)
        return outputs, lambda cts: at_positions(
            vjp_at(self.over_arrays, values, self.positions, cts), self.positions, len(values)
        )

    def by_jax(self, values, cts):
        if self.eqn.name not in CUSTOM:  # a linear solve: its matrix and its solver, without its transpose
            return [
                None if g is None else g.astype(v.dtype)
                for g, v in zip(self.in_float64(values, cts), values, strict=True)
            ]
        wanted = [i in self.positions for i in range(len(values))]
        _, pullback = our_vjp(self.for_jax, values, wanted, Options(ignore_custom_rules=True))
        return at_positions(pullback(list(cts)), self.positions, len(values))


def _argument(position: int) -> str:
    return f"argument {position}" if position >= 0 else f"captured value {-position}"


def custom_place(eqn: Eqn) -> str:
    """`file:line` of where that function is defined, or of the call."""
    if "call_jaxpr" not in eqn.params:
        return rule_place(eqn) or eqn.line
    return _place(compat.jaxpr_parts(eqn.params["call_jaxpr"])[0]) or eqn.line


def rule_place(eqn: Eqn) -> str:
    """`file:line` of the rule itself: the backward function, the jvp, the transposed solve; '' if jax does not say."""
    if eqn.name == "custom_linear_solve":
        solve = eqn.params["jaxprs"].transpose_solve
        return "" if solve is None else _place(compat.jaxpr_parts(solve)[0])
    found = _place(eqn.params.get("bwd", eqn.params.get("jvp_jaxpr_fun")))
    return "" if found.startswith(OURS) else found  # of a custom_op: only its forward is the user's


def _place(code: Any) -> str:
    info = getattr(getattr(code, "debug_info", None), "func_src_info", None) or ""
    file, colon, line = info.partition(" at ")[2].partition(":")
    return shown(file) + colon + line if file else ""


def primal_code(eqn: Eqn) -> Callable[..., list[Any]]:
    """The code inside a custom call as a function, its own custom rules (but not this one) in place."""
    inner, consts = compat.jaxpr_parts(eqn.params["call_jaxpr"])
    program = flatten(jex_core.ClosedJaxpr(inner, consts))
    return lambda *values: program.run(*values)


def subject_of(seen: Seen, plans: dict[int, PlanSubject]) -> Subject | None:
    """The subject for an action whose input values are known; None if its forward is not."""
    action = seen.action
    if type(action) is OpAction:
        found = plans.get(id(action.plan))
        if found is None:
            found = plans[id(action.plan)] = PlanSubject(action.plan, seen.inputs)
        return found.at(seen.inputs)
    custom = getattr(action, "custom", None)
    if custom is not None:
        options = action.options
        return ActionSubject(seen, lambda *values: custom.forward(*values, **options), action.wanted)
    primal = getattr(action, "primal", None)
    if callable(primal):
        return ActionSubject(seen, primal, [True] * len(seen.inputs))
    return None
