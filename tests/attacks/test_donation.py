"""Gradients that their owner donates: nobody else may be using the same memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp

DATA = np.array([0.25, -0.5, 1.0], "f")
VISITS = 5

consume = jax.jit(lambda array: array * 0.0 - 7.0, donate_argnums=0)


def leaf(value=DATA):
    return tj.tensor(value, requires_grad=True)


def donate(array):
    jax.block_until_ready(consume(array))


def step(x, vector):
    """On a tape of its own: the tensors in between, the gradients."""
    with tj.Tape() as tape:
        h = tnp.sin(x)
        y = h + x
        root = y if vector else y.sum()
    return (x, h, y, root), tape.backward(root)


def right(grads, tensors):
    x, h, y, root = tensors
    data = x.numpy()
    for tensor, expected in ((x, np.cos(data) + 1), (h, np.ones(3)), (y, np.ones(3)), (root, np.ones(root.shape))):
        np.testing.assert_allclose(grads[tensor], expected, rtol=1e-5)


PLACES = {"leaf": 0, "between": 1, "sum": 2, "root": 3}


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_later_backwards_work_and_others_stay_readable(place, vector):
    held = []
    for visit in range(VISITS):
        held.append(step(leaf(DATA + visit), vector))
        tensors, grads = step(leaf(DATA - visit), vector)
        right(grads, tensors)
        donate(grads[tensors[PLACES[place]]])
        for kept_tensors, kept in held:
            right(kept, kept_tensors)


@pytest.mark.parametrize("place", PLACES)
def test_others_of_the_same_backward_stay_readable(place):
    for visit in range(VISITS):
        tensors, grads = step(leaf(DATA + visit), vector=True)
        donated = tensors[PLACES[place]]
        donate(grads[donated])
        for tensor in tensors:
            if tensor.id != donated.id and not (
                place in ("sum", "root") and tensor.id in (tensors[2].id, tensors[3].id)
            ):
                np.asarray(grads[tensor])


def test_a_retained_tape_goes_back_again_after_all_was_donated():
    for visit in range(VISITS):
        x = leaf(DATA + visit)
        with tj.Tape() as tape:
            h = tnp.exp(x)
            y = h * x
        for _ in range(3):
            grads = tape.backward(y, retain_tape=True)
            np.testing.assert_allclose(grads[x], np.exp(DATA + visit) * (1 + DATA + visit), rtol=1e-5)
            for array in list(grads.values()):
                if not array.is_deleted():
                    donate(array)
        np.testing.assert_allclose(y.numpy(), np.exp(DATA + visit) * (DATA + visit), rtol=1e-5)
        np.testing.assert_allclose(x.numpy(), DATA + visit)


def test_a_donated_gradient_is_no_operand_of_the_tape():
    """The gradient of a product is its other operand, which must not be given away as it is."""
    for visit in range(VISITS):
        x, c = leaf(DATA + visit), tj.tensor(DATA * 3)
        with tj.Tape() as tape:
            y = x * c
        donate(tape.backward(y)[x])
        np.testing.assert_allclose(c.numpy(), DATA * 3)
        np.testing.assert_allclose(y.numpy(), (DATA + visit) * DATA * 3, rtol=1e-5)


def test_a_donated_seed_of_the_user_is_the_users_own_matter():
    for visit in range(VISITS):
        x, seed = leaf(DATA + visit), jnp.asarray([1.0, 2.0, 3.0]) * 1.0
        with tj.Tape() as tape:
            y = x + 1.0
        first = tape.backward(y, seed, retain_tape=True)
        donate(tape.backward(y, seed)[x])
        np.testing.assert_allclose(first[x], [1.0, 2.0, 3.0])
        np.testing.assert_allclose(seed, [1.0, 2.0, 3.0])
