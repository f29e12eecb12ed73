"""The workloads, written once in words that every contestant says in its own way (see words.py).

A workload is a function of parameters (which get gradients) and data (which does not). What it
returns is seeded with ones, so that an op with a matrix as its result is a workload too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks import character

Arrays = Sequence[np.ndarray]


@dataclass(frozen=True)
class Workload:
    """name, the function `run(words, params, data)`, its numbers, and how many ops it asks for in Python.

    images: which of the parameters and data are images ("x") or filters ("w"), given in the layout
    NHWC and HWIO; a contestant that prefers NCHW gets them so.
    loop: how many times a contestant without a scan of its own goes round.
    written_for: the contestants that have its words; none named: all.
    """

    name: str
    run: Callable[[Any, Any, Any], Any]
    params: Arrays
    data: Arrays = ()
    loop: int = 0
    images: dict[int, str] = field(default_factory=dict)
    single: bool = False  # one op: what is measured is overhead
    written_for: Sequence[str] = ()


def _random(*shapes: tuple[int, ...], scale: float = 1.0, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [(scale * rng.standard_normal(shape)).astype(np.float32) for shape in shapes]


# --- one op ------------------------------------------------------------------------------------------

SINGLE = {
    "add": (2, lambda o, p, d: o.add(p[0], p[1])),
    "mul": (2, lambda o, p, d: o.mul(p[0], p[1])),
    "matmul": (2, lambda o, p, d: o.matmul(p[0], p[1])),
    "tanh": (1, lambda o, p, d: o.tanh(p[0])),
    "sum": (1, lambda o, p, d: o.sum(p[0])),
    "getitem": (1, lambda o, p, d: o.getitem(p[0], 2)),
}


def single(name: str, size: int = 8) -> Workload:
    count, run = SINGLE[name]
    return Workload(name, run, _random(*[(size, size)] * count), single=True)


# --- models ------------------------------------------------------------------------------------------


def mlp(layers: int = 6, width: int = 32, batch: int = 32) -> Workload:
    """tanh(h @ w + b), again and again; the loss is the sum of squares."""

    def run(o, params, data):
        h = data[0]
        for w, b in zip(params[::2], params[1::2]):
            h = o.tanh(o.add(o.matmul(h, w), b))
        return o.sum(o.mul(h, h))

    params = _random(*[(width, width), (width,)] * layers, scale=width**-0.5)
    return Workload(f"mlp_{layers}x{width}", run, params, _random((batch, width), seed=1))


def transformer(d: int = 256, tokens: int = 128, heads: int = 4) -> Workload:
    """One block: attention and a gelu MLP of four times the width, each after a layer norm."""
    split = (tokens, heads, d // heads)

    def run(o, params, data):
        (scale1, shift1, wq, wk, wv, wo, scale2, shift2, w1, b1, w2, b2), (x,) = params, data
        h = o.layer_norm(x, scale1, shift1)
        q, k, v = [o.transpose(o.reshape(o.matmul(h, w), split), (1, 0, 2)) for w in (wq, wk, wv)]
        mixed = o.reshape(o.transpose(o.attention(q, k, v), (1, 0, 2)), (tokens, d))
        x = o.add(x, o.matmul(mixed, wo))
        h = o.layer_norm(x, scale2, shift2)
        h = o.gelu(o.add(o.matmul(h, w1), b1))
        x = o.add(x, o.add(o.matmul(h, w2), b2))
        return o.mean(o.mul(x, x))

    square = [(d, d)] * 4
    shapes = [(d,), (d,), *square, (d,), (d,), (d, 4 * d), (4 * d,), (4 * d, d), (d,)]
    return Workload("transformer", run, _random(*shapes, scale=d**-0.5), _random((tokens, d), seed=1))


def conv_net(batch: int = 8, size: int = 28, channels: tuple[int, int] = (8, 16), classes: int = 10) -> Workload:
    """Convolution, relu, pool, twice; the mean over the image; a dense layer."""

    def run(o, params, data):
        w1, w2, dense, bias = params
        h = o.max_pool(o.relu(o.conv(data[0], w1)))
        h = o.max_pool(o.relu(o.conv(h, w2)))
        h = o.add(o.matmul(o.image_mean(h), dense), bias)
        return o.mean(o.mul(h, h))

    first, second = channels
    shapes = [(3, 3, 1, first), (3, 3, first, second), (second, classes), (classes,)]
    data = _random((batch, size, size, 1), seed=1)
    return Workload("conv_net", run, _random(*shapes, scale=0.3), data, images={0: "w", 1: "w", 4: "x"})


def _lstm_step(o, params, carry, inputs):
    (wx, wh, b), (h, c), (x,) = params, carry, inputs
    z = o.add(o.add(o.matmul(x, wx), o.matmul(h, wh)), b)
    n = h.shape[1]
    i, f, g, out = [o.getitem(z, (slice(None), slice(at * n, (at + 1) * n))) for at in range(4)]
    c = o.add(o.mul(o.sigmoid(f), c), o.mul(o.sigmoid(i), o.tanh(g)))
    h = o.mul(o.sigmoid(out), o.tanh(c))
    return (h, c), h


def lstm(steps: int = 64, batch: int = 16, width: int = 32) -> Workload:
    def run(o, params, data):
        x, h, c = data
        hs = o.scan(_lstm_step, params, (h, c), (x,))
        return o.mean(o.mul(hs, hs))

    params = _random((width, 4 * width), (width, 4 * width), (4 * width,), scale=width**-0.5)
    data = _random((steps, batch, width), (batch, width), (batch, width), seed=1)
    return Workload("lstm", run, params, data, loop=steps)


def _ssm_step(o, params, carry, inputs):
    (h,), (a, b, x) = carry, inputs
    h = o.add(o.mul(a, h), o.mul(b, x))
    return (h,), h


def ssm(steps: int = 1024, width: int = 64) -> Workload:
    """h_t = a_t h_(t-1) + b_t x_t, with gradients for a, b, x and the start."""

    def run(o, params, data):
        a, b, x, h = params
        hs = o.scan(_ssm_step, (), (h,), (a, b, x))
        return o.mean(o.mul(hs, hs))

    a, b, x, h = _random((steps, width), (steps, width), (steps, width), (width,))
    return Workload("ssm", run, [1 / (1 + np.exp(-a)), b, x, h], loop=steps)


def chain(length: int = 1000, size: int = 8) -> Workload:
    """A long chain: each add needs the one before."""

    def run(o, params, data):
        (h,), (y,) = params, data
        for _ in range(length):
            h = o.add(h, y)
        return o.sum(h)

    return Workload("chain", run, _random((size, size)), _random((size, size), scale=1e-2, seed=1), loop=length)


def fan_in(uses: int = 1000, size: int = 8) -> Workload:
    """One tensor used again and again: its gradient is a sum of as many terms."""

    def run(o, params, data):
        (x,), (total,) = params, data
        for _ in range(uses):
            total = o.add(total, x)
        return o.sum(o.mul(total, total))

    return Workload("fan_in", run, _random((size, size)), _random((size, size), seed=1), loop=uses)


WITH_CHARACTERS = ("tapejax", "tapejax, no wrt", "tapejax in jax.jit", "jax.jit", "jax.value_and_grad", "torch", "torch.compile")  # fmt: skip


def character_gpt(**sizes: int) -> Workload:
    """The loss of character.py: op by op in the functions of NumPy, which in torch are its own larger ones."""
    rng = np.random.default_rng(0)
    size = sizes.pop("size", character.BATCH)
    params = character.parameters(rng, **sizes)
    within = {name: sizes[name] for name in ("length", "vocabulary") if name in sizes}

    def run(o, values, data):
        return o.character_loss(dict(zip(params, values)), data)

    data = character.batch(rng, size=size, **within)
    return Workload("character_gpt", run, list(params.values()), data, written_for=WITH_CHARACTERS)


def all_workloads() -> dict[str, Workload]:
    models = [mlp(), mlp(width=512), transformer(), conv_net(), character_gpt(), lstm(), ssm(), chain(), fan_in()]
    return {workload.name: workload for workload in [*map(single, SINGLE), *models]}


def tiny_workloads() -> dict[str, Workload]:
    """The same at sizes for a test: seconds, not minutes."""
    models = [
        mlp(2, 4, 3), transformer(8, 4, 2), conv_net(2, 12, (2, 3), 3),
        character_gpt(vocabulary=7, width=8, length=5, layers=1, size=2),
        lstm(3, 2, 4), ssm(5, 3), chain(5, 2), fan_in(5, 2),
    ]  # fmt: skip
    return {workload.name: workload for workload in [*[single(name, 3) for name in SINGLE], *models]}
