"""The rule of the discrete Fourier transforms."""

import math

import jax.numpy as jnp
from jax import lax

from tapejax.rules.registry import rule


@rule(lax.fft_p)
def fft(ct, out, x, *, fft_type, fft_lengths):
    """out = the transform of x along its last dimensions; linear, so going back is a transform of ct"""
    transform = lambda y, kind: lax.fft_p.bind(y, fft_type=kind, fft_lengths=fft_lengths)
    if fft_type in (lax.FftType.FFT, lax.FftType.IFFT):  # symmetric matrices
        return (transform(ct, fft_type),)
    # A real transform keeps half of a symmetric spectrum: all but the edges stands for two entries.
    length = fft_lengths[-1]
    frequency = lax.broadcasted_iota(jnp.int32, (1,) * (ct.ndim - 1) + (length // 2 + 1,), ct.ndim - 1)
    is_edge = (frequency == 0) | (2 * frequency == length)
    total = math.prod(fft_lengths)
    if fft_type == lax.FftType.RFFT:
        weights = jnp.where(is_edge, 1.0, 0.5).astype(x.dtype) * total
        return (transform(lax.conj(ct) * weights, lax.FftType.IRFFT),)
    weights = jnp.where(is_edge, 1.0, 2.0).astype(ct.dtype) / total
    return (lax.conj(transform(ct, lax.FftType.RFFT)) * weights,)
