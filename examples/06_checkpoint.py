"""A recurrence of 100,000 steps, trained through all of them in bounded memory.

The steps run in 316 scans of 316. Each scan is checkpointed: between forward and backward only the states
between the scans are kept, and backward runs one scan again at a time.

Run: python examples/06_checkpoint.py
"""

import jax
import jax.numpy as jnp

import tapejax as tj

STEPS = 100_000


@tj.lift
def advance(p, state, xs, ys):
    """Many steps of a leaky unit that follows ys: the new state, and the sum of its squared errors."""

    def step(state, now):
        h, error = state
        x, y = now
        h = jax.nn.sigmoid(p["leak"]) * h + jnp.tanh(x @ p["in"])
        return (h, error + (h @ p["out"] - y) ** 2), None

    return jax.lax.scan(step, state, (xs, ys))[0]


def data(key, steps):
    """What to follow: a slow average of the first of two noisy signals."""
    xs = jax.random.normal(key, (steps, 2))
    follow = lambda y, x: (0.98 * y + 0.02 * x[0],) * 2
    return xs, jax.lax.scan(follow, 0.0, xs)[1]


def start(width=8):
    keys = jax.random.split(jax.random.key(1))
    return {
        "leak": jnp.linspace(0.0, 4.0, width),
        "in": 0.1 * jax.random.normal(keys[0], (2, width)),
        "out": 0.1 * jax.random.normal(keys[1], (width,)),
    }


def loss(p, xs, ys, pieces, checkpointed=True):
    """The mean error over all steps; p holds recorded Tensors, which the pieces close over."""
    cut = lambda a: jnp.reshape(a[: len(a) // pieces * pieces], (pieces, -1, *a.shape[1:]))
    functions = [lambda state, x=x, y=y: advance(p, state, x, y) for x, y in zip(cut(xs), cut(ys), strict=True)]
    chain = tj.sequential(functions, segments=pieces if checkpointed else 1)
    _, error = chain((tj.tensor(jnp.zeros(p["leak"].shape)), tj.tensor(0.0)))
    return error / len(xs)


def train(steps=STEPS, rounds=4, rate=0.3, pieces=None, checkpointed=True):
    pieces = pieces or int(steps**0.5)
    xs, ys = data(jax.random.key(0), steps)
    p, losses = start(), []
    for _ in range(rounds):
        tensors = {name: tj.tensor(value, requires_grad=True) for name, value in p.items()}
        value = loss(tensors, xs, ys, pieces, checkpointed)
        grads = tj.backward(value, wrt=tensors)
        p = {name: p[name] - rate * grads[tensor] for name, tensor in tensors.items()}
        losses.append(value.item())
    return losses, p


def main():
    losses, _ = train()
    print(f"{STEPS:,} steps, mean error by round: " + " ".join(f"{value:.4f}" for value in losses))
    return losses


if __name__ == "__main__":
    main()
