"""A structure of deferred calls, opened up once: a `Program` whose equations are calls of plans.

A structure is the key of a block: for each call a tuple of its plan and the slots of its operands. Results of the
block are numbered by call (`result_slot`), values from outside count down from -1. Where two blocks have
equal keys, the same program fits both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tapejax.errors import DeletedError
from tapejax.ground import compat
from tapejax.ground.caches import Table, table
from tapejax.ground.placement import is_gone
from tapejax.plan.plan import Plan
from tapejax.program.program import Program, live, run_eqns
from tapejax.rules.registry import RuleCall

MAX_LAYOUTS = 512
MAX_PROGRAMS = 64  # of one layout
MAX_CHOICES = 4  # programs that differ only in which results they return; after that, one that returns all
_CALLS = 1 << 12  # more than a block holds


def result_slot(call: int, position: int) -> int:
    """The slot of a call's result: just the number of the call for its first one."""
    return call + position * _CALLS


def call_of(slot: int) -> tuple[int, int]:
    """(call, position) of a result's slot."""
    position, call = divmod(slot, _CALLS)
    return call, position


class Call:
    """One call of a structure: an equation of its program, in which a plan stands where a primitive does.

    inputs: the slots of its operands; ids: of those that need a gradient; outputs: of all that it makes;
    results: the outputs without the extras, which are last; kept: the slots of what its backward reads.
    """

    __slots__ = ("ids", "inputs", "kept", "outputs", "plan", "results")
    has_effects = False  # those of a call happen at once: it is never deferred
    context = compat.NO_CONTEXT

    def __init__(self, index: int, plan: Plan, inputs: tuple[int, ...]):
        self.plan, self.inputs = plan, inputs
        self.outputs = range(index, index + plan.n_results * _CALLS, _CALLS)
        self.results = self.outputs[: plan.n_out]
        self.ids = plan.pick_wrt(inputs) if plan.records else ()
        self.kept = plan.keep((*inputs, *self.outputs)) if plan.records else ()

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def line(self) -> str:
        return ""

    @property
    def made_here(self) -> AbstractContextManager[Any]:
        return compat.derived("backward")

    def bind(self, values: Sequence[Any]) -> Sequence[Any]:
        """Run it on values; always a sequence of results."""
        results = self.plan.forward(*values)
        return (results,) if self.plan.single else results

    def step(self) -> tuple[Call, RuleCall, tuple[int, ...], tuple[bool, ...]]:
        """It as a step of a `Reversed`."""
        return self, self.plan.rule, (), self.plan.wrt


class Layout:
    """A structure of calls, opened up: a program, and what else is known of it.

    owners: the slots of what is from outside and needs a gradient; order: the recorded calls, the last first;
    kinds: by slot of a result (extras have none); is_plain: every call makes one result.
    forwards, looks, backwards, for_all, steps: its programs: see fused.py.
    """

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.calls = [Call(index, plan, tuple(slots)) for index, (plan, *slots) in enumerate(key)]
        self.n_inputs = -min((slot for call in self.calls for slot in call.inputs if slot < 0), default=0)
        self.owners = tuple(sorted({slot for call in self.calls for slot in call.ids if slot < 0}, reverse=True))
        self.order = tuple(index for index, call in reversed([*enumerate(self.calls)]) if call.plan.records)
        self.kinds = {
            slot: kind for call in self.calls for slot, kind in zip(call.results, call.plan.out_kinds, strict=True)
        }
        self.avals = {slot: kind.aval for slot, kind in self.kinds.items()}
        for call in self.calls:
            self.avals.update(zip(call.inputs, call.plan.examples, strict=True))
            if call.plan.reversed is not None:
                self.avals.update(zip(call.outputs[len(call.results) :], call.plan.reversed.extra_avals, strict=True))
        self.is_plain = all(call.plan.n_out == 1 for call in self.calls)
        self.choices: set[tuple[int, ...]] = set()
        self.reaches: dict[tuple[int, ...], Reach] = {}
        self.forwards = Table(MAX_PROGRAMS)
        self.looks = Table(MAX_PROGRAMS)
        self.backwards = Table(MAX_PROGRAMS)
        self.for_all = Table(MAX_PROGRAMS)
        self.steps = Table(MAX_PROGRAMS)

    def program(self, outputs: Iterable[int]) -> Program:
        """The program that computes these slots: the calls they depend on, in order."""
        outputs = tuple(outputs)
        return Program(self.avals, range(-1, -1 - self.n_inputs, -1), {}, live(self.calls, outputs), outputs)

    def choose(self, held: tuple[int, ...]) -> tuple[int, ...]:
        """Which results a program returns if these are held: just these, or all when there were many choices.

        So that a structure has few programs, however the results that are held vary.
        """
        if held in self.choices:
            return held
        if len(self.choices) < MAX_CHOICES:
            self.choices.add(held)
            return held
        return tuple(self.kinds)

    def reach(self, held: tuple[int, ...]) -> Reach:
        """What leads to these results."""
        found = self.reaches.get(held)
        if found is None:
            if len(self.reaches) >= MAX_PROGRAMS:
                self.reaches.clear()
            found = self.reaches[held] = Reach(self, held)
        return found


def run_each(
    program: Program, inputs: Sequence[Any], lines: Callable[[int], str]
) -> tuple[dict[int, Any], dict[int, Exception]]:
    """A program's environment, where one call that fails does not keep the others from their values; and errors by slot."""
    env, errors = dict(zip(program.inputs, inputs, strict=True)), {}
    for call in program.eqns:
        failed = next((errors[slot] for slot in call.inputs if slot in errors), None)
        if failed is None:
            try:
                run_eqns([call], env)
                continue
            except Exception as error:
                failed = _told(error, call, env, lines(call.outputs[0]))
        errors.update(dict.fromkeys(call.outputs, failed))
    return env, errors


def _told(error: Exception, call: Call, env: dict[int, Any], line: str) -> Exception:
    """What a call raised when it ran, with its op and line."""
    if any([is_gone(env[slot]) for slot in call.inputs]):
        gone = DeletedError.of(f"an operand of {call.plan.name}", line, call.plan)
        gone.__cause__ = error
        return gone
    error.add_note(f"  at      {line}\n  action  {call.plan!r}, when it ran")
    return error


class Reach:
    """What leads to results that somebody holds.

    order: the recorded calls, the last first; owners: what they read from outside that needs a gradient; alone: whether
    no more than one of the results needs a gradient, so that all of it goes when that one does.
    """

    __slots__ = ("alone", "order", "owners")

    def __init__(self, layout: Layout, held: tuple[int, ...]) -> None:
        needed, order = set(held), []
        for index in layout.order:
            call = layout.calls[index]
            if any(slot in needed and layout.kinds[slot].requires_grad for slot in call.results):
                order.append(index)
                needed.update(call.ids)
        self.order = tuple(order)
        self.owners = frozenset(slot for index in order for slot in layout.calls[index].ids if slot < 0)
        self.alone = sum(layout.kinds[slot].requires_grad for slot in held) <= 1


layouts = table("structures", MAX_LAYOUTS)


def layout_of(key: tuple[Any, ...]) -> Layout:
    found = layouts.get(key)
    if found is None:
        found = layouts.keep(key, Layout(key))
        for call in found.calls:
            call.plan.layouts.add(key)
    return found


def forget(plans: Iterable[Plan]) -> None:
    """The function of these plans is gone: so are the structures they are part of."""
    for plan in plans:
        for key in plan.layouts:
            layouts.pop(key, None)
        forget(plan.variants.values())
