import pytest
from jax import lax

from tapejax.verify.samples.complex import SAMPLES
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
    assert rules_without_samples("complex", SAMPLES) == []


MUTANTS = {
    "imag: sign": (lax.imag_p, "", lambda ct, out, x: (lax.complex(0 * ct, ct),)),
    "complex: sign": (lax.complex_p, "", lambda ct, out, x, y: (lax.real(ct), lax.imag(ct))),
    "conj: forgotten": (lax.conj_p, "", lambda ct, out, x, *, input_dtype: (ct.astype(input_dtype),)),
    "abs: not conjugated": (lax.abs_p, "out x", lambda ct, out, x: (lax.complex(ct / out, 0 * ct) * x,)),
}


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_caught(mutant, monkeypatch):
    assert is_caught(monkeypatch, *MUTANTS[mutant], SAMPLES)
