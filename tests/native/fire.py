"""What C must bear, in a process of its own: a crash is a failed test.

python -m tests.native.fire NAME        # prints {"tried": how much, "failures": [...]}
python -m tests.native.fire kept        # prints {"what is done: what there is more of": how many each time}

A garbage collection can come at any allocation, and a finalizer runs any Python code there.
"""

import contextlib
import gc
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

import tapejax as tj
from tapejax.ops.operators import OPS
from tapejax.tape.scope import current_scope

SIZE = 24  # parameters of a step


class Finalizer:
    """Does something when the garbage collector comes by."""

    def __init__(self, action):
        self.itself, self.action = self, action

    def __del__(self):
        self.action()


@contextlib.contextmanager
def collection_after(allocations, action):
    """A collection, and what it sets off, once so many containers have been made."""
    before = gc.get_threshold()
    gc.freeze()  # what is old need not be looked through
    gc.collect()
    gc.disable()
    Finalizer(action)
    gc.set_threshold(gc.get_count()[0] + allocations, 1000, 1000)
    gc.enable()
    try:
        yield
    finally:
        gc.set_threshold(*before)


def parameters():
    return [tj.tensor(np.float32(i + 1), requires_grad=True) for i in range(SIZE)]


def loss_of(given):
    total = given[0] * 2.0
    for one in given[1:]:
        total = total * 1.0 + one * one
    return total


def numbers(gradients, given):
    return [None if gradients.get(one) is None else float(gradients[one]) for one in given]


def by_jax():
    return [float(one) for one in jax.grad(loss_of)([jnp.float32(i + 1) for i in range(SIZE)])]


def another_step():
    x = tj.tensor(np.float32([1, 2]), requires_grad=True)
    with tj.Tape() as tape:
        y = (x * x).sum()
    assert float(tape.backward(y, wrt=[x])[x][1]) == 4.0


def collections(where):
    """At each place of a step in turn, a collection that does one of several things; the gradients are jax's."""
    expected, tried, failures = by_jax(), 0, []
    for _ in range(5):
        given = parameters()
        tj.backward(loss_of(given), wrt=given)

    def actions(given):
        found = {
            "records more": lambda: (given[0] * 3.0, given[1].sum()),
            "lets go of Tensors": lambda: [tj.tensor(1.0) for _ in range(50)],
            "looks at the tape": lambda: len(tj.current_tape()),
        }
        if where == "deferring":  # jax itself does not bear a call of it within a call of it
            found |= {"reads a value": lambda: (given[0] * 3.0).value, "makes another step": another_step}
        return found

    for what in actions([None]):
        for place in range(0, 180, 5):
            given, hits = parameters(), []
            action = actions(given)[what]

            def acts(action=action, hits=hits, when=f"{what}, after {place}"):
                hits.append(True)
                try:
                    action()
                except Exception as error:  # Python would only print it
                    failures.append(f"{when}, in the finalizer: {error!r}")

            try:
                if where == "deferring":
                    with collection_after(place, acts):
                        total = loss_of(given)
                    gradients = tj.backward(total, wrt=given)
                else:
                    total = loss_of(given)
                    with collection_after(place, acts):
                        gradients = tj.backward(total, wrt=given)
            except Exception as error:  # a failure of this place, and there are others
                failures.append(f"{what}, after {place}: {error!r}")
                tj.take()
                continue
            tried += bool(hits)
            if numbers(gradients, given) != expected:
                failures.append(f"{what}, after {place}: {numbers(gradients, given)}")
            tj.take()
    return tried, failures


def lists_that_change():
    """The list that was given as `wrt` is emptied meanwhile: gradients of what was in it, or an error."""
    expected, tried, failures = by_jax(), 0, []
    for _ in range(5):
        given = parameters()
        tj.backward(loss_of(given), wrt=given)
    for place in range(120):
        given, hits = parameters(), []
        kept, total = list(given), loss_of(given)

        def empties(given=given, hits=hits):
            hits.append(True)
            given.clear()
            given.append("no Tensor")
            [bytes(8 * SIZE) for _ in range(200)]

        try:
            with collection_after(place, empties):
                gradients = tj.backward(total, wrt=given)
            if numbers(gradients, kept) != expected:
                failures.append(f"after {place}: {numbers(gradients, kept)}")
        except (AttributeError, TypeError, tj.TapejaxError):
            pass
        tried += bool(hits)
        tj.take()
    return tried, failures


def half_made():
    """A Tensor that nobody gave anything: an error, from each way that leads to C."""
    tried, failures = 0, []
    x = tj.tensor(np.float32([1, 2]), requires_grad=True)
    op = tj.lift(jnp.tanh)
    for _ in range(3):
        op(x), x * x, x * 2.0, -x, x.sum(axis=0)
    ways = [
        op, lambda t: t * x, lambda t: x * t, lambda t: t * 2.0, lambda t: 2.0 * t, lambda t: -t,
        lambda t: t.sum(axis=0), lambda t: t[0], tj.backward, lambda t: tj.backward(x.sum(), wrt=[t]),
    ]  # fmt: skip
    for way in ways:
        tried += 1
        try:
            way(object.__new__(tj.Tensor))
            failures.append(f"no error, way {tried}")
        except (AttributeError, TypeError, tj.TapejaxError):
            pass
    return tried, failures


def kept():
    """What is done over and over: how much more there is of each kind, objects and references."""
    x, y = tj.tensor(np.ones(3, "f"), requires_grad=True), tj.tensor(np.ones(3, "f"))
    wrong = tj.tensor(np.ones(4, "f"))
    product, pair = tj.lift(lambda a, b: a * b, name="product"), tj.lift(lambda a, b: (a, b))

    def step():
        t = x
        for _ in range(5):
            t = -(product(t, y) + 1.0)
        return tj.backward(t.sum(axis=0), wrt=[x])

    def step_for_all():
        return tj.backward((x * y * 2.0).sum())

    def without_recording():
        with tj.no_grad():
            return (x * y).sum()

    def errors():
        for fails in (lambda: x + wrong, lambda: x + "1", lambda: x.sum(axis=7), lambda: product(x)):
            with contextlib.suppress(Exception):
                fails()

    def several():
        return pair(x, y), x.reshape((3, 1)), x[0], x**2, 2.0 / x, x / 0.0, x * True

    def long():
        t = x
        for _ in range(300):
            t = t * 1.0
        return t.value

    for work in (step, step_for_all, without_recording, errors, several, long):
        work(), work()
    ops = [product, pair, *OPS.values()]
    plans = [plan for op in ops for plan in op.plans.values()]
    shared = [x, y, x.kind, y.kind, *ops, *plans, *map(type, plans), current_scope(), True, False, None, tj.Tensor]
    gc.freeze()
    works = {step: 300, step_for_all: 300, without_recording: 300, errors: 90, several: 200, long: 20}
    found = {}
    for work, times in works.items():
        rounds = [growth(work, times, shared) for _ in range(4)]
        # Something may be compiled in one round, not in each.
        found |= {f"{work.__name__}: {what}": min(one[what] for one in rounds) / times for what in rounds[0]}
    return found


def growth(work, times, shared):
    """How much more there is of each kind after so many times."""
    gc.collect()
    objects, blocks = len(gc.get_objects()), sys.getallocatedblocks()
    references = [sys.getrefcount(one) for one in shared]
    for _ in range(times):
        work()
    gc.collect()
    more = {"objects": len(gc.get_objects()) - objects, "blocks of memory": sys.getallocatedblocks() - blocks}
    return more | {
        f"references to {i}, a {type(one).__name__}": sys.getrefcount(one) - n
        for i, (one, n) in enumerate(zip(shared, references))
    }


CHECKS = {
    "deferring": lambda: collections("deferring"),
    "backward": lambda: collections("backward"),
    "lists": lists_that_change,
    "half made": half_made,
}

if __name__ == "__main__":
    if sys.argv[1] == "kept":
        print(json.dumps(kept()))
    else:
        tried, failures = CHECKS[sys.argv[1]]()
        print(json.dumps({"tried": tried, "failures": failures}))
