"""verify_custom_rule: a user's custom_vjp or custom_jvp against the gradient of its own primal code."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import jax

from tapejax.errors import ArgumentError
from tapejax.ground.where import is_internal, user_line
from tapejax.program.program import CUSTOM
from tapejax.verify.report import (
    CUSTOM_RULE,
    JAX,
    RIGHT,
    UNCHECKED,
    WRONG,
    Finding,
    Findings,
    Report,
    Row,
    aligned,
    device,
    number,
    plain_json,
    value,
)
from tapejax.verify.subject import OWN_RULES, Subject, inexact
from tapejax.verify.subjects import CustomRuleSubject, custom_place, primal_code, rule_place
from tapejax.verify.watch import Seen, custom_name, watch
from tapejax.verify.weigh import Check
from tapejax.verify.wide import all_equations

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
    rule: str = ""  # where the backward rule is

    @property
    def by_jax(self) -> bool:
        """Whether the rule is one of jax's own."""
        return all(is_internal(place.rpartition(":")[0]) for place in (self.rule or self.defined, self.defined))

    @property
    def worst(self) -> Row | None:
        return max((row for row in self.rows if row.verdict == WRONG), key=lambda row: row.max_rel, default=None)

    def __str__(self) -> str:
        rule = f"rule at {self.rule}" if self.rule else f"defined at {self.defined}"
        text = f"the {self.kind} rule of `{self.name}` ({rule}), called at {self.line}{self.steps}"
        row = self.worst
        if row is None:
            return text
        text += f"{', second derivative' if row.order == 2 else ''}"
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

    def as_findings(self) -> list[Finding]:
        """What is wrong here, for a report on the whole function."""
        found = []
        for call in self.wrong:
            row = call.worst
            why = "" if row is None else f"{row.input} of the rule of `{call.name}`: {row.note}"
            found.append(Finding(self.function, 1, JAX if call.by_jax else CUSTOM_RULE, why))
        return found

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
    found = verify_rules_of(subject, rtol=rtol, seeds=numbers)
    if found is None:
        raise ArgumentError(
            f"`{subject.name}` calls no function with a custom rule on what it is differentiated by",
            at=user_line(),
            fix="pass a jax.custom_vjp or jax.custom_jvp function, or one that uses some",
        )
    found.seconds = time.perf_counter() - start
    return found


def verify_rules_of(
    subject: Subject,
    *,
    skip: Sequence[str] = (),
    order: int = 1,
    rtol: float | None = None,
    seeds: Sequence[int] = (0, 1),
) -> RuleReport | None:
    """The same of a subject; None if there is no custom rule in it. skip: names of functions to leave out."""
    calls = [seen for seen in _calls(subject) if custom_name(_eqn(seen)) not in skip]
    if not calls:
        return None
    return RuleReport(subject.name, [_check(seen, rtol, seeds, order) for seen in calls])


def rule_names(subject: Subject) -> set[str]:
    """The functions with custom rules that a subject calls."""
    return {custom_name(_eqn(seen)) for seen in _calls(subject)}


def _eqn(seen: Seen) -> Any:
    return getattr(getattr(seen.action, "where", None), "eqn", None)


def _calls(subject: Subject) -> list[Seen]:
    """The calls with custom rules that a subject makes, those inside others too, and before them."""
    found: list[Seen] = []
    times: dict[int, int] = {}
    for seen in watch(subject).seen:
        eqn = _eqn(seen)
        if eqn is None or eqn.name not in OWN_RULES or seen.op not in OWN_RULES:
            continue
        times[id(eqn.origin)] = times.get(id(eqn.origin), 0) + 1
        if times[id(eqn.origin)] > MAX_CALLS:
            continue
        if eqn.name in CUSTOM and any(inner.primitive.name in OWN_RULES for inner in _inner(eqn)):
            inside = primal_code(eqn)
            inner = Subject(custom_name(eqn), [str(i) for i in range(len(seen.inputs))], inside, inside, seen.inputs)
            wanted = seen.action.plan.wrt
            inner.positions = [i for i, v in enumerate(seen.inputs) if wanted[i] and inexact(v)]
            found += _calls(inner)
        found.append(seen)
    return found


def _inner(eqn: Any) -> Any:
    return all_equations(eqn.params["call_jaxpr"])


def _check(seen: Seen, rtol: float | None, seeds: Sequence[int], order: int) -> RuleResult:
    eqn = _eqn(seen)
    subject: Subject = CustomRuleSubject(eqn, seen.inputs, seen.action.plan.wrt)
    report = Report(subject.name, [])
    with jax.enable_x64(seen.action.plan.x64):
        check = Check(subject, report, 1, ("jax", "finite"), seeds, rtol)
        check.run()
        if order == 2 and not report.wrong:
            second = Check(subject.derivative(check.cts[0]), report, 2, ("primal", "finite"), seeds[:1], rtol)
            second.run()
    verdicts = {row.verdict for row in report.rows}
    verdict = WRONG if WRONG in verdicts else RIGHT if RIGHT in verdicts else UNCHECKED
    steps = "".join(f" {loop}[{step}]" for loop, step in seen.steps)
    kind = eqn.name.removesuffix("_call")
    line = eqn.line.partition(" (")[0] or seen.line
    return RuleResult(subject.name, kind, custom_place(eqn), line, steps, verdict, report.rows, rule_place(eqn))
