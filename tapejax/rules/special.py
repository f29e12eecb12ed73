"""Rules of special functions. Where an operand's derivative has no known form, asking for it is refused."""

import math

import jax.numpy as jnp
from jax.extend.core import primitives

from tapejax.errors import RefusedPrimitive
from tapejax.rules.registry import TABLE, Rule, elementwise, formula
from tapejax.rules.terms import later, lax

where = later(jnp.where)

elementwise(lax.lgamma_p, lambda x: lax.digamma(x))
elementwise(lax.digamma_p, lambda x: lax.polygamma(lax.full_like(x, 1), x))
elementwise(lax.erf_inv_p, lambda out: math.sqrt(math.pi) / 2 * lax.exp(out * out))


class PartialRule(Rule):
    """A rule that has cotangents for some of its operands only."""

    unknown: frozenset[str]

    def specialise(self, eqn, in_avals, out_avals, active_in, tools):
        for name, active in zip(self.operand_names, active_in, strict=True):
            if active and name in self.unknown:
                raise RefusedPrimitive(
                    f"`{eqn.name}` cannot be differentiated with respect to its operand `{name}`: "
                    "no closed form of that derivative is known",
                    at=eqn.line,
                    action=eqn,
                    fix=f"wrap `{name}` in jax.lax.stop_gradient, or give the function a custom_vjp",
                )
        return super().specialise(eqn, in_avals, out_avals, active_in, tools)


def partial_rule(primitive, saves, *, unknown):
    """As `formula`, for a primitive of which the operands named in `unknown` have no derivative."""

    def register(function):
        entry = PartialRule(primitive.name, function, saves, cheap=False, zeros=True, family="special", is_formula=True)
        entry.unknown = frozenset(unknown.split())
        TABLE[primitive] = entry
        return function

    return register


@partial_rule(lax.polygamma_p, saves="m x", unknown="m")
def polygamma(ct, out, m, x):
    """out = the m-th derivative of digamma at x"""
    return None, ct * lax.polygamma(m + 1, x)


@partial_rule(lax.zeta_p, saves="s q", unknown="s")
def zeta(ct, out, s, q):
    """out = 1 / q**s + 1 / (q + 1)**s + ..."""
    return None, -ct * s * lax.zeta(s + 1, q)


@formula(lax.igamma_p, saves="a x")
def igamma(ct, out, a, x):
    """out = the distribution function of Gamma(a) at x"""
    return ct * lax.igamma_grad_a(a, x), ct * gamma_density(a, x)


@formula(lax.igammac_p, saves="a x")
def igammac(ct, out, a, x):
    """out = 1 - igamma(a, x)"""
    return -ct * lax.igamma_grad_a(a, x), -ct * gamma_density(a, x)


@partial_rule(lax.igamma_grad_a_p, saves="a x", unknown="a")
def igamma_grad_a(ct, out, a, x):
    """out = the derivative of igamma(a, x) with respect to a"""
    return None, ct * gamma_density(a, x) * (lax.log(x) - lax.digamma(a))


@partial_rule(lax.regularized_incomplete_beta_p, saves="a b x", unknown="a b")
def regularized_incomplete_beta(ct, out, a, b, x):
    """out = the distribution function of Beta(a, b) at x"""
    log_beta = lax.lgamma(a) + lax.lgamma(b) - lax.lgamma(a + b)
    log_powers = (a - 1) * lax.log(unless_both_zero(a - 1, x)) + (b - 1) * lax.log1p(
        -1 + unless_both_zero(b - 1, 1 - x)
    )
    return None, None, ct * lax.exp(log_powers - log_beta)


def gamma_density(a, x):
    """x ** (a - 1) * exp(-x) / gamma(a)"""
    return lax.exp((a - 1) * lax.log(unless_both_zero(a - 1, x)) - x - lax.lgamma(a))


def unless_both_zero(power, x):
    """x, but 1 where x ** power is 0 ** 0, so that power * log(x) is 0 there and not nan."""
    return where((x == 0) & (power == 0), 1, x)


@formula(primitives.random_gamma_p, saves="out a")
def random_gamma(ct, out, key, a, *, log_space):
    """out = a draw from Gamma(a), or its logarithm"""
    if not log_space:
        return None, ct * lax.random_gamma_grad(a, out)
    tiny = jnp.finfo(out.dtype).tiny  # exp(out) may round to 0
    draw = lax.max(lax.exp(out), lax.full_like(out, tiny))
    return None, ct * lax.random_gamma_grad(a, draw) / draw


@formula(lax.bessel_i0e_p, saves="out x")
def bessel_i0e(ct, out, x):
    """out = exp(-|x|) * I0(x)"""
    return (ct * (lax.bessel_i1e(x) - lax.sign(x) * out),)


@formula(lax.bessel_i1e_p, saves="out x")
def bessel_i1e(ct, out, x):
    """out = exp(-|x|) * I1(x)"""
    sign = lax.sign(x)
    is_tiny = lax.abs(x) <= float(jnp.finfo(x.dtype).eps)
    out_over_x = where(is_tiny, 0.5 - 0.5 * sign * x, out / where(is_tiny, 1, x))
    return (ct * (lax.bessel_i0e(x) - sign * out - out_over_x),)
