"""Correctness first: nothing is timed that does not give jax's gradients."""

from __future__ import annotations

import numpy as np

TOLERANCE = 2e-3  # float32, sums in another order; relative to the largest element

Numbers = tuple[np.ndarray, list[np.ndarray]]  # the result, one gradient per parameter


class Disagreement(AssertionError):
    """A contestant's numbers are not jax's: its time would mean nothing."""


def check(who: str, found: Numbers, expected: Numbers) -> None:
    """Raise Disagreement unless the numbers are what jax gives."""
    if len(found[1]) != len(expected[1]):
        raise Disagreement(f"{who}: {len(found[1])} gradients, not {len(expected[1])}")
    pairs = [("the result", found[0], expected[0])]
    pairs += [(f"gradient {i}", *pair) for i, pair in enumerate(zip(found[1], expected[1], strict=True))]
    for what, one, other in pairs:
        if one.shape != other.shape:
            raise Disagreement(f"{who}: {what} has the shape {one.shape}, not {other.shape}")
        error = np.max(np.abs(one - other)) / max(np.max(np.abs(other)), 1e-30)
        if not error <= TOLERANCE:
            raise Disagreement(f"{who}: {what} is off by {error:.1e}, relative to its largest element")
