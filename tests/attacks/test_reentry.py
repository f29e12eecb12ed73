"""An op in a signal handler, in `__del__`, or at any line while another op is recorded or run."""

import sys

import pytest

from tests.attacks.alone import alone, no_failures

WORKS = ["look", "record", "back", "same"]
# Before 3.12 the collector runs inside any allocation: ops of plain jax in `__del__` then crash by themselves.
KINDS = ("lines", "signals", "garbage") if sys.version_info >= (3, 12) else ("lines", "signals")
CASES = [(kind, work) for kind in KINDS for work in WORKS]
SOME, MANY = {"lines": 24, "signals": 15, "garbage": 3}, {"lines": 60, "signals": 40, "garbage": 6}


# All of them, at many places: the slow run.
@pytest.mark.parametrize("work", ["back", pytest.param("same", marks=pytest.mark.slow)])
def test_ops_within_ops(work):
    no_failures(alone("reentry", "lines", work, SOME["lines"] // 2, seconds=150))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "work"), CASES)
def test_many_ops_within_ops(kind, work):
    no_failures(alone("reentry", kind, work, MANY[kind], seconds=900))


def test_ops_while_jax_compiles():
    """jax refuses to call a program that is being compiled: another one is made of it."""
    no_failures(alone("reentry", "compiling", "again", 1, seconds=150))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_jax_itself_bears_it(kind):
    """The control: an op of jax in the same places."""
    no_failures(alone("reentry", kind, "control", SOME[kind] // 3, seconds=150))
