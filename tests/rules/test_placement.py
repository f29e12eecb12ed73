import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

from tapejax.rules.registry import TABLE
from tapejax.verify.check import our_vjp
from tapejax.verify.samples.placement import SAMPLES
from tests.rules.harness import assert_finite, assert_sample, cases, finite_cases, rules_without_samples


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
    """reshard is checked on four devices (test_collective.py); jax has no function for the others."""
    assert rules_without_samples("placement", SAMPLES) == ["relayout", "reshard", "tie"]


def test_tie_passes_the_second_operand_on():
    ct = jnp.array([1.0, 2.0])
    x, y = TABLE["tie"].function(ct, ct, ct, ct)
    assert x is None
    assert np.array_equal(y, ct)


def test_checks_do_not_disturb():
    def function(x):
        checkify.check(jnp.all(x > 0), "must be positive")
        return jnp.log(x)

    checked = lambda x: checkify.checkify(function)(x)[1]
    _, pullback = our_vjp(checked, [jnp.array([1.0, 2.0])], [True])
    np.testing.assert_allclose(pullback([jnp.ones(2)])[0], [1.0, 0.5])
