"""Samples: arithmetic. Operands of one shape, of mixed ranks, with axes of size 1; ties and edge points."""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives

from tapejax.verify.samples.base import (
    ALL,
    COMPLEX,
    REAL,
    WIDE,
    away_from_zero,
    distinct,
    exactly,
    integers,
    normal,
    positive,
    sample,
)


def _pairs(function, recipe=normal, dtypes=ALL):
    """Operands of one shape, of mixed rank, a scalar, a literal, and with an empty axis."""
    return [
        sample(function, recipe(2, 3), recipe(2, 3), dtypes=dtypes),
        sample(function, recipe(2, 1), recipe(1, 3), dtypes=("float64",)),
        sample(function, recipe(), recipe(3), dtypes=("float64",)),
        sample(lambda x, y: function(function(x, 1.5), y), recipe(3), recipe(3), dtypes=("float64",)),
        sample(function, recipe(2, 0), recipe(2, 0), dtypes=("float64",), orders=1, finite=False),
    ]


def _at(function, x, y, orders=1):
    """Edge points, where the value or the slope is not finite, or is a choice."""
    return sample(function, exactly(x), exactly(y), dtypes=("float64",), finite=False, orders=orders)


_ties = ([0.0, 1.0, 1.0, np.inf, np.nan, -0.0], [0.0, 1.0, 2.0, np.inf, 1.0, 0.0])
_bounds = ([-1.0, 0.5, 0.5, 1.0, -1.0, 0.0], [-1.0, 0.0, 0.7, 2.0, 0.0, 0.0], [1.0, 2.0, 0.7, 1.0, 1.0, 0.0])

SAMPLES = {
    lax.add_p: [*_pairs(lax.add), sample(lambda x, y: x + y, normal(2, 3), normal(3), dtypes=ALL)],
    primitives.add_jaxvals_p: [sample(primitives.add_jaxvals_p.bind, normal(3), normal(3), dtypes=ALL)],
    lax.sub_p: _pairs(lax.sub)[:2],
    lax.mul_p: [
        *_pairs(lax.mul),
        sample(lambda x, y: x * y, normal(2, 3), normal(3), dtypes=ALL),
        sample(lambda x: x * x, normal(3), dtypes=ALL),
        sample(
            lambda x, y: lax.mul(x, y, out_dtype=jnp.float32), normal(3), normal(3), dtypes=("bfloat16",), finite=False
        ),
    ],
    lax.div_p: [
        *_pairs(lax.div, away_from_zero),
        _at(lax.div, [1.0, 0.0, -1.0, 1.0, 0.0, np.inf], [0.0, 0.0, 0.0, np.inf, 2.0, np.inf]),
    ],
    lax.rem_p: [
        sample(lax.rem, exactly([5.3, -5.3, 5.3, -5.3, 0.4]), exactly([2.0, 2.0, -2.0, -2.0, 2.0])),
        sample(lax.rem, exactly([[5.3], [-0.7]]), exactly([[2.0, 0.25, -0.3]]), dtypes=("float64",)),
        _at(lax.rem, [6.0, -6.0, 0.0], [2.0, 2.0, 2.0]),
    ],
    lax.pow_p: [
        *_pairs(lax.pow, positive),
        sample(lax.pow, away_from_zero(4), exactly([2.0, 3.0, -1.0, 0.5]), dtypes=COMPLEX),
        sample(lax.pow, away_from_zero(2, 4), integers([[2, 3, 0, -1]]), dtypes=ALL),
        sample(lambda x: lax.pow(x, jnp.int32(3)), away_from_zero(3), dtypes=("float64",)),
        # At 0: nan where y = 0 and the exponent is a float, 0 where it is an integer; both as in jax.
        _at(lax.pow, [0.0, 0.0, 0.0, 0.0, 0.0], [2.0, 1.0, 0.5, -1.0, 0.0]),
        sample(lax.pow, exactly([0.0, 0.0, 0.0, 2.0]), integers([0, 1, 2, 0]), dtypes=WIDE, finite=False, orders=1),
        _at(lax.pow, [-2.0, -2.0, 1.0, np.inf], [2.0, 0.5, np.inf, 2.0]),
    ],
    lax.max_p: [
        *_pairs(lax.max, distinct, REAL),
        _at(lax.max, *_ties),
        sample(lambda x: jnp.maximum(x, 0.0), exactly([-1.0, 0.0, 2.0]), finite=False),
    ],
    lax.min_p: [*_pairs(lax.min, distinct, REAL)[:2], _at(lax.min, *_ties)],
    lax.atan2_p: [*_pairs(lax.atan2, away_from_zero)[:2], _at(lax.atan2, [0.0, 0.0, 1.0], [0.0, -1.0, 0.0])],
    lax.clamp_p: [
        # jax itself cannot differentiate a scalar bound: finite differences judge.
        sample(lax.clamp, exactly(-0.7), distinct(3, 3), exactly(0.8), orders=0),
        sample(lax.clamp, exactly([-0.7, 0.1, 0.2]), exactly([0.0, 0.0, 0.9]), exactly([0.8, 0.3, 0.4])),
        sample(lambda x: lax.clamp(-0.7, x, 0.8), distinct(5), dtypes=("float64",)),
        sample(lax.clamp, *(exactly(values) for values in _bounds), dtypes=WIDE, finite=False),
    ],
    lax.select_n_p: [
        sample(lax.select_n, integers([[True, False, True]], bool), normal(1, 3), normal(1, 3), dtypes=ALL),
        sample(lax.select_n, integers(True, bool), normal(2, 3), normal(2, 3), dtypes=("float64",)),
        sample(lax.select_n, integers(2), normal(3), normal(3), normal(3), dtypes=ALL),
        sample(lax.select_n, integers([2, 0, 1, 2]), normal(4), normal(4), normal(4), dtypes=("float64",)),
        # An index out of range takes the nearest case; jax 0.10.2 loses its gradient.
        sample(lax.select_n, integers([-5, 7]), normal(2), normal(2), normal(2), dtypes=("float64",), orders=0),
        sample(lax.select_n, integers([0, 0]), normal(2), dtypes=("float64",)),
        sample(lambda x: jnp.where(x > 0, x, 0.1 * x), distinct(2, 3)),
    ],
    # Since jax 0.12; without it the same function is made of other primitives.
    "polynomial": [
        sample(
            lambda x, a, b, c: _polynomial(x, [a, b, c]), normal(2, 3), normal(), normal(2, 3), normal(1, 3), dtypes=ALL
        ),
        sample(lambda x, a: _polynomial(x, [a]), normal(3), normal(3), dtypes=("float64",)),
        sample(lambda x: _polynomial(x, [0.5 * k for k in range(10)]), normal(3), dtypes=("float64",)),
    ],
}


def _polynomial(x, coefficients):
    if hasattr(lax, "polynomial"):
        return lax.polynomial(x, coefficients)
    total = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total
