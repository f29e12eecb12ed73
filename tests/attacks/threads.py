"""Threads that record and go back while others look at what is not computed yet.

python -m tests.attacks.threads ROUNDS
"""

import faulthandler
import json
import queue
import sys
import threading
import traceback

import numpy as np

import tapejax as tj
import tapejax.numpy as tnp
from tests.attacks.scenarios import forward, judge, leaf

WORKERS, LOOKERS = 3, 3


def wrong(got, expected, what):
    got = np.asarray(getattr(got, "value", got))
    if got.shape != expected.shape or not np.allclose(got, expected, rtol=2e-4, atol=2e-5):
        return [f"{what} is {got.tolist()} instead of {expected.tolist()}"]
    return []


def work(number, rounds, pending, failures, explicit):
    """Record, hand out what is pending, go back."""
    rng = np.random.default_rng([number, 5])
    for i in range(rounds):
        x, w = (0.7 * rng.standard_normal(shape).astype("f") for shape in [(3,), (3, 3)])
        expected = {name: np.asarray(value) for name, value in judge(x, w).items()}
        tx, tw = leaf(x), leaf(w)
        tape = tj.Tape() if explicit else tj.current_tape()
        if explicit:
            with tape:
                h, y, loss = forward(tnp, tx, tw)
        else:
            h, y, loss = forward(tnp, tx, tw)
        for name, tensor in (("h", h), ("y", y), ("loss", loss), ("h", h)):
            pending.put((name, tensor, expected[name]))
        if i % 3 == 0:
            failures += wrong(loss, expected["loss"], f"worker {number}, step {i}: loss")
        grads = tape.backward(loss, retain_tape=explicit and i % 2 == 0)
        failures += wrong(grads[tx], expected["gx"], f"worker {number}, step {i}: gx")
        failures += wrong(grads[tw], expected["gw"], f"worker {number}, step {i}: gw")


def look(number, pending, failures):
    """Look at what others made; use it in an op too."""
    while True:
        item = pending.get()
        if item is None:
            return
        name, tensor, expected = item
        if number % 2:
            with tj.no_grad():
                failures += wrong(tensor * 2.0, 2.0 * expected, f"looker {number}: twice {name}")
        failures += wrong(tensor, expected, f"looker {number}: {name}")


def safely(function, failures, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        last = "".join(traceback.format_tb(error.__traceback__)[-2:])
        failures.append(f"{function.__name__}: {type(error).__name__}: {str(error)[:300]}\n{last}")


def race(rounds, explicit):
    pending, failures = queue.Queue(), []
    workers = [
        threading.Thread(target=safely, args=(work, failures, n, rounds, pending, failures, explicit), daemon=True)
        for n in range(WORKERS)
    ]
    lookers = [
        threading.Thread(target=safely, args=(look, failures, n, pending, failures), daemon=True)
        for n in range(LOOKERS)
    ]
    for thread in workers + lookers:
        thread.start()
    for thread in workers:
        thread.join()
    for _ in lookers:
        pending.put(None)
    for thread in lookers:
        thread.join()
    return failures


def main(rounds):
    faulthandler.dump_traceback_later(60, repeat=True)
    sys.setswitchinterval(1e-5)
    for explicit in (True, False):
        failures = race(rounds, explicit)
        print(json.dumps({"explicit": explicit, "tried": rounds, "failures": failures[:8]}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
