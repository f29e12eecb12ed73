"""Samples: special. The operands without a derivative are closed over."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives

from tapejax.verify.samples.base import REAL, WIDE, away_from_zero, exactly, normal, positive, sample, uniform


def _at(function, *points, orders=1):
    return sample(function, exactly(points), dtypes=("float64",), finite=False, orders=orders)


def _with(function, *first, orders=2, dtypes=("float64",), recipe=positive, **options):
    """A function of its last operand, the others fixed to scalars."""
    fill = lambda x: [lax.full_like(x, value) for value in first]
    return sample(lambda x: function(*fill(x), x), recipe(3), dtypes=dtypes, orders=orders, **options)


def _draw(draw, recipe, dtypes=("float64",)):
    # jax cannot differentiate a draw twice, and by rejection its path has jumps: no finite differences.
    return sample(lambda a: draw(jax.random.key(3), a), recipe, dtypes=dtypes, orders=1, finite=False)


_unit = lambda *shape: uniform(0.1, 0.9, *shape)

SAMPLES = {
    lax.lgamma_p: [
        sample(lax.lgamma, positive(2, 1, 2)),
        sample(lax.lgamma, exactly([-0.5, -1.3, 30.0]), dtypes=("float64",)),
        sample(lax.lgamma, normal(0), dtypes=("float64",), orders=1, finite=False),
    ],
    lax.digamma_p: [sample(lax.digamma, positive(3)), sample(lax.digamma, exactly(20.0), dtypes=("float64",))],
    lax.polygamma_p: [_with(lax.polygamma, 1.0), _with(lax.polygamma, 3.0)],
    # jax has no derivative of zeta: finite differences judge.
    lax.zeta_p: [_with(lax.zeta, 2.0, orders=0), _with(lax.zeta, 3.5, orders=0)],
    # With respect to a jax has no second derivative.
    lax.igamma_p: [
        sample(lax.igamma, positive(3), positive(3), dtypes=REAL, orders=1),
        sample(lax.igamma, positive(2, 1), positive(1, 3), dtypes=("float64",), orders=1),
        _with(lax.igamma, 1.0),
        _with(lax.igamma, 8.0),
        _at(lambda x: lax.igamma(lax.full_like(x, 2), x), 0.0, np.inf),
    ],
    lax.igammac_p: [
        sample(lax.igammac, positive(3), positive(3), dtypes=("float64",), orders=1),
        _with(lax.igammac, 2.5),
    ],
    lax.igamma_grad_a_p: [_with(lax.igamma_grad_a, 1.0, orders=0), _with(lax.igamma_grad_a, 2.5, orders=0)],
    lax.regularized_incomplete_beta_p: [
        _with(lax.betainc, 2.0, 3.0, recipe=_unit, dtypes=("float64", "bfloat16")),
        _with(lax.betainc, 0.5, 1.0, recipe=_unit),
        _at(lambda x: lax.betainc(lax.full_like(x, 2), lax.full_like(x, 3), x), 0.0, 1.0),
    ],
    primitives.random_gamma_p: [
        _draw(jax.random.gamma, positive(4), dtypes=WIDE),
        _draw(jax.random.loggamma, exactly([1e-3, 0.02, 1.5]), dtypes=WIDE),
    ],
    lax.bessel_i0e_p: [sample(lax.bessel_i0e, away_from_zero(3)), _at(lax.bessel_i0e, 0.0, 1e-9, 20.0)],
    lax.bessel_i1e_p: [
        sample(lax.bessel_i1e, away_from_zero(3)),
        _at(lax.bessel_i1e, 0.0, -0.0, -20.0, orders=2),
        _at(lax.bessel_i1e, 1e-300, -1e-16),
    ],
    lax.erf_inv_p: [
        sample(lax.erf_inv, uniform(-0.9, 0.9, 3)),
        _at(lax.erf_inv, 0.0, 0.999999, 1.0),
    ],
    # Compositions as jax.scipy makes them.
    lax.exp_p: [
        sample(lambda x, y: jnp.exp(jax.scipy.special.betaln(x, y)), positive(3), positive(3), dtypes=("float64",))
    ],
}
