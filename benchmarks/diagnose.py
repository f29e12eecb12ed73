"""What find_nonfinite costs: python -m benchmarks.diagnose

A transformer of two blocks, healthy and with a NaN, against jax.jit(jax.grad) of the same; a scan of 3,000 steps.
First runs are timed with the compilation cache off, and after a first program, so that jax itself has started. The processor's
time is that of all threads, the least of many runs: it does not depend on what else the machine does.
"""

from __future__ import annotations

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import tapejax as tj

WIDTH, HEADS, LENGTH, BATCH, VOCABULARY = 64, 4, 32, 8, 96


def parameters(blocks: int = 2):
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)
    block = lambda: {
        "qkv": normal(WIDTH, 3 * WIDTH), "out": normal(WIDTH, WIDTH), "up": normal(WIDTH, 4 * WIDTH),
        "down": normal(4 * WIDTH, WIDTH), "norm1": jnp.ones(WIDTH), "norm2": jnp.ones(WIDTH),
    }  # fmt: skip
    return {"embed": normal(VOCABULARY, WIDTH), "blocks": [block() for _ in range(blocks)]}


def norm(x, scale):
    centred = x - x.mean(-1, keepdims=True)
    return scale * centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)


def attention(x, p):
    split = lambda y: y.reshape(*y.shape[:-1], HEADS, -1).swapaxes(-2, -3)
    q, k, v = map(split, jnp.split(x @ p["qkv"], 3, axis=-1))
    scores = q @ k.swapaxes(-1, -2) / jnp.sqrt(q.shape[-1])
    mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
    return (weights @ v).swapaxes(-2, -3).reshape(x.shape) @ p["out"]


def loss(params, tokens, bad=False):
    x = params["embed"][tokens]
    for number, p in enumerate(params["blocks"]):
        x = x + attention(norm(x, p["norm1"]), p)
        h = jax.nn.gelu(norm(x, p["norm2"]) @ p["up"])
        if bad and number == 0:
            h = h + jnp.where(h > 0, jnp.sqrt(jnp.maximum(h, 0.0)), 0.0)
        x = x + h @ p["down"]
    logits = x @ params["embed"].T
    logs = jax.nn.log_softmax(logits[:, :-1])
    return -jnp.take_along_axis(logs, tokens[:, 1:, None], -1).mean()


def scan_of(length):
    def run(x):
        def step(c, t):
            y = jnp.log(jnp.where(t == 1234, -1.0, jnp.abs(c) + 1.0))
            return c + 0.001 * y, None

        return jax.lax.scan(step, x, jnp.arange(length))[0].sum()

    return run


def first(call):
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def warm(call, times=15):
    jax.block_until_ready(call())
    return float(np.median([first(call) for _ in range(times)]))


def busy(call, times=15):
    """The processor's time of a call, in all threads."""
    found = []
    for _ in range(times):
        start = time.process_time()
        jax.block_until_ready(call())
        found.append(time.process_time() - start)
    return min(found)


def main() -> None:
    jax.config.update("jax_compilation_cache_dir", None)
    params, tokens = parameters(), jnp.asarray(np.random.default_rng(1).integers(0, VOCABULARY, (BATCH, LENGTH)))
    jax.block_until_ready(jax.jit(jax.grad(lambda x: jnp.sin(x).sum()))(jnp.ones(3)))
    tj.find_nonfinite(lambda x: jnp.cos(x).sum(), jnp.ones(3))
    print(f"{'transformer, two blocks':<28}{'first':>10}{'warm':>10}{'processor':>12}")
    for bad in (False, True):
        f = partial(loss, bad=bad)
        f.__name__ = "loss"
        by_jax = jax.jit(jax.value_and_grad(f))
        forward = jax.jit(f)
        look = partial(tj.find_nonfinite, f, params, tokens, wrt=0)
        rows = {
            "jax.jit(f)": lambda forward=forward: forward(params, tokens),
            "jax.jit(jax.grad(f))": lambda by_jax=by_jax: by_jax(params, tokens),
            "find_nonfinite": lambda look=look: look() and None,
        }
        times = {name: (first(call), warm(call), busy(call)) for name, call in rows.items()}
        print("with a NaN" if bad else "healthy", "->", look())
        for name, (cold, hot, used) in times.items():
            print(f"  {name:<26}{cold:>9.2f}s{1e3 * hot:>8.2f}ms{1e3 * used:>10.2f}ms")
        for name in ("jax.jit(jax.grad(f))", "jax.jit(f)"):
            cold, hot, used = [ours / theirs for ours, theirs in zip(times["find_nonfinite"], times[name])]
            print(f"  ratio to {name}: first {cold:.2f}, warm {hot:.1f}, processor {used:.1f}")
    f = scan_of(3000)
    look = lambda: tj.find_nonfinite(f, jnp.ones(4)) and None
    print(f"scan of 3,000 steps: first {first(look):.2f}s, warm {warm(look):.3f}s")


if __name__ == "__main__":
    main()
