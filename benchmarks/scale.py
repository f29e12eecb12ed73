"""Chains of adds, from a thousand actions to a million: is the cost of one flat?"""

from __future__ import annotations

import gc
import os
import tracemalloc
from contextlib import nullcontext
from time import perf_counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import tapejax as tj
from benchmarks import sampling
from benchmarks.contestants.tape import unsettled

SHORT = 1_000  # the blocks that a long chain is made of are those of a short one


class Way(NamedTuple):
    """explicit: on a Tape of its own, not on the ambient one; wrt: gradients of the start only; collecting: as users have it."""

    explicit: bool
    wrt: bool = False
    collecting: bool = True


WAYS = {
    "explicit tape": Way(explicit=True),
    "ambient tape": Way(explicit=False),
    "explicit tape, wrt": Way(explicit=True, wrt=True),
    "explicit tape, wrt, collector off": Way(explicit=True, wrt=True, collecting=False),
}
_warm: dict[tuple[int, str], bool] = {}


def record(length: int, *, explicit: bool = True) -> tuple[tj.Tape, tj.Tensor, tj.Tensor]:
    x = tj.tensor(jnp.zeros((8,)), requires_grad=True)
    one = tj.tensor(jnp.ones((8,)))
    with tj.Tape() if explicit else nullcontext(tj.current_tape()) as tape:
        h = x
        for _ in range(length):
            h = h + one
    return tape, x, h


PARTS = ("forward", "backward", "asked")  # forward with recording; backward; every gradient asked for, after it


def once(length: int, way: Way = WAYS["explicit tape, wrt"]) -> tuple[float, ...]:
    """Seconds per action, of each part."""
    start = perf_counter()
    tape, x, h = record(length, explicit=way.explicit)
    h.block_until_ready()
    middle = perf_counter()
    grads = tape.backward(h, wrt=[x] if way.wrt else None)
    gradient = grads[x].block_until_ready()
    end = perf_counter()
    every = jax.block_until_ready(grads.values())
    asked = perf_counter()
    assert (gradient == 1).all()
    assert (h.value == length).all()
    assert len(every) == (1 if way.wrt else length + 1)
    return (middle - start) / length, (end - middle) / length, (asked - end) / length


def chain(length: int, name: str, patience: float = sampling.PATIENCE) -> dict[str, Any]:
    """Seconds per action; settled: whether everything had been compiled by then.

    A chain runs op by op at first, then by programs of many adds; one measured too early would make a longer one look good.
    """
    way = WAYS[name]
    if (length, name) not in _warm:
        short = length if length <= 10 * SHORT else SHORT + length % SHORT
        for _ in range(3):
            once(short, way)
        _warm[length, name] = sampling.settle(lambda: once(short, way), unsettled, patience)
    gc.collect()
    if not way.collecting:
        gc.disable()
    try:
        repeats = max(1, 10 * SHORT // length)
        times = [once(length, way) for _ in range(repeats)]
    finally:
        gc.enable()
    means = (sum(part) / repeats for part in zip(*times))
    return {**dict(zip(PARTS, means)), "settled": _warm[length, name]}


def footprint(length: int) -> dict[str, float]:
    """Bytes per action of a recorded chain, beyond the arrays that it keeps for the rules.

    traced: what Python allocated; resident: how much the process grew, with all that C++ holds.
    """
    found = {}
    for _ in range(3):
        once(1_000 + length % 1_000)
    for measure, read in (("resident", resident), ("traced", traced)):
        gc.collect()
        if measure == "traced":
            tracemalloc.start()
        before = read()
        tape, _, h = record(length)
        h.block_until_ready()
        gc.collect()
        grown = read() - before
        if measure == "traced":
            tracemalloc.stop()
        found[measure] = (grown - kept_bytes(tape)) / length
        del tape, h
    return found


def kept_bytes(tape: tj.Tape) -> int:
    """The arrays that actions keep for their rules, each counted once."""
    arrays = {id(value): value for action in tape for value in getattr(action, "kept", ())}
    return sum(value.nbytes for value in arrays.values() if isinstance(value, jax.Array))


def traced() -> int:
    return tracemalloc.get_traced_memory()[0]


def resident() -> int:
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
