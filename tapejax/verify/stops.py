"""Each stop_gradient on the way, with its line and the difference that it makes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from tapejax.ground import compat
from tapejax.program.program import Eqn
from tapejax.verify.report import CUSTOM_RULE, Finding, Report, Stop
from tapejax.verify.subject import Subject, cotangents, vjp_at
from tapejax.verify.tolerance import for_dtype, wide_numpy, wide_value
from tapejax.verify.wide import EVERYWHERE, equations, run_wide, seeing_through

MAX_LINES = 6


def add_stops(report: Report, subject: Subject) -> None:
    """Note the stop_gradients that change a gradient of the subject. One more compilation if there are any; one per line
    if they do."""
    program = subject.program
    if program is None:
        return
    lines = stop_lines(program)
    if not lines:
        return
    try:
        outputs = subject.value(subject.values)
        cts = [wide_value(np.ones_like(ct)) for ct in cotangents(outputs, 0)]
        held = [wide_numpy(subject.in_float64(subject.values, cts)[position]) for position in subject.positions]
        opened = _gradient(subject, cts, EVERYWHERE)
        if _change(subject, held, opened) is None:
            return
        for line in list(lines)[:MAX_LINES]:
            found = opened if len(lines) == 1 else _gradient(subject, cts, line)
            change = _change(subject, held, found)
            if change is not None:
                stop = Stop(line.partition(" (")[0] or "an unknown line", *change, in_a_rule=lines[line])
                report.stops.append(stop)
                if stop.in_a_rule:
                    why = f"a backward rule has a {stop}, since an inner derivative goes through it"
                    report.findings.append(Finding(stop.input, 1, CUSTOM_RULE, why))
    except Exception:  # it does not run in float64, or cannot be differentiated there
        return


def stop_lines(program: Any) -> dict[str, bool]:
    """The lines with a stop_gradient; whether it stands in a rule that some inner derivative has called."""
    found: dict[str, bool] = {}
    for eqn in program.eqns:
        if eqn.name == "stop_gradient":
            found[eqn.line] = found.get(eqn.line, False) or _in_a_rule(eqn)
    for origin, inside in equations(program):
        if inside and origin.primitive.name == "stop_gradient":
            found.setdefault(compat.source_line(origin.source_info), False)
    return found


def _in_a_rule(eqn: Eqn) -> bool:
    """jax's own transposition writes no stop_gradient: one that it passed stands in a backward rule."""
    return any("transpose(" in str(getattr(source, "name_stack", "")) for source in eqn.sources)


def _gradient(subject: Subject, cts: list[Any], *through: str) -> list[np.ndarray]:
    """The gradient in float64, with stop_gradient at some lines seen through."""
    program = subject.program
    outputs = lambda *values: run_wide(program, values)[0]
    with jax.enable_x64(True), seeing_through(*through):
        values = [wide_value(value) for value in subject.values]
        pull = compat.quick_jit(lambda values, cts: vjp_at(outputs, values, subject.positions, cts))
        return [wide_numpy(gradient) for gradient in pull(values, cts)]


def _change(subject: Subject, held: list[np.ndarray], opened: list[np.ndarray]) -> tuple[float, str] | None:
    """The largest relative change, and of which input; None if there is none."""
    worst = None
    lengths = [float(np.abs(wide_numpy(subject.values[i])).max(initial=0.0)) or 1.0 for i in subject.positions]
    norm = lambda gradient: float(np.linalg.norm(gradient.reshape(-1)))
    most = max(
        (length * norm(g) for length, g in zip([*lengths, *lengths], [*held, *opened], strict=True)), default=0.0
    )
    for position, length, one, two in zip(subject.positions, lengths, held, opened, strict=True):
        apart, size = norm(two - one), norm(one)
        if length * apart <= for_dtype(np.float64).rtol * most:  # rounding, where terms cancel
            continue
        change = apart / size if size else float("inf")
        if change > for_dtype(np.float32).rtol and (worst is None or change > worst[0]):
            worst = change, subject.names[position]
    return worst
