"""`python -m benchmarks.first_contact`: what a newcomer waits for. A character model, in fresh processes.

Ratios of processor time, caches empty: the first eager step against the first call of jax.jit(jax.value_and_grad) of the
same loss; thirty steps over twenty lengths, some visited again; the worst step after a structure's first visit against
the median step; and the second step of a second process with jax's compilation cache against that of the first.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

VOCABULARY, WIDTH, HEADS, LENGTH, BATCH, LAYERS = 65, 64, 4, 64, 16, 2
LENGTHS = [*range(32, 42), 32, 42, 43, 33, 44, 45, 34, 46, 47, 35, 48, 49, 36, 50, 37, 51, 38, 32, 33, 34]


def parameters(rng):
    shapes = {"token": (VOCABULARY, WIDTH), "position": (LENGTH, WIDTH), "head": (WIDTH, VOCABULARY)}
    for i in range(LAYERS):
        shapes |= {f"qkv{i}": (WIDTH, 3 * WIDTH), f"out{i}": (WIDTH, WIDTH)}
        shapes |= {f"up{i}": (WIDTH, 4 * WIDTH), f"down{i}": (4 * WIDTH, WIDTH)}
    values = {name: 0.02 * rng.standard_normal(shape) for name, shape in shapes.items()}
    scales = ["final", *[f"{which}{i}" for i in range(LAYERS) for which in ("before", "after")]]
    values |= {name: 1.0 + rng.standard_normal(WIDTH) * 0 for name in scales}
    return {name: value.astype("float32") for name, value in values.items()}


def batch(rng, length):
    import numpy as np

    text = rng.integers(0, VOCABULARY, (BATCH, length + 1)).astype("int32")
    return text[:, :-1], text[:, 1:], np.tril(np.ones((length, length), bool))


def loss(n, p, ids, targets, mask):
    """The mean negative log likelihood; n: jax.numpy, or tapejax.numpy."""

    def norm(x, scale):
        centred = x - x.mean(-1, keepdims=True)
        return centred / n.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * scale

    def heads(x):
        return x.reshape(BATCH, length, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)

    length = ids.shape[1]
    x = p["token"][ids] + p["position"][:length]
    for i in range(LAYERS):
        q, k, v = map(heads, n.split(norm(x, p[f"before{i}"]) @ p[f"qkv{i}"], 3, axis=-1))
        scores = n.where(mask, q @ k.transpose(0, 1, 3, 2) * (HEADS / WIDTH) ** 0.5, -1e9)
        weights = n.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True)) @ v
        x = x + mixed.transpose(0, 2, 1, 3).reshape(BATCH, length, WIDTH) @ p[f"out{i}"]
        h = norm(x, p[f"after{i}"]) @ p[f"up{i}"]
        x = x + (0.5 * h * (1 + n.tanh(0.79788 * (h + 0.044715 * h * h * h)))) @ p[f"down{i}"]
    logits = norm(x, p["final"]) @ p["head"]
    logits = logits - logits.max(-1, keepdims=True)
    of_target = n.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return (n.log(n.exp(logits).sum(-1)) - of_target).mean()


def processor_time():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def work(who: str, lengths: list[int]) -> None:
    """In a process of its own: print the processor time and the wall time of each step."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)
    p = parameters(rng)
    if who == "jax":
        step = jax.jit(jax.value_and_grad(lambda *args: loss(jnp, *args)))
        run = lambda data: step(p, *data)
    else:
        import tapejax as tj
        import tapejax.numpy as tnp

        p = {name: tj.tensor(value, requires_grad=True) for name, value in p.items()}

        def run(data):
            found = loss(tnp, p, *map(tj.tensor, data))
            grads = tj.backward(found, wrt=p)
            return found.value, [grads[x] for x in p.values()]

    jax.block_until_ready(jnp.ones(3) + 1)
    times = []
    for length in lengths:
        data = batch(rng, length)
        before, clock = processor_time(), time.perf_counter()
        jax.block_until_ready(run(data))
        times.append((processor_time() - before, time.perf_counter() - clock))
    print(json.dumps(times))


def measure(who: str, lengths: list[int], cache: str | None = None) -> list[list[float]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    if cache:
        environment |= {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        environment |= {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0"}
    command = [sys.executable, "-m", "benchmarks.first_contact", who, json.dumps(lengths)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    rounds, same = 3, [LENGTH] * 12
    first, worst = [], []
    for _ in range(rounds):
        theirs, ours = measure("jax", same), measure("tapejax", same)
        first.append(ours[0][0] / theirs[0][0])
        later = [wall for _, wall in ours[1:]]
        worst.append(max(later) / statistics.median(later))
    print(f"first eager step / jax.jit's first call, processor time      {statistics.median(first):5.2f}  bar 1.0")
    print(f"worst step after the first visit / median step               {statistics.median(worst):5.2f}  bar 3.0")
    with tempfile.TemporaryDirectory() as cache:
        cold, warm = (sum(cpu for cpu, _ in measure("tapejax", same[:2], cache)) for _ in range(2))
    print(f"to the second step, second process with cache / first        {warm / cold:5.2f}  bar 0.3")
    theirs, ours = (sum(cpu for cpu, _ in measure(who, LENGTHS)) for who in ("jax", "tapejax"))
    print(f"30 steps over 20 lengths / jax.jit, processor time           {ours / theirs:5.2f}  bar 1.0")


if __name__ == "__main__":
    main() if len(sys.argv) == 1 else work(sys.argv[1], json.loads(sys.argv[2]))
