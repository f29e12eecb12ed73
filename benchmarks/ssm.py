"""`python -m benchmarks.ssm`: the associative scan against the sequential one, and a step of the state space example.

--curve FILE trains the example instead, and draws its loss and accuracy as a small SVG.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp

import tapejax as tj
from tapejax.nn.layers import ssm_scan

EXAMPLE = Path(__file__).parent.parent / "examples" / "07_selective_state_space.py"
WIDTHS = (1, 16, 256)


def best(run: Callable[[], Any], rounds: int, warm: int = 1) -> tuple[float, float]:
    """Seconds of the first calls together, which compile, and of the fastest of the others."""
    times = []
    for _ in range(warm + rounds):
        began = perf_counter()
        jax.block_until_ready(run())
        times.append(perf_counter() - began)
    return sum(times[:warm]), min(times[warm:])


def scans(steps: int, width: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Milliseconds of a scan and of its gradients for a, b, x and h0: associative, sequential."""
    keys = jax.random.split(jax.random.key(0), 4)
    a = jax.nn.sigmoid(2.0 + jax.random.normal(keys[0], (steps, width)))
    b, x = (jax.random.normal(key, (steps, width)) for key in keys[1:3])
    h0 = jax.random.normal(keys[3], (width,))
    found = {}
    for what in ("forward", "gradients"):
        pair = []
        for parallel in (True, False):
            scan = lambda *v, parallel=parallel: ssm_scan(*v, parallel=parallel)
            gradient = tj.grad(lambda *v, scan=scan: jnp.sum(scan(*v) ** 2), (0, 1, 2, 3))
            run = jax.jit(scan if what == "forward" else gradient)
            pair.append(best(lambda run=run: run(a, b, x, h0), rounds)[1] * 1e3)
        found[what] = (pair[0], pair[1])
    return found


def example() -> Any:
    spec = importlib.util.spec_from_file_location("state_space", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def steps(rounds: int) -> dict[str, tuple[float, float]]:
    """Seconds of the calls that compile and of the best of the later ones, of a training step of the example."""
    module = example()
    values = module.start(jax.random.key(0))
    state, batch = module.optimiser.init(values), module.data(jax.random.key(1))
    return {  # the eager step compiles each op, and then what it has seen twice
        "eager": best(lambda: module.step(values, state, *batch), rounds, warm=4),
        "jax.jit": best(lambda run=jax.jit(module.step): run(values, state, *batch), rounds),
    }


def curve(history: Sequence[tuple[float, float]], window: int = 10) -> str:
    """Loss and accuracy by step, as means over a window, in an SVG of two lines."""
    width, height, left, top = 560, 240, 44, 24
    rows = [history[i : i + window] for i in range(0, len(history), window)]
    means = [[sum(column) / len(row) for column in zip(*row, strict=True)] for row in rows]
    highest = max(loss for loss, _ in means)
    x = lambda i: left + (i + 0.5) * width / len(means)
    y = lambda share: top + (1 - share) * height
    line = lambda shares: " ".join(f"{x(i):.1f},{y(share):.1f}" for i, share in enumerate(shares))
    text = lambda at, down, words, **more: (
        f'<text x="{at:.0f}" y="{down:.0f}"{"".join(f" {k}={v!r}" for k, v in more.items())}>{words}</text>'
    )
    base = top + height
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 48} {base + 40}" '
            'font-family="sans-serif" font-size="12" fill="#444">',
            f"<title>Selective copying: loss and accuracy over {len(history)} steps</title>",
            f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="white" stroke="#ccc"/>',
            f'<line x1="{left}" x2="{left + width}" y1="{y(0.95):.1f}" y2="{y(0.95):.1f}" stroke="#ccc" '
            'stroke-dasharray="4"/>',
            f'<polyline points="{line([loss / highest for loss, _ in means])}" fill="none" stroke="#c33" '
            'stroke-width="1.5"/>',
            f'<polyline points="{line([right for _, right in means])}" fill="none" stroke="#36c" stroke-width="1.5"/>',
            text(4, y(1) + 4, f"{highest:.2f}", fill="#c33"),
            text(4, base, "0", fill="#c33"),
            text(4, top + height / 2, "loss", fill="#c33"),
            text(left + width + 4, y(1) + 4, "100 %", fill="#36c"),
            text(left + width + 4, y(0.95) + 14, "95 %", fill="#36c"),
            text(left + width + 4, base, "0", fill="#36c"),
            text(left + width + 4, top + height / 2, "right", fill="#36c"),
            text(left, base + 18, "0"),
            text(left + width - 20, base + 18, str(len(history))),
            text(left + width / 2 - 14, base + 18, "step"),
            "</svg>\n",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ssm", description=__doc__)
    parser.add_argument("--steps", type=int, default=4096, help="length of the scans (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="the best of so many (default: %(default)s)")
    parser.add_argument("--curve", metavar="FILE", help="train the example and draw its curve, nothing else")
    parser.add_argument("--eager", action="store_true", help="train it without jit")
    options = parser.parse_args(arguments)
    if options.curve:
        module = example()
        history = module.train(module.step if options.eager else jax.jit(module.step))
        Path(options.curve).write_text(curve(history))
        return 0
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, jax {jax.__version__}; best of {options.rounds}")
    print(f"scan over {options.steps} steps   associative    sequential   ratio")
    for width in WIDTHS:
        for what, (parallel, sequential) in scans(options.steps, width, options.rounds).items():
            print(
                f"{width:4d} channels, {what:<9}  {parallel:8.2f} ms   {sequential:8.2f} ms   {parallel / sequential:5.1f}"
            )
    for name, (first, later) in steps(options.rounds).items():
        print(f"training step, {name:<8} {later * 1e3:8.1f} ms, after {first:.1f} s of compiling")
    return 0


if __name__ == "__main__":
    sys.exit(main())
