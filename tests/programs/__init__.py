"""Real programs: each is a JAX function with arguments, in families; tests/test_programs.py runs them all."""

from dataclasses import dataclass
from typing import Any

import numpy as np

PROGRAMS: dict[str, "Case"] = {}


@dataclass
class Case:
    """A function over pytrees of arrays and the arguments to call it with.

    small: cheap enough to be recorded primitive by primitive too. jit: also run inside jax.jit.
    slow: takes long to compile.
    """

    function: Any
    arguments: tuple[Any, ...]
    small: bool = False
    jit: bool = False
    slow: bool = False
    rtol: float = 1e-9


def program(*arguments, name=None, **how):
    """Register a program with its arguments (float64 NumPy arrays in pytrees)."""

    def register(function):
        label = name or function.__name__
        assert label not in PROGRAMS, label
        PROGRAMS[label] = Case(function, arguments, **how)
        return function

    return register


class Draw:
    """Reproducible numbers: draw.normal(2, 3), draw.positive(4), draw.unit(4), draw.ints(5, high=3)."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def normal(self, *shape):
        return self.rng.standard_normal(shape)

    def positive(self, *shape):
        return 0.3 + self.rng.random(shape)

    def unit(self, *shape):
        """Strictly between 0 and 1."""
        return 0.1 + 0.8 * self.rng.random(shape)

    def complex(self, *shape):
        return self.rng.standard_normal(shape) + 1j * self.rng.standard_normal(shape)

    def ints(self, *shape, high):
        return self.rng.integers(0, high, shape)

    def definite(self, n, *batch):
        a = self.rng.standard_normal((*batch, n, n))
        return a @ np.swapaxes(a, -1, -2) + n * np.eye(n)
