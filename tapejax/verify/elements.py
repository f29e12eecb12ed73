"""Full gradients compared element by element: with jax's, and with that of the primal code in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.verify.finite import Guess, Slope, index_of
from tapejax.verify.line import Line, nudged
from tapejax.verify.report import RIGHT, UNCHECKED, WRONG, Report, Row
from tapejax.verify.subject import Subject
from tapejax.verify.tolerance import Difference, Tolerance, difference, distances, factor, for_dtype, wide_numpy

SUSPECTS = 16  # elements that are differenced by themselves before a custom rule is called wrong
PRIMAL = "primal code in float64"


@dataclass(slots=True)
class Ruling:
    """Who differences side with: "ours", "theirs", "neither", "kink" (there is no slope), or "unknown"."""

    who: str
    index: tuple[int, ...] | None = None
    ours: Any = None
    theirs: Any = None
    slope: Any = None
    left: float = 0.0
    right: float = 0.0


class Elements:
    """One order of derivative of one subject: what the tape gave, and the judges that give whole gradients."""

    is_scalar = False

    def __init__(self, subject: Subject, report: Report, order: int, judges, seeds: Sequence[int], rtol: float | None):
        self.subject, self.report, self.order, self.judges = subject, report, order, judges
        self.seeds, self.rtol = seeds, rtol
        self.kinds = [jax.typeof(value).str_short() for value in subject.values]
        self.lines: dict[int, Line] = {}
        self.rounding: dict[int, list[Any]] = {}
        self.rounders: dict[int, Iterator[Any]] = {}
        self.sizes: dict[int, float] = {}
        self.exact: dict[int, Any] = {}
        self.deadline: float | None = None  # by time.perf_counter
        self.progress: Callable[[str], None] = lambda doing: None
        self.outputs: list[Any] | None = None
        self.pullback: Any = None  # of what is judged, for other cotangents
        self.cts: list[list[Any]] = []
        self.theirs: list[list[Any]] | None = None  # by the other opinion, likewise
        self.ours: list[list[Any]] = []  # per seed, per input

    @cached_property
    def narrow(self) -> bool:
        """Whether digits are lost on the way. Asked after the tape's call: it traces the function."""
        return float(jnp.finfo(self.subject.narrowest).eps) > 1e-15

    def _row(self, position: int, against: str, verdict: str, **more: Any) -> Row:
        row = Row(self.subject.names[position], self.kinds[position], against, self.order, verdict, **more)
        self.report.rows.append(row)
        return row

    def _all_rows(self, against: str, verdict: str, note: str) -> None:
        for position in self.subject.positions:
            self._row(position, against, verdict, note=note)

    def _line(self, seed: int) -> Line:
        seed = self._same_cts(seed)
        if seed not in self.lines:
            self.lines[seed] = self.subject.line(self.subject.values, self.cts[seed], self.outputs)
        return self.lines[seed]

    def _same_cts(self, seed: int) -> int:
        """The first seed with the same cotangents: a scalar loss has the cotangent 1 for all of them."""
        return 0 if self.is_scalar else seed

    # -- the judges --------------------------------------------------------------------------------

    def _jax(self, kinked: set[int]) -> None:
        subject = self.subject
        self.progress(f"the gradient by {subject.judge}")
        try:
            theirs = [subject.by_jax(subject.values, cts) for cts in self.cts]
        except Exception as error:
            note = f"{subject.judge} cannot differentiate it: {first_line(error)}"
            self._all_rows(subject.judge, UNCHECKED, note)
            return
        self.theirs = theirs
        for position in subject.positions:
            judges = [grads[position] for grads in theirs]
            value = subject.values[position]
            other = next((j for j in judges if j.dtype != value.dtype or j.shape != value.shape), None)
            if other is not None:
                kind = jax.typeof(other).str_short()
                note = f"the gradient by {subject.judge} is {kind}, the input {self.kinds[position]}"
                self._row(position, subject.judge, WRONG, note=note)
                continue
            self._element_row(position, subject.judge, judges, position in kinked, subject.kinks_are_conventions)

    def _primal(self) -> None:
        """Custom rules against the code that they stand for: jax has to believe them, and one element is seen here."""
        subject = self.subject
        if subject.program is None or subject.kinks_are_conventions or not subject.has_custom_rules:
            return
        self.progress("the gradient of the primal code")
        try:
            known = {
                seed: subject.in_float64(subject.values, self.cts[seed])
                for seed in {self._same_cts(i) for i in range(len(self.cts))}
            }
            theirs = [known[self._same_cts(seed)] for seed in range(len(self.cts))]
        except Exception as error:
            self._all_rows(PRIMAL, UNCHECKED, f"it cannot be differentiated: {first_line(error)}")
            return
        for position in subject.positions:
            self._element_row(position, PRIMAL, [grads[position] for grads in theirs], True, True)

    def _element_row(self, position: int, against: str, theirs: list[Any], kinked: bool, free_at_kinks: bool) -> None:
        same = lambda gradient: self.subject.allowed_move(position, wide_numpy(gradient))
        ours = [same(grads[position]) for grads in self.ours]
        theirs = [same(gradient) for gradient in theirs]
        tolerance = for_dtype(self.subject.narrowest, rtol=self.rtol)
        found, tolerance, seed = self._compared(position, ours, theirs, tolerance, kinked)
        verdict, note = (RIGHT if found.ok else WRONG), ""
        if found.ok and tolerance.rtol > 0.5 and self.rtol is None:
            verdict, note = UNCHECKED, f"no digit of it can be trusted: {tolerance.reason}"
        if verdict == WRONG and free_at_kinks:
            confirmed = self._confirmed(position, seed, ours[seed], theirs[seed], tolerance)
            confirmed = confirmed or self._beyond_the_sides(position)
            if confirmed is None:
                verdict, note = RIGHT, "it differs from its primal code only where that has a kink or no slope"
            else:
                found = confirmed
        if verdict == WRONG:
            note = factor(found.got, found.expected)
        self._row(
            position, against, verdict, max_abs=found.max_abs, max_rel=found.max_rel,
            index=found.index if found.max_abs else None, got=found.got, expected=found.expected,
            tolerance=tolerance.rtol, reason=tolerance.reason, note=note, power=tolerance.rtol,
        )  # fmt: skip

    def _compared(
        self, position: int, ours: list[Any], theirs: list[Any], tolerance: Tolerance, kinked: bool
    ) -> tuple[Difference, Tolerance, int]:
        """The worst difference over the seeds, with the tolerance that rounding turns out to need."""
        every = [
            difference(mine, judge, tolerance, self._unit(position, seed))
            for seed, (mine, judge) in enumerate(zip(ours, theirs, strict=True))
        ]
        worst = max(range(len(every)), key=lambda seed: every[seed].max_rel)
        found = every[worst]
        if not found.ok and self.rtol is None:
            unit = self._unit_of_nothing(position, worst, ours[worst], theirs[worst])
            if unit:
                reason = "it is zero up to rounding, beside the terms that cancel"
                tolerance = Tolerance(tolerance.rtol, tolerance.floor, reason)
                return difference(ours[worst], theirs[worst], tolerance, unit), tolerance, worst
            apart = lambda tolerance: difference(ours[worst], theirs[worst], tolerance, self._unit(position, worst))
            tolerance = self._conditioned(position, worst, theirs[worst], tolerance, kinked, lambda t: apart(t).ok)
            found = apart(tolerance)
        return found, tolerance, worst

    def _confirmed(self, position: int, seed: int, ours, theirs, tolerance: Tolerance) -> Difference | None:
        """Whether finite differences say so too, at one of the worst elements: a custom rule is free at kinks."""
        apart, relative = distances(ours, theirs, tolerance)
        line = self._line(seed)
        steps = scaled(np.ones(ours.shape), wide_numpy(self.subject.values[position]))
        largest = float(np.abs(ours[np.isfinite(ours)]).max(initial=0.0))
        suspects = np.argsort(relative, axis=None)[::-1][:SUSPECTS]
        for element in suspects:
            index = index_of(int(element), ours.shape)
            if relative[index] <= tolerance.rtol:
                break
            turn = np.exp(-1j * np.angle(ours[index] - theirs[index])) if np.iscomplexobj(ours) else 1.0
            unit = np.zeros(ours.shape, ours.dtype)
            unit[index] = steps[index] * turn
            unit = self.subject.allowed_move(position, unit)
            with np.errstate(all="ignore"):
                got = float(np.sum(np.where(unit == 0, 0, ours * unit)).real)
            found = line.slope(
                position, unit, max(abs(got) if np.isfinite(got) else 0.0, 1e-3 * largest * steps[index])
            )
            if found.kind != "smooth" or not np.isfinite(found.value):
                continue
            least = max(abs(found.value), tolerance.floor * largest * steps[index])
            if not abs(got - found.value) <= tolerance.rtol * least + 5 * found.error:
                away = float(np.abs(got - found.value)) if np.isfinite(got) else float("inf")
                got, expected = got / steps[index], found.value / steps[index]
                return Difference(float(apart[index]), away / max(least, 1e-300), index, got, expected, False)
        return None

    def referee(self, position: int, seed: int, ours: Any, theirs: Any) -> Ruling:
        """Who of two is nearer to differences, at the elements where they are furthest apart."""
        tolerance = for_dtype(self.subject.narrowest, slopes=True, rtol=self.rtol)
        _, relative = distances(ours, theirs, tolerance)
        line = self._line(seed)
        steps = scaled(np.ones(ours.shape), wide_numpy(self.subject.values[position]))
        kink = None
        for element in np.argsort(relative, axis=None)[::-1][:SUSPECTS]:
            index = index_of(int(element), ours.shape)
            if relative[index] == 0:
                break
            gap = ours[index] - theirs[index]
            turn = np.exp(-1j * np.angle(gap)) if np.iscomplexobj(ours) and np.isfinite(gap) else 1.0
            unit = np.zeros(ours.shape, ours.dtype)
            unit[index] = steps[index] * turn
            unit = self.subject.allowed_move(position, unit)
            with np.errstate(all="ignore"):
                mine, other = (float(np.sum(np.where(unit == 0, 0, g * unit)).real) for g in (ours, theirs))
            size = max((abs(x) for x in (mine, other) if np.isfinite(x)), default=1.0)
            found = measure(line, position, unit, size, line.analytic and not np.iscomplexobj(ours))
            said = tuple(x / steps[index] for x in (mine, other, found.value))
            if found.kind == "kink":
                kink = kink or Ruling(
                    "kink", index, *said, left=found.left / steps[index], right=found.right / steps[index]
                )
                continue
            if found.kind != "smooth" or not np.isfinite(found.value):
                continue
            error = 5 * found.error + tolerance.rtol * abs(found.value)
            far = abs(mine - other) if np.isfinite(mine) and np.isfinite(other) else np.inf
            if far <= 3 * error:
                continue
            near = lambda x, error=error, far=far, value=found.value: (
                abs(x - value) <= max(error, 0.1 * far if np.isfinite(far) else 0.0)
            )
            who = {(True, False): "ours", (False, True): "theirs"}.get((near(mine), near(other)), "neither")
            return Ruling(who, index, *said)
        return kink or Ruling("unknown")

    def _beyond_the_sides(self, position: int) -> Difference | None:
        """At a kink a rule may choose, but not beyond the slopes from the two sides (a tie that is counted twice).

        Looked at one element of the outputs after another, so that kinks do not bend against each other; the primal
        code's choice must lie between.
        """
        if self.pullback is None:
            return None
        places = [(output, element) for output, ct in enumerate(self.cts[0]) for element in range(ct.size)]
        found = (self._beyond_at(position, *place) for place in places[:SUSPECTS])
        return next((difference for difference in found if difference is not None), None)

    def _beyond_at(self, position: int, output: int, element: int) -> Difference | None:
        """The same of one element of one output."""
        subject = self.subject
        ones = [np.zeros(ct.shape, ct.dtype) for ct in self.cts[0]]
        ones[output].reshape(-1)[element] = 1
        ones = subject.allowed_cts([jnp.asarray(one) for one in ones])
        mine = wide_numpy(self.pullback(ones)[position])
        judge = wide_numpy(subject.in_float64(subject.values, ones)[position])
        line = subject.line(subject.values, ones)
        value = wide_numpy(subject.values[position])
        for number in range(3):
            signs = (
                np.random.default_rng([number, 5]).choice([-1.0, 1.0], value.shape) if number else np.ones(value.shape)
            )
            direction = subject.allowed_move(position, scaled(signs, value))
            with np.errstate(all="ignore"):
                got, expected = (float(np.sum(g * direction).real) for g in (mine, judge))
            size = float(np.sqrt(np.sum(np.abs(judge * direction) ** 2)))
            if not np.isfinite([got, expected, size]).all():
                continue
            found = line.slope(position, direction, size)
            if found.kind == "rough":
                continue
            low, high = sorted((found.left, found.right)) if found.kind == "kink" else (found.value, found.value)
            margin = 1e-2 * max(abs(low), abs(high), size) + 5 * found.error
            if low - margin <= expected <= high + margin and not low - 5 * margin <= got <= high + 5 * margin:
                scale = float(np.abs(direction).max())
                worst = index_of(int(np.argmax(np.abs(mine - judge))), value.shape)
                apart = abs(got - expected)
                return Difference(
                    apart / scale, apart / max(abs(expected), 1e-300), worst, got / scale, expected / scale, False
                )
        return None

    def _nothing(self, seed: int) -> float:
        """What is nothing but rounding, in units of the value: a gradient whose terms cancel can be this large."""
        if seed not in self.sizes:
            sizes = [self._line(seed).size_of_value]
            for position in self.subject.positions:
                gradient = wide_numpy(self.ours[seed][position])
                value = np.abs(wide_numpy(self.subject.values[position]))
                largest = float(value[np.isfinite(value)].max(initial=0.0)) or 1.0
                sizes.append(largest * float(np.sqrt(np.sum(np.abs(gradient[np.isfinite(gradient)]) ** 2))))
            self.sizes[seed] = max(size for size in sizes if np.isfinite(size))
        return 256 * float(jnp.finfo(self.subject.narrowest).eps) * self.sizes[seed]

    def _unit_of_nothing(self, position: int, seed: int, ours: np.ndarray, theirs: np.ndarray) -> float:
        """What is nothing but rounding, per length of the input, if the gradient is zero beside it; else 0."""
        value = np.abs(wide_numpy(self.subject.values[position]))
        largest = float(value[np.isfinite(value)].max(initial=0.0)) or 1.0
        try:
            unit = self._nothing(seed) / largest
        except Exception:  # the function cannot be run again as it is
            return 0.0
        exact = self._exact(position, seed) if self.narrow else None
        if exact is not None:
            return unit if float(np.abs(exact).max(initial=0.0)) <= 1e-2 * unit else 0.0
        return unit if max(float(np.abs(g).max(initial=0.0)) for g in (ours, theirs)) <= unit else 0.0

    def _exact(self, position: int, seed: int) -> np.ndarray | None:
        """The gradient in float64, by jax and without custom rules; None if there is none."""
        seed = self._same_cts(seed)
        if seed not in self.exact:
            try:
                program = self.subject.program
                self.exact[seed] = (
                    None if program is None else self.subject.in_float64(self.subject.values, self.cts[seed])
                )
            except Exception:  # jax cannot differentiate it, or not in float64
                self.exact[seed] = None
        found = self.exact[seed]
        return None if found is None else wide_numpy(found[position])

    # -- how much rounding ---------------------------------------------------------------------------

    def _unit(self, position: int, seed: int) -> float:
        """The rounding error of a gradient whose large terms cancel: that of the value, per length of the input.

        Where it can be measured, it is not guessed.
        """
        subject = self.subject
        if subject.program is None or (self.narrow and self.rtol is None and self._rounded_works(seed)):
            return 0.0
        value = np.abs(wide_numpy(subject.values[position]))
        largest = float(value[np.isfinite(value)].max(initial=0.0)) or 1.0
        outputs = self._line(0).size_of_value
        return 64 * float(jnp.finfo(subject.narrowest).eps) * outputs / largest if np.isfinite(outputs) else 0.0

    def _rounded_works(self, seed: int) -> bool:
        seed = self._same_cts(seed)
        return seed not in self.rounding or bool(self.rounding[seed])

    def _rounded(self, position: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The gradient in the program's precision and in float64, by jax and without custom rules; several of them.

        Each is computed when it is asked for: those that take longest come last.
        """
        seed = self._same_cts(seed)
        if seed not in self.rounding:
            self.rounding[seed] = []
            self.rounders[seed] = self.subject.rounded(self.subject.values, self.cts[seed])
        known = self.rounding[seed]
        number = 0
        while number < len(known) or self._rounded_once_more(seed):
            judge, wide = known[number]
            yield wide_numpy(judge[position]), wide_numpy(wide[position])
            number += 1

    def _rounded_once_more(self, seed: int) -> bool:
        try:
            self.rounding[seed].append(next(self.rounders[seed]))
        except Exception:  # there are no more; or jax cannot differentiate it, or not in float64
            return False
        return True

    def _conditioned(
        self,
        position: int,
        seed: int,
        judge: Any,
        tolerance: Tolerance,
        kinked: bool,
        enough: Callable[[Tolerance], bool],
    ) -> Tolerance:
        """A tolerance that knows how far jax's own gradient can be trusted at this point. enough: whether it will do."""
        off, name, measured = 0.0, jnp.dtype(self.subject.narrowest).name, tolerance
        known = False
        for narrow, wide in self._rounded(position, seed) if self.narrow else ():
            known = True
            _, relative = distances(narrow, wide, tolerance)
            off = max(off, float(relative[np.isfinite(relative)].max(initial=0.0)))
            reason = f"jax's own {name} gradient is off by {off:.1e} from the one in float64"
            if 4 * off > tolerance.rtol:
                measured = Tolerance(4 * off, tolerance.floor, reason)
            if enough(measured):
                break
        if known:
            return measured
        if kinked:
            return tolerance  # one bit may change the side of a kink; that is no rounding
        try:
            others = [self.subject.by_jax(nudged(self.subject.values, i), self.cts[seed])[position] for i in range(3)]
            moves = [difference(other, judge, tolerance).max_rel for other in others]
        except Exception:
            return tolerance
        reason = f"the gradient moves by {min(moves):.1e} when the inputs change in their last bit"
        return Tolerance(max(tolerance.rtol, 20 * min(moves)), tolerance.floor, reason)


def measure(
    line: Line, position: int, direction: np.ndarray, size: float, by_step: bool, guess: Guess | None = None
) -> Slope:
    if by_step:
        value = line.complex_step(position, direction)
        return Slope(value, 0.0, "smooth" if np.isfinite(value) else "rough")
    return line.slope(position, direction, size, guess)


def scaled(direction: np.ndarray, value: np.ndarray) -> np.ndarray:
    """A direction as long as the value is: steps are relative to the input's own size."""
    sizes = np.abs(value[np.isfinite(value)])
    return direction * (float(sizes.max(initial=0.0)) or 1.0)


def first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
