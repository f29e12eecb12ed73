"""A call of jax written as text, so that what is judged is what the reproducer shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tapejax.verify.samples.base import ALL, Recipe

NAMES = "xyzuvwabcdefgh"
WIDE = ("float64", "complex128")


@dataclass(frozen=True)
class Call:
    """One expression of its arguments, which are named x, y, z.

    elementwise: every element is a case of its own. batch: the expression runs once per row of the arguments for
    which it is True, and must give the same under `jax.vmap`. composed: jax wrote it with other functions; both sets of rules
    follow what is written, so numbers judge it where they agree, too.
    """

    primitive: str
    code: str
    arguments: tuple[Recipe, ...]
    elementwise: bool = False
    batch: tuple[bool, ...] = ()
    dtypes: tuple[str, ...] = ALL
    composed: bool = False

    @property
    def names(self) -> str:
        return ", ".join(NAMES[: len(self.arguments)])

    @property
    def text(self) -> str:
        """The expression as it is called: under vmap if it is batched."""
        if not self.batch:
            return self.code
        axes = "" if all(self.batch) else f", ({', '.join('0' if b else 'None' for b in self.batch)})"
        return f"jax.vmap(lambda {self.names}: {self.code}{axes})({self.names})"

    def make(self, dtype: str) -> list[np.ndarray]:
        """Its arguments in a dtype, with few digits: they are printed."""
        rng = np.random.default_rng(len(self.code))
        return [self._argument(number, rng, np.dtype(_numpy(dtype))) for number in range(len(self.arguments))]

    def _argument(self, number: int, rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
        recipe = self.arguments[number]
        if self.batch and self.batch[number]:
            return np.stack([_rounded(recipe(rng, dtype)) for _ in range(2)])
        return _rounded(recipe(rng, dtype))


def _numpy(dtype: str) -> Any:
    """bfloat16 is drawn as float32: NumPy alone does not know it."""
    return np.float32 if dtype == "bfloat16" else dtype


def _rounded(values: np.ndarray) -> np.ndarray:
    if not np.issubdtype(values.dtype, np.inexact) or not np.isfinite(values).all():
        return values
    small = np.abs(values).max(initial=0.0) < 0.05
    return values if small else np.round(values, 2)
