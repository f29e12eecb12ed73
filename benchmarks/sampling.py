"""One sample: a contestant's call, often enough to last, with nothing else going on."""

from __future__ import annotations

import gc
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

SHORTEST = 20e-3  # seconds that a sample lasts at least
WARM_UP_CALLS, WARM_UP_SECONDS = 300, 1.0
# The tape runs what is new op by op or by a program that was compiled quickly, and has a better one when it has come often.
CALM_CALLS, CALM_SECONDS = 3000, 4.0  # nothing of the kind for so many calls, or for so long: nothing is to come
PATIENCE = 90.0  # seconds that this may take at most


def warm(call: Callable[[], Any], calls: int = WARM_UP_CALLS, seconds: float = WARM_UP_SECONDS) -> Any:
    """Call it until little is new to it: so many times, or for a while; what it returned last."""
    begin, result = perf_counter(), call()
    for n in range(1, calls):
        if n >= 5 and perf_counter() - begin > seconds:
            break
        result = call()
    return result


def settle(call: Callable[[], Any], unsettled: Callable[[Callable[[], Any]], bool], patience: float = PATIENCE) -> bool:
    """Call it until nothing is compiled for it any more; False: it does not come to rest, and patience is at an end."""
    begin = calm_since = perf_counter()
    calm = 0
    while calm < CALM_CALLS and (calm < 5 or perf_counter() - calm_since < CALM_SECONDS):
        if unsettled(call):
            calm, calm_since = 0, perf_counter()
        else:
            calm += 1
        if perf_counter() - begin > patience:
            return False
    return True


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
        call()  # not counted: others have had the processor's caches since the last sample
        cpu, start = process_time(), perf_counter()
        for _ in loop:
            call()
        wall, cpu = perf_counter() - start, process_time() - cpu
    finally:
        gc.enable()
    return wall / count, cpu / wall
