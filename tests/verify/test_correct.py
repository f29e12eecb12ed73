"""No false alarm on correct functions of real libraries that are hard on a judge."""

import importlib.util

import pytest

import tapejax as tj
from tests.verify.correct import CASES

NEAR = 12  # every so many run by default
SLOW = {"diffrax: ode", "diffrax: adaptive_ode", "lineax: cg_of_lineax", "jax: transformer_block"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, id=name.replace(" ", "_"), marks=[pytest.mark.slow] * (number % NEAR > 0 or name in SLOW))
        for number, name in enumerate(CASES)
    ],
)
def test_it_is_silent(name):
    library, make = CASES[name]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    function, arguments = make()
    report = tj.verify(function, *arguments, seeds=1, diagnose=False)
    assert report.ok, str(report)
