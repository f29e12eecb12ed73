"""What stays in memory after many steps, in megabytes: python -m tests.attacks.memory [NAME]."""

import gc
import json
import os
import random
import sys

import numpy as np

import tapejax as tj
import tapejax.numpy as tnp

DATA = np.linspace(-1.0, 1.0, 64, dtype="f")


def megabytes():
    """What this process holds now, after garbage was collected."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def leaf(value=DATA):
    return tj.tensor(value, requires_grad=True)


def measured(step, count, warm=10):
    """Megabytes before and after `count` steps, the first ones not counted."""
    for i in range(warm):
        step(i)
    before = megabytes()
    for i in range(warm, warm + count):
        step(i)
    return before, megabytes()


def new_lambdas(count=600):
    """A new function for tj.jit at every step."""
    x = leaf()

    def step(i):
        y = tj.jit(lambda x: (x * x + float(i)).sum())(x)
        tj.backward(y)[x].block_until_ready()

    return measured(step, count)


def random_subsets(count=300):
    """One structure, of which another part is held at each step."""
    rng = random.Random(5)
    x, held = leaf(), []

    def step(i):
        h = [x]
        for _ in range(12):
            h.append(tnp.tanh(h[-1]) * x)
        held[:] = rng.sample(h, rng.randint(0, len(h)))
        last = h[-1]
        del h
        tj.backward(last.sum(), wrt=x)[x].block_until_ready()

    return measured(step, count)


def shifts(count=500):
    """An option with another value at every step."""
    x = leaf(np.linspace(-1.0, 1.0, 1024, dtype="f"))

    def step(i):
        tj.backward((tnp.roll(x, i) * x).sum(), wrt=x)[x].block_until_ready()

    return measured(step, count)


CASES = {"new_lambdas": new_lambdas, "random_subsets": random_subsets, "shifts": shifts}


def main(names):
    print(f"{'case':<16} {'before':>8} {'after':>8} {'growth':>8}   MB")
    for name in names:
        before, after = CASES[name]()
        print(f"{name:<16} {before:8.0f} {after:8.0f} {after - before:8.0f}")
        print(json.dumps({"case": name, "before": before, "after": after}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or CASES)
