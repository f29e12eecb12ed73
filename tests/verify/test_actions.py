"""verify_tape: each action by itself; the first wrong one is named."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tapejax as tj
import tapejax.numpy as tnp
from tapejax import errors
from tapejax.rules.registry import TABLE
from tests.verify.faults import WRONG_RULES
from tests.verify.test_function import Cube, X, cubed, twice_at_one


@pytest.mark.slow
def test_a_wrong_rule_in_a_thousand_actions(monkeypatch):
    fault = WRONG_RULES[0]  # sin with the wrong sign
    monkeypatch.setitem(TABLE, fault.primitive, fault.plant())

    def long(x):
        for _ in range(499):
            x = x * 1.001 + 0.001
        x = jnp.sin(x)
        return x + 1.0

    report = tj.verify_tape(long, X)
    assert len(report.actions) == 1000
    assert [action.index for action in report.wrong] == [998]
    first = report.first_wrong
    assert first.op == "sin"
    assert "test_actions.py" in first.line
    assert first.inputs == ["float32[3]"]
    assert first.worst.got == pytest.approx(-first.worst.expected, rel=1e-4)
    assert "sign" in first.worst.note
    assert json.loads(json.dumps(report.to_json()))["first_wrong"] == 998
    assert "sin" in report.to_html()


def test_a_tape_that_was_recorded_before():
    x = tj.tensor(X, requires_grad=True)
    with tj.Tape() as tape:
        tnp.sum(tj.lift(twice_at_one)(x) * x + x)
    report = tj.verify_tape(tape)
    assert report.first_wrong.op == "twice_at_one"
    assert len(report.wrong) == 1
    assert len(tape) == 4  # as it was
    with pytest.raises(errors.ArgumentError, match="no arguments"):
        tj.verify_tape(tape, X)


def test_custom_ops_and_actions_of_ones_own():
    @tj.custom_op(jit=False)
    def cube(x, y):
        return np.asarray(x) ** 3 * np.asarray(y)

    cube.defbackward(lambda ct, out, x, y: (3 * x**2 * y * ct, 2 * x**3 * ct))
    report = tj.verify_tape(lambda x: cube(tnp.sin(x), x + 1.0) * 2.0, X)
    assert report.first_wrong.op == "Cube"
    assert {row.input for row in report.first_wrong.rows if row.verdict == "wrong"} == {"input 1"}

    assert tj.verify_tape(lambda x: tnp.exp(cubed(tnp.sin(x))), X).ok
    report = tj.verify_tape(lambda x: tnp.exp(cubed(tnp.sin(x), 2.0)), X)
    assert [action.index for action in report.wrong] == [1]
    assert "leads to it" in report.first_wrong.note


def test_a_primal_of_ones_own():
    class WithPrimal(Cube):
        def primal(self, x):
            return x**3

    x = tj.tensor(X, requires_grad=True)
    y = tj.tensor(X**3, requires_grad=True)
    for factor, ok in ((3.0, True), (2.0, False)):
        with tj.Tape() as tape:
            tj.record(WithPrimal(x, y, factor))
            z = y * 2.0 + x * x
        del z
        report = tj.verify_tape(tape)
        assert report.actions[0].verdict == ("right" if ok else "wrong"), report.actions[0]


def test_steps_of_a_loop_are_named():
    report = tj.verify_tape(lambda x: lax.scan(lambda c, v: (twice_at_one(c) * v, c), x, jnp.ones(3))[0], X)
    assert [action.op for action in report.wrong] == [f"custom_vjp_call twice_at_one scan[{i}]" for i in range(3)]


def test_ops_instead_of_primitives():
    report = tj.verify_tape(lambda x: tnp.mean(tnp.sin(x) ** 2), X, detail="ops")
    assert report.ok
    assert report.actions[0].op == "sin"
