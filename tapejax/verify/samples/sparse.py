"""Samples for the rules of rules/sparse.py."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse
from jax.experimental.sparse import linalg

from tapejax.verify.samples.base import away_from_zero, normal, sample

PAIR = ("float64", "complex128")
ONE = ("float64",)
# Not in order, one place twice, one outside (padding).
PLACES = np.array([[1, 1], [0, 2], [0, 0], [0, 2], [2, 3]])
UNIQUE = PLACES[[0, 1, 2, 4]]
ROWS, COLUMNS, STARTS = np.array([0, 0, 1]), np.array([0, 2, 1]), np.array([0, 2, 3])
BATCHED = np.stack([PLACES, PLACES[::-1]])

# Up to jax 0.11 jax's second derivative of these products is wrong (compare with the dense ones).
ORDERS = 2 if jax.__version_info__ >= (0, 12) else 1

one = functools.partial(sample, dtypes=ONE)
pair = functools.partial(sample, dtypes=PAIR)
bcoo = lambda data, indices=PLACES, shape=(2, 3): sparse.BCOO((data, indices), shape=shape)
bcsr = lambda data: sparse.BCSR((data, COLUMNS, STARTS), shape=(2, 3))
coo = lambda data: sparse.COO((data, ROWS, COLUMNS), shape=(2, 3))
csr = lambda data: sparse.CSR((data, COLUMNS, STARTS), shape=(2, 3))


def dot(shape, indices, dimension_numbers):
    return lambda data, y: sparse.bcoo_dot_general(
        bcoo(jnp.sin(data), indices, shape), y, dimension_numbers=dimension_numbers
    )


def dot_sampled(indices, dimension_numbers):
    return lambda x, y: sparse.bcoo_dot_general_sampled(jnp.sin(x), y, indices, dimension_numbers=dimension_numbers)


def solve(data, b):
    """A diagonally dominant 3 x 3 matrix."""
    data = data + jnp.array([4.0, 0.0, 4.0, 0.0, 4.0])
    return linalg.spsolve(data, jnp.array([0, 2, 1, 0, 2]), jnp.array([0, 2, 3, 5]), b)


def extracted(x, places, unique):
    return sparse.bcoo_extract(bcoo(jnp.ones(len(places)), places), x, assume_unique=unique).data


# What jax gets wrong, or cannot do: finite differences are the judge.
BEYOND_JAX = {
    # Up to jax 0.11 the gradient is that of the matrix with rows and columns exchanged.
    "transposed CSR": one(lambda data, y: csr(jnp.sin(data)).T @ y, normal(3), normal(2)),
    # jax adds the cotangents of padding to the first element.
    "padded COO": one(lambda x: sparse.COO.fromdense(x * x, nse=8).data, away_from_zero(2, 3)),
    "places twice": one(lambda x: extracted(x * x, PLACES, False), normal(2, 3)),
    "places twice, in batches": one(
        lambda x: sparse.bcoo_extract(bcoo(jnp.ones((2, 5)), BATCHED, (2, 2, 3)), x * x, assume_unique=False).data,
        normal(2, 2, 3),
    ),
    "dense from CSR": one(lambda data: sparse.todense(csr(data * data)), normal(3)),
}

SAMPLES = {
    "bcoo_todense": [
        pair(lambda data: bcoo(data * data).todense(), normal(5)),
        one(lambda data: bcoo(data * data, BATCHED, (2, 2, 3)).todense(), normal(2, 5)),
        one(lambda data: bcoo(data * data, PLACES, (2, 3, 2)).todense(), normal(5, 2)),
    ],
    "bcoo_extract": [pair(lambda x: extracted(x * x, UNIQUE, True), normal(2, 3))],
    "bcoo_fromdense": [
        pair(lambda x: sparse.BCOO.fromdense(x * x, nse=7).data, away_from_zero(2, 3)),
        one(lambda x: sparse.bcoo_fromdense(x * x, nse=3, n_batch=1, n_dense=1).data, away_from_zero(2, 3, 2)),
    ],
    "bcoo_transpose": [
        one(lambda data: bcoo(data * data).T.data, normal(5)),
        one(lambda data: bcoo(data * data, PLACES, (2, 3, 4, 5)).transpose((1, 0, 3, 2)).data, normal(5, 4, 5)),
    ],
    "bcoo_sort_indices": [
        one(lambda data: bcoo(data * data).sort_indices().data, normal(5)),
        one(lambda data: bcoo(data * data, BATCHED, (2, 2, 3, 2)).sort_indices().data, normal(2, 5, 2)),
    ],
    "bcoo_sum_duplicates": [
        one(lambda data: bcoo(data * data).sum_duplicates(nse=4).data, normal(5)),
        one(lambda data: bcoo(data * data, BATCHED, (2, 2, 3, 2)).sum_duplicates(nse=3).data, normal(2, 5, 2)),
    ],
    "bcoo_dot_general": [
        pair(lambda data, y: bcoo(jnp.sin(data)) @ y, normal(5), normal(3)),
        one(lambda data, y: bcoo(jnp.sin(data)) @ y, normal(5), normal(3, 4)),
        one(lambda data, y: y @ bcoo(jnp.sin(data)), normal(5), normal(4, 2)),
        one(dot((2, 3), PLACES, (([1, 0], [0, 1]), ([], []))), normal(5), normal(3, 2)),
        one(dot((2, 2, 3), BATCHED, (([2], [1]), ([0], [0]))), normal(2, 5), normal(2, 3)),
    ],
    "bcoo_dot_general_sampled": [
        pair(dot_sampled(UNIQUE, (([1], [0]), ([], []))), normal(2, 4), normal(4, 3)),
        one(dot_sampled(UNIQUE, (([0], [1]), ([], []))), normal(4, 2), normal(3, 4)),
        one(dot_sampled(np.stack([UNIQUE] * 2), (([2], [1]), ([0], [0]))), normal(2, 2, 4), normal(2, 4, 3)),
    ],
    "bcsr_todense": [pair(lambda data: bcsr(data * data).todense(), normal(3))],
    "bcsr_extract": [one(lambda x: sparse.bcsr_extract(COLUMNS, STARTS, x * x), normal(2, 3))],
    "bcsr_fromdense": [one(lambda x: sparse.BCSR.fromdense(x * x, nse=7).data, away_from_zero(2, 3))],
    "bcsr_dot_general": [
        one(lambda data, y: bcsr(jnp.sin(data)) @ y, normal(3), normal(3)),
        one(lambda data, y: bcsr(jnp.sin(data)) @ y, normal(3), normal(3, 4)),
    ],
    "coo_matvec": [
        pair(lambda data, y: coo(jnp.sin(data)) @ y, normal(3), normal(3), orders=ORDERS),
        one(lambda data, y: coo(jnp.sin(data)).T @ y, normal(3), normal(2), orders=ORDERS),
    ],
    "coo_matmat": [one(lambda data, y: coo(jnp.sin(data)) @ y, normal(3), normal(3, 4), orders=ORDERS)],
    "csr_matvec": [pair(lambda data, y: csr(jnp.sin(data)) @ y, normal(3), normal(3), orders=ORDERS)],
    "csr_matmat": [one(lambda data, y: csr(jnp.sin(data)) @ y, normal(3), normal(3, 4), orders=ORDERS)],
    "coo_todense": [one(lambda data: coo(data * data).todense(), normal(3))],
    "csr_todense": [one(lambda data: csr(data * data).todense(), normal(3))],
    "coo_fromdense": [one(lambda x: sparse.COO.fromdense(x * x, nse=6).data, away_from_zero(2, 3))],
    "csr_fromdense": [one(lambda x: sparse.CSR.fromdense(x * x, nse=7).data, away_from_zero(2, 3))],
    "todense": [
        one(lambda data, make=make: sparse.todense(make(data * data)), normal(n))
        for make, n in ((bcoo, 5), (bcsr, 3), (coo, 3))
    ],
    "spsolve": [one(solve, normal(5), normal(3))],
}  # fmt: skip
