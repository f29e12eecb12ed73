"""`python -m benchmarks.first_contact`: what a newcomer waits for. A character model, in fresh processes.

Processor time, caches empty: the first eager step against the first call of jax.jit(jax.value_and_grad) of the same
loss; thirty steps over twenty lengths, some visited again; the time to the second step of a second process with jax's
compilation cache against that of the first, and the same when a process before it had trained for a while. And in
seconds that pass: the worst step after a structure's first visit against the median step, over as many steps as it
takes until the program has been compiled well.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.environment import SETTINGS

LENGTH = 64
LENGTHS = [*range(32, 42), 32, 42, 43, 33, 44, 45, 34, 46, 47, 35, 48, 49, 36, 50, 37, 51, 38, 32, 33, 34]
STEPS = 120  # of one length: it is compiled well after seventy or so
OURS, JAX = "tapejax", "jax.jit"
PROCESSES = {"first": 2, "second": 2, "trained": STEPS, "after": 20}  # one after the other, with one cache: their steps


def processor_time() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def work(who: str, lengths: list[int]) -> None:
    """In a process of its own: print what each step took, and everything from the start of the process."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from benchmarks import character

    rng = np.random.default_rng(0)
    p = character.parameters(rng)
    is_quick = lambda: False
    if who == JAX:
        step = jax.jit(jax.value_and_grad(lambda *args: character.loss(jnp, *args)))
        run = lambda data: step(p, *data)
    else:
        import tapejax as tj
        import tapejax.numpy as tnp

        p = {name: tj.tensor(value, requires_grad=True) for name, value in p.items()}
        is_quick = lambda: any(program.quick for program in tj.programs())

        def run(data):
            found = character.loss(tnp, p, *map(tj.tensor, data))
            grads = tj.backward(found, wrt=p)
            return found.value, [grads[x] for x in p.values()]

    jax.block_until_ready(jnp.ones(3) + 1)
    used, passed = [], []
    for length in lengths:
        data = character.batch(rng, length)
        before, clock = processor_time(), time.perf_counter()
        jax.block_until_ready(run(data))
        passed.append(time.perf_counter() - clock)
        used.append(processor_time() - before)
    print(json.dumps({"processor": used, "wall": passed, "in_all": processor_time(), "quick": is_quick()}))


def measure(who: str, lengths: list[int], cache: str | None = None) -> dict[str, Any]:
    """What `work` found, as a newcomer has it: none of our settings, and jax on a CPU."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_") and k not in SETTINGS}
    environment["JAX_PLATFORMS"] = "cpu"
    if cache:
        environment |= {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        environment |= {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0"}
    command = [sys.executable, "-m", "benchmarks.first_contact", who, json.dumps(lengths)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise RuntimeError(f"{who} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def study(rounds: int, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Everything measured, round by round: "same" and "lengths" by contestant, and the processes with a cache."""
    found: dict[str, Any] = {"same": {OURS: [], JAX: []}, "cache": {}, "lengths": {}}
    for turn in range(rounds):
        say(f"  one length, and with a cache: round {turn + 1} of {rounds}")
        for who, steps in ((JAX, 12), (OURS, STEPS)):
            found["same"][who].append(measure(who, [LENGTH] * steps))
        with tempfile.TemporaryDirectory() as cache:
            for which, steps in PROCESSES.items():
                found["cache"].setdefault(which, []).append(measure(OURS, [LENGTH] * steps, cache))
    for who in (JAX, OURS):
        say(f"  thirty steps over twenty lengths: {who}")
        found["lengths"][who] = [measure(who, LENGTHS)]
    return found


def main() -> None:
    from benchmarks import bars, report

    say = lambda line: print(line, file=sys.stderr, flush=True)
    print(report.rows_table(list(bars.first_contact({"first_contact": study(3, say)}))))


if __name__ == "__main__":
    main() if len(sys.argv) == 1 else work(sys.argv[1], json.loads(sys.argv[2]))
