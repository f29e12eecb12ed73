"""Which elements of an operand an element of a result is made of, and the other way round.

For common primitives this is known from their shapes. For all others it is found by trying: bad
elements of an operand are replaced by good ones, and the primitive is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

NAN, INF = "NaN", "Inf"
Index = tuple[int, ...]

ELEMENTWISE = frozenset(
    [
        "abs",
        "acos",
        "acosh",
        "add",
        "add_any",
        "and",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "bessel_i0e",
        "bessel_i1e",
        "cbrt",
        "ceil",
        "clamp",
        "complex",
        "conj",
        "convert_element_type",
        "copy",
        "copy_p",
        "cos",
        "cosh",
        "digamma",
        "div",
        "eq",
        "erf",
        "erf_inv",
        "erfc",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "ge",
        "gt",
        "igamma",
        "igammac",
        "imag",
        "integer_pow",
        "is_finite",
        "le",
        "lgamma",
        "log",
        "log1p",
        "log2",
        "logistic",
        "lt",
        "max",
        "min",
        "mul",
        "name",
        "ne",
        "neg",
        "nextafter",
        "not",
        "or",
        "polygamma",
        "pow",
        "real",
        "reduce_precision",
        "regularized_incomplete_beta",
        "rem",
        "round",
        "rsqrt",
        "select_n",
        "sharding_constraint",
        "shift_left",
        "sign",
        "sin",
        "sinh",
        "sqrt",
        "square",
        "stop_gradient",
        "sub",
        "tan",
        "tanh",
        "xor",
        "zeta",
        "pvary",
        "one_minus_square",
    ]
)
REDUCTIONS = frozenset(
    ["reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax", "argmin"]
)

MOVING = frozenset(
    ["broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "convert_element_type", "copy", "slice"]
)


def is_inexact(value: Any) -> bool:
    return value is not None and hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.inexact)


def mask(value: Any, kind: str) -> np.ndarray:
    """Where an array holds NaN, or an infinity."""
    with np.errstate(all="ignore"):
        return np.isnan(value) if kind == NAN else np.isinf(value)


def kind_of(value: Any) -> str | None:
    """NaN, Inf, or None for a finite number."""
    return NAN if mask(value, NAN).any() else INF if mask(value, INF).any() else None


def first(where: np.ndarray) -> Index | None:
    """The first place where a mask holds."""
    if not where.any():
        return None
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(where)), where.shape))


def found_in(value: Any, region: Any, kind: str, like: Any = None) -> Index | None:
    """The first bad element of an array within a region; an infinity of the sign of `like` before others."""
    if type(region) is tuple and len(region) == value.ndim and all([isinstance(i, (int, np.integer)) for i in region]):
        return tuple(map(int, region)) if mask(value[region], kind) else None
    inside = np.zeros(value.shape, bool)
    inside[region] = True
    inside &= mask(value, kind)
    if like is not None and kind == INF and inside.any() and not np.iscomplexobj(value):
        same = inside & (np.sign(value) == np.sign(like))
        inside = same if same.any() else inside
    return first(inside)


# --- known from shapes --------------------------------------------------------------------------------------


def _same(shape: Sequence[int], index: Index) -> Any:
    return index if shape else ()


def reads(
    name: str, params: dict[str, Any], shapes: Sequence[Any], out_shape: Any, index: Index, at: int, out: int = 0
) -> Any:
    """The region of operand `at` that element `index` of result `out` is made of. None if it is not known."""
    shape = shapes[at]
    if name in ELEMENTWISE:
        return _same(shape, index)
    if name in ("reshape", "squeeze", "expand_dims"):
        return tuple(np.unravel_index(np.ravel_multi_index(index, out_shape), shape)) if shape else ()
    if name == "broadcast_in_dim":
        dims = params["broadcast_dimensions"]
        return tuple(0 if n == 1 else index[d] for n, d in zip(shape, dims, strict=True)) if at == 0 else None
    if name == "transpose":
        found = [0] * len(shape)
        for place, axis in enumerate(params["permutation"]):
            found[axis] = index[place]
        return tuple(found)
    if name == "rev":
        return tuple(n - 1 - i if d in params["dimensions"] else i for d, (i, n) in enumerate(zip(index, shape)))
    if name == "slice":
        strides = params["strides"] or [1] * len(shape)
        return tuple(s + i * k for s, i, k in zip(params["start_indices"], index, strides, strict=True))
    if name == "concatenate":
        axis = params["dimension"]
        start = sum(other[axis] for other in shapes[:at])
        if not start <= index[axis] < start + shape[axis]:
            return _nothing(shape)
        return (*index[:axis], index[axis] - start, *index[axis + 1 :])
    if name == "split":
        axis = params["axis"]
        return (*index[:axis], index[axis] + sum(params["sizes"][:out]), *index[axis + 1 :])
    if name in REDUCTIONS:
        kept = iter(index)
        return tuple(slice(None) if d in params["axes"] else next(kept) for d in range(len(shape)))
    if name == "dot_general":
        return _of_product(params, shapes, index, at)
    return None


def _nothing(shape: Sequence[int]) -> Any:
    return (slice(0, 0),) * len(shape)


def _of_product(params: dict[str, Any], shapes: Sequence[Any], index: Index, at: int) -> Any:
    contracted, batch = params["dimension_numbers"]
    region: list[Any] = [slice(None)] * len(shapes[at])
    for place, axis in enumerate(batch[at]):
        region[axis] = index[place]
    own = [[d for d in range(len(shapes[i])) if d not in (*contracted[i], *batch[i])] for i in (0, 1)]
    start = len(batch[0]) + (len(own[0]) if at else 0)
    for place, axis in enumerate(own[at]):
        region[axis] = index[start + place]
    return tuple(region)


def feeds(
    name: str, params: dict[str, Any], shapes: Sequence[Any], out_shape: Any, index: Index, at: int, out: int = 0
) -> Any:
    """The region of result `out` that element `index` of operand `at` is part of. None if it is not known."""
    shape = shapes[at]
    if name in ELEMENTWISE:
        return index if len(shape) == len(out_shape) and shape == out_shape else (slice(None),) * len(out_shape)
    if name in ("reshape", "squeeze", "expand_dims"):
        return tuple(np.unravel_index(np.ravel_multi_index(index, shape), out_shape)) if out_shape else ()
    if name == "broadcast_in_dim":
        region: list[Any] = [slice(None)] * len(out_shape)
        for i, n, axis in zip(index, shape, params["broadcast_dimensions"], strict=True):
            region[axis] = slice(None) if n == 1 != out_shape[axis] else i
        return tuple(region)
    if name == "transpose":
        return tuple(index[axis] for axis in params["permutation"])
    if name == "rev":
        return reads(name, params, shapes, out_shape, index, at)
    if name == "slice":
        strides = params["strides"] or [1] * len(shape)
        found = []
        for i, start, stop, k in zip(index, params["start_indices"], params["limit_indices"], strides, strict=True):
            if not start <= i < stop or (i - start) % k:
                return _nothing(out_shape)
            found.append((i - start) // k)
        return tuple(found)
    if name == "concatenate":
        axis = params["dimension"]
        start = sum(other[axis] for other in shapes[:at])
        return (*index[:axis], index[axis] + start, *index[axis + 1 :])
    if name == "split":
        axis = params["axis"]
        place = index[axis] - sum(params["sizes"][:out])
        return (*index[:axis], place, *index[axis + 1 :]) if 0 <= place < out_shape[axis] else _nothing(out_shape)
    if name in REDUCTIONS:
        return tuple(i for d, i in enumerate(index) if d not in params["axes"])
    if name == "dot_general":
        contracted, batch = params["dimension_numbers"]
        free = [[d for d in range(len(shapes[i])) if d not in (*contracted[i], *batch[i])] for i in (0, 1)]
        head = [index[axis] for axis in batch[at]]
        mine: list[Any] = [index[axis] for axis in free[at]]
        other: list[Any] = [slice(None)] * len(free[1 - at])
        return (*head, *mine, *other) if at == 0 else (*head, *other, *mine)
    return None


# --- found by trying ------------------------------------------------------------------------------------------

STAND_INS = (0.5, 0.0, 2.0)


def responsible(
    run: Callable[[list[Any]], Any], operands: Sequence[Any], index: Index, kind: str
) -> tuple[int, Index] | None:
    """The element of an operand that makes an element of a result bad: (operand, index). None: none does.

    run: the element's array from operands. Halves the bad elements until one is left.
    """
    values = [np.asarray(value) if is_inexact(value) else value for value in operands]
    found = [
        np.stack([np.full(len(flat), at), flat], 1)
        for at, value in enumerate(values)
        if is_inexact(value) and len(flat := np.flatnonzero(mask(value, kind)))
    ]
    if not found:
        return None
    suspects = np.concatenate(found)  # rows of (operand, place in it)
    for stand_in in STAND_INS:

        def is_bad_without(*some: np.ndarray, stand_in: float = stand_in) -> bool:
            changed = list(values)
            for at in {int(at) for part in some for at in np.unique(part[:, 0])}:
                changed[at] = np.array(values[at])
                for part in some:
                    changed[at].reshape(-1)[part[part[:, 0] == at, 1]] = stand_in
            return kind_of(np.asarray(run(changed))[index]) == kind

        if is_bad_without(suspects):
            continue
        aside = suspects[:0]
        while len(suspects) > 1:
            half = len(suspects) // 2
            if not is_bad_without(suspects[half:], aside):
                suspects = suspects[half:]
            elif not is_bad_without(suspects[:half], aside):
                suspects = suspects[:half]
            else:  # each half has one that is enough
                aside = np.concatenate([aside, suspects[half:]])
                suspects = suspects[:half]
        at, flat = map(int, suspects[0])
        return at, tuple(int(i) for i in np.unravel_index(flat, values[at].shape))
    return None


def to_numpy(value: Any) -> Any:
    """A jax array as one of numpy's; keys and other things that are no numbers as they are."""
    if value is None or jnp.issubdtype(jnp.result_type(value), jax.dtypes.extended):
        return value
    return np.asarray(value)
