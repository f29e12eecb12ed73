"""compare and compare_precision."""

import json

import jax.numpy as jnp
import pytest
from jax import lax

import tapejax as tj
from tapejax import errors
from tests.verify.test_function import X


def sigmoid_by_hand(x):
    y = 1 / (1 + jnp.exp(-x))
    return jnp.sum(y * y)


def stopped(x):
    y = 1 / (1 + jnp.exp(-x))
    return jnp.sum(y * lax.stop_gradient(y))


def shifted(x):
    y = 1 / (1.5 + jnp.exp(-x))
    return jnp.sum(y * y)


def test_the_same():
    report = tj.compare(sigmoid_by_hand, lambda x: sigmoid_by_hand(x * 1.0), X)
    assert report.ok
    assert "agree" in report.verdict_line


def test_the_first_value_that_differs():
    report = tj.compare(sigmoid_by_hand, shifted, X)
    assert not report.ok
    assert report.first_forward.op == "add"
    assert all("test_twins.py" in line for line in report.first_forward.lines)
    assert "DIFFERENT" in str(report)
    assert json.loads(json.dumps(report.to_json()))["ok"] is False


def test_the_first_gradient_that_differs_on_the_way_back():
    report = tj.compare(sigmoid_by_hand, stopped, X)
    assert [end[0] for end in report.wrong] == ["gradient of x"]
    assert report.first_forward is None
    assert report.first_backward.op == "div"


def test_different_outputs_are_refused():
    with pytest.raises(errors.ArgumentError, match="different kinds"):
        tj.compare(jnp.sum, jnp.sin, X)


def test_which_op_loses_the_digits():
    report = tj.compare_precision(lambda x: jnp.sum(jnp.sqrt((100.0 + x) - 100.0)), jnp.array([1e-4, 3e-4]))
    assert not report.ok
    assert report.worst.op == "sub"
    assert report.worst_back.op == "sqrt"
    assert "test_twins.py" in report.worst.line
    assert "float32 loses" in str(report)
    assert "sub" in report.to_html()


def test_none_is_lost_where_nothing_cancels():
    report = tj.compare_precision(lambda x: lax.scan(lambda c, v: (c * v, c), x, jnp.ones(3))[0].sum(), X)
    assert report.ok
    assert report.worst is None
    assert "no more than a digit" in report.verdict_line
