"""Where many cases differ little, some run by default and all in the slow run."""

import pytest


def one_in(every, cases, at_once=()):
    """Parameters for pytest: every so many of the cases, and those named; the others are marked slow."""
    return [
        pytest.param(case, marks=[] if number % every == 0 or case in at_once else pytest.mark.slow)
        for number, case in enumerate(cases)
    ]
