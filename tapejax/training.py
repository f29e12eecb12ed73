"""What is done with gradients between backward and the optimiser: norms, clipping, accumulation, loss scaling.

All take and return pytrees of arrays (or Tensors, which are recorded as usual), so they go before or
after any optimiser of optax, and work under jit. A map of Gradients may stand for a pytree.
"""

from __future__ import annotations

import functools
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.errors import ArgumentError, DtypeError, GradientMismatchError, NonfiniteWarning
from tapejax.ground import compat
from tapejax.ground.where import user_line
from tapejax.ops.lift import is_tensor, lift
from tapejax.tensor.gradients import Gradients
from tapejax.tensor.tensor import Tensor, array_of
from tapejax.transforms.recording import plain
from tapejax.transforms.reverse_mode import check_callable, flatten, value_and_grad

_tree = jax.tree_util


def _map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    if isinstance(tree, Gradients):
        return tree.map(function)
    return _tree.tree_map(function, tree, *rest, is_leaf=is_tensor)


def _leaves(tree: Any) -> list[Any]:
    return tree.values() if isinstance(tree, Gradients) else flatten(tree)[0]


def _scale_and_norm(leaves: Sequence[Any]) -> tuple[Any, Any]:
    """A power of two near the largest element, and the norm of all in its units: no square leaves the range."""
    wide = [leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) for leaf in leaves]
    tops = [jnp.max(jnp.abs(leaf), initial=0.0) for leaf in wide]
    top = jax.lax.stop_gradient(functools.reduce(jnp.maximum, tops))
    top = jnp.where(jnp.isfinite(top) & (top > 0), top, jnp.ones_like(top))
    tiny = float(jnp.finfo(top.dtype).tiny)
    scale = jnp.clip(top / (2 * jnp.frexp(top)[0]), tiny, 1 / tiny)  # so that 1 / scale is a normal number as well
    parts = [leaf / scale.astype(leaf.real.dtype) for leaf in wide]
    return scale, jnp.sqrt(sum(jnp.sum(jnp.real(part * jnp.conj(part))) for part in parts))


@functools.partial(lift, name="global_norm")
def _norm(*leaves):
    scale, norm = _scale_and_norm(leaves)
    return norm * scale.astype(norm.dtype)


_pending: deque[tuple[Any, str, str]] = deque(maxlen=2)  # norms that were not there yet when they were made


def _noticed(norm: Any, by: str) -> Any:
    """A norm as it is. One that is not finite is warned of, at the next call if it is not computed yet: nobody waits for it."""
    value = norm.held if isinstance(norm, Tensor) else norm
    if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and not compat.is_tracing():
        _pending.append((value, by, user_line()))
        if _pending[0][0].is_ready():
            met, by, line = _pending.popleft()
            if not met.is_deleted() and met.is_fully_addressable and not np.isfinite(met):
                warnings.warn(
                    f"{by} at {line} met a gradient that holds NaN or infinities: tapejax.find_nonfinite(loss, *args) says "
                    "where they were born",
                    NonfiniteWarning,
                    stacklevel=3,
                )
    return norm


def global_norm(gradients: Any) -> Any:
    """The norm of all gradients taken together as one vector.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> tj.training.global_norm({"a": jnp.array([3.0]), "b": jnp.array(4.0)})
    Array(5., dtype=float32)
    """
    if isinstance(gradients, Gradients) and gradients.has_intermediates:
        raise ArgumentError(
            "these Gradients also hold those of what was computed on the way to the loss, which are no part of the norm",
            at=user_line(),
            fix="give grads.tree(params), or ask for the parameters only: backward(loss, wrt=params)",
        )
    leaves = _leaves(gradients)
    return _noticed(_norm(*leaves), "global_norm") if leaves else jnp.zeros(())


@functools.partial(lift, name="scale_to_norm")
def _scaled(*leaves, limit):
    scale, norm = _scale_and_norm(leaves)  # the norm itself may be out of range, this one is not
    limit = jnp.asarray(limit, norm.dtype)
    is_long = norm > limit / scale.astype(norm.dtype)
    factor = jnp.where(is_long, limit / jnp.where(is_long, norm, 1.0), 1.0)
    unit = jnp.where(is_long, scale, 1.0)

    def shorter(leaf):
        real = jnp.finfo(leaf.dtype).dtype
        wide = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
        found = wide / unit.astype(wide.real.dtype) * factor.astype(wide.real.dtype)
        return jnp.where(is_long, found.astype(leaf.dtype), leaf * jnp.ones((), real))

    return [*(shorter(leaf) for leaf in leaves), jax.lax.stop_gradient(norm)]


def clip_by_norm(gradients: Any, max_norm: Any) -> Any:
    """The gradients, made shorter if their global norm is above max_norm; their direction stays.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> tj.training.clip_by_norm([jnp.array([3.0]), jnp.array([4.0])], 2.5)
    [Array([1.5], dtype=float32), Array([2.], dtype=float32)]
    """
    if isinstance(gradients, Gradients):
        global_norm(gradients)  # refuses those with more than parameters
    leaves = _leaves(gradients)
    if not leaves:
        return gradients
    *shorter, norm = _scaled(*leaves, limit=max_norm)
    _noticed(norm, "clip_by_norm")
    found = iter(shorter)
    return _map(lambda leaf: next(found), gradients)


@functools.partial(lift, name="clip_by_value")
def _clipped(leaf, limit):
    return jnp.clip(leaf, -limit, limit).astype(leaf.dtype)


def clip_by_value(gradients: Any, limit: Any) -> Any:
    """Every element of the gradients cut off at -limit and limit.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> tj.training.clip_by_value(jnp.array([-3.0, 0.5]), 1.0)
    Array([-1. ,  0.5], dtype=float32)
    """
    return _map(lambda leaf: _clipped(leaf, limit), gradients)


def accumulate(
    fun: Callable[..., Any], steps: int, argnums: int | Sequence[int] = 0, batch: int | Sequence[int] = 1
) -> Any:
    """value_and_grad of a mean over a batch, in `steps` micro-batches: the memory of one, the gradient of all.

    `batch` says which arguments have the batch as their leading axis. fun must be a mean over it. Called
    on arrays; use it under jit, where the micro-batches are one lax.scan.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> loss = lambda w, x: jnp.mean((x * w) ** 2)
    >>> tj.training.accumulate(loss, 2)(jnp.float32(3.0), jnp.arange(4.0))
    (Array(31.5, dtype=float32), Array(21., dtype=float32))
    """
    check_callable(fun)
    both = value_and_grad(fun, argnums)
    batched = {batch} if isinstance(batch, int) else set(batch)

    def accumulated(*args, **kwargs):
        args, kwargs = _map(plain, (args, kwargs))

        def split(leaf):
            if leaf.shape[0] % steps:
                raise ArgumentError(
                    f"a batch of {leaf.shape[0]} cannot be cut into {steps} equal micro-batches", at=user_line()
                )
            return leaf.reshape((steps, leaf.shape[0] // steps, *leaf.shape[1:]))

        parts = {i: _map(lambda leaf: split(jnp.asarray(leaf)), args[i]) for i in batched}
        whole = lambda part: [part.get(i, arg) for i, arg in enumerate(args)]

        def step(total, part):
            return jax.tree.map(jnp.add, total, both(*whole(part), **kwargs)), None

        first = {i: jax.tree.map(lambda leaf: leaf[0], part) for i, part in parts.items()}
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(lambda part: both(*whole(part), **kwargs), first))  # fmt: skip
        total, _ = jax.lax.scan(step, zeros, parts)
        return jax.tree.map(lambda leaf: (leaf / steps).astype(leaf.dtype), total)

    return accumulated


class Accumulator:
    """Gradients of several micro-batches under named slots: their mean, and a clip by its global norm.

    The slots are those of the first `add`; every later one must fill the same, with the same shapes. Sums are kept
    in float32 at least.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> total = tj.training.Accumulator()
    >>> for gradient in ([1.0, 2.0], [5.0, 6.0]):
    ...     total.add({"weights": jnp.array(gradient)})
    >>> total.mean()
    {'weights': Array([3., 4.], dtype=float32)}
    >>> clipped, norm = total.clip_by_norm(1.0)          # the norm is that before clipping
    >>> clipped["weights"], norm
    (Array([0.6, 0.8], dtype=float32), Array(5., dtype=float32))
    """

    __slots__ = ("_sums", "_told", "steps")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all gradients and the slots, for the next step of the optimiser."""
        self._sums: dict[str, Any] = {}
        self._told: dict[str, Any] = {}  # shape and dtype by name
        self.steps = 0

    def add(self, gradients: Mapping[str, Any]) -> None:
        """Add the gradients of one micro-batch; all of them, or none if one does not fit."""
        given = {name: array_of(plain(gradient)) for name, gradient in gradients.items()}
        kinds = {name: (gradient.shape, gradient.dtype) for name, gradient in given.items()}
        for name, (_, dtype) in kinds.items():
            if not jnp.issubdtype(dtype, jnp.inexact):
                raise DtypeError(f"the gradient {name!r} is of {dtype}", at=user_line(), fix="give a float or complex")
        if self.steps and kinds != self._told:
            for name in sorted(self._told.keys() ^ kinds.keys(), key=str):
                what = "is missing" if name in self._told else "was not in the first micro-batch"
                raise GradientMismatchError(f"the gradient {name!r} {what}", at=user_line(), fix="fill the same slots")
            for name in (name for name in kinds if kinds[name] != self._told[name]):
                (shape, dtype), (before, kind) = kinds[name], self._told[name]
                raise GradientMismatchError(
                    f"the gradient {name!r} is {dtype}{list(shape)}, before it was {kind}{list(before)}", at=user_line()
                )
        if not kinds:
            raise ArgumentError("a micro-batch without gradients", at=user_line(), fix="give a dict of name: gradient")
        wide = {n: g.astype(jnp.promote_types(g.dtype, jnp.float32)) for n, g in given.items()}
        self._sums = {name: gradient + self._sums.get(name, 0) for name, gradient in wide.items()}
        self._told = kinds
        self.steps += 1

    def mean(self) -> dict[str, Any]:
        """The mean over the micro-batches, in the dtypes that were given."""
        if not self.steps:
            raise ArgumentError("no micro-batch was added yet", at=user_line(), fix="call add(gradients) first")
        return {name: (total / self.steps).astype(self._told[name][1]) for name, total in self._sums.items()}

    def clip_by_norm(self, max_norm: Any) -> tuple[dict[str, Any], Any]:
        """(the mean, made shorter if its global norm is above max_norm; that norm before clipping)."""
        mean = self.mean()
        return clip_by_norm(mean, max_norm), global_norm(mean)

    def __len__(self) -> int:
        return len(self._sums)

    def __repr__(self) -> str:
        return (
            f"<accumulator of {self.steps} micro-batch{'es' * (self.steps != 1)}: {', '.join(self._sums) or 'empty'}>"
        )


class LossScale(NamedTuple):
    """Loss scaling for float16: small gradients would be rounded to zero, so the loss is made larger first.

    `scale(loss)` before backward; `unscale(gradients)` after it; `adjust(finite)` gives the next scale: half
    as large when something overflowed (skip that step), twice as large after `period` good steps.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> scaling = tj.training.LossScale.start(1024.0)
    >>> value, gradient = tj.value_and_grad(lambda w: scaling.scale(w * w))(jnp.float16(0.5))
    >>> scaling.unscale(gradient), bool(tj.training.all_finite(gradient))
    (Array(1., dtype=float16), True)
    >>> float(scaling.adjust(finite=False).factor)
    512.0
    """

    factor: Any
    good_steps: Any
    period: Any

    @classmethod
    def start(cls, factor: float = 2.0**15, period: int = 2000) -> LossScale:
        return cls(jnp.float32(factor), jnp.int32(0), jnp.int32(period))

    def scale(self, loss: Any) -> Any:
        return loss * self.factor.astype(loss.dtype)

    def unscale(self, gradients: Any) -> Any:
        return _map(lambda leaf: _unscaled(leaf, self.factor), gradients)

    def adjust(self, finite: Any) -> LossScale:
        grows = finite & (self.good_steps + 1 >= self.period)
        factor = jnp.where(
            finite, jnp.where(grows, self.factor * 2.0, self.factor), jnp.maximum(self.factor / 2.0, 1.0)
        )
        return LossScale(factor, jnp.where(finite & ~grows, self.good_steps + 1, 0).astype(jnp.int32), self.period)


@functools.partial(lift, name="unscale")
def _unscaled(leaf, factor):
    return (leaf.astype(jnp.float32) / factor).astype(leaf.dtype)


def all_finite(tree: Any) -> Any:
    """Whether no element anywhere is NaN or infinite.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> bool(tj.training.all_finite({"a": jnp.ones(2), "b": jnp.array(jnp.inf)}))
    False
    """
    leaves = [plain(leaf) for leaf in _leaves(tree)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in leaves])) if leaves else jnp.array(True)
