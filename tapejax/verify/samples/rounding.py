"""Samples for the rules of rules/rounding.py."""

import jax
from jax import lax

from tapejax.verify.samples.base import COMPLEX, REAL, away_from_zero, exactly, sample

# Up to jax 0.11 jax.vjp gives zero for the sign of a complex number; from 0.12 on it is right.
SIGN = COMPLEX if jax.__version_info__ >= (0, 12) else ()
# Up to jax 0.11 jax has no rule for nextafter.
NEXT = REAL if jax.__version_info__ >= (0, 12) else ()

SAMPLES = {
    lax.sign_p: [
        sample(lax.sign, away_from_zero(2, 3)),
        sample(lambda x: lax.sign(x) * x, away_from_zero(3), dtypes=REAL + SIGN),
        sample(lambda x: (lax.sign(x) * x) * x, away_from_zero(), dtypes=SIGN),
        sample(lax.sign, exactly([0.0, 1.0]), dtypes=REAL + SIGN, finite=False),
        sample(lax.sign, away_from_zero(0, 2), dtypes=("float64", *SIGN)),
    ],
    lax.nextafter_p: [
        sample(lambda x, y: lax.nextafter(x, y) * x, away_from_zero(2, 3), away_from_zero(2, 3), dtypes=NEXT),
        sample(lambda x, y: lax.nextafter(x, y) * x, away_from_zero(), away_from_zero(), dtypes=NEXT),
    ],
}
