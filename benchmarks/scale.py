"""Chains of adds on an explicit Tape, from a thousand actions to a million: is the cost of one flat?"""

from __future__ import annotations

import gc
import os
import tracemalloc
from time import perf_counter

import jax
import jax.numpy as jnp

import tapejax as tj

_warm: set[int] = set()


def record(length: int) -> tuple[tj.Tape, tj.Tensor, tj.Tensor]:
    x = tj.tensor(jnp.zeros((8,)), requires_grad=True)
    one = tj.tensor(jnp.ones((8,)))
    with tj.Tape() as tape:
        h = x
        for _ in range(length):
            h = h + one
    return tape, x, h


def once(length: int) -> tuple[float, float]:
    """Seconds per action, of the forward with recording and of the backward."""
    start = perf_counter()
    tape, x, h = record(length)
    h.block_until_ready()
    middle = perf_counter()
    gradient = tape.backward(h, wrt=[x])[x].block_until_ready()
    end = perf_counter()
    assert (gradient == 1).all()
    assert (h.value == length).all()
    return (middle - start) / length, (end - middle) / length


def chain(length: int) -> dict[str, float]:
    """Seconds per action, with the garbage collector off (as everywhere here) and on (as users have it)."""
    if length not in _warm:  # structures are known from the second time on; a long chain is made of the same blocks
        _warm.add(length)
        for _ in range(3):
            once(length if length <= 10_000 else 1_000 + length % 1_000)
    found = {}
    for collecting in ("off", "on"):
        gc.collect()
        if collecting == "off":
            gc.disable()
        try:
            repeats = max(1, 10_000 // length)
            times = [once(length) for _ in range(repeats)]
        finally:
            gc.enable()
        found[f"forward, gc {collecting}"] = sum(forward for forward, _ in times) / repeats
        found[f"backward, gc {collecting}"] = sum(backward for _, backward in times) / repeats
    return found


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
