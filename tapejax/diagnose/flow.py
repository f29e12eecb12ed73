"""gradient_flow: how large a gradient is on its way back, by argument, by action and by step of a loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.diagnose.elements import is_inexact, to_numpy
from tapejax.diagnose.loops import BackSteps
from tapejax.diagnose.nonfinite import Subject
from tapejax.diagnose.places import place_of
from tapejax.diagnose.runs import Run
from tapejax.errors import ArgumentError
from tapejax.ground.where import user_line
from tapejax.ops.lift import is_tensor
from tapejax.transforms.recording import plain
from tapejax.verify.report import aligned, plain_json

BARS = "▁▂▃▄▅▆▇█"
VANISHED, EXPLODED = 1e-8, 1e8  # of a gradient on its way back, compared with where it started


def norm(value: Any) -> float:
    """The length of an array as a vector; its squares never leave the range."""
    value = np.abs(np.asarray(value)).astype(np.float64).reshape(-1)
    top = value.max(initial=0.0)
    if not np.isfinite(top) or top == 0:
        return float(top)
    return float(top * np.sqrt(np.sum((value / top) ** 2)))


def sparkline(norms: Sequence[float]) -> str:
    """Norms as a row of bars, by their logarithms; `!` where one is not finite, a blank where it is zero."""
    logs = np.array([np.log10(n) if np.isfinite(n) and n > 0 else np.nan for n in norms])
    low, high = (np.nanmin(logs), np.nanmax(logs)) if np.isfinite(logs).any() else (0.0, 0.0)
    width = max(high - low, 1.0)  # less than a factor of ten is shown as small
    height = lambda log: BARS[min(int((log - low) / width * len(BARS)), len(BARS) - 1)]
    return "".join(
        height(log) if np.isfinite(log) else " " if n == 0 else "!" for n, log in zip(norms, logs, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Layer:
    """An argument, or a leaf of one. dead: the share of its gradient that is zero; ratio: of gradient to value."""

    name: str
    shape: tuple[int, ...]
    value: float
    gradient: float
    ratio: float
    dead: float


@dataclass(frozen=True, slots=True)
class Passage:
    """An action on the way back: the norm of what arrives, of what it sends on, and their ratio."""

    op: str
    file: str
    lineno: int
    arrives: float
    sends: float
    factor: float


@dataclass(frozen=True, slots=True)
class LoopFlow:
    """The cotangents of what a loop carries: norms[i] is what arrives at step i.

    factor: by how much a step changes it, as a geometric mean. overflow: how many steps it takes to leave the dtype's
    range from a gradient of one; None if it does not grow.
    """

    op: str
    file: str
    lineno: int
    norms: tuple[float, ...]
    factor: float
    overflow: int | None


@dataclass(frozen=True, slots=True)
class Flow:
    """What gradient_flow found. `str()` is a table with sparklines; `plot()` draws it; `to_json()` is all of it."""

    function: str
    layers: tuple[Layer, ...]
    actions: tuple[Passage, ...]
    loops: tuple[LoopFlow, ...]

    @property
    def verdict(self) -> str:
        """ "healthy", "vanishing", "exploding" or "nonfinite"."""
        ends = [layer.gradient for layer in self.layers]
        if not all(map(np.isfinite, ends)):
            return "nonfinite"
        steps = [loop.norms[0] / loop.norms[-1] for loop in self.loops if len(loop.norms) > 1 and loop.norms[-1] > 0]
        start = next((passage.arrives for passage in self.actions if passage.arrives > 0), 1.0)
        ratios = [*(end / start for end in ends), *steps]
        if any(ratio > EXPLODED for ratio in ratios):
            return "exploding"
        return "vanishing" if any(ratio < VANISHED for ratio in ratios) else "healthy"

    def __str__(self) -> str:
        rows: list[Sequence[str]] = [("argument", "value", "gradient", "ratio", "zero")]
        rows += [
            (one.name, f"{one.value:.3g}", f"{one.gradient:.3g}", f"{one.ratio:.3g}", f"{one.dead:.0%}")
            for one in self.layers
        ]
        lines = [f"gradient_flow({self.function}): {self.verdict}", *aligned(rows)]
        lines.append(f"on the way back  {sparkline([passage.sends for passage in self.actions])}")
        for loop in self.loops:
            grows = "" if loop.overflow is None else f", out of range after {loop.overflow} steps"
            place = f"{os.path.basename(loop.file)}:{loop.lineno}"
            lines.append(f"{loop.op} at {place}  {sparkline(_fewer(loop.norms))}  x {loop.factor:.3g} a step{grows}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return plain_json({**asdict(self), "verdict": self.verdict})

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def plot(self, axes: Any = None) -> Any:
        """The norms on the way back, and those of each loop, with matplotlib; the axes."""
        import matplotlib.pyplot as plt

        axes = plt.subplots()[1] if axes is None else axes
        axes.plot([passage.sends for passage in self.actions], marker=".", label="actions, going back")
        for loop in self.loops:
            axes.plot(loop.norms[::-1], label=f"steps of {loop.op} at line {loop.lineno}, going back")
        axes.set_yscale("log")
        axes.set_ylabel("norm of the gradient")
        axes.legend()
        return axes


def _fewer(norms: Sequence[float], count: int = 60) -> list[float]:
    places = np.unique(np.linspace(0, len(norms) - 1, min(count, len(norms))).astype(int)) if norms else []
    return [norms[i] for i in places]


def gradient_flow(
    f: Callable[..., Any], *args: Any, wrt: int | Sequence[int] | None = None, has_aux: bool = False
) -> Flow:
    """How large the gradient of f is by argument, by action on the way back, and by step of each loop.

    f is any function that jax can trace, or one over Tensors; a cotangent of ones goes back. Norms are taken so that
    they do not overflow.

    >>> import jax, jax.numpy as jnp, tapejax as tj
    >>> def loss(w):
    ...     step = lambda h, _: (w * h, None)
    ...     return jax.lax.scan(step, jnp.float32(1.0), None, length=20)[0]
    >>> flow = tj.gradient_flow(loss, jnp.float32(3.0))
    >>> flow.verdict, round(flow.loops[0].factor, 3), flow.loops[0].overflow
    ('exploding', 3.0, 81)
    """
    subject = Subject.of(f, args, wrt, has_aux)
    run = subject.run()
    if run.probe.back is None:
        why = subject.traced.notes[0] if subject.traced.notes else "it has no float arguments"
        raise ArgumentError(f"there is no gradient to follow: {why}", at=user_line())
    return Flow(subject.name, tuple(_layers(subject, run)), tuple(_passages(run)), tuple(_loops(run)))


def _layers(subject: Subject, run: Run) -> Iterator[Layer]:
    traced = subject.traced
    for name, slot, flag in zip(traced.names, traced.probe.program.inputs, traced.flags, strict=True):
        if flag:
            value, ct = run.value(slot), run.ct(slot)
            ct = np.zeros_like(value) if ct is None else ct
            size, length = norm(value), norm(ct)
            ratio = length / size if size else float("inf") if length else 0.0
            yield Layer(name, tuple(value.shape), size, length, ratio, float(np.mean(ct == 0)) if ct.size else 0.0)


def _passages(run: Run) -> Iterator[Passage]:
    for number in range(len(run.sent) - 1, -1, -1):
        sent = run.sent[number]
        if sent is None:
            continue
        eqn = run.probe.back.steps[number][0]
        arrives = norm([norm(run.ct(slot)) for slot in eqn.outputs if run.ct(slot) is not None])
        sends = norm([norm(to_numpy(ct)) for ct in sent if ct is not None])
        place = place_of(eqn.sources)
        yield Passage(eqn.name, place.file, place.lineno, arrives, sends, sends / arrives if arrives else 0.0)


def _loops(run: Run) -> Iterator[LoopFlow]:
    for number, (eqn, _, _, active) in enumerate(run.probe.back.steps):
        if eqn.name != "scan" or run.sent[number] is None:
            continue
        cts = run.results_cts(eqn)
        wanted = tuple(ct is not None for ct in cts)
        key = (id(eqn), "backsteps", wanted)
        if key not in run.probe.inside:
            run.probe.inside[key] = BackSteps(eqn, active, wanted, run.probe.options)
        back: BackSteps = run.probe.inside[key]
        loop = back.loop
        if not any(back.present) or not loop.length:
            continue
        consts, init, xs = loop.split_in(run.operands(eqn))
        ct_carry, ct_ys = loop.split_out(cts)
        fixed = (consts, xs, back.before(consts, init, xs), ct_ys)
        squares, tops = back.sizes(fixed, back.start_state(ct_carry))
        turns = np.asarray(tops, np.float64) * np.sqrt(np.asarray(squares, np.float64))
        norms = [float(n) for n in turns[::-1]]  # the first turn is the last step
        good = [n for n in norms if np.isfinite(n) and n > 0]
        factor = float(np.exp((np.log(good[0]) - np.log(good[-1])) / (len(good) - 1))) if len(good) > 1 else 1.0
        limit = float(jnp.finfo(run.probe.back.avals[eqn.outputs[0]].dtype).max) if is_inexact(run.ct(eqn.outputs[0])) else 3.4e38  # fmt: skip
        overflow = int(np.ceil(np.log(limit) / np.log(factor))) if factor > 1.001 else None
        place = place_of(eqn.sources)
        norms = norms[::-1] if loop.reverse else norms
        word = getattr(eqn, "word", eqn.name)
        yield LoopFlow(word, place.file, place.lineno, tuple(norms), factor, overflow)


class FlowHistory:
    """Norms over the steps of a training: of parameters, gradients and updates, by leaf.

    `add(params, gradients, updates)` after each step; `ratios` are those of update to weight, for which 1e-3 is usual.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> history = tj.diagnose.FlowHistory()
    >>> for scale in (1.0, 0.5):
    ...     history.add({"w": jnp.ones(4)}, {"w": scale * jnp.ones(4)}, {"w": -1e-3 * scale * jnp.ones(4)})
    >>> [round(ratio, 6) for ratio in history.ratios["['w']"]]
    [0.001, 0.0005]
    """

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}
        self.gradients: dict[str, list[float]] = {}
        self.ratios: dict[str, list[float]] = {}

    def add(self, params: Any, gradients: Any, updates: Any = None) -> None:
        """Note the norms of one step."""
        leaves = lambda tree: jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_tensor)[0]
        sizes = lambda tree: {jax.tree_util.keystr(path): norm(plain(leaf)) for path, leaf in leaves(tree)}
        values, slopes, moves = sizes(params), sizes(gradients), sizes(updates)
        for name, value in values.items():
            self.values.setdefault(name, []).append(value)
            self.gradients.setdefault(name, []).append(slopes.get(name, 0.0))
            self.ratios.setdefault(name, []).append(moves.get(name, 0.0) / value if value else 0.0)

    def __str__(self) -> str:
        rows: list[Sequence[str]] = [("parameter", "value", "gradient", "", "update/weight")]
        for name, norms in self.gradients.items():
            last = self.ratios[name][-1]
            rows.append(
                (name, f"{self.values[name][-1]:.3g}", f"{norms[-1]:.3g}", sparkline(_fewer(norms)), f"{last:.3g}")
            )
        return "\n".join(aligned(rows))

    def plot(self, axes: Any = None) -> Any:
        """The norms of the gradients over the steps, with matplotlib; the axes."""
        import matplotlib.pyplot as plt

        axes = plt.subplots()[1] if axes is None else axes
        for name, norms in self.gradients.items():
            axes.plot(norms, label=name)
        axes.set_yscale("log")
        axes.set_xlabel("step")
        axes.set_ylabel("norm of the gradient")
        axes.legend()
        return axes
