"""verify: the gradient of a function against jax.vjp and numbers, and who is wrong if they differ."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapejax.errors import ArgumentError
from tapejax.ground.where import user_line
from tapejax.verify.branches import add_branches
from tapejax.verify.progress import Progress
from tapejax.verify.report import Report
from tapejax.verify.stops import add_stops
from tapejax.verify.subject import Subject
from tapejax.verify.weigh import Check

JUDGES = ("jax", "primal", "finite")


def verify(
    function: Callable[..., Any],
    *args: Any,
    order: int = 1,
    against: str | Sequence[str] = JUDGES,
    wrt: int | Sequence[int] | None = None,
    rtol: float | None = None,
    seeds: int | Sequence[int] = 3,
    diagnose: bool = True,
    intended: str | Sequence[str] = (),
    budget: float | None = 30.0,
) -> Report:
    """Who is wrong about a gradient: you, jax, tapejax, or nobody. The tape's is compared with jax.vjp and with numbers.

    function may be written with tapejax.numpy or with jax.numpy, be lifted, a custom_vjp or custom_jvp function, an
    equinox module, or record TapeActions of its own. args are its arguments, pytrees included. Each float leaf
    is an input of its own in the report.

    order: check derivatives up to this order. wrt: positions of the arguments to check, default all.
    against: "jax" (jax.vjp), "primal" (where there are custom rules: the gradient of the code without them, in
    float64), "finite" (the complex step where the function is analytic, else extrapolated central differences, in
    float64 whatever the function's dtype). seeds: how many random cotangents, or which.
    A scalar loss is checked with cotangent 1. rtol: instead of the tolerances by dtype. diagnose: when wrong, look for the
    rule or the action that causes it. intended: names of functions whose custom rule is meant to differ from
    their code (a straight-through estimator). budget: seconds after which no more differences are taken; None for no limit.

    The report's `verdict` is "right", "custom_rule", "jax", "tapejax", "convention" or "undecided"; `why` is its reason,
    `ok` is true for "right" and "convention". Nobody is called wrong unless two independent witnesses say so.

    Costs a few compilations, and some tens of forward runs per input and seed.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> report = tj.verify(lambda x: jnp.sum(jnp.sin(x) ** 2), jnp.array([0.3, 0.7]))
    >>> report.verdict, report.ok
    ('right', True)
    >>> [(row.input, row.against, row.verdict) for row in report.rows]
    [('x', 'jax', 'right'), ('x', 'complex step', 'right')]
    """
    if not isinstance(order, int) or order < 1:
        raise ArgumentError(f"order={order!r}", at=user_line(), fix="a whole number, at least 1")
    judges = check_judges(against)
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not numbers:
        raise ArgumentError("verify needs at least one seed", at=user_line())
    start = time.perf_counter()
    named = (intended,) if isinstance(intended, str) else tuple(intended)
    subject = Subject.of(function, args, wrt)
    report = Report(subject.name, [], seeds=len(numbers))
    if named:
        judges = _without_the_intended(subject, judges, named, report)
    progress = Progress(subject.name)
    try:
        _check(report, subject, order, judges, numbers, rtol, budget, start, diagnose, named, progress)
    finally:
        progress.done()
    report.seconds = time.perf_counter() - start
    return report


def _check(report, subject, order, judges, numbers, rtol, budget, start, diagnose, named, progress) -> None:
    """Fill in a report: order by order, then the stops, then the culprit."""
    first = subject
    for level in range(1, order + 1):
        check = Check(subject, report, level, judges, numbers, rtol)
        check.progress = progress
        check.deadline = None if budget is None else start + budget
        check.run(values_too=level == 1)
        report.scalar = report.scalar or (level == 1 and check.is_scalar)
        if not report.ok or level == order:
            break
        subject = subject.derivative(check.cts[0])
    if subject.jaxpr is None:
        report.notes.append("jax cannot trace the function: finite differences in its own precision")
    if "finite" in judges and not check.late():
        progress("stop_gradients")
        add_stops(report, first)
    if not check.late():
        add_branches(report, first)
    if not report.ok and diagnose:
        from tapejax.verify.diagnosis import diagnose as find

        progress("looking for the culprit")
        find(report, first, named)
    if any([row.got is not None and not np.isfinite(row.got) for row in report.rows]):
        report.notes.append(
            "a gradient holds NaN or infinities: tapejax.find_nonfinite(f, *args) says where they are born"
        )


def _without_the_intended(subject: Subject, judges: tuple[str, ...], named: Sequence[str], report: Report):
    """Where a rule is meant to differ, neither the primal code nor numbers can judge the whole; other rules are, alone."""
    from tapejax.verify.custom import rule_names, verify_rules_of

    known = rule_names(subject)
    unknown = [name for name in named if name not in known]
    if unknown:
        raise ArgumentError(
            f"intended={unknown[0]!r}: `{subject.name}` calls no function of this name with a custom rule",
            at=user_line(),
            fix=f"one of {', '.join(sorted(known))}" if known else "leave it out",
        )
    report.notes.append(
        f"meant to differ from their code: {', '.join(named)}; each other custom rule is checked by itself"
    )
    found = verify_rules_of(subject, skip=named)
    if found is not None and found.wrong:
        report.culprit = found
        report.findings += found.as_findings()
    return ("jax",)


def check_judges(against: Any) -> tuple[str, ...]:
    judges = (against,) if isinstance(against, str) else tuple(against)
    unknown = [judge for judge in judges if judge not in JUDGES]
    if unknown or not judges:
        raise ArgumentError(f"unknown judge {against!r}", at=user_line(), fix='some of "jax", "primal", "finite"')
    return judges
