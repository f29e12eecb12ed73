"""A whole training step over Tensors: forward, backward, clipping, optax. Eager first, then one decorator.

Run: python examples/05_optax_step.py
"""

import jax
import optax

import tapejax as tj
import tapejax.numpy as tnp

optimiser = optax.sgd(0.05, momentum=0.9)


def loss(p, x, y):
    return ((tnp.tanh(x @ p["w1"]) @ p["w2"] - y) ** 2).mean()


def step(p, state, x, y):
    """p: Tensors. Everything here runs eagerly, and compiles as it is."""
    with tj.Tape() as tape:
        value = loss(p, x, y)
    gradients = tj.training.clip_by_norm(tape.backward(value).tree(p), 1.0)
    values = {name: tensor.value for name, tensor in p.items()}
    updates, state = optimiser.update(gradients, state, values)
    values = optax.apply_updates(values, updates)
    return {name: tj.tensor(new, requires_grad=True) for name, new in values.items()}, state, value.value


fast_step = tj.jit(step)


def train(step, steps=20):
    k1, k2, k3 = jax.random.split(jax.random.key(0), 3)
    p = {"w1": jax.random.normal(k1, (3, 8)) / 2, "w2": jax.random.normal(k2, (8, 1)) / 3}
    state = optimiser.init(p)
    p = {name: tj.tensor(value, requires_grad=True) for name, value in p.items()}
    x = jax.random.normal(k3, (32, 3))
    y = x.sum(axis=1, keepdims=True)
    losses = []
    for _ in range(steps):
        p, state, value = step(p, state, x, y)
        losses.append(float(value))
    return losses


def main():
    eager, compiled = train(step), train(fast_step)
    print(f"eager:    {eager[0]:.4f} {eager[-1]:.4f}")
    print(f"compiled: {compiled[0]:.4f} {compiled[-1]:.4f}")
    return eager, compiled


if __name__ == "__main__":
    main()
