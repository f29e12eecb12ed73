"""`python -m benchmarks.checkpoint`: peak bytes and time of a deep chain, with and without checkpoints.

Bytes are what jax.live_arrays() holds above what was there before, looked at after every layer and
after every action of backward; the parameters are the same few for all layers, so that what grows with
the depth is what is kept. Time is the processor's for a whole step, forward and backward, on one thread and with nobody
looking: the least of a few.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import environment

BATCH, WIDTH = 256, 64
DEPTHS = (64, 256, 1024)
WAYS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "sqrt": {"segments": "sqrt"},
    "binomial, 8 slots": {"segments": "binomial", "slots": 8},
    "sqrt, policy dots": {"segments": "sqrt", "policy": "dots"},
    "sqrt, not verified": {"segments": "sqrt", "verify": False},
}


class Chain:
    """Layers x -> tanh(x @ w + b), whose calls are counted, and at which somebody may look."""

    def __init__(self, depth: int, way: dict[str, Any] | None):
        import jax

        import tapejax as tj

        keys = jax.random.split(jax.random.key(0), 2)
        self.w = tj.tensor(jax.random.normal(keys[0], (WIDTH, WIDTH)) / WIDTH**0.5, requires_grad=True)
        self.b = tj.tensor(jax.numpy.zeros(WIDTH), requires_grad=True)
        self.x = tj.tensor(jax.random.normal(keys[1], (BATCH, WIDTH)))
        self.calls = 0
        self.look: Callable[[], None] = lambda: None
        layers = [self.layer] * depth
        self.run = self.straight(layers) if way is None else tj.sequential(layers, **way)

    def layer(self, x: Any) -> Any:
        import tapejax.numpy as tnp

        self.calls += 1
        self.look()
        return tnp.tanh(x @ self.w + self.b)

    def straight(self, layers: list[Any]) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            for layer in layers:
                x = layer(x)
            return x

        return run

    def step(self) -> Any:
        import tapejax as tj

        with tj.Tape() as tape:
            loss = (self.run(self.x) ** 2).mean()
        grads = tape.backward(loss, wrt=[self.w, self.b])
        return grads[self.w].block_until_ready()


def live_bytes() -> int:
    import jax

    return sum(array.nbytes for array in jax.live_arrays())


def peak(depth: int, way: dict[str, Any] | None) -> dict[str, Any]:
    """The highest point of a step, and how many times layers ran. Ops run one by one, so that each can be looked at."""
    import tapejax as tj
    from tapejax.engine import backward as engine

    chain = Chain(depth, way)
    chain.step()  # what is made once is made
    gc.collect()  # and the leftovers of tracing are gone
    chain.calls, before, highest = 0, live_bytes(), 0
    after_action, every = engine.pull, max(1, depth // 128)
    seen = 0

    def look() -> None:
        nonlocal highest, seen
        seen += 1
        if seen % every == 0:
            highest = max(highest, live_bytes() - before)

    def pull(*arguments: Any) -> None:
        after_action(*arguments)
        look()

    chain.look, engine.pull, fused = look, pull, tj.fusion.enabled
    tj.fusion.enabled = False
    try:
        chain.step()
    finally:
        engine.pull, tj.fusion.enabled = after_action, fused
    # A layer's backward is two products of matrices where its forward is one.
    return {"bytes": highest, "calls": chain.calls, "work": (chain.calls + 2 * depth) / (3 * depth)}


def seconds(depth: int, way: dict[str, Any] | None, rounds: int) -> float:
    chain = Chain(depth, way)
    for _ in range(3):
        chain.step()
    samples = []
    for _ in range(rounds):
        start = time.process_time()
        chain.step()
        samples.append(time.process_time() - start)
    return min(samples)


def measure(depths: tuple[int, ...], rounds: int) -> list[dict[str, Any]]:
    rows = []
    for depth in depths:
        for name, way in WAYS.items():
            row = {"depth": depth, "way": name, **peak(depth, way), "seconds": seconds(depth, way, rounds)}
            rows.append(row)
            print(
                f"{depth:>5} {name:<20} {row['bytes'] / 2**20:>8.2f} MiB {row['calls']:>6} layer runs  work x {row['work']:.3f}"
                f" {1e3 * row['seconds']:>9.1f} ms",
                flush=True,
            )
    return rows


# --- the picture ------------------------------------------------------------------------------------------

COLOURS = ("#4c566a", "#2e7d32", "#c62828", "#1565c0", "#8d6e63")


def picture(rows: list[dict[str, Any]]) -> str:
    panels = [panel(rows, "bytes", "peak bytes", 60), panel(rows, "seconds", "seconds per step", 440)]
    legend = [
        f'<g transform="translate({60 + 150 * i},322)"><rect width="14" height="4" y="-6" fill="{colour}"/>'
        f'<text x="20" y="0">{name}</text></g>'
        for i, (name, colour) in enumerate(zip(WAYS, COLOURS, strict=True))
    ]
    return "\n".join([
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 340" font-family="sans-serif" font-size="12">',
        '<rect width="820" height="340" fill="white"/>', *panels, *legend, "</svg>", "",
    ])  # fmt: skip


def panel(rows: list[dict[str, Any]], key: str, title: str, left: int) -> str:
    from math import ceil, floor, log2, log10

    width, top, bottom = 320, 40, 280
    depths = sorted({row["depth"] for row in rows})
    low = floor(min(log10(row[key]) for row in rows))
    high = max(ceil(max(log10(row[key]) for row in rows)), low + 1)
    x = lambda depth: left + width * (log2(depth) - log2(depths[0])) / max(log2(depths[-1]) - log2(depths[0]), 1)
    y = lambda value: bottom - (bottom - top) * (log10(value) - low) / (high - low)
    parts = [f'<text x="{left}" y="22" font-weight="bold">{title}</text>']
    for power in range(low, high + 1):
        label = {
            6: "1 MB",
            7: "10 MB",
            8: "100 MB",
            5: "100 kB",
            0: "1 s",
            -1: "0.1 s",
            -2: "10 ms",
            -3: "1 ms",
            1: "10 s",
        }
        parts.append(
            f'<line x1="{left}" x2="{left + width}" y1="{y(10.0**power):.1f}" y2="{y(10.0**power):.1f}" stroke="#ddd"/>'
            f'<text x="{left - 6}" y="{y(10.0**power) + 4:.1f}" text-anchor="end">{label.get(power, f"1e{power}")}</text>'
        )
    for depth in depths:
        parts.append(f'<text x="{x(depth):.1f}" y="{bottom + 18}" text-anchor="middle">{depth}</text>')
    for name, colour in zip(WAYS, COLOURS, strict=True):
        points = [(x(row["depth"]), y(row[key])) for row in rows if row["way"] == name]
        line = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points]
    return "\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint", description=__doc__.splitlines()[0])
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS)
    parser.add_argument("--rounds", type=int, default=3, help="timed steps (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write everything that was measured")
    parser.add_argument("--load", metavar="FILE", help="draw such a file, measure nothing")
    parser.add_argument("--plot", metavar="FILE", help="draw the chart, as SVG")
    options = parser.parse_args(arguments)
    rows = (
        json.loads(Path(options.load).read_text()) if options.load else measure(tuple(options.depths), options.rounds)
    )
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    if options.plot:
        Path(options.plot).write_text(picture(rows))
    return 0


if __name__ == "__main__":
    environment.enter("benchmarks.checkpoint")
    sys.exit(main())
