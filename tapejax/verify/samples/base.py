"""How a rule's test data is written: a function, and a recipe for each argument.

    SAMPLES = {lax.div_p: [sample(lax.div, normal(2, 3), positive(2, 3))]}

A recipe makes an array of the dtype under test from a seeded generator; integer recipes keep their
own dtype. The same data serves `tapejax verify` and the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

REAL = ("float64", "float32", "bfloat16", "float16")
WIDE = ("float64", "float32")  # where jax or XLA offers no half precision
COMPLEX = ("complex128", "complex64")
ALL = REAL + COMPLEX

Recipe = Callable[[np.random.Generator, np.dtype], np.ndarray]


@dataclass(frozen=True)
class Sample:
    """One call whose gradient is checked.

    function takes the made arguments and returns an array or a tuple of arrays.
    orders: the highest order of derivative that is checked (2: also jax.vjp of jax.vjp).
    finite: whether finite differences are meaningful (not at ties, kinks, or for complex input).
    rtol: tolerance in float64, where 1e-10 is not possible; `why` says why.
    forward_only_cts: see `gauge`.
    gauge: maps the outputs to what is well defined before differentiating (an eigenvector's phase).
    """

    function: Callable[..., Any]
    arguments: tuple[Recipe, ...]
    dtypes: tuple[str, ...] = REAL
    orders: int = 2
    finite: bool = True
    rtol: float | None = None
    why: str = ""
    label: str = ""


def sample(function, *arguments, **options) -> Sample:
    if options.get("rtol") and not options.get("why"):
        raise ValueError("a looser tolerance needs its reason: why='...'")
    return Sample(function, arguments, **options)


def _complex_or_real(draw):
    def make(rng, dtype):
        if np.issubdtype(dtype, np.complexfloating):
            return (draw(rng) + 1j * draw(rng)).astype(dtype)
        return draw(rng).astype(dtype)

    return make


def normal(*shape: int, scale: float = 1.0) -> Recipe:
    """Standard normal numbers (complex for complex dtypes)."""
    return _complex_or_real(lambda rng: scale * rng.standard_normal(shape))


def uniform(low: float, high: float, *shape: int) -> Recipe:
    return _complex_or_real(lambda rng: rng.uniform(low, high, shape))


def positive(*shape: int) -> Recipe:
    """Numbers between 0.5 and 2 (in the right half plane for complex dtypes)."""
    return uniform(0.5, 2.0, *shape)


def away_from_zero(*shape: int) -> Recipe:
    """Numbers of both signs, at least 0.25 from zero."""
    return _complex_or_real(lambda rng: rng.choice([-1.0, 1.0], shape) * rng.uniform(0.25, 2.0, shape))


def distinct(*shape: int) -> Recipe:
    """Numbers no two of which are close: for max, sort and friends."""

    def draw(rng):
        size = int(np.prod(shape))
        return (rng.permutation(size).reshape(shape) - size / 2 + 0.25) * 0.5

    return _complex_or_real(draw)


def exactly(values: Any) -> Recipe:
    """These very numbers, in the dtype under test."""
    return lambda rng, dtype: np.asarray(values).astype(dtype)


def integers(values: Any, dtype: Any = np.int32) -> Recipe:
    """Fixed integers or booleans; they get no gradient."""
    return lambda rng, _: np.asarray(values, dtype)


def fixed(values: Any) -> Recipe:
    """A fixed array that keeps its own dtype."""
    return lambda rng, _: np.asarray(values)


def positive_definite(n: int, *batch: int) -> Recipe:
    """Well-conditioned symmetric (Hermitian) positive definite matrices."""

    def make(rng, dtype):
        a = normal(*batch, n, n)(rng, np.dtype("complex128" if np.issubdtype(dtype, np.complexfloating) else "float64"))
        return (a @ np.conj(np.swapaxes(a, -1, -2)) + n * np.eye(n)).astype(dtype)

    return make


def well_conditioned(n: int, *batch: int) -> Recipe:
    """General square matrices far from singular."""

    def make(rng, dtype):
        a = normal(*batch, n, n)(rng, np.dtype("complex128" if np.issubdtype(dtype, np.complexfloating) else "float64"))
        return (a + 2 * n * np.eye(n)).astype(dtype)

    return make
