"""After an interrupt: what was there is right, going on gives right numbers or a typed error, the next step is right."""

import sys
import threading

import pytest

from tests.attacks.alone import ALL, alone, no_failures
from tests.attacks.interrupts import Interrupter, raise_interrupt, spread
from tests.attacks.scenarios import SCENARIOS

# The places are read from bytecode, which is another in each Python. And jax 0.12 makes a ValueError of an interrupt
# that comes while it compares the keys of a cache (plain jax.numpy: 43 of 3,000; 0.10: none).
slow = lambda name: pytest.param(name, marks=pytest.mark.slow)
pytestmark = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="for Python 3.11 and its jax")


# All of them, at many places: the slow run.
@pytest.mark.parametrize("name", [*map(slow, ["record", "backward_recorded"]), "training"])
def test_an_interrupt_at_some_places(name):
    no_failures(alone("interrupts", name, "fresh:2", "second:3", "compiled:30", seconds=300))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_an_interrupt_at_many_places(name):
    no_failures(alone("interrupts", name, "fresh:10", "second:20", "compiled:100000", seconds=1200))


FIRST_ORDER = [name for name in SCENARIOS if name != "backward_recorded"]
KINDS = {"first order": FIRST_ORDER, "second order": ["backward_recorded"]}


@pytest.mark.parametrize("kind", ["first order", slow("second order")])
def test_signals_at_random_times(kind):
    no_failures(alone("alarms", 50, *KINDS[kind], seconds=300))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_signals_at_random_times(kind):
    no_failures(alone("alarms", 2000 if ALL else 500, *KINDS[kind], seconds=1200))


# --- the harness itself -------------------------------------------------------------------------------------


def test_places_are_found_and_each_raises(monkeypatch):
    monkeypatch.setattr("tests.attacks.interrupts.FOLDER", __file__)
    done = []

    def work():
        for i in range(3):
            done.append(i)

    with Interrupter(None, raise_interrupt) as count:
        work()
    assert count.places > 6
    for n in range(1, count.places):
        with pytest.raises(KeyboardInterrupt), Interrupter(n, raise_interrupt):
            work()
    assert sys.gettrace() is None


def test_a_lock_is_never_left_held_by_the_harness(monkeypatch):
    monkeypatch.setattr("tests.attacks.interrupts.FOLDER", __file__)
    lock, data = threading.Lock(), []

    def work():
        with lock:
            data.append(len(data))
        try:
            lock.acquire(timeout=1)
            return data.append(1)
        finally:
            lock.release()

    with Interrupter(None, raise_interrupt) as count:
        work()
    for n in range(1, count.places + 1):
        with pytest.raises(KeyboardInterrupt), Interrupter(n, raise_interrupt):
            work()
        assert not lock.locked(), n


def test_spread_covers_all_when_it_may():
    assert spread(5, 10, "a") == [1, 2, 3, 4, 5]
    assert 40 < len(spread(1000, 50, "a")) <= 50
