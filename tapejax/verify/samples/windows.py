"""Samples: windows."""

import numpy as np
from jax import lax
from jax.extend.core.primitives import select_and_gather_add_p, select_and_scatter_add_p

from tapejax.verify.samples.base import ALL, REAL, WIDE, distinct, exactly, normal, sample

F64 = ("float64",)
TIES = [1.0, 3.0, 3.0, 1.0, 3.0, 3.0, 3.0]


def pool(combine, initial, size, strides, padding="VALID", **dilation):
    return lambda x: lax.reduce_window(x, np.asarray(initial, x.dtype), combine, size, strides, padding, **dilation)


def extremum(combine, worst, dtypes):
    return [
        sample(pool(combine, worst, (2, 3), (1, 2), ((1, 0), (0, 2))), distinct(4, 5), dtypes=dtypes),
        sample(pool(combine, worst, (1, 2), (2, 1), "SAME"), distinct(3, 4), dtypes=F64),
        sample(pool(combine, worst, (3,), (1,)), exactly(TIES), dtypes=F64, finite=False),
        sample(pool(combine, worst, (5,), (1,)), normal(3), dtypes=F64),
        # orders=0: jax has no reverse derivative with dilation.
        sample(
            pool(combine, worst, (2, 2), (1, 2), ((1, 0), (0, 1)), base_dilation=(2, 1), window_dilation=(1, 2)),
            distinct(3, 5), dtypes=F64, orders=0,
        ),
        sample(pool(combine, worst, (3,), (1,), window_dilation=(2,)), normal(3), dtypes=F64, orders=0),
    ]  # fmt: skip


def selected(primitive, select, size, strides, padding, **dilation):
    return lambda y, x: primitive.bind(
        y, x, select_prim=select, window_dimensions=size, window_strides=strides, padding=padding, **dilation
    )


def total(a, b):
    return a + b + a * b


NO_DILATION = {"base_dilation": (1, 1), "window_dilation": (1, 1)}

SAMPLES = {
    lax.reduce_window_sum_p: [
        sample(pool(lax.add, 0, (2, 3), (1, 2), ((1, 0), (0, 2))), normal(4, 5), dtypes=ALL),
        sample(pool(lax.add, 0, (3,), (2,), base_dilation=(2,), window_dilation=(3,)), normal(9), dtypes=F64),
        sample(
            pool(lax.add, 0, (2,), (3,), ((4, 5),), base_dilation=(3,), window_dilation=(2,)), normal(4), dtypes=F64
        ),
        sample(pool(lax.add, 0, (2,), (2,), ((-1, -2),)), normal(8), dtypes=F64),
        sample(pool(lax.add, 0, (5,), (1,)), normal(3), dtypes=F64),
        sample(pool(lax.add, 0, (2, 1), (1, 1), ((1, 1), (0, 0))), normal(0, 2), dtypes=F64),
        sample(pool(lax.add, 0, (), ()), normal(), dtypes=F64),
    ],
    lax.reduce_window_max_p: extremum(lax.max, -np.inf, REAL),
    lax.reduce_window_min_p: extremum(lax.min, np.inf, F64),
    # orders=0: jax has no reverse derivative of windows with a function of the user's.
    lax.reduce_window_p: [
        sample(pool(total, 0, (2, 2), (1, 2), ((1, 0), (0, 1))), normal(3, 4), dtypes=F64, orders=0),
        sample(pool(lax.mul, 1, (3,), (2,), base_dilation=(2,), window_dilation=(2,)), normal(5), dtypes=F64, orders=0),
        sample(
            lambda x, y: lax.reduce_window(
                (x, y), (0.0, 1.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (2,), (1,), "VALID"
            ),
            normal(4), normal(4), dtypes=F64, orders=0,
        ),
        sample(pool(total, 0, (5,), (1,)), normal(3), dtypes=F64, orders=0),
    ],
    select_and_scatter_add_p: [
        sample(
            selected(select_and_scatter_add_p, lax.ge_p, (2, 2), (2, 1), ((0, 0), (1, 0))),
            normal(2, 3), distinct(4, 3), dtypes=WIDE,
        ),
        sample(
            selected(select_and_scatter_add_p, lax.le_p, (3,), (1,), ((0, 0),)),
            normal(5), exactly(TIES), dtypes=F64, finite=False,
        ),
    ],
    select_and_gather_add_p: [
        sample(
            selected(select_and_gather_add_p, lax.ge_p, (2, 2), (2, 1), ((0, 0), (1, 0)), **NO_DILATION),
            normal(4, 3), distinct(4, 3), dtypes=WIDE,
        ),
        # orders=0: jax has no reverse derivative with dilation.
        sample(
            selected(
                select_and_gather_add_p, lax.le_p, (2,), (1,), ((0, 1),), base_dilation=(1,), window_dilation=(2,)
            ),
            normal(5), distinct(5), dtypes=F64, orders=0,
        ),
    ],
}  # fmt: skip
