"""What comes in between while C is at work: collections, finalizers, lists that change, Tensors that are none."""

import json

import pytest

from tapejax.native import native
from tests.attacks.alone import alone, no_failures
from tests.native.fire import CHECKS

pytestmark = pytest.mark.skipif(native is None, reason="the C extension is not built here, or TAPEJAX_NATIVE=0")


def fire(*arguments, env=()):
    return alone("fire", *arguments, folder="native", env=env)


@pytest.mark.parametrize("check", CHECKS)
def test_nothing_is_harmed(check):
    no_failures(fire(check))


def test_no_more_is_kept_than_python_keeps():
    """A reference that C does not give back shows as one more each time."""
    plain, quick = (fire("kept", env={"TAPEJAX_NATIVE": setting})[0] for setting in "01")
    more = {what: quick[what] - plain[what] for what in quick}
    assert len(more) > 50
    leaks = {what: each for what, each in more.items() if each > 0.5}
    assert not leaks, json.dumps(leaks, indent=1)
