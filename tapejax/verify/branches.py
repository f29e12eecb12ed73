"""Branches that never ran: nothing is known of their gradients, and the report says so."""

from __future__ import annotations

from typing import Any

import jax

from tapejax.ground import compat
from tapejax.verify.report import Report
from tapejax.verify.subject import Subject
from tapejax.verify.wide import equations, noting_branches, run_wide

MOST = 6  # that are named


def add_branches(report: Report, subject: Subject) -> None:
    """Note the branches of `lax.cond` and `lax.switch` that no call took, in loops too. One compilation if there are any."""
    program = subject.program
    conds = [] if program is None else [eqn for eqn, _ in equations(program) if eqn.primitive.name == "cond"]
    if not conds:
        return
    taken: set[tuple[int, int]] = set()
    try:
        with noting_branches(taken):
            run = compat.quick_jit(lambda values: run_wide(program, values, real=None)[0])
            jax.block_until_ready(run(list(subject.values)))
        jax.effects_barrier()
    except Exception:  # it does not run step by step
        return
    seen = dict.fromkeys(key for key, _ in taken)  # one that was never reached stands in a branch that is named
    notes = dict.fromkeys(
        f"{_name(number, len(eqn.params['branches']))} at {_line(eqn)} never ran: nothing was checked there"
        for eqn in conds
        if id(eqn) in seen
        for number in range(len(eqn.params["branches"]))
        if (id(eqn), number) not in taken
    )
    report.notes += list(notes)[:MOST]


def _name(number: int, count: int) -> str:
    return f"the branch for {bool(number)}" if count == 2 else f"branch {number} of {count}"


def _line(eqn: Any) -> str:
    return compat.source_line(eqn.source_info).partition(" (")[0] or "an unknown line"
