"""Helpers for rules that work along one axis."""

import jax.numpy as jnp
from jax import lax

from tapejax.ground import compat


def zeros_for(x, ct):
    """Zeros to put cotangents into: shaped and spread over devices like x."""
    return compat.as_typed(jnp.zeros(x.shape, ct.dtype), x)


def place_along(ct, index, axis, x):
    """Zeros like x with ct[..., j, ...] at position index[..., j, ...] of an axis; no index comes twice."""
    others = tuple(d for d in range(x.ndim) if d != axis)
    where = lax.ScatterDimensionNumbers(
        update_window_dims=(),
        inserted_window_dims=(axis,),
        scatter_dims_to_operand_dims=(axis,),
        operand_batching_dims=others,
        scatter_indices_batching_dims=others,
    )
    index = lax.expand_dims(index, (x.ndim,))
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return lax.scatter_add(zeros_for(x, ct), index, ct, where, unique_indices=True, mode=mode)


def shifted(x, axis, by, fill):
    """x moved by some places along an axis; `fill` comes in, what leaves is lost."""
    config = [(by, -by, 0) if d == axis else (0, 0, 0) for d in range(x.ndim)]
    return lax.pad(x, lax.full_like(x, fill, shape=()), config)


def linear_recurrence(a, b, axis, *, reverse=False):
    """The s with s[i] = a[i] * s[i - 1] + b[i] along an axis, starting from 0 (reverse: s[i + 1] for s[i - 1])."""

    def compose(first, then):
        return first[0] * then[0], then[0] * first[1] + then[1]

    return lax.associative_scan(compose, (a, b), axis=axis, reverse=reverse)[1]
