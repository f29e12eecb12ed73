"""verify_custom_rule: a user's custom_vjp or custom_jvp against the gradient of its own primal code."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import jax

from tapejax.errors import ArgumentError
from tapejax.program import CUSTOM
from tapejax.verify.function import Check
from tapejax.verify.report import (
    RIGHT,
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
from tapejax.verify.subject import Subject, inexact
from tapejax.verify.subjects import CustomRuleSubject, custom_place, primal_code
from tapejax.verify.watch import Seen, custom_name, watch
from tapejax.where import user_line

MAX_CALLS = 64  # of one rule, in a loop say; the first ones and the last


@dataclass(slots=True)
class RuleResult:
    """What was found about one call of a function with a custom rule."""

    name: str
    kind: str
    defined: str
    line: str
    steps: str
    verdict: str
    rows: list[Row] = field(default_factory=list)

    @property
    def worst(self) -> Row | None:
        return max((row for row in self.rows if row.verdict == WRONG), key=lambda row: row.max_rel, default=None)

    def __str__(self) -> str:
        text = f"the {self.kind} rule of `{self.name}` ({self.defined}){self.steps}"
        row = self.worst
        if row is None:
            return text
        where = f"{row.input}{f' at {list(row.index)}' if row.index is not None else ''}"
        said = f"got {value(row.got)}, expected {value(row.expected)}" if row.expected is not None else ""
        return f"{text}, {where}: " + "; ".join(part for part in (said, row.note) if part)


@dataclass(slots=True, repr=False)
class RuleReport(Findings):
    """The verdict on every custom rule that a function calls, once per call."""

    function: str
    calls: list[RuleResult]
    seconds: float = 0.0

    @property
    def judged(self) -> list[RuleResult]:
        return self.calls

    @property
    def title(self) -> str:
        return f"verify_custom_rule({self.function})"

    @property
    def verdict_line(self) -> str:
        if self.wrong:
            return f"WRONG: {self.first_wrong}"
        if not self.ok:
            return f"UNCHECKED: no custom rule in `{self.function}` could be judged"
        names = ", ".join(dict.fromkeys(f"`{call.name}`" for call in self.calls))
        return f"right: the rules of {names} agree with their primal code"

    def to_json(self) -> dict[str, Any]:
        return plain_json({
            "function": self.function, "ok": self.ok, "seconds": self.seconds, "jax": jax.__version__,
            "device": device(), "calls": [asdict(call) for call in self.calls],
        })  # fmt: skip

    def tables(self) -> list[tuple[str, list[Sequence[str]], list[str]]]:
        rows: list[Sequence[str]] = [
            ("rule of", "call", "argument", "kind", "against", "max rel", "worst at", "verdict")
        ]
        verdicts = []
        for call in self.calls:
            for row in call.rows:
                place = "" if row.index is None else str(list(row.index))
                line = f"{call.line.rpartition('/')[2]}{call.steps}"
                rows.append(
                    (call.name, line, row.input, row.kind, row.against, number(row.max_rel), place, row.verdict)
                )
                verdicts.append(row.verdict)
        return [("", rows, verdicts)]

    def remarks(self) -> list[tuple[str, str]]:
        found = [("WRONG", str(call)) for call in self.wrong[:5]]
        for call in self.calls:
            for row in call.rows:
                if row.verdict != WRONG and row.note:
                    label = "note" if row.verdict == RIGHT else "unchecked"
                    found.append((label, f"`{call.name}`, {row.input} against {row.against}: {row.note}"))
        return list(dict.fromkeys(found))

    def __str__(self) -> str:
        [(_, rows, _)] = self.tables()
        lines = [f"{self.title}: {len(self.calls)} calls", *aligned(rows)]
        lines += [f"{label:<10} {text}" for label, text in self.remarks()]
        lines.append(f"{self.verdict_line}  ({self.seconds:.1f} s)")
        return "\n".join(lines)


def verify_custom_rule(
    function: Callable[..., Any], *args: Any, rtol: float | None = None, seeds: int | Sequence[int] = 2
) -> RuleReport:
    """Check the custom_vjp and custom_jvp rules that a function uses, at its own arguments.

    Each call that is reached, in loops and inside other custom functions too, is compared with the gradient of its
    primal code by tapejax's rules, and with finite differences. The verdict says which argument's
    rule is wrong, at which element, by what factor. At a kink a rule may choose its slope.

    >>> import jax, jax.numpy as jnp, tapejax as tj
    >>> @jax.custom_vjp
    ... def double(x):
    ...     return 2 * x
    >>> double.defvjp(lambda x: (2 * x, None), lambda _, ct: (ct,))
    >>> report = tj.verify_custom_rule(double, jnp.ones(3))
    >>> report.ok, report.first_wrong.worst.input, report.first_wrong.worst.note
    (False, 'argument 0', '0.5 times what it should be')
    """
    start = time.perf_counter()
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    subject = Subject.of(function, args)
    calls = _calls(subject)
    if not calls:
        raise ArgumentError(
            f"`{subject.name}` calls no function with a custom rule on what it is differentiated by",
            at=user_line(),
            fix="pass a jax.custom_vjp or jax.custom_jvp function, or one that uses some",
        )
    results = [_check(seen, rtol, numbers) for seen in calls]
    return RuleReport(subject.name, results, time.perf_counter() - start)


def _calls(subject: Subject) -> list[Seen]:
    """The calls with custom rules that a subject makes, those inside others too."""
    found: list[Seen] = []
    times: dict[int, int] = {}
    for seen in watch(subject).seen:
        eqn = getattr(getattr(seen.action, "where", None), "eqn", None)
        if eqn is None or eqn.name not in CUSTOM or seen.op not in CUSTOM:
            continue
        times[id(eqn.origin)] = times.get(id(eqn.origin), 0) + 1
        if times[id(eqn.origin)] > MAX_CALLS:
            continue
        found.append(seen)
        inside = primal_code(eqn)
        inner = Subject(custom_name(eqn), [str(i) for i in range(len(seen.inputs))], inside, inside, seen.inputs)
        wanted = seen.action.plan.wrt
        inner.positions = [i for i, v in enumerate(seen.inputs) if wanted[i] and inexact(v)]
        if any(op in str(eqn.params["call_jaxpr"]) for op in CUSTOM):
            found += _calls(inner)
    return found


def _check(seen: Seen, rtol: float | None, seeds: Sequence[int]) -> RuleResult:
    eqn = seen.action.where.eqn
    subject = CustomRuleSubject(eqn, seen.inputs, seen.action.plan.wrt)
    report = Report(subject.name, [])
    with jax.enable_x64(seen.action.plan.x64):
        Check(subject, report, 1, ("jax", "finite"), seeds, rtol).run()
    verdicts = {row.verdict for row in report.rows}
    verdict = WRONG if WRONG in verdicts else RIGHT if RIGHT in verdicts else UNCHECKED
    steps = "".join(f" {loop}[{step}]" for loop, step in seen.steps)
    kind = eqn.name.removesuffix("_call")
    return RuleResult(subject.name, kind, custom_place(eqn), seen.line, steps, verdict, report.rows)
