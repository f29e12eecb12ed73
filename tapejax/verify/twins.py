"""Two programs side by side, or one in two precisions: where do they part?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.engine import backward as engine
from tapejax.errors import ArgumentError
from tapejax.ground.where import user_line
from tapejax.plan.plan import OpAction
from tapejax.tensor.gradients import Gradients
from tapejax.tensor.tensor import Tensor
from tapejax.verify.report import RIGHT, WRONG, Findings, aligned, device, number, plain_json
from tapejax.verify.subject import Subject, cotangents, inexact, vjp_at, wide_value
from tapejax.verify.subjects import PlanSubject, pulled
from tapejax.verify.tolerance import difference, for_dtype, wide_numpy
from tapejax.verify.watch import Seen, Watched, watch
from tapejax.verify.wide import run_wide

# --- two programs ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Pair:
    """Two actions that correspond, or one alone (the other index is None). Errors are relative."""

    first: int | None
    second: int | None
    op: str
    lines: tuple[str, str]
    forward: float | None = None
    backward: float | None = None
    verdict: str = RIGHT

    def __str__(self) -> str:
        first, second = ("-" if i is None else str(i) for i in (self.first, self.second))
        where = " and ".join(dict.fromkeys(line for line in self.lines if line))
        return f"`{self.op}` (actions {first} and {second}) at {where}"


@dataclass(slots=True, repr=False)
class TwinReport(Findings):
    """Two functions, forward and backward. `ok` if outputs and gradients agree.

    first_forward: the first pair of actions whose values differ. first_backward: the first, on the way back, whose
    gradients do. ends: (what, relative error, verdict) of each output and of each input's gradient.
    """

    names: tuple[str, str]
    pairs: list[Pair]
    ends: list[tuple[str, float, str]]
    tolerance: float
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return all(verdict == RIGHT for _, _, verdict in self.ends)

    @property
    def wrong(self) -> list[Any]:
        return [end for end in self.ends if end[2] == WRONG]

    @property
    def first_forward(self) -> Pair | None:
        return next((pair for pair in self.pairs if (pair.forward or 0.0) > self.tolerance), None)

    @property
    def first_backward(self) -> Pair | None:
        return next((pair for pair in reversed(self.pairs) if (pair.backward or 0.0) > self.tolerance), None)

    @property
    def title(self) -> str:
        return f"compare({', '.join(self.names)})"

    @property
    def verdict_line(self) -> str:
        if self.ok:
            return f"the same: `{self.names[0]}` and `{self.names[1]}` agree in value and gradient"
        what = ", ".join(end[0] for end in self.wrong)
        return f"DIFFERENT: `{self.names[0]}` and `{self.names[1]}` differ in {what}"

    def to_json(self) -> dict[str, Any]:
        return plain_json({
            "functions": self.names, "ok": self.ok, "tolerance": self.tolerance, "seconds": self.seconds,
            "jax": jax.__version__, "device": device(), "ends": self.ends, "pairs": [asdict(pair) for pair in self.pairs],
        })  # fmt: skip

    def tables(self) -> list[tuple[str, list[Sequence[str]], list[str]]]:
        cell = lambda x: "" if x is None else number(x)
        rows: list[Sequence[str]] = [(*self.names, "op", "value", "gradient", "line")]
        for pair in self.pairs:
            index = ["" if i is None else str(i) for i in (pair.first, pair.second)]
            line = (pair.lines[0] or pair.lines[1]).rpartition("/")[2]
            rows.append((*index, pair.op, cell(pair.forward), cell(pair.backward), line))
        ends: list[Sequence[str]] = [("result", "relative error", "verdict")]
        ends += [(what, number(error), verdict) for what, error, verdict in self.ends]
        return [
            ("", ends, [verdict for _, _, verdict in self.ends]),
            ("actions", rows, [pair.verdict for pair in self.pairs]),
        ]

    def remarks(self) -> list[tuple[str, str]]:
        found = []
        if not self.ok and self.first_forward:
            found.append(
                ("value", f"first differs after {self.first_forward}, by {number(self.first_forward.forward)}")
            )
        if not self.ok and self.first_backward:
            text = f"on the way back first differs at {self.first_backward}, by {number(self.first_backward.backward)}"
            found.append(("gradient", text))
        for position, name in enumerate(self.names):
            alone = [pair for pair in self.pairs if (pair.first, pair.second)[1 - position] is None]
            if alone:
                found.append((f"only in {name}", ", ".join(f"`{pair.op}`" for pair in alone[:8])))
        return found

    def __str__(self) -> str:
        ends, pairs = (rows for _, rows, _ in self.tables())
        if len(pairs) > 41:
            pairs = [*pairs[:41], ("...",) * 6]
        lines = [self.title, *aligned(ends), "", *aligned(pairs)]
        lines += [f"{label:<10} {text}" for label, text in self.remarks()]
        lines.append(f"{self.verdict_line}  ({self.seconds:.1f} s)")
        return "\n".join(lines)


def compare(f: Callable[..., Any], g: Callable[..., Any], *args: Any, rtol: float | None = None) -> TwinReport:
    """Two functions that should be one: values and gradients side by side, to the first that differ.

    Both are recorded primitive by primitive. Actions that correspond are found by op and shape, in order.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> report = tj.compare(lambda x: jnp.sin(x) * 2, lambda x: jnp.sin(x) * 2.5, jnp.array([0.3, 0.7]))
    >>> report.ok, report.first_forward.op
    (False, 'mul')
    """
    start = time.perf_counter()
    subjects = [Subject.of(function, args) for function in (f, g)]
    runs = [watch(subject) for subject in subjects]
    kinds = [[jax.typeof(_value(root)) for root in run.roots] for run in runs]
    if [(k.shape, k.dtype) for k in kinds[0]] != [(k.shape, k.dtype) for k in kinds[1]]:
        said = " and ".join(", ".join(kind.str_short() for kind in each) for each in kinds)
        raise ArgumentError(f"the two functions return different kinds: {said}", at=user_line())
    dtype = max((s.narrowest for s in subjects), key=lambda dtype: jnp.finfo(dtype).eps)
    tolerance = for_dtype(dtype, programs=True, rtol=rtol)
    cts = cotangents([_value(root) for root in runs[0].roots], 0)
    gradients = [_gradients(run, cts) for run in runs]
    apart = lambda a, b: difference(a, b, tolerance).max_rel
    ends = []
    for position, (one, two) in enumerate(zip(runs[0].roots, runs[1].roots, strict=True)):
        ends.append((f"output {position}", apart(_value(two), _value(one))))
    for name, one, two in zip(subjects[0].names, runs[0].leaves, runs[1].leaves, strict=True):
        ends.append((f"gradient of {name}", apart(_of(gradients[1], two), _of(gradients[0], one))))
    judged = [(what, error, RIGHT if error <= tolerance.rtol else WRONG) for what, error in ends]
    pairs = list(_pairs(runs, gradients, apart, tolerance.rtol))
    names = tuple(subject.name for subject in subjects)
    names = names if names[0] != names[1] else (f"{names[0]} 1", f"{names[1]} 2")
    return TwinReport(names, pairs, judged, tolerance.rtol, time.perf_counter() - start)


def _value(root: Any) -> Any:
    return root.value if isinstance(root, Tensor) else jnp.asarray(root)


def _of(grads: Gradients, leaf: Tensor) -> Any:
    found = grads.get(leaf)
    return jnp.zeros_like(leaf.value) if found is None else found


def _gradients(run: Watched, cts: Sequence[Any]) -> Gradients:
    """The gradients of everything on the way."""
    grads = Gradients()
    for root, ct in zip(run.roots, cts, strict=True):
        if isinstance(root, Tensor) and root.requires_grad:
            grads.add(root.id.number, ct)
    engine.go_back(list(run.actions), grads, alone=False)
    return grads


def _pairs(runs: Sequence[Watched], gradients: Sequence[Gradients], apart: Callable[..., float], rtol: float):
    keys = [[(seen.op, _shapes(seen)) for seen in run.seen] for run in runs]
    line = lambda seen: seen.line if seen is not None else ""
    for what, a, b, c, d in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
        if what != "equal":
            for seen in runs[0].seen[a:b]:
                yield Pair(seen.index, None, seen.label, (line(seen), ""))
            for seen in runs[1].seen[c:d]:
                yield Pair(None, seen.index, seen.label, ("", line(seen)))
            continue
        for one, two in zip(runs[0].seen[a:b], runs[1].seen[c:d], strict=True):
            forward = max(
                (apart(y, x) for x, y in zip(one.outputs, two.outputs, strict=True) if _known(x, y)), default=0.0
            )
            ids = zip(one.action.outputs, two.action.outputs, strict=True)
            both = [(gradients[0].get(i), gradients[1].get(j)) for i, j in ids]
            backward = max((apart(y, x) for x, y in both if _known(x, y)), default=None)
            verdict = WRONG if max(forward, backward or 0.0) > rtol else RIGHT
            yield Pair(one.index, two.index, one.label, (line(one), line(two)), forward, backward, verdict)


def _known(*values: Any) -> bool:
    return all(value is not None and inexact(value) for value in values)


def _shapes(seen: Seen) -> Any:
    return tuple(None if out is None else jnp.shape(out) for out in seen.outputs or ())


# --- one program in two precisions ---------------------------------------------------------------------------


@dataclass(slots=True)
class Loss:
    """What one action did to the digits: relative errors of what went in and what came out, both ways."""

    index: int
    op: str
    line: str
    went_in: float
    came_out: float
    ct_in: float | None = None
    ct_out: float | None = None

    @property
    def factor(self) -> float:
        """How much the relative error grew, forward."""
        return self.came_out / max(self.went_in, 1e-300)

    @property
    def factor_back(self) -> float:
        return 0.0 if self.ct_out is None else self.ct_out / max(self.ct_in or 0.0, 1e-300)


@dataclass(slots=True, repr=False)
class PrecisionReport(Findings):
    """One function in its own precision and in float64: how many digits are left, and which op lost them."""

    function: str
    dtype: str
    actions: list[Loss]
    ends: list[tuple[str, float, str]]
    eps: float
    seconds: float = 0.0
    wrong: list[Any] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether all results have at least half of the digits of their dtype."""
        return all(verdict == RIGHT for _, _, verdict in self.ends)

    @property
    def worst(self) -> Loss | None:
        """The action that lost most, forward; None if none lost more than a digit."""
        found = max(self.actions, key=lambda loss: loss.factor, default=None)
        return found if found is not None and found.factor > 10 and found.came_out > 10 * self.eps else None

    @property
    def worst_back(self) -> Loss | None:
        """The action that lost most on the way back."""
        found = max(self.actions, key=lambda loss: loss.factor_back, default=None)
        return found if found is not None and found.factor_back > 10 and (found.ct_out or 0) > 10 * self.eps else None

    @property
    def title(self) -> str:
        return f"compare_precision({self.function})"

    @property
    def verdict_line(self) -> str:
        lost = [(loss, way) for loss, way in ((self.worst, "forward"), (self.worst_back, "back")) if loss is not None]
        if not lost:
            return f"`{self.function}` loses no more than a digit in any {self.dtype} operation"
        words = [
            f"{_digits(loss.factor if way == 'forward' else loss.factor_back)} digits on the way {way} in "
            f"action {loss.index}, `{loss.op}` at {loss.line}"
            for loss, way in lost
        ]
        return f"{self.dtype} loses " + "; ".join(words)

    def to_json(self) -> dict[str, Any]:
        return plain_json({
            "function": self.function, "dtype": self.dtype, "ok": self.ok, "ends": self.ends, "seconds": self.seconds,
            "worst": None if self.worst is None else self.worst.index,
            "worst_back": None if self.worst_back is None else self.worst_back.index,
            "jax": jax.__version__, "device": device(), "actions": [asdict(loss) for loss in self.actions],
        })  # fmt: skip

    def tables(self) -> list[tuple[str, list[Sequence[str]], list[str]]]:
        cell = lambda x: "" if x is None else number(x)
        rows: list[Sequence[str]] = [("", "op", "error in", "error out", "ct in", "ct out", "line")]
        verdicts = []
        for loss in self.actions:
            line = loss.line.rpartition("/")[2]
            errors = map(cell, (loss.went_in, loss.came_out, loss.ct_in, loss.ct_out))
            rows.append((str(loss.index), loss.op, *errors, line))
            verdicts.append(WRONG if loss in (self.worst, self.worst_back) else RIGHT)
        ends: list[Sequence[str]] = [("result", "relative error", "verdict")]
        ends += [(what, number(error), verdict) for what, error, verdict in self.ends]
        return [("", ends, [verdict for _, _, verdict in self.ends]), ("actions", rows, verdicts)]

    def remarks(self) -> list[tuple[str, str]]:
        return []

    def __str__(self) -> str:
        ends, rows = (rows for _, rows, _ in self.tables())
        if len(rows) > 41:
            rows = [*rows[:41], ("...",) * 7]
        return "\n".join([
            f"{self.title}: {self.dtype} against float64", *aligned(ends), "", *aligned(rows),
            f"{self.verdict_line}  ({self.seconds:.1f} s)",
        ])  # fmt: skip


def _digits(factor: float) -> str:
    return f"{math.log10(max(factor, 1.0)):.0f}"


def compare_precision(function: Callable[..., Any], *args: Any) -> PrecisionReport:
    """The function in its own precision against the same program in float64: which op loses the digits?

    Recorded primitive by primitive; each action is run again on float64 values that come from float64 actions, both
    ways. An action whose relative error grows much is where cancellation happens.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> report = tj.compare_precision(lambda x: jnp.sum((1.0 + x) - 1.0), jnp.array([1e-5, 3e-5], "float32"))
    >>> report.worst.op
    'sub'
    """
    start = time.perf_counter()
    subject = Subject.of(function, args)
    run = watch(subject)
    eps = float(jnp.finfo(subject.narrowest).eps)
    cts = cotangents([_value(root) for root in run.roots], 0)
    grads = _gradients(run, cts)
    twin = _WideTwin(run, eps)
    losses = [twin.forward(seen) for seen in run.seen]
    twin.start_back(run.roots, cts)
    for seen, loss in zip(reversed(run.seen), reversed(losses), strict=True):
        twin.backward(seen, loss, grads)
    ends = []
    for position, root in enumerate(run.roots):
        if isinstance(root, Tensor) and root.id.number in twin.values:
            ends.append((f"output {position}", _error(root.value, twin.values[root.id.number])))
    for name, leaf in zip(subject.names, run.leaves, strict=True):
        wide = twin.cts.get(leaf.id.number)
        if wide is not None and grads.get(leaf) is not None:
            ends.append((f"gradient of {name}", _error(grads.get(leaf), wide)))
    judged = [(what, error, RIGHT if error < math.sqrt(eps) else WRONG) for what, error in ends]
    dtype = jnp.dtype(subject.narrowest).name
    return PrecisionReport(subject.name, dtype, losses, judged, eps, time.perf_counter() - start)


def _error(narrow: Any, wide: Any) -> float:
    """Relative, in the norm of the whole array."""
    a, b = wide_numpy(narrow), wide_numpy(wide)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        same = np.array_equal(np.isfinite(a), np.isfinite(b))
        a, b = np.where(np.isfinite(a), a, 0), np.where(np.isfinite(b), b, 0)
        if not same:
            return float("inf")
    size = float(np.linalg.norm(b.reshape(-1)))
    return float(np.linalg.norm((a - b).reshape(-1))) / size if size else float(np.abs(a).max(initial=0.0) > 0)


class _WideTwin:
    """The recorded actions, run once more in float64, each on what float64 actions gave."""

    def __init__(self, run: Watched, eps: float):
        self.eps = eps
        self.values: dict[int, Any] = {leaf.id.number: wide_value(leaf.value) for leaf in run.leaves}
        self.cts: dict[int, Any] = {}
        self.compiled: dict[int, Any] = {}

    def _of_plan(self, plan: Any, values: Sequence[Any]) -> tuple[Any, Any, list[int]]:
        if id(plan) not in self.compiled:
            subject = PlanSubject(plan, values)
            outputs = lambda *values: [o for o in run_wide(plan.flat_program, values)[0] if inexact(o)]
            self.compiled[id(plan)] = (
                jax.jit(lambda values: run_wide(plan.flat_program, values)[0]),
                jax.jit(lambda values, cts: vjp_at(outputs, values, subject.positions, cts)),
                subject.positions,
            )
        return self.compiled[id(plan)]

    def inputs(self, seen: Seen) -> list[Any]:
        ids = seen.action.inputs
        return [self.values.get(i.number, wide_value(v)) for i, v in zip(ids, seen.inputs, strict=True)]

    def forward(self, seen: Seen) -> Loss:
        action = seen.action
        if type(action) is not OpAction:  # its forward is not known: taken as it is
            for tensor_id, out in zip(action.outputs or (), seen.outputs or ()):
                if out is not None:
                    self.values[tensor_id.number] = wide_value(out)
            return Loss(seen.index, seen.label, seen.line, self.eps, self.eps)
        inputs = self.inputs(seen)
        with jax.enable_x64(True):
            outputs = self._of_plan(action.plan, seen.inputs)[0](inputs)
        self.values.update(zip(action.numbers, outputs))
        errors = lambda narrow, wide: max(
            (_error(n, w) for n, w in zip(narrow, wide, strict=True) if n is not None and inexact(n)), default=0.0
        )
        went_in = max(errors(seen.inputs, inputs), self.eps)
        return Loss(seen.index, seen.label, seen.line, went_in, errors(seen.outputs, outputs))

    def start_back(self, roots: Sequence[Any], cts: Sequence[Any]) -> None:
        for root, ct in zip(roots, cts, strict=True):
            if isinstance(root, Tensor) and root.requires_grad:
                self._add(root.id.number, wide_value(ct))

    def _add(self, key: int, ct: Any) -> None:
        self.cts[key] = ct if key not in self.cts else self.cts[key] + ct

    def backward(self, seen: Seen, loss: Loss, grads: Gradients) -> None:
        action = seen.action
        if action.outputs is None or action.inputs is None:
            return
        outs = [
            (i, out) for i, out in zip(action.outputs, seen.outputs, strict=True) if out is not None and inexact(out)
        ]
        narrow = [grads.get(i) for i, _ in outs]
        if all(ct is None for ct in narrow):
            return
        narrow = [jnp.zeros_like(out) if ct is None else ct for ct, (_, out) in zip(narrow, outs, strict=True)]
        wide = [self.cts.get(i.number, np.zeros(np.shape(out))) for i, out in outs]
        found = pulled(action, seen.inputs, narrow, seen.outputs)
        loss.ct_in = max([_error(n, w) for n, w in zip(narrow, wide, strict=True)] + [self.eps])
        if type(action) is not OpAction:
            for tensor_id, ct in zip(action.inputs, found, strict=True):
                self._add(tensor_id.number, wide_value(ct))
            return
        _, pull, positions = self._of_plan(action.plan, seen.inputs)
        with jax.enable_x64(True):
            given = pull(self.inputs(seen), [np.asarray(ct) for ct in wide])
        sums: dict[int, Any] = {}
        for position, ct in zip(positions, given, strict=True):
            key = action.inputs[position].number
            self._add(key, np.asarray(ct))
            sums[key] = np.asarray(ct) + sums.get(key, 0)
        places = {action.inputs[position].number: position for position in positions}
        loss.ct_out = max((_error(found[places[key]], ct) for key, ct in sums.items()), default=None)
