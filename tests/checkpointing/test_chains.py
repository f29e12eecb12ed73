"""Chains: schedules run functions as often as they say, keep what they say, and change no gradient."""

import gc
from functools import cache

import jax
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tapejax import errors
from tapejax.checkpointing.sequential import evaluations, repetitions, split

WAYS = [
    {},
    {"segments": 1},
    {"segments": 4},
    {"segments": 100},
    {"segments": "binomial", "slots": 1},
    {"segments": "binomial", "slots": 3},
    {"segments": "binomial", "slots": 50},
]


class Layers:
    """Layers that count how often they run."""

    def __init__(self, n, width=8):
        self.w = tj.tensor(np.linspace(0.5, 1.0, width), requires_grad=True)
        self.runs = 0
        self.functions = [self.layer] * n

    def layer(self, x):
        self.runs += 1
        return tnp.sin(x) * self.w

    def straight(self, x):
        for function in self.functions:
            x = function(x)
        return x


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_gradients_and_counts(way):
    layers, x = Layers(17), tj.tensor(np.linspace(0.1, 1.0, 8), requires_grad=True)
    before, tj.fusion.enabled = tj.fusion.enabled, False
    try:
        plain = tj.backward(layers.straight(x))
    finally:
        tj.fusion.enabled = before
    layers.runs = 0
    chain = tj.sequential(layers.functions, **way)
    grads = tj.backward(chain(x))
    assert layers.runs == chain.forward_evaluations
    np.testing.assert_array_equal(grads[x], plain[x])
    np.testing.assert_array_equal(grads[layers.w], plain[layers.w])


def test_random_numbers_in_a_binomial_chain():
    layer = lambda x: tnp.sin(x) * tj.random.bernoulli(0.8, (16,))
    x = tj.tensor(np.linspace(0.1, 1.0, 16), requires_grad=True)
    found = []
    for run in (tj.sequential([layer] * 12, segments="binomial", slots=2), tj.sequential([layer] * 12, segments=1)):
        tj.random.seed(0)
        found.append((tj.backward(run(x))[x], tj.random.get_state()))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6)
    assert found[0][1] == found[1][1]


@cache
def best(n, slots):
    if n == 1:
        return 1
    if slots == 0:
        return n * (n + 1) // 2
    return min(m + best(n - m, slots - 1) + best(m, slots) for m in range(1, n))


def test_no_schedule_is_better():
    for n in range(1, 40):
        for slots in range(6):
            assert evaluations(n, slots) == best(n, slots)
            if n > 1:
                first = split(n, slots)
                assert 1 <= first < n
                rest = evaluations(n - first, max(slots - 1, 0)) if slots else 1
                assert first + rest + evaluations(first, slots) == best(n, slots)
    assert repetitions(1024, 8) == 5
    assert evaluations(1024, 8) == 5143


def test_states_of_any_structure_and_several_inputs():
    first = lambda a, b: {"h": a * b, "t": 0}
    step = lambda s: {"h": tnp.sin(s["h"]), "t": s["t"] + 1}
    a, b = tj.tensor(2.0, requires_grad=True), tj.tensor(0.3, requires_grad=True)
    out = tj.sequential([first] + [step] * 5, segments=3)(a, b)
    assert out["t"] == 5
    grads = tj.backward(out["h"])
    judge = lambda a, b: jax.numpy.sin(judge5(a, b))
    judge5 = lambda a, b: jax.lax.fori_loop(0, 4, lambda _, h: jax.numpy.sin(h), a * b)
    np.testing.assert_allclose(grads[a], jax.grad(judge)(2.0, 0.3), rtol=1e-5)


def test_a_drifting_layer_in_a_chain_is_named():
    runs = [0]

    def drifts(x):
        runs[0] += 1
        return x * runs[0]

    x = tj.tensor(1.0, requires_grad=True)
    y = tj.sequential([tnp.sin, drifts, tnp.sin, tnp.sin], segments=2)(x)
    with pytest.raises(errors.ReplayError, match=r"functions 0 to 1 of a chain.*`runs`"):
        tj.backward(y)


def test_bad_arguments():
    for arguments in [
        {"segments": 0}, {"segments": "cubic"}, {"segments": "binomial"}, {"segments": "binomial", "slots": 0},
        {"segments": 2, "slots": 3},
    ]:  # fmt: skip
        with pytest.raises(errors.ArgumentError):
            tj.sequential([tnp.sin] * 4, **arguments)
    with pytest.raises(errors.ArgumentError, match="list of functions"):
        tj.sequential([])
    with pytest.raises(errors.ArgumentError, match="slots or more"):
        tj.sequential([tnp.sin] * 100_000, segments="binomial", slots=1)
    with pytest.raises(errors.ArgumentError, match="needs an input"):
        tj.sequential([tnp.sin])()


def peak(run, x, w, look_at):
    """The most bytes that were alive in a step, above what was there before."""
    from tapejax.engine import backward as engine

    gc.collect()
    live = lambda: sum(array.nbytes for array in jax.live_arrays())
    before, highest, pull = live(), 0, engine.pull

    def look(*arguments):
        nonlocal highest
        if arguments:
            pull(*arguments)
        highest = max(highest, live() - before)

    look_at.append(look)
    engine.pull = look
    try:
        tj.backward(run(x).sum(), wrt=w)
    finally:
        engine.pull = pull
        look_at.clear()
    return highest


def measured(n, ways, size=2048, every=1):
    w, x, looks, runs = tj.tensor(np.full(size, 1.01), requires_grad=True), tj.tensor(np.ones(size)), [], [0]

    def layer(x):
        runs[0] += 1
        if looks and runs[0] % every == 0:
            looks[0]()
        return tnp.sin(x * w)

    found = {}
    before, tj.fusion.enabled = tj.fusion.enabled, False
    try:
        tj.backward(tj.checkpoint(lambda x: layer(x), x).sum(), wrt=w)  # traced
        for way in ways:
            run = tj.sequential([layer] * n, **way)
            runs[0] = 0
            found[str(way)] = peak(run, x, w, looks) / (4 * size), runs[0]
    finally:
        tj.fusion.enabled = before
    return [found[str(way)] for way in ways]


def test_memory_of_schedules():
    """In states: a layer keeps its input and its product, so 2 each; gradients and what is being made come on top."""
    n = 64
    none, sqrt, binomial = measured(n, [{"segments": 1}, {}, {"segments": "binomial", "slots": 4}])
    assert none[0] >= 2 * n
    assert sqrt[0] <= 8 + 2 * 8 + 8
    assert binomial[0] <= 4 + 2 + 9  # a cotangent waits at each level
    assert (sqrt[1] + 2 * n) / (3 * n) <= 1.35  # backward is two products for each one of the forward


@pytest.mark.slow
def test_a_chain_of_1024_layers():
    n = 1024
    ways = [{"segments": 1}, {}, {"segments": "binomial", "slots": 8}]
    none, sqrt, binomial = measured(n, ways, every=16)
    assert none[0] >= 2 * n
    assert sqrt[0] <= 32 + 2 * 32 + 8
    assert binomial[0] <= 8 + 2 + 11
    assert (sqrt[1] + 2 * n) / (3 * n) <= 1.35
    assert binomial[1] == 5143


@pytest.mark.slow
def test_a_recurrence_of_100_000_steps_in_bounded_memory():
    from tapejax.engine import backward as engine
    from tests.test_examples import load

    example, steps = load("06_checkpoint"), 100_000
    xs, ys = example.data(jax.random.key(0), steps)
    p = {name: tj.tensor(value, requires_grad=True) for name, value in example.start().items()}
    live = lambda: sum(array.nbytes for array in jax.live_arrays())
    pull, most, looks = engine.pull, 0, 0
    tj.backward(example.loss(p, xs[:632], ys[:632], 2), wrt=p)  # traced
    gc.collect()
    before = live()

    def look(*arguments):
        nonlocal most, looks
        looks += 1
        if looks % 16 == 0:
            most = max(most, live() - before)
        pull(*arguments)

    engine.pull = look
    try:
        grads = tj.backward(example.loss(p, xs, ys, 316), wrt=p)
    finally:
        engine.pull = pull
    data, carries = (
        xs.nbytes + ys.nbytes,
        4 * 9 * steps,
    )  # the call cuts the data anew; without checkpoints all carries live
    assert data < most < data + carries // 20
    judge = lambda p: example.advance.function(p, (jax.numpy.zeros(8), 0.0), xs[:99856], ys[:99856])[1] / steps
    want = jax.jit(jax.grad(judge))(example.start())
    for name, tensor in p.items():
        np.testing.assert_allclose(grads[tensor], want[name], rtol=2e-3, atol=1e-5)
