"""The rule of convolution. Both cotangents are convolutions of ct themselves."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.lax import ConvDimensionNumbers

from tapejax.rules.products import in_dtype_of, sharding_of
from tapejax.rules.registry import formula
from tapejax.rules.terms import later


class Convolution(NamedTuple):
    """The parameters of a convolution; what the two cotangents share."""

    window_strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    dimension_numbers: ConvDimensionNumbers
    feature_group_count: int
    batch_group_count: int
    options: dict  # precision, preferred_element_type

    def reaches(self, lhs, rhs, ct):
        """Per spatial dimension, how far input, window and result reach in the dilated input; and the padding."""
        reach = lambda x, spec, steps: [
            dilated(x.shape[axis], step) for axis, step in zip(spec[2:], steps, strict=True)
        ]
        of_input, of_window, of_result = self.dimension_numbers
        return zip(
            reach(lhs, of_input, self.lhs_dilation),
            reach(rhs, of_window, self.rhs_dilation),
            reach(ct, of_result, self.window_strides),
            self.padding,
            strict=True,
        )


@formula(lax.conv_general_dilated_p, saves=("rhs", "lhs"))
def conv_general_dilated(
    ct, out, lhs, rhs, *, window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers, feature_group_count,
    batch_group_count, precision, preferred_element_type, out_sharding=None,
):  # fmt: skip
    """out[n, o, p] = sum over i, k of lhs[n, i, stride * p + dilation * k - padding] * rhs[o, i, k]"""
    if 0 in ct.shape:  # XLA has no convolution with an empty window
        return jnp.zeros(lhs.shape, lhs.dtype), jnp.zeros(rhs.shape, rhs.dtype)
    options = {"precision": precision, "preferred_element_type": preferred_element_type}
    how = Convolution(
        window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers, feature_group_count, batch_group_count,
        options,
    )  # fmt: skip
    return input_cotangent(ct, lhs, rhs, how), window_cotangent(ct, lhs, rhs, how)


@later
def input_cotangent(ct, lhs, rhs, how):
    """Every input meets the window from the other end. Groups of output features become groups of input features."""
    lhs_spec, (o, i, *k), out_spec = how.dimension_numbers
    groups = max(how.feature_group_count, how.batch_group_count)
    window = move_factor(lax.rev(rhs, k), groups, o, i)
    lhs_ct = lax.conv_general_dilated(
        ct, lax.convert_element_type(window, ct.dtype),  # a convolution wants its operands in one dtype
        how.lhs_dilation, [(win - 1 - low, inp + low - res) for inp, win, res, (low, _) in how.reaches(lhs, rhs, ct)],
        how.window_strides, how.rhs_dilation, ConvDimensionNumbers(out_spec, (i, o, *k), lhs_spec), groups, 1,
        out_sharding=sharding_of(lhs, range(lhs.ndim)), **how.options,
    )  # fmt: skip
    return in_dtype_of(lhs, move_factor(lhs_ct, how.batch_group_count, lhs_spec[1], lhs_spec[0]))


@later
def window_cotangent(ct, lhs, rhs, how):
    """The result is the window now: it runs over the input in steps of the dilation, summing over the batch."""
    (n, i, *p), (o, r, *k), (m, f, *q) = how.dimension_numbers
    rhs_ct = lax.conv_general_dilated(
        lax.convert_element_type(lhs, ct.dtype), ct, how.rhs_dilation,
        [(low, res + win - 1 - inp - low) for inp, win, res, (low, _) in how.reaches(lhs, rhs, ct)],
        how.lhs_dilation, how.window_strides, ConvDimensionNumbers((i, n, *p), (f, m, *q), (r, o, *k)),
        how.batch_group_count, how.feature_group_count, out_sharding=sharding_of(rhs, range(rhs.ndim)), **how.options,
    )  # fmt: skip
    return in_dtype_of(rhs, rhs_ct)


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
