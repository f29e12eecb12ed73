"""Recording a program equation by equation: every primitive an action, loops run step by step.

Two callers. `Tape(detail="primitives")` opens everything, for teaching and for hunting a NaN down
to the step of a loop. A lifted function with a while loop of unknown length opens only the way to
that loop, and records each iteration as one action: that is how it is differentiated in reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex_core
from jax.extend.core.primitives import while_p

from tapejax.errors import UnknownLengthError
from tapejax.ground import compat
from tapejax.ground.where import line_of
from tapejax.program.program import Eqn, Program, flatten
from tapejax.tensor.tensor import Tensor, Tracer, make


class Place:
    """Where an action of an opened program comes from: its equation, the loop steps, and who called the program."""

    __slots__ = ("caller", "eqn", "outer", "steps")

    def __init__(self, eqn: Eqn, steps: tuple[tuple[str, int], ...], caller: Any = None, outer: Place | None = None):
        self.eqn = eqn
        self.outer = outer  # of the loop, branch or checkpoint around it
        self.steps = steps
        self.caller = caller

    @property
    def line(self) -> str:
        return self.eqn.line or line_of(self.caller)  # inside an operator of ours there is no line of the user's


class Recorder:
    """Runs a program on Tensors. `apply(key, function, tensors, place)` records one op."""

    def __init__(
        self, apply: Callable[..., list[Tensor]], *, everything: bool, ignore_custom_rules: bool, caller: Any = None
    ):
        self.apply = apply
        self.caller = caller
        self.everything = everything
        self.around: Place | None = None
        self.ignore_custom_rules = ignore_custom_rules

    def run(self, program: Program, inputs: Sequence[Tensor], steps: tuple[tuple[str, int], ...] = ()) -> list[Tensor]:
        env = {slot: _constant(value, program.avals[slot]) for slot, value in program.constants.items()}
        env.update(zip(program.inputs, inputs, strict=True))
        for eqn in program.eqns:
            operands = [env[slot] for slot in eqn.inputs]
            env.update(zip(eqn.outputs, self.equation(eqn, operands, steps), strict=True))
        return [env[slot] for slot in program.outputs]

    def equation(self, eqn: Eqn, operands: list[Tensor], steps: tuple[tuple[str, int], ...]) -> list[Tensor]:
        opener = OPENERS.get(eqn.name) if compat.is_own(eqn.primitive) else None
        if opener is not None and (self.everything or has_unknown_length(eqn)):
            opened = opener(self, eqn, operands, steps)
            if opened is not None:
                return opened
        return self.apply(eqn, lambda *values: eqn.bind(values), operands, self.place(eqn, steps), eqn.name)

    def place(self, eqn: Eqn, steps: tuple[tuple[str, int], ...]) -> Place:
        return Place(eqn, steps, self.caller, self.around)

    def body(self, jaxpr: Any) -> Program:
        return flatten(jaxpr, ignore_custom_rules=self.ignore_custom_rules)

    def call(self, key: Any, jaxpr: Any, operands: Sequence[Tensor], place: Place, name: str) -> list[Tensor]:
        """A whole body: equation by equation, or as one action."""
        if self.everything or jaxpr_has_unknown_length(jaxpr):
            self.around, outer = place, self.around
            try:
                return self.run(self.body(jaxpr), operands, place.steps)
            finally:
                self.around = outer
        return self.apply(key, lambda *values: jex_core.jaxpr_as_fun(jaxpr)(*values), operands, place, name)


def _constant(value: Any, aval: Any) -> Tensor:
    return make(value if isinstance(value, jax.Array) else jnp.asarray(value, aval.dtype), False)


def has_unknown_length(eqn: Eqn) -> bool:
    return eqn.primitive is while_p or any(map(jaxpr_has_unknown_length, jex_core.jaxprs_in_params(eqn.params)))


def jaxpr_has_unknown_length(jaxpr: Any) -> bool:
    inner, _ = compat.jaxpr_parts(jaxpr)
    return any(
        eqn.primitive is while_p or any(map(jaxpr_has_unknown_length, jex_core.jaxprs_in_params(eqn.params)))
        for eqn in inner.eqns
    )


def _while(recorder: Recorder, eqn: Eqn, operands: list[Tensor], steps) -> list[Tensor] | None:
    params = eqn.params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts, body_consts, carry = operands[:n_cond], operands[n_cond : n_cond + n_body], operands[n_cond + n_body :]
    go_on = jex_core.jaxpr_as_fun(params["cond_jaxpr"])
    step, before = 0, carry
    while True:
        (verdict,) = go_on(*[t.value for t in cond_consts], *[t.value for t in carry])
        if isinstance(verdict, Tracer):
            if recorder.everything and step == 0 and not any(t.requires_grad for t in operands):
                return None  # nothing to differentiate: one action will do
            raise UnknownLengthError(
                "a while loop of unknown length cannot be differentiated in reverse under jit, vmap or grad",
                at=eqn.line,
                action=eqn,
                fix="run it eagerly on concrete values (a mapped one as grad(lambda xs: vmap(f)(xs).sum()), not "
                "vmap(grad(f))), or use lax.scan or fori_loop with a fixed length",
            )
        live = np.asarray(verdict)  # one flag; of a mapped loop, one per lane
        if not live.any():
            return list(carry)
        place = recorder.place(eqn, (*steps, ("while", step)))
        if live.all():
            before = carry
        else:
            others = before if step else [make(_of_a_live_lane(t.value, live), False) for t in carry]
            before = _by_lane(recorder, live, carry, others, place)
        results = recorder.call(
            (id(eqn.origin), "body"), params["body_jaxpr"], [*body_consts, *before], place, "while_body"
        )
        carry = results if live.all() else _by_lane(recorder, live, results, carry, place)
        before = [make(t.value, False) for t in before]
        step += 1


# A lane that is done goes along until the last one is, and what comes of it is dropped. It gets what it got the step
# before, and one that never ran what another got: at its own end the body may divide by zero, and no zero cotangent
# survives an infinite slope.


def _by_lane(recorder: Recorder, live: np.ndarray, xs: Sequence[Tensor], others: Sequence[Tensor], place: Place):
    """The Tensors xs in lanes that are live, the others elsewhere."""
    flags = make(jnp.asarray(live), False)
    return recorder.apply("while_select", _selected, [flags, *xs, *others], place, "while_select")


def _selected(flags: Any, *values: Any) -> list[Any]:
    xs, others = values[: len(values) // 2], values[len(values) // 2 :]
    spread = lambda x: lax.broadcast_in_dim(flags, x.shape, range(flags.ndim))
    return [lax.select(spread(x), x, other) for x, other in zip(xs, others, strict=True)]


def _of_a_live_lane(value: Any, live: np.ndarray) -> Any:
    """A value with one entry per lane, where lanes that are not live have the entry of the first that is."""
    lanes = np.arange(live.size).reshape(live.shape)
    lanes = np.where(live, lanes, lanes[live][0])
    return value.reshape(live.size, *value.shape[live.ndim :])[lanes]


def _scan(recorder: Recorder, eqn: Eqn, operands: list[Tensor], steps) -> list[Tensor]:
    params = eqn.params
    n_consts, n_carry = compat.scan_counts(params, len(operands))
    consts, carry, xs = operands[:n_consts], operands[n_consts : n_consts + n_carry], operands[n_consts + n_carry :]
    length = params["length"]
    order = range(length - 1, -1, -1) if params["reverse"] else range(length)
    stacks: list[list[Tensor]] = [[] for _ in eqn.outputs[n_carry:]]
    for i in order:
        place = recorder.place(eqn, (*steps, ("scan", i)))
        index = make(jnp.asarray(i, jnp.int32), False)
        take = lambda x, at: [lax.dynamic_index_in_dim(x, at, keepdims=False)]
        slices = [recorder.apply("scan_slice", take, [x, index], place, "scan_slice")[0] for x in xs]
        results = recorder.call(
            (id(eqn.origin), "body"), params["jaxpr"], [*consts, *carry, *slices], place, "scan_body"
        )
        carry = results[:n_carry]
        for stack, y in zip(stacks, results[n_carry:], strict=True):
            stack.append(y)
    place = recorder.place(eqn, steps)
    ys = []
    for stack, var in zip(stacks, eqn.origin.outvars[n_carry:], strict=True):
        if not stack:
            ys.append(make(jnp.zeros(var.aval.shape, var.aval.dtype), False))
            continue
        ordered = stack[::-1] if params["reverse"] else stack
        ys.append(recorder.apply("scan_stack", lambda *parts: [jnp.stack(parts)], ordered, place, "scan_stack")[0])
    return [*carry, *ys]


def _cond(recorder: Recorder, eqn: Eqn, operands: list[Tensor], steps) -> list[Tensor] | None:
    index, *rest = operands
    if isinstance(index.value, Tracer):
        return None
    branches = eqn.params["branches"]
    chosen = min(max(int(index.value), 0), len(branches) - 1)
    place = recorder.place(eqn, (*steps, ("cond", chosen)))
    return recorder.call((id(eqn.origin), "branch", chosen), branches[chosen], rest, place, f"branch_{chosen}")


def _remat(recorder: Recorder, eqn: Eqn, operands: list[Tensor], steps) -> list[Tensor]:
    inner, consts = compat.jaxpr_parts(eqn.params["jaxpr"])
    closed = jex_core.ClosedJaxpr(inner, consts)
    return recorder.call((id(eqn.origin), "remat"), closed, operands, recorder.place(eqn, steps), "remat")


OPENERS = {"while": _while, "scan": _scan, "cond": _cond, "remat2": _remat, "checkpoint": _remat}
