import pytest
from jax import lax

from tapejax.rules import fft
from tapejax.verify.samples.fft import SAMPLES
from tests.rules.harness import is_caught

right = fft.fft
opposite = {lax.FftType.FFT: lax.FftType.IFFT, lax.FftType.IFFT: lax.FftType.FFT}
MUTANTS = {
    "the inverse": lambda ct, out, x, *, fft_type, fft_lengths: right(
        ct, out, x, fft_type=opposite.get(fft_type, fft_type), fft_lengths=fft_lengths
    ),
    "conjugated": lambda ct, out, x, **params: right(ct.conj() if ct.dtype.kind == "c" else -ct, out, x, **params),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_caught(mutant, monkeypatch):
    assert is_caught(monkeypatch, lax.fft_p, "", MUTANTS[mutant], SAMPLES)
