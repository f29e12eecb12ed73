"""Where a hook can be put."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tapejax.errors import ArgumentError, ConsumedTapeError, RequiresGradError
from tapejax.ground.where import user_line
from tapejax.hooks import calls, registry
from tapejax.hooks.regions import number_of, region
from tapejax.hooks.registry import ACCUMULATED, AFTER, BEFORE, FORWARD, GRADIENT, Hook
from tapejax.tape.action import TapeAction
from tapejax.tensor.tensor import Tensor


class Everything:
    """Every action, or every op."""

    def __repr__(self) -> str:
        return "everything"


EVERYTHING = Everything()


def on_gradient(x: Tensor | str, function: Callable[[Any], Any]) -> Hook:
    """Call function(gradient) when the gradient of x is complete, before it goes on; what it returns takes its place.

    x: a Tensor, leaf or not, or a name given with checkpoint_name, inside lifted functions too. The same as
    `x.register_hook(function)`. It is called once per backward, in the order in which hooks were registered.

    >>> import tapejax as tj
    >>> x = tj.tensor([3.0, 4.0], requires_grad=True)
    >>> h = x * x
    >>> handle = h.register_hook(lambda gradient: 10 * gradient)
    >>> tj.backward(h.sum())[x]
    Array([60., 80.], dtype=float32)
    """
    if isinstance(x, str):
        return _everywhere(Hook(GRADIENT, function, x), opens=True)
    return _on_tensor(Hook(GRADIENT, function, _checked(x).id, None), x)


def after_accumulation(x: Tensor, function: Callable[[Tensor, Any], None]) -> Hook:
    """Call function(x, gradient) when the gradient of a leaf is complete, after all that `on_gradient` has done to it.

    >>> import tapejax as tj
    >>> x = tj.tensor(3.0, requires_grad=True)
    >>> handle = tj.hooks.after_accumulation(x, lambda x, gradient: print(float(gradient)))
    >>> grads = tj.backward(x * x + x)
    7.0
    """
    if not _checked(x).is_leaf:
        raise ArgumentError(
            f"{x.id!r} is no leaf: gradients accumulate in those", fix="hooks.on_gradient for what an op made"
        )
    return _on_tensor(Hook(ACCUMULATED, function, x.id, x), x)


def before(target: Any, function: Callable[[Any, tuple[Any, ...]], Any]) -> Hook:
    """Call function(action, cotangents) before an action goes back; what it returns is what the action gets instead.

    target: an action, a Tensor (for the action that made it), an op or its name, a `region`, or EVERYTHING.

    >>> import tapejax as tj, tapejax.numpy as tnp
    >>> x = tj.tensor([0.0, 1.0], requires_grad=True)
    >>> with tj.hooks.before("exp", lambda action, cotangents: print(action.op, cotangents[0])):
    ...     grads = tj.backward(tnp.exp(x).sum())
    Exp [1. 1.]
    """
    return _on_action(Hook(BEFORE, function, _target(target)))


def after(target: Any, function: Callable[[Any, tuple[Any, ...], tuple[Any, ...]], Any]) -> Hook:
    """Call function(action, gradients, cotangents) after an action went back: one gradient per input of the action, None
    where it has none. What it returns is added to the gradients instead.

    target: as for `before`.
    """
    return _on_action(Hook(AFTER, function, _target(target)))


def forward(target: Any, function: Callable[[Any], Any]) -> Hook:
    """Call function(call) when an op ran: see `Call`. Tensors that it returns take the place of the results.

    target: an op or its name, a `region`, or EVERYTHING. Ops that have no gradient count too. What it is registered for runs
    at once, by itself.

    >>> import tapejax as tj, tapejax.numpy as tnp
    >>> x = tj.tensor([0.0, 1.0], requires_grad=True)
    >>> with tj.hooks.forward("exp", lambda call: print(call.op, call.outputs[0].shape)):
    ...     y = tnp.exp(x).sum()
    exp (2,)
    """
    found = _target(target)
    if isinstance(found, TapeAction):
        raise ArgumentError("an action has run already", fix="an op, its name, or a region: hooks.forward('exp', f)")
    return _everywhere(Hook(FORWARD, function, found), opens=isinstance(found, region), watches=True)


def _target(target: Any) -> Any:
    """An action, a region, EVERYTHING, or the name of an op."""
    if isinstance(target, Tensor):
        action = _checked(target).id.producer
        if action is None:
            raise ArgumentError(f"{target.id!r} is a leaf: no action made it", fix="hooks.on_gradient(x, f)")
        return action
    if isinstance(target, (str, region, Everything, TapeAction)):
        return target
    name = getattr(target, "name", None) or getattr(target, "__name__", None)
    if callable(target) and isinstance(name, str):
        return name
    raise ArgumentError(
        f"no hook can be put on a {type(target).__name__}",
        at=user_line(),
        fix="a Tensor, an action of a tape, an op or its name, tapejax.region(name), or hooks.EVERYTHING",
    )


def _checked(x: Any) -> Tensor:
    if not isinstance(x, Tensor):
        raise ArgumentError(f"a {type(x).__name__} has no gradient", at=user_line(), fix="give a Tensor")
    if not x.requires_grad:
        raise RequiresGradError(
            f"{x.id!r} needs no gradient: its hook would never be called",
            at=user_line(),
            fix="make it with requires_grad=True, outside of no_grad and detach",
        )
    return x


def _on_tensor(hook: Hook, x: Tensor) -> Hook:
    if x.is_leaf:
        return registry.on_leaf(x.id, hook)
    return registry.on_content(_still_there(x.epoch, x.id), (hook.kind, x.number), hook)


def _on_action(hook: Hook) -> Hook:
    action = hook.target
    if not isinstance(action, TapeAction):
        return _everywhere(hook, opens=isinstance(action, region))
    epoch, number = getattr(action, "epoch", None), number_of(action)
    if epoch is None or not number:
        return _everywhere(hook)
    return registry.on_content(_still_there(epoch, action), (hook.kind, number), hook)


def _still_there(epoch: Any, what: Any) -> Any:
    if epoch.current().consumed_by is not None:
        raise ConsumedTapeError(
            f"too late for a hook on {what!r}: {epoch.label} was consumed by {epoch.current().consumed_by}",
            at=user_line(),
            fix="register it before backward, or keep the tape with backward(..., retain_tape=True)",
        )
    return epoch


def _everywhere(hook: Hook, *, opens: bool = False, watches: bool = False) -> Hook:
    hook.keep(registry.everywhere)
    if opens or watches:
        calls.attend(hook)
    return hook
