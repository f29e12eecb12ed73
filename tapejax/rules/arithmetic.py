"""Rules of arithmetic: operands of one dtype, shapes that broadcast (the transform undoes that)."""

import jax.numpy as jnp
from jax import lax
from jax.extend.core import primitives

from tapejax.rules.numbers import minus, number, plus, times
from tapejax.rules.registry import rule, zeros_like


@rule(lax.add_p, cheap=True)
def add(ct, out, x, y):
    """out = x + y"""
    return ct, ct


@rule(primitives.add_jaxvals_p, cheap=True)
def add_any(ct, out, x, y):
    """out = x + y, as jax's own backward adds cotangents"""
    return ct, ct


@rule(lax.sub_p, cheap=True)
def sub(ct, out, x, y, *, wanted=(True, True)):
    """out = x - y"""
    return ct, lax.neg(ct) if wanted[1] else None


@rule(lax.mul_p, saves=("y", "x"), cheap=True)
def mul(ct, out, x, y, *, wanted=(True, True), out_dtype=None):
    """out = x * y, in out_dtype where that is given"""

    def product(other, dtype):
        if out_dtype is None:
            return lax.mul(ct, other)
        return lax.convert_element_type(lax.mul(ct, lax.convert_element_type(other, out_dtype)), dtype)

    return product(y, x.dtype) if wanted[0] else None, product(x, y.dtype) if wanted[1] else None


@rule(lax.div_p, saves=("y", "out y"), cheap=True)
def div(ct, out, x, y, *, wanted=(True, True)):
    """out = x / y"""
    ct_x = lax.div(ct, y)
    return ct_x, lax.neg(lax.mul(ct_x, out)) if wanted[1] else None


@rule(lax.rem_p, saves=("", "out x y"), cheap=True)
def rem(ct, out, x, y):
    """out = x - y * trunc(x / y)"""
    # The quotient is taken from out: x / y may round up to an integer it does not reach.
    return ct, -ct * lax.round((x - out) / y, lax.RoundingMethod.TO_NEAREST_EVEN)


@rule(lax.pow_p, saves=("x y", "out x"), cheap=True)
def pow(ct, out, x, y, *, wanted=(True, True)):
    """out = x ** y"""
    ct_x = ct_y = None
    if jnp.issubdtype(y.dtype, jnp.integer):
        lower = lax.pow(x, lax.select(lax.eq(y, number(0, y)), lax.full_like(y, 0), plus(-1, y)))
        return lax.mul(ct, lax.mul(lax.convert_element_type(y, x.dtype), lower)), None
    if wanted[0]:
        ct_x = lax.mul(ct, lax.mul(y, lax.pow(x, plus(-1, y))))
    if wanted[1]:
        safe = lax.select(lax.eq(x, number(0, x)), lax.full_like(x, 1), x)
        ct_y = lax.mul(ct, lax.mul(lax.log(safe), out))
    return ct_x, ct_y


@rule(lax.max_p, saves="x y", cheap=True)
def max(ct, out, x, y, *, wanted=(True, True)):
    """out = the larger of x and y"""
    return shared(ct, lax.max(x, y), x, y, wanted)


@rule(lax.min_p, saves="x y", cheap=True)
def min(ct, out, x, y, *, wanted=(True, True)):
    """out = the smaller of x and y"""
    return shared(ct, lax.min(x, y), x, y, wanted)


def shared(ct, out, x, y, wanted):
    """ct for the one of x and y that the choice `out` came from; half for each where they are equal."""
    is_x, is_y = [lax.convert_element_type(lax.eq(value, out), out.dtype) for value in (x, y)]
    share = lambda mine, other: lax.mul(ct, lax.mul(mine, minus(1, times(0.5, other))))
    return share(is_x, is_y) if wanted[0] else None, share(is_y, is_x) if wanted[1] else None


@rule(lax.atan2_p, saves="x y", cheap=True)
def atan2(ct, out, x, y):
    """out = the angle of the point (y, x)"""
    over_square = lax.div(ct, lax.add(lax.square(x), lax.square(y)))
    return lax.mul(over_square, y), lax.neg(lax.mul(over_square, x))


@rule(lax.clamp_p, saves=("low x high", "low x high", "low x high"), cheap=True)
def clamp(ct, out, low, x, high, *, wanted=(True, True, True)):
    """out = min(max(x, low), high); nothing flows where x is equal to a bound, as in jax"""
    nothing = zeros_like(ct)
    chosen = (
        lambda: lax.bitwise_and(lax.gt(low, x), lax.lt(low, high)),
        lambda: lax.bitwise_and(lax.gt(x, low), lax.lt(x, high)),
        lambda: lax.lt(high, lax.max(low, x)),
    )
    return [lax.select(where(), ct, nothing) if flag else None for where, flag in zip(chosen, wanted, strict=True)]


@rule(lax.select_n_p, saves="which", cheap=True)
def select_n(ct, out, which, *cases, wanted=None):
    """out = cases[which]; an index out of range takes the nearest case"""
    if len(cases) == 1:
        return None, ct
    nothing = zeros_like(ct)
    if which.dtype == bool:
        first, second = wanted[1:] if wanted else (True, True)
        ct_first = lax.select_n(which, ct, nothing) if first else None
        return None, ct_first, lax.select_n(which, nothing, ct) if second else None
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
