"""Who is wrong: every planted case gets its verdict, and its culprit is named."""

import os
from collections import Counter
from contextlib import nullcontext

import pytest

import tapejax as tj
from tests.verify.planted import OURS, PLANTED, USERS

NEAR = 26  # every so many run by default
ALL = "TAPEJAX_ALL_CASES"  # set: the slow run has all of them; else a third of those that other tests plant too
ELSEWHERE = {case.name for case in [*USERS[:18], *OURS]}


def marks(number, case):
    if number % NEAR == 0:
        return []
    left_out = case.name in ELSEWHERE and number % 3 and number % 13 and not os.environ.get(ALL)
    return [pytest.mark.slow, pytest.mark.skipif(bool(left_out), reason=f"{ALL} is not set")]


def test_there_are_enough_of_each():
    kinds = Counter(case.verdict for case in PLANTED)
    assert kinds["custom_rule"] >= 20
    assert kinds["jax"] >= 15
    assert kinds["tapejax"] >= 15
    assert kinds["convention"] >= 10


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name.replace(" ", "_"), marks=marks(number, case))
        for number, case in enumerate(PLANTED)
    ],
)
def test_the_verdict(case):
    with nullcontext() if case.planted is None else case.planted():
        report = tj.verify(case.function, *case.arguments, **case.options)
    text = str(report)
    assert report.verdict == case.verdict, text
    assert report.ok == (case.verdict in ("convention", "right"))
    for words in case.words:
        assert words in text
