"""A small selective state space model (two Mamba-like blocks) learns selective copying over 256 steps.

Three symbols stand at random places among blanks; then three marks ask for them, in order. So the model must skip
what does not matter, and remember the rest over a distance that it cannot know.
Run: python examples/07_selective_state_space.py [--eager]
"""

import sys
from time import perf_counter

import jax
import jax.numpy as jnp
import optax

import tapejax as tj
import tapejax.nn as tnn
import tapejax.numpy as tnp

SYMBOLS, BLANK, MARK, ASKED = 4, 4, 5, 3
optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))
updates_of = jax.jit(optimiser.update)  # optax is many small ops, slow one by one


def data(key, batch=16, length=256):
    symbols = jax.random.randint(key, (batch, ASKED), 0, SYMBOLS)
    places = jnp.sort(jnp.argsort(jax.random.uniform(jax.random.fold_in(key, 1), (batch, length - ASKED)))[:, :ASKED])
    tokens = jnp.full((batch, length), BLANK).at[:, -ASKED:].set(MARK)
    return tokens.at[jnp.arange(batch)[:, None], places].set(symbols), symbols


def start(key, width=16, inner=32, state=8, blocks=2):
    keys = iter(jax.random.split(key, 99))
    matrix = lambda rows, columns: jax.random.normal(next(keys), (rows, columns)) / rows**0.5
    pace, decay = jnp.log(jnp.expm1(jnp.geomspace(0.001, 0.1, inner))), jnp.log(jnp.arange(1.0, state + 1))
    block = lambda: {
        "norm": jnp.ones(width), "in": matrix(width, inner), "gate": matrix(width, inner), "kernel": matrix(4, inner),
        "bias": jnp.zeros(inner), "delta": matrix(inner, inner) / 10, "pace": pace, "decay": jnp.tile(decay, (inner, 1)),
        "B": matrix(inner, state), "C": matrix(inner, state), "D": jnp.ones(inner), "out": matrix(inner, width),
    }  # fmt: skip
    ends = {"embed": jax.random.normal(next(keys), (MARK + 1, width)), "head": matrix(width, SYMBOLS)}
    return ends | {"blocks": [block() for _ in range(blocks)], "norm": jnp.ones(width)}


def block(p, x):
    """norm, causal convolution, selective scan, gate. That delta, B and C depend on the input is the selection."""
    normed, length = tnn.rms_norm(x, p["norm"]), x.shape[1]
    u = tnp.pad(normed @ p["in"], ((0, 0), (3, 0), (0, 0)))
    u = tnn.silu(sum(u[:, i : i + length] * p["kernel"][i] for i in range(4)) + p["bias"])
    model = tnn.softplus(u @ p["delta"] + p["pace"]), -tnp.exp(p["decay"]), u @ p["B"], u @ p["C"], p["D"]
    y, _ = tnn.selective_scan(u, *model, parallel=False)  # step by step is faster on a CPU
    return x + (y * tnn.silu(normed @ p["gate"])) @ p["out"]


def step(values, state, tokens, symbols):
    p = jax.tree.map(lambda value: tj.tensor(value, requires_grad=True), values)
    with tj.Tape() as tape:
        x = tnn.embedding(p["embed"], tokens)
        for one in p["blocks"]:
            x = block(one, x)
        logits = tnn.rms_norm(x[:, -ASKED:], p["norm"]) @ p["head"]
        loss = tnn.cross_entropy(logits, symbols)
    updates, state = updates_of(tape.backward(loss).tree(p), state)
    values = optax.apply_updates(values, updates)
    return values, state, loss.value, jnp.mean(logits.value.argmax(-1) == symbols)


def train(step, steps=800, every=50, **size):
    values, history, began = start(jax.random.key(0)), [], perf_counter()
    state, batch = optimiser.init(values), jax.jit(lambda i: data(jax.random.key(i), **size))
    for i in range(1, steps + 1):
        values, state, loss, accuracy = step(values, state, *batch(i))
        history.append((float(loss), float(accuracy)))
        if i % every == 0:
            loss, accuracy = (sum(column) / every for column in zip(*history[-every:], strict=True))
            print(f"step {i:4d}  loss {loss:.3f}  right {accuracy:.1%}  {perf_counter() - began:.0f} s", flush=True)
    return history


if __name__ == "__main__":
    train(step if "--eager" in sys.argv else jax.jit(step))
