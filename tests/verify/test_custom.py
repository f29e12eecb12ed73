"""verify_custom_rule: deep inside, in loops, nested, at kinks; what is not there is refused."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import tapejax as tj
from tapejax import errors
from tests.verify.faults import custom
from tests.verify.test_function import X, twice_at_one


def test_deep_inside_with_element_and_factor():
    report = tj.verify_custom_rule(lambda p: jnp.sum(jax.jit(twice_at_one)(p["x"] * 2)), {"x": X})
    worst = report.first_wrong.worst
    assert (worst.input, worst.index, worst.note) == ("argument 0", (1,), "2 times what it should be")
    assert "test_function.py" in report.first_wrong.defined
    assert "test_custom.py" in report.first_wrong.line
    with pytest.raises(AssertionError, match="twice_at_one"):
        report.assert_ok()


def test_inside_another_custom_function():
    outer = custom(lambda x: twice_at_one(x) * 2, lambda ct, x: (2 * ct * jnp.cos(x),))  # the outer one is right
    report = tj.verify_custom_rule(outer, X)
    assert [call.name for call in report.wrong] == ["twice_at_one"]
    assert len(report.calls) == 2


def test_custom_jvp_with_the_wrong_tangent():
    @jax.custom_jvp
    def product(x, y):
        return x * y

    product.defjvps(lambda t, out, x, y: t * y, lambda t, out, x, y: -t * x)
    report = tj.verify_custom_rule(product, X, X + 1)
    assert {row.input for row in report.first_wrong.rows if row.verdict == "wrong"} == {"argument 1"}
    assert report.first_wrong.worst.note == "the sign is wrong"
    assert report.first_wrong.kind == "custom_jvp"


def test_an_op_of_ones_own_goes_by_its_name_and_line():
    @tj.custom_op
    def cube(x, *, factor=1.0):
        return factor * x**3

    cube.defbackward(lambda ct, out, x, factor=1.0: (2 * factor * x**2 * ct,))
    report = tj.verify(lambda x: cube(x, factor=2.0).sum(), X, seeds=1)
    assert "`cube` (" in report.culprit.verdict_line
    line = cube.forward.__code__.co_firstlineno
    assert f"test_custom.py:{line}" in report.culprit.verdict_line


def test_a_slope_chosen_at_a_kink_is_fine():
    report = tj.verify_custom_rule(jax.nn.relu, jnp.array([0.0, 1.0, -1.0]))  # its primal code, max, would give a half
    assert report.ok
    assert "kink" in str(report)


def test_a_rule_that_is_safer_than_its_primal_code():
    @jax.custom_jvp
    def xlogx(x):
        return jnp.where(x > 0, x * jnp.log(x), 0.0)

    xlogx.defjvps(lambda t, out, x: t * jnp.where(x > 0, 1 + jnp.log(jnp.where(x > 0, x, 1.0)), 0.0))
    assert tj.verify_custom_rule(xlogx, jnp.array([0.5, -1.0, 2.0])).ok  # the primal code alone gives nan at -1


def test_in_a_loop_each_step_is_checked():
    report = tj.verify_custom_rule(lambda x: lax.fori_loop(0, 3, lambda i, v: twice_at_one(v), x), X)
    assert [call.steps for call in report.calls] == [" scan[0]", " scan[1]", " scan[2]"]


def test_a_function_without_any():
    with pytest.raises(errors.ArgumentError, match="no function with a custom rule"):
        tj.verify_custom_rule(jnp.sin, X)
