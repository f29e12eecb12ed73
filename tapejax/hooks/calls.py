"""Ops as they run: what goes in, what comes out, what is kept, and who is told of it.

While somebody attends, every op takes the long way, where it is seen whether a hook is meant. If one is on a region or on a
name inside a lifted function, then that function is recorded equation by equation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend import core as jex_core

from tapejax.errors import ArgumentError
from tapejax.ground import compat
from tapejax.ground.where import line_of
from tapejax.hooks import registry
from tapejax.hooks.regions import names_around, open_regions, region, regions_of_place, scopes_of
from tapejax.hooks.registry import FORWARD, GRADIENT, Hook
from tapejax.tape.packed import force
from tapejax.tape.switch import fusion
from tapejax.tensor.tensor import Tensor

_tree = jax.tree_util
attending: list[Hook] = []  # hooks that ops must know of when they run
_watching: ContextVar[tuple[Any, ...]] = ContextVar("watching", default=())
_telling: ContextVar[bool] = ContextVar("telling", default=False)  # within a hook, ops are not told of


def attend(hook: Hook) -> None:
    hook.keep(attending)
    fusion.opened(1)
    hook.at_end = lambda: fusion.opened(-1)


# --- what ran -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """A value that an action keeps for its backward. operand: the parameter it was given as, `out` for a result.

    position: among the inputs, or among the results; None for what is neither.
    """

    operand: str
    value: Any
    position: int | None


@dataclass(frozen=True)
class Call:
    """An op that ran.

    op: its name. inputs, outputs: Tensors. line: the user's `file:line`. regions: those it ran in, the outermost first.
    steps: of the loops around it, if it is an equation of a function that was opened. action: what it left on the
    tape; None if it has no gradient. kept: what that keeps, by operand.
    """

    op: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    line: str
    regions: tuple[str, ...] = ()
    steps: tuple[tuple[str, int], ...] = ()
    action: Any = field(default=None, repr=False)

    @property
    def kept(self) -> list[Kept]:
        return kept_by(self.action)


def kept_by(action: Any) -> list[Kept]:
    """What an action keeps for its backward, and which operand each value is.

    >>> import tapejax as tj, tapejax.numpy as tnp
    >>> x = tj.tensor([1.0, 4.0], requires_grad=True)
    >>> with tj.Tape() as tape:
    ...     y = tnp.sqrt(x)
    >>> [(kept.operand, kept.value) for kept in tj.hooks.kept_by(tape[0])]
    [('out', Array([1., 2.], dtype=float32))]
    """
    kept, plan = getattr(action, "kept", None), getattr(action, "plan", None)
    if kept is None or plan is None or plan.reversed is None:
        return []
    values = iter([force(value) for value in kept])
    return [Kept(name, value, position) for (name, position), value in zip(operands_kept(plan), values)]


def operands_kept(plan: Any) -> list[tuple[str, int | None]]:
    """For each value that a plan keeps: its name, and its place among the inputs or the results."""
    names, reversed_ = operand_names(plan), plan.reversed
    found: list[tuple[str, int | None]] = [(names[i], i) for i in reversed_.saves_in]
    found += [("out" if plan.n_out == 1 else f"out[{i}]", i) for i in reversed_.saves_out]
    found += [(f"inside[{i}]", None) for i in range(len(reversed_.extras))]
    if plan.keeps_all_inputs:
        found += [(names[i], i) for i in range(plan.n_in) if i not in reversed_.saves_in]
    return found


def operand_names(plan: Any) -> list[str]:
    """What a function calls its parameters, one name for each of its operands."""
    function = inspect.unwrap(plan.function)
    numbered = [f"operand[{i}]" for i in range(plan.n_in)]
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return numbered
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in plain]
    return names[: plan.n_in] if len(names) >= plan.n_in else numbered


# --- who is told -----------------------------------------------------------------------------------------


def opens(plan: Any) -> bool:
    """Whether a function is to be recorded equation by equation, because a hook is on something inside it."""
    found = plan.steps_cache.get("names inside")
    if found is None:
        found = plan.steps_cache["names inside"] = set(inside(plan.flat_program.eqns))
    return any([_opens(hook, found, plan) for hook in attending])


def _opens(hook: Hook, names: set[tuple[str, str]], plan: Any) -> bool:
    if hook.watcher is not None:
        eqns = plan.flat_program.eqns
        within = hook.watcher.detail == "primitives" and hook.watcher in _watching.get()
        return within and (len(eqns) > 1 or any(eqn.is_structural for eqn in eqns))
    if isinstance(hook.target, region):
        return (REGION, hook.target.name) in names
    return hook.kind == GRADIENT and (NAME, hook.target) in names


REGION, NAME = "region", "name"


def inside(eqns: Any) -> Iterator[tuple[str, str]]:
    for eqn in eqns:
        names = names_around(eqn) if hasattr(eqn, "sources") else scopes_of(eqn.source_info)
        yield from ((REGION, name) for name in names)
        if eqn.primitive.name == "name":
            yield NAME, eqn.params["name"]
        for jaxpr in jex_core.jaxprs_in_params(eqn.params):
            yield from inside(compat.jaxpr_parts(jaxpr)[0].eqns)


def meant(hook: Hook, op: str, regions: Sequence[str], also: str = "") -> bool:
    """Whether a hook on an op, a region or everything is meant by this one."""
    if hook.watcher is not None:
        return hook.watcher in _watching.get()
    if isinstance(hook.target, region):
        return hook.target.name in regions
    return not isinstance(hook.target, str) or hook.target in (op, also)


def watches(op: str, where: Any) -> bool:
    """Whether somebody wants to see this op when it runs."""
    if _telling.get():
        return False
    regions = (*open_regions(), *regions_of_place(where))
    return any([hook.kind == FORWARD and meant(hook, op, regions) for hook in attending])


def ran(op: str, tensors: Sequence[Tensor], made: Any, action: Any, where: Any) -> Any:
    """Tell that an op ran; its results, or what takes their place."""
    if not watches(op, where):
        return made
    regions = (*open_regions(), *regions_of_place(where))
    line = where.line if hasattr(where, "line") else line_of(where)
    before = _telling.set(True)
    try:
        for hook in list(attending):
            if hook.kind != FORWARD or not meant(hook, op, regions):
                continue
            outputs, structure = _tree.tree_flatten(made, is_leaf=lambda leaf: isinstance(leaf, Tensor))
            call = Call(op, tuple(tensors), tuple(outputs), line, regions, getattr(where, "steps", ()), action)
            found = hook(call)
            if found is not None:
                made = _tree.tree_unflatten(structure, _replaced(hook, outputs, found))
    finally:
        _telling.reset(before)
    return made


def _replaced(hook: Hook, outputs: Sequence[Tensor], found: Any) -> list[Tensor]:
    several = list(found) if isinstance(found, (tuple, list)) else [found]
    if len(several) != len(outputs):
        raise hook.error(f"returned {len(several)} results in place of {len(outputs)}")
    for new, old in zip(several, outputs):
        if not isinstance(new, Tensor):
            raise hook.error(f"returned a {type(new).__name__} in place of a Tensor")
        if new.shape != old.shape or new.dtype != old.dtype:
            raise hook.error(
                f"returned {new.dtype}{list(new.shape)} in place of a result of {old.dtype}{list(old.shape)}"
            )
    return several


class watch:
    """Within it, every op is seen as it runs, with the values that go in and come out; those without a gradient too.

    `with tj.watch() as calls:` fills a list, `with tj.watch(function):` calls the function: see `tapejax.hooks.Call`.
    detail="primitives" shows the equations inside of lifted functions. Ops run at once and one by one meanwhile.

    >>> import tapejax as tj, tapejax.numpy as tnp
    >>> x = tj.tensor([1.0, 4.0], requires_grad=True)
    >>> with tj.watch() as calls:
    ...     y = (tnp.sqrt(x) * (x > 2)).sum()
    >>> [(call.op, call.outputs[0].tolist()) for call in calls]
    [('sqrt', [1.0, 2.0]), ('greater', [False, True]), ('multiply', [0.0, 2.0]), ('sum', 2.0)]
    """

    def __init__(self, function: Callable[[Call], Any] | None = None, *, detail: str = "ops"):
        if detail not in ("ops", "primitives"):
            raise ArgumentError(f"unknown detail {detail!r}", fix='detail="ops" or detail="primitives"')
        self.function, self.detail = function, detail
        self._hooks: list[Hook] = []

    def __enter__(self) -> list[Call]:
        calls: list[Call] = []
        hook = Hook(FORWARD, self.function or calls.append, "everything")
        hook.watcher = self
        hook.keep(registry.everywhere)
        attend(hook)
        self._hooks.append(hook)
        _watching.set((*_watching.get(), self))
        return calls

    def __exit__(self, *exc_info: object) -> None:
        self._hooks.pop().remove()
        _watching.set(tuple([one for one in _watching.get() if one is not self]))
