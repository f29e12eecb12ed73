"""Samples: products."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.verify.samples.base import ALL, fixed, integers, normal, sample


def dot(contract, batch=((), ()), **options):
    return lambda x, y: lax.dot_general(x, y, (contract, batch), **options)


def ragged(contract, rows, groups=(), batch=((), ()), **options):
    numbers = lax.RaggedDotDimensionNumbers((contract, batch), [rows], groups)
    return lambda x, y, sizes: lax.ragged_dot_general(x, y, sizes, numbers, **options)


MATMUL = ((1,), (0,))
RAMP = np.linspace(-1, 1, 12).reshape(3, 4)

SAMPLES = {
    lax.dot_general_p: [
        sample(dot(MATMUL), normal(2, 3), normal(3, 4), dtypes=ALL),
        sample(dot(((0,), (0,))), normal(3), normal(3), dtypes=ALL),
        sample(dot(((), ())), normal(), normal(), dtypes=ALL),
        sample(dot(((), ())), normal(2), normal(1, 3), dtypes=("float64",)),
        sample(dot(((0,), (1,))), normal(0, 2), normal(3, 0), dtypes=("float64",)),
        # Two batch and three contracting dimensions, in different orders on the two sides.
        sample(
            dot(((4, 0, 3), (2, 0, 4)), ((1, 5), (3, 1))),
            normal(2, 3, 4, 5, 1, 2), normal(2, 2, 1, 3, 5, 2), dtypes=("float64", "complex128"),
        ),
        sample(dot(((2, 0), (1, 3)), ((3,), (0,))), normal(2, 1, 4, 3), normal(3, 4, 5, 2), dtypes=("float64",)),
        sample(dot(MATMUL, precision=("highest", "default")), normal(2, 3), normal(3, 4), dtypes=("float64",)),
        # Narrow operands with a wide result, and the reverse.
        sample(
            dot(MATMUL, preferred_element_type=np.float32), normal(2, 3), normal(3, 4), dtypes=("bfloat16", "float16")
        ),
        sample(dot(MATMUL, preferred_element_type="bfloat16"), normal(2, 3), normal(3, 4), dtypes=("float32",)),
        # Operands of different dtypes.
        sample(dot(MATMUL), normal(2, 3), fixed(RAMP.astype("float32")), dtypes=("bfloat16", "float64")),
        sample(dot(MATMUL), normal(2, 3), fixed(RAMP + 1j * RAMP**2), dtypes=("float64",)),
        sample(dot(MATMUL), normal(2, 3), integers(RAMP * 10), dtypes=("float64", "float32")),
        sample(
            lambda x, y, z: jnp.einsum("bij,kjb,i->kb", x, y, z),
            normal(2, 3, 4), normal(3, 4, 2), normal(3), dtypes=("float64",),
        ),
    ],
    lax.linalg.symmetric_product_p: [  # jax has no derivative of it
        sample(
            lambda a, c: lax.linalg.symmetric_product(a, c, alpha=2.0, beta=0.5),
            normal(2, 3, 2), normal(2, 3, 3), dtypes=("float64",), orders=0,
        ),
    ],
    # jax has no second derivative of these, and for a summed ragged dimension not even a first.
    "ragged_dot_general": [
        sample(
            lax.ragged_dot, normal(5, 3), normal(2, 3, 4), integers([2, 3]), dtypes=("float64", "bfloat16"), orders=1
        ),
        # Rows that no group takes, and an empty group.
        sample(
            lax.ragged_dot,
            normal(5, 3), normal(3, 3, 2), integers([1, 0, 3]), dtypes=("float64", "complex128"), orders=1,
        ),
        sample(
            ragged(((3, 0), (2, 4)), 1, (0,), ((2,), (3,))),
            normal(2, 5, 2, 3), normal(2, 4, 3, 2, 2), integers([[1, 4], [3, 1]]), dtypes=("float64",), orders=1,
        ),
        sample(
            ragged(((1,), (1,)), 0, (0,), preferred_element_type=np.float32),
            normal(5, 3), normal(2, 3, 4), integers([2, 3]), dtypes=("bfloat16",), orders=1,
        ),
        sample(ragged(((0,), (0,)), 0), normal(5, 2), normal(5, 3), integers([1, 3]), dtypes=("float64",), orders=0),
        sample(
            ragged(((3, 0), (1, 2)), 0, (), ((2,), (0,))),
            normal(5, 2, 2, 3), normal(2, 3, 5, 2), integers([[[1, 3], [2, 2], [0, 1]], [[4, 1], [5, 0], [1, 1]]]),
            dtypes=("float64",), orders=0,
        ),
        sample(
            ragged(((2,), (1,)), 0, (), ((0,), (0,))),
            normal(3, 2, 2), normal(3, 2, 2), integers([1, 2]), dtypes=("float64",), orders=0,
        ),
    ],
}  # fmt: skip
