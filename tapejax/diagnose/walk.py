"""From a bad number back to where it was born.

Forward: from an element of a value to the elements of operands that made it bad, until an equation has none:
it was born there. Backward: from an element of a cotangent to what arrived, until nothing bad arrives.
Only what reaches the bad element is followed, so a NaN that a mask removes is never met.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tapejax.diagnose import elements, opened
from tapejax.diagnose.births import BACKWARD, FORWARD, Arrived, Birth, Hop, Inside
from tapejax.diagnose.elements import INF, NAN, Index, found_in, is_inexact, kind_of
from tapejax.diagnose.places import NOWHERE, place_of
from tapejax.diagnose.runs import Run, compiled, saved_slots, step_back
from tapejax.program.program import Eqn
from tapejax.rules import lookup


class Walker:
    """Follows numbers of one kind."""

    LIMIT = 100_000

    def __init__(self, kind: str, path: list[Hop] | None = None):
        self.kind = kind
        self.path: list[Hop] = [] if path is None else path
        self.hops = 0

    def hop(self, eqn: Eqn, inside: Inside, index: Index, direction: str, value: Any) -> None:
        self.hops += 1
        place = lambda: place_of((*eqn.sources, *inside.sources))
        self.path.append(Hop(eqn.name, place(), inside.steps, index, direction, self.kind, value))

    # -- forward -------------------------------------------------------------------------------------------

    def forward(self, run: Run, slot: int, index: Index, inside: Inside) -> Birth | Arrived:
        program = run.probe.program
        inputs = {slot: at for at, slot in reversed(list(enumerate(program.inputs)))}
        direction = BACKWARD if inside.backward else FORWARD
        last: Eqn | None = None  # the last that does more than to move its operand
        there = index
        while True:
            if slot in inputs:
                return Arrived(inputs[slot], index, last)
            if slot in program.constants:
                made = self.born(run, last, slot, index, inside, "constant", direction)
                made.index = there
                return made
            eqn = run.probe.producer[slot]
            out = eqn.outputs.index(slot)
            found = self.operand_of(run, eqn, out, index, inside)
            if isinstance(found, Birth):
                return found
            if found is None:
                return self.born(run, eqn, slot, index, inside, self._forward_cause(run, eqn, out, index), direction)
            self.hop(eqn, inside, index, direction, _at(run.value(slot), index))
            if eqn.name not in elements.MOVING or last is None:
                last, there = eqn, index
            at, index = found
            slot = eqn.inputs[at]

    def operand_of(self, run: Run, eqn: Eqn, out: int, index: Index, inside: Inside) -> Any:
        """The bad element of an operand that made this one so: (operand, index). None: it was born here."""
        opener = opened.FORWARDS.get(eqn.name)
        if opener is not None:
            found = opener(self, run, eqn, out, index, inside)
            if found is not None:
                return found
        shapes = [run.env[slot].shape if hasattr(run.env[slot], "shape") else () for slot in eqn.inputs]
        result = run.value(eqn.outputs[out])
        allowed = range(len(eqn.inputs))
        if eqn.name == "select_n":
            which = run.value(eqn.inputs[0])
            allowed = [1 + int(which[index] if which.ndim else which)]
        for at in allowed:
            value = run.value(eqn.inputs[at])
            if not is_inexact(value):
                continue
            region = elements.reads(eqn.name, eqn.params, shapes, result.shape, index, at, out)
            if region is None:
                return elements.responsible(lambda v: eqn.bind(v)[out], run.operands(eqn), index, self.kind)
            found = found_in(value, region, self.kind, result[index])
            if found is not None:
                return at, found
        return None

    def _forward_cause(self, run: Run, eqn: Eqn, out: int, index: Index) -> str:
        if self.kind == NAN and Walker(INF).operand_of(run, eqn, out, index, Inside()) is not None:
            return "infinities"
        if self.kind == NAN and self._met_infinity(run, eqn, out, index):
            return "infinities"
        return "value"

    def _met_infinity(self, run: Run, eqn: Eqn, out: int, index: Index) -> bool:
        """Whether an infinity is among the elements of operands that meet in this one."""
        shapes = [np.shape(run.value(slot)) for slot in eqn.inputs]
        for at, slot in enumerate(eqn.inputs):
            value = run.value(slot)
            if is_inexact(value):
                shape = run.value(eqn.outputs[out]).shape
                region = elements.reads(eqn.name, eqn.params, shapes, shape, index, at, out)
                inside = value if region is None else value[region]
                if elements.mask(inside, INF).any():
                    return True
        return False

    def born(
        self, run: Run, eqn: Eqn | None, slot: int, index: Index, inside: Inside, cause: str, direction: str
    ) -> Birth:
        value = run.value(slot)
        place = NOWHERE if eqn is None else place_of((*eqn.sources, *inside.sources))
        op = cause if eqn is None else eqn.name
        made = Birth(op, place, inside.steps, index, direction, cause, self.kind, _at(value, index), str(value.dtype))
        made.eqn, made.run, made.function = eqn, run, inside.function
        if eqn is not None:
            made.operands = [run.value(operand) for operand in eqn.inputs]
        if cause == "infinities" and eqn is not None:
            made.origin = self._origin_of_infinity(run, eqn, index, inside)
        return made

    def _origin_of_infinity(self, run: Run, eqn: Eqn, index: Index, inside: Inside) -> Birth | None:
        shapes = [np.shape(run.value(slot)) for slot in eqn.inputs]
        for at, slot in enumerate(eqn.inputs):
            value = run.value(slot)
            if not is_inexact(value):
                continue
            region = elements.reads(eqn.name, eqn.params, shapes, run.value(eqn.outputs[0]).shape, index, at)
            found = found_in(value, ... if region is None else region, INF)
            if found is not None:
                return self.origin(run, slot, found, inside, INF)
        return None

    def origin(self, run: Run, slot: int, index: Index, inside: Inside, kind: str) -> Birth | None:
        found = Walker(kind).forward(run, slot, index, inside)
        return found if isinstance(found, Birth) else None

    # -- backward ------------------------------------------------------------------------------------------

    def backward(self, run: Run, slot: int, index: Index, inside: Inside) -> Birth | Arrived:
        probe = run.probe
        while True:
            for at, (out, seed) in enumerate(zip(probe.program.outputs, run.seeds, strict=True)):
                if out == slot and seed is not None and kind_of(elements.to_numpy(seed)[index]) == self.kind:
                    return Arrived(at, index)
            term = self._bad_term(run, slot, index)
            if term is None:
                return self.born_in_sum(run, slot, index, inside)
            number, at = term
            eqn = probe.back.steps[number][0]
            found = self.ct_of(run, number, at, index, inside)
            if isinstance(found, Birth):
                return found
            if found is None:
                return self.born_back(run, number, at, index, inside)
            self.hop(eqn, inside, index, BACKWARD, _at(run.ct(slot), index))
            out, index = found
            slot = eqn.outputs[out]

    def _bad_term(self, run: Run, slot: int, index: Index) -> tuple[int, int] | None:
        for number, at in run.probe.terms.get(slot, ()):
            sent = run.sent[number]
            if sent is None or sent[at] is None:
                continue
            if kind_of(elements.to_numpy(sent[at])[index]) == self.kind:
                return number, at
        return None

    def ct_of(self, run: Run, number: int, at: int, index: Index, inside: Inside) -> Any:
        """The bad element of an arriving cotangent that made this one so: (result, index). None: born here."""
        eqn = run.probe.back.steps[number][0]
        opener = opened.BACKWARDS.get(eqn.name)
        if opener is not None:
            found = opener(self, run, number, at, index, inside)
            if found is not None:
                return found
        shapes = [tuple(run.env[slot].shape) for slot in eqn.inputs]
        for out, slot in enumerate(eqn.outputs):
            ct = run.ct(slot)
            if ct is None:
                continue
            region = elements.feeds(eqn.name, eqn.params, shapes, ct.shape, index, at, out)
            if region is None or (len(eqn.outputs) > 1 and eqn.name != "split"):
                rule = self._rule(run, number, at)
                return elements.responsible(rule, run.results_cts(eqn), index, self.kind)
            found = found_in(ct, region, self.kind)
            if found is not None:
                return out, found
        return None

    def born_back(self, run: Run, number: int, at: int, index: Index, inside: Inside) -> Birth:
        back = run.probe.back
        eqn = back.steps[number][0]
        value = elements.to_numpy(run.sent[number][at])
        place = place_of((*eqn.sources, *inside.sources))
        made = Birth(
            eqn.name, place, inside.steps, index, BACKWARD, "derivative", self.kind, _at(value, index), str(value.dtype)
        )
        made.eqn, made.run, made.function, made.at, made.number = eqn, run, inside.function, at, number
        shapes = [tuple(run.env[s].shape) for s in eqn.inputs]
        ct = run.ct(eqn.outputs[0])
        region = None if ct is None else elements.feeds(eqn.name, eqn.params, shapes, ct.shape, index, at)
        arriving = None if ct is None else np.asarray(ct if region is None else ct[region])
        made.arrives = _shown(arriving)
        bad_kept = None
        for kept in dict.fromkeys(saved_slots(back, number)):
            kept_value = run.value(kept)
            if not is_inexact(kept_value):
                continue
            here = self._kept_region(eqn, kept, kept_value, index, at, shapes, region)
            near = kept_value if here is None else kept_value[here]
            made.kept.append((self._operand_name(eqn, kept), _shown(np.asarray(near)), kept))
            kind = kind_of(near)
            if kind is not None and bad_kept is None:
                bad_kept = kept, found_in(kept_value, ... if here is None else here, kind), kind
        made.slope = self._slope(run, number, at, index, region)
        if bad_kept is not None:
            made.cause = "kept"
            kept, place_in, kind = bad_kept
            if place_in is not None:
                made.origin = self.origin(run, kept, place_in, inside, kind)
        elif self.kind == NAN and arriving is not None and elements.mask(arriving, INF).any():
            made.cause = "cotangent"
            where = found_in(ct, ... if region is None else region, INF)
            if where is not None:
                found = Walker(INF).backward(run, eqn.outputs[0], where, inside)
                made.origin = found if isinstance(found, Birth) else None
        return made

    def _kept_region(self, eqn, kept, value, index, at, shapes, region) -> Any:
        if kept in eqn.outputs and region is not None:
            return region
        if kept in eqn.inputs and eqn.name in elements.ELEMENTWISE and region is not None:
            if value.ndim == 0:
                return ()
            return region
        return None

    def _operand_name(self, eqn: Eqn, slot: int) -> str:
        if slot in eqn.outputs:
            return "out"
        names = getattr(lookup(eqn.primitive), "operand_names", [])
        if slot in eqn.inputs and eqn.inputs.index(slot) < len(names):
            return names[eqn.inputs.index(slot)]
        return "x" if slot in eqn.inputs else "kept"

    def _slope(self, run: Run, number: int, at: int, index: Index, region: Any) -> Any:
        """The local derivative at an element: what the rule makes of a cotangent of one."""
        eqn = run.probe.back.steps[number][0]
        if eqn.name not in elements.ELEMENTWISE or region is None or any(isinstance(i, slice) for i in region):
            return None
        ones = [None if ct is None else np.ones(ct.shape, ct.dtype) for ct in run.results_cts(eqn)]
        return _at(elements.to_numpy(self._rule(run, number, at)(ones)), index)

    def _rule(self, run: Run, number: int, at: int) -> Callable[[list[Any]], Any]:
        """What a step makes of cotangents for one of its operands, compiled."""
        back = run.probe.back
        kept = {slot: run.env[slot] for slot in saved_slots(back, number)}
        make = lambda: compiled(lambda kept, cts: step_back(back, number, kept, cts)[at])
        rule = opened.within(run, ("rule", number, at), make)
        return lambda cts: rule(kept, cts)

    def born_in_sum(self, run: Run, slot: int, index: Index, inside: Inside) -> Birth:
        """The cotangents of several readers, added up, made it."""
        readers = [run.probe.back.steps[number][0] for number, _ in run.probe.terms.get(slot, ())]
        eqn = run.probe.producer.get(slot) or (readers[0] if readers else None)
        value = run.ct(slot)
        place = NOWHERE if eqn is None else place_of((*eqn.sources, *inside.sources))
        made = Birth(
            "add_any", place, inside.steps, index, BACKWARD, "cotangent", self.kind, _at(value, index), str(value.dtype)
        )
        made.eqn, made.run, made.function = eqn, run, inside.function
        sent = [run.sent[number][at] for number, at in run.probe.terms.get(slot, ()) if run.sent[number] is not None]
        made.operands = [elements.to_numpy(ct) for ct in sent if ct is not None]
        return made


def _at(value: Any, index: Index) -> Any:
    return value[index] if value is not None else None


def _shown(values: np.ndarray | None) -> Any:
    """One number of several: a bad one if there is any."""
    if values is None or values.size == 0:
        return None
    flat = values.reshape(-1)
    for kind in (NAN, INF):
        bad = elements.mask(flat, kind)
        if bad.any():
            return flat[int(np.argmax(bad))]
    return flat[0]
