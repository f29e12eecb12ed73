"""Going back over the tape with the way recorded, so that it can be differentiated again.

A backward is a JAX function like any other: of what its action kept, and of the cotangents. To
record it is to lift it. What was kept gets its identity back (the inputs' and outputs' own), so that
a second derivative flows on through the first forward. A plan that keeps more than inputs and
outputs (extras) goes back as a function of its inputs instead, which computes the extras again.
See docs/design/higher-order.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from tapejax.ground.placement import Shardings
from tapejax.ops.lift import Lifted, as_tensor
from tapejax.plan.plan import OpAction, Plan, zeros_for
from tapejax.tape.action import TapeAction, TensorId
from tapejax.tape.packed import force
from tapejax.tensor.gradients import Gradients
from tapejax.tensor.tensor import Kind, Tensor, make, with_id


class Alias(TapeAction):
    """A tensor under a second identity: what a transform differentiates with respect to."""

    __slots__ = ("__weakref__", "epoch", "inputs", "line", "outputs", "sequence")
    reachable = True

    def __init__(self, tensor: Tensor, epoch: Any, line: str):
        self.inputs = (tensor.id,)
        made = TensorId()
        self.outputs = (TensorId(made.number),)
        self.sequence = made.number
        self.epoch = epoch
        self.line = line

    def of(self, tensor: Tensor) -> Tensor:
        """The tensor as it is known from here on."""
        return tensor.known_as(TensorId(self.sequence, self), tensor.kind)

    def backward(self, grads: Gradients) -> None:
        ct = grads.get(self.outputs[0])
        if ct is not None:
            grads.add(self.inputs[0].number, ct)


def step(action: TapeAction, grads: Gradients, *, through: bool = True, lanes: int | None = None) -> None:
    """One action's backward over Tensors, recorded.

    through: also differentiate what the action kept, not only the cotangents.
    lanes: the cotangents have a leading axis of this size, over which the backward is mapped.
    """
    if type(action) is not OpAction:
        in_steps = getattr(action, "backward_in_steps", None)  # one that is made of others, such as a checkpoint
        if in_steps is None:
            action.backward(grads)
        else:
            in_steps(grads, partial(step, through=through, lanes=lanes), through=through)
        return
    plan = action.plan
    cts = [grads.sums.get(number) for number in action.numbers]
    if all(ct is None for ct in cts):
        return
    filled = [_filled(ct, kind.aval, lanes) for ct, kind in zip(cts, plan.out_kinds, strict=True)]
    kept = [force(value) for value in action.kept]
    if not through:
        which, operands = "kept", [make(value, False) for value in kept[: plan.n_read]]
    elif plan.keeps_all_inputs:
        which, operands = "inputs", _inputs(action, kept)
    else:
        which, operands = "kept", _kept(action, kept)
    shardings = action.shardings if lanes is None else None
    with action.going_back():
        found = _apply(plan, which, lanes, [*operands, *filled], action.where, shardings)
    for id, gradient in zip(action.differentiable_inputs(), found, strict=True):
        grads.add(id.number, gradient)


def _filled(ct: Any, aval: Any, lanes: int | None) -> Tensor:
    if ct is not None:
        return ct if isinstance(ct, Tensor) else as_tensor(ct)
    zeros = zeros_for(aval)
    return make(zeros if lanes is None else jnp.zeros((lanes, *zeros.shape), zeros.dtype), False)


def _kept(action: OpAction, kept: list[Any]) -> list[Tensor]:
    """What an action without extras kept: inputs and outputs, under their own identities."""
    reversed_ = action.plan.reversed
    inputs = [_input(action, i, value) for i, value in zip(reversed_.saves_in, kept)]
    outputs = [
        with_id(value, TensorId(action.numbers[i], action), action.plan.out_kinds[i])
        for i, value in zip(reversed_.saves_out, kept[len(inputs) :])
    ]
    return inputs + outputs


def _inputs(action: OpAction, kept: list[Any]) -> list[Tensor]:
    """All inputs of an action with extras, in order."""
    plan = action.plan
    read = plan.reversed.saves_in
    values = dict(zip(read, kept))
    values.update(zip((i for i in range(plan.n_in) if i not in read), kept[plan.n_read :], strict=True))
    return [_input(action, i, values[i]) for i in range(plan.n_in)]


def _input(action: OpAction, position: int, value: Any) -> Tensor:
    plan = action.plan
    return with_id(value, action.inputs[position], Kind.of(plan.examples[position], plan.wrt[position]))


def _apply(
    plan: Plan, which: str, lanes: int | None, tensors: list[Tensor], where: Any, shardings: Shardings
) -> tuple[Tensor, ...]:
    """The plan's backward as an op over Tensors; made once per plan, and per shardings of its results."""
    mapped = lanes is not None
    op = plan.steps_cache.get((which, mapped, shardings))
    if op is None:
        function: Callable[..., Any] = plan.run_backward if which == "kept" else _from_inputs(plan)
        if mapped:
            n_operands = len(tensors) - plan.n_out
            function = jax.vmap(function, in_axes=(None,) * n_operands + (0,) * plan.n_out)
        if shardings is not None:
            function = _laid_out(function, shardings, plan.moves)
        op = Lifted(function, f"{plan.name}_backward", set(), set(), plan.options)
        plan.steps_cache[which, mapped, shardings] = op
    return op.at(where, tensors)


def _laid_out(function: Callable[..., Any], shardings: tuple[Any, ...], moves: bool) -> Callable[..., Any]:
    def backward(*arguments):
        return tuple([laid_out(ct, sharding) for ct, sharding in zip(function(*arguments), shardings, strict=True)])

    def laid_out(ct, sharding):
        if sharding is None:
            return ct
        return jax.device_put(ct, sharding) if moves else jax.lax.with_sharding_constraint(ct, sharding)

    return backward


def _from_inputs(plan: Plan) -> Callable[..., Any]:
    def backward(*arguments):
        values, cts = arguments[: plan.n_in], arguments[plan.n_in :]
        outputs, extras = plan.program.forward(*values)
        return plan.run_backward(*plan.keep((*values, *outputs, *extras)), *cts)

    return backward
