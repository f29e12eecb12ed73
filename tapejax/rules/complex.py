"""Rules that take complex numbers apart and put them together.

Cotangents as jax has them: paired without conjugation, Re(ct * dout). Hence the minus for imaginary
parts, and hence holomorphic functions need nothing here: theirs is ct * slope, as for real numbers.
"""

import jax.numpy as jnp

from tapejax.rules.registry import formula
from tapejax.rules.terms import lax


@formula(lax.real_p, cheap=True)
def real(ct, out, x):
    """out = Re(x)"""
    return (lax.complex(ct, lax.full_like(ct, 0)),)


@formula(lax.imag_p, cheap=True)
def imag(ct, out, x):
    """out = Im(x)"""
    return (lax.complex(lax.full_like(ct, 0), -ct),)


@formula(lax.complex_p, cheap=True)
def complex(ct, out, x, y):
    """out = x + 1j * y"""
    return lax.real(ct), -lax.imag(ct)


@formula(lax.conj_p, cheap=True)
def conj(ct, out, x, *, input_dtype):
    """out = Re(x) - 1j * Im(x), complex even if x is real"""
    if jnp.issubdtype(input_dtype, jnp.complexfloating):
        return (lax.conj(ct),)
    return (lax.real(ct),)
