import pytest
from jax import lax

from tapejax.rules import fft
from tapejax.verify.samples.fft import SAMPLES
from tests.rules.harness import assert_finite, assert_sample, cases, finite_cases, is_caught, rules_without_samples


@pytest.mark.parametrize(("sample", "dtype"), cases(SAMPLES, order=1))
def test_gradient_equals_jax(sample, dtype):
    assert_sample(sample, dtype, order=1)


@pytest.mark.parametrize(("sample", "dtype"), cases(SAMPLES, order=2))
def test_second_derivative_equals_jax(sample, dtype):
    assert_sample(sample, dtype, order=2)


@pytest.mark.parametrize("sample", finite_cases(SAMPLES))
def test_gradient_equals_finite_differences(sample):
    assert_finite(sample)


def test_every_rule_has_a_sample():
    assert rules_without_samples("fft", SAMPLES) == []


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
