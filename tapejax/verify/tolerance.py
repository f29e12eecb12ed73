"""How far two gradients may be apart, and why: by dtype, and by how well the function is conditioned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from tapejax.verify.finite import index_of


@dataclass(frozen=True, slots=True)
class Tolerance:
    """rtol: the relative error that is fine. floor: elements below this part of the largest count as that large.

    reason: why this much, in words.
    """

    rtol: float
    floor: float
    reason: str


# A sum of n terms carries about sqrt(n) eps, relative to its largest terms. These begin small: where rounding is worse,
# it is measured.
_BY_DTYPE = {
    "float64": (1e-9, 1e-2), "float32": (5e-5, 1e-2), "float16": (2e-2, 0.2), "bfloat16": (6e-2, 0.3),
    "complex128": (1e-9, 1e-2), "complex64": (5e-5, 1e-2),
}  # fmt: skip
_SLOPES = {"float64": 1e-6, "complex128": 1e-6, "float32": 2e-5, "complex64": 2e-5, "float16": 5e-2, "bfloat16": 1e-1}
_PROGRAMS = {"float32": (2e-4, 5e-2), "complex64": (2e-4, 5e-2)}


def for_dtype(dtype: Any, *, slopes: bool = False, programs: bool = False, rtol: float | None = None) -> Tolerance:
    """The tolerance for numbers computed in a dtype.

    slopes: the judge is a finite difference. programs: two ways to compute one thing, which round differently.
    """
    name = jnp.dtype(dtype).name
    usual, floor = _BY_DTYPE.get(name, (0.2, 0.5))
    if programs:
        usual, floor = _PROGRAMS.get(name, (usual, floor))
    if rtol is not None:
        return Tolerance(rtol, floor, "as asked")
    return Tolerance(_SLOPES.get(name, 0.3) if slopes else usual, floor, f"{name} has {digits(dtype)} digits")


def digits(dtype: Any) -> int:
    return int(np.floor(-np.log10(float(jnp.finfo(dtype).eps))))


@dataclass(slots=True)
class Difference:
    """How two arrays differ: the largest errors, and the worst element."""

    max_abs: float
    max_rel: float
    index: tuple[int, ...]
    got: Any
    expected: Any
    ok: bool


def difference(got: Any, expected: Any, tolerance: Tolerance, unit: float = 0.0) -> Difference:
    """Compare two arrays of one shape, element by element. unit: an absolute error that is always fine."""
    a = wide_numpy(got)
    if a.size == 0:
        return Difference(0.0, 0.0, (), None, None, True)
    apart, relative = distances(got, expected, tolerance, unit)
    index = index_of(int(relative.argmax()), a.shape)
    return Difference(
        float(apart.max()), float(relative.max()), index, a[index].item(), wide_numpy(expected)[index].item(),
        bool(relative.max() <= tolerance.rtol),
    )  # fmt: skip


def distances(got: Any, expected: Any, tolerance: Tolerance, unit: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """The absolute and relative errors of each element; relative to itself, or to a part of the largest if it is less."""
    a, b = wide_numpy(got), wide_numpy(expected)
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        apart = np.where(same, 0.0, np.abs(a - b))
        apart = np.where(np.isnan(apart), np.inf, apart)
        finite = np.abs(b[np.isfinite(b)])
        least = max(tolerance.floor * finite.max(initial=0.0), unit / tolerance.rtol, 1e-300)
        relative = np.where(same, 0.0, apart / np.maximum(np.where(np.isfinite(b), np.abs(b), 1.0), least))
    return apart, relative


def inexact(value: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(value), jnp.inexact)


def wide_value(value: Any) -> Any:
    """An inexact value in NumPy's widest dtype; others as they are."""
    return wide_numpy(value) if inexact(value) else value


def wide_numpy(value: Any) -> np.ndarray:
    """As a NumPy array of float64 or complex128."""
    array = np.asarray(value)
    return array.astype(np.complex128 if jnp.issubdtype(array.dtype, jnp.complexfloating) else np.float64)


def factor(got: Any, expected: Any) -> str:
    """`got` as a multiple of `expected`, in words; empty where that says nothing."""
    with np.errstate(all="ignore"):
        ratio = np.divide(got, expected)
    if np.iscomplexobj(ratio) or not np.isfinite(ratio) or abs(ratio) > 1e6:
        return ""
    if abs(ratio + 1) < 1e-3:
        return "the sign is wrong"
    return f"{float(ratio):.{6 if abs(ratio - 1) < 1e-2 else 4}g} times what it should be"
