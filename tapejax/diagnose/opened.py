"""Programs inside a program: how a walk goes on within them, and where it comes out again.

Going forward, a walk comes to a result of an equation; going back, to the cotangent of an operand. Each function here
opens one kind of equation, and returns the birth, or (operand or result, element) where the walk goes on outside.
None: this equation is not opened after all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

from tapejax.calculus.reverse import Tools
from tapejax.diagnose import elements
from tapejax.diagnose.births import BACKWARD, Arrived, Birth, Inside
from tapejax.diagnose.elements import INF, Index, found_in, is_inexact
from tapejax.diagnose.loops import BackSteps, Steps
from tapejax.diagnose.places import WithStack, place_of
from tapejax.diagnose.runs import Probe, Run, saved_slots
from tapejax.errors import TapejaxError
from tapejax.ground import compat
from tapejax.program.program import CALLS, CUSTOM, Eqn, flatten
from tapejax.program.tracing import trace
from tapejax.rules.custom import pushforward

# --- what is opened, going forward ------------------------------------------------------------------------


def within(run: Run, key: Any, make: Callable[[], Any]) -> Any:
    kept = run.probe.inside
    if key not in kept:
        kept[key] = make()
    return kept[key]


def _body(run: Run, eqn: Eqn, jaxpr: Any, key: Any) -> Probe:
    def make():
        program = flatten(jaxpr)
        return Probe(program, [False] * len(program.inputs), options=run.probe.options)

    return within(run, (id(eqn), key), make)


def _through(walker, run, eqn, out, index, inside, jaxpr, *, skip=0, key: Any = "body", step=None, **changes) -> Any:
    probe = _body(run, eqn, jaxpr, key)
    inner = probe.run(run.operands(eqn)[skip:], [None] * len(probe.program.outputs))
    found = walker.forward(inner, probe.program.outputs[out], index, inside.of(eqn, step, **changes))
    return found if isinstance(found, Birth) else (found.at + skip, found.index)


def _open_remat(walker, run, eqn, out, index, inside):
    return _through(walker, run, eqn, out, index, inside, _closed(eqn.params["jaxpr"]))


def _open_custom(walker, run, eqn, out, index, inside):
    return _through(walker, run, eqn, out, index, inside, eqn.params["call_jaxpr"], function=custom_name(eqn))


def _open_composite(walker, run, eqn, out, index, inside):
    return _through(walker, run, eqn, out, index, inside, compat.composite_jaxpr(eqn.params))


def _open_custom_vmap(walker, run, eqn, out, index, inside):
    return _through(walker, run, eqn, out, index, inside, eqn.params["call"])


def _open_solve(walker, run, eqn, out, index, inside):
    """The solver inside a linear solve: it reads its own constants, which come third, and the right-hand sides."""
    lengths = eqn.params["const_lengths"]
    before = lengths.matvec + lengths.vecmat
    operands = [*range(before, before + lengths.solve), *range(sum(lengths), len(eqn.inputs))]
    probe = _body(run, eqn, eqn.params["jaxprs"].solve, "solve")
    values = run.operands(eqn)
    inner = probe.run([values[i] for i in operands], [None] * len(probe.program.outputs))
    found = walker.forward(inner, probe.program.outputs[out], index, inside.of(eqn))
    return found if isinstance(found, Birth) else (operands[found.at], found.index)


def _chosen(run: Run, eqn: Eqn) -> int:
    branches = eqn.params["branches"]
    return min(max(int(run.value(eqn.inputs[0])), 0), len(branches) - 1)


def _open_cond(walker, run, eqn, out, index, inside):
    if eqn.params.get("branches_platforms") is not None:
        return None
    chosen = _chosen(run, eqn)
    branch = eqn.params["branches"][chosen]
    return _through(walker, run, eqn, out, index, inside, branch, skip=1, key=chosen, step=("cond", chosen))


def _closed(jaxpr: Any) -> Any:
    inner, consts = compat.jaxpr_parts(jaxpr)
    return jex_core.ClosedJaxpr(inner, consts)


def _open_loop(walker: Any, run: Run, eqn: Eqn, out: int, index: Index, inside: Inside) -> Any:
    steps: Steps = within(run, (id(eqn), "steps"), lambda: Steps(eqn, run.probe.options))
    loop, operands = steps.loop, run.operands(eqn)
    length = steps.length(operands)
    consts, init, xs = loop.split_in(operands[steps.skip :])
    first = steps.skip + loop.n_consts
    if length == 0:
        return first + out, index
    start = steps.stretch.start((consts, xs), init)

    def carried(until: int, at: int, index: Index) -> tuple[int, int, Index]:
        return start.born(until, at, index, walker.kind)

    if out < loop.n_carry:
        step, out, index = carried(length, out, index)
        if step < 0:
            return first + out, index
    else:
        step, index = steps.index_of(index[0], length), index[1:]
    while True:
        i = steps.index_of(step, length)
        inner = steps.probe.run(steps.inputs(consts, start.at(step), xs, step, length), [None] * len(loop.body.outputs))
        found = walker.forward(inner, loop.body.outputs[out], index, inside.of(eqn, (steps.word, i)))
        if isinstance(found, Birth):
            return found
        at, index = found.at, found.index
        if at < loop.n_consts:
            return steps.skip + at, index
        if at >= loop.n_consts + loop.n_carry:
            return steps.skip + at, (i, *index)
        step, out, index = (-1, at - loop.n_consts, index) if step == 0 else carried(step, at - loop.n_consts, index)
        if step < 0:
            return first + out, index


def custom_name(eqn: Eqn) -> str:
    """The name of the function that has a rule of its own."""
    inner, _ = compat.jaxpr_parts(eqn.params["call_jaxpr"])
    info = getattr(getattr(inner, "debug_info", None), "func_src_info", None) or eqn.name
    return info.partition(" at ")[0]


FORWARDS: dict[str, Callable[..., Any]] = {
    "remat2": _open_remat, "checkpoint": _open_remat, "remat": _open_remat, "composite": _open_composite,
    "custom_vmap_call": _open_custom_vmap, "cond": _open_cond, "scan": _open_loop, "while": _open_loop,
    "custom_linear_solve": _open_solve, **dict.fromkeys(CUSTOM, _open_custom),
}  # fmt: skip


# --- what is opened, going back ------------------------------------------------------------------------------


def _back_through(walker, run, number, at, index, inside, jaxpr, *, skip=0, key: Any = "body", step=None) -> Any:
    eqn, _, _, active = run.probe.back.steps[number]
    cts = run.results_cts(eqn)
    wanted = tuple(ct is not None for ct in cts)

    def make():
        return Probe(flatten(jaxpr), active[skip:], wanted, run.probe.options)

    probe = within(run, (id(eqn), "back", key, wanted), make)
    if probe.back is None:
        return None
    inner = probe.run(run.operands(eqn)[skip:], cts)
    found = walker.backward(inner, probe.program.inputs[at - skip], index, inside.of(eqn, step))
    return found if isinstance(found, Birth) else (found.at, found.index)


def _back_remat(walker, run, number, at, index, inside):
    eqn = run.probe.back.steps[number][0]
    return _back_through(walker, run, number, at, index, inside, _closed(eqn.params["jaxpr"]))


def _back_composite(walker, run, number, at, index, inside):
    eqn = run.probe.back.steps[number][0]
    return _back_through(walker, run, number, at, index, inside, compat.composite_jaxpr(eqn.params))


def _back_custom_vmap(walker, run, number, at, index, inside):
    eqn = run.probe.back.steps[number][0]
    return _back_through(walker, run, number, at, index, inside, eqn.params["call"])


def _back_cond(walker, run, number, at, index, inside):
    eqn = run.probe.back.steps[number][0]
    if eqn.params.get("branches_platforms") is not None:
        return None
    chosen = _chosen(run, eqn)
    branch = eqn.params["branches"][chosen]
    return _back_through(walker, run, number, at, index, inside, branch, skip=1, key=chosen, step=("cond", chosen))


def _back_custom_jvp(walker: Any, run: Run, number: int, at: int, index: Index, inside: Inside) -> Any:
    eqn, _, _, active = run.probe.back.steps[number]
    if run.probe.options.linear:
        return _back_through(walker, run, number, at, index, inside, eqn.params["call_jaxpr"])
    in_avals = [run.probe.back.avals[slot] for slot in eqn.inputs]
    out_avals = [run.probe.back.avals[slot] for slot in eqn.outputs]
    cts = run.results_cts(eqn)
    inexact = [i for i, aval in enumerate(out_avals) if jnp.issubdtype(aval.dtype, jnp.inexact)]
    wanted = [False] * len(out_avals) + [cts[i] is not None for i in inexact]

    def make():
        tools = Tools(run.probe.options)
        try:
            pushed = pushforward(compat.equation_as_function(eqn.origin), in_avals, out_avals, active, tools)
        except (TapejaxError, jax.errors.UnexpectedTracerError):
            return None
        if any(inner.name == "custom_lin" for inner in pushed.eqns):
            return None
        wrt = [False] * len(in_avals) + [True] * (len(pushed.inputs) - len(in_avals))
        return Probe(pushed, wrt, wanted, tools.for_linear().options)

    probe = within(run, (id(eqn), "pushed", tuple(wanted)), make)
    if probe is None:
        return _back_traced(walker, run, number, at, index, inside)
    n_in = len(in_avals)
    tangents = [np.zeros(aval.shape, aval.dtype) for aval in probe.program.in_avals[n_in:]]
    inner = probe.run([*run.operands(eqn), *tangents], [*[None] * len(out_avals), *(cts[i] for i in inexact)])
    place = [i for i, flag in enumerate(active) if flag].index(at)
    own = inside.of(eqn, function=custom_name(eqn))
    found = walker.backward(inner, probe.program.inputs[n_in + place], index, own)
    if isinstance(found, Birth):
        if found.cause == "kept" and found.origin is not None:
            found.cause = "derivative"  # what is kept was made by the rule, of good numbers
        return found
    return inexact[found.at - len(out_avals)], found.index


def _back_traced(walker: Any, run: Run, number: int, at: int, index: Index, inside: Inside) -> Any:
    """A backward that somebody wrote, as the program that it is."""
    eqn, step, _, _ = run.probe.back.steps[number]
    saved = [run.env[slot] for slot in saved_slots(run.probe.back, number)]
    cts = run.results_cts(eqn)
    there = [i for i, ct in enumerate(cts) if ct is not None]

    def whole(*values):
        given: list[Any] = [None] * len(cts)
        for i, value in zip(there, values[len(saved) :], strict=True):
            given[i] = value
        return [ct for ct in [step.backward(values[: len(saved)], given)[at]] if ct is not None]

    def make():
        program, _ = trace(whole, [*saved, *(cts[i] for i in there)], growing=WithStack(CALLS | CUSTOM))
        return Probe(program, [False] * len(program.inputs), options=run.probe.options)

    probe = within(run, (id(eqn), "written", at, tuple(there)), make)
    inner = probe.run([*saved, *(cts[i] for i in there)], [None])
    name = custom_name(eqn) if eqn.name in CUSTOM else ""
    own = inside.of(eqn, function=name, backward=True)
    found = walker.forward(inner, probe.program.outputs[0], index, own)
    if isinstance(found, Arrived):
        if found.at >= len(saved):
            return there[found.at - len(saved)], found.index
        slot = probe.program.inputs[found.at]
        return walker.born(inner, found.last or eqn, slot, found.index, own, "kept", BACKWARD)
    if found.cause == "infinities":
        found.cause = _cause_of_infinity(walker, inner, found, len(saved), own)
    elif found.cause == "value":
        found.cause = "derivative"
    return found


def _cause_of_infinity(walker: Any, inner: Run, found: Birth, n_saved: int, inside: Inside) -> str:
    for slot in found.eqn.inputs if found.eqn is not None else ():
        value = inner.value(slot)
        if is_inexact(value) and (place := found_in(value, ..., INF)) is not None:
            source = type(walker)(INF).forward(inner, slot, place, inside)
            if isinstance(source, Arrived):
                return "kept" if source.at < n_saved else "cotangent"
    return "derivative"


def _back_scan(walker: Any, run: Run, number: int, at: int, index: Index, inside: Inside) -> Any:
    eqn, _, _, active = run.probe.back.steps[number]
    cts = run.results_cts(eqn)
    wanted = tuple(ct is not None for ct in cts)
    back: BackSteps = within(
        run, (id(eqn), "backsteps", wanted), lambda: BackSteps(eqn, active, wanted, run.probe.options)
    )
    loop, steps = back.loop, back.steps
    length = loop.length
    consts, init, xs = loop.split_in(run.operands(eqn))
    ct_carry, ct_ys = loop.split_out(cts)
    if length == 0:
        return (at - loop.n_consts, index) if at >= loop.n_consts else None
    before = back.before(consts, init, xs)
    fixed = (consts, xs, before, ct_ys)
    start = back.stretch.start(fixed, back.start_state(ct_carry))
    parts = [i for i, there in enumerate(back.present) if there]

    def born(turns: int, part: int, index: Index) -> tuple[int, int, Index]:
        turn, place, index = start.born(turns, parts.index(part), index, walker.kind)
        return turn, parts[place], index

    if at < loop.n_consts:
        shape = loop.body.avals[loop.body.inputs[at]].shape
        flat = int(np.ravel_multi_index(index, shape)) if shape else 0
        terms = elements.to_numpy(back.terms(at, fixed, start.state, flat))
        turn = elements.first(elements.mask(terms, walker.kind))
        if turn is None:
            turn = _first_bad_sum(terms, walker.kind)
            i = steps.index_of(length - 1 - turn, length)
            place = place_of((*eqn.sources, *inside.sources))
            made = Birth("add_any", place, (*inside.steps, (steps.word, i)), index, BACKWARD, "cotangent", walker.kind, terms[turn], str(terms.dtype))  # fmt: skip
            made.eqn = eqn
            return made
        (turn,) = turn
        slot = loop.body.inputs[at]
    elif at < loop.n_consts + loop.n_carry:
        turn, part, index = born(length, at - loop.n_consts, index)
        if turn < 0:
            return part, index
        slot = loop.body.inputs[loop.n_consts + part]
    else:
        turn, index = length - 1 - steps.index_of(index[0], length), index[1:]
        slot = loop.body.inputs[at]
    while True:
        step = length - 1 - turn
        i = steps.index_of(step, length)
        values = steps.inputs(consts, [elements.to_numpy(x)[step] for x in before], xs, step, length)
        ct_y = [None if ct is None else elements.to_numpy(ct)[i] for ct in ct_ys]
        inner = back.probe.run(values, [*back.carried_cts(start.at(turn)), *ct_y])
        found = walker.backward(inner, slot, index, inside.of(eqn, (steps.word, i)))
        if isinstance(found, Birth):
            return found
        index = found.index
        if found.at >= loop.n_carry:
            return found.at, (i, *index)
        turn, part, index = (-1, found.at, index) if turn == 0 else born(turn, found.at, index)
        if turn < 0:
            return part, index
        slot = loop.body.inputs[loop.n_consts + part]


def _first_bad_sum(terms: np.ndarray, kind: str) -> int:
    with np.errstate(all="ignore"):
        sums = np.cumsum(terms, dtype=terms.dtype)
    place = elements.first(elements.mask(sums, kind))
    return len(terms) - 1 if place is None else place[0]


BACKWARDS: dict[str, Callable[..., Any]] = {
    "remat2": _back_remat, "checkpoint": _back_remat, "remat": _back_remat, "composite": _back_composite,
    "custom_vmap_call": _back_custom_vmap, "cond": _back_cond, "scan": _back_scan,
    "custom_jvp_call": _back_custom_jvp, "custom_vjp_call": _back_traced,
}  # fmt: skip
