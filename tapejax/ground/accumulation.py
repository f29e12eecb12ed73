"""Where two cotangents are added: here, and nowhere else."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from tapejax.ground import compat


def _program_that_adds() -> Any:
    return jax.jit(lambda a, b: lax.add(a, b), inline=compat.INLINE)


_add = _program_that_adds()


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
        if traced:
            return lax.add(before, gradient)
        try:
            return _add(before, gradient)
        except RecursionError:  # asked for while it is compiled, by a signal handler: jax refuses that
            return _program_that_adds()(before, gradient)
