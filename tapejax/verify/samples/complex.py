"""Samples: complex. Real recipes make the real operands of `complex` and `conj`."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.verify.samples.base import COMPLEX, WIDE, away_from_zero, exactly, normal, sample


def _parts(function):
    return [
        sample(function, normal(2, 3), dtypes=COMPLEX),
        sample(function, normal(), dtypes=("complex128",)),
        sample(function, normal(2, 0), dtypes=("complex128",), orders=1),
    ]


SAMPLES = {
    lax.real_p: [*_parts(lax.real), sample(lambda x: jnp.real(jnp.exp(x * x)), normal(3), dtypes=COMPLEX)],
    lax.imag_p: [*_parts(lax.imag), sample(lambda x: jnp.imag(jnp.sin(x) * x), normal(3), dtypes=COMPLEX)],
    lax.complex_p: [
        sample(lax.complex, normal(2, 3), normal(2, 3), dtypes=WIDE),
        sample(lax.complex, normal(2, 1), normal(1, 3), dtypes=("float64",)),
        sample(lax.complex, normal(), normal(3), dtypes=("float64",)),
        sample(lambda x, y: jnp.abs(jnp.exp(lax.complex(x, y) * (1 + 2j))), normal(3), normal(3), dtypes=("float64",)),
    ],
    lax.conj_p: [
        *_parts(lax.conj),
        sample(lambda x: lax.conj(x), normal(3), dtypes=WIDE),  # real in, complex out
        sample(lambda x: lax.conj(x) * x + lax.conj(lax.sin(x)), normal(3), dtypes=COMPLEX),
    ],
    # Functions between the real and the complex numbers, and real operands among complex ones.
    lax.abs_p: [
        sample(lambda x: lax.abs(x) * lax.real(lax.log(x)), away_from_zero(3), dtypes=COMPLEX),
        sample(lambda x: jnp.angle(x), away_from_zero(3), dtypes=COMPLEX),
        sample(lambda x: lax.abs(lax.complex(x, 0 * x)), exactly([3.0, -2.0]), dtypes=WIDE, orders=1),
    ],
    lax.mul_p: [sample(lambda x: x * np.array([1 + 2j, 3.0]), normal(2), dtypes=("float64",))],
}
