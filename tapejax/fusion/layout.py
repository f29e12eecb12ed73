"""What is known of a structure of deferred calls: opened up once, with its programs.

A structure is the key of a block: for each call a tuple of its plan and the slots of its operands. Results of the
block are numbered by call (`result_slot`), values from outside count down from -1. Where two blocks have
equal keys, the same program fits both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tapejax.errors import DeletedError
from tapejax.ground.caches import Table, table
from tapejax.ground.placement import is_gone
from tapejax.plan.plan import Plan

MAX_LAYOUTS = 512
MAX_PROGRAMS = 64  # of one layout
MAX_CHOICES = 4  # programs that differ only in which results they return; after that, one that returns all
_CALLS = 1 << 12  # more than a block holds


def result_slot(call: int, position: int) -> int:
    """The slot of a call's result: just the number of the call for its first one."""
    return call + position * _CALLS


class Call:
    """One call of a structure.

    slots: of its operands; ids: of those that need a gradient; results: of what it makes, extras last;
    outputs: the results without the extras; kept: of what its backward reads.
    """

    __slots__ = ("ids", "kept", "outputs", "plan", "results", "slots")

    def __init__(self, index: int, plan: Plan, slots: tuple[int, ...]):
        self.plan, self.slots = plan, slots
        self.results = range(index, index + plan.n_results * _CALLS, _CALLS)
        self.outputs = self.results[: plan.n_out]
        self.ids = plan.pick_wrt(slots) if plan.records else ()
        self.kept = plan.keep((*slots, *self.results)) if plan.records else ()

    def forward(self, env: dict[int, Any]) -> None:
        """Run it on an environment (slot -> value)."""
        results = self.plan.forward(*[env[slot] for slot in self.slots])
        env.update(zip(self.results, (results,) if self.plan.single else results, strict=True))


class Layout:
    """A structure of calls, opened up.

    owners: the slots of what is from outside and needs a gradient; order: the recorded calls, the last first;
    kinds: by slot of a result (extras have none); is_plain: every call makes one result.
    forwards, backwards, steps: its programs: see fused.py.
    """

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.calls = [Call(index, plan, tuple(slots)) for index, (plan, *slots) in enumerate(key)]
        self.n_inputs = -min((slot for call in self.calls for slot in call.slots if slot < 0), default=0)
        self.owners = tuple(sorted({slot for call in self.calls for slot in call.ids if slot < 0}, reverse=True))
        self.order = tuple(index for index, call in reversed([*enumerate(self.calls)]) if call.plan.records)
        self.kinds = {
            slot: kind for call in self.calls for slot, kind in zip(call.outputs, call.plan.out_kinds, strict=True)
        }
        self.is_plain = all(call.plan.n_out == 1 for call in self.calls)
        self.choices: set[tuple[int, ...]] = set()
        self.reaches: dict[tuple[int, ...], Reach] = {}
        self.forwards = Table(MAX_PROGRAMS)
        self.backwards = Table(MAX_PROGRAMS)
        self.steps = Table(MAX_PROGRAMS)

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

    def leading_to(self, wanted: Iterable[int]) -> list[Call]:
        """The calls on which these slots depend, in order."""
        wanted = set(wanted)
        needed = []
        for call in reversed(self.calls):
            if not wanted.isdisjoint(call.results):
                wanted.update(call.slots)
                needed.append(call)
        return needed[::-1]

    def reach(self, held: tuple[int, ...]) -> Reach:
        """What leads to these results."""
        found = self.reaches.get(held)
        if found is None:
            if len(self.reaches) >= MAX_PROGRAMS:
                self.reaches.clear()
            found = self.reaches[held] = Reach(self, held)
        return found


def run_all(calls: Sequence[Call], inputs: Sequence[Any]) -> dict[int, Any]:
    """The environment (slot -> value) after these calls."""
    env = {~position: value for position, value in enumerate(inputs)}
    for call in calls:
        call.forward(env)
    return env


def run_each(
    calls: Sequence[Call], inputs: Sequence[Any], lines: Callable[[int], str]
) -> tuple[dict[int, Any], dict[int, Exception]]:
    """`run_all`, in which one call that fails does not keep the others from their values: (environment, errors by slot)."""
    env, errors = run_all((), inputs), {}
    for call in calls:
        failed = next((errors[slot] for slot in call.slots if slot in errors), None)
        if failed is None:
            try:
                call.forward(env)
                continue
            except Exception as error:
                failed = _told(error, call, env, lines(call.results[0]))
        errors.update(dict.fromkeys(call.results, failed))
    return env, errors


def _told(error: Exception, call: Call, env: dict[int, Any], line: str) -> Exception:
    """What a call raised when it ran, with its op and line."""
    if any([is_gone(env[slot]) for slot in call.slots]):
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
            if any(slot in needed and layout.kinds[slot].requires_grad for slot in call.outputs):
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
