"""Rules of indexing: gathers, scatters and slices at positions that are data.

What a gather reads, its reverse adds into; what a scatter writes, its reverse reads. Updates that
jax drops because they are out of bounds get no gradient.

`how` stands for the parameters that a gather and a scatter have in common (mode, uniqueness and
order of the indices, for scatters also the dimension numbers): they are handed on as they are, and
one that jax adds fails there.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.errors import RefusedPrimitive
from tapejax.rules.axes import linear_recurrence, place_along, shifted, zeros_for
from tapejax.rules.definition import by_definition, on_arrays
from tapejax.rules.registry import Rule, rule, structural


@rule(lax.dynamic_slice_p, saves="starts")
def dynamic_slice(ct, out, x, *starts, slice_sizes):
    """out = the block of x that begins at `starts`"""
    return (lax.dynamic_update_slice(zeros_for(x, ct), ct, _clamped(starts)), *none_for(starts))


@rule(lax.dynamic_update_slice_p, saves="starts")
def dynamic_update_slice(ct, out, x, update, *starts):
    """out = x with the block that begins at `starts` replaced"""
    starts = _clamped(starts)
    ct_x = lax.dynamic_update_slice(ct, zeros_for(update, ct), starts)
    return (ct_x, lax.dynamic_slice(ct, starts, update.shape), *none_for(starts))


def _clamped(starts):
    """The primitive takes a start below zero as zero; the functions in lax would count it from the end, once more."""
    return [lax.max(start, lax.full_like(start, 0)) for start in starts]


def none_for(operands):
    return (None,) * len(operands)


@rule(lax.gather_p, saves="indices")
def gather(ct, out, x, indices, *, dimension_numbers, slice_sizes, fill_value, **how):
    """out = windows of x, one for each index vector"""
    where = lax.ScatterDimensionNumbers(
        update_window_dims=dimension_numbers.offset_dims,
        inserted_window_dims=dimension_numbers.collapsed_slice_dims,
        scatter_dims_to_operand_dims=dimension_numbers.start_index_map,
        operand_batching_dims=dimension_numbers.operand_batching_dims,
        scatter_indices_batching_dims=dimension_numbers.start_indices_batching_dims,
    )
    return lax.scatter_add(zeros_for(x, ct), indices, ct, where, **how), None


def read_back(x, indices, updates, *, dimension_numbers, fill=0, **how):
    """The elements of x at the places where a scatter writes its updates; `fill` for dropped ones."""
    where = lax.GatherDimensionNumbers(
        offset_dims=dimension_numbers.update_window_dims,
        collapsed_slice_dims=dimension_numbers.inserted_window_dims,
        start_index_map=dimension_numbers.scatter_dims_to_operand_dims,
        operand_batching_dims=dimension_numbers.operand_batching_dims,
        start_indices_batching_dims=dimension_numbers.scatter_indices_batching_dims,
    )
    window = iter(updates.shape[d] for d in dimension_numbers.update_window_dims)
    single = (*dimension_numbers.inserted_window_dims, *dimension_numbers.operand_batching_dims)
    sizes = [1 if d in single else next(window) for d in range(x.ndim)]
    return lax.gather(x, indices, where, sizes, fill_value=fill, **how)


@rule(lax.scatter_add_p, saves=("", "", "indices"))
def scatter_add(ct, out, x, indices, updates, *, update_jaxpr, update_consts, **how):
    """out = x with the updates added at the indices"""
    return ct, None, read_back(ct, indices, updates, **how)


@rule("scatter-sub", saves=("", "", "indices"))
def scatter_sub(ct, out, x, indices, updates, *, update_jaxpr, update_consts, **how):
    """out = x with the updates subtracted at the indices"""
    return ct, None, -read_back(ct, indices, updates, **how)


def scatter_set(ct, out, x, indices, updates, *, update_jaxpr, update_consts, **how):
    """out = x with the updates written at the indices; one of those that meet at a place wins"""
    ct_x = lax.scatter(ct, indices, zeros_for(updates, ct), **how)
    ct_updates = read_back(ct, indices, updates, **how)
    if not how["unique_indices"]:
        # Numbers scattered in the same way tell which update won.
        mine = lax.reshape(lax.iota(np.int32, int(np.prod(updates.shape))), updates.shape)
        winners = lax.scatter(jnp.zeros(x.shape, np.int32), indices, mine, **how)
        won = read_back(winners, indices, updates, **how) == mine
        ct_updates = lax.select(won, ct_updates, lax.full_like(ct_updates, 0))
    return ct_x, None, ct_updates


SET = Rule("scatter", scatter_set, "indices", cheap=False, zeros=True, family="indexing")


@structural(lax.scatter_p)
def scatter(eqn, in_avals, out_avals, active_in, tools):
    """out = x with the updates written, or with a function applied, at the indices"""
    how = dict(eqn.params)
    jaxpr, consts = how.pop("update_jaxpr"), how.pop("update_consts")
    if jaxpr is None:
        return SET.specialise(eqn, in_avals, out_avals, active_in, tools)
    if not how["unique_indices"]:
        raise RefusedPrimitive(
            "a `scatter` that applies a function cannot be differentiated where indices may repeat",
            at=eqn.line,
            action=eqn,
            fix="say unique_indices=True if they never repeat",
        )

    def apply(x, indices, updates):
        (changed,) = on_arrays(jaxpr, consts, updates.ndim)(read_back(x, indices, updates, **how), updates)
        return lax.scatter(x, indices, changed, **how)

    return by_definition(apply, in_avals, active_in, tools)


@rule(lax.scatter_mul_p, saves=("indices updates", "", "indices x updates"))
def scatter_mul(ct, out, x, indices, updates, *, update_jaxpr, update_consts, **how):
    """out = x with the updates multiplied in at the indices"""
    ct_updates = read_back(ct * x, indices, updates, **how)
    if not how["unique_indices"]:
        ct_updates = ct_updates * product_of_others(x, indices, updates, **how)
    return lax.scatter_mul(ct, indices, updates, **how), None, ct_updates


def product_of_others(x, indices, updates, **how):
    """For each update the product of all others that meet it at its place, exact where some are 0."""
    size = int(np.prod(updates.shape))
    places = lax.reshape(lax.iota(np.int32, int(np.prod(x.shape))), x.shape)
    place = lax.reshape(read_back(places, indices, updates, fill=-1, **how), (size,))
    place, order = lax.sort((place, lax.iota(np.int32, size)), num_keys=1)
    factors = jnp.take(lax.reshape(updates, (size,)), order, mode="clip")

    def product_before(step):
        same = place == shifted(place, 0, step, -2)
        a = lax.select(same, shifted(factors, 0, step, 0), lax.full_like(factors, 0))
        return linear_recurrence(a, lax.convert_element_type(~same, factors.dtype), 0, reverse=step < 0)

    return lax.reshape(place_along(product_before(1) * product_before(-1), order, 0, factors), updates.shape)


@rule(lax.scatter_max_p, saves="x indices updates out")
def scatter_max(ct, out, x, indices, updates, *, update_jaxpr, update_consts, **how):
    """out = x with the maximum taken with the updates at the indices; all that attain it share the cotangent"""
    return scatter_extremum(ct, out, x, indices, updates, **how)


@rule(lax.scatter_min_p, saves="x indices updates out")
def scatter_min(ct, out, x, indices, updates, *, update_jaxpr, update_consts, **how):
    """out = x with the minimum taken with the updates at the indices; all that attain it share the cotangent"""
    return scatter_extremum(ct, out, x, indices, updates, **how)


def scatter_extremum(ct, out, x, indices, updates, **how):
    is_update = lax.convert_element_type(updates == read_back(out, indices, updates, **how), ct.dtype)
    met = lax.scatter_add(zeros_for(x, ct), indices, lax.full_like(updates, 1, ct.dtype), **how)
    is_x = lax.convert_element_type((x == out) | (met == 0), ct.dtype)  # a nan that no update meets stays
    count = lax.scatter_add(is_x, indices, is_update, **how)
    share = lax.select(count == 0, lax.full_like(ct, 0), ct / count)  # nothing equals a nan that was met
    return share * is_x, None, is_update * read_back(share, indices, updates, **how)
