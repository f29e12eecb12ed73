"""Functions that jax wrote with others: is what their code gives as a gradient the slope of what they compute?

Both sets of rules follow the code. `where(b != 0, a, -inf)` has the right value at b = 0 and the wrong derivative, whoever
differentiates it. If a user's line calls such a function of jax's, and it alone is wrong there, jax is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from tapejax.ground import compat
from tapejax.program.program import Eqn, Program, flatten, run_eqns
from tapejax.verify.elements import scaled
from tapejax.verify.report import WRONG, Findings, Report, Row, plain_json, value
from tapejax.verify.subject import Subject, inexact
from tapejax.verify.tolerance import wide_numpy

if TYPE_CHECKING:
    from tapejax.verify.differences import Differences


@dataclass(slots=True, repr=False)
class ComposedReport(Findings):
    """A function of jax's whose code has another derivative than the function; `row` is the worst of it."""

    name: str
    line: str
    row: Row

    @property
    def first_wrong(self) -> str:
        return str(self)

    @property
    def wrong(self) -> list[Any]:
        return [self.row]

    @property
    def verdict_line(self) -> str:
        return str(self)

    @property
    def title(self) -> str:
        return f"`{self.name}` of jax"

    def to_json(self) -> dict[str, Any]:
        return plain_json({"function": self.name, "line": self.line, "row": asdict(self.row)})

    def __str__(self) -> str:
        place = "" if not self.row.index else f" at {list(self.row.index)}"
        said = f"got {value(self.row.got)}, its slope is {value(self.row.expected)}"
        where = f", called at {self.line}," if self.line else ","
        return f"jax's `{self.name}`{where} {self.row.input}{place}: {said}; all rules follow its code"


def wrong_function_of_jax(subject: Subject, check: type[Differences]) -> ComposedReport | None:
    """The first function of jax's that a program calls and whose own gradient is not its slope; None if there is none."""
    if subject.jaxpr is None or subject.before is not None:
        return None
    program = flatten(subject.jaxpr)
    env = dict(program.constants) | dict(zip(program.inputs, subject.values, strict=True))
    try:
        run_eqns(program.eqns, env)
    except Exception:  # it does not run by itself
        return None
    for name, line, eqns in _calls(program):
        inner = _alone(program, eqns)
        found = _judged(name, inner, [env[slot] for slot in inner.inputs], check)
        if found is not None:
            return ComposedReport(name, line.partition(" (")[0], found)
    return None


def _calls(program: Program) -> Iterator[tuple[str, str, list[Eqn]]]:
    """(name, line, equations) of each call of a function of jax's that is made of several equations."""
    groups: list[tuple[str, list[Eqn]]] = []
    for eqn in program.eqns:
        if groups and groups[-1][0] == eqn.line:
            groups[-1][1].append(eqn)
        else:
            groups.append((eqn.line, [eqn]))
    for line, eqns in groups:
        names = [_function(eqn) for eqn in eqns]
        if len(eqns) > 1 and all(names):
            yield names[0], line, eqns


def _function(eqn: Eqn) -> str:
    """The function of jax's that the user's line called; '' if it is none of its libraries."""
    found = [names[-1] for source in eqn.sources if (names := compat.called_functions(source))]
    return found[-1] if found else ""


def _alone(program: Program, eqns: list[Eqn]) -> Program:
    """Some equations of a program as one of their own: what they read from outside is its input."""
    made = {slot for eqn in eqns for slot in eqn.outputs}
    read = dict.fromkeys(slot for eqn in eqns for slot in eqn.inputs if slot not in made)
    inputs = [slot for slot in read if slot not in program.constants]
    others = {slot for eqn in program.eqns if eqn not in eqns for slot in eqn.inputs} | set(program.outputs)
    outputs = [slot for slot in made if slot in others]
    return Program(program.avals, inputs, {s: v for s, v in program.constants.items() if s in read}, eqns, outputs)


def _judged(name: str, program: Program, values: list[Any], check: type[Differences]) -> Row | None:
    """The worst of what differences say against the gradient of a program; None if nothing is sure."""
    results = [i for i, slot in enumerate(program.outputs) if jnp.issubdtype(program.avals[slot].dtype, jnp.inexact)]

    def function(*args: Any) -> list[Any]:
        found = program.run(*args)
        return [found[i] for i in results]

    positions = [i for i, given in enumerate(values) if inexact(given)]
    if not results or not positions:
        return None
    subject = Subject(
        name, [f"input {i}" for i in range(len(values))], function, function, list(map(jnp.asarray, values))
    )
    subject.positions = positions
    report = Report(name, [])
    one = check(subject, report, 1, ("finite",), [0], None)
    try:
        outputs, one.pullback = subject.by_tape(subject.values)
        one.outputs, one.cts = outputs, [[jnp.ones(out.shape, out.dtype) for out in outputs]]
        one.ours = [one.pullback(one.cts[0])]
        one._finite()
        sure = [row for row in report.rows if row.verdict == WRONG and _has_a_slope(one, subject, row)]
    except Exception:  # it cannot be differentiated by itself
        return None
    return max(sure, key=lambda row: row.max_rel, default=None)


def _has_a_slope(check: Differences, subject: Subject, row: Row) -> bool:
    """Whether the function has one slope at the worst element, from both sides, and its value is finite."""
    line = check._line(0)
    if row.index is None or not all(np.isfinite(base).all() for base in line.base):
        return False
    position = subject.names.index(row.input)
    given = wide_numpy(subject.values[position])
    unit = np.zeros(given.shape, given.dtype)
    unit[row.index] = scaled(np.ones(given.shape), given)[row.index]
    found = line.slope(position, unit, 1.0)
    return found.kind == "smooth" and bool(np.isfinite(found.value))
