"""Samples: fft."""

import jax.numpy as jnp
from jax import lax

from tapejax.verify.samples.base import COMPLEX, WIDE, normal, sample


def transform(kind, *lengths):
    return lambda x: lax.fft(x, kind, lengths)


FFT, IFFT, RFFT, IRFFT = lax.FftType.FFT, lax.FftType.IFFT, lax.FftType.RFFT, lax.FftType.IRFFT

SAMPLES = {
    lax.fft_p: [
        sample(transform(FFT, 4), normal(2, 4), dtypes=COMPLEX),
        sample(transform(FFT, 2, 3, 1), normal(2, 3, 1), dtypes=COMPLEX),
        sample(transform(IFFT, 5), normal(5), dtypes=COMPLEX),
        sample(transform(IFFT, 3, 2), normal(2, 3, 2), dtypes=COMPLEX),
        sample(transform(RFFT, 6), normal(2, 6), dtypes=WIDE),
        sample(transform(RFFT, 5), normal(5), dtypes=WIDE),
        sample(transform(RFFT, 1), normal(1), dtypes=WIDE),
        sample(transform(RFFT, 2, 3, 4), normal(2, 3, 4), dtypes=WIDE),
        sample(transform(RFFT, 4, 3), normal(4, 3), dtypes=WIDE),
        sample(transform(IRFFT, 6), normal(2, 4), dtypes=COMPLEX),
        sample(transform(IRFFT, 5), normal(3), dtypes=COMPLEX),
        sample(transform(IRFFT, 1), normal(1), dtypes=COMPLEX),
        sample(transform(IRFFT, 3, 2, 4), normal(3, 2, 3), dtypes=COMPLEX),
        sample(transform(IRFFT, 2, 5), normal(2, 3), dtypes=COMPLEX),
        sample(transform(RFFT, 4), normal(0, 4), dtypes=WIDE),
        sample(lambda x: jnp.fft.rfft(x, 5), normal(2, 4), dtypes=("float64",)),
        sample(lambda x: jnp.fft.irfft(x, 4, axis=0), normal(4, 2), dtypes=("float64", "complex128")),
        sample(lambda x: jnp.fft.fftshift(jnp.fft.fft2(x, norm="ortho")), normal(2, 3), dtypes=("float64",)),
        sample(lambda x: jnp.fft.hfft(x), normal(3), dtypes=("complex128",)),
        sample(
            lambda x, y: jnp.fft.ifft(jnp.fft.fft(x) * jnp.fft.fft(y)).real, normal(4), normal(4), dtypes=("float64",)
        ),
    ],
}  # fmt: skip
