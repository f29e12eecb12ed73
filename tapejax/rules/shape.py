"""Rules for moving data: every element of the result is a copy of one element of an operand, or a constant."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core.primitives import copy_p, device_put_p, name_p, sharding_constraint_p

from tapejax.ground import compat
from tapejax.rules.registry import constant, rule


@rule(lax.broadcast_in_dim_p, cheap=True)
def broadcast_in_dim(ct, out, x, *, shape, broadcast_dimensions, sharding):
    """out = x with its axes placed at broadcast_dimensions of `shape`, copied along the others"""
    kept = [d for i, d in enumerate(broadcast_dimensions) if x.shape[i] == shape[d]]
    summed = [d for d, size in enumerate(shape) if size != 1 and d not in kept]
    if summed:
        ct = lax.reduce_sum(ct, summed)
    return (lax.reshape(ct, x.shape, out_sharding=compat.explicit_sharding(x)),)


@rule(lax.reshape_p, cheap=True)
def reshape(ct, out, x, *, new_sizes, dimensions, sharding):
    """out = x in another shape, its axes read in the order of `dimensions`"""
    if dimensions is None:
        return (lax.reshape(ct, x.shape, out_sharding=compat.explicit_sharding(x)),)
    permuted = lax.reshape(ct, [x.shape[d] for d in dimensions])
    return (lax.transpose(permuted, inverse(dimensions)),)


@rule(lax.squeeze_p, cheap=True)
def squeeze(ct, out, x, *, dimensions):
    """out = x without some axes of size 1"""
    return (lax.expand_dims(ct, dimensions),)


@rule(lax.transpose_p, cheap=True)
def transpose(ct, out, x, *, permutation):
    """out = x with its axes permuted"""
    return (lax.transpose(ct, inverse(permutation)),)


def inverse(permutation):
    return tuple(int(d) for d in np.argsort(permutation))


@rule(lax.rev_p, cheap=True)
def rev(ct, out, x, *, dimensions):
    """out = x backwards along some axes"""
    return (lax.rev(ct, dimensions),)


@rule(lax.slice_p, cheap=True)
def slice(ct, out, x, *, start_indices, limit_indices, strides):
    """out = x[start:limit:stride] along each axis"""
    strides = strides or (1,) * x.ndim
    ends = [start + (n - 1) * step + 1 if n else start for start, n, step in zip(start_indices, ct.shape, strides)]
    config = [(start, n - end, step - 1) for start, n, end, step in zip(start_indices, x.shape, ends, strides)]
    return (lax.pad(ct, zero(ct), config),)


@rule(lax.pad_p, cheap=True)
def pad(ct, out, x, value, *, padding_config):
    """out = x with copies of `value` around and between its elements; negative widths cut"""
    widened = lax.pad(ct, zero(ct), [(-low, -high, 0) for low, high, _ in padding_config])
    steps = [interior + 1 for _, _, interior in padding_config]
    ct_x = lax.slice(widened, (0,) * ct.ndim, widened.shape, steps)
    # Summing where the value stands, not everything less ct_x: that would cancel, and give nan for inf.
    is_value = lax.pad(np.zeros(x.shape, bool), True, padding_config)
    return ct_x, jnp.sum(lax.select(is_value, ct, lax.full_like(ct, 0)))


def zero(ct):
    return ct.dtype.type(0)


@rule(lax.concatenate_p, cheap=True)
def concatenate(ct, out, *xs, dimension):
    """out = the operands one after the other along an axis"""
    return lax.split(ct, [x.shape[dimension] for x in xs], dimension)


@rule("split", cheap=True)
def split(cts, outs, x, *, sizes, axis):
    """outs = consecutive pieces of x along an axis"""
    return (lax.concatenate(cts, axis),)


@rule("stack", cheap=True)
def stack(ct, out, *xs, axis):
    """out = the operands along a new axis"""
    return jnp.unstack(ct, axis=axis)


@rule("unstack", cheap=True)
def unstack(cts, outs, x, *, axis):
    """outs = the slices of x along an axis that disappears"""
    return (jnp.stack(cts, axis),)


@rule("tile", cheap=True)
def tile(ct, out, x, *, reps):
    """out = reps[d] copies of x along each axis d"""
    shape = [n for pair in zip(reps, x.shape, strict=True) for n in pair]
    sharding = compat.explicit_sharding(x)
    if sharding is not None:
        spec = jax.sharding.PartitionSpec(*[part for name in sharding.spec for part in (None, name)])
        sharding = sharding.update(spec=spec)
    copies = lax.reshape(ct, shape, out_sharding=sharding)
    return (lax.reduce_sum(copies, range(0, 2 * x.ndim, 2)),)


@rule(lax.convert_element_type_p, cheap=True)
def convert_element_type(ct, out, x, *, new_dtype, weak_type, sharding):
    """out = x in another dtype (to one without derivatives: no cotangent ever comes here)"""
    if jnp.issubdtype(ct.dtype, jnp.complexfloating) and not jnp.issubdtype(x.dtype, jnp.complexfloating):
        ct = lax.real(ct)
    return (lax.convert_element_type(ct, x.dtype),)


constant([lax.bitcast_convert_type_p], "the bits of a number are not a continuous function of it")


@rule(lax.reduce_precision_p, cheap=True)
def reduce_precision(ct, out, x, *, exponent_bits, mantissa_bits):
    """out = x rounded to a smaller float format; the cotangent is rounded alike"""
    return (lax.reduce_precision(ct, exponent_bits, mantissa_bits),)


@rule(copy_p, cheap=True)
def copy(ct, out, x):
    """out = x in fresh memory"""
    return (ct,)


@rule(name_p, cheap=True)
def name(ct, out, x, *, name):
    """out = x, named for a checkpoint policy"""
    return (ct,)


@rule(device_put_p, zeros=False)
def device_put(cts, outs, *xs, devices, srcs, copy_semantics):
    """outs = xs on other devices; the cotangents go back to where the operands were, as far as that is known"""

    def back(ct, x, src):
        if src is None and jax.typeof(ct).memory_space != x.memory_space:
            src = x.memory_space
        return jax.device_put(ct, src)

    return [None if ct is None else back(ct, x, src) for ct, x, src in zip(cts, xs, srcs, strict=True)]


@rule("optimization_barrier", zeros=False)
def optimization_barrier(cts, outs, *xs):
    """outs = xs, which XLA must not merge with other code; nor may it merge the cotangents"""
    return lax.optimization_barrier(list(cts))


@rule(sharding_constraint_p, cheap=True)
def sharding_constraint(ct, out, x, **params):
    """out = x, laid out over devices as told; the cotangent alike"""
    return (sharding_constraint_p.bind(ct, **params),)


@rule("layout_constraint", cheap=True)
def layout_constraint(ct, out, x, *, layout):
    """out = x, laid out in memory as told; the cotangent is free to lie as XLA likes"""
    return (ct,)
