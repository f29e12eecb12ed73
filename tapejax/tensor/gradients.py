"""Gradients: the map that backward fills and returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.errors import ArgumentError, DeletedError, GradientMismatchError, MissingGradientError
from tapejax.ground.accumulation import added
from tapejax.ground.placement import is_gone, local_part
from tapejax.ground.where import user_line
from tapejax.tape import cuts
from tapejax.tape.action import TensorId
from tapejax.tensor.names import names_around
from tapejax.tensor.tensor import Tensor, Tracer, array_of

ROWS = 60  # that are printed


class Unasked(Protocol):
    """Gradients that are computed when one of them is asked for."""

    def __len__(self) -> int: ...

    def numbers(self) -> list[int]: ...

    def order(self) -> list[tuple[int, bool]]:
        """The numbers of these and of those that were computed with them, in the order in which going back finds them; and
        whether it is one of these."""
        ...

    def gradients(self) -> dict[int, Any]: ...


class Gradients:
    """Gradients by tensor. `insert` on a tensor that has one adds the two.

    >>> import tapejax as tj
    >>> grads, key = tj.Gradients(), tj.TensorId()
    >>> grads.insert(key, [1.0, 2.0])
    >>> grads.insert(key, [3.0, 4.0])
    >>> grads.get(key)
    Array([4., 6.], dtype=float32)
    """

    __slots__ = ("index", "ready", "requested", "unasked")

    def __init__(self) -> None:
        self.ready: dict[int, Any] = {}
        self.unasked: list[tuple[int, Unasked]] = []  # each with how many were ready before it
        self.index: dict[int, Unasked] | None = None  # of those, once somebody has looked for one
        self.requested: dict[str, Any] = {}  # what backward was asked, for `explain`

    @property
    def sums(self) -> dict[int, Any]:
        """All gradients, by number, in the order in which going back finds them."""
        if self.unasked:
            computed = dict(self.ready)
            for _, one in self.unasked:
                computed.update(one.gradients())
            self.sums = {number: computed[number] for number in self._numbers()}
        return self.ready

    @sums.setter
    def sums(self, sums: dict[int, Any]) -> None:
        self.ready, self.unasked, self.index = sums, [], None

    def _numbers(self) -> Iterable[int]:
        """Those of all gradients, in the same order; nothing is computed."""
        if not self.unasked:
            return self.ready
        ready = list(self.ready)
        found: dict[int, None] = {}
        before = 0
        for place, one in self.unasked:
            found.update(dict.fromkeys(ready[before:place]))
            found.update(dict.fromkeys([number for number, waits in one.order() if waits or number in self.ready]))
            before = place
        found.update(dict.fromkeys(ready))
        return found

    def __copy__(self) -> Gradients:
        made = type(self)()
        made.ready, made.unasked, made.requested = dict(self.ready), list(self.unasked), self.requested
        return made

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        return None, {"ready": self.sums, "unasked": [], "index": None, "requested": self.requested}

    def _found(self, number: int) -> Any:
        """The gradient, which may be computed now; None if there is none."""
        found = self.ready.get(number)
        if found is None:
            one = self._waiting(number)
            found = (
                one.gradients()[number] if one is not None else self.ready.get(number)
            )  # another thread asked for all
        return found

    def _waiting(self, number: int) -> Unasked | None:
        """What a gradient is part of, if it is computed when it is asked for."""
        unasked, index = self.unasked, self.index
        if not unasked:
            return None
        if index is None:
            index = self.index = {number: one for _, one in unasked for number in one.numbers()}
        return index.get(number)

    def get(self, key: Tensor | TensorId, default: Any = None) -> Any:
        """The gradient, or `default`."""
        found = self._found(_number(key))
        return default if found is None else found

    def remove(self, key: Tensor | TensorId, default: Any = None) -> Any:
        """Take the gradient out and return it, or `default`."""
        number = _number(key)
        if self._waiting(number) is not None:
            return self.sums.pop(number)
        if self.unasked and number in self.ready:
            before = list(self.ready).index(number)
            self.unasked = [(place - (place > before), one) for place, one in self.unasked]
        return self.ready.pop(number, default)

    def insert(self, key: Tensor | TensorId, gradient: Any) -> None:
        """File a gradient; add it to the one that is there already, which must be alike."""
        number = _number(key)
        if not isinstance(gradient, (jax.Array, Tensor)):
            try:
                gradient = array_of(gradient)
            except (TypeError, ValueError, OverflowError) as cause:
                what = f"a {type(gradient).__name__} is no gradient: {cause}"
                raise GradientMismatchError(what, fix="give an array of the tensor's shape and dtype") from None
        if isinstance(key, Tensor):
            _check_fits(key, gradient)
        self.add(number, gradient)

    def add(self, number: int, gradient: Any) -> None:
        """`insert` by number, for actions: no conversion."""
        sums = self.ready if self._waiting(number) is None else self.sums
        before = sums.get(number)
        if before is None:
            sums[number] = gradient
            return
        if before.shape != gradient.shape or before.dtype != gradient.dtype:
            raise GradientMismatchError(
                f"a gradient of {_kind(gradient)} cannot be added to one of {_kind(before)}",
                at=user_line(),
                action=f"insert(TensorId({number}), ...)",
                fix="the gradients of one tensor have its own shape and dtype; sum over broadcast axes, convert the dtype",
            )
        sums[number] = added(before, gradient)

    def replace(self, number: int, gradient: Any) -> None:
        """Put another gradient in the place of one that is there, for hooks."""
        self.sums[number] = gradient

    def __getitem__(self, key: Tensor | TensorId) -> Any:
        id = key.identity if type(key) is Tensor else _number(key)
        number = id if type(id) is int else id.number  # type: ignore[union-attr]
        found = self.ready.get(number)
        if found is None:
            found = self._found(number)
        if found is None:
            frozen = isinstance(key, Tensor) and not key.requires_grad and jnp.issubdtype(key.dtype, jnp.inexact)
            raise MissingGradientError(
                f"no gradient for {_describe(key)}: {self.explain(key)}",
                at=user_line(),
                fix="make the tensor with requires_grad=True, or " * frozen
                + "use grads.get(tensor) where a missing gradient is fine",
            )
        return found

    def explain(self, key: Tensor | TensorId) -> str:
        """Why there is, or is not, a gradient for this tensor."""
        number = _number(key)
        found = self._found(number)
        if found is not None:
            return f"it has one, {_kind(found)}"
        if isinstance(key, Tensor):
            if not jnp.issubdtype(key.dtype, jnp.inexact):
                return f"its dtype is {key.dtype}, and integers and booleans have no gradient"
            if not key.requires_grad:
                return "its requires_grad is False (made without requires_grad=True, detached, or under no_grad)"
        wrt = self.requested.get("wrt")
        if wrt is not None and number not in wrt:
            return "backward was asked for others only (wrt=...)"
        if "roots" not in self.requested:
            return "nothing was inserted for it"
        if number in self.requested.get("cut", ()):
            return self.requested["cut"][number]
        left = next((left for left in reversed(cuts.exits) if left.number == number and left.how != ".value"), None)
        if left is not None:
            return f"{left.how} took it off the tape at {left.line}, and no other recorded op leads from it to the root"
        roots = ", ".join(f"TensorId({root})" for root in self.requested["roots"])
        return (
            f"no recorded op leads from it to {roots}: it was not used, was used on another tape, "
            "or every path goes through stop_gradient or detach"
        )

    @property
    def has_intermediates(self) -> bool:
        """Whether backward was asked for everything, and not for some tensors only (`wrt`)."""
        return "roots" in self.requested and self.requested["wrt"] is None

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, (Tensor, TensorId)):
            return False
        number = _number(key)
        return number in self.ready or self._waiting(number) is not None or number in self.ready  # see _found

    def __len__(self) -> int:
        return len(self.ready) + sum([len(one) for _, one in self.unasked])

    def __iter__(self) -> Iterator[TensorId]:
        return (TensorId(number) for number in self._numbers())

    def keys(self) -> list[TensorId]:
        return list(self)

    def values(self) -> list[Any]:
        return list(self.sums.values())

    def items(self) -> list[tuple[TensorId, Any]]:
        return [(TensorId(number), value) for number, value in self.sums.items()]

    def tree(self, tensors: Any, *, zeros: bool = False) -> Any:
        """Gradients in the structure of a pytree of tensors. What needs no gradient (frozen, integers, arrays) has zeros.

        A tensor that needs one and has none is an error with the reason: often it is not the one that the loss was
        computed from, but one that jax.tree.map made of it. zeros: it has zeros instead, unless its tensor was taken off the tape
        on the way, where they would be wrong.

        >>> import tapejax as tj
        >>> params = {"w": tj.tensor([2.0], requires_grad=True), "unused": tj.tensor([1.0], requires_grad=True)}
        >>> tj.backward(params["w"] ** 2).tree(params, zeros=True)
        {'unused': Array([0.], dtype=float32), 'w': Array([4.], dtype=float32)}
        """
        is_tensor = lambda leaf: isinstance(leaf, Tensor)
        cut = self.requested.get("cut", ())

        def one(leaf):
            if not is_tensor(leaf):
                return jnp.zeros_like(leaf)
            found = self._found(leaf.number)
            if found is None and leaf.requires_grad and (not zeros or leaf.number in cut):
                raise self._missing_in(tensors, leaf)
            return jnp.zeros_like(leaf.value) if found is None else found

        return jax.tree_util.tree_map(one, tensors, is_leaf=is_tensor)

    def _missing_in(self, tree: Any, tensor: Tensor) -> MissingGradientError:
        leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda leaf: isinstance(leaf, Tensor))
        place = next((jax.tree_util.keystr(path) for path, leaf in leaves if leaf is tensor), "")
        return MissingGradientError(
            f"no gradient for {tensor.id!r}{f' at {place}' * bool(place)}: {self.explain(tensor)}",
            at=user_line(),
            fix="give tree() the very tensors that the loss was computed from; tree(params, zeros=True) has zeros for those "
            "that it does not depend on",
        )

    def map(self, function: Callable[[Any], Any]) -> Gradients:
        """A function of each gradient, by tensor again."""
        if not callable(function):
            raise ArgumentError(f"map takes a function, not {type(function).__name__}")
        made = Gradients()
        made.sums = {number: function(value) for number, value in self.sums.items()}
        made.requested = self.requested
        return made

    def __repr__(self) -> str:
        names, gone = names_around(), ""
        try:
            sums = self.sums
        except DeletedError:
            sums, gone = self.ready, f"  and {len(self) - len(self.ready)} that can no longer be computed"
        shown = list(sums.items())[:ROWS]
        rows = [(names.get(number, ""), f"TensorId({number})", _kind(value), _short(value)) for number, value in shown]
        widths = [max(map(len, column)) for column in list(zip(*rows))[:3]]
        lines = [
            "  " + "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths) if width), row[3]]).rstrip()
            for row in rows
        ]
        more = len(sums) - len(shown)
        title = f"Gradients of {len(self)} tensor{'s' * (len(self) != 1)}"
        return "\n".join([title, *lines, *([f"  and {more} more"] if more else []), *([gone] if gone else [])])


def _number(key: Any) -> int:
    if isinstance(key, Tensor):
        return key.number
    if isinstance(key, TensorId):
        return key.number
    raise ArgumentError(
        f"gradients are filed by Tensor or TensorId, not by {type(key).__name__}",
        at=user_line(),
        fix="pass the Tensor that backward saw, or its .id",
    )


def _short(value: Any) -> str:
    """The values in one line; nothing for what is being traced."""
    value = value.value if isinstance(value, Tensor) else value
    if isinstance(value, Tracer):
        return ""
    if is_gone(value):
        return "deleted"
    here, part = local_part(value)
    text = " ".join(np.array2string(here, separator=", ", threshold=8, edgeitems=2, precision=5).split())
    return f"{text} ({part})" if part else text


def _kind(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}"


def _describe(key: Any) -> str:
    return repr(key.id) if isinstance(key, Tensor) else repr(key)


def _check_fits(tensor: Tensor, gradient: Any) -> None:
    if tensor.shape != gradient.shape or tensor.dtype != gradient.dtype:
        raise GradientMismatchError(
            f"a gradient of {_kind(gradient)} does not fit {tensor.id!r} of {_kind(tensor)}",
            at=user_line(),
            fix="a gradient has its tensor's shape and dtype",
        )
