"""What the tape costs on many devices, on paper: `python -m benchmarks.cost --plot docs/images/cost.svg`.

Four figures are measured here: what Python takes per action of the eager tape, per call of a jitted step (ours and jax's), and
the bytes that a transformer's layer keeps. Everything else is arithmetic with the assumptions of `Machine` and `Model`.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tapejax as tj
import tapejax.numpy as tnp

DEVICES = (8, 256, 4096)
ACTIONS = 64  # ops of the chain that is timed
STATE = 16  # bytes of a parameter: float32 master, gradient and two moments of the optimiser


@dataclass(frozen=True)
class Machine:
    """Assumed: a device's bfloat16 rate, the part of it that is reached, and what goes in and out of it in a collective."""

    flops: float = 4e14
    reached: float = 0.4
    link: float = 5e10  # bytes a second


@dataclass(frozen=True)
class Model:
    """Assumed: a decoder-only transformer, and the sequences of a whole step, shared by all devices.

    at_once: how many of them a device takes at a time; the gradients of the parts are added up.
    """

    name: str
    layers: int
    width: int
    heads: int
    length: int
    sequences: int
    at_once: int
    actions: int = 20  # ops of a layer, as the eager tape records them

    @property
    def parameters(self) -> int:
        return 12 * self.layers * self.width**2

    def parts(self, devices: int) -> float:
        """How many times a device runs the model in a step."""
        return max(self.sequences / devices / self.at_once, 1)


MODELS = (
    Model("85 million parameters", 12, 768, 12, 1024, 4096, at_once=16),
    Model("6.4 billion parameters", 32, 4096, 32, 2048, 4096, at_once=2),
)


@dataclass(frozen=True)
class Measured:
    """Seconds of the host, and bytes for one number of a layer's input (`linear`) and of its attention scores (`square`)."""

    per_action: float  # eager, op by op, forward and backward: as several processes run it
    per_fused_action: float  # eager, one process: one compiled program
    per_step: float  # a call of a jitted step with the tape inside
    per_jax_step: float  # the same by jax alone
    linear: float
    square: float


# --- measured ------------------------------------------------------------------------------------------------------


def measure() -> Measured:
    one_by_one, fused = (host_seconds(_eager(enabled)) / ACTIONS for enabled in (False, True))
    x = jnp.ones(4)
    ours, theirs = (jax.jit(module.value_and_grad(lambda v: _chain(jnp, v))) for module in (tj, jax))
    linear, square = kept_by_a_layer()
    return Measured(one_by_one, fused, host_seconds(lambda: ours(x)), host_seconds(lambda: theirs(x)), linear, square)


def _chain(n: Any, x: Any) -> Any:
    for _ in range(ACTIONS - 1):
        x = n.sin(x)
    return x.sum()


def _eager(fused: bool):
    x = tj.tensor(np.ones(4, "f"), requires_grad=True)

    def step():
        before, tj.fusion.enabled = tj.fusion.enabled, fused
        try:
            return tj.backward(_chain(tnp, x), wrt=x)[x]
        finally:
            tj.fusion.enabled = before

    return step


def host_seconds(step, rounds: int = 200) -> float:
    """The least time of a call on numbers so few that only Python and dispatch count."""
    for _ in range(3):
        jax.block_until_ready(step())
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready(step())
        times.append(time.perf_counter() - start)
    return min(times)


def layer(p: dict[str, Any], x: Any) -> Any:
    """Attention and a network of two layers, each after a normalisation; one head."""
    h = _normalised(x)
    scores = tnp.matmul(h @ p["q"], tnp.swapaxes(h @ p["k"], -1, -2))
    x = x + tnp.matmul(tj.nn.softmax(scores), h @ p["v"]) @ p["o"]
    return x + tj.nn.gelu(_normalised(x) @ p["up"]) @ p["down"]


def _normalised(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / tnp.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def kept_by_a_layer(width: int = 64) -> tuple[float, float]:
    """Bytes for each number of the input, and for each score: from two lengths, since one part grows with the square."""
    shapes = dict.fromkeys("qkvo", (width, width)) | {"up": (width, 4 * width), "down": (4 * width, width)}
    p = {name: tj.tensor(np.full(shape, 0.01, "f"), requires_grad=True) for name, shape in shapes.items()}
    lengths = np.array([32, 128])
    kept = []
    for length in lengths:
        x = tj.tensor(np.random.default_rng(0).normal(size=(1, length, width)).astype("f"), requires_grad=True)
        kept.append(tj.plan_memory([lambda y: layer(p, y)], (x,), 1 << 40).kept[0])
    columns = np.stack([lengths * width, lengths**2], 1).astype(float)
    linear, square = np.linalg.solve(columns, np.array(kept, float))
    return float(linear), float(square)


# --- computed ------------------------------------------------------------------------------------------------------


def seconds(devices: int, machine: Machine, model: Model) -> tuple[float, float]:
    """(arithmetic, collectives) of one step on one device; parameters fully sharded: gathered twice, reduced once, in each part."""
    tokens = model.sequences * model.length / devices
    attention = 12 * model.layers * model.length * model.width
    arithmetic = tokens * (6 * model.parameters + attention) / (machine.flops * machine.reached)
    moved = model.parts(devices) * 3 * 2 * model.parameters * (devices - 1) / devices
    return arithmetic, moved / machine.link


def python(devices: int, measured: Measured, model: Model) -> dict[str, float]:
    """Seconds of Python in a step, by way of running it; each process has its own, however many there are."""
    actions = model.layers * model.actions
    once = {
        "jax.jit": measured.per_jax_step,
        "jitted tape": measured.per_step,
        "eager, fused": actions * measured.per_fused_action,
        "eager, op by op": actions * measured.per_action,
    }
    return {way: model.parts(devices) * seconds for way, seconds in once.items()}


def times(measured: Measured, machine: Machine, model: Model) -> list[dict[str, Any]]:
    """For each number of devices and each way: the step, and what Python adds to it. Python runs ahead of the device."""
    rows = []
    for devices in DEVICES:
        arithmetic, collectives = seconds(devices, machine, model)
        device = max(arithmetic, collectives)  # collectives run behind arithmetic, as far as they can
        for way, host in python(devices, measured, model).items():
            step = max(device, host)
            rows.append({"devices": devices, "way": way, "device": device, "host": host, "added": step / device - 1})
    return rows


def memory(measured: Measured, model: Model) -> list[dict[str, Any]]:
    """Bytes on one device: parameters with their state, and what is kept (in bfloat16: half of what was measured)."""
    rows = []
    for devices in DEVICES:
        each = min(model.at_once, max(model.sequences / devices, 1))
        numbers, scores = each * model.length * model.width, each * model.heads * model.length**2
        a_layer = (measured.linear * numbers + measured.square * scores) / 2
        inputs = 2 * numbers * model.layers
        for sharding, state in {"replicated": 1, "fully sharded": devices}.items():
            parameters = STATE * model.parameters / state
            kept = {"everything kept": a_layer * model.layers, "layers checkpointed": inputs + a_layer}
            rows += [{"devices": devices, "parameters": sharding, "policy": policy, "state": parameters, "kept": bytes_}
                     for policy, bytes_ in kept.items()]  # fmt: skip
    return rows


# --- shown ---------------------------------------------------------------------------------------------------------


def text(measured: Measured, machine: Machine, model: Model) -> str:
    lines = [model.name, "", "| devices | way | device, s | Python, s | added |", "| --- | --- | --- | --- | --- |"]
    for r in times(measured, machine, model):
        lines.append(
            f"| {r['devices']:,} | {r['way']} | {r['device']:.3g} | {r['host']:.2g} | {100 * r['added']:.0f} % |"
        )
    lines += ["", "| devices | parameters | policy | state, GB | kept, GB |", "| --- | --- | --- | --- | --- |"]
    for r in memory(measured, model):
        state, kept = (f"{r[name] / 1e9:.3g}" for name in ("state", "kept"))
        lines.append(f"| {r['devices']:,} | {r['parameters']} | {r['policy']} | {state} | {kept} |")
    return "\n".join([*lines, ""])


def plot(measured: Measured, machine: Machine, path: str) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "tapejax"
    many = [2**n for n in range(3, 13)]
    figure, panels = plt.subplots(1, len(MODELS), figsize=(9, 4), sharey=True)
    for axes, model in zip(panels, MODELS, strict=True):
        axes.loglog(many, [max(seconds(n, machine, model)) for n in many], color="black", linewidth=2, label="device")
        for way, style in zip(python(8, measured, model), (":", "-.", "--", "-"), strict=True):
            axes.loglog(many, [python(n, measured, model)[way] for n in many], style, label=f"Python: {way}")
        axes.set(xlabel="devices", title=model.name)
        axes.set_xticks(DEVICES, [f"{n:,}" for n in DEVICES])
        axes.minorticks_off()
    panels[0].set_ylabel("seconds of a step")
    panels[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost", description=__doc__)
    parser.add_argument("--plot", metavar="FILE", help="draw it (needs matplotlib)")
    parser.add_argument("--json", metavar="FILE", help="write what was measured")
    parser.add_argument("--load", metavar="FILE", help="compute from such a file, measure nothing")
    options = parser.parse_args()
    measured = Measured(**json.loads(Path(options.load).read_text())) if options.load else measure()
    machine = Machine()
    for name, figure in asdict(measured).items():
        print(f"{name:<18}", f"{figure:.2f} bytes" if name in ("linear", "square") else f"{1e6 * figure:.1f} us")
    print()
    for model in MODELS:
        print(text(measured, machine, model))
    if options.json:
        Path(options.json).write_text(json.dumps(asdict(measured), indent=1) + "\n")
    if options.plot:
        plot(measured, machine, options.plot)


if __name__ == "__main__":
    main()
