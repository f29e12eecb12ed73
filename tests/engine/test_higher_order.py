"""backward(create_graph=True): the way back is on the tape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp

X = np.random.default_rng(0).normal(size=(3, 3))


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def leaf(value):
    return tj.tensor(value, requires_grad=True)


def squared(g):
    return lambda x: jnp.sum(g(x) ** 2)


FUNCTIONS = {
    "ops": (lambda x: (tnp.tanh(x @ x) * tnp.exp(-x)).sum(), lambda x: (jnp.tanh(x @ x) * jnp.exp(-x)).sum()),
    # What the backward of one big op reads are extras: it is a function of the inputs here.
    "one op": (tj.lift(lambda x: jnp.sum(jax.nn.softmax(jnp.sin(x) @ x) ** 2)), lambda x: jnp.sum(jax.nn.softmax(jnp.sin(x) @ x) ** 2)),
    "scan": (
        tj.lift(lambda x: jnp.sum(jax.lax.scan(lambda h, row: (jnp.tanh(h @ x + row), None), x[0], x)[0])),
        lambda x: jnp.sum(jax.lax.scan(lambda h, row: (jnp.tanh(h @ x + row), None), x[0], x)[0]),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("f", "judge"),
    [pytest.param(*pair, id=name, marks=[pytest.mark.slow] * (name == "scan")) for name, pair in FUNCTIONS.items()],
)
def test_orders_one_to_three(f, judge):
    x = leaf(X)
    first, second = jax.grad(judge), jax.grad(squared(jax.grad(judge)))
    with tj.Tape():
        gradient = tj.backward(f(x), wrt=x, create_graph=True)[x]
        again = tj.backward((gradient**2).sum(), wrt=x, create_graph=True)[x]
        last = tj.backward((again**2).sum(), wrt=x)[x]
    judged = jax.jit(lambda x: (first(x), second(x), jax.grad(squared(second))(x)))(X)
    for ours, theirs in zip((gradient.value, again.value, last), judged, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)


def test_the_tape_stays_and_grows():
    x = leaf(X)
    with tj.Tape() as tape:
        y = (x * x).sum()
        before = tape.actions
        grads = tj.backward(y, create_graph=True)
        assert tape.actions[: len(before)] == before
        assert len(tape) > len(before)
    assert all(isinstance(gradient, tj.Tensor) for gradient in grads.values())
    np.testing.assert_allclose(grads[x].value, 2 * X)


def test_records_under_no_grad_too():
    x = leaf(2.0)
    with tj.Tape():
        y = x**3
        with tj.no_grad():
            gradient = tj.backward(y, create_graph=True)[x]
        assert tj.backward(gradient)[x] == 12.0


def test_a_recorded_seed_gets_its_gradient():
    x, seed = leaf(2.0), leaf(5.0)
    with tj.Tape():
        gradient = tj.backward(x**3, seed, wrt=x, create_graph=True)[x]
        grads = tj.backward(gradient)
    assert grads[seed] == 12.0  # what the seed was multiplied with
    assert grads[x] == 60.0


def test_a_users_own_action_may_compute_with_what_it_gets():
    class Double(tj.TapeAction):
        def __init__(self, source, target):
            self.inputs, self.outputs = (source.id,), (target.id,)

        def backward(self, grads):
            grads.insert(self.inputs[0], grads.get(self.outputs[0]) * 2.0)

    x, y = leaf(3.0), leaf(6.0)
    with tj.Tape():
        tj.record(Double(x, y))
        z = y**2
        gradient = tj.backward(z, wrt=x, create_graph=True)[x]
        grads = tj.backward(gradient)
    assert gradient.value == 24.0
    assert grads[y] == 4.0


def test_a_python_op_says_that_it_cannot():
    @tj.custom_op(jit=False)
    def cube(x):
        return x**3

    cube.defbackward(lambda ct, out, x: (3 * np.asarray(x) ** 2 * np.asarray(ct),))
    x = leaf(2.0)
    with tj.Tape(), pytest.raises(tj.TapejaxError, match="cube"):
        tj.backward(cube(x), create_graph=True)
