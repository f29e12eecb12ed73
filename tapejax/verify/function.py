"""verify: the gradient of a function against jax.vjp and finite differences."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.errors import ArgumentError
from tapejax.verify.finite import index_of, narrowed
from tapejax.verify.report import RIGHT, UNCHECKED, WRONG, Kink, Report, Row
from tapejax.verify.subject import Line, Subject, cotangents, inexact, random_like
from tapejax.verify.tolerance import Tolerance, difference, factor, for_dtype, wide_numpy
from tapejax.where import user_line

JUDGES = ("jax", "finite")
MAX_KINKS = 4  # named per input; a nearby point is used instead, whatever their number


def verify(
    function: Callable[..., Any],
    *args: Any,
    order: int = 1,
    against: str | Sequence[str] = JUDGES,
    wrt: int | Sequence[int] | None = None,
    rtol: float | None = None,
    seeds: int | Sequence[int] = 3,
    diagnose: bool = True,
) -> Report:
    """A second opinion on a gradient: the tape's, against jax.vjp and against finite differences.

    function may be written with tapejax.numpy or with jax.numpy, be lifted, a custom_vjp or custom_jvp function, an
    equinox module, or record TapeActions of its own. args are its arguments, pytrees included. Each float leaf
    is an input of its own in the report.

    order: check derivatives up to this order. wrt: positions of the arguments to check, default all.
    against: "jax" (jax.vjp), "finite" (the complex step where the function is analytic, else extrapolated central
    differences, in float64 whatever the function's dtype). seeds: how many random cotangents, or which.
    rtol: instead of the tolerances by dtype. diagnose: when wrong, look for the first wrong action.

    Costs a few compilations, and some tens of forward runs per input and seed.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> report = tj.verify(lambda x: jnp.sum(jnp.sin(x) ** 2), jnp.array([0.3, 0.7]))
    >>> report.ok
    True
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
    subject = Subject.of(function, args, wrt)
    report = Report(subject.name, [], seeds=len(numbers))
    for level in range(1, order + 1):
        check = Check(subject, report, level, judges, numbers, rtol)
        check.run()
        if report.wrong or level == order:
            break
        subject = subject.derivative(check.cts[0])
    _add_notes(report, subject)
    if report.wrong and diagnose:
        from tapejax.verify.diagnosis import culprit

        report.culprit = culprit(function, args)
    report.seconds = time.perf_counter() - start
    return report


def check_judges(against: Any) -> tuple[str, ...]:
    judges = (against,) if isinstance(against, str) else tuple(against)
    unknown = [judge for judge in judges if judge not in JUDGES]
    if unknown or not judges:
        raise ArgumentError(f"unknown judge {against!r}", at=user_line(), fix='against="jax", "finite" or both')
    return judges


def _add_notes(report: Report, subject: Subject) -> None:
    if subject.jaxpr is None:
        report.notes.append("jax cannot trace the function: finite differences in its own precision")


class Check:
    """One order of derivative of one subject."""

    def __init__(self, subject: Subject, report: Report, order: int, judges, seeds: Sequence[int], rtol: float | None):
        self.subject, self.report, self.order, self.judges = subject, report, order, judges
        self.seeds, self.rtol = seeds, rtol
        self.kinds = [jax.typeof(value).str_short() for value in subject.values]
        self.lines: dict[int, Line] = {}
        self.cts: list[list[Any]] = []
        self.ours: list[list[Any]] = []  # per seed, per input

    def run(self) -> None:
        subject = self.subject
        try:
            outputs, pullback = subject.by_tape(subject.values)
            if not outputs:
                raise ArgumentError(f"`{subject.name}` returns no float or complex array", at=user_line())
            self.cts = [subject.allowed_cts(cotangents(outputs, seed)) for seed in self.seeds]
            self.ours = [pullback(cts) for cts in self.cts]
        except ArgumentError:
            raise
        except Exception as error:
            self._all_rows(subject.speaker, WRONG, f"it raises {_first_line(error)}")
            self.cts = self.cts or [[]]
            return
        self.judge()

    def judge(self) -> None:
        """Compare what the tape gave (`ours`, for `cts`) with the judges."""
        if self._wrong_kinds():
            return
        kinked = self._finite() if "finite" in self.judges else set()
        if "jax" in self.judges:
            self._jax(kinked)
        mine = [row for row in self.report.rows if row.order == self.order]
        others = [row for row in self.report.rows if row.order != self.order]
        names = self.subject.names
        mine.sort(key=lambda row: (names.index(row.input), row.against in ("complex step", "finite differences")))
        self.report.rows[:] = others + mine

    def _row(self, position: int, against: str, verdict: str, **more: Any) -> Row:
        row = Row(self.subject.names[position], self.kinds[position], against, self.order, verdict, **more)
        self.report.rows.append(row)
        return row

    def _all_rows(self, against: str, verdict: str, note: str) -> None:
        for position in self.subject.positions:
            self._row(position, against, verdict, note=note)

    def _wrong_kinds(self) -> bool:
        """A gradient has its input's shape and dtype; where one has not, nothing else is compared."""
        found = False
        for position in self.subject.positions:
            gradient, value = self.ours[0][position], self.subject.values[position]
            if gradient.shape != value.shape or gradient.dtype != value.dtype:
                found = True
                kind = jax.typeof(gradient).str_short()
                self._row(
                    position, "its input", WRONG, note=f"the gradient is {kind}, the input {self.kinds[position]}"
                )
        return found

    # -- jax ---------------------------------------------------------------------------------------

    def _jax(self, kinked: set[int]) -> None:
        subject = self.subject
        try:
            theirs = [subject.by_jax(subject.values, cts) for cts in self.cts]
        except Exception as error:
            note = f"{subject.judge} cannot differentiate it: {_first_line(error)}"
            self._all_rows(subject.judge, UNCHECKED, note)
            return
        for position in subject.positions:
            self._jax_row(position, [grads[position] for grads in theirs], position in kinked)

    def _jax_row(self, position: int, theirs: list[Any], kinked: bool) -> None:
        ours = [grads[position] for grads in self.ours]
        value = self.subject.values[position]
        for judge in theirs:
            if judge.dtype != value.dtype or judge.shape != value.shape:
                kind = jax.typeof(judge).str_short()
                note = f"the gradient by {self.subject.judge} is {kind}, the input {self.kinds[position]}"
                self._row(position, self.subject.judge, WRONG, note=note)
                return
        same = lambda gradient: self.subject.allowed_move(position, wide_numpy(gradient))
        ours, theirs = [same(gradient) for gradient in ours], [same(gradient) for gradient in theirs]
        dtype = self.subject.narrowest
        tolerance = for_dtype(dtype, rtol=self.rtol)
        unit = self._unit(position, dtype)
        found = [difference(mine, judge, tolerance, unit) for mine, judge in zip(ours, theirs, strict=True)]
        worst = max(range(len(found)), key=lambda i: found[i].max_rel)
        verdict, note = (RIGHT if found[worst].ok else WRONG), ""
        if verdict == WRONG and self.rtol is None:
            tolerance = self._conditioned(position, worst, theirs[worst], tolerance, kinked)
            again = difference(ours[worst], theirs[worst], tolerance, unit)
            if again.ok:
                verdict = RIGHT if tolerance.rtol <= 0.5 else UNCHECKED
                note = "" if verdict == RIGHT else f"no digit of it can be trusted: {tolerance.reason}"
        worst_of = found[worst]
        if verdict == WRONG and self.subject.kinks_are_conventions and self._finite_agrees(position):
            verdict, note = RIGHT, "it differs from its primal code only where that has a kink or no slope"
        elif verdict == WRONG:
            note = factor(worst_of.got, worst_of.expected)
        self._row(
            position, self.subject.judge, verdict, max_abs=worst_of.max_abs, max_rel=worst_of.max_rel,
            index=worst_of.index if worst_of.max_abs else None,
            got=worst_of.got, expected=worst_of.expected, tolerance=tolerance.rtol, reason=tolerance.reason, note=note,
        )  # fmt: skip

    def _finite_agrees(self, position: int) -> bool:
        name = self.subject.names[position]
        rows = [row for row in self.report.rows if row.input == name and row.order == self.order]
        return any(row.verdict == RIGHT and row.against != self.subject.judge for row in rows)

    def _unit(self, position: int, dtype: Any) -> float:
        """The rounding error of a gradient whose large terms cancel: that of the value, per length of the input."""
        value = np.abs(wide_numpy(self.subject.values[position]))
        largest = float(value[np.isfinite(value)].max(initial=0.0)) or 1.0
        outputs = self._line(0).size_of_value if self.subject.program is not None else 0.0
        return 64 * float(jnp.finfo(dtype).eps) * outputs / largest if np.isfinite(outputs) else 0.0

    def _conditioned(self, position: int, seed: int, judge: Any, tolerance: Tolerance, kinked: bool) -> Tolerance:
        """A tolerance that knows how far jax's own gradient can be trusted at this point."""
        subject, cts = self.subject, self.cts[seed]
        narrow = float(jnp.finfo(subject.narrowest).eps) > 1e-15
        try:
            if narrow:
                both = subject.by_jax_twice(subject.values, cts)
                if both is not None:
                    off = difference(both[0][position], both[1][position], tolerance)
                    name = jnp.dtype(subject.narrowest).name
                    reason = f"jax's own {name} gradient is off by {off.max_rel:.1e} from the one in float64"
                    return Tolerance(max(tolerance.rtol, 4 * off.max_rel), tolerance.floor, reason)
            if kinked:
                return tolerance  # one bit may change the side of a kink; that is no rounding
            moves = [difference(self._nudged_gradient(position, cts, i), judge, tolerance).max_rel for i in range(3)]
        except Exception:
            return tolerance
        reason = f"the gradient moves by {min(moves):.1e} when the inputs change in their last bit"
        return Tolerance(max(tolerance.rtol, 20 * min(moves)), tolerance.floor, reason)

    def _nudged_gradient(self, position: int, cts: list[Any], number: int) -> Any:
        rng = np.random.default_rng(number)
        moved = []
        for value in self.subject.values:
            if not inexact(value):
                moved.append(value)
                continue
            wide = wide_numpy(value)
            eps = float(jnp.finfo(value.dtype).eps)
            moved.append(jnp.asarray(wide * (1 + 2 * eps * rng.choice([-1.0, 1.0], wide.shape)), value.dtype))
        return self.subject.by_jax(moved, cts)[position]

    # -- finite differences --------------------------------------------------------------------------

    def _line(self, seed: int) -> Line:
        if seed not in self.lines:
            self.lines[seed] = self.subject.line(self.subject.values, self.cts[seed])
        return self.lines[seed]

    def _finite(self) -> set[int]:
        """Rows for finite differences; returns the inputs at which the function has kinks."""
        kinked = set()
        for position in self.subject.positions:
            if not self.subject.values[position].size:
                self._row(position, "finite differences", RIGHT, note="it has no elements")
                continue
            judged = None
            for seed in range(len(self.seeds)):
                try:
                    judged = self._along(position, self._line(seed), self.ours[seed], seed, judged)
                except Exception as error:
                    judged = {"verdict": UNCHECKED, "note": f"it could not be run: {_first_line(error)}"}
                if judged["verdict"] != RIGHT:
                    break
            if judged.pop("kink", False):
                kinked.add(position)
                judged = self._nearby(position, judged["note"]) or judged
            judged.pop("slope", None)
            self._row(position, judged.pop("against", "finite differences"), **judged)
        return kinked

    def _along(self, position: int, line: Line, grads: list[Any], seed: int, before: dict[str, Any] | None):
        """One input along a random direction; keeps the worse of this and `before`."""
        gradient, value = wide_numpy(grads[position]), wide_numpy(self.subject.values[position])
        rng = np.random.default_rng([seed, position, 2])
        direction = self.subject.allowed_move(position, _scaled(random_like(value, rng), value))
        bad = ~np.isfinite(gradient)
        if bad.any():
            return self._not_finite(position, line, gradient, bad)
        size = float(np.sqrt(np.sum(np.abs(gradient * direction) ** 2)))
        tolerance = for_dtype(self.subject.narrowest, slopes=True, rtol=self.rtol)
        by_step = line.analytic and bool(np.isfinite(line.base[0]).all())
        measure = lambda d, s: _measure(line, position, d, s, by_step)  # by_step as it is then
        found = measure(direction, size)
        mine = float(np.sum(gradient * direction).real)
        against = "complex step" if by_step else "finite differences"
        allowed, reason = self._allowed(found, size, tolerance, line, position, direction, seed)
        apart = abs(mine - found.value)
        if by_step and not apart <= allowed:  # a device may multiply complex numbers in a way that loses the step
            by_step, against = False, "finite differences"
            found = measure(direction, size)
            allowed, reason = self._allowed(found, size, tolerance, line, position, direction, seed)
            apart = abs(mine - found.value)
        if apart <= allowed:  # a kink whose slopes happen to agree with ours would still be named below
            if found.kind != "smooth" and found.kind == "kink":
                return self._kinks(position, line, direction, size)
            scale = max(abs(found.value), size, 1e-300)
            if reason != tolerance.reason and allowed > 0.5 * scale:
                return {"against": against, "verdict": UNCHECKED, "note": f"no digit of it can be trusted: {reason}"}
            result = {
                "against": against, "verdict": RIGHT, "max_abs": apart, "max_rel": apart / scale,
                "tolerance": max(tolerance.rtol, allowed / scale if reason != tolerance.reason else 0), "reason": reason,
            }  # fmt: skip
            return result if before is None or result["max_rel"] >= before["max_rel"] else before
        if found.kind == "kink":
            return self._kinks(position, line, direction, size)
        if found.kind == "rough" and not by_step:
            return self._rough(position, line, direction, size, gradient, allowed)
        return self._worst(position, line, direction, gradient, by_step, against, tolerance, reason, allowed)

    def _allowed(self, found, size, tolerance, line, position, direction, seed) -> tuple[float, str]:
        noise = 0.0 if not np.isfinite(found.error) else 5 * found.error
        allowed = tolerance.rtol * max(abs(found.value), size) + noise
        allowed += self._unit(position, self.subject.narrowest) + 1e-24
        reason = tolerance.reason
        narrow = float(jnp.finfo(self.subject.narrowest).eps) > 1e-15
        mine = float(np.sum(wide_numpy(self.ours[seed][position]) * direction).real)
        if narrow and self.rtol is None and abs(mine - found.value) > allowed and line.precise:
            # What float32 and narrower lose is no fault of the rules: measured on jax's own gradient.
            try:
                both = self.subject.by_jax_twice(self.subject.values, self.cts[seed])
            except Exception:
                return allowed, reason
            judge, wide = (wide_numpy(grads[position]) for grads in both)
            agrees = abs(float(np.sum(wide * direction).real) - found.value)
            lost = float(np.sqrt(np.sum(np.abs((judge - wide) * direction) ** 2)))
            if agrees < 1e-3 * max(abs(found.value), size) + noise and 4 * lost > allowed:
                name = jnp.dtype(self.subject.narrowest).name
                part = lost / max(size, 1e-300)
                allowed, reason = 4 * lost, f"jax's own {name} gradient is off by {part:.1e} from the one in float64"
        return allowed, reason

    def _worst(self, position, line, direction, gradient, by_step, against, tolerance, reason, allowed):
        """The direction disagrees: find the element that does."""
        flat = direction.reshape(-1)

        def error(mask: np.ndarray) -> float:
            part = self.subject.allowed_move(position, np.where(mask, flat, 0).reshape(direction.shape))
            size = float(np.sqrt(np.sum(np.abs(gradient * part) ** 2)))
            found = _measure(line, position, part, size, by_step)
            return abs(float(np.sum(gradient * part).real) - found.value)

        element = narrowed(direction.size, error)
        index = index_of(element, direction.shape)
        unit = np.zeros(direction.shape, direction.dtype)
        unit[index] = direction[index]
        unit = self.subject.allowed_move(position, unit)
        found = _measure(line, position, unit, abs(gradient[index] * direction[index]), by_step)
        got, expected = float((gradient * unit).sum().real), found.value
        step = 1.0
        if not np.iscomplexobj(direction):
            step = float(direction[index])
        if found.kind == "kink":
            return self._kinks(position, line, direction, max(abs(got), abs(expected)))
        note = factor(got, expected)
        if abs(got - expected) <= allowed / max(direction.size, 1):
            note = "only along directions of several elements"
        if (
            self.subject.program is not None
            and _stops_inside(self.subject.program)
            and not self.subject.has_custom_rules
        ):
            return {
                "against": against, "verdict": UNCHECKED,
                "note": "a stop_gradient inside a loop or branch: finite differences see through it",
            }  # fmt: skip
        scale = max(abs(expected), 1e-300)
        return {
            "against": against, "verdict": WRONG, "max_abs": abs(got - expected) / abs(step),
            "max_rel": abs(got - expected) / scale, "index": index, "got": got / step, "expected": expected / step,
            "tolerance": tolerance.rtol, "reason": reason, "note": note,
        }  # fmt: skip

    def _not_finite(self, position, line, gradient, bad) -> dict[str, Any]:
        """A gradient with nan or inf is wrong where the function itself has a slope."""
        steps = _scaled(np.ones(gradient.shape), wide_numpy(self.subject.values[position]))
        count = int(bad.sum())
        for element in np.flatnonzero(bad)[:8]:
            index = index_of(int(element), gradient.shape)
            unit = np.zeros(gradient.shape, gradient.dtype)
            unit[index] = steps[index]
            found = line.slope(position, unit, 1.0)
            if found.kind != "smooth" or not np.isfinite(found.value):
                continue
            return {
                "verdict": WRONG, "max_abs": float("inf"), "max_rel": float("inf"), "index": index,
                "got": gradient[index].item(), "expected": found.value / float(steps[index]),
                "note": f"{count} of {bad.size} elements are not finite, yet the function has a slope there: "
                "often a where() whose other branch is infinite",
            }  # fmt: skip
        return {"verdict": UNCHECKED, "note": f"{count} of {bad.size} elements are nan or inf, and so is the slope"}

    def _rough(self, position, line, direction, size, gradient, allowed) -> dict[str, Any]:
        """The differences do not settle. Name where; an element whose slope does settle is judged by it."""
        at = self._steepest(position, line, direction, size)
        note = (
            f"the function is not smooth at {self.subject.names[position]}{list(at) or ''}: differences do not settle"
        )
        return {"verdict": UNCHECKED, "note": note, "kink": True}

    def _steepest(self, position, line, direction, size) -> tuple[int, ...]:
        flat = direction.reshape(-1)

        def roughness(mask):
            found = line.slope(position, np.where(mask, flat, 0).reshape(direction.shape), size)
            return 0.0 if found.kind == "smooth" else 1.0 + min(abs(found.right - found.left), 1e300)

        return index_of(narrowed(direction.size, roughness), direction.shape)

    def _kinks(self, position: int, line: Line, direction: np.ndarray, size: float) -> dict[str, Any]:
        """Name the elements that sit on a kink."""
        rest = direction.reshape(-1).copy()
        names = {(kink.input, kink.index) for kink in self.report.kinks}
        name = self.subject.names[position]

        def bend(mask: np.ndarray) -> float:
            found = line.slope(position, np.where(mask, rest, 0).reshape(direction.shape), size)
            return abs(found.right - found.left) if found.kind != "smooth" else 0.0

        for _ in range(MAX_KINKS):
            element = narrowed(direction.size, bend)
            mask = np.arange(direction.size) == element
            if bend(mask) == 0.0:
                break
            index = index_of(element, direction.shape)
            unit = np.where(mask, np.abs(rest), 0).reshape(direction.shape)
            # As the sum of the outputs has it: the random cotangent would only confuse.
            plain = self.subject.line(self.subject.values, [np.ones_like(ct) for ct in self.cts[0]])
            found = plain.slope(position, unit, size)
            step = abs(rest[element])
            if (name, index) not in names:
                self.report.kinks.append(Kink(name, index, found.left / step + 0.0, found.right / step + 0.0))
            rest[element] = 0
            if line.slope(position, rest.reshape(direction.shape), size).kind == "smooth":
                break
        return {"verdict": UNCHECKED, "note": "it sits on a kink", "kink": True}

    def _nearby(self, position: int, why: str) -> dict[str, Any] | None:
        """The same check at a nearby point without a kink; None if none was found."""
        subject = self.subject
        for attempt in range(3):
            rng = np.random.default_rng([attempt, 3])
            values = [
                jnp.asarray(wide + 0.01 * _scaled(random_like(wide, rng), wide), value.dtype)
                if inexact(value) and (wide := wide_numpy(value)) is not None
                else value
                for value in subject.values
            ]
            moved = subject.at(values)
            check = Check(moved, Report(subject.name, []), self.order, self.judges, self.seeds[:1], self.rtol)
            _, pullback = moved.by_tape(values)
            check.cts = self.cts[:1]
            check.ours = [pullback(check.cts[0])]
            judged = check._along(position, check._line(0), check.ours[0], 0, None)
            if not judged.pop("kink", False):
                where = f"at a nearby point: {why}"
                judged["note"] = f"{where}; {judged['note']}" if judged.get("note") else where
                return judged
        return None


def _measure(line: Line, position: int, direction: np.ndarray, size: float, by_step: bool):
    from tapejax.verify.finite import Slope

    if by_step:
        value = line.complex_step(position, direction)
        return Slope(value, 0.0, "smooth" if np.isfinite(value) else "rough")
    return line.slope(position, direction, size)


def _scaled(direction: np.ndarray, value: np.ndarray) -> np.ndarray:
    """A direction as long as the value is: steps are relative to the input's own size."""
    sizes = np.abs(value[np.isfinite(value)])
    return direction * (float(sizes.max(initial=0.0)) or 1.0)


def _stops_inside(program: Any) -> bool:
    from tapejax.verify.wide import equations

    return any(inside and eqn.primitive.name == "stop_gradient" for eqn, inside in equations(program))


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
