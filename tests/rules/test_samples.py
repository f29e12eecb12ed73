"""Every rule on its samples: against jax.vjp, once and twice, and against finite differences.

The other files of this folder test what is particular to their family.
"""

import pytest
from jax import lax

from tapejax.rules.registry import TABLE, Rule
from tapejax.verify.samples import FAMILIES, UNREACHABLE
from tests.rules.harness import (
    assert_both_orders,
    assert_finite,
    assert_sample,
    cases,
    finite_cases,
    rules_without_samples,
)

# Those that need several devices, or have fewer samples for the second order, have tests of their own.
APART = {"collective", "constants", "refs", "sparse"}
USUAL = {family: samples for family, samples in FAMILIES.items() if family not in APART}


def of_all(collect, **how):
    return [case for samples in USUAL.values() for case in collect(samples, **how)]


@pytest.mark.parametrize(("sample", "dtype"), of_all(cases, order=1, merged=True))
def test_gradient_equals_jax(sample, dtype):
    assert_sample(sample, dtype, order=1)


@pytest.mark.parametrize(("sample", "dtype"), of_all(cases, order=2))
def test_second_derivative_equals_jax(sample, dtype):
    """And the value and the gradient on the way there."""
    assert_both_orders(sample, dtype)


@pytest.mark.parametrize("sample", of_all(finite_cases))
def test_gradient_equals_finite_differences(sample):
    assert_finite(sample)


@pytest.mark.parametrize("family", USUAL)
def test_every_rule_has_a_sample(family):
    assert [name for name in rules_without_samples(family, USUAL[family]) if name not in UNREACHABLE] == []


WRONG = {
    "gradient": lambda ct, out, x, **_: (-ct * lax.cos(x),),
    "second derivative": lambda ct, out, x, **_: (ct * lax.stop_gradient(lax.cos(x)),),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_rule_is_caught_at_its_order(what, monkeypatch):
    wrong = Rule("sin", WRONG[what], "x", cheap=True, zeros=True, family="mutant")
    monkeypatch.setitem(TABLE, lax.sin_p, wrong)
    with pytest.raises(AssertionError, match=f"^{what}"):
        assert_both_orders(USUAL["elementwise"][lax.sin_p][0], "float64")
