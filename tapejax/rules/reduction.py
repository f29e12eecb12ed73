"""Rules of reductions, scans along an axis and sorting."""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core.primitives import approx_top_k_p, top_k_p

from tapejax.ground import compat
from tapejax.rules.axes import linear_recurrence, place_along, shifted
from tapejax.rules.definition import by_definition, copies, on_arrays, refuse_initial_values
from tapejax.rules.registry import RuleCall, rule, structural


def along(reduced, axes, x):
    """A reduced array copied back along the axes it was reduced over."""
    kept = [d for d in range(x.ndim) if d not in axes]
    return lax.broadcast_in_dim(reduced, x.shape, kept)


@rule(lax.reduce_sum_p)
def reduce_sum(ct, out, x, *, axes, out_sharding):
    """out = x summed over axes"""
    return (along(ct, axes, x),)


@rule(lax.reduce_max_p, saves="out x")
def reduce_max(ct, out, x, *, axes, out_sharding=None):
    """out = the maximum of x over axes; all that attain it share the cotangent"""
    return (shared_by_equals(ct, out, x, axes),)


@rule(lax.reduce_min_p, saves="out x")
def reduce_min(ct, out, x, *, axes, out_sharding=None):
    """out = the minimum of x over axes; all that attain it share the cotangent"""
    return (shared_by_equals(ct, out, x, axes),)


def shared_by_equals(ct, out, x, axes):
    attains = x == along(out, axes, x)
    ones = lax.convert_element_type(attains, np.uint32)  # XLA counts these without an array of floats
    share = ct / lax.convert_element_type(lax.reduce_sum(ones, axes), ct.dtype)
    # Nothing equals a nan, and then all get nan. Said outright: XLA takes inf * 0 for 0 where the 0 was a bool.
    others = lax.select(out != out, lax.full_like(ct, np.nan), lax.full_like(ct, 0))
    return lax.select(attains, along(share, axes, x), along(others, axes, x))


@rule(lax.reduce_prod_p, saves="x")
def reduce_prod(ct, out, x, *, axes):
    """out = the product of x over axes"""
    # The product of all others, as that of those before and those after: out / x would fail at 0.
    flat, restore = last_axis(x, axes)
    axis = flat.ndim - 1
    before = shifted(lax.cumprod(flat, axis), axis, 1, 1)
    after = shifted(lax.cumprod(flat, axis, reverse=True), axis, -1, 1)
    return (restore(before * after) * along(ct, axes, x),)


def last_axis(x, axes):
    """x with the axes moved into one last axis, and the function that undoes it."""
    kept = [d for d in range(x.ndim) if d not in axes]
    order = (*kept, *axes)
    moved = lax.transpose(x, order)
    size = int(np.prod([x.shape[d] for d in axes]))
    flat = lax.reshape(moved, (*[x.shape[d] for d in kept], size))
    return flat, lambda y: lax.transpose(lax.reshape(y, moved.shape), tuple(int(d) for d in np.argsort(order)))


@structural(lax.reduce_p)
def reduce(eqn, in_avals, out_avals, active_in, tools):
    """outs = xs combined over axes by a function of two elements, starting from initial values"""
    axes, n = eqn.params["dimensions"], len(in_avals) // 2
    refuse_initial_values(eqn, active_in[n:])

    def tree(*operands):
        xs, initials = [last_axis(x, axes)[0] for x in operands[:n]], operands[n:]
        ndim = xs[0].ndim
        combine = on_arrays(eqn.params["jaxpr"], (), ndim)
        while (size := xs[0].shape[-1]) > 1:
            half = size // 2
            left, middle, right = zip(*[lax.split(x, (half, size - 2 * half, half), ndim - 1) for x in xs], strict=True)
            pairs = combine(*left, *right)
            xs = [lax.concatenate(both, ndim - 1) for both in zip(pairs, middle, strict=True)]
        if size == 0:
            return [lax.broadcast(initial, x.shape[:-1]) for initial, x in zip(initials, xs, strict=True)]
        totals = [lax.squeeze(x, (ndim - 1,)) for x in xs]
        return on_arrays(eqn.params["jaxpr"], (), ndim - 1)(*map(copies, initials, totals), *totals)

    return by_definition(tree, in_avals, active_in, tools)


@rule(lax.cumsum_p)
def cumsum(ct, out, x, *, axis, reverse):
    """out[i] = x[0] + ... + x[i] along an axis (reverse: from the end)"""
    return (lax.cumsum(ct, axis, reverse=not reverse),)


@rule(lax.cumprod_p, saves="out x")
def cumprod(ct, out, x, *, axis, reverse):
    """out[i] = x[0] * ... * x[i] along an axis (reverse: from the end)"""
    # ct_x[i] = out[i-1] * s[i], where s[i] = ct[i] + x[i+1] * s[i+1]; no division, so x may be 0.
    step = -1 if reverse else 1
    later = linear_recurrence(shifted(x, axis, -step, 0), ct, axis, reverse=not reverse)
    return (shifted(out, axis, step, 1) * later,)


@rule(lax.cumlogsumexp_p, saves="out x")
def cumlogsumexp(ct, out, x, *, axis, reverse):
    """out[i] = log(exp(x[0]) + ... + exp(x[i])) along an axis (reverse: from the end)"""
    # ct_x[i] = exp(x[i] - out[i]) * s[i], where s[i] = ct[i] + exp(out[i] - out[i+1]) * s[i+1].
    finite = lax.select(jnp.real(out) == -np.inf, lax.full_like(out, 0), out)  # exp(-inf) is a share of 0, not nan
    decay = lax.exp(out - shifted(finite, axis, 1 if reverse else -1, np.inf))
    return (lax.exp(x - finite) * linear_recurrence(decay, ct, axis, reverse=not reverse),)


@structural(lax.cummax_p)
def cummax(eqn, in_avals, out_avals, active_in, tools):
    """out[i] = max(x[0], ..., x[i]) along an axis (reverse: from the end)"""
    return by_scan(lax.max, eqn, in_avals, active_in, tools)


@structural(lax.cummin_p)
def cummin(eqn, in_avals, out_avals, active_in, tools):
    """out[i] = min(x[0], ..., x[i]) along an axis (reverse: from the end)"""
    return by_scan(lax.min, eqn, in_avals, active_in, tools)


def by_scan(combine, eqn, in_avals, active_in, tools):
    # How equal elements share a cotangent depends on who meets whom: the pairing of jax's scan is the reference.
    return by_definition(lambda x: lax.associative_scan(combine, x, **eqn.params), in_avals, active_in, tools)


@structural(lax.sort_p)
def sort(eqn, in_avals, out_avals, active_in, tools):
    """outs = xs in the order that sorts the first num_keys of them along an axis"""
    axis = eqn.params["dimension"]
    x = in_avals[0]

    def forward(operands):
        position = compat.as_typed(lax.broadcasted_iota(np.int32, x.shape, axis), x)
        *results, order = lax.sort_p.bind(*operands, position, **eqn.params)
        return results, [order]

    def backward(saved, cts):
        (order,) = saved
        return [None if ct is None else place_along(ct, order, axis, x) for ct in cts]

    return RuleCall((), (), backward, forward, (x.update(dtype=np.dtype(np.int32), weak_type=False),))


@rule(top_k_p, saves="out.1", zeros=False)
def top_k(cts, outs, x, *, k, axis, is_stable=True):
    """outs = the k largest elements along an axis, and their positions"""
    return (place_along(cts[0], outs[1], axis, x),)


@rule(approx_top_k_p, saves="out.1", zeros=False)
def approx_top_k(cts, outs, x, *, reduction_dimension, **how_well):
    """outs = about the k largest (smallest) elements along an axis, and their positions"""
    return (place_along(cts[0], outs[1], reduction_dimension % x.ndim, x),)
