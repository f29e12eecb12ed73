"""What tapejax offers to other test suites."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from tapejax import errors, testing
from tests.verify.test_function import X, twice_at_one

pytest_plugins = ["pytester"]


def test_right_gradients_are_returned_with_their_report():
    assert testing.assert_gradients_match(jnp.tanh, X, seeds=1).ok


def test_wrong_ones_raise_with_the_report():
    with pytest.raises(AssertionError, match="twice_at_one") as raised:
        testing.assert_gradients_match(twice_at_one, X, seeds=1)
    assert raised.value.report.wrong
    with pytest.raises(AssertionError, match="2 times what it should be"):
        testing.assert_custom_rules_match(twice_at_one, X, seeds=1)


def test_the_fixture(gradients_match):
    assert gradients_match(jnp.sin, X, against="jax", seeds=1).ok


def test_the_plugin_writes_a_page_for_what_failed(pytester):
    pytester.makepyfile(
        """
        import jax, jax.numpy as jnp

        wrong = jax.custom_vjp(jnp.sin)
        wrong.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct,))

        def test_wrong(gradients_match):
            gradients_match(wrong, jnp.array([0.3, 0.7]), seeds=1, diagnose=False)
        """
    )
    loaded = pytester.runpytest("--help")
    plugin = [] if any("--gradient-reports" in line for line in loaded.outlines) else ["-p", "pytest_tapejax"]
    result = pytester.runpytest(*plugin, "--gradient-reports", "pages", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert "VerificationError: YOUR RULE IS WRONG: the gradient of `sin`" in text
    assert "test_the_plugin_writes_a_page_for_what_failed.py:7" in text.partition("at      ")[2].partition("\n")[0]
    assert "report.assert_ok()" not in text  # no frame of ours
    (page,) = (pytester.path / "pages").glob("*.html")
    assert "finite differences" in page.read_text()


@given(testing.smooth_arrays((2, 3), away_from=(0.0, 1.0), gap=0.1))
@settings(max_examples=30, deadline=None)
def test_arrays_stay_away_from_kinks_and_from_each_other(x):
    values = np.sort(np.asarray(x).reshape(-1))
    assert x.shape == (2, 3)
    assert np.abs(values).min() >= 0.1
    assert np.abs(values - 1).min() >= 0.1
    assert np.diff(values).min() >= 0.1


@given(testing.smooth_arrays(4))
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
def test_functions_with_kinks_can_be_checked_at_random(x):
    report = testing.assert_gradients_match(lambda x: jnp.max(jax.nn.relu(x)) + jnp.abs(x).sum(), x, seeds=1)
    assert not report.kinks


def test_more_than_fits_is_refused():
    with pytest.raises(errors.ArgumentError, match="do not fit"):
        testing.smooth_arrays(1000)
    testing.smooth_arrays(1000, distinct=False)
