"""Interrupt by real signals, at random times: python -m tests.attacks.alarms COUNT SCENARIO..."""

import contextlib
import json
import random
import signal
import sys
import time

import tapejax as tj
from tests.attacks.interrupts import FOLDER, quiet, reset, visits
from tests.attacks.scenarios import SCENARIOS


class Alarm:
    """Raises KeyboardInterrupt once, `delay` seconds after it is set, or a little later.

    While jax traces (`anywhere` is False) it waits for a frame of tapejax: an interrupt within jax's own caches
    can leave an entry there that raises RecursionError from then on. Nor can Python code protect a `with` from what
    comes before the first line of its `__exit__`.
    """

    def __init__(self):
        self.armed, self.fired, self.anywhere = False, 0, True
        signal.signal(signal.SIGALRM, self.ring)

    def ring(self, signum, frame):
        if not self.armed:
            return
        code = frame.f_code
        if code.co_name == "__exit__" or not (self.anywhere or code.co_filename.startswith(FOLDER)):
            signal.setitimer(signal.ITIMER_REAL, 3e-5)
            return
        self.armed = False
        self.fired += 1
        raise KeyboardInterrupt

    def during(self, delay, work):
        with quiet(), contextlib.suppress(KeyboardInterrupt):
            self.armed = True
            signal.setitimer(signal.ITIMER_REAL, delay)
            work()
            self.armed = False
        self.armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)


def takes(scenario):
    """Seconds of an attack as it is now."""
    run = scenario(0)
    start = time.perf_counter()
    run.attack()
    return time.perf_counter() - start


def attempt(alarm, scenario, seed, delay):
    run = scenario(seed)
    base = tj.current_tape(), tj.is_recording()
    alarm.during(delay, run.attack)
    if (tj.current_tape(), tj.is_recording()) != base:
        return f"the scope is {tj.current_tape()!r}, recording {tj.is_recording()}; it was {base}"
    return run.problem() or scenario(seed + 1).whole()


def main(count, names, limit=8):
    alarm, rng, failures = Alarm(), random.Random(7), []
    run, broken = 0, False
    while alarm.fired < count and len(failures) < limit:
        name = names[run // 25 % len(names)]
        scenario = SCENARIOS[name]
        if run % 25 == 0 or broken:
            reset()
            visited = rng.choice([0, 1, 4, 4])
            alarm.anywhere = visited == 4
            problem = visits(scenario, visited)
            if problem:
                failures.append(f"{name}: {problem}")
            duration = takes(scenario)
        run += 1
        try:
            problem = attempt(alarm, scenario, run, rng.uniform(1e-5, 1.1 * duration))
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error)[:300]}"
        broken = problem is not None
        if broken:
            failures.append(f"{name}, {alarm.fired} interrupts so far: {problem}")
    print(json.dumps({"tried": alarm.fired, "runs": run, "failures": failures}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
