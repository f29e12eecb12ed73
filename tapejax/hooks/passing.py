"""Hooks during a backward: a named piece beside the engine's loop, there only where something is hooked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tapejax.hooks import registry
from tapejax.hooks.calls import NAME, inside, meant
from tapejax.hooks.regions import Regions, number_of, region
from tapejax.hooks.registry import ACCUMULATED, AFTER, BEFORE, GRADIENT, Hook
from tapejax.tape.action import Composite, materialised
from tapejax.tensor.gradients import Gradients


def over(entries: list[Any], grads: Gradients, wanted: set[int] | None, since: int = 0) -> Hooked | None:
    """What is hooked about these entries of a log; they are materialised out then. None if nothing is.

    since: hooks on what was made before are somebody else's to call (this is a part of a larger pass).
    """
    kept: dict[Any, list[Hook]] = {}
    for epoch in {id(e): e for e in (getattr(entry, "epoch", None) for entry in entries) if e is not None}.values():
        kept.update({key: list(hooks) for key, hooks in (epoch.hooks or {}).items() if hooks and key[1] >= since})
    read = _read(entries) | set(grads.sums) if registry.leaves else set()  # a root may be a leaf
    leaves = {id.number: list(id.hooks) for id in list(registry.leaves) if id.number in read and id.number >= since}
    everywhere = [hook for hook in registry.everywhere if hook.kind in (GRADIENT, BEFORE, AFTER)]
    leaves = {n: hooks for n, hooks in leaves.items() if hooks and (wanted is None or n in wanted)}
    if not (kept or leaves or everywhere):
        return None
    entries[:] = materialised(entries)
    return Hooked(entries, kept, leaves, everywhere)


def _read(entries: list[Any]) -> set[int]:
    read: set[int] = set()
    for entry in entries:
        read.update(entry.reads() if isinstance(entry, Composite) else [id.number for id in entry.inputs or ()])
    return read


class Hooked:
    """The hooks of one pass."""

    def __init__(
        self,
        actions: list[Any],
        kept: dict[Any, list[Hook]],
        leaves: dict[int, list[Hook]],
        everywhere: list[Hook],
        regions: Any = None,  # what tells the regions of an action: `of(action)`
    ):
        self.kept, self.leaves, self.everywhere = kept, leaves, everywhere
        by_region = any([isinstance(hook.target, region) for hook in everywhere])
        self.regions = (regions or Regions(actions)) if by_region else None
        self.complete: dict[int, list[int]] = {}  # by action: the leaves that it is the last to add to
        self.unread = set(leaves)
        for index, action in enumerate(actions):
            found = self.unread.intersection([id.number for id in action.inputs or ()])
            if found:
                self.unread -= found
                self.complete[index] = sorted(found)

    def pull(self, action: Any, index: int, grads: Gradients, pull: Callable[[Any, Gradients], None]) -> None:
        """One action's backward, with what is hooked about it."""
        sums = grads.sums
        outputs = [id.number for id in action.outputs or ()]
        if not outputs or any([number in sums for number in outputs]):
            self._on_gradients(action, outputs, grads)
            hooks = self._around(action)
            before, after = hooks[BEFORE], hooks[AFTER]
            if before or after:
                _go_back(action, outputs, grads, pull, before, after)
            else:
                pull(action, grads)
        for number in self.complete.get(index, ()):
            self._complete(number, grads)

    def finish(self, grads: Gradients) -> None:
        """What nothing on the tape reads: a root that is a leaf."""
        for number in sorted(self.unread):
            self._complete(number, grads)

    def _complete(self, number: int, grads: Gradients) -> None:
        if number not in grads.sums:
            return
        hooks = self.leaves[number]
        _tell([hook for hook in hooks if hook.kind == GRADIENT], number, grads)
        for hook in hooks:
            if hook.kind == ACCUMULATED and hook(hook.tensor, grads.sums[number]) is not None:
                raise hook.error("returned something: what is complete cannot be replaced, on_gradient can")

    def _on_gradients(self, action: Any, outputs: list[int], grads: Gradients) -> None:
        named = self._named(action)
        for number in outputs:
            if number in grads.sums:
                _tell([*self.kept.get((GRADIENT, number), ()), *named], number, grads)

    def _named(self, action: Any) -> list[Hook]:
        """The hooks on the name that an action gives to a value."""
        hooks = [hook for hook in self.everywhere if hook.kind == GRADIENT]
        plan = getattr(action, "plan", None)
        if not hooks or plan is None or len(plan.flat_program.eqns) != 1:
            return []
        names = {name for what, name in inside(plan.flat_program.eqns) if what == NAME}
        return [hook for hook in hooks if hook.target in names]

    def _around(self, action: Any) -> dict[str, list[Hook]]:
        number = number_of(action)
        regions = () if self.regions is None else self.regions.of(action)
        op, camel = getattr(getattr(action, "plan", None), "name", ""), getattr(action, "op", type(action).__name__)
        found: dict[str, list[Hook]] = {}
        for kind in (BEFORE, AFTER):
            found[kind] = list(self.kept.get((kind, number), ()))
            for hook in self.everywhere:
                if hook.kind == kind and (
                    hook.target is action or (_is_open(hook) and meant(hook, op, regions, camel))
                ):
                    found[kind].append(hook)
        return found


def _tell(hooks: list[Hook], number: int, grads: Gradients) -> None:
    """Each hook is told of a gradient that is complete, and may replace it."""
    for hook in hooks:
        before = grads.sums[number]
        after = hook.replaced(before, hook(before))
        if after is not before:
            grads.replace(number, after)


def _is_open(hook: Hook) -> bool:
    """Whether its target is a name or a region, or everything, rather than one action."""
    return not hasattr(hook.target, "backward")


def _go_back(
    action: Any,
    outputs: list[int],
    grads: Gradients,
    pull: Callable[[Any, Gradients], None],
    before: list[Hook],
    after: list[Hook],
) -> None:
    sums = grads.sums
    found = {number: sums[number] for number in outputs if number in sums}
    cotangents = tuple([sums.get(number) for number in outputs])
    for hook in before:
        cotangents = _all_replaced(hook, cotangents, hook(action, cotangents))
    for number, ct in zip(outputs, cotangents):
        if ct is not None:
            sums[number] = ct
    added = _Added(grads)
    pull(action, added)
    for number, ct in found.items():  # what was replaced is for this action only
        sums[number] = ct
    places = _places(action, added.terms)
    gradients = tuple([None if place is None else added.terms[place][1] for place in places])
    for hook in after:
        gradients = _all_replaced(hook, gradients, hook(action, gradients, cotangents))
    replaced = {place: gradient for place, gradient in zip(places, gradients) if place is not None}
    for place, (number, gradient) in enumerate(added.terms):
        grads.add(number, replaced.get(place, gradient))


def _all_replaced(hook: Hook, given: tuple[Any, ...], found: Any) -> tuple[Any, ...]:
    if found is None:
        return given
    several = tuple(found) if isinstance(found, (tuple, list)) else (found,)
    if len(several) != len(given):
        raise hook.error(f"returned {len(several)} gradients in place of {len(given)}")
    return tuple([hook.replaced(old, new) for old, new in zip(given, several)])


def _places(action: Any, terms: list[tuple[int, Any]]) -> list[int | None]:
    """For each input of an action, which of the terms is its gradient."""
    left = dict(enumerate(terms))
    found: list[int | None] = []
    for id in action.inputs or ():
        place = next((place for place, (number, _) in left.items() if number == id.number), None)
        left.pop(place, None) if place is not None else None
        found.append(place)
    return found


class _Added(Gradients):
    """Gradients that note what is added, and leave the sums as they are."""

    __slots__ = ("grads", "terms")

    def __init__(self, grads: Gradients):
        self.grads, self.sums, self.requested = grads, grads.sums, grads.requested
        self.terms: list[tuple[int, Any]] = []

    def add(self, number: int, gradient: Any) -> None:
        self.terms.append((number, gradient))

    def get(self, key: Any, default: Any = None) -> Any:
        return self.grads.get(key, default)

    def __getitem__(self, key: Any) -> Any:
        return self.grads[key]

    def remove(self, key: Any, default: Any = None) -> Any:
        return self.grads.remove(key, default)
