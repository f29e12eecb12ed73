"""A flax nnx CNN trained with optax on the tape: its state is a pytree like any other.

Run: python examples/04_flax_nnx.py
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import tapejax as tj


class CNN(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm = nnx.LayerNorm(4, rngs=rngs)
        self.head = nnx.Linear(4 * 4 * 4, 2, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x)))
        x = nnx.avg_pool(x, (2, 2), strides=(2, 2))
        return self.head(x.reshape(len(x), -1))


def data(key, n=8):
    """Images of noise with a bright bar, upright or lying."""
    k1, k2, k3 = jax.random.split(key, 3)
    label = jax.random.bernoulli(k1, shape=(n,))
    bar = jax.nn.one_hot(jax.random.randint(k2, (n,), 0, 8), 8)[:, :, None] * jnp.ones(8)
    image = jnp.where(label[:, None, None], bar, bar.transpose(0, 2, 1)) + 0.1 * jax.random.normal(k3, (n, 8, 8))
    return image[..., None], label.astype(int)


def train(value_and_grad=tj.value_and_grad, jit=lambda f: f, steps=50):
    graph, parameters = nnx.split(CNN(nnx.Rngs(0)))
    optimiser = optax.adam(1e-2)
    state = optimiser.init(parameters)

    def loss(parameters, x, y):
        logits = nnx.merge(graph, parameters)(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @jit
    def step(parameters, state, x, y):
        value, gradients = value_and_grad(loss)(parameters, x, y)
        updates, state = optimiser.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    losses = []
    for i in range(steps):
        parameters, state, value = step(parameters, state, *data(jax.random.key(i)))
        losses.append(float(value))
    return losses


def main():
    losses = train(jit=tj.jit)
    print(f"loss, first and last step: {losses[0]:.3f} {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
