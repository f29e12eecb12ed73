"""What is known of a structure of deferred calls: opened up once, with its compiled programs.

A structure is the key of a block: for each call its plan, then the slots of its operands. Results of the
block are numbered by call (`result_slot`), values from outside count down from -1. Where two blocks have
equal keys, the same program fits both.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tapejax.executables import Executable
from tapejax.plan import Plan

MAX_LAYOUTS = 512
MAX_PROGRAMS = 64  # of one layout
MAX_CHOICES = 4  # programs that differ only in which results they return; after that, one that returns all
PATIENCE_WITH_ONE = 16  # how often one call alone comes before it is compiled with its backward: little is gained by it
_CALLS = 1 << 12  # more than a block holds


def result_slot(call: int, position: int) -> int:
    """The slot of a call's result: just the number of the call for its first one."""
    return call + position * _CALLS


class Step:
    """One call of a structure.

    slots: of its operands; ids: of those that need a gradient; results: of what it makes, extras last;
    kept: of what its backward reads.
    """

    __slots__ = ("ids", "kept", "plan", "results", "slots")

    def __init__(self, index: int, plan: Plan, slots: tuple[int, ...]):
        self.plan, self.slots = plan, slots
        self.results = range(index, index + plan.n_results * _CALLS, _CALLS)
        self.ids = plan.pick_wrt(slots) if plan.records else ()
        self.kept = plan.keep((*slots, *self.results)) if plan.records else ()

    @property
    def outputs(self) -> range:
        """The slots of its results without the extras."""
        return self.results[: self.plan.n_out]

    def forward(self, env: dict[int, Any]) -> None:
        """Run it on an environment (slot -> value)."""
        results = self.plan.forward(*[env[slot] for slot in self.slots])
        env.update(zip(self.results, (results,) if self.plan.single else results, strict=True))


class Programs:
    """Programs that are built when they have been asked for a few times; bounded."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.entries: OrderedDict[Any, Any] = OrderedDict()  # a program, or how often it was asked for

    def get(self, key: Any, build: Callable[[], Any]) -> Any:
        """What was built for the key, or None the first times it is seen.

        No lock: if two threads build at once, one of the two is kept. Nothing is compiled here.
        """
        found = self.entries.get(key, 0)
        if type(found) is int:
            found = self.entries[key] = build() if found >= self.patience else found + 1
            trim(self.entries, MAX_PROGRAMS)
        return None if type(found) is int else found


def trim(table: OrderedDict[Any, Any], size: int) -> None:
    """Let the oldest entries go. Another thread may do the same."""
    while len(table) > size:
        try:
            table.popitem(last=False)
        except KeyError:
            return


class Layout:
    """A structure of calls, opened up, and its compiled programs."""

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.steps = _opened(key)
        self.n_inputs = -min((slot for step in self.steps for slot in step.slots if slot < 0), default=0)
        self.owners = tuple(sorted({slot for step in self.steps for slot in step.ids if slot < 0}, reverse=True))
        self.order = tuple(index for index, step in reversed([*enumerate(self.steps)]) if step.plan.records)
        self.kinds = {
            slot: kind for step in self.steps for slot, kind in zip(step.outputs, step.plan.out_kinds, strict=True)
        }  # by result; extras have none
        self.is_plain = all(step.plan.n_out == 1 for step in self.steps)
        self.reaches: dict[tuple[int, ...], Reach] = {}
        self.courses: dict[Any, Any] = {}  # of `hot.step`
        self.patience = 1 if len(self.steps) > 1 else PATIENCE_WITH_ONE
        self.backwards = Programs(self.patience)
        self.choices: set[tuple[int, ...]] = set()

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

    def run(self, inputs: Sequence[Any], wanted: Iterable[int]) -> dict[int, Any]:
        """The environment after the steps that lead to the wanted slots."""
        env = _environment(inputs)
        for step in self.leading_to(wanted):
            step.forward(env)
        return env

    def run_apart(
        self, inputs: Sequence[Any], wanted: Iterable[int], lines: Callable[[int], str]
    ) -> tuple[dict[int, Any], dict[int, Exception]]:
        """`run`, in which one call that fails does not keep the others from their values: (environment, errors by slot)."""
        env, errors = _environment(inputs), {}
        for step in self.leading_to(wanted):
            failed = next((errors[slot] for slot in step.slots if slot in errors), None)
            if failed is None:
                try:
                    step.forward(env)
                    continue
                except Exception as error:
                    error.add_note(f"  at      {lines(step.results[0])}\n  action  {step.plan!r}, when it ran")
                    failed = error
            errors.update(dict.fromkeys(step.results, failed))
        return env, errors

    def leading_to(self, wanted: Iterable[int]) -> list[Step]:
        """The steps on which these slots depend, in order."""
        wanted = set(wanted)
        needed = []
        for step in reversed(self.steps):
            if not wanted.isdisjoint(step.results):
                wanted.update(step.slots)
                needed.append(step)
        return needed[::-1]

    def reach(self, held: tuple[int, ...]) -> Reach:
        """What leads to these results."""
        found = self.reaches.get(held)
        if found is None:
            if len(self.reaches) >= MAX_PROGRAMS:
                self.reaches.clear()
            found = self.reaches[held] = Reach(self, held)
        return found


def _opened(key: tuple[Any, ...]) -> list[Step]:
    steps, rest = [], iter(key)
    for index, plan in enumerate(rest):
        steps.append(Step(index, plan, tuple([next(rest) for _ in range(plan.n_in)])))
    return steps


def _environment(inputs: Sequence[Any]) -> dict[int, Any]:
    return {~position: value for position, value in enumerate(inputs)}


class Reach:
    """What leads to results that somebody holds.

    order: the recorded calls, the last first; owners: what they read from outside that needs a gradient; alone: whether
    no more than one of the results needs a gradient, so that all of it goes when that one does.
    """

    __slots__ = ("_to_run", "alone", "held", "layout", "order", "owners")

    def __init__(self, layout: Layout, held: tuple[int, ...]) -> None:
        self.layout, self.held = layout, held
        needed, order = set(held), []
        for index in layout.order:
            step = layout.steps[index]
            if any(slot in needed and layout.kinds[slot].requires_grad for slot in step.outputs):
                order.append(index)
                needed.update(step.ids)
        self.order = tuple(order)
        self.owners = frozenset(slot for index in order for slot in layout.steps[index].ids if slot < 0)
        self.alone = sum(layout.kinds[slot].requires_grad for slot in held) <= 1
        self._to_run: dict[tuple[int, ...], Forward] = {}

    def to_run(self, order: tuple[int, ...]) -> Forward:
        """What to run, if these calls are to go back."""
        found = self._to_run.get(order)
        if found is None:
            found = self._to_run[order] = Forward(self.layout, self.held, order)
        return found


class Forward:
    """A structure's forward, for given results that are held and given calls that are to go back.

    kept: the slots of what backward reads; wanted: the results to compute, those that are held and those of `kept`.
    """

    __slots__ = ("kept", "layout", "programs", "wanted")

    def __init__(self, layout: Layout, held: tuple[int, ...], order: tuple[int, ...]) -> None:
        self.layout = layout
        self.kept = tuple(dict.fromkeys(slot for index in order for slot in layout.steps[index].kept))
        wanted = {slot for slot in self.kept if slot >= 0}.union(layout.choose(held))
        self.wanted = tuple(sorted(wanted))
        self.programs = Programs(layout.patience)

    def run(self, inputs: list[Any], setting: Any) -> dict[int, Any]:
        """An environment (slot -> value) with the wanted results in it."""
        if len(self.layout.steps) == 1:
            return self.layout.run(inputs, self.wanted)
        program = self.programs.get(setting, self._program)
        values = self._replayed(inputs) if program is None else program(inputs)
        return dict(zip(self.wanted, values, strict=True))

    def _program(self) -> Executable:
        return Executable(self._replayed, "forward")

    def _replayed(self, inputs: list[Any]) -> list[Any]:
        env = self.layout.run(inputs, self.wanted)
        return [env[slot] for slot in self.wanted]


layouts: OrderedDict[tuple[Any, ...], Layout] = OrderedDict()


def layout_of(key: tuple[Any, ...]) -> Layout:
    found = layouts.get(key)
    if found is None:
        found = layouts.setdefault(key, Layout(key))
        for step in found.steps:
            step.plan.layouts.add(key)
        trim(layouts, MAX_LAYOUTS)
    return found


def forget(plans: Iterable[Plan]) -> None:
    """The function of these plans is gone: so are the structures they are part of."""
    for plan in plans:
        for key in plan.layouts:
            layouts.pop(key, None)
        forget(plan.variants.values())
