"""The few names of the surface that need code of their own."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.ops.lift import is_tensor, lift
from tapejax.ops.straight import straight
from tapejax.ops.surface.op import Op
from tapejax.ops.surface.plain import has_tensor, values_of
from tapejax.ops.surface.tables import options_of
from tapejax.tensor.tensor import Tensor
from tapejax.tensor.tensor import stop_gradient as _stop_gradient

_tree = jax.tree_util


def stop_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    def stop_gradient(x):
        return _stop_gradient(x) if has_tensor(x) else function(x)

    return stop_gradient


def cho_factor(function: Callable[..., Any]) -> Callable[..., Any]:
    """The flag that comes with the factor stays a Python bool: cho_solve needs it."""
    factor = Op(
        lambda a, lower, overwrite_a, check_finite: function(a, lower, overwrite_a, check_finite)[0],
        "cho_factor", "tapejax.scipy.linalg", ("lower", "overwrite_a", "check_finite"),
    )  # fmt: skip

    def cho_factor(a, lower=False, overwrite_a=False, check_finite=True):
        return factor(a, lower, overwrite_a, check_finite), lower

    return cho_factor


def roots(function: Callable[..., Any]) -> Callable[..., Any]:
    """With zeros to strip, how many roots there are depends on the values: they are cut off first."""
    full = Op(lambda p: function(p, strip_zeros=False), "roots", "tapejax.numpy")
    pad = lift(lambda r, *, n: jnp.concatenate([r, jnp.zeros(n, r.dtype)]), name="roots", static_argnames="n")

    def roots(p, *, strip_zeros=True):
        if not is_tensor(p):
            return function(p, strip_zeros=strip_zeros)
        if strip_zeros:
            (places,) = np.nonzero(np.asarray(p.concrete("roots with strip_zeros=True")))
            first, last = (places[0], places[-1]) if len(places) else (0, -1)
            zeros = len(p) - 1 - last if len(places) else 0
            p = p[first : last + 1]
            return pad(full(p), n=int(zeros)) if zeros else full(p)
        return full(p)

    return roots


def trim_zeros(function: Callable[..., Any]) -> Callable[..., Any]:
    """What is cut off depends on the values; the cut itself is an indexing, and recorded."""

    def trim_zeros(filt, trim="fb", axis=None):
        if not is_tensor(filt):
            return function(filt, trim, axis)
        nonzero = np.asarray(filt.concrete("trim_zeros")) != 0
        axes = range(filt.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
        index = [slice(None)] * filt.ndim
        for one in axes:
            others = tuple(d for d in range(filt.ndim) if d != one % filt.ndim)
            (places,) = np.nonzero(nonzero.any(others))
            low = places[0] if len(places) and "f" in trim.lower() else 0
            high = places[-1] + 1 if len(places) and "b" in trim.lower() else nonzero.shape[one]
            index[one] = slice(int(low), int(high)) if len(places) else slice(0, 0)
        return filt[tuple(index)]

    return trim_zeros


def checked_first(name: str, module: str) -> Callable[..., Any]:
    """jax's mode="raise" needs values: they are checked first, and then indices are in range for any mode."""

    def of(function: Callable[..., Any]) -> Callable[..., Any]:
        op = Op(function, name, module, ("mode", "out"))

        def choose(a, choices, out=None, mode="raise"):
            if mode == "raise" and has_tensor((a, choices)):
                plain = values_of(a)
                if not isinstance(plain, jax.core.Tracer):
                    if np.any((np.asarray(plain) < 0) | (np.asarray(plain) >= len(choices))):
                        raise ValueError("invalid entry in choice array")
                    mode = "clip"
            return op(a, choices, out=out, mode=mode)

        return choose

    return of


def concatenator(original: Any, name: str) -> Any:
    """jnp.r_ and jnp.c_: slices become arrays first, then the rest is an op on a tuple."""
    join = Op(lambda parts: original[parts], name, "tapejax.numpy")

    class Concatenator:
        __doc__ = original.__doc__

        def __getitem__(self, index: Any) -> Any:
            parts = index if isinstance(index, tuple) else (index,)
            if not has_tensor(parts):
                return original[index]
            return join(tuple(jnp.r_[part] if isinstance(part, slice) else part for part in parts))

        def __len__(self) -> int:
            return 0

    return Concatenator()


class Einsum(Op):
    """Operands that alternate with lists of integers become operands and a formula: the integers are no data."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args and not isinstance(args[0], str) and has_tensor(args):
            formula, operands = formula_of(*args)
            args = (formula, *operands)
        return super().__call__(*args, **kwargs)


def einsum(function: Callable[..., Any]) -> Op:
    return Einsum(straight(function), "einsum", "tapejax.numpy", options_of("tapejax.numpy", "einsum"))


def formula_of(*alternating: Any) -> tuple[str, tuple[Any, ...]]:
    """(formula, operands) of an einsum given as operand, labels, operand, labels, ..., and perhaps labels of the result."""
    operands, labels = alternating[0:-1:2], [list(some) for some in alternating[1::2]]
    used = [label for some in labels for label in some]
    letters = dict(zip(sorted({*used} - {...}), string.ascii_letters)) | {...: "..."}
    if len(alternating) % 2:
        result = list(alternating[-1])
    else:  # as NumPy has it: what comes once, in order
        result = [...] * (... in used) + sorted(label for label in {*used} - {...} if used.count(label) == 1)
    write = lambda some: "".join(letters[label] for label in some)
    return f"{','.join(map(write, labels))}->{write(result)}", operands


def where(function: Callable[..., Any]) -> Callable[..., Any]:
    """With a condition only it is nonzero: integers, as many as the values say."""
    op = Op(function, "where", "tapejax.numpy", ("size",))

    def where(condition, x=None, y=None, /, *, size=None, fill_value=None):
        if x is None and y is None and size is None and is_tensor(condition):
            return _tree.tree_map(lambda found: _stop_gradient(_as_tensor(found)), function(condition.value))
        if x is None and y is None:
            return op(condition, size=size, fill_value=fill_value)
        if type(condition) is type(x) is type(y) is Tensor:
            return op(condition, x, y)
        return op(condition, x, y, size=size, fill_value=fill_value) if size is not None else op(condition, x, y)

    return where


def _as_tensor(value: Any) -> Tensor:
    from tapejax.tensor.tensor import make

    return make(value, False)


def about(read: Callable[[Tensor], Any]) -> Callable[..., Any]:
    """Shapes are known before the numbers are: nothing is computed to tell them."""

    def of(function: Callable[..., Any]) -> Callable[..., Any]:
        def tell(a, *args, **kwargs):
            if is_tensor(a):
                a = jax.ShapeDtypeStruct(a.shape, a.dtype) if args or kwargs else a
                return read(a) if is_tensor(a) else function(jnp.broadcast_to(0, a.shape), *args, **kwargs)
            return function(a, *args, **kwargs)

        return tell

    return of


BY_HAND: dict[str, dict[str, Callable[[Any], Any]]] = {
    "tapejax.numpy": {
        "where": where,
        "einsum": einsum,
        "roots": roots,
        "trim_zeros": trim_zeros,
        "choose": checked_first("choose", "tapejax.numpy"),
        "r_": lambda original: concatenator(original, "r_"),
        "c_": lambda original: concatenator(original, "c_"),
    },
    "tapejax.lax": {"stop_gradient": stop_gradient},
    "tapejax.scipy.linalg": {"cho_factor": cho_factor},
}

__all__ = ["BY_HAND", "lax"]
