"""The step of a loop in which a bad number was born, found by halving.

A loop is a state and a compiled stretch of steps. If the bad elements of the state are replaced where
step m begins, and the result is bad all the same, then it was born in step m or later; if it is good, then
earlier. Twelve runs of the compiled loop find one step among three thousand; only that step is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex_core

from tapejax.calculus.reverse import Options, Tools
from tapejax.diagnose.elements import NAN, Index, is_inexact, kind_of, mask, to_numpy
from tapejax.diagnose.runs import Probe, compiled, pull, run_eqns
from tapejax.ground import compat
from tapejax.program.program import Eqn, Program
from tapejax.rules.loops import active_in_body, wanted_in_body
from tapejax.rules.scanning import Scan

NEVER = -1


class Stretch:
    """A loop from its first step up to any other: advance(fixed, step, state) -> state."""

    def __init__(self, advance: Callable[[Any, Any, list[Any]], list[Any]]):
        def run(fixed, state, until, cleaned, allowed, stand_ins, nan):
            def tidy(step, state):
                return [
                    jnp.where((step == cleaned) & allow & jnp.where(nan, jnp.isnan(x), jnp.isinf(x)), stand_in, x)
                    if is_inexact(x)
                    else x
                    for x, allow, stand_in in zip(state, allowed, stand_ins, strict=True)
                ]

            def one(step, state):
                state = tidy(step, state)
                return [jnp.asarray(a, b.dtype) for a, b in zip(advance(fixed, step, state), state, strict=True)]

            return tidy(until, lax.fori_loop(0, until, one, state))

        self._run = compiled(run, runs_once=False)

    def start(self, fixed: Any, state: Sequence[Any]) -> Start:
        return Start(self, fixed, list(map(to_numpy, state)))


@dataclass
class Start:
    """A stretch at the values it begins with."""

    stretch: Stretch
    fixed: Any
    state: list[Any]

    def __post_init__(self) -> None:
        usual = [np.where(np.isfinite(x), x, x.dtype.type(1)) if is_inexact(x) else x for x in self.state]
        nought = [np.zeros_like(x) if is_inexact(x) else x for x in self.state]
        self.stand_ins = (usual, nought)
        self.everything = [np.ones(np.shape(x), bool) for x in self.state]
        self.nothing = [np.zeros(np.shape(x), bool) for x in self.state]

    def at(self, step: int) -> list[Any]:
        """The state with which a step begins."""
        return self._run(step, NEVER, self.nothing, self.stand_ins[0], NAN)

    def _run(self, until: int, cleaned: int, allowed: Any, stand_ins: Any, kind: str) -> list[Any]:
        return self.stretch._run(self.fixed, self.state, until, cleaned, allowed, stand_ins, kind == NAN)

    def is_bad(self, until: int, at: int, index: Index, kind: str, cleaned: int, allowed: Any = None) -> bool:
        """Whether an element is bad when step `until` begins, if the state was made good where `cleaned` began."""
        for stand_ins in self.stand_ins:
            state = self._run(until, cleaned, allowed or self.everything, stand_ins, kind)
            if kind_of(to_numpy(state[at])[index]) != kind:
                return False
        return True

    def born(self, until: int, at: int, index: Index, kind: str) -> tuple[int, int, Index]:
        """(step, part of the state, its element): what was bad after that step and led to a bad element at `until`.

        Step -1: it was bad before the first.
        """
        if not self.is_bad(until, at, index, kind, 0):
            return -1, *self.responsible(until, at, index, kind, 0)
        low, high = 0, until
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.is_bad(until, at, index, kind, middle) else (low, middle)
        return low, *self.responsible(until, at, index, kind, low + 1)

    def responsible(self, until: int, at: int, index: Index, kind: str, step: int) -> tuple[int, Index]:
        """The element of the state at a step that makes an element bad at a later one."""
        state = [to_numpy(x) for x in self.at(step)]
        only = lambda part, places: [
            _marked(x.shape, places) if i == part else nothing
            for i, (x, nothing) in enumerate(zip(state, self.nothing, strict=True))
        ]
        helps = lambda part, places: not self.is_bad(until, at, index, kind, step, only(part, places))
        if kind_of(state[at][index]) == kind and (until == step or helps(at, [index])):
            return at, index
        suspects = {
            part: [tuple(int(i) for i in place) for place in np.argwhere(mask(x, kind))]
            for part, x in enumerate(state)
            if is_inexact(x) and mask(x, kind).any()
        }
        for part, places in suspects.items():
            if helps(part, places):
                while len(places) > 1:
                    half = len(places) // 2
                    places = places[:half] if helps(part, places[:half]) else places[half:]
                return part, places[0]
        part, places = next(iter(suspects.items()), (at, [index]))
        return part, places[0]


def _marked(shape: Sequence[int], places: Sequence[Index]) -> np.ndarray:
    found = np.zeros(shape, bool)
    for place in places:
        found[place] = True
    return found


class Steps:
    """A scan or a while with its body opened: how operands split, and how step number and index relate."""

    def __init__(self, eqn: Eqn, options: Options):
        self.options, self.tools = options, Tools(options)
        self.word = getattr(eqn, "word", eqn.name)
        self.skip = 0
        self._count: Any = None
        if eqn.name == "while":
            inner = While(eqn)
            body = self.tools.flatten(inner.jaxpr(*[var.aval for var in eqn.origin.invars]))
            self.loop = Scan(body, inner.n_consts, len(body.outputs), 0, False, 1)
            self.skip = inner.skip
            self._count = compiled(lambda operands: _count(eqn, operands), runs_once=False)
        else:
            self.loop = Scan.of(eqn, self.tools)
        self.probe = Probe(self.loop.body, [False] * len(self.loop.body.inputs), options=options)
        self.stretch = Stretch(self._advance)

    def length(self, operands: Sequence[Any]) -> int:
        return self.loop.length if self._count is None else int(self._count(list(operands)))

    def index_of(self, step: Any, length: Any) -> Any:
        """Where in the stacks a step, counted as they run, reads and writes."""
        return length - 1 - step if self.loop.reverse else step

    def _advance(self, fixed: Any, step: Any, state: list[Any]) -> list[Any]:
        consts, xs = fixed
        i = self.index_of(step, self.loop.length)
        slices = [lax.dynamic_index_in_dim(x, i, keepdims=False) for x in xs]
        body = self.loop.body
        env = body.constants | dict(zip(body.inputs, [*consts, *state, *slices], strict=True))
        run_eqns(body.eqns, env)
        return [env[slot] for slot in body.outputs[: self.loop.n_carry]]

    def inputs(self, consts: list[Any], state: list[Any], xs: list[Any], step: int, length: int) -> list[Any]:
        """What the body gets in a step."""
        i = self.index_of(step, length)
        return [*consts, *state, *(to_numpy(x)[i] for x in xs)]


class While:
    """A while loop: one step of it is body(*consts, *carry) -> carry.

    A mapped loop runs until the last lane is done. What is computed in a lane that is done is dropped; it gets the state
    of a lane that is not, so that nothing bad is born there.
    """

    def __init__(self, eqn: Eqn):
        params = eqn.params
        self.n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
        self.go_on = jex_core.jaxpr_as_fun(params["cond_jaxpr"])
        self._plain = jex_core.jaxpr_as_fun(params["body_jaxpr"])
        self.mapped = bool(compat.jaxpr_parts(params["cond_jaxpr"])[0].outvars[0].aval.shape)
        self.skip = 0 if self.mapped else self.n_cond  # operands that a step does not read
        self.n_consts = self.n_cond + n_body - self.skip
        self.body = self._by_lane if self.mapped else self._plain

    def _by_lane(self, *operands: Any) -> list[Any]:
        carry = operands[self.n_consts :]
        (live,) = self.go_on(*operands[: self.n_cond], *carry)
        lanes = jnp.arange(live.size).reshape(live.shape)
        lanes = jnp.where(live, lanes, jnp.argmax(live.ravel()))
        spread = lambda x: lax.broadcast_in_dim(live, x.shape, range(live.ndim))
        lent = [lax.stop_gradient(x).reshape(live.size, *x.shape[live.ndim :])[lanes] for x in carry]
        given = [lax.select(spread(x), x, other) for x, other in zip(carry, lent, strict=True)]
        made = self._plain(*operands[self.n_cond : self.n_consts], *given)
        return [lax.select(spread(x), new, x) for new, x in zip(made, carry, strict=True)]

    def jaxpr(self, *avals: Any) -> Any:
        return jax.make_jaxpr(self.body)(*avals[self.skip :])


def _count(eqn: Eqn, operands: list[Any]) -> Any:
    """How often a while runs its body."""
    loop = While(eqn)
    cond_consts, given = operands[: loop.n_cond], operands[loop.skip :]
    consts, carry = given[: loop.n_consts], given[loop.n_consts :]

    def one(state):
        count, carry = state
        return count + 1, [jnp.asarray(a, b.dtype) for a, b in zip(loop.body(*consts, *carry), carry, strict=True)]

    still = lambda state: jnp.any(loop.go_on(*cond_consts, *state[1])[0])
    return lax.while_loop(still, one, (jnp.int32(0), carry))[0]


class BackSteps:
    """The way back through a scan: the state are the cotangents of what is carried."""

    def __init__(self, eqn: Eqn, active_in: Sequence[bool], wanted: Sequence[bool], options: Options):
        self.steps = Steps(eqn, options)
        self.loop = loop = self.steps.loop
        tools = self.steps.tools
        self.wrt, active_out = active_in_body(loop, active_in, tools)
        self.wanted = wanted_in_body(loop, self.wrt, list(wanted), tools)
        self.probe = Probe(loop.body, self.wrt, self.wanted, options)
        self.back = self.probe.back
        avals = [loop.body.avals[slot].strip_weak_type() for slot in loop.body.outputs[: loop.n_carry]]
        flags = zip(active_out, self.wanted, loop.body.out_avals)
        there = [a and w and jnp.issubdtype(aval.dtype, jnp.inexact) for a, w, aval in flags]
        self.present = there[: loop.n_carry]
        self.carry_avals = avals
        self.before = compiled(self._before, runs_once=False)
        self.stretch = Stretch(self._advance)
        self.sizes = compiled(self._sizes, runs_once=False)
        self.terms = compiled(self._terms, static_argnums=(0,), runs_once=False)

    def _before(self, consts, init, xs):
        """What is carried into each step, in the order in which they run."""
        loop = self.loop

        def one(carry, step):
            return self.steps._advance((consts, xs), step, carry), carry

        init = [jnp.asarray(x, aval.dtype) for x, aval in zip(init, self.carry_avals, strict=True)]
        return lax.scan(one, init, jnp.arange(loop.length))[1]

    def start_state(self, cts: Sequence[Any]) -> list[Any]:
        pairs = zip(cts, self.present, self.carry_avals)
        return [np.zeros(aval.shape, aval.dtype) if ct is None else ct for ct, there, aval in pairs if there]

    def carried_cts(self, state: Sequence[Any]) -> list[Any]:
        """A cotangent for each part that is carried, None where there is none."""
        parts = iter(state)
        return [next(parts) if there else None for there in self.present]

    def out_cts(self, state: Sequence[Any], ct_ys: Sequence[Any], i: Any) -> list[Any]:
        take = lambda ct: None if ct is None else lax.dynamic_index_in_dim(ct, i, keepdims=False)
        return [*self.carried_cts(state), *map(take, ct_ys)]

    def in_cts(self, fixed: Any, turn: Any, state: list[Any]) -> list[Any]:
        """The cotangents of the body's inputs in a step; turn 0 is the last step."""
        consts, xs, before, ct_ys = fixed
        step = self.loop.length - 1 - turn
        i = self.steps.index_of(step, self.loop.length)
        take = lambda x, at: lax.dynamic_index_in_dim(x, at, keepdims=False)
        program = self.loop.body
        values = [*consts, *(take(x, step) for x in before), *(take(x, i) for x in xs)]
        env = program.constants | dict(zip(program.inputs, values, strict=True))
        run_eqns(program.eqns, env, self.back)
        sums, _ = pull(self.back, env, self.out_cts(state, ct_ys, i))
        return [sums.get(slot) if flag else None for slot, flag in zip(program.inputs, self.back.wrt, strict=True)]

    def _advance(self, fixed: Any, turn: Any, state: list[Any]) -> list[Any]:
        found = self.loop.split_in(self.in_cts(fixed, turn, state))[1]
        pairs = zip(found, self.present, self.carry_avals)
        return [jnp.zeros(aval.shape, aval.dtype) if ct is None else ct for ct, there, aval in pairs if there]

    def _sizes(self, fixed: Any, state: list[Any]) -> tuple[Any, Any]:
        """What arrives at each step, the last one first: its largest element, and its square in units of that."""

        def one(state, turn):
            parts = [jnp.ravel(jnp.abs(x)) for x in state]
            top = jnp.max(jnp.concatenate([part.astype(jnp.float32) for part in parts]), initial=0.0)
            unit = jnp.where(jnp.isfinite(top) & (top > 0), top, 1.0)
            square = sum(jnp.sum((part.astype(jnp.float32) / unit) ** 2) for part in parts)
            return self._advance(fixed, turn, state), (square, unit)

        return lax.scan(one, list(map(jnp.asarray, state)), jnp.arange(self.loop.length))[1]

    def _terms(self, at: int, fixed: Any, state: list[Any], flat: Any) -> Any:
        """What each step adds to one element of the cotangent of a constant operand, the last step first."""

        def one(state, turn):
            found = self.in_cts(fixed, turn, state)
            term = found[at]
            term = jnp.zeros((), self.loop.body.avals[self.loop.body.inputs[at]].dtype) if term is None else term
            ahead = self.loop.split_in(found)[1]
            pairs = zip(ahead, self.present, self.carry_avals)
            state = [jnp.zeros(aval.shape, aval.dtype) if ct is None else ct for ct, there, aval in pairs if there]
            return state, jnp.ravel(term)[jnp.minimum(flat, term.size - 1)]

        return lax.scan(one, state, jnp.arange(self.loop.length))[1]


def as_scan(eqn: Eqn, trips: int) -> Eqn:
    """A while that runs so often, as a scan: the condition has no derivative."""
    step = While(eqn)

    def loop(*operands):
        consts, carry = operands[: step.n_consts], list(operands[step.n_consts :])

        def one(carry, _):
            # What is carried unchanged jax would take out of the scan, which then has fewer results than the while.
            made = step.body(*consts, *carry)
            return [jnp.copy(new) if new is old else new for new, old in zip(made, carry, strict=True)], None

        return lax.scan(one, carry, None, length=trips)[0]

    avals = [var.aval for var in eqn.origin.invars[step.skip :]]
    inner, _ = compat.jaxpr_parts(jax.make_jaxpr(loop)(*avals))
    (made,) = [e for e in inner.eqns if e.primitive.name == "scan"]
    order = {var: at for at, var in enumerate(inner.invars)}
    inputs = tuple(eqn.inputs[step.skip :][order[var]] for var in made.invars)
    found = WhileAsScan(made.primitive, made.params, inputs, eqn.outputs, eqn.sources, made)
    return found


class WhileAsScan(Eqn):
    """A while whose length is known."""

    __slots__ = ()
    word = "while"


def without_whiles(program: Program, run: Any) -> Program:
    """The program with its while loops as scans, as long as they were in a run of it."""
    eqns = [as_scan(eqn, int(_count(eqn, run.operands(eqn)))) if eqn.name == "while" else eqn for eqn in program.eqns]
    return Program(program.avals, program.inputs, program.constants, eqns, program.outputs)
