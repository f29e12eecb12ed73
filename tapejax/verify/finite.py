"""Slopes by finite differences that know when to be believed: extrapolated, and aware of kinks.

A slope along a direction comes from central differences at a ladder of steps, extrapolated to zero
(Ridders), so it has an error of its own. Where the slopes from the left and from the right differ, there is
a kink: no finite difference can judge a gradient there, and it is said so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

LEVELS = 10
FEW_LEVELS = 4  # where it is known what to expect
RATIO = 4.0
PROBES = np.array([-4.0, -2.0, -1.0, 1.0, 2.0, 4.0])  # in units of the last bit: how much the value is noise
POINTS = 2 * LEVELS + len(PROBES)


@dataclass(frozen=True, slots=True)
class Guess:
    """What a slope should be, and how far it may be from that."""

    value: float
    margin: float


@dataclass(slots=True)
class Slope:
    """A derivative along a line: `value` +- `error`; `kind` says whether there is one.

    kind: "smooth", "kink" (left and right differ), or "rough" (the differences do not settle: a jump, an
    infinite slope, or too few digits).
    """

    value: float
    error: float
    kind: str = "smooth"
    left: float = 0.0
    right: float = 0.0


def slope(
    along: Callable[[np.ndarray], np.ndarray],
    noise: float,
    size: float,
    first: float = 0.02,
    eps: float = 2e-16,
    guess: Guess | None = None,
) -> Slope:
    """The slope at 0 of a function that is 0 there; `along` gives its values at several steps.

    noise: the least rounding error of a value; more of it is measured at steps of some eps. size: what counts as a
    large slope here; less than a thousandth of it is nothing. first: the largest step. Where the steps turn out too
    large, as beside a pole, smaller ones are tried. guess: a few steps that settle at it are enough.
    """
    if guess is not None:
        found, _ = _ladder(along, noise, size, first / RATIO**2, eps, FEW_LEVELS)
        if found.kind == "smooth" and abs(found.value - guess.value) + 5 * found.error <= guess.margin:
            return found
    found, noise = _ladder(along, noise, size, first, eps)
    if found.kind != "smooth":
        finer, _ = _ladder(along, noise, size, first * RATIO ** (1 - LEVELS), eps)
        if finer.kind == "smooth" and (found.kind == "rough" or noise / first * RATIO**LEVELS < 1e-2 * size):
            return finer
    return found


def _ladder(along, noise: float, size: float, first: float, eps: float, levels: int = LEVELS) -> tuple[Slope, float]:
    """What a ladder of steps says, and the noise that was measured."""
    steps = [first * RATIO**-level for level in range(levels) if noise == 0 or noise / (first * RATIO**-level) < size]
    steps = steps if len(steps) >= 4 else [first * 2.0**-level for level in range(5)]
    probes = PROBES if levels == LEVELS else PROBES[[0, -1]]
    found = along(np.concatenate([steps, np.negative(steps), probes * eps]))
    ups, downs, near = np.split(found, [len(steps), 2 * len(steps)])
    near = np.abs(near[np.isfinite(near)])
    noise = max(noise, float(near.max(initial=0.0)))
    return _judged(np.array(steps), ups, downs, noise, size), noise


def _judged(steps: np.ndarray, ups: np.ndarray, downs: np.ndarray, noise: float, size: float) -> Slope:
    usable = np.isfinite(ups) & np.isfinite(downs)
    if not usable[-1]:
        return Slope(float("nan"), float("inf"), "rough", float(-downs[-1]), float(ups[-1]))
    start = len(steps) - int(np.argmin(usable[::-1])) if not usable.all() else 0
    h, ups, downs = steps[start:], ups[start:], downs[start:]
    if len(h) < 2:
        return Slope(float("nan"), float("inf"), "rough")
    central = (ups - downs) / (2 * h)
    value, error = _extrapolate(central, h, noise)
    bends = np.abs(ups + downs) / h  # the slope from the right less the one from the left
    sure = bends > 1e-3 * max(size, abs(central[-1])) + 20 * noise / h
    persists = len(h) >= 3 and sure[-3:].all() and (bends[-2:] > 0.6 * bends[-3:-1]).all()
    left, right = float(-downs[-1] / h[-1]), float(ups[-1] / h[-1])
    if persists:
        grows = bends[-1] > 1.5 * bends[-2] or abs(central[-1]) > 1.5 * abs(central[-2])
        return Slope(value, error, "rough" if grows else "kink", left, right)
    grows = abs(central[-1]) > 1.5 * abs(central[-2]) > 2.25 * abs(central[-3]) if len(h) >= 3 else False
    if grows and abs(central[-1]) > size:
        return Slope(value, float("inf"), "rough", left, right)
    # The smallest step must tell the same, or the larger ones were beyond a pole or a kink.
    least = 1e-2 * max(size, abs(value))
    settled = error < least and abs(central[-1] - value) < least + 10 * noise / h[-1]
    return Slope(value, error, "smooth" if settled else "rough", left, right)


def _extrapolate(central: np.ndarray, steps: np.ndarray, noise: float) -> tuple[float, float]:
    """Ridders' table: the entry that changed least from its neighbours, and by how much it did."""
    best, least = float(central[-1]), float("inf")
    column = central
    power = 1.0
    table = [column]
    ratio = (steps[0] / steps[1]) ** 2
    while len(column) > 1:
        power *= ratio
        column = (column[1:] * power - column[:-1]) / (power - 1)
        table.append(column)
        before = table[-2]
        for i, entry in enumerate(column):
            error = max(abs(entry - before[i + 1]), abs(entry - before[i])) + noise / steps[i + len(table) - 1]
            if error < least:
                best, least = float(entry), float(error)
    return best, least


def narrowed(size: int, badness: Callable[[np.ndarray], float]) -> int:
    """The element that is most to blame, found by halving: badness(mask) of a part of the elements."""
    chosen = np.arange(size)

    def bad(part: np.ndarray) -> float:
        mask = np.zeros(size, bool)
        mask[part] = True
        return badness(mask)

    while len(chosen) > 1:
        middle = len(chosen) // 2
        first, second = chosen[:middle], chosen[middle:]
        chosen = first if bad(first) >= bad(second) else second
    return int(chosen[0])


def index_of(position: int, shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(position, tuple(shape))) if shape else ()
