"""An op in a signal handler, in `__del__`, or at any line while another op is recorded or run."""

import pytest

from tests.attacks.alone import alone, no_failures

WORKS = ["look", "record", "back", "same"]


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize(("kind", "budget"), [("lines", 24), ("signals", 15), ("garbage", 3)])
def test_ops_within_ops(kind, work, budget):
    no_failures(alone("reentry", kind, work, budget, seconds=150))


@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize(("kind", "budget"), [("lines", 600), ("signals", 300), ("garbage", 40)])
def test_many_ops_within_ops(kind, work, budget):
    no_failures(alone("reentry", kind, work, budget, seconds=900))
