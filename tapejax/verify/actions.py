"""verify_tape: every action's own backward against jax.vjp of the same op and against finite differences."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.engine import backward as engine
from tapejax.errors import ArgumentError
from tapejax.ground.compat import X64
from tapejax.ground.where import user_line
from tapejax.plan.plan import OpAction
from tapejax.tape.tape import Tape
from tapejax.tensor.gradients import Gradients
from tapejax.verify.function import JUDGES, check_judges
from tapejax.verify.report import (
    JAX,
    RIGHT,
    TAPEJAX,
    UNCHECKED,
    WRONG,
    Findings,
    Report,
    Row,
    aligned,
    device,
    number,
    plain_json,
    value,
)
from tapejax.verify.reproduce import reproducer
from tapejax.verify.subject import Subject, cotangents, inexact
from tapejax.verify.subjects import PlanSubject, pulled, subject_of
from tapejax.verify.watch import Seen, Watched, stand_in, tape_of, watch
from tapejax.verify.weigh import Check


@dataclass(slots=True)
class ActionResult:
    """What was found about one action; `rows` has one entry per input and judge."""

    index: int
    op: str
    line: str
    action: str
    inputs: list[str]
    verdict: str
    rows: list[Row] = field(default_factory=list)
    note: str = ""
    blame: str = ""  # who is wrong about it, as in Report.verdict
    why: str = ""
    reproducer: str = ""  # lines that show it, where somebody else's rule is wrong

    @property
    def worst(self) -> Row | None:
        wrong = [row for row in self.rows if row.verdict == WRONG]
        return max(wrong, key=lambda row: row.max_rel, default=None)

    def __str__(self) -> str:
        place = f" at {self.line}" if self.line else ""
        text = f"action {self.index}, `{self.op}`{place}, inputs {', '.join(self.inputs) or 'unknown'}"
        row = self.worst
        if self.blame in (JAX, TAPEJAX):
            return f"{text}: {self.why}"
        if row is None:
            return f"{text}: {self.note}" if self.note else text
        where = f"{row.input}{list(row.index) if row.index else ''}"
        said = (
            f"got {value(row.got)}, expected {value(row.expected)} by {row.against}" if row.expected is not None else ""
        )
        return f"{text}: {where}: " + "; ".join(part for part in (said, row.note) if part)


@dataclass(slots=True, repr=False)
class TapeReport(Findings):
    """The verdict on every action of a tape, in order. `first_wrong` is the one to look at."""

    name: str
    actions: list[ActionResult]
    seconds: float = 0.0

    @property
    def judged(self) -> list[ActionResult]:
        return self.actions

    @property
    def title(self) -> str:
        return f"verify_tape({self.name})"

    @property
    def verdict_line(self) -> str:
        if self.wrong:
            return f"WRONG: {self.first_wrong}"
        checked = sum(action.verdict == RIGHT for action in self.actions)
        if not checked:
            return "UNCHECKED: no action could be checked"
        return f"right: {checked} of {len(self.actions)} actions agree with jax.vjp and finite differences"

    def to_json(self) -> dict[str, Any]:
        return plain_json({
            "name": self.name, "ok": self.ok, "seconds": self.seconds, "jax": jax.__version__, "device": device(),
            "first_wrong": None if self.first_wrong is None else self.first_wrong.index,
            "actions": [asdict(action) for action in self.actions],
        })  # fmt: skip

    def tables(self) -> list[tuple[str, list[Sequence[str]], list[str]]]:
        rows: list[Sequence[str]] = [
            ("op", "actions", "right", "wrong", "unchecked", "max rel, jax", "max rel, finite")
        ]
        verdicts = []
        for op in dict.fromkeys(action.op.partition(" ")[0] for action in self.actions):
            mine = [action for action in self.actions if action.op.partition(" ")[0] == op]
            counts = Counter(action.verdict for action in mine)
            errors = lambda by, mine=mine: max(
                (row.max_rel for action in mine for row in action.rows if (row.against == "jax") is by), default=0.0
            )
            tally = [str(counts[verdict]) for verdict in (RIGHT, WRONG, UNCHECKED)]
            rows.append((op, str(len(mine)), *tally, number(errors(True)), number(errors(False))))
            verdicts.append(WRONG if counts[WRONG] else RIGHT if counts[RIGHT] else UNCHECKED)
        return [("", rows, verdicts)]

    def remarks(self) -> list[tuple[str, str]]:
        found = [("WRONG", str(action)) for action in self.wrong[:5]]
        if len(self.wrong) > 5:
            found.append(("WRONG", f"and {len(self.wrong) - 5} more"))
        notes = Counter((action.op, action.note) for action in self.actions if action.verdict == UNCHECKED)
        found += [("unchecked", f"`{op}`, {count} of them: {note}") for (op, note), count in list(notes.items())[:5]]
        return found

    def __str__(self) -> str:
        [(_, rows, _)] = self.tables()
        lines = [f"{self.title}: {len(self.actions)} actions", *aligned(rows)]
        lines += [f"{label:<10} {text}" for label, text in self.remarks()]
        lines.append(f"{self.verdict_line}  ({self.seconds:.1f} s)")
        return "\n".join(lines)


def verify_tape(
    tape_or_function: Tape | Callable[..., Any],
    *args: Any,
    detail: str = "primitives",
    against: str | Sequence[str] = JUDGES,
    rtol: float | None = None,
    seed: int = 0,
) -> TapeReport:
    """Check each action by itself, so that the first wrong one is named: index, op, line, inputs, expected and got.

    Of a function, each lax primitive is an action, loops step by step (detail="ops": each op). Of a tape, its actions
    as they are, at the values they kept; one whose inputs are gone is checked at made-up ones. A custom op is checked
    against its forward. A TapeAction of your own is too, if it has a method `primal(*inputs)`; in a
    function also without one, by finite differences of all that leads to it.

    >>> import tapejax as tj, tapejax.numpy as tnp
    >>> x = tj.tensor([0.3, 0.7], requires_grad=True)
    >>> with tj.Tape() as tape:
    ...     loss = tnp.sum(tnp.sin(x) * x)
    >>> tj.verify_tape(tape).ok
    True
    """
    judges = check_judges(against)
    start = time.perf_counter()
    if isinstance(tape_or_function, Tape):
        if args:
            raise ArgumentError("a tape takes no arguments: it has run already", at=user_line())
        name, seen = tape_or_function.label, tape_of(tape_or_function)
        chain = None
    else:
        return verify_subject(Subject.of(tape_or_function, args), detail=detail, judges=judges, rtol=rtol, seed=seed)
    plans: dict[int, PlanSubject] = {}
    results = [_check(one, plans, chain, judges, rtol, seed) for one in seen]
    return TapeReport(name, results, time.perf_counter() - start)


def verify_subject(
    subject: Subject,
    *,
    detail: str = "primitives",
    judges: Sequence[str] = JUDGES,
    rtol: float | None = None,
    seed: int = 0,
) -> TapeReport:
    """The same of a subject."""
    start = time.perf_counter()
    recorded = watch(subject, detail=detail)
    chain = _Chain(subject, recorded, detail)
    plans: dict[int, PlanSubject] = {}
    results = [_check(one, plans, chain, judges, rtol, seed) for one in recorded.seen]
    return TapeReport(subject.name, results, time.perf_counter() - start)


def _check(seen: Seen, plans, chain: _Chain | None, judges, rtol: float | None, seed: int) -> ActionResult:
    action = seen.action
    kinds = [_kind(value) for value in seen.inputs or ()]
    result = ActionResult(seen.index, seen.label, seen.line, repr(action), kinds, UNCHECKED)
    if seen.inputs is None or action.outputs is None:
        result.note = "it does not say what it reads and makes (`inputs`, `outputs`)"
        return result
    if type(action) is OpAction:
        _fill_in(seen, result, seed)
    report = Report(seen.op, [])
    x64 = action.plan.x64 if type(action) is OpAction else X64.value
    with jax.enable_x64(x64):
        try:
            subject = None if None in seen.inputs else subject_of(seen, plans)
            if subject is not None:
                check = Check(subject, report, 1, judges, [seed + seen.index], rtol)
                _own_backward(check, seen)
            elif chain is not None and chain.can_see(seen):
                chain.check(seen, report, rtol, seed)
                result.note = "judged by finite differences of all that leads to it"
            else:
                result.note = "its forward is not known: give it a method `primal(*inputs)`"
        except ArgumentError as error:
            result.note = str(error).splitlines()[0]
    result.rows = report.rows
    verdicts = {row.verdict for row in report.rows}
    if report.rows:
        result.verdict = WRONG if WRONG in verdicts else RIGHT if RIGHT in verdicts else UNCHECKED
        result.blame, result.why = report.verdict, report.why
        if result.blame in (JAX, TAPEJAX) and type(action) is OpAction and None not in seen.inputs:
            result.reproducer = reproducer(action.plan.flat_program, seen.inputs)
    if result.verdict == UNCHECKED and not result.note:
        result.note = next((row.note for row in report.rows if row.note), "nothing to differentiate")
    return result


def _own_backward(check: Check, seen: Seen) -> None:
    """The check on what the recorded action itself gives back, where that can be told apart."""
    action = seen.action
    twice = len({tensor_id.number for tensor_id in action.inputs}) < len(action.inputs)
    if type(action) is not OpAction or seen.made_up or twice or action.kept is None or None in (seen.outputs or [None]):
        check.run()
        return
    outputs = check.outputs = [out for out in seen.outputs if inexact(out)]
    check.cts = [check.subject.allowed_cts(cotangents(outputs, seed)) for seed in check.seeds]
    try:
        check.ours = [pulled(action, seen.inputs, cts, seen.outputs) for cts in check.cts]
    except Exception:
        check.run()  # says what it raises
        return
    check.judge()


def _fill_in(seen: Seen, result: ActionResult, seed: int) -> None:
    """Made-up values for inputs that nobody kept."""
    rng = np.random.default_rng([seed, seen.index])
    for position, (known, aval) in enumerate(zip(seen.inputs, seen.action.plan.examples, strict=True)):
        if known is None:
            seen.inputs[position] = stand_in(aval, rng)
            seen.made_up.append(position)
    if seen.made_up:
        result.inputs = [_kind(value) for value in seen.inputs]


def _kind(value: Any) -> str:
    return "?" if value is None else jax.typeof(value).str_short()


class _Chain:
    """The way from the function's inputs to the outputs of one action: how an action without a forward is judged.

    The actions before it have been checked by themselves, so what is wrong at its outputs is its own doing.
    """

    def __init__(self, subject: Subject, recorded: Watched, detail: str):
        self.subject, self.recorded, self.detail = subject, recorded, detail

    def can_see(self, seen: Seen) -> bool:
        outputs = seen.outputs
        return outputs is not None and all(out is not None for out in outputs) and any(map(inexact, outputs))

    def check(self, seen: Seen, report: Report, rtol: float | None, seed: int) -> None:
        with jax.enable_x64(True):  # in float64, if the function lets us
            wide = [jnp.asarray(v, np.promote_types(v.dtype, np.float64)) for v in self.subject.values]
            subject = _ChainSubject(self, seen, wide)
            try:
                subject.by_tape(wide)
            except Exception:
                subject = None
            if subject is not None:
                Check(subject, report, 1, ("finite",), [seed], rtol).run()
                return
        Check(_ChainSubject(self, seen, self.subject.values), report, 1, ("finite",), [seed], rtol).run()


class _ChainSubject(Subject):
    def __init__(self, chain: _Chain, seen: Seen, values: Sequence[Any]):
        self.chain, self.index = chain, seen.index
        super().__init__(seen.op, chain.subject.names, self._outputs, self._outputs, list(values))
        # Values are read off the tape: nothing to trace.
        self.__dict__.update(jaxpr=None, program=None, _insists_on_tensors=False)

    def _outputs(self, *values):
        return [out for out in self._run(values).seen[self.index].outputs if inexact(out)]

    def _run(self, values) -> Watched:
        return watch(self.chain.subject, detail=self.chain.detail, values=values)

    def by_tape(self, values):
        recorded = self._run(values)
        action = recorded.actions[self.index]
        outputs = recorded.seen[self.index].outputs

        def pullback(cts):
            grads, given = Gradients(), iter(cts)
            for tensor_id, out in zip(action.outputs, outputs, strict=True):
                if inexact(out):
                    grads.add(tensor_id.number, next(given))
            engine.go_back(list(recorded.actions[: self.index + 1]), grads, alone=False)
            return [jnp.zeros_like(leaf.value) if (g := grads.get(leaf)) is None else g for leaf in recorded.leaves]

        return [out for out in outputs if inexact(out)], pullback
