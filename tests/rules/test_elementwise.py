import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tapejax.rules import elementwise as rules
from tapejax.verify.check import flat, our_vjp
from tapejax.verify.samples.elementwise import SAMPLES
from tests.rules.harness import is_caught


def slope(function, x):
    """The derivative at one point, by our rules."""
    with jax.enable_x64(True):
        x = jnp.asarray(x)
        outputs, pullback = our_vjp(flat(function), [x], [True])
        return pullback([jnp.ones_like(outputs[0])])[0]


HOLOMORPHIC = [lax.log, lax.log1p, lax.sqrt, lax.rsqrt, lax.asin, lax.acos, lax.atan, lax.asinh, lax.acosh, lax.atanh]


@pytest.mark.parametrize("function", HOLOMORPHIC, ids=lambda function: function.__name__)
def test_the_right_branch_in_every_quadrant(function):
    # jax 0.10.2 has the wrong sign for acosh in the left half plane.
    points = np.array([2 + 0.5j, -2 + 0.5j, -2 - 0.5j, 2 - 0.5j, 0.3 + 2j, -0.3 + 2j, -0.3 - 2j, 0.3 - 2j])
    with jax.enable_x64(True):
        step = 1e-6
        numeric = (function(points + step) - function(points - step)) / (2 * step)
    np.testing.assert_allclose(slope(function, points), numeric, rtol=1e-8)


def test_expm1_keeps_a_small_slope():
    np.testing.assert_allclose(slope(lax.expm1, -40.0), np.exp(-40.0), rtol=1e-14)


def test_asinh_does_not_overflow():
    np.testing.assert_allclose(slope(lax.asinh, np.float16(300)), 1 / 300, rtol=2e-3)
    np.testing.assert_allclose(slope(lax.asinh, [1e200, -1e200]), 1e-200, rtol=1e-14)
    np.testing.assert_allclose(slope(lax.asinh, 1e200 + 1e200j), 1 / (1e200 + 1e200j), rtol=1e-14)


MUTANTS = {
    "cos: sign": (lax.cos_p, "x", lambda ct, out, x, *, accuracy: (ct * lax.sin(x),)),
    "tanh: of x": (lax.tanh_p, "x", lambda ct, out, x, *, accuracy: (ct * (1 - x * x),)),
    "tanh: always positive": (lax.tanh_p, "out", lambda ct, out, x, *, accuracy: (ct * (1 + out * out),)),
    "logistic: factor": (lax.logistic_p, "out", lambda ct, out, x, *, accuracy: (ct * out,)),
    "sqrt: factor": (lax.sqrt_p, "out", lambda ct, out, x, *, accuracy: (ct / out,)),
    "rsqrt: power": (lax.rsqrt_p, "out", lambda ct, out, x, *, accuracy: (-0.5 * ct * out * out,)),
    "abs: other side at 0": (
        lax.abs_p,
        "x",
        lambda ct, out, x: rules.abs(ct, out, x) if jnp.iscomplexobj(x) else (lax.select(x > 0, ct, -ct),),
    ),
    "exp: conjugated": (lax.exp_p, "out", lambda ct, out, x, *, accuracy: (ct * jnp.conj(out),)),
    "integer_pow: exponent": (lax.integer_pow_p, "x", lambda ct, out, x, *, y: (y * ct * lax.integer_pow(x, y),)),
    "erf: missing factor": (lax.erf_p, "x", lambda ct, out, x: (ct * lax.exp(-x * x),)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_caught(mutant, monkeypatch):
    assert is_caught(monkeypatch, *MUTANTS[mutant], SAMPLES)


def test_asinh_on_either_side_of_its_branch_cut():
    """The sign of a zero says on which side: the slope there is that of the points beside."""
    for point in (complex(-0.0, 2.5), complex(0.0, 2.5), complex(-0.0, -2.5), complex(0.0, -2.5)):
        beside = point + complex(np.copysign(1e-9, point.real), 0)
        np.testing.assert_allclose(slope(lax.asinh, [point]), 1 / np.sqrt(1 + np.array([beside]) ** 2), rtol=1e-8)
