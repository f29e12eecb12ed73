import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from jax import lax
from jax.extend.core import primitives

from tapejax.errors import RefusedPrimitive
from tapejax.rules.special import gamma_density
from tapejax.verify.check import flat, our_vjp
from tapejax.verify.samples.special import SAMPLES
from tests.rules.harness import is_caught


def gradients(function, *args):
    """The gradients under a cotangent of ones, by our rules, in float64."""
    with jax.enable_x64(True):
        args = [jnp.asarray(arg) for arg in args]
        outputs, pullback = our_vjp(flat(function), args, [True] * len(args))
        return pullback([jnp.ones_like(outputs[0])])


@pytest.mark.parametrize(
    ("function", "arguments", "operand"),
    [
        (lambda s: lax.zeta(s, 1.5), [2.0], "s"),
        (lambda m: lax.polygamma(m, 1.5), [2.0], "m"),
        (lambda a: lax.betainc(a, 2.0, 0.5), [1.0], "a"),
        (lambda b: lax.betainc(2.0, b, 0.5), [1.0], "b"),
        (lambda a: gradients(lambda a: lax.igamma(a, 0.5), a)[0], [1.0], "a"),
    ],
    ids=["zeta", "polygamma", "betainc-a", "betainc-b", "igamma-twice"],
)
def test_an_unknown_derivative_is_refused(function, arguments, operand):
    with pytest.raises(RefusedPrimitive, match=f"with respect to its operand `{operand}`"):
        gradients(function, *arguments)


def test_zeta_agrees_with_polygamma():
    q = np.array([0.7, 1.5, 3.0])
    (by_zeta,) = gradients(lambda q: lax.zeta(jnp.full_like(q, 2), q), q)
    (by_polygamma,) = gradients(lambda q: lax.polygamma(jnp.full_like(q, 1), q), q)  # psi'(q) = zeta(2, q)
    np.testing.assert_allclose(by_zeta, by_polygamma, rtol=1e-12)


def test_densities_at_the_edge_of_their_range():
    # jax: nan, as 0 * log(0).
    one, two = (lambda x, n=n: jnp.full_like(x, n) for n in (1, 2))
    np.testing.assert_allclose(gradients(lambda x: lax.igamma(one(x), x), 0.0), [1.0])
    np.testing.assert_allclose(gradients(lambda x: lax.betainc(one(x), two(x), x), 0.0), [2.0])
    np.testing.assert_allclose(gradients(lambda x: lax.betainc(two(x), one(x), x), 1.0), [2.0])


def test_mixed_second_derivative_of_igamma_at_one():
    # d/da of the density x**(a-1) * exp(-x) / gamma(a) at a = 1.
    x = 0.5
    (mixed,) = gradients(lambda a: gradients(lambda x: lax.igamma(a, x), jnp.asarray(x))[0], 1.0)
    np.testing.assert_allclose(mixed, np.exp(-x) * (np.log(x) + np.euler_gamma), rtol=1e-12)


def test_bessel_i1e_bends_on_both_sides_of_zero():
    # i1e(x) = x / 2 - x * |x| / 2 + ...; jax: 0 within an eps of zero.
    first = lambda x: gradients(lax.bessel_i1e, x)[0]
    np.testing.assert_allclose(gradients(first, np.array([1e-300, -1e-18, 0.0]))[0], [-1, 1, 0], atol=1e-14)


def test_a_draw_moves_with_its_shape_parameter():
    # Implicit differentiation of F(draw; a) = const, with scipy's F.
    a = np.array([0.5, 1.0, 3.0])
    draw = lambda a: jax.random.gamma(jax.random.key(5), a)
    with jax.enable_x64(True):
        x = np.asarray(draw(jnp.asarray(a)))
    step = 1e-5
    by_a = (scipy.special.gammainc(a + step, x) - scipy.special.gammainc(a - step, x)) / (2 * step)
    density = x ** (a - 1) * np.exp(-x) / scipy.special.gamma(a)
    np.testing.assert_allclose(gradients(draw, a)[0], -by_a / density, rtol=1e-6)


MUTANTS = {
    "zeta: missing factor": (lax.zeta_p, "s q", lambda ct, out, s, q: (None, -ct * lax.zeta(s + 1, q))),
    "polygamma: order": (lax.polygamma_p, "m x", lambda ct, out, m, x: (None, ct * lax.polygamma(m, x))),
    "igammac: sign": (
        lax.igammac_p,
        "a x",
        lambda ct, out, a, x: (ct * lax.igamma_grad_a(a, x), ct * gamma_density(a, x)),
    ),
    "igamma_grad_a: only the density": (
        lax.igamma_grad_a_p,
        "a x",
        lambda ct, out, a, x: (None, ct * gamma_density(a, x)),
    ),
    "bessel_i0e: not scaled": (lax.bessel_i0e_p, "x", lambda ct, out, x: (ct * lax.bessel_i1e(x),)),
    "erf_inv: sign in the exponent": (lax.erf_inv_p, "out", lambda ct, out, x: (ct * 0.8862 * lax.exp(-out * out),)),
    "random_gamma: of the logarithm": (
        primitives.random_gamma_p,
        "out a",
        lambda ct, out, key, a, *, log_space: (None, ct * lax.random_gamma_grad(a, lax.abs(out))),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_caught(mutant, monkeypatch):
    assert is_caught(monkeypatch, *MUTANTS[mutant], SAMPLES)
