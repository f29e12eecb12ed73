"""Rules of one-operand elementwise primitives: a table. The slope's argument is what the tape keeps."""

import math

import jax.numpy as jnp

from tapejax.ground import compat
from tapejax.rules.registry import elementwise, formula
from tapejax.rules.terms import later, lax

one_minus_square = later(compat.one_minus_square)

elementwise(lax.exp_p, lambda out: out)
elementwise(lax.exp2_p, lambda out: math.log(2) * out)
elementwise(lax.expm1_p, lambda x: lax.exp(x))  # out + 1 is 0 where exp(x) is not
elementwise(lax.log_p, lambda x: 1 / x)
elementwise(lax.log1p_p, lambda x: 1 / (1 + x))
elementwise("log2", lambda x: 1 / (math.log(2) * x))  # since jax 0.12

elementwise(lax.sin_p, lambda x: lax.cos(x))
elementwise(lax.cos_p, lambda x: -lax.sin(x))
elementwise(lax.tan_p, lambda out: 1 + out * out)
elementwise(lax.asin_p, lambda x: lax.rsqrt(one_minus_square(x)))
elementwise(lax.acos_p, lambda x: -lax.rsqrt(one_minus_square(x)))
elementwise(lax.atan_p, lambda x: 1 / (1 + x * x))

elementwise(lax.sinh_p, lambda x: lax.cosh(x))
elementwise(lax.cosh_p, lambda x: lax.sinh(x))
elementwise(lax.tanh_p, lambda out: one_minus_square(out))
elementwise(lax.asinh_p, lambda x: rsqrt_one_plus_square(x))
# Two roots, since rsqrt(x * x - 1) has the wrong sign in the left half of the complex plane.
elementwise(lax.acosh_p, lambda x: lax.rsqrt(x - 1) * lax.rsqrt(x + 1))
elementwise(lax.atanh_p, lambda x: 1 / one_minus_square(x))

elementwise(lax.square_p, lambda x: 2 * x)
elementwise("one_minus_square", lambda x: -2 * x)  # since jax 0.12
elementwise(lax.sqrt_p, lambda out: 0.5 / out)
elementwise(lax.rsqrt_p, lambda out: -0.5 * out * (out * out))
elementwise(lax.cbrt_p, lambda out: 1 / (3 * (out * out)))
elementwise(lax.logistic_p, lambda out: out * (1 - out))

elementwise(lax.erf_p, lambda x: 2 / math.sqrt(math.pi) * lax.exp(-(x * x)))
elementwise(lax.erfc_p, lambda x: -2 / math.sqrt(math.pi) * lax.exp(-(x * x)))


def rsqrt_one_plus_square(x):
    """1 / sqrt(1 + x * x), also where x * x overflows (in float16 that is from 256 on)."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        # Two roots, made of parts: a zero keeps its sign, which says on which side of the branch cut x is.
        real, imag = lax.real(x), lax.imag(x)
        return lax.rsqrt(lax.complex(1 - imag, real)) * lax.rsqrt(lax.complex(1 + imag, -real))
    half = jnp.finfo(x.dtype).maxexp // 2
    large = lax.abs(x) > 2.0 ** (half - 1)
    scale = lax.select(large, lax.full_like(x, 2.0 ** -(half + 1)), lax.full_like(x, 1))
    scaled = scale * x
    return scale * lax.rsqrt(scale * scale + scaled * scaled)


@formula(lax.neg_p, cheap=True)
def neg(ct, out, x):
    """out = -x"""
    return (-ct,)


@formula(lax.abs_p, saves="x", cheap=True)
def abs(ct, out, x):
    """out = |x|; the slope at 0 is 1 for real x, as in jax, and 0 for complex x"""
    if not jnp.issubdtype(x.dtype, jnp.complexfloating):
        return (lax.select(x >= 0, ct, -ct),)
    length = lax.abs(x)
    length = lax.select(length == 0, lax.full_like(length, 1), length)
    return (lax.complex(ct / length, lax.full_like(ct, 0)) * lax.conj(x),)


@formula(lax.integer_pow_p, saves="x", cheap=True)
def integer_pow(ct, out, x, *, y):
    """out = x ** y for a fixed integer y"""
    if y == 0:
        return (None,)
    return (ct * (2 * x if y == 2 else y * lax.integer_pow(x, y - 1)),)
