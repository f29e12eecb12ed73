"""The numerical judge: a gradient against the complex step or extrapolated differences along directions and elements."""

from __future__ import annotations

import time
from typing import Any

import jax.numpy as jnp
import numpy as np

from tapejax.verify.elements import Elements, first_line, measure, scaled
from tapejax.verify.finite import LEVELS, Guess, index_of, narrowed
from tapejax.verify.line import Line
from tapejax.verify.report import RIGHT, UNCHECKED, WRONG, Kink, Report
from tapejax.verify.subject import inexact, random_like
from tapejax.verify.tolerance import distances, factor, for_dtype, wide_numpy
from tapejax.verify.wide import equations, has_samplers

MAX_KINKS = 4  # named per input; a nearby point is used instead, whatever their number
FEW = 64  # elements: each is differenced by itself
BLOCKS = 8  # of more elements than that, besides all at once
WORK = 3e8  # numbers computed while differencing blocks; with more than that, all elements at once must do
NUMERICAL = ("complex step", "finite differences")


class Differences(Elements):
    """One order of derivative of one subject, judged by differences too."""

    # -- finite differences --------------------------------------------------------------------------

    def _finite(self) -> set[int]:
        """Rows for finite differences; returns the inputs at which the function has kinks."""
        kinked = set()
        for number, position in enumerate(self.subject.positions, 1):
            self.progress(f"differences of {self.subject.names[position]} ({number} of {len(self.subject.positions)})")
            if not self.subject.values[position].size:
                self._row(position, "finite differences", RIGHT, note="it has no elements")
                continue
            left_out = "the time that was given is spent" if self.late() else self._not_its_business()
            if left_out:
                self._row(position, "finite differences", UNCHECKED, note=f"left out: {left_out}")
                continue
            judged = None
            for seed in range(len(self.seeds)):
                try:
                    judged = self._along(position, self._line(seed), self.ours[seed], seed, judged)
                except Exception as error:
                    judged = {"verdict": UNCHECKED, "note": f"it could not be run: {first_line(error)}"}
                if judged["verdict"] != RIGHT or self.late() or not self._affordable(2 + seed):
                    break
            assert judged is not None
            if judged["verdict"] == RIGHT and not self.late():
                judged = self._parts(position, judged)
            if judged.pop("kink", False):
                kinked.add(position)
                judged = self._nearby(position, judged["note"]) or judged
            if judged["verdict"] == RIGHT and not self._line(0).precise and not judged.get("note"):
                judged["note"] = f"differences in its own dtype: {self._line(0).why}"
            self._row(position, judged.pop("against", "finite differences"), **judged)
        return kinked

    def _not_its_business(self) -> str:
        program = self.subject.program
        if program is not None and has_samplers(program):
            return "the derivative of a sample is that of its distribution, not of how it was drawn"
        return ""

    def late(self) -> bool:
        return self.deadline is not None and time.perf_counter() > self.deadline

    def _parts(self, position: int, judged: dict[str, Any]) -> dict[str, Any]:
        """All elements at once hide what happens to a few: the elements one by one, or block by block."""
        size = self.subject.values[position].size
        line, program = self._line(0), self.subject.program
        if size < 2 or not self.subject.thorough or program is None or not line.precise:
            return judged
        if size <= FEW and self._affordable(size):
            return self._each(position, line, judged)
        if not self._affordable(BLOCKS):
            return judged
        power, judged["power"] = judged["power"], 0.0  # of all at once
        for block in np.array_split(np.arange(size), BLOCKS):
            mask = np.zeros(size, bool)
            mask[block] = True
            judged = self._along(position, line, self.ours[0], 0, judged, mask)
            if judged["verdict"] != RIGHT or self.late():
                break
        judged["power"] = min(judged.get("power", 0.0) or power, power)
        return judged

    def _affordable(self, ladders: int) -> bool:
        return 2 * LEVELS * ladders * self.subject.work <= WORK

    def _each(self, position: int, line: Line, judged: dict[str, Any]) -> dict[str, Any]:
        """Every element by itself."""
        gradient, value = wide_numpy(self.ours[0][position]), wide_numpy(self.subject.values[position])
        by_step = judged["against"] == "complex step"
        steps = scaled(np.ones(value.shape), value)
        expected, noise = gradient.copy(), np.zeros(value.shape)
        tolerance = for_dtype(self.subject.narrowest, slopes=True, rtol=self.rtol)
        for element in range(value.size):
            if self.late():
                break
            unit = np.zeros(value.shape, value.dtype)
            index = index_of(element, value.shape)
            unit[index] = steps[index]
            moves = self.subject.allowed_move(position, unit)
            got = float(np.sum(gradient * moves).real)
            found = measure(line, position, moves, abs(got), by_step, Guess(got, tolerance.rtol * abs(got)))
            if found.kind == "smooth" and np.isfinite(found.value):
                expected[index] += (found.value - got) / steps[index]
                noise[index] = 5 * found.error / steps[index]
        apart, _ = distances(gradient, expected, tolerance)
        close = np.where(apart <= noise, gradient, expected)
        found, tolerance, _ = self._compared(position, [gradient], [close], tolerance, False)
        judged["power"] = tolerance.rtol
        if found.ok:
            return judged
        return {
            "against": judged["against"], "verdict": WRONG, "max_abs": found.max_abs, "max_rel": found.max_rel,
            "index": found.index, "got": found.got, "expected": found.expected, "tolerance": tolerance.rtol,
            "reason": tolerance.reason, "note": factor(found.got, found.expected),
        }  # fmt: skip

    def _along(self, position: int, line: Line, grads, seed: int, before: dict[str, Any] | None, part=None):
        """One input along a random direction, or a part of it; keeps the worse of this and `before`."""
        gradient, value = wide_numpy(grads[position]), wide_numpy(self.subject.values[position])
        rng = np.random.default_rng([seed, position, 2])
        direction = random_like(value, rng)
        if part is not None:
            direction = np.where(part.reshape(value.shape), direction, 0)
        direction = self.subject.allowed_move(position, scaled(direction, value))
        bad = ~np.isfinite(gradient)
        if bad.any():
            return self._not_finite(position, line, gradient, bad)
        size = float(np.sqrt(np.sum(np.abs(gradient * direction) ** 2)))
        tolerance = for_dtype(self.subject.narrowest, slopes=True, rtol=self.rtol)
        by_step = line.analytic and bool(np.isfinite(line.base[0]).all())
        mine = float(np.sum(gradient * direction).real)
        guess = Guess(mine, tolerance.rtol * max(abs(mine), size))
        found = measure(line, position, direction, size, by_step, guess)
        against = "complex step" if by_step else "finite differences"
        allowed, reason = self._allowed(found, size, tolerance, line, position, direction, seed)
        apart = abs(mine - found.value)
        if by_step and not apart <= allowed:  # a device may multiply complex numbers in a way that loses the step
            by_step, against = False, "finite differences"
            found = measure(line, position, direction, size, by_step)
            allowed, reason = self._allowed(found, size, tolerance, line, position, direction, seed)
            apart = abs(mine - found.value)
        if apart <= allowed:  # a kink whose slopes happen to agree with ours would still be named below
            if found.kind != "smooth" and found.kind == "kink":
                return self._kinks(position, line, direction, size)
            scale = max(abs(found.value), size, 1e-300)
            if (
                not reason.startswith("it is zero")
                and reason != tolerance.reason
                and allowed > 0.5 * min(scale, max(size, 1e-6 * line.size_of_value))
            ):
                return {"against": against, "verdict": UNCHECKED, "note": f"no digit of it can be trusted: {reason}"}
            # Of one element of usual size, which the direction moves by no less than half.
            power = 2 * allowed / size * float(np.sqrt(np.count_nonzero(direction))) if size else 0.0
            if before is not None:
                power = max(power, before["power"])
            result = {
                "against": against, "verdict": RIGHT, "max_abs": apart, "max_rel": apart / scale, "power": power,
                "tolerance": max(tolerance.rtol, allowed / scale if reason != tolerance.reason else 0), "reason": reason,
            }  # fmt: skip
            return result if before is None or result["max_rel"] >= before["max_rel"] else {**before, "power": power}
        if found.kind == "kink":
            return self._kinks(position, line, direction, size)
        if found.kind == "rough" and not by_step:
            return self._rough(position, line, direction, size, gradient, allowed)
        return self._worst(position, line, direction, gradient, by_step, against, tolerance, reason, allowed)

    def _allowed(self, found, size, tolerance, line, position, direction, seed) -> tuple[float, str]:
        noise = 0.0 if not np.isfinite(found.error) else 5 * found.error
        allowed = tolerance.rtol * max(abs(found.value), size) + noise
        allowed += self._unit(position, seed) + 1e-24
        reason = tolerance.reason
        nothing = self._nothing(seed)
        if abs(found.value) <= 1e-2 * nothing + noise and size <= nothing and allowed < nothing:
            return nothing, "it is zero up to rounding, beside the terms that cancel"
        if noise > 10 * tolerance.rtol * max(size, 1e-6 * line.size_of_value):
            reason = f"differences are uncertain by {noise / max(size, 1e-300):.1e} here"
        mine = float(np.sum(wide_numpy(self.ours[seed][position]) * direction).real)
        if self.narrow and self.rtol is None and not abs(mine - found.value) <= allowed and line.precise:
            # What float32 and narrower lose is no fault of the rules: measured on jax's own gradient.
            lost = 0.0
            for judge, wide in self._rounded(position, seed):
                if abs(mine - found.value) <= 4 * lost:
                    break
                agrees = abs(float(np.sum(wide * direction).real) - found.value)
                if agrees < 1e-2 * max(abs(found.value), size) + noise:
                    terms = (judge - wide) * direction
                    lost = max(lost, float(np.sqrt(np.sum(np.abs(terms) ** 2))), abs(float(np.sum(terms).real)))
            if 4 * lost > allowed:
                name = jnp.dtype(self.subject.narrowest).name
                part = lost / max(size, 1e-300)
                allowed, reason = 4 * lost, f"jax's own {name} gradient is off by {part:.1e} from the one in float64"
        return allowed, reason

    def _worst(self, position, line, direction, gradient, by_step, against, tolerance, reason, allowed):
        """The direction disagrees: find the element that does."""
        flat = direction.reshape(-1)
        size = float(np.sqrt(np.sum(np.abs(gradient * direction) ** 2)))

        def error(mask: np.ndarray) -> float:
            part = self.subject.allowed_move(position, np.where(mask, flat, 0).reshape(direction.shape))
            size = float(np.sqrt(np.sum(np.abs(gradient * part) ** 2)))
            found = measure(line, position, part, size, by_step)
            return abs(float(np.sum(gradient * part).real) - found.value)

        element = narrowed(direction.size, error)
        index = index_of(element, direction.shape)
        unit = np.zeros(direction.shape, direction.dtype)
        unit[index] = direction[index]
        unit = self.subject.allowed_move(position, unit)
        found = measure(line, position, unit, abs(gradient[index] * direction[index]), by_step)
        got, expected = float((gradient * unit).sum().real), found.value
        step = 1.0
        if not np.iscomplexobj(direction):
            step = float(direction[index])
        if found.kind == "kink":
            return self._kinks(position, line, direction, max(abs(got), abs(expected)))
        note = factor(got, expected)
        if abs(got - expected) <= allowed / max(direction.size, 1):
            note = "only along directions of several elements"
        if self.subject.program is not None and stops_inside(self.subject.program):
            return {
                "against": against, "verdict": UNCHECKED,
                "note": "a stop_gradient inside a loop or branch: finite differences see through it",
            }  # fmt: skip
        if not line.precise and _solves(self.subject.program):
            return {
                "against": against, "verdict": UNCHECKED,
                "note": "a linear solve in its own precision: differences move its matrix, but not what was made of it",
            }  # fmt: skip
        scale = max(abs(expected), 1e-300)
        return {
            "against": against, "verdict": WRONG, "max_abs": abs(got - expected) / abs(step),
            "max_rel": abs(got - expected) / scale, "index": index, "got": got / step, "expected": expected / step,
            "tolerance": max(tolerance.rtol, allowed / max(size, 1e-300)) if reason != tolerance.reason else tolerance.rtol,
            "reason": reason, "note": note,
        }  # fmt: skip

    def _not_finite(self, position, line, gradient, bad) -> dict[str, Any]:
        """A gradient with nan or inf is wrong where the function itself has a slope, or one from each side."""
        steps = scaled(np.ones(gradient.shape), wide_numpy(self.subject.values[position]))
        count = int(bad.sum())
        finite = all(np.isfinite(base).all() for base in line.base)
        for element in np.flatnonzero(bad)[:8]:
            index = index_of(int(element), gradient.shape)
            unit = np.zeros(gradient.shape, gradient.dtype)
            unit[index] = steps[index]
            found = line.slope(position, unit, 1.0)
            sides = found.kind == "kink" and np.isnan(gradient[index]) and np.isfinite([found.left, found.right]).all()
            if not sides and (found.kind != "smooth" or not np.isfinite(found.value)):
                continue
            has = "a slope from each side" if sides else "a slope"
            return {
                "verdict": WRONG, "max_abs": float("inf"), "max_rel": float("inf"), "index": index,
                "got": gradient[index].item(), "expected": found.value / float(steps[index]) + 0.0,
                "note": f"{count} of {bad.size} elements are not finite, yet the function has {has} there: "
                "often a where() whose other branch is infinite, or a root of zero",
            }  # fmt: skip
        if finite and np.isnan(gradient[bad]).any():
            index = index_of(int(np.flatnonzero(np.isnan(gradient))[0]), gradient.shape)
            return {
                "verdict": WRONG, "max_abs": float("inf"), "max_rel": float("inf"), "index": index, "got": float("nan"),
                "note": f"{count} of {bad.size} elements are not finite, though the function's value is",
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
                jnp.asarray(wide + 0.01 * scaled(random_like(wide, rng), wide), value.dtype)
                if inexact(value) and (wide := wide_numpy(value)) is not None
                else value
                for value in subject.values
            ]
            moved = subject.at(values)
            check = type(self)(moved, Report(subject.name, []), self.order, self.judges, self.seeds[:1], self.rtol)
            _, pullback = moved.by_tape(values)
            check.cts = self.cts[:1]
            check.ours = [pullback(check.cts[0])]
            judged = check._along(position, check._line(0), check.ours[0], 0, None)
            if not judged.pop("kink", False):
                where = f"at a nearby point: {why}"
                judged["note"] = f"{where}; {judged['note']}" if judged.get("note") else where
                return judged
        return None


def stops_inside(program: Any) -> bool:
    return any(inside and eqn.primitive.name == "stop_gradient" for eqn, inside in equations(program))


def _solves(program: Any) -> bool:
    """Whether a program solves linear equations by a given way: its derivative is that of the equations, not of the way."""
    return program is not None and any(eqn.name == "custom_linear_solve" for eqn in program.eqns)
