"""Medians, quartiles, and ratios of what was measured in the same round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Spread:
    """The median, and the quartiles around it."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    low, median, high = np.percentile(np.asarray(values, float), [25, 50, 75])
    return Spread(float(median), float(low), float(high))


def ratio(ones: Sequence[float], others: Sequence[float]) -> Spread:
    """The spread of one / other, round by round: what slows a whole round down cancels."""
    return spread([one / other for one, other in zip(ones, others, strict=True)])


def geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
