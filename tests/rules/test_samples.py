"""Every rule on its samples: against jax.vjp, once and twice, and against finite differences.

The other files of this folder test what is particular to their family.
"""

import pytest

from tapejax.verify.samples import FAMILIES, UNREACHABLE
from tests.rules.harness import assert_finite, assert_sample, cases, finite_cases, rules_without_samples

# Those that need several devices, or have fewer samples for the second order, have tests of their own.
APART = {"collective", "constants", "refs", "sparse"}
USUAL = {family: samples for family, samples in FAMILIES.items() if family not in APART}


def of_all(collect, **how):
    return [case for samples in USUAL.values() for case in collect(samples, **how)]


@pytest.mark.parametrize(("sample", "dtype"), of_all(cases, order=1))
def test_gradient_equals_jax(sample, dtype):
    assert_sample(sample, dtype, order=1)


@pytest.mark.parametrize(("sample", "dtype"), of_all(cases, order=2))
def test_second_derivative_equals_jax(sample, dtype):
    assert_sample(sample, dtype, order=2)


@pytest.mark.parametrize("sample", of_all(finite_cases))
def test_gradient_equals_finite_differences(sample):
    assert_finite(sample)


@pytest.mark.parametrize("family", USUAL)
def test_every_rule_has_a_sample(family):
    assert [name for name in rules_without_samples(family, USUAL[family]) if name not in UNREACHABLE] == []
