"""What compiling costs, and how much memory the compiled program wants: tapejax under jit against jax."""

from __future__ import annotations

import gc
from time import perf_counter, thread_time
from typing import Any

import jax

import tapejax as tj
from benchmarks.contestants.jax_itself import JaxCompiled
from benchmarks.contestants.tape import TapejaxCompiled
from benchmarks.workloads import Workload


def study(workload: Workload, rounds: int) -> dict[str, dict[str, Any]]:
    """By contestant: seconds of each round for `warm` and `cold` trace + lower and for `compile`; `temp_bytes`.

    Each round has a function that jax has not seen. Warm: the functions that it calls are known. Cold:
    nothing is known, neither to jax nor to tapejax.
    """
    contestants = [TapejaxCompiled(), JaxCompiled()]
    found: dict[str, dict[str, Any]] = {c.name: {"warm": [], "cold": [], "compile": []} for c in contestants}
    for contestant in contestants:  # the first round would find less at hand than the others
        lower(contestant, workload)
    for turn in range(rounds):
        for contestant in contestants[:: 1 if turn % 2 else -1]:
            row = found[contestant.name]
            seconds, lowered = lower(contestant, workload)
            row["warm"].append(seconds)
            seconds, compiled = timed(lowered.compile)
            row["compile"].append(seconds)
            row["temp_bytes"] = compiled.memory_analysis().temp_size_in_bytes
    for turn in range(rounds):
        for contestant in contestants[:: 1 if turn % 2 else -1]:
            seconds, _ = lower(contestant, workload, cold=True)
            found[contestant.name]["cold"].append(seconds)
    return found


def lower(contestant: Any, workload: Workload, *, cold: bool = False) -> tuple[float, Any]:
    """(seconds, the lowered program) of a fresh function."""
    arguments = contestant.arguments(workload)
    step = jax.jit(contestant.fresh(workload))
    if cold:
        tj.clear_plans()
        jax.clear_caches()
    return timed(lambda: step.lower(*arguments), clock=thread_time)  # one thread does it all, and never waits


def timed(call: Any, clock: Any = perf_counter) -> tuple[float, Any]:
    gc.collect()
    gc.disable()
    try:
        start = clock()
        result = call()
        return clock() - start, result
    finally:
        gc.enable()
