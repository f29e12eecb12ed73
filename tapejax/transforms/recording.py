"""How a transform calls a function: on a tape of its own, with respect to chosen leaves of its arguments.

The function is called with Tensors in place of the chosen leaves, so that it may be written with
operators, tapejax functions and Python control flow. A function written for jax arrays refuses
Tensors (or would drop them from the tape, which is noticed): it is traced by jax instead and recorded
as one action, and what it turned out to be is remembered.

What the function reads of an outer tape (recorded Tensors among its arguments, or that it closes
over) must be differentiable there as well: the actions then move to the outer tape, and going back
over them is recorded too. See docs/design/higher-order.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.engine import backward as engine
from tapejax.engine import higher_order
from tapejax.engine.higher_order import Alias
from tapejax.errors import (
    ConcreteValueError,
    MissingGradientError,
    RequiresGradError,
    TensorConversionError,
    WantsArraysError,
    WantsTensorsError,
)
from tapejax.ground import compat
from tapejax.ground.where import user_line
from tapejax.ops.lift import as_tensor, is_data, is_tensor, lift, scalar
from tapejax.ops.surface import functions
from tapejax.plan.plan import OpAction
from tapejax.tape.action import Composite, materialised, next_number
from tapejax.tape.scope import Scope, current_scope, restore, set_scope
from tapejax.tensor.gradients import Gradients
from tapejax.tensor.tensor import Tensor, array_of, make, refusal_of

_tree = jax.tree_util


class Recording:
    """A call and its tape.

    leaves: the Tensors that stood in for the chosen leaves. result: what the function returned.
    joined: whether the actions are part of an outer tape, where derivatives of derivatives flow on.
    """

    __slots__ = ("actions", "joined", "leaves", "result")

    def __init__(self, leaves: list[Tensor], actions: list[Any], result: Any, joined: bool):
        self.leaves, self.actions, self.result, self.joined = leaves, actions, result, joined

    def pull(self, roots: Sequence[Any], cts: Sequence[Any], *, once: bool = False) -> list[Any]:
        """The cotangents of the leaves, from those of the roots (leaves of the result; others than Tensors have none).

        Tensors if the way back is recorded, arrays otherwise. once: the actions are not needed again.
        """
        scope = current_scope()
        records = scope.enabled and (self.joined or any(is_tensor(ct) and ct.requires_grad for ct in cts))
        grads = _seeded(roots, cts, records)
        wanted = {leaf.id.number for leaf in self.leaves}
        if records:
            step = partial(higher_order.step, through=self.joined)
            engine.go_back(list(self.actions), grads, wanted, step=step)
        else:
            engine.go_back(self.actions if once else list(self.actions), grads, wanted, alone=once)
        return [jnp.zeros_like(leaf.value) if (ct := grads.get(leaf)) is None else ct for leaf in self.leaves]

    def pull_many(self, roots: Sequence[Any], cts: Sequence[Any], lanes: int) -> list[Any]:
        """`pull` for cotangents with a leading axis of this size."""
        scope = current_scope()
        if not (scope.enabled and (self.joined or any(is_tensor(ct) and ct.requires_grad for ct in cts))):
            return jax.vmap(lambda *one: self.pull(roots, one), axis_size=lanes)(*map(plain, cts))
        if not all(type(action) in (OpAction, Alias) for action in materialised(self.actions)):
            rows = [self.pull(roots, [ct[i] for ct in cts]) for i in range(lanes)]  # somebody's own actions
            return [_stacked(*column) for column in zip(*rows, strict=True)]
        grads = _seeded(roots, cts, True)
        step = partial(higher_order.step, through=self.joined, lanes=lanes)
        engine.go_back(list(self.actions), grads, {leaf.id.number for leaf in self.leaves}, step=step)
        zeros = lambda leaf: jnp.zeros((lanes, *leaf.shape), leaf.dtype)
        return [zeros(leaf) if (ct := grads.get(leaf)) is None else ct for leaf in self.leaves]


_stacked = lift(lambda *parts: jnp.stack(parts), name="stack")


def _seeded(roots: Sequence[Any], cts: Sequence[Any], records: bool) -> Gradients:
    grads = Gradients()
    for root, ct in zip(roots, cts, strict=True):
        if is_tensor(root) and root.requires_grad and ct is not None:
            grads.add(root.number, (ct if is_tensor(ct) else as_tensor(ct)) if records else plain(ct))
    return grads


def plain(leaf: Any) -> Any:
    """The value of a Tensor; anything else as it is."""
    return leaf.value if isinstance(leaf, Tensor) else leaf


def record_call(function: Callable[..., Any], args: Any, kwargs: dict[str, Any], chosen: Iterable[int]) -> Recording:
    """Call a function with respect to the chosen leaves of (args, kwargs)."""
    outer = current_scope()
    given, structure = _tree.tree_flatten((args, kwargs), is_leaf=is_tensor)
    if outer.bindings is not None:
        given = [outer.bindings.resolve([leaf])[0] if is_tensor(leaf) else leaf for leaf in given]
    start = next_number()
    leaves: dict[int, Tensor] = {position: _stand_in(given[position], outer) for position in chosen}
    tape = outer.tape.fork(label=f"the tape of {getattr(function, '__name__', 'a function')}")
    tape.guarded = True
    inside = Scope(tape, True, (outer.thread, outer.task), outer.bindings, outer.execution)
    set_scope(inside)
    try:
        result = _call(function, given, structure, leaves, outer.enabled)
    finally:
        restore(outer)
    actions = tape.entries()
    stand_ins = list(leaves.values())
    joined = outer.enabled and (
        any(type(leaf.id.producer) is Alias for leaf in stand_ins) or _reads_older(actions, start)
    )
    if joined:
        outer.tape.merge([tape])
    return Recording(stand_ins, actions, result, joined)


def _stand_in(leaf: Any, outer: Scope) -> Tensor:
    """A Tensor with an identity of its own: the same tensor may also be used as what it is outside."""
    if is_tensor(leaf) and leaf.requires_grad and outer.enabled:
        alias = Alias(leaf, outer.tape.epoch, user_line())
        outer.tape.append(alias)
        return alias.of(leaf)
    value = leaf.value if is_tensor(leaf) else leaf
    return make(array_of(value), True)


def _reads_older(entries: list[Any], start: int) -> bool:
    """Whether an action reads a recorded tensor from before the call. Identities are numbered as they are made."""
    for action in entries:
        if isinstance(action, Composite):
            if any(number < start for number in action.reads()):
                return True
            continue
        wanted = action.plan.wrt if type(action) is OpAction else itertools.repeat(True)
        for id, needed in zip(action.inputs or (), wanted):
            if needed and id.number < start:
                return True
    return False


# --- functions over Tensors, and functions over arrays ------------------------------------------------

_over_arrays: WeakSet[Any] = WeakSet()  # functions that turned out to be written for arrays


def _call(
    function: Callable[..., Any], given: list[Any], structure: Any, leaves: dict[int, Tensor], enabled: bool
) -> Any:
    def over_tensors():
        filled = [leaves.get(position, leaf) for position, leaf in enumerate(given)]
        args, kwargs = _tree.tree_unflatten(structure, filled)
        return function(*args, **kwargs)

    def over_arrays():
        current_scope().tape.take_all()
        return _call_over_arrays(function, given, structure, leaves, enabled)

    return called(function, over_tensors, over_arrays)


def called(function: Any, over_tensors: Callable[[], Any], over_arrays: Callable[[], Any]) -> Any:
    """The call of a function in one of two ways: over arrays, if it gave a Tensor to jax when it was called over Tensors.

    An error of the function's own comes out at once, whatever it says.
    """
    if is_known_over_arrays(function):
        return over_arrays()
    try:
        return over_tensors()
    except Exception as error:
        refusal = refusal_of(error)
        if refusal is None:
            raise
    with _instead_of(refusal):
        result = over_arrays()
    remember_over_arrays(function)
    return result


@contextmanager
def _instead_of(refusal: Exception) -> Iterator[None]:
    """What does not run over arrays either was not written for them: then the refusal of a Tensor is what to tell.

    Whatever else is raised is the user's own error, or about the program itself: a loop of unknown length, a missing rule.
    """
    try:
        yield
    except _WRITTEN_FOR_TENSORS as error:
        raise refusal from error


_WRITTEN_FOR_TENSORS = (
    WantsArraysError,
    WantsTensorsError,
    TensorConversionError,
    ConcreteValueError,
    RequiresGradError,
    MissingGradientError,
    jax.errors.TracerArrayConversionError,
    jax.errors.ConcretizationTypeError,
)


def is_known_over_arrays(function: Any) -> bool:
    try:
        return function in _over_arrays
    except TypeError:  # it cannot be hashed
        return False


def remember_over_arrays(function: Any) -> None:
    try:
        _over_arrays.add(function)
    except TypeError:  # nor hashed, or referred to weakly: it is found out again next time
        return


def _call_over_arrays(function, given, structure, leaves: dict[int, Tensor], enabled: bool) -> Any:
    """The call as one action; recorded Tensors among the other arguments are operands too."""
    operands = dict(leaves)
    for position, leaf in enumerate(given):
        if position not in leaves and enabled and is_tensor(leaf) and leaf.requires_grad:
            operands[position] = leaf
    rest: list[Any] = []
    found: Any = None

    def whole(bindings: Any, values: Sequence[Any]) -> list[Any]:
        nonlocal rest, found
        filled = [plain(leaf) for leaf in given]
        for position, value in zip(operands, values, strict=True):
            filled[position] = value
        args, kwargs = _tree.tree_unflatten(structure, filled)
        results, found = _tree.tree_flatten(functions.Body(function, bindings, False)(*args, **kwargs))
        rest = [None if is_data(leaf) else leaf for leaf in results]
        return [leaf for leaf in results if is_data(leaf)]

    name = getattr(function, "__name__", "function")
    arrays = iter(functions.record_function(name, whole, list(operands.values())))
    return _tree.tree_unflatten(found, [next(arrays) if leaf is None else leaf for leaf in rest])


# --- what goes out ------------------------------------------------------------------------------------


def outward(leaf: Any, recording: Recording, tensors: bool) -> Any:
    """A leaf of a result as the caller gets it: recorded on the outer tape, or a value.

    tensors: whether values come as Tensors, because Tensors went in.
    """
    if is_tensor(leaf):
        if recording.joined and leaf.requires_grad:
            return leaf
        return make(leaf.value, False) if tensors else leaf.value
    return make(leaf, False) if tensors and isinstance(leaf, jax.Array) else leaf


def gradient_for(given: Any, ct: Any) -> Any:
    """A gradient as the caller gets it: a Tensor if it is recorded or if its argument is one."""
    if is_tensor(ct):
        return ct if ct.requires_grad or is_tensor(given) else ct.value
    return make(ct, False) if is_tensor(given) else ct


def start_of(root: Tensor) -> Any:
    """The cotangent that a backward starts with: ones, as weakly typed as the root."""
    if root.weak_type and not root.shape:
        return scalar(root.dtype.type(1).item()).value
    if isinstance(root.held, jax.core.Tracer) and compat.is_plain(root.aval):
        return jax.lax.broadcast(root.dtype.type(1), root.shape)
    return engine.ones_like(root)


def zero_of(root: Tensor) -> Any:
    if root.weak_type and not root.shape:
        return scalar(root.dtype.type(0).item()).value
    return jnp.zeros(root.shape, root.dtype)


def no_gradient(leaf: Any) -> np.ndarray:
    """What jax gives as the gradient of integers and booleans."""
    return np.zeros(np.shape(plain(leaf)), jax.dtypes.float0)


def kind_of(leaf: Any) -> Any:
    """The aval of a leaf, be it a Tensor, an array or a number."""
    return leaf.aval if isinstance(leaf, (Tensor, jax.Array)) else jax.typeof(leaf)
