"""Samples: reduction."""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core.primitives import approx_top_k_p, top_k_p

from tapejax.verify.samples import base
from tapejax.verify.samples.base import ALL, WIDE, away_from_zero, distinct, exactly, integers, normal, sample

F64 = ("float64",)
TIES = [[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0]]
ZEROS = [[1.0, 2.0, 0.0, 3.0], [0.0, 2.0, 0.0, 3.0], [0.0, 0.0, 0.0, 2.0]]


def over(reduction, *axes):
    return lambda x: reduction(x, axes)


def scan(cumulative, axis=0, *, reverse=False):
    return lambda x: cumulative(x, axis=axis, reverse=reverse)


def extremum(reduction, dtypes):
    return [
        sample(over(reduction, 0, 2), distinct(2, 3, 4), dtypes=dtypes),
        sample(over(reduction), normal(), dtypes=F64),
        sample(over(reduction, 1), normal(0, 3), dtypes=F64),
        sample(over(reduction, 0), normal(0, 3), dtypes=F64, finite=False),
        sample(over(reduction, 1), exactly(TIES), finite=False, dtypes=F64),
        sample(over(reduction, 0), distinct(4), dtypes=("complex128",)),
    ]


def cumulative_extremum(cumulative, dtypes):
    return [
        sample(scan(cumulative, 1), distinct(2, 4), dtypes=dtypes),
        sample(scan(cumulative, 0, reverse=True), distinct(4, 2), dtypes=F64),
        sample(scan(cumulative, 1), exactly(TIES), finite=False, dtypes=F64),
        sample(scan(cumulative, 1, reverse=True), exactly([[1.0, 1, 1, 1, 1]]), finite=False, dtypes=F64),
        sample(scan(cumulative), normal(0, 2), dtypes=F64),
    ]


def sum_and_product(x, y):
    initials = np.asarray(0, x.dtype), np.asarray(1, x.dtype)
    return lax.reduce((x, y), initials, lambda a, b: (a[0] + b[0], a[1] * b[1]), (0, 2))


def smallest(x):
    return lax.reduce(x, np.asarray(np.inf, x.dtype), lambda a, b: lax.min(a, b), (1,))


def largest_with_position(x):
    position = lax.broadcasted_iota(np.int32, x.shape, 0)

    def larger(a, b):
        first = a[0] >= b[0]
        return lax.select(first, a[0], b[0]), lax.select(first, a[1], b[1])

    return lax.reduce((x, position), (-np.inf, np.int32(-1)), larger, (0,))


SAMPLES = {
    lax.reduce_sum_p: [
        sample(over(lax.reduce_sum, 0, 2), normal(2, 3, 4), dtypes=ALL),
        sample(over(lax.reduce_sum, 0), normal(0, 3), dtypes=F64),
        sample(over(lax.reduce_sum), normal(), dtypes=F64),
    ],
    lax.reduce_max_p: extremum(lax.reduce_max, base.REAL),
    lax.reduce_min_p: extremum(lax.reduce_min, F64),
    lax.reduce_prod_p: [
        sample(over(lax.reduce_prod, 0, 2), away_from_zero(2, 3, 2), dtypes=ALL),
        sample(over(lax.reduce_prod, 1), exactly(ZEROS), dtypes=("float64", "complex128")),
        sample(over(lax.reduce_prod, 0), normal(0, 3), dtypes=F64),
        sample(over(lax.reduce_prod), normal(), dtypes=F64),
        sample(over(lax.reduce_prod, 1, 0), normal(1, 3), dtypes=F64),
    ],
    lax.reduce_p: [
        sample(sum_and_product, normal(2, 3, 2), normal(2, 3, 2), dtypes=WIDE),
        sample(smallest, exactly(TIES), finite=False, dtypes=WIDE),
        sample(lambda x: lax.reduce(x, 0.0, lambda a, b: a + b + a * b, (0,)), normal(5, 2), dtypes=F64),
        sample(lambda x: lax.reduce(x, 0.0, lambda a, b: a + b + a * b, (0,)), normal(0, 2), dtypes=F64),
        # orders=0: jax fails on an integer operand.
        sample(largest_with_position, distinct(4, 2), dtypes=F64, orders=0),
    ],
    lax.cumsum_p: [
        sample(scan(lax.cumsum, 1), normal(2, 3), dtypes=ALL),
        sample(scan(lax.cumsum, 0, reverse=True), normal(3, 2), dtypes=F64),
        sample(scan(lax.cumsum), normal(0, 2), dtypes=F64),
    ],
    lax.cumprod_p: [
        sample(scan(lax.cumprod, 1), away_from_zero(2, 4), dtypes=ALL),
        sample(scan(lax.cumprod, 0, reverse=True), away_from_zero(5, 2), dtypes=F64),
        sample(scan(lax.cumprod, 1), exactly(ZEROS), dtypes=F64),
        sample(scan(lax.cumprod, 1, reverse=True), exactly(ZEROS), dtypes=("float64", "complex128")),
        sample(scan(lax.cumprod), normal(0, 2), dtypes=F64),
    ],
    lax.cumlogsumexp_p: [
        sample(scan(lax.cumlogsumexp, 1), normal(2, 3), dtypes=(*base.REAL, "complex128")),
        sample(scan(lax.cumlogsumexp, 0, reverse=True), normal(3, 2), dtypes=F64),
        sample(scan(lax.cumlogsumexp, 0), exactly([800.0, -900.0, 0.0, 801.0, -np.inf]), dtypes=F64, finite=False),
        sample(scan(lax.cumlogsumexp), normal(0, 2), dtypes=F64),
    ],
    lax.cummax_p: cumulative_extremum(lax.cummax, base.REAL),
    lax.cummin_p: cumulative_extremum(lax.cummin, F64),
    lax.sort_p: [
        sample(lambda x: lax.sort(x, dimension=0), distinct(4, 2), dtypes=ALL),
        sample(lambda x, y: lax.sort((x, y), dimension=1, num_keys=1), distinct(2, 4), normal(2, 4), dtypes=F64),
        sample(
            lambda x, y, z: lax.sort((x, y, z), num_keys=2), exactly(TIES), distinct(2, 4), normal(2, 4), finite=False
        ),
        sample(lambda x, y: lax.sort((x, y), num_keys=1)[1], integers([2, 0, 2, 1]), normal(4), dtypes=F64),
        sample(lambda x, n: lax.sort((x, n), num_keys=1), distinct(4), integers([2, 0, 2, 1]), dtypes=F64),
        sample(lambda x: lax.sort(x), exactly(TIES), dtypes=F64, finite=False),
        sample(lambda x: lax.sort(x), normal(2, 0), dtypes=F64),
        sample(lambda x: jnp.median(x), normal(5), dtypes=F64),
    ],
    top_k_p: [
        sample(lambda x: lax.top_k(x, 2), distinct(2, 4)),
        sample(lambda x: lax.top_k(x, 3, axis=0)[0], distinct(4, 2), dtypes=F64),
        sample(lambda x: lax.top_k(x, 3), exactly(TIES), dtypes=F64, finite=False),
        sample(lambda x: lax.top_k(x, 0), normal(3), dtypes=F64),
    ],
    approx_top_k_p: [
        sample(lambda x: lax.approx_max_k(x, 2), distinct(2, 5), dtypes=("float32", "bfloat16", "float16")),
        sample(lambda x: lax.approx_min_k(x, 2, reduction_dimension=0), distinct(5, 2), dtypes=("float32",)),
    ],
}  # fmt: skip
