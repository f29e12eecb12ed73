"""The function at a point, as numbers along directions: what finite differences are taken of.

A line judges itself first. It runs the function's program in float64 if that is the same function there: nothing in it runs in
a narrower dtype, and its value is the function's own. Else it runs the program as it is written, with the noise to match.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.ground import compat
from tapejax.verify.finite import POINTS, Guess, Slope, slope
from tapejax.verify.tolerance import for_dtype, inexact, wide_numpy, wide_value
from tapejax.verify.wide import is_analytic, noting_narrow, run_wide, stopping

if TYPE_CHECKING:
    from tapejax.verify.subject import Subject

LARGE = 3e5  # numbers computed in a run
REPEATS = 4  # points that differ in the last bits, to see how far the value moves


class Line:
    """The function at a point, under cotangents.

    precise: whether it is run in float64. why: if not, why not. own: never in float64. hold: whether what stop_gradient
    stops stays as it is at the point.
    """

    def __init__(
        self,
        subject: Subject,
        values: Sequence[Any],
        cts: Sequence[Any],
        outputs: Sequence[Any] | None = None,
        *,
        own: bool = False,
        hold: bool = True,
    ):
        self.subject = subject
        self.hold = hold
        self.cts = [wide_numpy(ct) for ct in cts]
        self.values = [wide_value(value) for value in values]
        self.dtypes = [value.dtype for value in values]
        self.held: list[Any] | None = []
        self.precise = False
        self.why = "it is asked for" if own else self._start_wide(values, outputs)
        self.precise = not self.why
        if not self.precise:
            self._start_as_written(values)
        narrowest = np.float64 if self.precise else subject.narrowest
        self.eps = float(jnp.finfo(narrowest).eps)
        terms = [np.abs(ct * np.where(np.isfinite(out), out, 0)) for ct, out in zip(self.cts, self.base, strict=True)]
        self.size_of_value = float(np.sqrt(sum((term**2).sum() for term in terms)))
        self.noise = 4 * self.eps * self.size_of_value

    def _start_wide(self, values: Sequence[Any], outputs: Sequence[Any] | None) -> str:
        """Run it in float64; why that cannot be trusted, or ''."""
        subject, known = self.subject, self.subject.compiled
        if subject.program is None:
            return "jax cannot trace it"
        if known.get("twin"):
            return known["twin"]
        found: set[str] = set()
        try:
            with jax.enable_x64(True), noting_narrow(found):
                base, held = _run_jitted(subject)(self.values, None if stopping(subject.program) else [])
        except Exception as error:  # whatever jax says about running a foreign program in float64
            known["twin"] = f"it does not run in float64 ({type(error).__name__})"
            return known["twin"]
        self.held = held if self.hold else None
        self.base = [wide_numpy(out) for out in base]
        if "twin" not in known:
            known["twin"] = f"{', '.join(sorted(found))} runs in its own dtype only" if found else ""
            if not found and outputs is not None and not same_value(subject, self.base, outputs, values):
                known["twin"] = "in float64 it has another value"
        return known["twin"]

    def _start_as_written(self, values: Sequence[Any]) -> None:
        subject = self.subject
        if subject.program is None:
            base = subject.over_arrays(*values)
        else:
            base, held = _run_jitted(subject, None)(list(values), None if stopping(subject.program) else [])
            self.held = held if self.hold else None
        self.base = [wide_numpy(out) for out in base]

    @property
    def analytic(self) -> bool:
        """Whether the complex step holds."""
        known = self.subject.compiled
        if "analytic" not in known:
            known["analytic"] = self.precise and is_analytic(self.subject.program)
        return known["analytic"] and self.precise

    def along(self, position: int, direction: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """What the cotangents make of the change from the point to those at some steps along a direction."""
        subject = self.subject
        if subject.program is None:
            return np.array([self._at(self.moved(position, direction, step)) for step in steps])
        padded = np.zeros(POINTS + 1)  # always as many: it is compiled once
        padded[: len(steps)] = steps
        moves = [np.zeros_like(value) if inexact(value) else None for value in self.values]
        moves[position] = direction
        real = np.float64 if self.precise else None
        padded[len(steps)] = 0.0  # the point itself
        given = (self.values, moves, self.held, self.cts, self.base, padded, len(steps) + 1)
        if self.precise:
            with jax.enable_x64(True):
                found = np.asarray(_walk_jitted(subject, real, self.dtypes)(*given))
        else:
            found = wide_numpy(_walk_jitted(subject, real, self.dtypes)(*given))
        return found[: len(steps)] - found[len(steps)]

    def _at(self, moved: Sequence[Any]) -> float:
        outputs = self.subject.over_arrays(*[jnp.asarray(m, d) for m, d in zip(moved, self.dtypes, strict=True)])
        with np.errstate(all="ignore"):
            parts = zip(self.cts, outputs, self.base, strict=True)
            return float(sum(np.sum(np.real(ct * (wide_numpy(out) - base))) for ct, out, base in parts))

    def moved(self, position: int, direction: np.ndarray, t: Any) -> list[Any]:
        moved: list[Any] = list(self.values)
        moved[position] = self.values[position] + t * direction
        return moved

    def slope(self, position: int, direction: np.ndarray, size: float, guess: Guess | None = None) -> Slope:
        """The slope along a direction of one input. guess: what it should be; if it is, a few steps tell."""
        first, guess = (0.02, guess) if self.precise else (0.1, None)
        return slope(lambda steps: self.along(position, direction, steps), self.noise, size, first, self.eps, guess)

    def complex_step(self, position: int, direction: np.ndarray) -> float:
        """The slope from one step along the imaginary axis: nothing cancels, so it is exact to rounding."""
        tiny = 1e-30
        with jax.enable_x64(True):
            moved = [
                value.astype(np.complex128) if inexact(value) else value
                for value in self.moved(position, direction, 1j * tiny)
            ]
            outputs, _ = _run_jitted(self.subject, np.complex128)(moved, self.held)
        parts = zip(self.cts, outputs, strict=True)
        return float(sum(np.sum(ct * np.imag(np.asarray(out))) for ct, out in parts)) / tiny


def _run_jitted(subject: Subject, real: Any = np.float64) -> Callable[..., Any]:
    """The program's run, compiled once per subject; `held` is None at the base point."""
    if ("run", real) not in subject.compiled:
        program = subject.program
        subject.compiled["run", real] = compat.quick_jit(
            lambda values, held: run_wide(program, values, real=real, held=held)
        )
    return subject.compiled["run", real]


def _walk_jitted(subject: Subject, real: Any, dtypes: Sequence[Any]) -> Callable[..., Any]:
    """The run at many points of a line, one after another, each made a number by the cotangents."""
    if ("walk", real) not in subject.compiled:
        program = subject.program

        def walk(values, moves, held, cts, bases, steps, count):
            def at(step):
                moved = [v if move is None else v + step * move for v, move in zip(values, moves, strict=True)]
                if real is None:
                    moved = [jnp.asarray(m, dtype) for m, dtype in zip(moved, dtypes, strict=True)]
                outputs, _ = run_wide(program, moved, real=real, held=held)
                parts = zip(cts, outputs, bases, strict=True)
                return sum(jnp.sum(jnp.real(ct * (out - base))) for ct, out, base in parts)

            found = jnp.zeros(len(steps), jax.eval_shape(at, steps[0]).dtype)
            return lax.fori_loop(0, count, lambda i, found: found.at[i].set(at(steps[i])), found)

        # It runs at many points: a large program is worth compiling well.
        subject.compiled["walk", real] = (jax.jit if subject.work > LARGE else compat.quick_jit)(walk)
    return subject.compiled["walk", real]


def same_value(subject: Subject, found: Sequence[Any], own: Sequence[Any], values: Sequence[Any] | None = None) -> bool:
    """Whether values are the function's own, as far as its dtype has digits, and as its noise lets us see."""
    tolerance = for_dtype(subject.narrowest)
    pairs = [(wide_numpy(a), wide_numpy(b)) for a, b in zip(found, own, strict=True)]
    distances = [_apart(a, b) for a, b in pairs]
    if all(a <= tolerance.rtol for a in distances):
        return True
    moved = [0.0] * len(pairs)
    values = subject.values if values is None else values
    for number in range(REPEATS):
        point = nudged(values, number) if number else values
        others = subject.over_arrays(*point) if subject.program is None else _run_jitted(subject, None)(point, None)[0]
        moved = [max(m, _apart(wide_numpy(other), b)) for m, other, (_, b) in zip(moved, others, pairs, strict=True)]
    return all(a <= max(tolerance.rtol, 10 * m) for a, m in zip(distances, moved, strict=True))


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    """How far two arrays are apart, relative to the largest element; infinite where only one is finite."""
    if not a.size:
        return 0.0
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        finite = np.abs(b[np.isfinite(b)])
        off = np.where(same, 0.0, np.abs(a - b)) / max(finite.max(initial=0.0), 1e-300)
    return float(np.where(np.isnan(off), np.inf, off).max())


def nudged(values: Sequence[Any], number: int) -> list[Any]:
    """The values with every number changed in its last bits, at random."""
    rng = np.random.default_rng(number)
    moved = []
    for value in values:
        if inexact(value):
            wide, eps = wide_numpy(value), float(jnp.finfo(value.dtype).eps)
            value = jnp.asarray(wide * (1 + 2 * eps * rng.choice([-1.0, 1.0], wide.shape)), value.dtype)
        moved.append(value)
    return moved
