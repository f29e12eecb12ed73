"""An equinox MLP trained with optax on the tape: no adapter, a module is a pytree.

Run: python examples/03_equinox.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import tapejax as tj


def data(key):
    x = jax.random.normal(key, (32, 2))
    return x, (x[:, :1] * x[:, 1:] > 0).astype(jnp.float32)


def train(value_and_grad=tj.value_and_grad, jit=lambda f: f, steps=50):
    model = eqx.nn.MLP(2, 1, 8, 1, key=jax.random.key(0))
    parameters, rest = eqx.partition(model, eqx.is_inexact_array)
    optimiser = optax.adam(1e-2)
    state = optimiser.init(parameters)

    def loss(parameters, x, y):
        logits = jax.vmap(eqx.combine(parameters, rest))(x)
        return optax.sigmoid_binary_cross_entropy(logits, y).mean()

    @jit
    def step(parameters, state, x, y):
        value, gradients = value_and_grad(loss)(parameters, x, y)
        updates, state = optimiser.update(gradients, state, parameters)
        return eqx.apply_updates(parameters, updates), state, value

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
