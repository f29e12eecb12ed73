"""What networks need beyond jax.nn, as plain JAX functions; `tapejax.nn` lifts each as a single action.

Images and sequences are channels-last: (batch, *space, channels), kernels (*window, in, out).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.errors import ArgumentError

Array = jax.Array


def _affine(x: Array, scale: Array | None, bias: Array | None) -> Array:
    if scale is not None:
        x = x * scale
    return x if bias is None else x + bias


def layer_norm(
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    axis: int | Sequence[int] = -1,
    epsilon: float = 1e-5,
) -> Array:
    """x with mean 0 and variance 1 along axis, times scale plus bias.

    >>> import tapejax as tj
    >>> tj.nn.layer_norm(tj.tensor([1.0, 3.0]), epsilon=0.0).tolist()
    [-1.0, 1.0]
    """
    mean = jnp.mean(x, axis, keepdims=True)
    centred = x - mean
    variance = jnp.mean(jnp.square(centred), axis, keepdims=True)
    return _affine(centred * lax.rsqrt(variance + epsilon), scale, bias)


def rms_norm(x: Array, scale: Array | None = None, *, axis: int | Sequence[int] = -1, epsilon: float = 1e-6) -> Array:
    """x divided by the root of its mean square along axis, times scale.

    >>> import tapejax as tj
    >>> tj.nn.rms_norm(tj.tensor([2.0, -2.0]), epsilon=0.0).tolist()
    [1.0, -1.0]
    """
    return _affine(x * lax.rsqrt(jnp.mean(jnp.square(x), axis, keepdims=True) + epsilon), scale, None)


def group_norm(
    x: Array, groups: int, scale: Array | None = None, bias: Array | None = None, *, epsilon: float = 1e-5
) -> Array:
    """layer_norm over space and over each of `groups` groups of channels: x is (batch, ..., channels).

    >>> import tapejax as tj
    >>> tj.nn.group_norm(tj.tensor([[1.0, 3.0, 10.0, 30.0]]), 2, epsilon=0.0).tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """
    *lead, channels = x.shape
    split = x.reshape(*lead, groups, channels // groups)
    space = (*range(1, len(lead)), len(lead) + 1)
    return _affine(layer_norm(split, axis=space, epsilon=epsilon).reshape(x.shape), scale, bias)


def batch_norm(
    x: Array,
    mean: Array,
    variance: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    *,
    training: bool = False,
    momentum: float = 0.9,
    axis: int | Sequence[int] = -1,
    epsilon: float = 1e-5,
) -> tuple[Array, Array, Array]:
    """(normalised x, mean, variance): with training, by this batch's statistics, mixed into the running ones.

    axis: the axes that keep statistics of their own (the channels); no gradient flows into the running ones.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> x, mean, variance = tj.tensor([[1.0], [3.0]]), jnp.zeros(1), jnp.ones(1)
    >>> y, mean, variance = tj.nn.batch_norm(x, mean, variance, training=True, epsilon=0.0)
    >>> y.tolist(), mean.round(3).tolist()
    ([[-1.0], [1.0]], [0.20000000298023224])
    """
    kept = {a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis)}
    others = tuple(d for d in range(x.ndim) if d not in kept)
    used_mean, used_variance = mean, variance
    if training:
        used_mean = jnp.mean(x, others)
        used_variance = jnp.mean(jnp.square(x - jnp.expand_dims(used_mean, others)), others)
        mix = lambda old, new: momentum * old + (1 - momentum) * lax.stop_gradient(new)
        mean, variance = mix(mean, used_mean), mix(variance, used_variance)
    wide = lambda stat: jnp.expand_dims(stat, others)
    y = (x - wide(used_mean)) * lax.rsqrt(wide(used_variance) + epsilon)
    y = _affine(y, None if scale is None else wide(scale), None if bias is None else wide(bias))
    return y, lax.stop_gradient(mean), lax.stop_gradient(variance)


def dropout(x: Array, rate: float, *, key: Array, shape: Sequence[int] | None = None) -> Array:
    """x with a share of its elements set to zero and the rest scaled up; shape: of the mask, broadcast to x."""
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape if shape is None else tuple(shape))
    return jnp.where(keep, x / (1.0 - rate), 0)


def _spread(value: Any, n: int) -> tuple[int, ...]:
    return (value,) * n if isinstance(value, int) else tuple(value)


def conv(
    x: Array,
    kernel: Array,
    bias: Array | None = None,
    *,
    strides: int | Sequence[int] = 1,
    padding: str | Sequence[tuple[int, int]] = "SAME",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Array:
    """Cross-correlation in any number of dimensions: x (batch, ..., in), kernel (..., in / groups, out).

    >>> import jax.numpy as jnp, tapejax as tj
    >>> x = tj.tensor(jnp.arange(4.0).reshape(1, 4, 1))
    >>> tj.nn.conv(x, jnp.ones((2, 1, 1)), padding="VALID").ravel().tolist()
    [1.0, 3.0, 5.0]
    """
    n = x.ndim - 2
    space = "DHW"[-n:] if n <= 3 else "".join(map(str, range(n)))
    y = lax.conv_general_dilated(
        x, kernel, _spread(strides, n), padding, rhs_dilation=_spread(dilation, n), feature_group_count=groups,
        dimension_numbers=(f"N{space}C", f"{space}IO", f"N{space}C"),
    )  # fmt: skip
    return _affine(y, None, bias)


def _windows(x: Array, window: Any, strides: Any, padding: Any) -> tuple[Any, Any, Any]:
    n = x.ndim - 2
    window = _spread(window, n)
    strides = window if strides is None else _spread(strides, n)
    padding = padding if isinstance(padding, str) else [(0, 0), *padding, (0, 0)]
    return (1, *window, 1), (1, *strides, 1), padding


def max_pool(x: Array, window: int | Sequence[int], *, strides: Any = None, padding: Any = "VALID") -> Array:
    """The largest element of each window; x is (batch, ..., channels), strides default to the window.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> tj.nn.max_pool(tj.tensor(jnp.arange(4.0).reshape(1, 4, 1)), 2).ravel().tolist()
    [1.0, 3.0]
    """
    lowest = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    return lax.reduce_window(x, np.array(lowest, x.dtype), lax.max, *_windows(x, window, strides, padding))


def avg_pool(
    x: Array, window: int | Sequence[int], *, strides: Any = None, padding: Any = "VALID", count_padding: bool = False
) -> Array:
    """The mean of each window; what was padded counts only with count_padding.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> tj.nn.avg_pool(tj.tensor(jnp.arange(4.0).reshape(1, 4, 1)), 2).ravel().tolist()
    [0.5, 2.5]
    """
    windows = _windows(x, window, strides, padding)
    zero = np.zeros((), x.dtype)  # a known zero: jax then sees a sum, and not just any function
    sums = lax.reduce_window(x, zero, lax.add, *windows)
    if count_padding:
        size = 1
        for extent in windows[0]:
            size *= extent
        return sums / size
    return sums / lax.reduce_window(jnp.ones(x.shape, x.dtype), zero, lax.add, *windows)


def embedding(table: Array, ids: Array) -> Array:
    """The rows of a table, one for each id; an id outside of the table gives NaN.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> table = tj.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    >>> tj.backward(tj.nn.embedding(table, jnp.array([1, 1])))[table]  # a row that is used twice gets two gradients
    Array([[0., 0.],
           [2., 2.]], dtype=float32)
    """
    return jnp.take(table, ids, axis=0)


def _reduced(losses: Array, where: Array | None, reduction: str) -> Array:
    if reduction == "none":
        return losses if where is None else jnp.where(where, losses, 0)
    if reduction == "sum":
        return jnp.sum(losses, where=where)
    if reduction == "mean":
        return jnp.mean(losses, where=where)
    raise ValueError(f'reduction is "mean", "sum" or "none", not {reduction!r}')


def _check_fit(logits: Array, labels: Array, axis: int) -> None:
    """Labels have the shape of the logits, the integer ones without the axis; ones are broadcast."""
    classes = [size for d, size in enumerate(logits.shape) if d != axis % logits.ndim]
    want = classes if jnp.issubdtype(labels.dtype, jnp.integer) else list(logits.shape)
    if labels.ndim != len(want) or any(n != m and 1 not in (n, m) for n, m in zip(labels.shape, want)):
        raise ArgumentError(
            f"labels of {labels.dtype}{list(labels.shape)} for logits of {list(logits.shape)}",
            fix=f"give integers of shape {classes}, or probabilities of shape {list(logits.shape)}",
        )


def cross_entropy(
    logits: Array,
    labels: Array,
    *,
    axis: int = -1,
    where: Array | None = None,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Array:
    """-log softmax(logits) at the labels: integers, or probabilities of the shape of the logits.

    where: which examples count. The gradient is (softmax - labels), with no logarithm of a small number in sight.
    A class out of range is an error if the host knows the labels (NumPy, lists, arrays on the CPU); inside of jit and
    on accelerators it gives NaN, as in jax, and a negative one counts from the end.

    >>> import tapejax as tj
    >>> logits = tj.tensor([[0.0, 0.0]], requires_grad=True)
    >>> tj.backward(tj.nn.cross_entropy(logits, [0]))[logits]
    Array([[-0.5,  0.5]], dtype=float32)
    """
    log_probabilities = jax.nn.log_softmax(logits, axis)
    labels = jnp.asarray(labels)
    _check_fit(logits, labels, axis)
    if jnp.issubdtype(labels.dtype, jnp.integer):
        picked = jnp.take_along_axis(log_probabilities, jnp.expand_dims(labels, axis), axis)
        losses = -jnp.squeeze(picked, axis)
        if label_smoothing:
            losses = (1 - label_smoothing) * losses - label_smoothing * jnp.mean(log_probabilities, axis)
    else:
        if label_smoothing:
            labels = (1 - label_smoothing) * labels + label_smoothing / logits.shape[axis]
        losses = -jnp.sum(labels * log_probabilities, axis)
    return _reduced(losses, where, reduction)


def binary_cross_entropy(logits: Array, labels: Array, *, where: Array | None = None, reduction: str = "mean") -> Array:
    """-log sigmoid(logits) where labels are 1, -log sigmoid(-logits) where they are 0.

    >>> import tapejax as tj
    >>> logits = tj.tensor([0.0], requires_grad=True)
    >>> tj.backward(tj.nn.binary_cross_entropy(logits, 1.0))[logits]
    Array([-0.5], dtype=float32)
    """
    losses = jax.nn.softplus(logits) - logits * labels
    return _reduced(losses, where, reduction)


def ssm_scan(
    a: Array,
    b: Array,
    x: Array,
    h0: Array | None = None,
    *,
    axis: int = 0,
    reverse: bool = False,
    parallel: bool = True,
) -> Array:
    """All states h_t = a_t h_{t-1} + b_t x_t along axis, elementwise.

    a, b and x are broadcast against each other, so an a without the axis is constant; any may be complex.
    h0 (default zero) has their shape without the axis; with reverse it comes after the last step.
    parallel: an associative scan, of logarithmic depth. False: step by step, which a CPU is faster at.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> tj.nn.ssm_scan(tj.tensor(0.5), 1.0, jnp.array([1.0, 0.0, 0.0])).tolist()
    [1.0, 0.5, 0.25]
    """
    operands = [a, b, x] if h0 is None else [a, b, x, h0]
    dtype = jnp.result_type(*operands)
    a, inputs = jnp.broadcast_arrays(jnp.asarray(a, dtype), jnp.asarray(b * x, dtype))
    a, inputs = jnp.moveaxis(a, axis, 0), jnp.moveaxis(inputs, axis, 0)
    start = jnp.zeros((), dtype) if h0 is None else h0

    def step(h, each):
        h = each[0] * h + each[1]
        return h, h

    def after(early, late):
        return late[0] * early[0], late[0] * early[1] + late[1]

    if not parallel:
        start = jnp.broadcast_to(jnp.asarray(start, dtype), a.shape[1:])
        _, states = lax.scan(step, start, (a, inputs), reverse=reverse)
    else:
        if h0 is not None:
            first = -1 if reverse else 0
            inputs = inputs.at[first].add(a[first] * h0)
        _, states = lax.associative_scan(after, (a, inputs), reverse=reverse)
    return jnp.moveaxis(states, 0, axis)


def selective_scan(
    x: Array,
    delta: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Array | None = None,
    h0: Array | None = None,
    *,
    parallel: bool = True,
) -> tuple[Array, Array]:
    """(outputs, last state) of a selective state space model; parallel: as in ssm_scan.

        h_t = exp(delta_t A) h_{t-1} + delta_t B_t x_t        y_t = C_t h_t + D x_t

    x and delta are (..., time, channels), A is (channels, state), B and C are (..., time, state) or (state,) if
    they are constant, D is (channels,), h0 and the last state are (..., channels, state). A, B, C and h0 may be
    complex; the output of a real x is then the real part.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> x, pace, one = tj.tensor([[1.0], [0.0]]), jnp.ones((2, 1)), jnp.ones(1)
    >>> y, state = tj.nn.selective_scan(x, pace, -jnp.ones((1, 1)), one, one)
    >>> [f"{value:.3f}" for value in y.ravel().tolist()], state.shape  # exp(-1) is left of the first
    (['1.000', '0.368'], (1, 1))
    """
    if parallel:
        decay = jnp.exp(delta[..., None] * A)
        states = ssm_scan(decay, B[..., None, :] * delta[..., None], x[..., None], h0, axis=-3)
        y, last = jnp.sum(states * C[..., None, :], -1), states[..., -1, :, :]
    else:
        y, last = _selective_steps(x, delta, A, B, C, h0)
    if not jnp.iscomplexobj(x):
        y = jnp.real(y)
    return (y if D is None else y + D * x), last


def _selective_steps(x, delta, A, B, C, h0):
    """(C_t h_t, last state) one step at a time: nothing of the size of all states is made on the way forward."""
    dtype = jnp.result_type(x, delta, A, B, *(() if h0 is None else (h0,)))
    by_time = lambda each: jnp.moveaxis(jnp.broadcast_to(each, (*x.shape[:-1], each.shape[-1])), -2, 0)
    start = jnp.broadcast_to(jnp.zeros((), dtype) if h0 is None else h0, (*x.shape[:-2], *A.shape)).astype(dtype)

    def step(h, each):
        x, delta, B, C = each
        h = jnp.exp(delta[..., None] * A) * h + (delta * x)[..., None] * B[..., None, :]
        return h, jnp.sum(h * C[..., None, :], -1)

    last, y = lax.scan(step, start, tuple(map(by_time, (x, delta, B, C))))
    return jnp.moveaxis(y, 0, -2), last
