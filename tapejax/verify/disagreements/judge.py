"""One call by tapejax, by jax, and by numbers: where the first two differ, the third decides."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.ground import compat
from tapejax.verify.check import TOLERANCES, inexact, our_vjp
from tapejax.verify.disagreements.calls import Call, sampled
from tapejax.verify.disagreements.numbers import Numbers, Slopes
from tapejax.verify.elements import first_line
from tapejax.verify.report import CONVENTION, JAX, RIGHT, TAPEJAX, UNDECIDED
from tapejax.verify.tolerance import wide_numpy

GRADIENT, VALUE, VMAP = "gradient", "value", "vmap"
OUTSIDE = "outside"  # the function has no finite value there
WHERE = {"jax": jax, "jnp": jnp, "lax": lax, "sample": sampled}


@dataclass(frozen=True)
class Disagreement:
    """One call at one point: what the three say about one element of one gradient.

    what: "gradient", "value" (jax.vjp returns another value than the function), or "vmap" (jax.vmap does).
    loss: the real number that was differentiated, as text.
    """

    call: Call
    dtype: str
    arguments: tuple[np.ndarray, ...]
    loss: str
    what: str
    verdict: str
    ours: Any
    jax: Any
    position: int = 0
    index: tuple[int, ...] = ()
    numbers: Numbers | None = None


@dataclass(frozen=True)
class Refused:
    """A call that one side cannot differentiate, though the other can. who: who cannot; right: whether numbers agree."""

    call: Call
    dtype: str
    who: str
    error: str
    right: bool


@dataclass(frozen=True)
class Run:
    """A call in one dtype, and what is computed of it."""

    call: Call
    dtype: str
    values: list[Any]
    args: list[Any]
    wrt: list[bool]
    loss: str

    @cached_property
    def function(self) -> Callable[..., Any]:
        return function_of(self.call, self.loss)

    def own(self, *args: Any) -> Any:
        return self.function(*args), *_with_and_without_vmap(self.call, args)

    def ours(self, *args: Any) -> Any:
        return _by_us(self.function, args, self.wrt)

    def theirs(self, *args: Any) -> Any:
        return _by_jax(self.function, args, self.wrt)

    def three(self, *args: Any) -> Any:
        return self.own(*args), self.ours(*args), self.theirs(*args)


class Judge:
    """Screens calls; counts what it has seen."""

    def __init__(self) -> None:
        self.seen = 0
        self.undefined = 0

    def __call__(self, call: Call) -> Iterator[Disagreement | Refused]:
        known: set[Any] = set()
        with jax.enable_x64(True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runs = [run for dtype in call.dtypes if (run := self._run_in(call, dtype)) is not None]
            try:  # one program for all dtypes: most of the time is compiling
                every = compat.quick_jit(
                    lambda all_args: [run.three(*args) for run, args in zip(runs, all_args, strict=True)]
                )([run.args for run in runs])
            except Exception:
                every = [None] * len(runs)
            for run, found in zip(runs, every, strict=True):
                yield from self._judge(run, found, known)

    def _run_in(self, call: Call, dtype: str) -> Run | None:
        """None if the call is not defined for this dtype, or nothing in it has a derivative."""
        values = call.make(dtype)
        args = arrays(values, dtype)
        try:
            loss = loss_of(call, args)
        except Exception:  # whatever jax says of a dtype it does not take
            self.undefined += 1
            return None
        if loss is None or not any(map(inexact, args)):
            return None
        return Run(call, dtype, values, args, [inexact(arg) for arg in args], loss)

    def _judge(self, run: Run, found: Any, known: set[Any]) -> Iterator[Disagreement | Refused]:
        call, dtype = run.call, run.dtype
        if found is None:
            try:
                found = compat.quick_jit(run.three)(*run.args)
            except Exception:
                yield from self._failed(run, known)
                return
        self.seen += 1
        (value, batched, single), (_, by_us), (value_by_jax, by_jax) = found
        if not _same(single, batched, dtype):
            number, index = _worst_of(single, batched)
            both = (_number(single[number][index]), _number(batched[number][index]))
            yield Disagreement(call, dtype, tuple(run.values), call.text, VMAP, JAX, *both, number, index)
        elif not call.elementwise and not _same([value_by_jax], [value], dtype):
            if VALUE not in known:
                known.add(VALUE)
                both = _number(value), _number(value_by_jax)
                yield Disagreement(call, dtype, tuple(run.values), run.loss, VALUE, JAX, *both)
        else:
            yield from self._gradients(call, dtype, run.values, run.loss, by_us, by_jax, known)

    def _failed(self, run: Run, known: set[Any]) -> Iterator[Refused]:
        """Something in the program of all three raises: who?"""
        errors: list[str] = []
        results: list[Any] = []
        for part in (run.own, run.ours, run.theirs):
            try:
                results.append(compat.quick_jit(part)(*run.args))
                errors.append("")
            except Exception as error:
                results.append(None)
                errors.append(first_line(error))
        own, ours, theirs = errors
        if own or (ours and theirs):
            self.undefined += bool(own)
            return
        self.seen += 1
        who, error, other = (TAPEJAX, ours, results[2]) if ours else (JAX, theirs, results[1])
        if who not in known:
            known.add(who)
            yield Refused(
                run.call, run.dtype, who, error, _is_right(run.function, run.args, run.wrt, other[1], run.dtype)
            )

    def _gradients(self, call, dtype, values, loss, ours, theirs, known) -> Iterator[Disagreement]:
        positions = [i for i, value in enumerate(arrays(values, dtype)) if inexact(value)]
        single = replace(call, elementwise=False)
        slopes = None
        for position, a, b in zip(positions, ours, theirs, strict=True):
            apart = _apart(a, b, dtype, call.elementwise)
            agree = not apart.any()
            if agree and not call.composed:
                continue
            asked = np.ones_like(apart) if agree else apart
            places = np.argwhere(asked) if call.elementwise or agree else [_worst_of([a], [b])[1]]
            for place in (tuple(map(int, place)) for place in places):
                key = (position, place if call.elementwise else (), np.iscomplexobj(wide_numpy(a)))
                if key in known:
                    continue  # in a wider dtype already
                point, mine, other = values, _number(a[place]), _number(b[place])
                if call.elementwise:  # a case of its own, with weight 1
                    weight = np.cos(1.0 + np.ravel_multi_index(place, a.shape))
                    point, mine, other = [value[place] for value in values], mine / weight, other / weight
                    loss = loss_of(single, arrays(point, dtype)) or loss
                    place = ()
                slopes = slopes or Slopes(function_of(single, loss))
                numbers = slopes.at(arrays(point, dtype), position, place, not agree)
                verdict = _decide(mine, other, numbers, TOLERANCES[dtype])
                if agree:  # what jax wrote is followed by both
                    verdict = JAX if _both_wrong(mine, other, numbers) else RIGHT
                if verdict in (JAX, UNDECIDED) and _symmetric(point[position]) and _agree_symmetrised(a, b):
                    verdict = CONVENTION
                if verdict != RIGHT:  # else it is no more than rounding
                    known.add(key)
                    yield Disagreement(
                        single, dtype, tuple(point), loss, GRADIENT, verdict, mine, other, position, place, numbers
                    )  # fmt: skip


# --- what a call computes -------------------------------------------------------------------------------------------------


def function_of(call: Call, text: str | None = None) -> Callable[..., Any]:
    return eval(f"lambda {call.names}: {text or call.text}", WHERE)


def loss_of(call: Call, args: Sequence[Any]) -> str | None:
    """The call made a real number, as text; None if no result of it is inexact."""
    shapes = jax.tree_util.tree_leaves(jax.eval_shape(function_of(call), *args))
    if not any(jnp.issubdtype(shape.dtype, jnp.inexact) for shape in shapes):
        return None
    complex_ = any(jnp.issubdtype(shape.dtype, jnp.complexfloating) for shape in shapes)
    if len(shapes) == 1 and shapes[0].shape == ():
        return f"((1 - 0.5j) * {call.text}).real" if complex_ else call.text
    each = "r * jnp.cos(jnp.arange(1.0, r.size + 1)).reshape(r.shape)"
    each = f"((1 - 0.5j) * {each}).real" if complex_ else each
    return f"sum(jnp.sum({each}) for r in jax.tree.leaves({call.text}))"


def arrays(values: Sequence[Any], dtype: str) -> list[Any]:
    return [jnp.asarray(value, dtype if inexact(value) else None) for value in values]


def _with_and_without_vmap(call: Call, args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """What a call gives under vmap, and row by row; nothing if it is not batched."""
    if not call.batch:
        return [], []
    function = eval(f"lambda {call.names}: {call.code}", WHERE)
    rows = [
        jax.tree_util.tree_leaves(function(*[arg[i] if b else arg for arg, b in zip(args, call.batch, strict=True)]))
        for i in range(2)
    ]
    return jax.tree_util.tree_leaves(function_of(call)(*args)), [
        jnp.stack(leaves) for leaves in zip(*rows, strict=True)
    ]


def _by_us(function: Callable[..., Any], args: Sequence[Any], wrt: Sequence[bool]) -> tuple[Any, list[Any]]:
    outputs, pullback = our_vjp(lambda *a: [function(*a)], args, wrt)
    return outputs[0], pullback([jnp.ones_like(outputs[0])])


def _by_jax(function: Callable[..., Any], args: Sequence[Any], wrt: Sequence[bool]) -> tuple[Any, list[Any]]:
    chosen = [i for i, wanted in enumerate(wrt) if wanted]

    def of_chosen(*values):
        full = list(args)
        for i, value in zip(chosen, values, strict=True):
            full[i] = value
        return function(*full)

    value, pullback = jax.vjp(of_chosen, *[args[i] for i in chosen])
    return value, list(pullback(jnp.ones_like(value)))


# --- who is right ---------------------------------------------------------------------------------------------------------


def _decide(ours: Any, theirs: Any, numbers: Numbers, rtol: float) -> str:
    """Who is nearer to the slope; a convention where there is none, but one from each side."""
    if not np.isfinite(ours) and not np.isfinite(theirs):
        return RIGHT  # two ways to say that there is none
    if not np.isfinite(numbers.value):
        return OUTSIDE
    if numbers.sides is not None:
        return CONVENTION
    slope, error = numbers.slope, numbers.error
    if slope is None:
        slope, error, rtol = numbers.beside, 0.0, 0.1
        if slope is None:
            return UNDECIDED
    far = abs(ours - theirs) if np.isfinite(ours) and np.isfinite(theirs) else np.inf
    error = max(1e-6, rtol) * max(abs(slope), 1e-6) + 5 * error
    allowed = max(error, 0.1 * far if np.isfinite(far) else 0.0)
    near = [bool(np.isfinite(x)) and abs(x - slope) <= allowed for x in (ours, theirs)]
    return {(True, False): JAX, (False, True): TAPEJAX, (True, True): RIGHT}.get((near[0], near[1]), UNDECIDED)


def _both_wrong(ours: Any, theirs: Any, numbers: Numbers) -> bool:
    """Whether two that agree are both wrong: the function has a slope, and not this one."""
    if numbers.slope is None or not np.isfinite(numbers.value):
        return False
    allowed = 1e-3 * max(abs(numbers.slope), 1e-3) + 5 * numbers.error
    return not any(np.isfinite(x) and abs(x - numbers.slope) <= allowed for x in (ours, theirs))


def _is_right(function, args, wrt, gradients, dtype) -> bool:
    """Whether gradients have the slopes that numbers give, at their first elements that have one."""
    slopes = Slopes(function)
    positions = [i for i, wanted in enumerate(wrt) if wanted]
    for position, gradient in zip(positions, map(wide_numpy, gradients), strict=True):
        for place in list(np.ndindex(gradient.shape))[:6]:
            numbers = slopes.at(args, position, place)
            if numbers.slope is None:
                continue
            largest = max(abs(numbers.slope), float(np.abs(gradient).max()))
            if not abs(gradient[place] - numbers.slope) <= 5 * numbers.error + max(TOLERANCES[dtype], 1e-6) * largest:
                return False
    return True


def _symmetric(value: Any) -> bool:
    given = wide_numpy(value)
    square = given.ndim >= 2 and given.shape[-1] == given.shape[-2] > 1
    return square and bool(np.allclose(given, np.conj(np.swapaxes(given, -1, -2)), rtol=1e-5, atol=1e-12))


def _agree_symmetrised(ours: Any, theirs: Any) -> bool:
    a, b = ((g + np.conj(np.swapaxes(g, -1, -2))) / 2 for g in map(wide_numpy, (ours, theirs)))
    return bool(np.allclose(a, b, rtol=0, atol=1e-3 * max(float(np.abs(b).max(initial=0.0)), 1e-300)))


def _number(value: Any) -> Any:
    return wide_numpy(value).item()


def _apart(a: Any, b: Any, dtype: str, each: bool) -> np.ndarray:
    """Where two arrays differ; each: relative to the element itself, else to the largest."""
    a, b = wide_numpy(a), wide_numpy(b)
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        size = np.maximum(np.abs(b), 1e-6) if each else max(np.abs(b[np.isfinite(b)]).max(initial=0.0), 1e-30)
        off = np.where(same, 0.0, np.abs(a - b) / size)
    return ~(np.where(np.isnan(off), np.inf, off) <= TOLERANCES[dtype])


def _worst_of(left: Sequence[Any], right: Sequence[Any]) -> tuple[int, tuple[int, ...]]:
    """Which array, and which element of it, is furthest from its twin."""
    gaps = []
    for a, b in zip(map(wide_numpy, left), map(wide_numpy, right), strict=True):
        with np.errstate(all="ignore"):
            gap = np.where(np.isnan(a) & np.isnan(b), 0.0, np.abs(a - b))
        gaps.append(np.nan_to_num(gap, nan=1e300, posinf=1e300))
    number = max(range(len(gaps)), key=lambda i: gaps[i].max(initial=0.0))
    return number, tuple(int(i) for i in np.unravel_index(int(gaps[number].argmax()), gaps[number].shape))


def _same(left: Sequence[Any], right: Sequence[Any], dtype: str) -> bool:
    return all(not _apart(a, b, dtype, False).any() for a, b in zip(left, right, strict=True) if inexact(a))
