"""Who is wrong? What the judges say about one order of derivative, weighed by what each of them can see.

Three witnesses are independent of each other: the tape's rules, jax's rules, and numbers (the complex step, differences). A
custom rule speaks for both sets of rules, so the primal code stands in for it. Nobody is called wrong by a single one.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.errors import ArgumentError, TapejaxError
from tapejax.ground.where import user_line
from tapejax.program.program import run_eqns
from tapejax.verify.composed import wrong_function_of_jax
from tapejax.verify.differences import NUMERICAL, Differences, stops_inside
from tapejax.verify.elements import PRIMAL, Ruling, first_line, scaled
from tapejax.verify.line import Line, same_value
from tapejax.verify.report import (
    CONVENTION,
    CUSTOM_RULE,
    JAX,
    RAISES,
    RIGHT,
    TAPEJAX,
    UNCHECKED,
    UNDECIDED,
    WRONG,
    Finding,
    Row,
    value,
)
from tapejax.verify.subject import cotangents, random_like
from tapejax.verify.tolerance import difference, for_dtype, wide_numpy
from tapejax.verify.wide import stopping

VALUE = "the value"
ALONE = "differences alone say so, and nothing else does"


class Check(Differences):
    """One order of derivative of one subject: rows for the judges, and a finding per input."""

    composed: Any = None  # a function of jax's that is wrong by its code; False if there is none

    def run(self, *, values_too: bool = False) -> None:
        subject = self.subject
        self.progress(f"the gradient by {subject.speaker}")
        try:
            outputs, self.pullback = subject.by_tape(subject.values)
            if not outputs:
                raise ArgumentError(f"`{subject.name}` returns no float or complex array", at=user_line())
            self.outputs = outputs
            self.is_scalar = len(outputs) == 1 and outputs[0].shape == () and not np.iscomplexobj(outputs[0])
            self.cts = [subject.allowed_cts(self._cotangents(outputs, seed)) for seed in self.seeds]
            self.ours = [self.pullback(cts) for cts in self.cts]
        except ArgumentError:
            raise
        except Exception as error:
            if error is subject.raised and not isinstance(error, TapejaxError):
                raise  # the function's own: there is nothing to judge
            self._all_rows(subject.speaker, WRONG, f"{RAISES} {first_line(error)}")
            self.cts = self.cts or [[]]
            self._raised(error)
            return
        self.judge()
        if values_too:
            self._values()

    def _cotangents(self, outputs: list[Any], seed: int) -> list[Any]:
        """Random ones; 1 for a scalar, so that what is compared is the user's own gradient."""
        return [np.ones((), outputs[0].dtype)] if self.is_scalar else cotangents(outputs, seed)

    def judge(self) -> None:
        """Compare what the tape gave (`ours`, for `cts`) with the judges."""
        if self._wrong_kinds():
            return
        kinked = self._finite() if "finite" in self.judges else set()
        if "jax" in self.judges:
            self._jax(kinked)
        if "primal" in self.judges:
            self._primal()
        for position in self.subject.positions:
            self._weigh(position)
        mine = [row for row in self.report.rows if row.order == self.order]
        others = [row for row in self.report.rows if row.order != self.order]
        names = self.subject.names
        place = lambda row: 0 if row.against in NUMERICAL else 1
        mine.sort(key=lambda row: (names.index(row.input), -place(row)))
        self.report.rows[:] = others + mine

    # -- before anything can be compared ---------------------------------------------------------------

    def _raised(self, error: Exception) -> None:
        """The tape gave no gradient. If jax gives one, that is ours; a custom rule that raises is its author's."""
        subject = self.subject
        try:
            outputs = subject.value(subject.values)
            subject.by_jax(subject.values, subject.allowed_cts(cotangents(outputs, 0)))
        except Exception:
            who = CUSTOM_RULE if subject.has_custom_rules else UNDECIDED
            why = "neither the tape nor jax can differentiate it"
        else:
            who, why = (CUSTOM_RULE if subject.kinks_are_conventions else TAPEJAX), "jax can differentiate it"
        for position in subject.positions:
            self._finding(position, who, f"{subject.speaker} gives no gradient ({first_line(error)}); {why}")

    def _wrong_kinds(self) -> bool:
        """A gradient has its input's shape and dtype; where one has not, nothing else is compared."""
        found = False
        for position in self.subject.positions:
            gradient, given = self.ours[0][position], self.subject.values[position]
            if gradient.shape != given.shape or gradient.dtype != given.dtype:
                found = True
                note = f"the gradient is {jax.typeof(gradient).str_short()}, the input {self.kinds[position]}"
                self._row(position, "its input", WRONG, note=note)
                custom = self.subject.has_custom_rules or self.subject.kinks_are_conventions
                self._finding(position, CUSTOM_RULE if custom else TAPEJAX, note)
        return found

    def _values(self) -> None:
        """A transform must not change the function's value."""
        subject = self.subject
        try:
            own = subject.value(subject.values)
        except Exception:  # it cannot be run without a tape
            return
        for who, values in ((TAPEJAX, self.outputs), (JAX, subject.value_by_jax)):
            if values is None or same_value(subject, values, own) or self._is_rounding(values, own):
                continue
            tolerance = for_dtype(subject.narrowest)
            worst = max(
                (difference(a, b, tolerance) for a, b in zip(values, own, strict=True)), key=lambda d: d.max_rel
            )
            name = "jax.vjp" if who == JAX else "tapejax's vjp"
            why = (
                f"{name} returns another value than the function: {value(worst.got)} instead of {value(worst.expected)}"
            )
            self.report.findings.append(Finding(VALUE, self.order, who, why, worst.index))
            note = f"{name} changes the value"
            self.report.rows.append(
                Row(
                    VALUE, jax.typeof(own[0]).str_short(), who, self.order, WRONG, worst.max_abs, worst.max_rel,
                    worst.index, worst.got, worst.expected, tolerance.rtol, "", note,
                )
            )  # fmt: skip

    def _is_rounding(self, values: list[Any], own: list[Any]) -> bool:
        """Whether values differ by no more than what is lost where large numbers cancel on the way."""
        program = self.subject.program
        if program is None:
            return False
        env = dict(program.constants) | dict(zip(program.inputs, self.subject.values, strict=True))
        try:
            run_eqns(program.eqns, env)
        except Exception:  # it does not run by itself
            return False
        met = [
            np.abs(wide_numpy(value)) for value in env.values() if jnp.issubdtype(jnp.result_type(value), jnp.inexact)
        ]
        largest = max([float(value[np.isfinite(value)].max(initial=0.0)) for value in met], default=0.0)
        lost = 16 * float(jnp.finfo(self.subject.narrowest).eps) * largest
        pairs = [(wide_numpy(a), wide_numpy(b)) for a, b in zip(values, own, strict=True)]
        return all(np.allclose(a, b, rtol=0.0, atol=lost, equal_nan=True) for a, b in pairs)

    # -- the weighing ----------------------------------------------------------------------------------

    def _finding(self, position: int, verdict: str, why: str, index: Any = None) -> None:
        self.report.findings.append(Finding(self.subject.names[position], self.order, verdict, why, index))

    def _weigh(self, position: int) -> None:
        subject, name = self.subject, self.subject.names[position]
        rows = {row.against: row for row in self.report.rows if (row.input, row.order) == (name, self.order)}
        other, primal = rows.get(subject.judge), rows.get(PRIMAL)
        numbers = next((rows[by] for by in NUMERICAL if by in rows), None)
        is_wrong = lambda row: row is not None and row.verdict == WRONG
        if is_wrong(other):
            if subject.kinks_are_conventions:
                self._blame_rule(position, other)
            elif other.expected is None:
                self._finding(position, JAX, other.note)
            else:
                self._two_rules(position, other)
        elif is_wrong(primal):
            if self._is_a_choice_inside(position):
                said = f"the gradient is {value(primal.got)}, the slope {value(primal.expected)}"
                for row in filter(is_wrong, (primal, numbers)):
                    row.verdict, row.note = RIGHT, "at a nearby point: here it stands on a kink of an inner function"
                self._finding(position, CONVENTION, f"{said}; they agree at every nearby point", primal.index)
            else:
                self._blame_rule(position, primal)
        elif is_wrong(numbers):
            self._numbers_alone(position, numbers, other, primal)
        elif self._is_nan(position):
            self._finding(position, UNDECIDED, "the gradient is nan, though the function's value is finite")
        elif all(row.verdict == UNCHECKED for row in rows.values()):
            why = "; ".join(dict.fromkeys(f"{row.against}: {row.note}" for row in rows.values()))
            self._finding(position, UNDECIDED, f"nothing could judge it ({why})")
        elif kinks := [kink for kink in self.report.kinks if kink.input == name]:
            chosen = wide_numpy((self.theirs or self.ours)[0][position])[kinks[0].index]
            under = "" if self.is_scalar else " under a random cotangent"
            sides = f"slope {kinks[0].left:.4g} from below, {kinks[0].right:.4g} from above"
            why = f"{sides}; the gradient there, {value(chosen.item())}{under}, is a choice"
            self._finding(position, CONVENTION, why, kinks[0].index)
        else:
            self._finding(position, RIGHT, " and ".join(row.against for row in rows.values() if row.verdict == RIGHT))

    def _is_nan(self, position: int) -> bool:
        outputs = self.outputs
        finite = outputs is not None and all(np.isfinite(wide_numpy(out)).all() for out in outputs)
        return finite and bool(np.isnan(wide_numpy(self.ours[0][position])).any())

    def _blame_rule(self, position: int, row: Row) -> None:
        said = (
            ""
            if row.expected is None
            else f"it gives {value(row.got)} where its primal code gives {value(row.expected)}"
        )
        why = "; ".join(part for part in (said, row.note) if part)
        self._finding(position, CUSTOM_RULE, why, row.index)

    def _is_a_choice_inside(self, position: int) -> bool:
        """Whether all is right nearby, and each custom rule by itself is right here: they chose slopes at kinks."""
        nearby = self._nearby_or_none(position)
        if nearby is None or nearby["verdict"] != RIGHT or self.order > 1:
            return False
        from tapejax.verify.custom import verify_rules_of

        found = verify_rules_of(self.subject)
        return found is not None and not found.wrong

    def _two_rules(self, position: int, row: Row) -> None:
        """The tape and jax disagree: numbers decide."""
        subject = self.subject
        same = lambda gradient: subject.allowed_move(position, wide_numpy(gradient))
        assert self.theirs is not None
        ruling, found = Ruling("unknown"), None
        for seed in range(len(self.seeds)):
            ours, theirs = same(self.ours[seed][position]), same(self.theirs[seed][position])
            tolerance = for_dtype(subject.narrowest, rtol=self.rtol)
            if difference(ours, theirs, tolerance, self._unit(position, seed)).ok:
                continue
            found = ours, theirs
            try:
                ruling = self.referee(position, seed, ours, theirs)
            except Exception:  # it cannot be run again
                break
            if ruling.who in ("ours", "theirs"):
                break
        if found is not None and ruling.who != "theirs" and self._is_symmetric(position) and _agree_symmetrised(*found):
            why = (
                "the gradients by tapejax and jax agree for symmetric changes of the matrix only: "
                f"{value(row.got)} and {value(row.expected)} at {list(row.index or ())}"
            )
            row.verdict, row.note = RIGHT, "it agrees for symmetric changes of the matrix"
            self._finding(position, CONVENTION, why, row.index)
            return
        both = f"tapejax gives {value(ruling.ours)}, jax {value(ruling.theirs)}"
        if ruling.who in ("ours", "theirs"):
            who = JAX if ruling.who == "ours" else TAPEJAX
            row.index, row.got, row.expected = ruling.index, ruling.ours, ruling.theirs
            row.note = "jax's is the one that is wrong" if who == JAX else "jax's is the right one"
            self._finding(position, who, f"{both}, differences {value(ruling.slope)}", ruling.index)
        elif ruling.who == "kink":
            row.verdict, row.note = RIGHT, "it differs from jax's only at a kink"
            sides = f"slope {value(ruling.left)} from below, {value(ruling.right)} from above"
            self._finding(position, CONVENTION, f"{sides}; {both}", ruling.index)
        else:
            both = f"tapejax gives {value(row.got)}, jax {value(row.expected)}"
            why = "differences side with neither" if ruling.who == "neither" else "differences cannot tell"
            self._finding(position, UNDECIDED, f"{both}; {why}", row.index)

    def _numbers_alone(self, position: int, row: Row, other: Row | None, primal: Row | None) -> None:
        """The rules agree, differences do not: one witness. It needs a second, and an explanation."""
        subject = self.subject
        # Where the code without the rules has the same gradient, they are not to blame.
        agrees = primal is not None and primal.verdict == RIGHT and not primal.note
        custom = (subject.has_custom_rules and not agrees) or subject.kinks_are_conventions
        said = (
            f"the gradient is {value(row.got)}, the slope {value(row.expected)}"
            if row.expected is not None
            else row.note
        )
        agreed = other is not None and other.verdict == RIGHT
        if agreed and self._is_by_jax(position, row):
            return
        if row.got is not None and not np.isfinite(row.got):
            self._finding(position, UNDECIDED, f"the gradient is {value(row.got)}: {row.note}", row.index)
            return
        if other is not None and other.verdict == RIGHT and self._agrees_seeing_through(position, row):
            row.verdict, row.note = RIGHT, "seen through stop_gradient: its derivative goes another way"
            self._finding(position, RIGHT, f"{subject.judge} and {row.against}")
            return
        if not custom and other is not None and other.verdict == RIGHT:
            if self._is_symmetric(position) and self._agrees_symmetrised(position):
                row.verdict, row.note = RIGHT, "for symmetric changes of the matrix only"
                self._finding(
                    position, CONVENTION, f"{said}; they agree for symmetric changes of the matrix", row.index
                )
                return
            nearby = self._nearby_or_none(position)
            if nearby is not None and nearby["verdict"] == RIGHT:
                row.verdict, row.note = RIGHT, "at a nearby point: here it stands on a kink of an inner function"
                self._finding(position, CONVENTION, f"{said}; they agree at every nearby point", row.index)
                return
        if subject.program is not None and stops_inside(subject.program):
            row.verdict, row.note = UNCHECKED, "a stop_gradient inside a loop or branch: differences see through it"
        elif not self._confirmed_by_own(position, row):
            row.verdict, row.note = UNCHECKED, f"{ALONE}: {said}"
        if row.verdict == UNCHECKED:
            judged = other is not None and other.verdict == RIGHT
            self._finding(position, RIGHT if judged else UNDECIDED, row.note if not judged else subject.judge)
            return
        if custom:
            self._finding(position, CUSTOM_RULE, f"{said}; {row.note}" if row.note else said, row.index)
        elif other is None or other.verdict == UNCHECKED:
            self._finding(position, TAPEJAX, f"{said}; jax has no opinion", row.index)
        else:
            self._finding(position, UNDECIDED, f"tapejax and jax agree, but {said}", row.index)

    def _is_by_jax(self, position: int, row: Row) -> bool:
        """Whether a function that jax wrote is what is wrong, by its code: both sets of rules follow that."""
        if self.order > 1 or self.subject.kinks_are_conventions or row.expected is None:
            return False
        if self.composed is None:
            self.composed = wrong_function_of_jax(self.subject, type(self)) or False
        if not self.composed:
            return False
        self.report.culprit = self.composed
        self._finding(position, JAX, str(self.composed), row.index)
        return True

    def _agrees_seeing_through(self, position: int, row: Row) -> bool:
        """Whether the gradient is the slope with nothing held fixed.

        A solver may get factors that no derivative goes through, since it goes by the matrix beside them.
        """
        subject = self.subject
        if subject.program is None or row.index is None or not stopping(subject.program):
            return False
        given = wide_numpy(subject.values[position])
        rng = np.random.default_rng([position, 7])
        tolerance = for_dtype(subject.narrowest, slopes=True, rtol=self.rtol)
        for seed in range(len(self.seeds)):
            line = Line(subject, subject.values, self.cts[seed], hold=False)
            gradient = wide_numpy(self.ours[seed][position])
            direction = subject.allowed_move(position, scaled(random_like(given, rng), given))
            mine = float(np.sum(gradient * direction).real)
            size = float(np.sqrt(np.sum(np.abs(gradient * direction) ** 2)))
            found = line.slope(position, direction, size)
            allowed, _ = self._allowed(found, size, tolerance, line, position, direction, seed)
            if not abs(mine - found.value) <= allowed:
                return False
        return True

    def _nearby_or_none(self, position: int) -> dict[str, Any] | None:
        try:
            return self._nearby(position, "")
        except Exception:  # a nearby point may be outside of what the function takes
            return None

    def _confirmed_by_own(self, position: int, row: Row) -> bool:
        """Whether the function itself, in its own dtype, says the same as its program in float64."""
        subject = self.subject
        if row.index is None or row.expected is None:
            return False
        given = wide_numpy(subject.values[position])
        step = float(scaled(np.ones(given.shape), given)[row.index])
        unit = np.zeros(given.shape, given.dtype)
        unit[row.index] = step
        unit = subject.allowed_move(position, unit)
        told_apart = 0
        for seed in range(len(self.seeds)):
            try:
                line = Line(subject, subject.values, self.cts[seed], own=True)
                mine = float(np.sum(wide_numpy(self.ours[seed][position]) * unit).real)
                found = line.slope(position, unit, abs(mine))
                wide = self._line(seed).slope(position, unit, abs(mine))
            except Exception:
                return False
            if found.kind != "smooth" or not np.isfinite(found.value):
                return False
            gap = abs(wide.value - mine)
            if abs(found.value - mine) > 5 * found.error + 0.5 * gap and abs(found.value - wide.value) < 0.5 * gap:
                told_apart += 1
        return told_apart == len(self.seeds)

    def _is_symmetric(self, position: int) -> bool:
        given = wide_numpy(self.subject.values[position])
        square = given.ndim >= 2 and given.shape[-1] == given.shape[-2] > 1
        return square and bool(np.allclose(given, np.conj(np.swapaxes(given, -1, -2)), rtol=1e-5, atol=1e-12))

    def _agrees_symmetrised(self, position: int) -> bool:
        given, gradient = wide_numpy(self.subject.values[position]), wide_numpy(self.ours[0][position])
        rng = np.random.default_rng([position, 6])
        for _ in range(2):
            direction = scaled(rng.standard_normal(given.shape), given)
            direction = (direction + np.swapaxes(direction, -1, -2)) / 2
            mine = float(np.sum(gradient * direction).real)
            size = float(np.sqrt(np.sum(np.abs(gradient * direction) ** 2)))
            found = self._line(0).slope(position, direction, size)
            tolerance = for_dtype(self.subject.narrowest, slopes=True, rtol=self.rtol)
            if not abs(mine - found.value) <= 10 * tolerance.rtol * max(size, abs(found.value)) + 5 * found.error:
                return False
        return True


def _agree_symmetrised(ours: np.ndarray, theirs: np.ndarray) -> bool:
    a, b = ((g + np.conj(np.swapaxes(g, -1, -2))) / 2 for g in (ours, theirs))
    scale = max(float(np.abs(b).max(initial=0.0)), 1e-300)
    return bool(np.isfinite(a).all() and np.isfinite(b).all() and np.abs(a - b).max(initial=0.0) <= 1e-3 * scale)
