"""All planted faults are found, and the right action or rule is named."""

import jax
import pytest

import tapejax as tj
from tapejax.ops.compiled import clear_plans
from tests.verify.faults import RIGHT_CUSTOM, WRONG_CUSTOM, WRONG_RULES, planted

name = lambda fault: fault.name.replace(", ", "-").replace(" ", "_")


@pytest.fixture
def clean():
    """What was compiled with a wrong rule is forgotten."""
    yield
    clear_plans()


def some(faults):
    """Every sixth one by default, the rest in the slow run."""
    return [
        pytest.param(fault, id=name(fault), marks=[pytest.mark.slow] * (number % 6 > 0))
        for number, fault in enumerate(faults)
    ]


def test_there_are_twenty_of_each():
    assert len(WRONG_RULES) >= 20
    assert len(WRONG_CUSTOM) >= 20


@pytest.mark.parametrize("fault", some(WRONG_RULES))
def test_a_wrong_rule_is_found_and_named(fault, monkeypatch, clean):
    planted(fault, monkeypatch)
    detail = "ops" if fault.op == "scan" else "primitives"  # opened, a scan has no rule of its own to be wrong
    function = fault.function if detail == "primitives" else _as_scan(fault.function)
    report = tj.verify_tape(function, *fault.arguments, detail=detail)
    assert not report.ok
    first = report.first_wrong
    assert first.op.split()[0] == (fault.op if detail == "primitives" else "scans")
    assert "faults.py" in first.line or detail == "ops"
    assert all(action.op.split()[0] == first.op.split()[0] for action in report.wrong)


def _as_scan(function):
    def scans(x):
        return function(x)

    return tj.lift(scans)


@pytest.mark.parametrize("fault", some(WRONG_CUSTOM))
def test_a_wrong_custom_rule_is_found_and_named(fault):
    report = tj.verify_custom_rule(fault.function, *fault.arguments)
    assert not report.ok
    wrong = [row for row in report.first_wrong.rows if row.verdict == "wrong"]
    if fault.name != "wrong shape":  # jax refuses the whole rule
        assert {row.input for row in wrong} >= {f"argument {fault.argument}"}
    if fault.element is not None:
        assert fault.element in {row.index for row in wrong}


@pytest.mark.parametrize("fault", some([f for f in WRONG_CUSTOM if "one element" in f.name or "dtype" in f.name]))
def test_verify_finds_them_too_and_names_the_rule(fault):
    report = tj.verify(lambda *args: jax.numpy.sum(fault.function(*args) * 2.0), *fault.arguments)
    assert not report.ok
    assert report.culprit is not None
    assert "custom_vjp" in report.culprit.verdict_line


@pytest.mark.parametrize("right", RIGHT_CUSTOM, ids=name)
def test_right_ones_pass(right):
    report = tj.verify_custom_rule(right.function, *right.arguments)
    assert report.ok, str(report)
