"""Rules of arithmetic: operands of one dtype, shapes that broadcast (the transform undoes that)."""

import jax.numpy as jnp
from jax.extend.core import primitives

from tapejax.rules import registry
from tapejax.rules.registry import formula
from tapejax.rules.terms import later, lax

zeros_like = later(registry.zeros_like)


@formula(lax.add_p, cheap=True)
def add(ct, out, x, y):
    """out = x + y"""
    return ct, ct


@formula(primitives.add_jaxvals_p, cheap=True)
def add_any(ct, out, x, y):
    """out = x + y, as jax's own backward adds cotangents"""
    return ct, ct


@formula(lax.sub_p, cheap=True)
def sub(ct, out, x, y):
    """out = x - y"""
    return ct, -ct


@formula(lax.mul_p, saves=("y", "x"), cheap=True)
def mul(ct, out, x, y, *, out_dtype=None):
    """out = x * y, in out_dtype where that is given"""
    if out_dtype is not None:
        return (ct * y.astype(out_dtype)).astype(x.dtype), (ct * x.astype(out_dtype)).astype(y.dtype)
    return ct * y, ct * x


@formula(lax.div_p, saves=("y", "out y"), cheap=True)
def div(ct, out, x, y):
    """out = x / y"""
    ct_x = ct / y
    return ct_x, -(ct_x * out)


@formula(lax.rem_p, saves=("", "out x y"), cheap=True)
def rem(ct, out, x, y):
    """out = x - y * trunc(x / y)"""
    # The quotient is taken from out: x / y may round up to an integer it does not reach.
    return ct, -ct * lax.round((x - out) / y, lax.RoundingMethod.TO_NEAREST_EVEN)


@formula(lax.pow_p, saves=("x y", "out x"), cheap=True)
def pow(ct, out, x, y):
    """out = x ** y"""
    if jnp.issubdtype(y.dtype, jnp.integer):
        lower = lax.pow(x, lax.select(y == 0, lax.full_like(y, 0), y - 1))
        return ct * (y.astype(x.dtype) * lower), None
    safe = lax.select(x == 0, lax.full_like(x, 1), x)
    return ct * (y * lax.pow(x, y - 1)), ct * (lax.log(safe) * out)


@formula(lax.max_p, saves="x y", cheap=True)
def max(ct, out, x, y):
    """out = the larger of x and y"""
    return shared(ct, lax.max(x, y), x, y)


@formula(lax.min_p, saves="x y", cheap=True)
def min(ct, out, x, y):
    """out = the smaller of x and y"""
    return shared(ct, lax.min(x, y), x, y)


def shared(ct, out, x, y):
    """ct for the one of x and y that the choice `out` came from; half for each where they are equal."""
    is_x, is_y = (x == out).astype(ct.dtype), (y == out).astype(ct.dtype)
    return ct * (is_x * (1 - 0.5 * is_y)), ct * (is_y * (1 - 0.5 * is_x))


@formula(lax.atan2_p, saves="x y", cheap=True)
def atan2(ct, out, x, y):
    """out = the angle of the point (y, x)"""
    over_square = ct / (lax.square(x) + lax.square(y))
    return over_square * y, -(over_square * x)


@formula(lax.clamp_p, saves=("low x high", "low x high", "low x high"), cheap=True)
def clamp(ct, out, low, x, high):
    """out = min(max(x, low), high); nothing flows where x is equal to a bound, as in jax"""
    nothing = zeros_like(ct)
    return (
        lax.select((low > x) & (low < high), ct, nothing),
        lax.select((x > low) & (x < high), ct, nothing),
        lax.select(high < lax.max(low, x), ct, nothing),
    )


@formula(lax.select_n_p, saves="which", cheap=True)
def select_n(ct, out, which, *cases):
    """out = cases[which]; an index out of range takes the nearest case"""
    if len(cases) == 1:
        return None, ct
    nothing = zeros_like(ct)
    if which.dtype == bool:
        return None, lax.select_n(which, ct, nothing), lax.select_n(which, nothing, ct)
    which = later(jnp.clip)(which, 0, len(cases) - 1)
    return None, *(lax.select(which == i, ct, nothing) for i in range(len(cases)))


@formula("polynomial", saves="x coefficients", cheap=True)  # since jax 0.12
def polynomial(ct, out, x, *coefficients, unroll=None):
    """out = coefficients[0] + coefficients[1] * x + coefficients[2] * x**2 + ..."""
    slope = lax.full_like(ct, 0)
    for k in range(len(coefficients) - 1, 0, -1):
        slope = slope * x + k * coefficients[k]
    powers = [ct]
    for _ in coefficients[1:]:
        powers.append(powers[-1] * x)
    return ct * slope, *powers
