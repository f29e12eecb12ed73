"""No false alarm on correct functions of real libraries that are hard on a judge."""

import importlib.util
import os

import jax
import pytest

import tapejax as tj
from tests.verify import correct_models, correct_numerics, correct_others, correct_third
from tests.verify.correct import CASES

NEAR = 24  # every so many run by default
FAR = 30  # every so many of the others run when slow tests do
ALL = "TAPEJAX_ALL_CASES"  # set: the slow run has all of them; else every third
SLOW = {"jax: bfgs", "diffrax: ode", "diffrax: adaptive_ode", "lineax: cg_of_lineax", "jax: transformer_block"}


def marks(number, name):
    if number % NEAR == 0 and name not in SLOW:
        return []
    return [
        pytest.mark.slow,
        pytest.mark.skipif(number % 3 > 0 and not os.environ.get(ALL), reason=f"{ALL} is not set"),
    ]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, id=name.replace(" ", "_"), marks=marks(number, name)) for number, name in enumerate(CASES)],
)
def test_it_is_silent(name):
    check_that_it_is_silent(*CASES[name])


def known(gathered, name):
    """Why a case is not decided, if it is not."""
    return getattr(gathered, "KNOWN", {}).get(name)


def marks_of_others(number, known):
    return [
        pytest.mark.slow,
        pytest.mark.skipif(number % FAR > 0 and not os.environ.get(ALL), reason=f"{ALL} is not set"),
        *([pytest.mark.xfail(reason=known)] if known else []),
    ]


@pytest.mark.parametrize(
    ("gathered", "name"),
    [
        pytest.param(gathered, name, id=name.replace(" ", "_"), marks=marks_of_others(number, known(gathered, name)))
        for gathered in (correct_others, correct_third, correct_models, correct_numerics)
        for number, name in enumerate(gathered.CASES)
    ],
)
def test_it_is_silent_on_what_others_gathered(gathered, name):
    with jax.enable_x64(name in getattr(gathered, "X64", ())):
        check_that_it_is_silent(*gathered.CASES[name])


def check_that_it_is_silent(library, make):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    function, arguments = make()
    report = tj.verify(function, *arguments, seeds=1, diagnose=False)
    assert report.ok, str(report)
