"""The programs of a structure: its forward, its backward, and both as one.

Each is compiled when that pays (see policy.py); until then its calls run one by one, each by its own plan. The
same Gradients come back either way, and strict reverse order decides what is added to what.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from tapejax.fusion.layout import Call, Layout, run_all
from tapejax.ground import compat
from tapejax.ground.accumulation import accumulate
from tapejax.ground.placement import Shardings, pick, shardings_of
from tapejax.plan.executables import Executable
from tapejax.plan.plan import zeros_for
from tapejax.plan.policy import Together


def _names(calls: Sequence[Call]) -> list[str]:
    return [call.plan.name for call in calls]


class Forward:
    """The calls that lead to results which are held, and to what the backward of others reads.

    results: the slots of what it computes; kept: of what backward reads, results first; places: by slot, where in
    the results it is; read: by slot, where in what is kept it is.
    """

    __slots__ = ("calls", "kept", "n_kept", "outside", "places", "program", "read", "results", "together")

    def __init__(self, layout: Layout, chosen: tuple[int, ...], order: tuple[int, ...]) -> None:
        kept = tuple(dict.fromkeys(slot for index in order for slot in layout.calls[index].kept))
        made, given = [slot for slot in kept if slot >= 0], [slot for slot in kept if slot < 0]
        self.n_kept, self.outside = len(made), [~slot for slot in given]
        self.kept = (*made, *given)
        self.results = tuple(dict.fromkeys((*made, *chosen)))
        self.places = {slot: place for place, slot in enumerate(self.results)}
        self.read = {slot: place for place, slot in enumerate(self.kept)}
        self.calls = layout.leading_to(self.results)
        plans = [call.plan for call in self.calls]
        self.together = Together([plan.forward for plan in plans], sum([plan.n_bytes for plan in plans]))
        self.program = Executable(
            self.one_by_one, "forward", lambda: (_names(self.calls), self.together.why), tiers=self.together.tiers
        )

    def run(self, inputs: list[Any]) -> list[Any]:
        if len(self.calls) > 1 and self.together.pays():
            return self.together.run(self.program, inputs)
        return self.one_by_one(inputs)

    def one_by_one(self, inputs: list[Any]) -> list[Any]:
        env = run_all(self.calls, inputs)
        return [env[slot] for slot in self.results]

    def to_keep(self, results: list[Any], inputs: list[Any]) -> list[Any]:
        """What backward reads, in the order of `kept`."""
        return [*results[: self.n_kept], *[inputs[place] for place in self.outside]]


def forward_of(layout: Layout, held: tuple[int, ...], order: tuple[int, ...]) -> Forward:
    chosen = layout.choose(held)
    found = layout.forwards.get((chosen, order))
    if found is None:
        found = layout.forwards.keep((chosen, order), Forward(layout, chosen, order))
    return found


class Backward:
    """The backward of a structure.

    present: the slots that have a gradient already; ones: whether it is ones, as a root's is, and so part of the
    program; targets: the slots that are wanted (None: all); leading: those from outside that lead on to earlier
    actions (None: any may). outputs: the slots whose gradients it gives.
    """

    __slots__ = ("_both", "_places", "given", "layout", "ones", "outputs", "present", "program", "read", "reverse", "together")  # fmt: skip

    def __init__(self, layout: Layout, present: Any, ones: Any, targets: Any, leading: Any) -> None:
        self.layout, self.present, self.ones = layout, present, ones
        self.reverse: list[int] = []  # the calls that have something to do
        touched = self._touched()
        if targets is not None:
            leads_on = lambda slot: slot < 0 and (leading is None or slot in leading)
            touched = [slot for slot in touched if slot in targets or leads_on(slot)]
        # Ones that are handed to the caller are the program's own: those that are kept here must not be given away.
        seeds = [
            s
            for s, o in zip(present, ones, strict=True)
            if o and s not in touched and (targets is None or s in targets)
        ]
        self.outputs = (*touched, *seeds)
        self.given = [place for place, is_ones in enumerate(ones) if not is_ones]
        self.read = tuple({slot: None for index in self.reverse for slot in layout.calls[index].kept})
        plans = [layout.calls[index].plan for index in self.reverse]
        self.together = Together([plan.backward for plan in plans], 2 * sum([plan.n_bytes for plan in plans]))
        calls = [layout.calls[index] for index in self.reverse]
        self.program = Executable(
            self._pull_read, "backward", lambda: (_names(calls), self.together.why), tiers=self.together.tiers
        )
        self._both: dict[tuple[int, ...], Both] = {}
        self._places: dict[Forward, list[int]] = {}

    def _touched(self) -> list[int]:
        """The slots to which the backward adds something, in the order in which it does."""
        have = set(self.present)
        touched: dict[int, None] = {}
        for index in self.layout.order:
            call = self.layout.calls[index]
            if not have.isdisjoint(call.outputs):
                self.reverse.append(index)
                have.update(call.ids)
                touched.update(dict.fromkeys(call.ids))
        return list(touched)

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
        chosen = self.layout.choose(held)
        found = self._both.get(chosen)
        if found is None:
            found = self._both[chosen] = Both(self, chosen)
        return found

    def without_ones(self, cts: list[Any]) -> list[Any]:
        return cts if not cts else [cts[place] for place in self.given]

    def pull(self, env: dict[int, Any], cts: Sequence[Any]) -> list[Any]:
        """The gradients of `outputs`, from what was kept (by slot) and the cotangents that are given."""
        sums: dict[int, Any] = {}
        given = iter(cts)
        for slot, constant in zip(self.present, self.ones, strict=True):
            kind = self.layout.kinds.get(slot)
            sums[slot] = jnp.ones(kind.aval.shape, kind.aval.dtype) if constant else next(given)
        for index in self.reverse:
            call = self.layout.calls[index]
            plan, kept = call.plan, [env[slot] for slot in call.kept]
            out_cts = [sums.get(slot) for slot in call.outputs]
            filled = [zeros_for(k.aval) if ct is None else ct for ct, k in zip(out_cts, plan.out_kinds, strict=True)]
            with compat.derived("backward"):
                gradients = plan.backward(*kept, *filled)
            for slot, gradient in zip(call.ids, gradients, strict=True):
                accumulate(sums, slot, gradient)
        return [sums[slot] for slot in self.outputs]


def _after_results(shardings: tuple[Any, ...]) -> tuple[Any, ...]:
    return None, list(shardings)


class Both:
    """Forward and backward of a structure as one program. results: the slots of the values that it returns."""

    __slots__ = ("backward", "calls", "places", "program", "results", "together")

    def __init__(self, backward: Backward, results: tuple[int, ...]) -> None:
        self.backward, self.results = backward, results
        self.places = {slot: place for place, slot in enumerate(results)}
        self.calls = backward.layout.leading_to({*results, *backward.read})
        parts, n_bytes = [], 0
        for call in self.calls:
            parts.append(call.plan.forward)
            n_bytes += call.plan.n_bytes
        for index in backward.reverse:
            plan = backward.layout.calls[index].plan
            parts += [plan.backward]
            n_bytes += 2 * plan.n_bytes
        self.together = Together(parts, n_bytes)
        self.program = Executable(
            self._run,
            "forward_and_backward",
            lambda: (_names(self.calls), self.together.why),
            tiers=self.together.tiers,
        )

    def _run(self, inputs: list[Any], cts: list[Any]) -> tuple[list[Any], list[Any]]:
        env = run_all(self.calls, inputs)
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
