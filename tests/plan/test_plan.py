"""What a plan adds to a larger program while jax traces that."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core as jex_core

import tapejax as tj
import tapejax.nn as tnn


def primitives(f, *args) -> Counter:
    """How often each primitive comes in the program of f, programs inside included."""

    def count(jaxpr):
        for eqn in jaxpr.eqns:
            found[eqn.primitive.name] += 1
            for inner in jex_core.jaxprs_in_params(eqn.params):
                count(getattr(inner, "jaxpr", inner))

    found: Counter = Counter()
    count(jax.make_jaxpr(f)(*args).jaxpr)
    return found


def draw(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(np.asarray(rng.standard_normal(shape), "float32")) for shape in shapes]


def test_a_step_has_no_calls_and_no_cotangents_that_nobody_wants():
    def loss(w, x):
        h = x @ w
        return (h * h).sum()

    w, x = draw((4, 3), (5, 4))
    found = primitives(tj.value_and_grad(loss), w, x)
    assert found == {"dot_general": 2, "mul": 3, "add": 1, "reduce_sum": 1, "broadcast_in_dim": 1}
    np.testing.assert_allclose(tj.grad(loss)(w, x), jax.grad(loss)(w, x), rtol=1e-5)


def test_a_broadcast_bias_is_summed_once():
    w, b, x = draw((4, 3), (3,), (5, 4))
    found = primitives(tj.grad(lambda w, b: (x @ w + b).sum(), argnums=(0, 1)), w, b)
    assert found["reduce_sum"] == 2  # the loss, and the bias over the batch


def test_numbers_in_an_index_are_part_of_the_program():
    (x,) = draw((4, 3))
    loss = lambda x: x[2].sum() + x[-1, 1:].sum()
    found = primitives(tj.grad(loss), x)
    assert found.keys().isdisjoint({"dynamic_slice", "dynamic_update_slice"})
    np.testing.assert_array_equal(jax.jit(tj.grad(loss))(x), [[0, 0, 0], [0, 0, 0], [1, 1, 1], [0, 1, 1]])


def test_what_is_long_is_traced_apart_the_second_time_and_gives_the_same():
    traced = []

    @tj.lift
    def recurrence(c, xs):
        traced.append(1)
        return lax.scan(lambda c, x: (jnp.tanh(c * x), c), c, xs)

    def loss(c, xs):
        last, states = recurrence(c, xs)
        return (last * last).sum() + states.sum()

    def plain(c, xs):
        last, states = recurrence.function(c, xs)
        return (last * last).sum() + states.sum()

    c, xs = draw((3,), (5, 3))
    expected = jax.grad(plain, argnums=(0, 1))(c, xs)
    del traced[:]
    programs = []
    for _ in range(3):
        step = tj.grad(lambda c, xs: loss(c, xs), argnums=(0, 1))
        programs.append(primitives(step, c, xs))
        for got, want in zip(jax.jit(step)(c, xs), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)
    assert len(traced) == 1
    assert programs[0] == programs[1] == programs[2]
    assert "jit" not in programs[0]


def test_eager_calls_are_compiled_after_a_trace_too():
    (x,) = draw((4, 3))
    f = lambda x: tnn.relu(x).sum()
    expected = (np.asarray(x) > 0).astype("float32")
    for _ in range(2):
        np.testing.assert_array_equal(jax.jit(tj.grad(f))(x), expected)
        np.testing.assert_array_equal(tj.grad(f)(x), expected)
        np.testing.assert_array_equal(jax.vmap(tj.grad(f))(x[None])[0], expected)


@pytest.mark.parametrize(
    "function", [jnp.tanh, jnp.sqrt, jnp.log1p, jnp.arctan, jnp.sin, lambda x: x**3, lambda x: 1 / x]
)
def test_a_python_number_stays_one(function):
    """Numbers that rules bring in must not make a strongly typed array of a weakly typed one."""
    ours, theirs = function, function
    for _ in range(2):
        ours, theirs = tj.grad(ours), jax.grad(theirs)
        assert ours(0.7).weak_type == theirs(0.7).weak_type
        np.testing.assert_allclose(ours(0.7), theirs(0.7), rtol=1e-5)
