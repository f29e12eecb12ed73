"""Rules of arithmetic: operands of one dtype, shapes that broadcast (the transform undoes that)."""

import jax.numpy as jnp
from jax import lax
from jax.extend.core import primitives

from tapejax.rules.registry import rule


@rule(lax.add_p, cheap=True)
def add(ct, out, x, y):
    """out = x + y"""
    return ct, ct


@rule(primitives.add_jaxvals_p, cheap=True)
def add_any(ct, out, x, y):
    """out = x + y, as jax's own backward adds cotangents"""
    return ct, ct


@rule(lax.sub_p, cheap=True)
def sub(ct, out, x, y):
    """out = x - y"""
    return ct, -ct


@rule(lax.mul_p, saves=("y", "x"), cheap=True)
def mul(ct, out, x, y, *, out_dtype=None):
    """out = x * y, in out_dtype where that is given"""
    if out_dtype is None:
        return ct * y, ct * x
    times = lambda other: ct * lax.convert_element_type(other, out_dtype)
    return lax.convert_element_type(times(y), x.dtype), lax.convert_element_type(times(x), y.dtype)


@rule(lax.div_p, saves=("y", "out y"), cheap=True)
def div(ct, out, x, y):
    """out = x / y"""
    return ct / y, -ct * out / y


@rule(lax.rem_p, saves=("", "out x y"), cheap=True)
def rem(ct, out, x, y):
    """out = x - y * trunc(x / y)"""
    # The quotient is taken from out: x / y may round up to an integer it does not reach.
    return ct, -ct * lax.round((x - out) / y, lax.RoundingMethod.TO_NEAREST_EVEN)


@rule(lax.pow_p, saves=("x y", "out x"), cheap=True)
def pow(ct, out, x, y):
    """out = x ** y"""
    if jnp.issubdtype(y.dtype, jnp.integer):
        lower = lax.pow(x, lax.select(lax.eq(y, lax.full_like(y, 0)), lax.full_like(y, 0), y - 1))
        return ct * (lax.convert_element_type(y, x.dtype) * lower), None
    safe = lax.select(lax.eq(x, lax.full_like(x, 0)), lax.full_like(x, 1), x)
    return ct * (y * lax.pow(x, y - 1)), ct * (lax.log(safe) * out)


@rule(lax.max_p, saves="x y", cheap=True)
def max(ct, out, x, y):
    """out = the larger of x and y"""
    largest = lax.max(x, y)
    return ct * share(largest, x, y), ct * share(largest, y, x)


@rule(lax.min_p, saves="x y", cheap=True)
def min(ct, out, x, y):
    """out = the smaller of x and y"""
    smallest = lax.min(x, y)
    return ct * share(smallest, x, y), ct * share(smallest, y, x)


def share(out, x, y):
    """How much of the choice `out` came from x: 1, 0, or 1/2 where x and y are equal."""
    is_out = lambda value: lax.convert_element_type(lax.eq(value, out), out.dtype)
    return is_out(x) * (1 - 0.5 * is_out(y))


@rule(lax.atan2_p, saves="x y", cheap=True)
def atan2(ct, out, x, y):
    """out = the angle of the point (y, x)"""
    over_square = ct / (lax.square(x) + lax.square(y))
    return over_square * y, -over_square * x


@rule(lax.clamp_p, saves=("low x high", "low x high", "low x high"), cheap=True)
def clamp(ct, out, low, x, high):
    """out = min(max(x, low), high); nothing flows where x is equal to a bound, as in jax"""
    where = lambda chosen: lax.select(chosen, ct, lax.full_like(ct, 0))
    return (
        where(lax.gt(low, x) & lax.lt(low, high)),
        where(lax.gt(x, low) & lax.lt(x, high)),
        where(lax.lt(high, lax.max(low, x))),
    )


@rule(lax.select_n_p, saves="which", cheap=True)
def select_n(ct, out, which, *cases):
    """out = cases[which]; an index out of range takes the nearest case"""
    if len(cases) == 1:
        return None, ct
    nothing = lax.full_like(ct, 0)
    if which.dtype == bool:
        return None, lax.select(which, nothing, ct), lax.select(which, ct, nothing)
    which = jnp.clip(which, 0, len(cases) - 1)
    return None, *(lax.select(which == i, ct, nothing) for i in range(len(cases)))


@rule("polynomial", saves="x coefficients", cheap=True)  # since jax 0.12
def polynomial(ct, out, x, *coefficients, unroll=None):
    """out = coefficients[0] + coefficients[1] * x + coefficients[2] * x**2 + ..."""
    slope = lax.full_like(ct, 0)
    for k in range(len(coefficients) - 1, 0, -1):
        slope = slope * x + k * coefficients[k]
    powers = [ct]
    for _ in coefficients[1:]:
        powers.append(powers[-1] * x)
    return ct * slope, *powers
