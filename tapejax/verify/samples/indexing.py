"""Samples: indexing."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.verify.samples.base import ALL, away_from_zero, distinct, exactly, integers, normal, sample

F64 = ("float64",)
WINDOWS = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0, 1))
BATCHED = lax.GatherDimensionNumbers(
    offset_dims=(2,),
    collapsed_slice_dims=(1,),
    start_index_map=(1,),
    operand_batching_dims=(0,),
    start_indices_batching_dims=(0,),
)
INTO_WINDOWS = lax.ScatterDimensionNumbers(
    update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0, 1)
)
INTO_BATCHED = lax.ScatterDimensionNumbers(
    update_window_dims=(2,),
    inserted_window_dims=(1,),
    scatter_dims_to_operand_dims=(1,),
    operand_batching_dims=(0,),
    scatter_indices_batching_dims=(0,),
)
PLACES = [[0, 1], [2, 0], [0, 1], [1, 2], [9, 0]]  # two of these windows overlap, the last is out of bounds
BATCH_PLACES = [[[0], [2], [0]], [[1], [1], [-1]]]


def gathers(numbers, sizes, **how):
    return lambda x, i: lax.gather(x, i, numbers, sizes, **how)


def scatters(scatter, numbers=INTO_WINDOWS, **how):
    return lambda x, i, u: scatter(x, i, u, numbers, **how)


def update(method, *index, **how):
    """x.at[index].method(u)"""
    return lambda x, u: getattr(x.at[index], method)(u, **how)


def every_way(scatter, x, updates, **how):
    """A scatter in each mode, with and without overlaps, batched, and empty."""
    once = integers(PLACES[1:4])
    return [
        sample(scatters(scatter, mode="drop"), x(3, 4), integers(PLACES), updates(5, 2), **how),
        sample(scatters(scatter, mode="drop", unique_indices=True), x(3, 4), once, updates(3, 2), dtypes=F64),
        sample(scatters(scatter, INTO_BATCHED), x(2, 3, 2), integers(BATCH_PLACES), updates(2, 3, 2), dtypes=F64),
        sample(scatters(scatter), x(3, 4), integers(np.zeros((0, 2))), updates(0, 2), dtypes=F64),
    ]


SAMPLES = {
    lax.dynamic_slice_p: [
        sample(
            lambda x, i, j: lax.dynamic_slice(x, (i, j), (2, 1)),
            normal(4, 3), integers(1), integers(9), dtypes=ALL,
        ),
        sample(lambda x: lax.dynamic_slice(x, (), ()), normal(), dtypes=F64),
        sample(lambda x, i: lax.dynamic_slice(x, (i,), (0,)), normal(3), integers(1), dtypes=F64),
    ],
    lax.dynamic_update_slice_p: [
        sample(
            lambda x, u, i, j: lax.dynamic_update_slice(x, u, (i, j)),
            normal(4, 3), normal(2, 1), integers(1), integers(9), dtypes=ALL,
        ),
        sample(lambda x, u: lax.dynamic_update_slice(x, u, (1,)), normal(3), normal(0), dtypes=F64),
    ],
    lax.gather_p: [
        sample(gathers(WINDOWS, (1, 2), mode="fill"), normal(3, 4), integers(PLACES), dtypes=ALL, finite=False),
        sample(gathers(WINDOWS, (1, 2), mode="fill", fill_value=2), normal(3, 4), integers(PLACES), dtypes=F64),
        sample(gathers(WINDOWS, (1, 2), mode="clip"), normal(3, 4), integers(PLACES), dtypes=F64),
        sample(
            gathers(WINDOWS, (1, 2), mode="promise_in_bounds", unique_indices=True, indices_are_sorted=True),
            normal(3, 4), integers([[0, 1], [2, 0]]), dtypes=F64,
        ),
        sample(gathers(BATCHED, (1, 1, 2)), normal(2, 3, 2), integers(BATCH_PLACES), dtypes=F64, finite=False),
        sample(lambda x, i: x[i], normal(3, 2), integers([[0, -1], [2, 0]]), dtypes=F64),
        sample(lambda x, i: x[i, 1:, None, i], normal(3, 3, 3), integers([0, 2, 2]), dtypes=F64),
        sample(lambda x, i: x[i], normal(3), integers([]), dtypes=F64),
        sample(lambda x, i: x[i], normal(3), integers(2), dtypes=F64),
        sample(lambda x: x[np.array([True, False, True])], normal(3, 2), dtypes=F64),
        sample(
            lambda x, m: x[jnp.nonzero(m, size=3, fill_value=0)], normal(4), integers([0, 1, 0, 1], bool), dtypes=F64
        ),
        sample(lambda x, i: jnp.take(x, i, axis=1), normal(2, 3), integers([2, 2, 0, 7]), dtypes=F64, finite=False),
        sample(lambda x, i: jnp.take_along_axis(x, i, 0), normal(3, 2), integers([[2, 0], [2, 2]]), dtypes=F64),
    ],
    lax.scatter_p: [
        *every_way(lax.scatter, normal, normal, dtypes=ALL),
        sample(scatters(lax.scatter, mode="clip"), normal(3, 4), integers(PLACES), normal(5, 2), dtypes=F64),
        sample(update("set", 1), normal(3, 2), normal(2), dtypes=F64),
        sample(update("set", slice(None, None, 2), 0), normal(3, 2), normal(), dtypes=F64),
        sample(update("set", np.array([0, 2, 0])), normal(3), normal(3), dtypes=F64),
        # orders=0: jax does not differentiate a scatter that applies a function.
        sample(lambda x: x.at[np.array([0, 2])].apply(jnp.sin, unique_indices=True), normal(3), dtypes=F64, orders=0),
        sample(lambda x: x.at[1].apply(jnp.exp), normal(3, 2), dtypes=F64, orders=0),
    ],
    lax.scatter_add_p: [
        *every_way(lax.scatter_add, normal, normal, dtypes=ALL),
        sample(scatters(lax.scatter_add, mode="clip"), normal(3, 4), integers(PLACES), normal(5, 2), dtypes=F64),
        sample(update("add", np.array([0, 2, 0])), normal(3), normal(3), dtypes=F64),
    ],
    "scatter-sub": [
        *every_way(lax.scatter_sub, normal, normal, dtypes=("float64", "complex128")),
        sample(update("subtract", np.array([0, 2, 0])), normal(3), normal(3), dtypes=F64),
    ],
    lax.scatter_mul_p: [
        sample(
            scatters(lax.scatter_mul, mode="drop", unique_indices=True),
            normal(3, 4), integers(PLACES[1:]), normal(4, 2), dtypes=ALL,
        ),
        sample(lambda x: x.at[np.array([0, 2, 0])].multiply(np.array([2.0, 3.0, 4.0])), normal(3), dtypes=F64),
        sample(update("multiply", 1), normal(3, 2), exactly([0.0, 1.0]), dtypes=F64),
        # orders=0: jax gives the updates' gradient only for unique indices.
        sample(
            scatters(lax.scatter_mul, mode="clip"), normal(3, 4), integers(PLACES), normal(5, 2), dtypes=F64, orders=0
        ),
        sample(update("multiply", np.array([0, 2, 0, 0])), normal(3), exactly([0.0, 2, 0, 3]), dtypes=F64, orders=0),
        sample(update("multiply", np.array([0, 2, 0, 9])), normal(3), exactly([0.0, 0, 2, 3]), dtypes=F64, orders=0),
    ],
    lax.scatter_max_p: [
        *every_way(lax.scatter_max, distinct, away_from_zero),
        # orders=0: jax 0.10 forgets the mode in the derivative.
        sample(
            scatters(lax.scatter_max, mode="clip"), distinct(3, 4), integers(PLACES), normal(5, 2), dtypes=F64, orders=0
        ),
        sample(
            update("max", np.array([0, 2, 0, 0])), exactly([1.0, 2, 0]), exactly([1.0, 0, 1, -1]), dtypes=F64, finite=False
        ),
    ],
    lax.scatter_min_p: [
        *every_way(lax.scatter_min, distinct, away_from_zero, dtypes=F64),
        # orders=0: jax 0.10 forgets the mode in the derivative.
        sample(
            scatters(lax.scatter_min, mode="clip"), distinct(3, 4), integers(PLACES), normal(5, 2), dtypes=F64, orders=0
        ),
        sample(
            update("min", np.array([0, 2, 0, 0])), exactly([1.0, 2, 0]), exactly([1.0, 0, 1, 3]), dtypes=F64, finite=False
        ),
    ],
}  # fmt: skip
