"""Interrupt tapejax at every place where CPython would let a signal handler run.

`Interrupter` traces the opcodes of the package's own files and acts at the n-th such place: by raising
KeyboardInterrupt, or by calling something. A place is the start of a function, a jump back, or the end
of a call of a C function, with the exception handlers that hold there. (Raising at any line would also hit
the first line of a `finally`, or the end of a `with lock`, where no signal can arrive.)

    python -m tests.attacks.interrupts backward fresh:10 compiled:100     # a scenario; states, and how many places
"""

import contextlib
import dis
import functools
import gc
import json
import os
import random
import signal
import sys
import traceback

import tapejax as tj

FOLDER = os.path.dirname(os.path.abspath(tj.__file__)) + os.sep
PATIENCE = 30  # seconds for one run; it takes one at most
CALLS = {"CALL", "CALL_KW", "CALL_FUNCTION_EX", "PRECALL"}


@functools.cache
def instructions(code):
    """{offset: (name, handler there)} of a code object."""
    table = dis._parse_exception_table(code)  # the only way to know it; dis shows it in 3.11 and later

    def handler(offset):
        return next(((e.target, e.depth) for e in table if e.start <= offset < e.end), None)

    return {i.offset: (i.opname, handler(i.offset)) for i in dis.get_instructions(code)}


class Interrupter:
    """Counts places, and calls `act` once, at the n-th (never, if n is None)."""

    def __init__(self, n, act, every_line=False):
        self.n, self.act, self.every_line = n, act, every_line
        self.places, self.where, self.last = 0, None, None

    def __enter__(self):
        sys.settrace(self.called)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def called(self, frame, event, _):
        self.last = None
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = self.every_line, not self.every_line
        if not self.every_line and frame.f_code.co_name != "__exit__":
            # No Python code can protect a `with` from what comes before the first line of its __exit__.
            self.place(frame)
        return self.inside

    def inside(self, frame, event, _):
        if event == "line" and self.every_line:
            self.place(frame)
        elif event == "opcode":
            at, last, self.last = frame.f_lasti, self.last, (frame, frame.f_lasti)
            if last is not None and last[0] is frame:
                known = instructions(frame.f_code)
                (name, handler), (following, there) = known[last[1]], known[at]
                ended = name in CALLS and not (name == "PRECALL" and following == "CALL")
                if (ended or name.startswith("JUMP_BACKWARD")) and handler == there:
                    self.place(frame)
        else:
            self.last = None
        return self.inside

    def place(self, frame):
        self.places += 1
        if self.places == self.n:
            self.where = f"{frame.f_code.co_filename[len(FOLDER) :]}:{frame.f_lineno} {frame.f_code.co_name}"
            self.act()


def raise_interrupt():
    raise KeyboardInterrupt


class Hung(BaseException):
    """It took far too long: something waits for ever."""


@contextlib.contextmanager
def guard(seconds):
    """A wait for a lock is broken off by an alarm."""

    def stop(signum, frame):
        raise Hung(f"no progress for {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def spread(total, budget, seed):
    """Up to `budget` of 1..total, evenly, with some chance in it."""
    if total <= budget:
        return list(range(1, total + 1))
    rng = random.Random(seed)
    step = total / budget
    return sorted({1 + int(i * step + rng.random() * step) for i in range(budget)})


def reset():
    """Out of every scope that an interrupt may have left open, with nothing known."""
    tj.take()
    tj.clear_plans()
    gc.collect()


def attempt(scenario, n, seed, act=raise_interrupt, **how):
    """One run that is interrupted at place n: what is wrong afterwards, or None; and the tracer."""
    tracer = Interrupter(n, act, **how)
    try:
        with guard(PATIENCE):
            run = scenario(seed)
            base = tj.current_tape(), tj.is_recording()
            with quiet(), contextlib.suppress(KeyboardInterrupt), tracer:
                run.attack()
            if (tj.current_tape(), tj.is_recording()) != base:
                return f"the scope is {tj.current_tape()!r}, recording {tj.is_recording()}; it was {base}", tracer
            return run.problem() or scenario(seed + 1).whole(), tracer
    except Exception as error:
        last = "".join(traceback.format_tb(error.__traceback__)[-2:])
        return f"{type(error).__name__}: {str(error)[:300]}\n{last}", tracer
    except Hung as error:
        return f"Hung: {error}", tracer
    finally:
        sys.settrace(None)


@contextlib.contextmanager
def quiet():
    """An interrupt that arrives within a weakref's callback is not raised by Python; nor printed, here."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    try:
        yield
    finally:
        sys.unraisablehook = hook


def visits(scenario, count):
    for i in range(count):
        problem = scenario(1000 + i).whole()
        if problem:
            return f"without an interrupt, visit {i + 1}: {problem}"
    return None


BEFORE = {"fresh": 0, "second": 1, "compiled": 4}


def attacks(scenario, state, budget, act=raise_interrupt, limit=8, **how):
    """All interrupts of a scenario in a state: (places, how many were tried, failures)."""
    reset()
    problem = visits(scenario, BEFORE[state])
    if problem:
        return 0, 0, [problem]
    problem, tracer = attempt(scenario, None, 0, act, **how)
    if problem:
        return 0, 0, [f"{state}, without an interrupt: {problem}"]
    failures, tried = [], 0
    for n in spread(tracer.places, budget, scenario.__name__):
        if state != "compiled" or problem:
            reset()
            visits(scenario, BEFORE[state])
        problem, one = attempt(scenario, n, n, act, **how)
        tried += 1
        if problem:
            failures.append(f"{state}, place {n} ({one.where}): {problem}")
        if len(failures) == limit or (problem and problem.startswith("Hung")):
            break
    return tracer.places, tried, failures


def main(name, *budgets):
    """Print one line of JSON for each `state:budget`."""
    from tests.attacks.scenarios import SCENARIOS

    for state, budget in (text.split(":") for text in budgets):
        places, tried, failures = attacks(SCENARIOS[name], state, int(budget))
        print(json.dumps({"state": state, "places": places, "tried": tried, "failures": failures}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
