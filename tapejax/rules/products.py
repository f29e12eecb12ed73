"""Rules of products that sum over dimensions: dot_general and its ragged form."""

import math

import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tapejax.ground.placement import several_devices
from tapejax.rules.registry import formula, rule
from tapejax.rules.terms import later


def in_dtype_of(x, ct):
    """ct in x's dtype: products accept mixed dtypes, real times complex included."""
    if ct.dtype == x.dtype:
        return ct
    if np.issubdtype(ct.dtype, np.complexfloating) and not np.issubdtype(x.dtype, np.complexfloating):
        ct = lax.real(ct)
    return lax.convert_element_type(ct, x.dtype)


def sharding_of(x, axes):
    """The sharding x has, for an array with its axes in this order. None unless a mesh axis is explicit:
    only then must a product say how its result lies."""
    sharding = getattr(x, "aval", x).sharding
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    return NamedSharding(sharding.mesh, PartitionSpec(*(sharding.spec[axis] for axis in axes)))


def without(axes, ndim):
    return [d for d in range(ndim) if d not in axes]


def dot(x, y, numbers, *options, out_sharding):
    """dot_general, over one dimension if those that it is to sum over come first in both.

    XLA for CPUs copies an operand, slowly, to sum over several. Not with several devices: of dimensions that are
    merged, only the first can stay divided between them.
    """
    (x_summed, y_summed), (batch, _) = numbers
    n = len(x_summed)
    if n > 1 and list(x_summed) == list(y_summed) == list(range(n)) and not batch and not several_devices():
        x, y = (lax.reshape(z, (math.prod(z.shape[:n]), *z.shape[n:])) for z in (x, y))
        numbers = (((0,), (0,)), ((), ()))
    return lax.dot_general(x, y, numbers, *options, out_sharding=out_sharding)


@later
def dot_cotangent(x, x_axes, y, y_axes, ct, ct_y, precision, dtype):
    """The cotangent of x in out = x . y, by the product of ct with y over y's own dimensions.

    x_axes, y_axes: their contracting and batch dimensions. ct_y: where y's own are in ct.
    precision: that of x, or of what stands for it, and that of y.
    """
    (x_contract, x_batch), (y_contract, y_batch) = x_axes, y_axes
    x_kept = without([*x_contract, *x_batch], x.ndim)
    y_kept = without([*y_contract, *y_batch], y.ndim)
    # The product's dimensions: batch, x's own, then those summed over, in the order they have in y. With y
    # as the first factor x's own come last: mostly one of the two is the order that x has. (XLA rounds a
    # product of mixed dtypes by its first factor, so these stay as jax has them.)
    summed = [x_contract[i] for i in sorted(range(len(y_contract)), key=y_contract.__getitem__)]
    batch, order = range(len(x_batch)), [*x_batch, *summed, *x_kept]
    if order == list(range(x.ndim)) and ct.dtype == y.dtype:
        numbers, factors = ((y_kept, ct_y), (y_batch, batch)), (y, ct)
        precision = precision[::-1] if isinstance(precision, tuple) else precision
    else:
        order = [*x_batch, *x_kept, *summed]
        numbers, factors = ((ct_y, y_kept), (batch, y_batch)), (ct, y)
    found = dot(*factors, numbers, precision, dtype, out_sharding=sharding_of(x, order))
    if order != list(range(x.ndim)):
        found = lax.transpose(found, np.argsort(order))
    return in_dtype_of(x, found)


@formula(lax.dot_general_p, saves=("rhs", "lhs"))
def dot_general(ct, out, lhs, rhs, *, dimension_numbers, precision, preferred_element_type, out_sharding):
    """out[batch, i, j] = sum over k of lhs[batch, i, k] * rhs[batch, k, j], for any order of dimensions"""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
    lhs_axes, rhs_axes = (lhs_contract, lhs_batch), (rhs_contract, rhs_batch)
    first_j = lhs.ndim - len(lhs_contract)
    i, j = range(len(lhs_batch), first_j), range(first_j, ct.ndim)
    flipped = precision[::-1] if isinstance(precision, tuple) else precision
    dtype = preferred_element_type
    return (
        dot_cotangent(lhs, lhs_axes, rhs, rhs_axes, ct, j, precision, dtype),
        dot_cotangent(rhs, rhs_axes, lhs, lhs_axes, ct, i, flipped, dtype),
    )


@rule(lax.linalg.symmetric_product_p, saves=("a", ""))
def symmetric_product(ct, out, a, c, *, alpha, beta):
    """out = alpha * a a^T + beta * c"""
    last = a.ndim - 1
    swapped = lax.transpose(ct, [*range(last - 1), last, last - 1])
    numbers = (((last,), (last - 1,)), (range(last - 1), range(last - 1)))
    return alpha * lax.dot_general(ct + swapped, a, numbers), beta * ct


@rule("ragged_dot_general", saves=("rhs group_sizes", "lhs group_sizes", ""))
def ragged_dot_general(
    ct, out, lhs, rhs, group_sizes, *, ragged_dot_dimension_numbers, precision, preferred_element_type, group_offset,
    out_sharding,
):  # fmt: skip
    """A dot_general by groups of lhs along a ragged dimension: each has an rhs of its own, or, when
    that dimension is summed over, a result of its own"""
    groups = ragged_dot_dimension_numbers
    numbers, (ragged,) = groups.dot_dimension_numbers, groups.lhs_ragged_dimensions
    options = {"precision": precision, "preferred_element_type": preferred_element_type}
    if ragged in numbers[1][0]:  # a batch in groups is a batch
        return *dot_general(ct, out, lhs, rhs, dimension_numbers=numbers, out_sharding=None, **options), None

    def product(like, order, x, y, contract, batch, row, group=()):
        """The cotangent of `like` as a ragged product, which has the dimensions of `like` in this order."""
        dims = lax.RaggedDotDimensionNumbers((contract, batch), [row], group)
        found = lax.ragged_dot_general(x, y, group_sizes, dims, out_sharding=sharding_of(like, order), **options)
        return in_dtype_of(like, lax.transpose(found, np.argsort(order)))

    cotangents = summed_groups if ragged in numbers[0][0] else own_groups
    return *cotangents(product, ct, lhs, rhs, numbers, ragged, groups.rhs_group_dimensions), None


def own_groups(product, ct, lhs, rhs, numbers, ragged, group):
    """Cotangents of lhs[batch, i, k] and rhs[group, batch, k, j] in out[batch, i, j]; i is ragged."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers
    lhs_kept = without([*lhs_contract, *lhs_batch], lhs.ndim)
    rhs_kept = without([*rhs_contract, *rhs_batch, *group], rhs.ndim)
    batch, i, j = consecutive(lhs_batch, lhs_kept, rhs_kept)
    lhs_order = [*lhs_batch, *lhs_kept, *(lhs_contract[d] for d in np.argsort(rhs_contract))]
    rhs_order = [*group, *rhs_batch, *(rhs_contract[d] for d in np.argsort(lhs_contract)), *rhs_kept]
    return (
        product(lhs, lhs_order, ct, rhs, (j, rhs_kept), (batch, rhs_batch), i[lhs_kept.index(ragged)], group),
        product(rhs, rhs_order, lhs, ct, (lhs_kept, i), (lhs_batch, batch), ragged),
    )


def summed_groups(product, ct, lhs, rhs, numbers, ragged, _):
    """Cotangents of lhs[batch, i, k] and rhs[batch, k, j] in out[group, batch, i, j]; k is ragged."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers
    position = list(lhs_contract).index(ragged)
    lhs_order = [*lhs_batch, *lhs_contract, *without([*lhs_batch, *lhs_contract], lhs.ndim)]
    rhs_order = [*rhs_batch, *rhs_contract, *without([*rhs_batch, *rhs_contract], rhs.ndim)]
    batch, k, lhs_kept = consecutive(lhs_batch, lhs_contract, lhs_order[len(lhs_batch) + len(lhs_contract) :])
    _, _, rhs_kept = consecutive(rhs_batch, rhs_contract, rhs_order[len(rhs_batch) + len(rhs_contract) :])
    _, ct_batch, i, j = consecutive([0], batch, lhs_kept, rhs_kept)
    # The other operand's rows k are ragged now, and each meets its own group of ct.
    side = lambda like, order, other, other_order, kept, ct_kept: product(
        like, order, lax.transpose(other, other_order), ct, (kept, ct_kept), (batch, ct_batch), k[position], [0]
    )
    return (
        side(lhs, lhs_order, rhs, rhs_order, rhs_kept, j),
        side(rhs, rhs_order, lhs, lhs_order, lhs_kept, i),
    )


def consecutive(*groups):
    """Ranges as long as the groups, one after the other."""
    ends = np.cumsum([len(group) for group in groups])
    return [range(end - len(group), end) for group, end in zip(groups, ends, strict=True)]
