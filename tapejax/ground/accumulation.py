"""Where two cotangents are added: here, and nowhere else."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from tapejax.ground import compat

_add = jax.jit(lax.add, inline=compat.INLINE)


def accumulate(sums: dict[int, Any], key: int, gradient: Any) -> None:
    """File a gradient: the first one as it is, the next added to what is there."""
    before = sums.get(key)
    sums[key] = gradient if before is None else added(before, gradient)


def added(before: Any, gradient: Any) -> Any:
    """The sum of two arrays, or of two Tensors, which records it."""
    if not (isinstance(before, jax.Array) and isinstance(gradient, jax.Array)):
        return before + gradient
    traced = isinstance(before, jax.core.Tracer) or isinstance(gradient, jax.core.Tracer)
    with compat.mesh_context(jax.typeof(before)):
        return lax.add(before, gradient) if traced else _add(before, gradient)
