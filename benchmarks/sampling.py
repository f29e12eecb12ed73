"""One sample: a contestant's call, often enough to last, with nothing else going on."""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

SHORTEST = 20e-3  # seconds that a sample lasts at least
# The tape compiles a structure quickly first, and well when it has come often: some thousand times if it is small.
WARM_UP_CALLS, WARM_UP_SECONDS = 3000, 4.0


def warm(call: Callable[[], Any], calls: int = WARM_UP_CALLS, seconds: float = WARM_UP_SECONDS) -> Any:
    """Call it until nothing is new to it, or for some seconds; what it returned last."""
    begin, result = perf_counter(), call()
    for n in range(1, calls):
        if n >= 5 and perf_counter() - begin > seconds:
            break
        result = call()
    return result


def calibrate(call: Callable[[], Any], shortest: float = SHORTEST) -> int:
    """How many calls make a sample."""
    count = 1
    while True:
        seconds, _ = sample(call, count)
        if seconds * count >= shortest:
            return count
        count = max(count + 1, int(1.2 * shortest / max(seconds, 1e-9)))


def sample(call: Callable[[], Any], count: int) -> tuple[float, float]:
    """(wall seconds per call, cores in use). The garbage collector is off, as timeit has it."""
    gc.collect()
    gc.disable()
    try:
        loop = range(count)
        cpu, start = process_time(), perf_counter()
        for _ in loop:
            call()
        wall, cpu = perf_counter() - start, process_time() - cpu
    finally:
        gc.enable()
    return wall / count, cpu / wall
