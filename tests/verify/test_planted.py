"""Who is wrong: every planted case gets its verdict, and its culprit is named."""

from collections import Counter
from contextlib import nullcontext

import pytest

import tapejax as tj
from tests.verify.planted import PLANTED

NEAR = 13  # every so many run by default


def test_there_are_enough_of_each():
    kinds = Counter(case.verdict for case in PLANTED)
    assert kinds["custom_rule"] >= 20
    assert kinds["jax"] >= 15
    assert kinds["tapejax"] >= 15
    assert kinds["convention"] >= 10


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name.replace(" ", "_"), marks=[pytest.mark.slow] * (number % NEAR > 0))
        for number, case in enumerate(PLANTED)
    ],
)
def test_the_verdict(case):
    with nullcontext() if case.planted is None else case.planted():
        report = tj.verify(case.function, *case.arguments, **case.options)
    text = str(report)
    assert report.verdict == case.verdict, text
    assert report.ok == (case.verdict == "convention")
    for words in case.words:
        assert words in text
