"""Ops within ops: from a trace function, a signal handler, while jax compiles, or `__del__` during garbage collection.

python -m tests.attacks.reentry KIND WORK BUDGET       # KIND: lines, signals, compiling, garbage; WORK: see WORKS
"""

import faulthandler
import gc
import json
import signal
import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np

import tapejax as tj
import tapejax.numpy as tnp
from tapejax.ground.compat import is_tracing
from tests.attacks.interrupts import FOLDER, Hung, attempt, reset, spread, visits
from tests.attacks.scenarios import SCENARIOS, alike

DATA = np.array([0.25, -0.5, 1.0], "f")
FAILURES: list[str] = []
CURRENT: list = []  # the run that is being disturbed
HELD: list = []


def compare(got, expected, what):
    if not alike(got, expected):
        FAILURES.append(f"{what}: {got} instead of {expected}")


def look():
    """An op on tensors of its own, looked at at once."""
    compare(tnp.tanh(tj.tensor(DATA)) * 3.0, np.tanh(DATA) * 3.0, "an op within an op")


def record():
    """Recorded on whatever tape is current, and looked at later."""
    HELD.append(tj.tensor(DATA, requires_grad=True) * 2.0 + 1.0)
    del HELD[:-20]


def back():
    """A whole step on a tape of its own."""
    x = tj.tensor(DATA, requires_grad=True)
    with tj.Tape() as tape:
        y = (tnp.sin(x) * x).sum()
    compare(tape.backward(y)[x], np.cos(DATA) * DATA + np.sin(DATA), "a gradient within an op")


def same():
    """On the very tensors that are in use, some of them not computed yet."""
    for run in CURRENT:
        compare(run.before, run.expected["before"], "a value looked at within an op")
        compare(
            run.x * 2.0 + run.w, 2.0 * np.asarray(run.x.value) + np.asarray(run.w.value), "an op on the same tensors"
        )
        for name in ("h", "y", "loss"):
            if hasattr(run, name):
                compare(getattr(run, name), run.expected[name], f"{name} looked at within an op")


def again():
    """The whole scenario within itself: the very same programs are asked for."""
    for run in list(CURRENT):
        with tj.Tape():  # its backward consumes this one, not the ambient tape
            problem = type(run)(7).whole()
        if problem:
            FAILURES.append(f"the same within itself: {problem}")
        CURRENT[:] = [run]


def control():
    """Nothing of ours: what jax itself bears."""
    compare(jnp.tanh(DATA) * 3.0, np.tanh(DATA) * 3.0, "jax within an op")


WORKS = {"control": control, "look": look, "record": record, "back": back, "same": same, "again": again}


def jax_is_between():
    """Whether jax traces, or (from 0.12 on) is just changing from one trace to another: no op of its own works then."""
    try:
        return is_tracing()
    except AssertionError:
        return True


COLLECTING: list = []  # not empty while garbage is collected


def collection_begins(phase, info):
    COLLECTING.append(phase)


def collection_ends(phase, info):
    if phase == "stop":
        COLLECTING.clear()


gc.callbacks.insert(0, collection_begins)
gc.callbacks.append(collection_ends)

# jaxlib holds a lock while it makes a jit, and waits for ever if it is asked for another.
# A jitted function of jax that is being compiled refuses to be called; ours are tried while jax compiles by `compiling`.
NOT_WITHIN = {"_cpp_pjit", "cache_miss"}
# Before Python 3.12 garbage is collected inside any allocation, also one by which jaxlib notes the stack. An op of plain
# jax there notes the stack again, and now and then frees code objects that are in use: Python crashes much later.
COLLECTS_ANYWHERE = sys.version_info < (3, 12)
if COLLECTS_ANYWHERE:
    NOT_WITHIN |= {"collection_begins", "collection_ends"}


def jax_does_not_bear_it(within=NOT_WITHIN):
    if jax_is_between() or (COLLECTS_ANYWHERE and COLLECTING):
        return True
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in within:
            return True
        frame = frame.f_back
    return False


def safely(work, within=NOT_WITHIN):
    """What a handler does: not where jax itself does not bear it, and not within itself."""
    busy = []

    def act():
        if busy or jax_does_not_bear_it(within):
            return
        busy.append(True)
        try:
            work()
        except Exception as error:
            last = "".join(traceback.format_tb(error.__traceback__)[-2:])
            FAILURES.append(f"{work.__name__} raised {type(error).__name__}: {str(error)[:200]}\n{last}")
        finally:
            busy.clear()

    return act


def current(scenario):
    """The scenario, with each run known to `same`."""

    class Known(scenario):
        def attack(self):
            CURRENT[:] = [self]
            super().attack()

    Known.__name__ = scenario.__name__
    return Known


def held_are_right():
    for tensor in HELD:
        compare(tensor, 2.0 * DATA + 1.0, "recorded within an op")
    HELD.clear()


def by_lines(scenario, act, budget, state):
    """At each of some lines of tapejax, once."""

    def ready():
        reset()
        visits(scenario, {"second": 1, "compiled": 4}[state])

    ready()
    _, tracer = attempt(scenario, None, 0, every_line=True)
    tried = 0
    for n in spread(tracer.places, budget, scenario.__name__):
        if state == "second":
            ready()
        problem, tracer = attempt(scenario, n, n, act, every_line=True)
        held_are_right()
        tried += 1
        if problem:
            FAILURES.append(problem)
        if FAILURES:
            FAILURES[:] = [f"{state}, line {n} ({tracer.where}): {text}" for text in FAILURES]
            break
    return tried


MOMENT = 5e-4  # seconds; a scenario takes about twice as long


def by_signals(scenario, act, budget):
    """A moment after the last one ended, while the scenario runs: so many runs, and until so many signals came."""
    reset()
    visits(scenario, 3)
    fired, on = 0, False

    def ring(signum, frame):
        nonlocal fired
        fired += 1
        act()
        if on:
            signal.setitimer(signal.ITIMER_REAL, MOMENT)

    before = signal.signal(signal.SIGALRM, ring)
    try:
        for seed in range(100 * budget):
            if seed >= budget <= fired:
                break
            on = True
            signal.setitimer(signal.ITIMER_REAL, MOMENT)
            problem = scenario(seed).whole()
            on = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            held_are_right()
            if problem or FAILURES:
                FAILURES.append(f"run {seed}: {problem}")
                break
    finally:
        on = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return fired


def by_compilations(scenario, act, budget):
    """Each time jax has traced, lowered or compiled something, while it is still in the same call."""
    fired, on = 0, False

    def told(event, seconds, **_):
        nonlocal fired
        if on and "/compile/" in event:
            fired += 1
            act()

    jax.monitoring.register_event_duration_secs_listener(told)
    for seed in range(budget):
        reset()
        run, on = scenario(seed), True
        for _ in range(4):
            run.attack()
            on = False
            problem = run.whole()
            if problem or FAILURES:
                FAILURES.append(f"run {seed}: {problem}")
                return fired
            run, on = scenario(seed), True
        on = False
    return fired


def by_garbage(scenario, act, budget):
    """In `__del__` of an object in a reference cycle, with garbage collected at nearly every allocation.

    Only where code of tapejax allocates: jax alone does not bear an op of its own at any allocation of another.
    """
    seen = fired = 0
    on = False

    class Cycle:
        def __init__(self):
            self.me = self

        def __del__(self):
            nonlocal seen, fired
            if on:
                Cycle()  # there is garbage again
                seen += 1
                if seen % 3 == 0 and sys._getframe(1).f_code.co_filename.startswith(FOLDER):
                    fired += 1
                    act()

    reset()
    visits(scenario, 3)
    before = gc.get_threshold()
    for seed in range(budget):
        run, on = scenario(seed), True
        Cycle()
        gc.set_threshold(1)
        try:
            run.attack()
        finally:
            gc.set_threshold(*before)
            on = False
        problem = run.whole()
        held_are_right()
        if problem or FAILURES:
            FAILURES.append(f"run {seed}: {problem}")
            break
    return fired


def main(kind, work, budget):
    act = safely(WORKS[work], NOT_WITHIN - {"cache_miss"} if kind == "compiling" else NOT_WITHIN)
    for name in ("record", "record_on_tape", "look", "backward", "backward_retained", "training"):
        scenario = current(SCENARIOS[name])
        faulthandler.dump_traceback_later(50 + budget, exit=True)  # a deadlock shows where it is
        try:
            if kind == "lines":
                done = by_lines(scenario, act, budget, "compiled")
                done += 0 if FAILURES else by_lines(scenario, act, budget // 8, "second")
            else:
                done = {"signals": by_signals, "compiling": by_compilations, "garbage": by_garbage}[kind](
                    scenario, act, budget
                )
        except (Exception, Hung) as error:
            done = 0
            last = "".join(traceback.format_tb(error.__traceback__)[-2:])
            FAILURES.append(f"{type(error).__name__}: {str(error)[:300]}\n{last}")
        print(
            json.dumps({"scenario": name, "tried": done, "failures": [f"{name}: {text}" for text in FAILURES]}),
            flush=True,
        )
        if any("Hung" in text for text in FAILURES):
            return  # whoever waits holds things that the next one needs
        FAILURES.clear()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
