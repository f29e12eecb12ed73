"""A lifted function is what it was when it was called, whatever changes before somebody looks or goes back."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tests.some import one_in

DATA = np.array([0.25, -0.5, 1.0], "f")
VISITS = 4


def leaf(value=DATA):
    return tj.tensor(value, requires_grad=True)


class Counted:
    """A function that knows how often Python ran it."""

    def __init__(self, function):
        self.function, self.calls, self.__name__ = function, 0, "counted"

    def __call__(self, *args):
        self.calls += 1
        return self.function(*args)


@pytest.mark.parametrize("when", ["before look", "before backward"])
@pytest.mark.parametrize("others", [False, True])
def test_a_value_that_changes_after_the_call(when, others):
    for _ in range(VISITS):
        box = {"scale": 2.0}
        counted = Counted(lambda x, box=box: x * x * box["scale"])
        x = leaf()
        with tj.Tape() as tape:
            before = tnp.sin(x) if others else None
            y = tj.lift(counted)(x)
            after = tnp.cos(x) if others else None
        if when == "before backward":
            y.numpy()
        calls = counted.calls
        box["scale"] = 30.0
        np.testing.assert_allclose(y.numpy(), 2.0 * DATA * DATA, rtol=1e-6)
        np.testing.assert_allclose(tape.backward(y)[x], 4.0 * DATA, rtol=1e-6)
        assert counted.calls == calls, "Python ran the function again"
        if others:
            np.testing.assert_allclose(before.numpy(), np.sin(DATA), rtol=1e-5)
            np.testing.assert_allclose(after.numpy(), np.cos(DATA), rtol=1e-5)


def test_a_value_that_changes_before_a_recorded_backward():
    for _ in range(VISITS):
        box = {"power": 3}
        counted = Counted(lambda x, box=box: (x ** box["power"]).sum())
        x = leaf()
        with tj.Tape() as tape:
            y = tj.lift(counted)(x)
            calls = counted.calls
            box["power"] = 5
            gradient = tape.backward(y, create_graph=True)[x]
            np.testing.assert_allclose(gradient.numpy(), 3 * DATA**2, rtol=1e-5)
            np.testing.assert_allclose(tape.backward(gradient)[x], 6 * DATA, rtol=1e-5)
        assert counted.calls == calls, "Python ran the function again"


def test_a_list_that_grows_after_the_call():
    for _ in range(VISITS):
        weights = [1.0, 2.0]
        f = tj.lift(lambda x, weights=weights: sum(w * x for w in weights))
        x = leaf()
        y = f(x)
        weights.append(100.0)
        np.testing.assert_allclose(tj.backward(y, retain_tape=True)[x], np.full(3, 3.0), rtol=1e-6)
        np.testing.assert_allclose(y.numpy(), 3.0 * DATA, rtol=1e-6)


# --- jax's settings -------------------------------------------------------------------------------------------

KEY = np.array([3, 7], np.uint32)


def noisy(x):
    return x * jax.random.uniform(jax.random.wrap_key_data(KEY), (3,)) * x


def product(x):
    return jnp.outer(x, x) @ x


def mixed(x):
    return x * jnp.arange(1, 4) * x


def wide(x):
    return x * jnp.linspace(0.0, 1.0, 3) * x


SETTINGS = {
    "threefry, on to off": (noisy, lambda: jax.threefry_partitionable(True), lambda: jax.threefry_partitionable(False)),
    "threefry, off to on": (noisy, lambda: jax.threefry_partitionable(False), lambda: jax.threefry_partitionable(True)),
    "precision": (
        product,
        lambda: jax.default_matmul_precision("highest"),
        lambda: jax.default_matmul_precision("bfloat16"),
    ),
    "promotion": (mixed, contextlib.nullcontext, lambda: jax.numpy_dtype_promotion("strict")),
    "x64, on to off": (wide, lambda: jax.enable_x64(True), lambda: jax.enable_x64(False)),
    "x64, off to on": (wide, lambda: jax.enable_x64(False), lambda: jax.enable_x64(True)),
}


@pytest.mark.parametrize("when", ["before look", "before backward"])
@pytest.mark.parametrize("name", one_in(3, SETTINGS))
def test_settings_that_change_after_the_call(name, when):
    function, at_call, later = SETTINGS[name]
    with at_call():
        expected = np.asarray(function(jnp.asarray(DATA)))
        expected_gradient = np.asarray(jax.grad(lambda x: function(x).sum())(jnp.asarray(DATA)))
    for _ in range(VISITS):
        counted = Counted(function)
        x = leaf()
        with at_call(), tj.Tape() as tape:
            before = tnp.sin(x)
            y = tj.lift(counted)(x)
            if when == "before backward":
                y.numpy()
        calls = counted.calls
        with later():
            value = y.numpy()
            assert value.dtype == expected.dtype
            np.testing.assert_allclose(value, expected, rtol=1e-5)
            gradient = tape.backward(y)[x]
            assert gradient.dtype == expected_gradient.dtype
            np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5)
            np.testing.assert_allclose(before.numpy(), np.sin(DATA), rtol=1e-5)
        assert counted.calls == calls, "Python ran the function again"


@pytest.mark.parametrize("name", ["threefry, on to off", "x64, on to off"])
def test_a_plan_of_one_setting_is_not_used_under_the_other(name):
    """One lifted function, called under both in turn."""
    function, first, second = SETTINGS[name]
    lifted = tj.lift(function)
    for visit in range(2 * VISITS):
        with (second if visit % 2 else first)():
            expected = np.asarray(function(jnp.asarray(DATA)))
            x = leaf()
            y = lifted(x)
        value = y.numpy()
        assert value.dtype == expected.dtype
        np.testing.assert_allclose(value, expected, rtol=1e-5)
