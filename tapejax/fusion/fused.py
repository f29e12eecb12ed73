"""The programs of a structure: its forward, its backward, and both as one.

Each is compiled when that pays (see policy.py); until then its calls run one by one, each by its own plan. The
same Gradients come back either way, and strict reverse order decides what is added to what.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from tapejax.calculus.reverse import Reversed
from tapejax.fusion.layout import Call, Layout
from tapejax.ground.placement import Shardings, pick, shardings_of
from tapejax.plan.executables import Executable
from tapejax.plan.policy import Together
from tapejax.program.program import bytes_of_all


def _names(calls: Sequence[Call]) -> list[str]:
    return [call.name for call in calls]


def reached_from(layout: Layout, present: Sequence[int]) -> tuple[list[Call], list[int]]:
    """From gradients in these slots: the calls that have something to do, the last first, and the slots to which they add."""
    have, calls = set(present), []
    touched: dict[int, None] = {}
    for index in layout.order:
        call = layout.calls[index]
        if not have.isdisjoint(call.results):
            calls.append(call)
            have.update(call.ids)
            touched.update(dict.fromkeys(call.ids))
    return calls, list(touched)


class Forward:
    """The calls that lead to results which are held, and to what the backward of others reads.

    calls: as a program, whose outputs are what it computes; program: the same, compiled; kept: the slots of what backward
    reads, outputs first; places: by slot, where in the outputs it is; read: by slot, where in what is kept it is; only: the
    call, if there is just one.
    """

    __slots__ = ("calls", "kept", "n_kept", "only", "outside", "places", "program", "read", "together")

    def __init__(self, layout: Layout, chosen: tuple[int, ...], order: tuple[int, ...]) -> None:
        kept = tuple(dict.fromkeys(slot for index in order for slot in layout.calls[index].kept))
        made, given = [slot for slot in kept if slot >= 0], [slot for slot in kept if slot < 0]
        self.n_kept, self.outside = len(made), [~slot for slot in given]
        self.kept = (*made, *given)
        self.calls = layout.program(dict.fromkeys((*made, *chosen)))
        self.places = {slot: place for place, slot in enumerate(self.calls.outputs)}
        self.read = {slot: place for place, slot in enumerate(self.kept)}
        self.only = self.calls.eqns[0] if len(self.calls.eqns) == 1 else None
        plans = [call.plan for call in self.calls.eqns]
        self.together = Together([plan.forward for plan in plans], sum([plan.n_bytes for plan in plans]))
        self.program = Executable(
            self.one_by_one, "forward", lambda: (_names(self.calls.eqns), self.together.why), tiers=self.together.tiers
        )

    def run(self, inputs: list[Any]) -> list[Any]:
        """Its outputs; from values, not while a program is traced."""
        only = self.only
        if only is not None:
            results = only.plan.forward.compiled(*[inputs[~slot] for slot in only.inputs])
            return [results] if only.plan.single else [results[only.outputs.index(slot)] for slot in self.places]
        return self.together.run(self.program, inputs) if self.together.pays() else self.one_by_one(inputs)

    def one_by_one(self, inputs: list[Any]) -> list[Any]:
        return self.calls.run(*inputs)

    def to_keep(self, results: list[Any], inputs: list[Any]) -> list[Any]:
        """What backward reads, in the order of `kept`."""
        return [*results[: self.n_kept], *[inputs[place] for place in self.outside]]


def forward_of(layout: Layout, held: tuple[int, ...], order: tuple[int, ...]) -> Forward:
    chosen = layout.choose(held)
    found = layout.forwards.get((chosen, order))
    if found is None:
        found = layout.forwards.keep((chosen, order), Forward(layout, chosen, order))
    return found


class Look:
    """What it takes to compute results that are held, worked out once.

    order: the recorded calls that can go back then, the last first; owners: what is from outside and they lead to, if
    that is not all; forward: how it is computed; None if each action has to keep its own part.
    """

    __slots__ = ("forward", "order", "owners")

    def __init__(self, layout: Layout, held: tuple[int, ...], weak: bool) -> None:
        reach = layout.reach(held) if weak else None
        self.order = layout.order if reach is None else reach.order
        self.owners = None if reach is None or len(reach.owners) == len(layout.owners) else reach.owners
        self.forward = forward_of(layout, held, self.order) if reach is None or reach.alone else None


def look_at(layout: Layout, held: tuple[int, ...], weak: bool) -> Look:
    """weak: whether only what leads to these results is kept."""
    found = layout.looks.get((held, weak))
    if found is None:
        found = layout.looks.keep((held, weak), Look(layout, held, weak))
    return found


class Origin(NamedTuple):
    """What a backward was computed from: what it read, if the forward had run; if not, the block's inputs, None for those
    that do not lead to it. cts: the gradients that were there already."""

    ran: bool
    values: list[Any]
    cts: Sequence[Any]


class Backward:
    """The backward of a structure.

    present: the slots that have a gradient already; ones: whether it is ones, as a root's is, and so part of the
    program; targets: the slots that are wanted (None: all); leading: those from outside that lead on to earlier
    actions (None: any may). outputs: the slots whose gradients it gives; left_out: those of others that it could give.
    """

    __slots__ = (
        "_both", "_leads", "_places", "given", "layout", "left_out", "ones", "outputs", "present", "program", "read", "reversed", "together",
    )  # fmt: skip

    def __init__(self, layout: Layout, present: Any, ones: Any, targets: Any, leading: Any) -> None:
        self.layout, self.present, self.ones = layout, present, ones
        calls, reached = reached_from(layout, present)
        self.reversed = Reversed.of(layout.program(present), [call.step() for call in reversed(calls)])
        touched = reached
        if targets is not None:
            leads_on = lambda slot: slot < 0 and (leading is None or slot in leading)
            touched = [slot for slot in reached if slot in targets or leads_on(slot)]
        given = set(touched)
        self.left_out = tuple([slot for slot in reached if slot not in given])
        # Ones that are handed to the caller are the program's own: those that are kept here must not be given away.
        seeds = [
            s
            for s, o in zip(present, ones, strict=True)
            if o and s not in touched and (targets is None or s in targets)
        ]
        self.outputs = (*touched, *seeds)
        self.given = [place for place, is_ones in enumerate(ones) if not is_ones]
        self.read = tuple({slot: None for call in calls for slot in call.kept})
        plans = [call.plan for call in calls]
        self.together = Together([plan.backward for plan in plans], 2 * sum([plan.n_bytes for plan in plans]))
        self.program = Executable(
            self._pull_read, "backward", lambda: (_names(calls), self.together.why), tiers=self.together.tiers
        )
        self._both: dict[tuple[int, ...], Both] = {}
        self._leads: tuple[bool, ...] | None = None
        self._places: dict[Forward, list[int]] = {}

    @property
    def calls(self) -> list[Call]:
        """Those that have something to do, the last first."""
        return [call for call, *_ in reversed(self.reversed.steps)]

    def run(self, values: list[Any], cts: list[Any], shardings: Shardings) -> list[Any]:
        """The gradients of `outputs`; values: those of `read`; shardings: of what is from outside."""
        chosen = self.pick(shardings)
        program = self.program if chosen is None else self.program.laid_out(chosen, list)
        return self.together.run(program, values, self.without_ones(cts))

    def pick(self, shardings: Shardings) -> Shardings:
        """Those of its outputs, from those of what is from outside."""
        return None if shardings is None else pick(shardings, [~slot for slot in self.outputs])

    def read_from(self, forward: Forward, kept: list[Any]) -> list[Any]:
        """The values of `read`, from what a forward kept."""
        places = self._places.get(forward)
        if places is None:
            places = self._places[forward] = [forward.read[slot] for slot in self.read]
        return [kept[place] for place in places]

    def _pull_read(self, values: list[Any], cts: list[Any]) -> list[Any]:
        return self.pull(dict(zip(self.read, values, strict=True)), cts)

    def both(self, held: tuple[int, ...]) -> Both:
        """Forward and backward as one program, for results that are held."""
        return self.returning(self.layout.choose(held))

    def returning(self, results: tuple[int, ...]) -> Both:
        """Forward and backward as one program that returns just these results."""
        found = self._both.get(results)
        if found is None:
            found = self._both[results] = Both(self, results)
        return found

    @property
    def leads(self) -> tuple[bool, ...]:
        """Of each input, whether it leads to what the backward reads."""
        if self._leads is None:
            read = inputs_of(self.layout, self.read)
            self._leads = tuple([~place in read for place in range(self.layout.n_inputs)])
        return self._leads

    def origin(self, inputs: list[Any], cts: Sequence[Any]) -> Origin:
        """As long as the forward has not run."""
        return Origin(False, [value if leads else None for value, leads in zip(inputs, self.leads, strict=True)], cts)

    def without_ones(self, cts: list[Any]) -> list[Any]:
        return cts if not cts else [cts[place] for place in self.given]

    def pull(self, env: dict[int, Any], cts: Sequence[Any]) -> list[Any]:
        """The gradients of `outputs`, from what was kept (by slot) and the cotangents that are given."""
        sums: dict[int, Any] = {}
        given = iter(cts)
        for slot, constant in zip(self.present, self.ones, strict=True):
            kind = self.layout.kinds.get(slot)
            sums[slot] = jnp.ones(kind.aval.shape, kind.aval.dtype) if constant else next(given)
        self.reversed.go_back(env, sums, stay=self.outputs)
        return [sums[slot] for slot in self.outputs]


def _after_results(shardings: tuple[Any, ...]) -> tuple[Any, ...]:
    return None, list(shardings)


class Both:
    """Forward and backward of a structure as one program.

    results: the slots of the values that it returns; calls: those that lead to them, and to what the backward reads.
    """

    __slots__ = ("backward", "calls", "places", "program", "results", "together")

    def __init__(self, backward: Backward, results: tuple[int, ...]) -> None:
        self.backward, self.results = backward, results
        self.places = {slot: place for place, slot in enumerate(results)}
        self.calls = backward.layout.program({*results, *backward.read})
        there = [call.plan for call in self.calls.eqns]
        back = [call.plan for call in backward.calls]
        n_bytes = sum([plan.n_bytes for plan in there]) + 2 * sum([plan.n_bytes for plan in back])
        self.together = Together([*[plan.forward for plan in there], *[plan.backward for plan in back]], n_bytes)
        self.program = Executable(
            self._run,
            "forward_and_backward",
            lambda: (_names(self.calls.eqns), self.together.why),
            tiers=self.together.tiers,
        )

    def _run(self, inputs: list[Any], cts: list[Any]) -> tuple[list[Any], list[Any]]:
        env = self.calls.environment(inputs)
        return [env[slot] for slot in self.results], self.backward.pull(env, cts)

    def run(self, inputs: list[Any], cts: list[Any]) -> tuple[list[Any], list[Any]]:
        """The values of `results`, and the gradients of the backward's outputs."""
        chosen = self.backward.pick(shardings_of(inputs))
        program = self.program if chosen is None else self.program.laid_out(chosen, _after_results)
        return self.together.run(program, inputs, self.backward.without_ones(cts))


def backward_of(layout: Layout, present: Any, ones: Any, targets: Any, leading: Any) -> Backward:
    key = (present, ones, targets, leading)
    found = layout.backwards.get(key)
    if found is None:
        found = layout.backwards.keep(key, Backward(layout, *key))
    return found


def inputs_of(layout: Layout, slots: Iterable[int]) -> set[int]:
    """The slots of what is from outside that lead to these."""
    slots = set(slots)
    calls = layout.program(slots).eqns
    return {slot for slot in (*slots, *[slot for call in calls for slot in call.inputs]) if slot < 0}


def backward_for_all(layout: Layout, present: Any, ones: Any, held: tuple[int, ...], ran: bool) -> Backward:
    """The backward of everything. Gradients of results that are not held are left out, to be computed when somebody asks
    (see later.py), where what they are computed from takes no more memory than they do.

    ran: whether the forward has run.
    """
    key = (present, ones, held, ran)
    found = layout.for_all.get(key)
    if found is None:
        calls, touched = reached_from(layout, present)
        targets = {*present, *held}
        idle = [slot for slot in touched if slot >= 0 and slot not in targets]
        read = {slot for call in calls for slot in call.kept}
        needed = [*(read if ran else inputs_of(layout, read))]
        needed += [slot for slot, known in zip(present, ones, strict=True) if slot in touched and not known]
        sizes = [bytes_of_all([layout.avals[slot] for slot in slots]) for slots in (needed, idle)]
        found = backward_of(
            layout, present, ones, tuple(sorted(targets)) if idle and sizes[0] <= sizes[1] else None, None
        )
        found = layout.for_all.keep(key, found)
    return found
