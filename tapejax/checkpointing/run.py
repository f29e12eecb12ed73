"""A run of a checkpointed function: the tape it has to itself, and the trail that it leaves.

Both runs of a function execute the same compiled pieces in the same order: ops run one by one, by
the same plans. That is why their values can be compared bit for bit. The first run keeps none of
what the plans keep for a backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tapejax.checkpointing.digest import digest_of
from tapejax.checkpointing.saved import STEADY
from tapejax.ground.where import line_of
from tapejax.plan.plan import OpAction, Plan
from tapejax.plan.stepwise import Place
from tapejax.tape.action import TapeAction, TensorId, next_number
from tapejax.tape.scope import Scope, current_scope, restore, set_scope
from tapejax.tape.tape import Tape


class Trail:
    """What a run did, in order: each op's plan, and on request where it was called and a digest of its results.

    reads: the recorded tensors from outside of the run (those numbered before `start`).
    outer: the trail of a run around this one, which is told the same.
    """

    __slots__ = ("detailed", "digests", "ops", "outer", "places", "reads", "start")

    def __init__(self, *, detailed: bool = False, places: bool = False, outer: Trail | None = None):
        self.start = next_number()
        self.ops: list[Any] = []
        self.places: list[Any] | None = [] if places or detailed else None
        self.digests: list[tuple[Any, ...]] | None = [] if detailed else None
        self.detailed = detailed
        self.reads: dict[int, TensorId] = {}
        self.outer = outer

    def note(self, op: Any, tensors: Iterable[Any], results: Iterable[Any], where: Any) -> None:
        if isinstance(op, Plan):
            if op.records:
                for tensor, wanted in zip(tensors, op.wrt, strict=True):
                    if wanted:
                        self.read(tensor.id)
            results = list(results)[: op.n_out]  # without the extras
        self.ops.append(op)
        if self.places is not None:
            self.places.append(where)
        if self.digests is not None:
            self.digests.append(digest_of(list(results)))
        if self.outer is not None:
            self.outer.note(op, tensors, results, where)

    def read(self, id: TensorId) -> None:
        if id.number < self.start:
            self.reads.setdefault(id.number, id)
        if self.outer is not None:
            self.outer.read(id)

    def extend(self, other: Trail) -> None:
        """What a forked tape's run did, when it is merged."""
        for id in other.reads.values():
            self.read(id)
        self.ops += other.ops
        if self.places is not None:
            self.places += other.places or [None] * len(other.ops)
        if self.digests is not None:
            self.digests += other.digests or [()] * len(other.ops)

    def digest(self, index: int) -> tuple[Any, ...]:
        return () if self.digests is None else self.digests[index]

    def line(self, index: int) -> str:
        where = self.places[index] if self.places is not None and index < len(self.places) else None
        return where.line if isinstance(where, Place) else line_of(where)


class RunTape(Tape):
    """The tape of one run. The first one forgets: nothing that was kept for a backward outlives its op."""

    __slots__ = ("execution", "forgets", "observer", "trail")

    def __init__(self, trail: Trail, *, forgets: bool, detail: str, label: str):
        self.forgets, self.trail, self.observer, self.execution = forgets, trail, trail.note, STEADY
        super().__init__(detail=detail, label=label)
        self.guarded = True

    def append(self, action: TapeAction) -> None:
        if not self.forgets:
            super().append(action)
            return
        for id in reads_of(action):
            self.trail.read(id)

    def fork(self, label: str | None = None) -> Tape:
        """A child that records: a gradient inside of the run, or another thread, needs its actions till the merge."""
        plain = super().fork(label)
        trail = Trail(detailed=self.trail.detailed, places=self.trail.places is not None)
        trail.start = self.trail.start
        child = RunTape(trail, forgets=False, detail=self.detail, label=plain.label)
        child.guarded = False
        child.forked_from = plain.forked_from
        return child

    def merge(self, children: Iterable[Tape]) -> None:
        children = list(children)
        trails = [child.trail for child in sorted(children, key=_order) if isinstance(child, RunTape)]
        super().merge(children)
        for trail in trails:
            self.trail.extend(trail)


def _order(tape: Tape) -> int:
    return 0 if tape.forked_from is None else tape.forked_from[1]


def reads_of(action: TapeAction) -> Iterable[TensorId]:
    return action.differentiable_inputs() if type(action) is OpAction else action.inputs or ()


def run_on(call: Callable[[], Any], tape: Tape) -> Any:
    """Call with the tape in place; whatever happens, the scope is afterwards what it was."""
    outer = current_scope()
    set_scope(Scope(tape, True, (outer.thread, outer.task), outer.bindings, STEADY))
    try:
        return call()
    finally:
        restore(outer)
