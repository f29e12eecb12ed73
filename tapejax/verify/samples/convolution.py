"""Samples: convolution."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.verify.samples.base import ALL, WIDE, normal, sample

FLOAT64 = ("float64",)


def conv(strides, padding, **options):
    return lambda x, w: lax.conv_general_dilated(x, w, strides, padding, **options)


SAMPLES = {
    lax.conv_general_dilated_p: [
        sample(conv((1,), "SAME"), normal(2, 3, 5), normal(4, 3, 3), dtypes=ALL),
        sample(conv((2, 1), [(1, 0), (0, 2)]), normal(2, 2, 5, 4), normal(3, 2, 2, 3), dtypes=("float64", "bfloat16")),
        sample(conv((1, 2, 1), "VALID"), normal(1, 2, 3, 4, 2), normal(2, 2, 2, 2, 1), dtypes=FLOAT64),
        sample(conv((), []), normal(2, 3), normal(4, 3), dtypes=FLOAT64),
        # Strides that leave part of the input unread, dilations on both sides, padding of both signs.
        sample(
            conv((3, 2), [(-1, 2), (1, -2)], lhs_dilation=(2, 1), rhs_dilation=(1, 2)),
            normal(2, 2, 6, 7), normal(3, 2, 2, 3), dtypes=("float64", "complex128"),
        ),
        sample(
            conv((2,), [(3, -1)], lhs_dilation=(3,), rhs_dilation=(2,)),
            normal(1, 1, 4), normal(1, 1, 2), dtypes=FLOAT64,
        ),
        # Groups of features and of the batch.
        sample(conv((2,), [(1, 1)], feature_group_count=2), normal(2, 4, 5), normal(6, 2, 3), dtypes=WIDE),
        sample(
            conv((1, 1), "SAME", feature_group_count=3, dimension_numbers=("NHWC", "HWIO", "NHWC")),
            normal(2, 3, 3, 3), normal(2, 2, 1, 6), dtypes=FLOAT64,
        ),
        sample(conv((2,), [(1, 1)], batch_group_count=2), normal(4, 3, 5), normal(6, 3, 2), dtypes=WIDE),
        sample(
            conv((1, 2), [(0, 1), (1, 1)], batch_group_count=3, dimension_numbers=("HWNC", "IHWO", "CHWN")),
            normal(3, 4, 6, 2), normal(2, 2, 3, 3), dtypes=FLOAT64,
        ),
        # Layouts in which batch, features and space come in any order.
        sample(
            conv((1, 2), "SAME", dimension_numbers=("HNWC", "OHIW", "WCHN")),
            normal(3, 2, 4, 5), normal(3, 2, 5, 3), dtypes=FLOAT64,
        ),
        sample(
            conv((1,), "SAME", dimension_numbers=("CNH", "HOI", "HNC")),
            normal(2, 3, 4), normal(3, 5, 2), dtypes=FLOAT64,
        ),
        sample(conv((1,), "VALID"), normal(2, 3, 2), normal(4, 3, 3), dtypes=FLOAT64),  # an empty result
        sample(conv((1,), "SAME"), normal(0, 3, 4), normal(2, 3, 3), dtypes=FLOAT64),
        sample(
            conv((1,), "SAME", preferred_element_type=np.float32), normal(2, 3, 5), normal(4, 3, 3), dtypes=("bfloat16",)
        ),
        sample(lambda x, y: jnp.convolve(x, y, "same"), normal(5), normal(3), dtypes=("float64", "complex128")),
        sample(lambda x, y: lax.conv_transpose(x, y, (2,), "SAME"), normal(1, 4, 2), normal(3, 2, 2), dtypes=FLOAT64),
    ],
}  # fmt: skip
