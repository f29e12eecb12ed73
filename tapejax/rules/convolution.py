"""The rule of convolution. Both cotangents are convolutions of ct themselves."""

import jax.numpy as jnp
from jax import lax
from jax.lax import ConvDimensionNumbers

from tapejax.rules.products import in_dtype_of, sharding_of
from tapejax.rules.registry import rule


@rule(lax.conv_general_dilated_p, saves=("rhs", "lhs"))
def conv_general_dilated(
    ct, out, lhs, rhs, *, window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers, feature_group_count,
    batch_group_count, precision, preferred_element_type, out_sharding=None, wanted=(True, True),
):  # fmt: skip
    """out[n, o, p] = sum over i, k of lhs[n, i, stride * p + dilation * k - padding] * rhs[o, i, k]"""
    if 0 in ct.shape:  # XLA has no convolution with an empty window
        return jnp.zeros(lhs.shape, lhs.dtype), jnp.zeros(rhs.shape, rhs.dtype)
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    (n, i, *p), (o, r, *k), (m, f, *q) = lhs_spec, rhs_spec, out_spec
    # How far operands and result reach in the dilated input, per spatial dimension.
    reach = lambda x, axes, steps: [dilated(x.shape[axis], step) for axis, step in zip(axes, steps, strict=True)]
    sizes = list(zip(reach(lhs, p, lhs_dilation), reach(rhs, k, rhs_dilation), reach(ct, q, window_strides), padding))
    options = {"precision": precision, "preferred_element_type": preferred_element_type}
    dtype = ct.dtype  # a convolution wants its operands in one dtype

    lhs_ct = rhs_ct = None
    if wanted[0]:
        # Every input meets the window from the other end. Groups of output features become groups of input features.
        groups = max(feature_group_count, batch_group_count)
        window = move_factor(lax.rev(rhs, k), groups, o, r)
        lhs_ct = lax.conv_general_dilated(
            ct, lax.convert_element_type(window, dtype), lhs_dilation,
            [(win - 1 - low, inp + low - res) for inp, win, res, (low, _) in sizes],
            window_strides, rhs_dilation, ConvDimensionNumbers(out_spec, (r, o, *k), lhs_spec), groups, 1,
            out_sharding=sharding_of(lhs, range(lhs.ndim)), **options,
        )  # fmt: skip
        lhs_ct = in_dtype_of(lhs, move_factor(lhs_ct, batch_group_count, i, n))
    if wanted[1]:
        # The result is the window now: it runs over the input in steps of the dilation, summing over the batch.
        rhs_ct = lax.conv_general_dilated(
            lax.convert_element_type(lhs, dtype), ct, rhs_dilation,
            [(low, res + win - 1 - inp - low) for inp, win, res, (low, _) in sizes],
            lhs_dilation, window_strides, ConvDimensionNumbers((i, n, *p), (f, m, *q), (r, o, *k)),
            batch_group_count, feature_group_count, out_sharding=sharding_of(rhs, range(rhs.ndim)), **options,
        )  # fmt: skip
        rhs_ct = in_dtype_of(rhs, rhs_ct)
    return lhs_ct, rhs_ct


def dilated(size, step):
    return (size - 1) * step + 1 if size else 0


def move_factor(x, factor, source, target):
    """x with its axis `source` split into (factor, rest), and the factor made the slow part of `target`."""
    if factor == 1:
        return x
    shape = list(x.shape)
    shape[source : source + 1] = [factor, shape[source] // factor]
    x = lax.reshape(x, shape)
    kept = [axis for axis in range(x.ndim) if axis != source]  # the axes of x as they were, without the factor
    kept.insert(target, source)
    shape = [x.shape[axis] for axis in kept]
    shape[target : target + 2] = [shape[target] * shape[target + 1]]
    return lax.reshape(lax.transpose(x, kept), shape)
