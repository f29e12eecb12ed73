"""A tape that sees the values: each action with what went in and what came out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.ground import compat
from tapejax.ops.lift import lift
from tapejax.plan.plan import OpAction
from tapejax.program.program import CUSTOM, Eqn
from tapejax.tape.action import TapeAction
from tapejax.tape.packed import force
from tapejax.tape.tape import Tape
from tapejax.tensor.tensor import Tensor, make
from tapejax.transforms import recording
from tapejax.verify.subject import Subject


def custom_name(eqn: Eqn) -> str:
    """The name of the function that has the custom rule."""
    if "call_jaxpr" not in eqn.params:
        return eqn.name
    inner, _ = compat.jaxpr_parts(eqn.params["call_jaxpr"])
    info = getattr(getattr(inner, "debug_info", None), "func_src_info", None) or eqn.name
    return info.partition(" at ")[0]


class Seen:
    """An action with its values; None where a value is not known. made_up: inputs that stand in for lost ones."""

    __slots__ = ("action", "index", "inputs", "made_up", "outputs")

    def __init__(self, index: int, action: TapeAction, inputs: list[Any] | None, outputs: list[Any] | None):
        self.index, self.action, self.inputs, self.outputs = index, action, inputs, outputs
        self.made_up: list[int] = []

    @property
    def op(self) -> str:
        action = self.action
        plan = getattr(action, "plan", None)
        if plan is not None:
            return plan.name
        return getattr(action, "op", type(action).__name__)

    @property
    def line(self) -> str:
        return self.action.line

    @property
    def steps(self) -> tuple[tuple[str, int], ...]:
        return getattr(self.action, "steps", ())

    @property
    def label(self) -> str:
        eqn = getattr(getattr(self.action, "where", None), "eqn", None)
        name = f" {custom_name(eqn)}" if eqn is not None and self.op in CUSTOM else ""
        return self.op + name + "".join(f" {loop}[{step}]" for loop, step in self.steps)


class _AtOnce:
    """How ops run on a watched tape: at once and one by one, so that all values are there and little is compiled."""

    def pack(self, plan: Any, tensors: Any, kept: Any) -> Any:
        return kept


class Watch(Tape):
    """Keeps, for every action of an op, the values that went in and came out; its forks watch too."""

    execution = _AtOnce()

    def __init__(self, *, detail: str = "ops", label: str | None = None) -> None:
        super().__init__(detail=detail, label=label)
        self.calls: dict[int, Any] = {}
        self._last: Any = None

    def restart(self, by: str) -> list[Any]:
        self.calls, self._last = {}, None
        return super().restart(by)

    def observer(self, plan: Any, tensors: Sequence[Tensor], results: Sequence[Any], where: Any) -> None:
        self._last = (plan, [tensor.value for tensor in tensors], list(results))

    def append(self, action: Any) -> None:
        super().append(action)
        if type(action) is OpAction and self._last is not None and self._last[0] is action.plan:
            self.calls[id(action)] = self._last[1:]

    def fork(self, label: str | None = None) -> Tape:
        self._forks += 1
        child = Watch(detail=self.detail, label=label or f"{self.label}.{self._forks}")
        child.forked_from = (self.epoch, self._forks)
        child.calls = self.calls
        return child


class Watched:
    """A function that was recorded: its inputs, its actions with values, its results."""

    def __init__(self, leaves: Sequence[Tensor], seen: list[Seen], roots: list[Any], actions: list[TapeAction]):
        self.leaves, self.seen, self.roots, self.actions = leaves, seen, roots, actions


def watch(subject: Subject, *, detail: str = "primitives", values: Sequence[Any] | None = None) -> Watched:
    """Record a subject's call, equation by equation unless detail is "ops"."""
    values = subject.values if values is None else values
    tensors = [make(v, True) if i in subject.positions else v for i, v in enumerate(values)]
    with Watch(detail=detail) as tape:
        tape.guarded = True
        roots = _call(subject, tensors, tape)
    known = {leaf.id.number: leaf.value for leaf in [*tensors, *roots] if isinstance(leaf, Tensor)}
    leaves = [tensors[position] for position in subject.positions]
    return Watched(leaves, see(tape.actions, known, tape.calls), roots, list(tape.actions))


def _call(subject: Subject, tensors: Sequence[Any], tape: Watch) -> list[Any]:
    """The function on Tensors; lifted if it wants arrays, so that its equations keep their lines."""
    function = subject.function

    def over_arrays():
        tape.take_all()
        if "lifted" not in subject.compiled:
            subject.compiled["lifted"] = lift(function)
        return subject.compiled["lifted"](*tensors)

    return list(recording.called(function, lambda: function(*tensors), over_arrays))


def see(actions: Iterable[TapeAction], known: dict[int, Any], calls: dict[int, Any]) -> list[Seen]:
    """The actions with their values, from noted calls, from what they kept, and from each other."""
    actions = list(actions)
    for action in actions:
        if id(action) in calls:
            inputs, results = calls[id(action)]
            for tensor_id, value in zip(action.inputs, inputs, strict=True):
                known.setdefault(tensor_id.number, force(value))
            for number, value in zip(action.numbers, results):  # extras follow the outputs
                known.setdefault(number, force(value))
        else:
            known.update(_kept(action))
    found = []
    for index, action in enumerate(actions):
        inputs = None if action.inputs is None else [known.get(i.number) for i in action.inputs]
        outputs = None if action.outputs is None else [known.get(i.number) for i in action.outputs]
        if type(action) is OpAction and all(value is not None for value in inputs) and None in outputs:
            with jax.enable_x64(action.plan.x64):
                results = action.plan.forward(*inputs)
            outputs = [results] if action.plan.single else list(results)[: action.plan.n_out]
            known.update(zip(action.numbers, outputs))
        found.append(Seen(index, action, inputs, outputs))
    return found


def _kept(action: Any) -> dict[int, Any]:
    """The values that an action keeps for its backward, by number."""
    if type(action) is OpAction and action.kept is not None:
        plan = action.plan
        reversed_ = plan.reversed
        kept = [force(value) for value in action.kept]
        numbers = [action.inputs[i].number for i in reversed_.saves_in]
        numbers += [action.numbers[i] for i in reversed_.saves_out]
        found = dict(zip(numbers, kept))
        if plan.keeps_all_inputs:
            others = [i for i in range(plan.n_in) if i not in reversed_.saves_in]
            found.update(zip((action.inputs[i].number for i in others), kept[plan.n_read :]))
        return found
    custom = getattr(action, "custom", None)
    if custom is not None:  # a custom op in Python
        outputs, values = action.kept
        numbers = [i.number for i in (*action.outputs, *action.inputs)]
        return dict(zip(numbers, [*outputs, *values]))
    return {}


def stand_in(aval: Any, rng: np.random.Generator) -> Any:
    """A value of this kind where the tape kept none: its rule does not read it, so any will do."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended):
        return None
    if not jnp.issubdtype(aval.dtype, jnp.inexact):
        return jnp.zeros(aval.shape, aval.dtype)
    drawn = rng.uniform(0.5, 1.5, aval.shape)
    return jnp.asarray(drawn, aval.dtype)


def tape_of(tape: Tape) -> list[Seen]:
    """The actions of a tape that was recorded already, with the values that can still be found."""
    return see(tape.actions, {}, {})
