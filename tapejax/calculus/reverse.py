"""The reverse transform: a program becomes a forward that says what to keep, and a backward.

    program --rules--> forward(inputs) -> outputs, extras      backward(kept, cts) -> input cts

What is kept is decided here, once per program. A value that a rule reads is
1. a reference, if it is an input, an output or a constant of the program;
2. computed again in the backward, if cheap steps lead to it from values that are there anyway;
3. an extra result of the forward otherwise.
Under one `jax.jit` XLA merges what is computed twice, so 2 costs nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from tapejax import rules
from tapejax.errors import RefusedPrimitive, RuleSignatureError
from tapejax.ground import compat
from tapejax.ground.accumulation import accumulate
from tapejax.ground.caches import cached
from tapejax.program.program import Eqn, Program, flatten
from tapejax.program.tracing import trace
from tapejax.rules.registry import RuleCall


@dataclass(frozen=True, slots=True)
class Options:
    """How a program is differentiated; part of a plan's key."""

    ignore_custom_rules: bool = False
    foreign: str = "jax"  # or "error": refuse primitives that only their own jax rule can differentiate
    linear: bool = False  # the program is linear in what it is differentiated by: a custom_jvp there has no say


class Tools:
    """What the transform lends to structural rules, so that they need not import it.

    wanted: for each result of the equation at hand, whether a cotangent may arrive for it; () if
    for all.
    """

    __slots__ = ("options", "wanted")

    def __init__(self, options: Options, wanted: Sequence[bool] = ()):
        self.options = options
        self.wanted = tuple(wanted)

    def for_linear(self) -> Tools:
        """The same for a program that is linear in what it is differentiated by."""
        return Tools(replace(self.options, linear=True), self.wanted)

    def flatten(self, jaxpr: Any) -> Program:
        return flatten(jaxpr, ignore_custom_rules=self.options.ignore_custom_rules)

    def trace(self, function: Callable[..., Any], avals: Sequence[Any]) -> Program:
        return trace(function, avals, ignore_custom_rules=self.options.ignore_custom_rules)[0]

    def reverse(self, program: Program, wrt: Sequence[bool], **how: Any) -> Reversed:
        return reverse(program, wrt, self.options, **how)

    def active(self, program: Program, wrt: Sequence[bool]) -> tuple[bool, ...]:
        """For each output, whether a derivative with respect to `wrt` flows to it."""
        found, _ = _flow(program, wrt, self)
        return tuple(slot in found for slot in program.outputs)

    def reached(self, program: Program, wrt: Sequence[bool], wanted: Sequence[bool]) -> tuple[bool, ...]:
        """For each input, whether cotangents of the wanted outputs flow back to it."""
        active, entries = _flow(program, wrt, self)
        _, slots = _reached(program, active, entries, wanted)
        return tuple(slot in slots for slot in program.inputs)


class Reversed:
    """A program with its derivative: see the module's first lines.

    saves_in, saves_out: positions of the inputs and outputs whose values the backward reads.
    extras: slots that the forward returns besides its outputs.
    depends: for each output, whether a derivative with respect to `wrt` is defined for it.
    foreign: names of primitives differentiated by their own jax rule, not by ours.
    kept_slots: the slots of what `backward` is given, in its order.
    augmented: by the identity of their equations, the steps with a forward of their own, and their extra slots.
    """

    __slots__ = (
        "augmented",
        "avals",
        "depends",
        "extras",
        "foreign",
        "kept_slots",
        "program",
        "recompute",
        "saves_in",
        "saves_out",
        "steps",
        "wrt",
    )  # fmt: skip

    program: Program
    wrt: tuple[bool, ...]
    steps: list[tuple[Any, RuleCall, tuple[int, ...], tuple[bool, ...]]]
    recompute: list[Eqn]
    saves_in: tuple[int, ...]
    saves_out: tuple[int, ...]
    extras: tuple[int, ...]
    avals: Any
    depends: tuple[bool, ...]
    foreign: tuple[str, ...]
    kept_slots: list[int]
    augmented: dict[int, tuple[RuleCall, tuple[int, ...]]]

    @classmethod
    def of(cls, program: Program, steps: list[Any]) -> Reversed:
        """What goes back through these steps of a program, in which all that they read is there already."""
        made = cls()
        made.program, made.steps, made.avals = program, steps, program.avals
        return made

    @property
    def extra_avals(self) -> tuple[Any, ...]:
        return tuple(self.avals[slot] for slot in self.extras)

    def forward(self, *args: Any) -> tuple[list[Any], list[Any]]:
        """(outputs, extras)"""
        program = self.program
        env = dict(program.constants)
        env.update(zip(program.inputs, args, strict=True))
        self.run(program.eqns, env)
        return [env[slot] for slot in program.outputs], [env[slot] for slot in self.extras]

    def run(self, eqns: Iterable[Eqn], env: dict[int, Any]) -> None:
        """Run equations of the program in `env`, each also giving what its own backward wants kept.

        What `env` has already stays. The backward uses this too, to run something again: the value of
        a function with a custom rule is then what the rule makes it, as in the forward.
        """
        for eqn in eqns:
            operands = [env[slot] for slot in eqn.inputs]
            slots, own = eqn.outputs, self.augmented.get(id(eqn))
            if own is None:
                values = eqn.bind(operands)
            else:
                step, extra_slots = own
                assert step.forward is not None
                results, extras = step.forward(operands)
                slots, values = (*slots, *extra_slots), [*results, *extras]
            for slot, value in zip(slots, values, strict=True):
                env.setdefault(slot, value)

    def leading_to(self, targets: Iterable[int], have: Iterable[int] = (), *, effects: bool = False) -> list[Eqn]:
        """The equations that compute the target slots (extras of steps too) from inputs and `have`.

        effects: also those with effects.
        """
        extra_slots = {id(eqn): extra for eqn, _, extra, _ in self.steps}
        have = set(have)
        wanted = set(targets) - have
        chosen = []
        for eqn in reversed(self.program.eqns):
            results = {*eqn.outputs, *extra_slots.get(id(eqn), ())}
            if not wanted.isdisjoint(results) or (effects and eqn.has_effects):
                wanted.update(slot for slot in eqn.inputs if slot not in have)
                chosen.append(eqn)
        chosen.reverse()
        return chosen

    def backward(self, kept: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        """One cotangent per input (None where there is none), from those of the outputs.

        kept: the inputs of `saves_in`, the outputs of `saves_out`, the extras, in this order.
        """
        env = dict(self.program.constants)
        env.update(zip(self.kept_slots, kept, strict=True))
        self.run(self.recompute, env)
        return self.pull(env, cts)

    def pull(self, env: dict[int, Any], cts: Sequence[Any]) -> list[Any]:
        """`backward`, where `env` already has every value that the steps read."""
        program = self.program
        sums: dict[int, Any] = {}
        for slot, ct in zip(program.outputs, cts, strict=True):
            if ct is not None and is_inexact(self.avals[slot]):
                accumulate(sums, slot, ct)
        self.go_back(env, sums)
        return [sums.get(slot) if wanted else None for slot, wanted in zip(program.inputs, self.wrt, strict=True)]

    def go_back(self, env: dict[int, Any], sums: dict[int, Any], stay: Container[int] = ()) -> None:
        """Through the steps, the last first: what arrives at a result goes on to the operands, and is added up in `sums`.

        stay: the slots whose sums stay there when they have gone on.
        """
        avals = self.avals
        for eqn, step, extra_slots, active in reversed(self.steps):
            out_cts = [sums.get(slot) if slot in stay else sums.pop(slot, None) for slot in eqn.outputs]
            if all([ct is None for ct in out_cts]):
                continue
            saved = [env[eqn.inputs[i]] for i in step.saves_in]
            saved += [env[eqn.outputs[i]] for i in step.saves_out]
            saved += [env[slot] for slot in extra_slots]
            with eqn.made_here, eqn.context:
                in_cts = step.backward(saved, out_cts)
                if len(in_cts) != len(eqn.inputs):
                    raise RuleSignatureError(
                        f"the rule for `{eqn.name}` returned {len(in_cts)} cotangents for {len(eqn.inputs)} operands",
                        at=eqn.line,
                        action=eqn,
                        fix="return one cotangent per operand, None for none",
                    )
                arrived = [
                    (slot, fit(ct, avals[slot], eqn))
                    for slot, ct, is_active in zip(eqn.inputs, in_cts, active, strict=True)
                    if is_active and ct is not None
                ]
            for slot, ct in arrived:
                accumulate(sums, slot, ct)


@cached(64)
def _inexact(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def is_inexact(aval: Any) -> bool:
    return _inexact(aval.dtype)


def fit(ct: Any, aval: Any, eqn: Eqn) -> Any:
    """The cotangent in its operand's own shape: broadcasting is undone here, and only here."""
    if ct.shape != aval.shape:
        ct = unbroadcast(ct, aval, eqn)
    if ct.dtype != aval.dtype:
        raise RuleSignatureError(
            f"the rule for `{eqn.name}` gave a {ct.dtype} cotangent to a {aval.dtype} operand",
            at=eqn.line,
            action=eqn,
            fix="convert it with lax.convert_element_type in the rule",
        )
    return compat.reshard_like(ct, aval)


def unbroadcast(ct: Any, aval: Any, eqn: Eqn) -> Any:
    """Sum ct over the axes along which an operand of this aval was stretched."""
    shape = ct.shape
    lead = len(shape) - len(aval.shape)
    stretched = [d for d in range(len(shape)) if d < lead or (aval.shape[d - lead] == 1 != shape[d])]
    kept = [shape[d] for d in range(len(shape)) if d not in stretched]
    if lead < 0 or kept != [n for d, n in enumerate(aval.shape) if d + lead not in stretched]:
        raise RuleSignatureError(
            f"the rule for `{eqn.name}` gave a cotangent of shape {shape} to an operand of shape {aval.shape}",
            at=eqn.line,
            action=eqn,
            fix="a cotangent has the shape of its operand, or of the output if the operand was broadcast",
        )
    return lax.reshape(lax.reduce_sum(ct, tuple(stretched)), aval.shape)


def reverse(
    program: Program,
    wrt: Sequence[bool],
    options: Options = Options(),
    *,
    wanted: Sequence[bool] | None = None,
    references: Iterable[int] | None = None,
) -> Reversed:
    """Differentiate a program with respect to the inputs marked in `wrt`.

    wanted: for each output, whether a cotangent may arrive for it (default: for all).
    references: the slots whose values the backward gets for nothing (default: inputs and outputs).
    """
    result = Reversed()
    result.program = program
    result.wrt = tuple(bool(w) and is_inexact(aval) for w, aval in zip(wrt, program.in_avals, strict=True))
    result.avals = list(program.avals)
    result.steps = _steps(program, result, options, [True] * len(program.outputs) if wanted is None else wanted)
    result.augmented = {id(eqn): (step, extra) for eqn, step, extra, _ in result.steps if step.forward is not None}
    _decide_what_to_keep(result, {*program.inputs, *program.outputs} if references is None else set(references))
    return result


def _flow(program: Program, wrt: Sequence[bool], tools: Tools) -> tuple[set[int], list[tuple[Eqn, Any]]]:
    """The slots that a derivative flows to, and the equations it goes through, each with its entry."""
    avals = program.avals
    active = {slot for slot, wanted in zip(program.inputs, wrt, strict=True) if wanted and is_inexact(avals[slot])}
    entries: list[tuple[Eqn, Any]] = []
    for eqn in program.eqns:
        if active.isdisjoint(eqn.inputs):
            continue
        entry = rules.lookup(eqn.primitive)
        if entry is not None and entry.kind == "constant":
            continue
        flags = [is_inexact(avals[slot]) for slot in eqn.outputs]
        if getattr(entry, "flow", None) is not None:
            through = entry.flow(eqn, tuple(slot in active for slot in eqn.inputs), tools)
            flags = [flag and there for flag, there in zip(flags, through, strict=True)]
        if any(flags):
            active.update(slot for slot, flag in zip(eqn.outputs, flags, strict=True) if flag)
            entries.append((eqn, entry))
    return active, entries


def _reached(program: Program, active, entries, wanted: Sequence[bool]) -> tuple[list[tuple[Eqn, Any]], set[int]]:
    """Of the equations a derivative flows through, those that lead to wanted outputs; and their slots."""
    slots = {slot for slot, flag in zip(program.outputs, wanted, strict=True) if flag and slot in active}
    reached = []
    for eqn, entry in reversed(entries):
        if not slots.isdisjoint(eqn.outputs):
            slots.update(slot for slot in eqn.inputs if slot in active)
            reached.append((eqn, entry))
    reached.reverse()
    return reached, slots


def _depends(program: Program, wrt: Sequence[bool]) -> tuple[bool, ...]:
    """For each output, whether a derivative is defined for it, be it zero everywhere."""
    avals = program.avals
    depends = {slot for slot, wanted in zip(program.inputs, wrt, strict=True) if wanted}
    is_empty = lambda slot: avals[slot].size == 0 and is_inexact(avals[slot])
    if depends:  # jax makes an empty array without a look at what its elements would be taken from
        depends.update(filter(is_empty, program.constants))
    for eqn in program.eqns:
        if depends.isdisjoint(eqn.inputs):
            if depends:
                depends.update(filter(is_empty, eqn.outputs))
            continue
        entry = rules.lookup(eqn.primitive)
        if not (entry is not None and entry.kind == "constant" and entry.stops):
            depends.update(slot for slot in eqn.outputs if is_inexact(avals[slot]))
    return tuple(slot in depends for slot in program.outputs)


def _steps(program: Program, result: Reversed, options: Options, wanted: Sequence[bool]):
    """The equations a cotangent goes through, in order, each with its rule made ready."""
    avals = result.avals
    active, entries = _flow(program, result.wrt, Tools(options))
    reached, slots = _reached(program, active, entries, wanted)
    result.depends = _depends(program, result.wrt)

    steps = []
    foreign = []
    for eqn, entry in reached:
        if entry is None:
            entry = rules.foreign_rule(eqn, options.foreign)
        if entry.kind == "refused":
            raise RefusedPrimitive(
                f"`{eqn.name}` cannot be differentiated in reverse: {entry.reason}",
                at=eqn.line,
                action=eqn,
                fix=entry.fix,
            )
        if entry.foreign:
            foreign.append(eqn.name)
        in_avals = [avals[slot] for slot in eqn.inputs]
        out_avals = [avals[slot] for slot in eqn.outputs]
        active_in = tuple(slot in active for slot in eqn.inputs)
        step = entry.specialise(eqn, in_avals, out_avals, active_in, Tools(options, [s in slots for s in eqn.outputs]))
        foreign.extend(step.foreign)
        extra_slots = tuple(range(len(avals), len(avals) + len(step.extra_avals)))
        avals.extend(step.extra_avals)
        steps.append((eqn, step, extra_slots, active_in))
    result.foreign = tuple(foreign)
    return steps


def is_cheap(eqn: Eqn) -> bool:
    """Whether an equation may be run again in the backward."""
    entry = rules.lookup(eqn.primitive)
    if entry is None or eqn.has_effects:
        return False
    return entry.cheap(eqn, is_cheap) if callable(entry.cheap) else entry.cheap


def _decide_what_to_keep(result: Reversed, references: set[int]) -> None:
    program = result.program
    needed: set[int] = set()
    extras: list[int] = []
    for eqn, step, extra_slots, _ in result.steps:
        needed.update(eqn.inputs[i] for i in step.saves_in)
        needed.update(eqn.outputs[i] for i in step.saves_out)
        extras.extend(extra_slots)

    # Slots the backward can have: references first, then what cheap steps make of them.
    references = references | set(program.constants)
    at_hand = set(references)
    again: list[Eqn] = []
    for slot in program.inputs:
        if slot in needed and slot not in at_hand:
            extras.append(slot)
            at_hand.add(slot)
    for eqn in program.eqns:
        if at_hand.issuperset(eqn.inputs) and is_cheap(eqn):
            at_hand.update(eqn.outputs)
            again.append(eqn)
            continue
        for slot in eqn.outputs:
            if slot in needed and slot not in at_hand:
                extras.append(slot)
                at_hand.add(slot)

    wanted = set(needed)
    recompute = []
    references.update(extras)
    for eqn in reversed(again):
        if wanted.intersection(eqn.outputs) - references:
            wanted.update(eqn.inputs)
            recompute.append(eqn)
    recompute.reverse()
    result.recompute = recompute
    result.extras = tuple(extras)
    wanted &= references - set(extras) - set(program.constants)
    inputs = {slot: i for i, slot in reversed(list(enumerate(program.inputs)))}
    outputs = {slot: i for i, slot in reversed(list(enumerate(program.outputs)))}
    result.saves_in = tuple(sorted(inputs[slot] for slot in wanted if slot in inputs))
    result.saves_out = tuple(sorted(outputs[slot] for slot in wanted if slot in outputs and slot not in inputs))
    kept = [program.inputs[i] for i in result.saves_in] + [program.outputs[i] for i in result.saves_out]
    result.kept_slots = [*kept, *extras]
