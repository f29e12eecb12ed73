"""straight: what a function of jax.numpy comes to for plain floats, said in lax.

The same program, traced in a fraction of the time: the function itself is jitted, and first decides about
dtypes and shapes that are known here to be as they should. Two things are said more shortly: see `has_number`
and `stretched`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.ground import compat

ONE = {
    jnp.negative: lax.neg, jnp.exp: lax.exp, jnp.log: lax.log, jnp.sin: lax.sin, jnp.cos: lax.cos,
    jnp.tanh: lax.tanh, jax.nn.sigmoid: lax.logistic,
}  # fmt: skip
TWO = {jnp.add: lax.add, jnp.subtract: lax.sub, jnp.multiply: lax.mul, jnp.true_divide: lax.div}
SUMS = (jnp.add, jnp.subtract)  # whose derivatives need no operand: the stretched one is not kept
WIDE = (np.float32, np.float64)  # what is narrower is summed in a wider type


def straight(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, by way of lax where its operands are so plain that nothing is to be decided."""

    @functools.wraps(function, updated=())
    def elementwise(*operands, **options):
        kinds = [kind_of(x) for x in operands]
        if options or len(kinds) != n_operands or not is_inexact(kinds[0]):
            return function(*operands, **options)
        if kinds[0] == kinds[-1] or has_number(kinds):
            return chosen(*operands)
        alike = stretched(*operands) if function in SUMS else None
        return function(*operands) if alike is None else chosen(*alike)

    @functools.wraps(function)
    def matmul(x, y, **options):
        if not options and np.ndim(x) == np.ndim(y) == 2 and x.dtype == y.dtype and x.shape[1] == y.shape[0]:
            return lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=x.dtype)
        return function(x, y, **options)

    @functools.wraps(function)
    def reduction(a, axis=None, *args, **options):
        axes = None if args or options else axes_of(kind_of(a), axis)
        if not axes:
            return function(a, axis, *args, **options)
        total = lax.reduce_sum(a, axes)
        return total if function is jnp.sum else lax.div(total, a.dtype.type(math.prod(a.shape[i] for i in axes)))

    if function in (jnp.sum, jnp.mean):
        return reduction
    if function is jnp.matmul:
        return matmul
    n_operands = 1 if function in ONE else 2
    chosen = (ONE | TWO).get(function)
    return function if chosen is None else elementwise


def kind_of(x: Any) -> Any:
    return getattr(x, "aval", None)


def is_inexact(kind: Any) -> bool:
    return kind is not None and jnp.issubdtype(kind.dtype, jnp.inexact)


def has_number(kinds: list[Any]) -> bool:
    """Whether one of two operands is a number without a dtype of its own, which has the other one's already.

    jax.numpy converts it all the same: an equation that changes nothing.
    """
    if None in kinds or kinds[0].dtype != kinds[1].dtype or kinds[0].weak_type == kinds[1].weak_type:
        return False
    return kinds[not kinds[0].weak_type].ndim == 0 and all(map(compat.is_plain, kinds))


def stretched(x: Any, y: Any) -> tuple[Any, Any] | None:
    """Two operands, one of which lacks the leading axes of the other, made alike; None if they differ in more.

    In one step. jax.numpy adds axes of size 1 first, so that going back takes three steps instead of one.
    """
    if kind_of(y) is None or compat.RANKS.value != "allow":
        return None
    few, many = sorted([kind_of(x), kind_of(y)], key=np.ndim)
    if (
        few.dtype != many.dtype
        or few.weak_type
        or many.weak_type
        or not (compat.is_plain(few) and compat.is_plain(many))
    ):
        return None
    if not 0 < few.ndim < many.ndim or many.shape[-few.ndim :] != few.shape:
        return None
    last = range(many.ndim - few.ndim, many.ndim)
    stretch = lambda z: z if z.ndim == many.ndim else lax.broadcast_in_dim(z, many.shape, last)
    return stretch(x), stretch(y)


def axes_of(kind: Any, axis: Any) -> tuple[int, ...] | None:
    """The axes that a sum goes over; None if it is more than a sum."""
    if kind is None or kind.dtype not in WIDE or kind.weak_type or not compat.is_plain(kind):
        return None
    axes = range(kind.ndim) if axis is None else axis if type(axis) is tuple else (axis,)
    if not all([type(i) is int and -kind.ndim <= i < kind.ndim for i in axes]):
        return None
    found = tuple(sorted({i % kind.ndim for i in axes}))
    return found if len(found) == len(axes) else None
