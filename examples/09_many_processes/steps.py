"""One step of training, jitted or eager, and what it is given: laid out over the devices of all processes."""

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from model import DROPPED, LENGTH, WIDTH, WORDS, loss_of

import tapejax as tj

BATCH, RATE, MOMENTUM = 16, 0.1, 0.9


def updated(params, speed, grads):
    speed = jax.tree.map(lambda s, g: MOMENTUM * s + g, speed, grads)
    return jax.tree.map(lambda w, s: w - RATE * s, params, speed), speed


@jax.jit
def jitted_step(params, speed, words, targets, kept):
    loss, grads = tj.value_and_grad(loss_of)(params, words, targets, kept)
    grads = jax.tree.map(jax.lax.with_sharding_constraint, grads, jax.tree.map(lambda w: LAID_OUT[w.shape], params))
    return loss, *updated(params, speed, grads)


def eager_step(params, speed, words, targets, kept):
    p = {name: tj.tensor(value, requires_grad=True) for name, value in params.items()}
    loss = loss_of(p, words, targets, kept)
    return loss.value, *updated(params, speed, tj.backward(loss, wrt=p).tree(p))


LAID_OUT: dict[tuple[int, ...], NamedSharding] = {}  # by shape of a parameter


def lay_out(mesh, layout: str, shape: tuple[int, ...]) -> NamedSharding:
    """data: a copy on every device. fully: rows over the devices."""
    return NamedSharding(mesh, P("data") if layout == "fully" and shape[0] % mesh.size == 0 else P())


def spread(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """Every process has the array, and gives the part that its own devices hold."""
    return jax.make_array_from_callback(array.shape, sharding, lambda part: array[part])


def batch_of(step: int, mesh, key) -> tuple[jax.Array, ...]:
    """Sequences that count up in steps of one to three, each word to be told from those before it."""
    drawn = np.random.default_rng(step)
    first, pace = drawn.integers(0, WORDS, (BATCH, 1)), drawn.integers(1, 4, (BATCH, 1))
    words = (first + pace * np.arange(LENGTH + 1)) % WORDS
    kept = np.asarray(jax.random.bernoulli(key, 1 - DROPPED, (BATCH, LENGTH, WIDTH))).astype("float32")
    rows = NamedSharding(mesh, P("data"))
    return tuple(spread(a, rows) for a in (words[:, :-1], np.eye(WORDS, dtype="float32")[words[:, 1:]], kept))
