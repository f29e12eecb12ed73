"""A second run that differs is an error with a name and a line, never a wrong gradient; one that does not is none."""

import random
import re
import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tapejax import errors
from tapejax.checkpointing.digest import digest_of, same
from tests.some import one_in

X = np.linspace(0.1, 1.0, 6).reshape(2, 3)
scale = 2.0
settings = {"scale": 2.0}


@pytest.fixture
def x():
    return tj.tensor(X, requires_grad=True)


def line_of(text):
    """The line of this file that holds a text (the first that does)."""
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


def caught(y):
    with pytest.raises(errors.ReplayError) as found:
        tj.backward(y)
    return found.value


def test_a_drifting_value_is_caught_and_the_first_op_named(x):
    runs = [0]

    def f(x):
        runs[0] += 1
        y = tnp.sin(x)
        y = y * (1 + 1e-6 * runs[0])  # drifts
        return tnp.exp(y)

    for verify in ("outputs", "all"):
        error = caught(tj.checkpoint(f, x, verify=verify))
        assert f":{line_of('# drifts')}" in error.at
        assert "Multiply(" in error.action
        assert "op 1 " in error.action
        assert "`runs`" in error.what
        assert "`f`" in error.what
        assert isinstance(error, errors.BackwardError)
        assert error.failed.op == "Checkpoint"
        assert error.index == 0


def test_a_generator_of_numpy_is_caught_and_named(x):
    rng = np.random.default_rng(0)

    def f(x):
        return x * rng.normal(size=x.shape)  # draws

    error = caught(tj.checkpoint(f, x))
    assert "draws from `rng`, a Generator" in error.what
    assert f":{line_of('# draws')}" in error.at


def test_a_mutated_global_is_caught_and_named(x):
    global scale

    def f(x):
        y = tnp.sin(x)
        return y * scale  # reads

    y = tj.checkpoint(f, x)
    before, scale = scale, 3.0
    try:
        error = caught(y)
    finally:
        scale = before
    assert "reads `scale`, which was 2.0 and is 3.0 now" in error.what
    assert f":{line_of('# reads')}" in error.at
    assert "op 1 " in error.action
    assert 'verify="all"' in error.fix
    y = tj.checkpoint(f, x, verify="all")
    scale = 3.0
    try:
        error = caught(y)
    finally:
        scale = before
    assert "Multiply(" in error.action
    assert "first whose result differs" in error.action


def test_mutated_containers_and_attributes_are_named(x):
    box = SimpleNamespace(factor=1.0)
    array = np.ones(3)
    cases = [
        (lambda x: x * settings["scale"], lambda: settings.update(scale=5.0), "settings"),
        (lambda x: x * box.factor, lambda: setattr(box, "factor", 2.0), "box"),
        (lambda x: x * array, lambda: array.fill(7.0), "array"),
    ]
    for f, mutate, name in cases:
        y = tj.checkpoint(f, x)
        mutate()
        assert f"`{name}`" in caught(y).what
    settings.update(scale=2.0)


def test_time_entropy_and_another_branch(x):
    import secrets

    error = caught(tj.checkpoint(lambda x: x * secrets.randbelow(2**30), x))
    assert "Multiply(" in error.action
    runs = []

    def branches(x):
        runs.append(1)
        return tnp.sin(x) if len(runs) % 2 else tnp.cos(x)

    error = caught(tj.checkpoint(branches, x))
    assert "Cos(" in error.action
    assert "in place of Sin(" in error.action
    counts = []

    def longer(x):
        counts.append(1)
        for _ in counts:
            x = tnp.sin(x)
        return x

    assert "did not run in the first run" in caught(tj.checkpoint(longer, x)).action


def test_other_structures_kinds_and_tensors(x):
    w = [tj.tensor(X, requires_grad=True)]
    y = tj.checkpoint(lambda x: x * w[0], x)
    w[0] = tj.tensor(X, requires_grad=True)  # equal values, another tensor: the gradient would land elsewhere
    error = caught(y)
    assert "recorded Tensors from outside" in error.what
    assert "`w`" in error.what
    runs = []

    def f(x, kind):
        runs.append(1)
        if len(runs) % 2:
            return [tnp.sin(x)]
        return {"structure": (tnp.sin(x),), "shape": [tnp.sin(x).sum()], "grad": [tj.stop_gradient(tnp.sin(x))]}[kind]

    assert "another structure" in caught(tj.checkpoint(f, x, "structure", verify=False)).what
    assert "result 0" in caught(tj.checkpoint(f, x, "shape", verify=False)).what
    assert "result 0" in caught(tj.checkpoint(f, x, "grad")).what


def test_a_tensor_that_the_first_run_left_behind(x):
    cache = {}

    def f(x):
        if "y" not in cache:
            cache["y"] = tnp.sin(x)
        return cache["y"] * 2.0

    assert "`cache`" in caught(tj.checkpoint(f, x)).what


def test_verify_false_trusts(x):
    runs = [0]

    def f(x):
        runs[0] += 1
        return x * runs[0]

    grads = tj.backward(tj.checkpoint(f, x, verify=False))
    np.testing.assert_array_equal(grads[x], np.full_like(X, 2.0, dtype="float32"))


def test_inside_a_nested_checkpoint(x):
    runs = [0]

    def inner(x):
        runs[0] += 1
        return tnp.sin(x) * runs[0]

    error = caught(tj.checkpoint(lambda x: tj.checkpoint(inner, x) + 1.0, x))
    assert "Multiply(" in error.action


# --- randomness that is covered -----------------------------------------------------------------------------


@pytest.mark.parametrize("draw", [
    lambda: np.random.normal(size=(2, 3)), lambda: np.array(random.random()), lambda: tj.random.normal((2, 3)),
    lambda: np.random.normal(),  # a second one waits in NumPy's generator
], ids=["numpy", "python", "tapejax", "half a pair"])  # fmt: skip
def test_global_generators_are_replayed_and_not_rewound(x, draw):
    seen = []

    def f(x):
        seen.append(np.asarray(draw()))
        return x * seen[-1]

    y = tj.checkpoint(f, x)
    draw()
    here = np.random.get_state(legacy=False), random.getstate(), tj.random.get_state()
    grads = tj.backward(y)
    there = np.random.get_state(legacy=False), random.getstate(), tj.random.get_state()
    np.testing.assert_array_equal(seen[0], seen[1])
    np.testing.assert_allclose(grads[x], np.broadcast_to(seen[0], X.shape), rtol=1e-6)
    assert repr(here) == repr(there)


def test_keys_of_jax_are_values(x):
    key = jax.random.key(5)
    f = lambda x, key: x * jax.random.normal(key, x.shape)
    np.testing.assert_allclose(tj.backward(tj.checkpoint(f, x, key))[x], jax.random.normal(key, X.shape), rtol=1e-6)


def test_seeding_inside_is_undone():
    def f(x):
        tj.random.seed(1)
        return x * tj.random.normal((3,))

    x = tj.tensor(np.ones(3), requires_grad=True)
    y = tj.checkpoint(f, x)
    tj.random.seed(2)
    state = tj.random.get_state()
    tj.backward(y)
    assert tj.random.get_state() == state
    drawn = []
    worker = threading.Thread(target=lambda: drawn.append(tj.random.get_state()))
    worker.start()
    worker.join()
    tj.random.seed(2)
    assert tj.random.get_state() == state


def test_a_refused_try_draws_nothing():
    def f(x):  # over arrays: refuses Tensors after a draw
        noise = tj.random.normal((3,))
        return jnp.sin(x) * noise

    x = tj.tensor(np.ones(3), requires_grad=True)
    tj.random.seed(0)
    grads = tj.backward(tj.checkpoint(f, x))
    state = tj.random.get_state()
    tj.random.seed(0)
    np.testing.assert_allclose(grads[x], np.cos(1.0) * tj.random.normal((3,)), rtol=1e-6)
    assert tj.random.get_state() == state


# --- digests -------------------------------------------------------------------------------------------------

DTYPES = ("float32", "float64", "float16", "bfloat16", "complex64", "complex128", "int32", "int64", "uint8", "int16", "bool", "float8_e4m3fn")  # fmt: skip


@pytest.mark.parametrize("dtype", one_in(2, DTYPES, at_once=["bool"]))
def test_a_digest_sees_every_bit_and_every_place(dtype):
    with jax.enable_x64(True):
        value = (np.arange(1, 8) % 2 if dtype == "bool" else np.arange(1, 8)).astype(jnp.dtype(dtype))
        of = lambda array: digest_of([jnp.asarray(array)])[0]
        before = of(value)
        assert same(before, of(value.copy()))
        for i in range(7):
            other = value.copy()
            other[i] = ~value[i] if dtype == "bool" else value[i] + 1
            assert not same(before, of(other))
        assert not same(before, of(value[[1, 0, 2, 3, 4, 5, 6]]))
    zero, minus = digest_of([jnp.array(0.0), jnp.array(-0.0)])
    assert not same(zero, minus)
    nan, other = digest_of([jnp.array(jnp.nan), jnp.array(jnp.nan)])
    assert same(nan, other)


def test_digests_of_keys_numbers_and_numpy_arrays():
    keys = digest_of([jax.random.key(0), jax.random.key(1)])
    assert not same(*keys)
    for a, b in [(1.0, 2.0), ("a", "b"), (np.ones(2), np.zeros(2)), (1, 1.0), (0.0, -0.0)]:
        assert not same(*digest_of([a, b]))
        assert same(*digest_of([a, a]))
    assert digest_of([jnp.zeros((0, 3))])[0].shape == (2,)


def test_the_error_leaves_the_process():
    import pickle

    x = tj.tensor(X, requires_grad=True)
    runs = [0]

    def f(x):
        runs[0] += 1
        return x * runs[0]

    error = pickle.loads(pickle.dumps(caught(tj.checkpoint(f, x))))
    assert re.search(r"ran again in backward", str(error))
    assert "checkpoint f" in error.failed
