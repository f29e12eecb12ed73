"""The third judge: slopes of a real function of arrays, by extrapolated differences and by the complex step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.ground import compat
from tapejax.verify.check import inexact
from tapejax.verify.finite import Slope, slope
from tapejax.verify.tolerance import wide_numpy

POINTS = 64  # that are run at once; a ladder of steps has fewer
OFF_THE_CUT = 1e-2


@dataclass(frozen=True)
class Numbers:
    """What differences say about one element: a slope and its error, or None and the slopes from the two sides at a kink.

    value: of the function. complex_step: the slope from a step of 1e-30 along the imaginary axis, where the function takes
    it. beside: the slope a little off a branch cut, on the side that the point's zero has; or at the edge of the domain, from
    inside.
    """

    value: float
    slope: Any = None
    error: float = np.inf
    sides: tuple[float, float] | None = None
    complex_step: float | None = None
    beside: Any = None


class Slopes:
    """Slopes of one function, in float64; it is compiled once per input that moves."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.runs: dict[int, Callable[..., Any]] = {}

    def at(self, args: Sequence[Any], position: int, place: tuple[int, ...], step_too: bool = True) -> Numbers:
        """step_too: whether the complex step is taken where that can be done."""
        wide = [wide_numpy(arg) if inexact(arg) else np.asarray(arg) for arg in args]
        real, value = self._along(wide, position, place, 1.0)
        if not np.iscomplexobj(wide[position]):
            step = self._complex_step(wide, position, place) if step_too else None
            if real.kind == "smooth":
                return Numbers(value, float(real.value), float(real.error), None, step)
            if real.kind == "kink":
                return Numbers(value, sides=(real.left, real.right), complex_step=step)
            return Numbers(value, complex_step=step, beside=self._from_inside(wide, position, place))
        imaginary, _ = self._along(wide, position, place, 1j)
        if real.kind == imaginary.kind == "smooth":
            return Numbers(value, _paired(real, imaginary), float(real.error + imaginary.error))
        return Numbers(value, beside=self._beside(wide, position, place))

    def _along(self, wide: Sequence[Any], position: int, place: tuple[int, ...], direction: complex):
        def at(steps: np.ndarray) -> np.ndarray:
            padded = np.zeros(POINTS)
            padded[: len(steps)] = steps
            moved = np.repeat(wide[position][None], POINTS, axis=0)
            moved[(slice(None), *place)] += padded * direction
            found = self._run(wide, position, moved)
            with np.errstate(all="ignore"):
                return found[: len(steps)] - found[-1]

        value = float(self._run(wide, position, np.repeat(wide[position][None], POINTS, axis=0))[-1])
        size = abs(value) if np.isfinite(value) else 1.0
        return slope(at, 4e-16 * max(size, 1e-3), 1.0), value

    def _run(self, wide: Sequence[Any], position: int, moved: np.ndarray) -> np.ndarray:
        if position not in self.runs:
            axes = [0 if i == position else None for i in range(len(wide))]
            self.runs[position] = compat.quick_jit(jax.vmap(self.function, axes))
        full = [jnp.asarray(moved if i == position else value) for i, value in enumerate(wide)]
        return np.asarray(self.runs[position](*full), np.float64)

    def _complex_step(self, wide: Sequence[Any], position: int, place: tuple[int, ...]) -> float | None:
        """None where the function takes no complex numbers, or takes their real part."""
        moved = [jnp.asarray(value) for value in wide]
        moved[position] = moved[position].astype(complex).at[place].add(1e-30j)
        try:
            found = self.function(*moved)
        except Exception:  # it takes no complex numbers
            return None
        return float(found.imag) / 1e-30 if jnp.iscomplexobj(found) and np.isfinite(found) else None

    def _from_inside(self, wide: Sequence[Any], position: int, place: tuple[int, ...]) -> float | None:
        """The slope from one side, where the function has no finite value on the other."""
        steps = 1e-3 * 2.0 ** -np.arange(6)
        moved = np.repeat(wide[position][None], POINTS, axis=0)
        moved[(slice(None), *place)] += np.concatenate([steps, -steps, np.zeros(POINTS - 12)])
        found = self._run(wide, position, moved)
        with np.errstate(all="ignore"):
            above, below = (found[:6] - found[-1]) / steps, (found[-1] - found[6:12]) / steps
        inside = [side for side in (above, below) if np.isfinite(side).all()]
        if len(inside) != 1:
            return None
        better = 2 * inside[0][1:] - inside[0][:-1]
        settled = abs(better[-1] - better[-2]) <= 1e-3 * max(abs(better[-1]), 1e-3)
        return float(better[-1]) if settled else None

    def _beside(self, wide: Sequence[Any], position: int, place: tuple[int, ...]) -> Any:
        point = wide[position][place]
        signs = complex(np.copysign(1.0, point.real), np.copysign(1.0, point.imag))
        moved = list(wide)
        moved[position] = wide[position].copy()
        moved[position][place] = point + OFF_THE_CUT * signs
        real, imaginary = (self._along(moved, position, place, d)[0] for d in (1.0, 1j))
        return _paired(real, imaginary) if real.kind == imaginary.kind == "smooth" else None


def _paired(real: Slope, imaginary: Slope) -> complex:
    """As jax pairs complex numbers: the change is the real part of gradient times step."""
    return complex(real.value, -imaginary.value)
