"""What is registered, and where it is kept.

A hook on a recorded Tensor or on an action is kept by the content of its tape, and goes with it. One on a leaf is kept by
the leaf's identity. One on an op, a region or a name is kept here until it is removed. `live` is empty where there is
no hook at all: then nobody pays for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet, ref

import jax

from tapejax.errors import ArgumentError, HookError
from tapejax.ground.where import user_line
from tapejax.tape.action import TensorId
from tapejax.tensor.tensor import Tensor, array_of, make

GRADIENT, ACCUMULATED, BEFORE, AFTER, FORWARD = "gradient", "accumulation", "before", "after", "forward"

live: dict[int, ref[Hook]] = {}
everywhere: list[Hook] = []  # on ops, regions and names
leaves: WeakSet[TensorId] = WeakSet()  # the leaves that have hooks


class Hook:
    """A function that is called until `remove`; as a `with` block, until it is left."""

    __slots__ = ("__weakref__", "_homes", "at_end", "function", "kind", "line", "target", "tensor", "watcher")

    def __init__(self, kind: str, function: Callable[..., Any], target: Any, tensor: Tensor | None = None):
        if not callable(function):
            raise ArgumentError(
                f"a hook is a function, not {type(function).__name__}", fix="give the tensor first, then the function"
            )
        self.kind, self.function, self.target, self.tensor = kind, function, target, tensor
        self.line = user_line()
        self._homes: list[list[Hook]] = []
        self.at_end: Callable[[], None] | None = None  # when it is removed
        self.watcher: Any = None  # the `watch` it belongs to
        key = id(self)
        live[key] = ref(self, lambda _: live.pop(key, None))

    def keep(self, home: list[Hook]) -> Hook:
        home.append(self)
        self._homes.append(home)
        return self

    def remove(self) -> None:
        """It is not called again. More than once is fine."""
        for home in self._homes:
            home[:] = [hook for hook in home if hook is not self]
        self._homes = []
        live.pop(id(self), None)
        self.tensor = None
        if self.at_end is not None:
            self.at_end, at_end = None, self.at_end
            at_end()

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.remove()

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    def __repr__(self) -> str:
        return f"<hook {self.name}, {self.kind} of {self.target}>"

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self.function(*arguments)
        except Exception as cause:
            raise self.error(f"raised {type(cause).__name__}: {cause}") from cause

    def error(self, what: str) -> HookError:
        return HookError(
            f"the hook `{self.name}`, {self.kind} of {self.target}, {what}",
            at=self.line,
            action=f"{self.name} was registered there",
            fix="mend it, or take it off with the handle's remove()",
        )

    def replaced(self, before: Any, found: Any) -> Any:
        """What it returned in place of a gradient: alike in shape and dtype. None: the gradient as it was."""
        if found is None:
            return before
        recorded = isinstance(before, Tensor)
        if not isinstance(found, (jax.Array, Tensor)):
            try:
                found = array_of(found)
            except (TypeError, ValueError, OverflowError) as cause:
                raise self.error(f"returned a {type(found).__name__}, which is no gradient") from cause
        if before is not None and (found.shape != before.shape or found.dtype != before.dtype):
            kind = lambda x: f"{x.dtype}{list(x.shape)}"
            raise self.error(f"returned {kind(found)} in place of a gradient of {kind(before)}")
        if recorded:
            return found if isinstance(found, Tensor) else make(found, False)
        return found.value if isinstance(found, Tensor) else found


def on_content(epoch: Any, key: Any, hook: Hook) -> Hook:
    """Keep a hook with the content of a tape."""
    if epoch.hooks is None:
        epoch.hooks = {}
    return hook.keep(epoch.hooks.setdefault(key, []))


def on_leaf(id: TensorId, hook: Hook) -> Hook:
    leaves.add(id)
    if not hasattr(id, "hooks"):
        id.hooks = []
    return hook.keep(id.hooks)
