"""Samples: elementwise. Every function once on all its dtypes; shapes and kinks where they matter."""

import numpy as np
from jax import lax

from tapejax.verify.samples.base import ALL, COMPLEX, REAL, away_from_zero, exactly, normal, positive, sample, uniform


def _everywhere(function, recipe=normal, dtypes=ALL, **options):
    """A sample with an empty axis beside one with an axis of size 1."""
    return [
        sample(function, recipe(2, 1, 3), dtypes=dtypes, **options),
        sample(function, recipe(2, 0), dtypes=("float64",), orders=1, finite=False),
    ]


def _plain(function, recipe=normal, dtypes=(*REAL, "complex128"), **options):
    return [sample(function, recipe(5), dtypes=dtypes, **options)]


def _between(low, high):
    return lambda *shape: uniform(low, high, *shape)


def _at(function, *points):
    """Edge points, where the value or the slope is not finite, or is a choice."""
    return [sample(function, exactly(points), dtypes=("float64",), finite=False, orders=1)]


SAMPLES = {
    lax.exp_p: [*_everywhere(lax.exp), sample(lax.exp, normal(), dtypes=ALL), *_at(lax.exp, -np.inf, 1000.0, np.nan)],
    lax.exp2_p: _plain(lax.exp2),
    lax.expm1_p: [*_plain(lax.expm1), *_at(lax.expm1, 1e-12)],
    lax.log_p: [*_plain(lax.log, away_from_zero, COMPLEX), *_plain(lax.log, positive), *_at(lax.log, 0.0, np.inf)],
    lax.log1p_p: [*_plain(lax.log1p, positive), *_at(lax.log1p, -1.0, 1e-12)],
    lax.sin_p: _everywhere(lax.sin),
    lax.cos_p: _plain(lax.cos),
    lax.tan_p: _plain(lax.tan),
    lax.asin_p: [*_plain(lax.asin, _between(-0.9, 0.9)), *_at(lax.asin, 1.0, -1.0, 2.0)],
    lax.acos_p: [*_plain(lax.acos, _between(-0.9, 0.9)), *_at(lax.acos, 1.0, -1.0)],
    lax.atan_p: _plain(lax.atan),
    lax.sinh_p: _plain(lax.sinh),
    lax.cosh_p: _plain(lax.cosh),
    lax.tanh_p: [*_plain(lax.tanh), *_at(lax.tanh, 4.0, 30.0, -np.inf)],
    lax.asinh_p: [*_plain(lax.asinh), *_at(lax.asinh, 0.0, np.inf), sample(lax.asinh, exactly(100.0))],
    # Left half plane: see the tests, jax 0.10.2 is wrong there.
    lax.acosh_p: [*_plain(lax.acosh, _between(1.5, 3.0)), *_at(lax.acosh, 1.0)],
    lax.atanh_p: [*_plain(lax.atanh, _between(-0.9, 0.9)), *_at(lax.atanh, 1.0, -1.0)],
    lax.square_p: _plain(lax.square),
    lax.sqrt_p: [*_plain(lax.sqrt, positive), *_plain(lax.sqrt, normal, COMPLEX), *_at(lax.sqrt, 0.0, np.inf, -1.0)],
    lax.rsqrt_p: [*_plain(lax.rsqrt, positive), *_plain(lax.rsqrt, normal, COMPLEX), *_at(lax.rsqrt, 0.0, np.inf)],
    lax.cbrt_p: [*_plain(lax.cbrt, away_from_zero, REAL), *_at(lax.cbrt, 0.0)],
    lax.logistic_p: [*_plain(lax.logistic), *_at(lax.logistic, 30.0, -800.0)],
    lax.erf_p: [*_plain(lax.erf, dtypes=REAL), *_at(lax.erf, 5.0)],
    lax.erfc_p: [*_plain(lax.erfc, dtypes=REAL), *_at(lax.erfc, 10.0)],
    lax.neg_p: _everywhere(lax.neg),
    lax.abs_p: [
        *_everywhere(lax.abs, away_from_zero),
        sample(lax.abs, exactly([0.0, -0.0, np.inf, -3.0]), dtypes=REAL, finite=False),
        sample(lax.abs, exactly([0.0, 3.0 + 4.0j]), dtypes=COMPLEX, orders=1),
    ],
    lax.integer_pow_p: [
        sample(lambda x, y=y: lax.integer_pow(x, y), away_from_zero(4), dtypes=ALL if y in (3, -2) else REAL)
        for y in (0, 1, 2, 3, 4, -1, -2, -3)
    ]
    + [sample(lambda x: lax.integer_pow(x, 1) + lax.integer_pow(x, 2), exactly([0.0, -0.0]), finite=False)]
    + _at(lambda x: lax.integer_pow(x, -1), 0.0),
    # These came with jax 0.12; without them the same function is made of other primitives.
    "log2": _plain(getattr(lax, "log2", lambda x: lax.log(x) / np.log(2)), positive),
    "one_minus_square": _plain(getattr(lax, "one_minus_square", lambda x: 1 - x * x)),
}
