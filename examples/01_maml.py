"""MAML: learn a starting point from which one gradient step fits a new task. A gradient through a gradient.

Run: python examples/01_maml.py
"""

import jax
import jax.numpy as jnp

import tapejax as tj
import tapejax.numpy as tnp


def network(p, x):
    hidden = tnp.tanh(x @ p["w1"] + p["b1"])
    return hidden @ p["w2"] + p["b2"]


def loss(p, task):
    x, y = task
    return ((network(p, x) - y) ** 2).mean()


def adapt(p, task, gradient=tj.grad):
    """One inner step: ordinary gradient descent on the task's own examples."""
    return {name: p[name] - 0.1 * g for name, g in gradient(loss)(p, task).items()}


def meta_loss(p, tasks, gradient=tj.grad):
    """The loss after adapting, on examples that were not adapted to."""
    return sum(loss(adapt(p, train, gradient), test) for train, test in tasks) / len(tasks)


def sine_tasks(key, n=3, size=8):
    tasks = []
    for task_key in jax.random.split(key, n):
        k1, k2, k3 = jax.random.split(task_key, 3)
        x = jax.random.uniform(k1, (2, size, 1), minval=-5.0, maxval=5.0)
        y = jax.random.uniform(k2, minval=0.1, maxval=5.0) * jnp.sin(x + jnp.pi * jax.random.uniform(k3))
        tasks.append(((x[0], y[0]), (x[1], y[1])))
    return tasks


def start(key, width=16):
    k1, k2 = jax.random.split(key)
    return {
        "w1": jax.random.normal(k1, (1, width)),
        "b1": jnp.zeros(width),
        "w2": 0.1 * jax.random.normal(k2, (width, 1)),
        "b2": jnp.zeros(1),
    }


def main(steps=40):
    p = start(jax.random.key(0))
    step = jax.jit(lambda p, tasks: tj.value_and_grad(meta_loss)(p, tasks))
    losses = []
    for i in range(steps):
        value, gradient = step(p, sine_tasks(jax.random.key(i % 4)))
        p = jax.tree.map(lambda leaf, g: leaf - 0.02 * g, p, gradient)
        losses.append(float(value))
    print(f"meta-loss, first and last five steps: {sum(losses[:5]) / 5:.3f} {sum(losses[-5:]) / 5:.3f}")
    return losses


if __name__ == "__main__":
    main()
