"""explain: why a gradient is missing, zero, or lacks a part; with the action or the line that is to blame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from tapejax.diagnose.elements import to_numpy
from tapejax.diagnose.places import file_and_line
from tapejax.errors import ArgumentError, CutGradientError, TapejaxError
from tapejax.ground.where import line_of, user_line
from tapejax.hooks.calls import kept_by
from tapejax.tape import cuts
from tapejax.tape.tape import Tape, current_tape
from tapejax.tensor.tensor import Tensor
from tapejax.transforms.recording import plain

# Ops whose slope fades out. That of all others is exactly zero where it is zero: a dead relu, a mask, a rounding.
SATURATING = frozenset(
    [
        "sigmoid",
        "logistic",
        "expit",
        "tanh",
        "softmax",
        "log_softmax",
        "softplus",
        "log_sigmoid",
        "hard_sigmoid",
        "hard_tanh",
        "erf",
        "erfc",
        "exp",
        "exp2",
        "expm1",
        "clip",
        "clamp",
        "soft_sign",
        "elu",
        "selu",
        "celu",
        "gelu",
        "silu",
        "power",
        "float_power",
        "arctan",
        "logsumexp",
    ]
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a gradient is as it is.

    cause: "unused" (nothing made of it leads to the root), "cut" (it left the tape on the way), "partial" (a part of it
    did), "flat" (an op has no slope there), "saturated" (its slope is too small for the dtype), "none" (nothing is
    wrong). op: the function or action that is to blame, with its file and line. share: of the elements, how many are zero.
    """

    cause: str
    op: str = ""
    file: str = ""
    lineno: int = 0
    text: str = ""
    share: float = 0.0

    def __str__(self) -> str:
        where = f" at {self.file}:{self.lineno}" if self.file else ""
        return f"{self.cause}: {self.text}{where}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def explain(root: Tensor, x: Tensor, *, tape: Tape | None = None) -> Explanation:
    """Why the gradient of root with respect to x is missing, zero, or lacks a part. The tape stays as it was.

    >>> import tapejax as tj
    >>> x = tj.tensor([-1.0, 2.0], requires_grad=True)
    >>> with tj.Tape() as tape:
    ...     loss = tj.nn.relu(x - 5.0).sum()
    >>> found = tj.explain(loss, x)
    >>> found.cause, found.op, found.share
    ('flat', 'relu', 1.0)
    """
    for name, given in (("root", root), ("x", x)):
        if not isinstance(given, Tensor):
            raise ArgumentError(f"explain takes Tensors; {name} is a {type(given).__name__}", at=user_line())
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return Explanation(
            "cut", str(x.dtype), text=f"its dtype is {x.dtype}, and integers and booleans have no gradient"
        )
    if not x.requires_grad:
        return Explanation("cut", "requires_grad", text="its requires_grad is False: nothing is recorded for it")
    way = Way(root)
    made_of_x = Made(x, way, tape or current_tape())
    if x.id.number not in way.reached:
        return _missing(root, x, way, made_of_x)
    found = _partial(root, x, way, made_of_x)
    return _zero(root, x, way) if found is None else found


class Way:
    """The actions that lead to a root, and what they read."""

    def __init__(self, root: Tensor):
        self.actions: dict[int, Any] = {}
        self.reached: set[int] = {root.id.number}  # through which derivatives flow
        self.read: dict[int, Any] = {}  # by number, the action that reads it, be it without a derivative
        self.elsewhere: dict[int, Any] = {}  # by number, the action on another tape that made it
        self.epoch = _content(root.id.producer)
        pending = [root.id]
        while pending:
            operand = pending.pop()
            action = operand.producer
            if action is None or id(action) in self.actions:
                continue
            if _content(action) is not self.epoch:
                self.elsewhere[operand.number] = action
                continue
            self.actions[id(action)] = action
            differentiable = {i.number for i in differentiable_inputs(action)}
            for operand in action.inputs or ():
                self.read.setdefault(operand.number, action)
                if operand.number in differentiable:
                    self.reached.add(operand.number)
                    pending.append(operand)


def _content(action: Any) -> Any:
    """The content of a tape that an action is part of; None if it does not tell."""
    epoch = getattr(action, "epoch", None)
    return None if epoch is None else epoch.current()


def differentiable_inputs(action: Any) -> Sequence[Any]:
    return getattr(action, "differentiable_inputs", lambda: action.inputs or ())()


class Made:
    """What was made of a tensor: the numbers, and the actions that made them."""

    def __init__(self, x: Tensor, way: Way, tape: Tape):
        self.numbers: set[int] = {x.id.number}
        self.dead_ends: list[Any] = []  # actions whose results have no gradient
        actions = {id(a): a for a in [*tape.actions, *way.actions.values(), *_behind(way.elsewhere.values())]}
        for action in sorted(actions.values(), key=lambda action: getattr(action, "sequence", 0)):
            if any(operand.number in self.numbers for operand in action.inputs or ()):
                self.numbers.update(out.number for out in action.outputs or ())
                if not any(_needs_gradient(action)):
                    self.dead_ends.append(action)

    def exits(self) -> Iterator[cuts.Exit]:
        """Where it, or something made of it, left the tape; the last time first."""
        return (left for left in reversed(cuts.exits) if left.number in self.numbers)


def _behind(actions: Iterable[Any]) -> list[Any]:
    """Some actions, and those that led to them."""
    found, pending = {}, list(actions)
    while pending:
        action = pending.pop()
        if action is not None and id(action) not in found:
            found[id(action)] = action
            pending += [operand.producer for operand in action.inputs or ()]
    return list(found.values())


def _needs_gradient(action: Any) -> Iterator[bool]:
    plan = getattr(action, "plan", None)
    return iter([True]) if plan is None else (kind.requires_grad for kind in plan.out_kinds)


def _op(action: Any) -> str:
    plan = getattr(action, "plan", None)
    return plan.name if plan is not None else type(action).__name__


def _said(cause: str, op: str, line: str, text: str, share: float = 0.0) -> Explanation:
    return Explanation(cause, op, *file_and_line(line), text, share)


def _missing(root: Tensor, x: Tensor, way: Way, made: Made) -> Explanation:
    exact = [left for left in made.exits() if left.made in way.read]
    if exact:
        left = exact[0]
        if left.by_nature:
            what = f"the results of `{left.how}` have no gradient: integers, booleans, or behind a stop_gradient"
            return _said("cut", left.how, left.line, what)
        return _said("cut", left.how, left.line, f"{left.how} took it off the tape, and the root reads what came of it")
    for action in made.dead_ends:
        if any(out.number in way.read for out in action.outputs or ()):
            what = f"the results of `{_op(action)}` are integers or booleans, through which no gradient flows"
            return _said("cut", _op(action), action.line, what)
    other = next((a for n, a in way.elsewhere.items() if n in made.numbers), None)
    if other is not None:
        what = f"`{_op(other)}` was recorded on {other.epoch.label}, the root on {way.epoch.label if way.epoch else 'none'}"
        return _said("cut", "tape", other.line, what)
    rebuilt = _rebuilt(x, way)
    if rebuilt is not None:
        return rebuilt
    without = _without_grad(way, made)
    if without is not None:
        return without
    began = 0 if way.epoch is None else way.epoch.start
    counts = lambda left: (
        (left.time < root.id.number or not way.actions) and (left.how != ".value" or left.time > began)
    )
    left = next(filter(counts, made.exits()), None)
    if left is not None and left.by_nature:
        return _said("cut", left.how, left.line, f"the results of `{left.how}` have no gradient")
    if left is not None:
        return _said(
            "cut", left.how, left.line, f"{left.how} gave out its plain value; what is made of that has no gradient"
        )
    if not root.requires_grad:
        return Explanation("cut", "root", text="the root itself needs no gradient: nothing of it was recorded")
    if made.dead_ends and len(made.numbers) > 1:
        action = made.dead_ends[-1]
        return _said("cut", _op(action), action.line, f"the results of `{_op(action)}` have no gradient")
    return Explanation("unused", text="nothing that was made of it leads to the root, or it was read by its .value")


def _rebuilt(x: Tensor, way: Way) -> Explanation | None:
    """A leaf that was rebuilt from it, by jax.tree.map say, is read instead."""
    start = 0 if way.epoch is None else way.epoch.start
    taken = cuts.log.since(start)
    takings = taken.get(x.id)
    if not takings:
        return None
    for leaf in cuts.log.rebuilt_since(start):
        if leaf.number in way.read and x.id in cuts.origins(leaf, taken):
            name = next((t.caller.name for t in takings if t.caller.where == leaf.where), takings[-1].caller.name)
            return _said(
                "cut", name, line_of(leaf.where), f"{name} rebuilt it as a new Tensor, and the root reads that"
            )
    caller = takings[-1].caller
    return _said("cut", caller.name, caller.line, f"{caller.name} took its plain value out")


def _without_grad(way: Way, made: Made) -> Explanation | None:
    for number in way.read:
        if number in way.reached:
            continue
        for first, last, where in reversed(cuts.blocks_without_grad):
            if first < number and (last == 0 or number < last):
                return _said("cut", "no_grad", line_of(where), "what the root reads was computed under no_grad")
    return None


def _partial(root: Tensor, x: Tensor, way: Way, made: Made) -> Explanation | None:
    for left in made.exits():
        if left.made in way.read and not left.by_nature:
            what = f"one way to the root goes through {left.how}, and adds nothing to the gradient"
            return _said("partial", left.how, left.line, what)
    if way.epoch is not None and cuts.log.last > way.epoch.start:
        try:
            cuts.check(current_tape(), [root], [x.id.number])
        except CutGradientError as error:
            rebuilt = _rebuilt(x, way)
            if rebuilt is not None:
                return Explanation("partial", rebuilt.op, rebuilt.file, rebuilt.lineno, error.what)
            return Explanation("partial", text=error.what)
    return None


def _zero(root: Tensor, x: Tensor, way: Way) -> Explanation:
    """Where the gradient becomes zero, going back; nothing is wrong if it does not."""
    tape = Tape(label="explain")
    for action in sorted(way.actions.values(), key=lambda action: getattr(action, "sequence", 0)):
        tape.push(action)
    if way.epoch is not None:
        tape.epoch = way.epoch
    seed = None if not root.shape else jnp.ones(root.shape, root.dtype)
    try:
        steps = list(tape.cursor(root, seed, hooks=False))
    except TapejaxError as error:
        return Explanation("none", text=f"it has a way to the root; its size is not known: {error}")
    leads = {x.id.number}
    for step in reversed(steps):  # from x towards the root
        if any(operand.number in leads for operand in differentiable_inputs(step.action)):
            leads.update(out.number for out in step.action.outputs or ())
    totals = [term.after for step in steps for term in step.outgoing if term.id.number == x.id.number]
    total = to_numpy(plain(totals[-1])) if totals else np.zeros(x.shape)
    share = float(np.mean(total == 0)) if total.size else 0.0
    if share == 0.0:
        return Explanation("none", text="it has a gradient, and no element of it is zero")
    worst: tuple[float, Any] | None = None
    for step in steps:
        arriving = [to_numpy(plain(ct)) for ct in step.incoming.values()]
        sent = [to_numpy(plain(term.value)) for term in step.outgoing if term.id.number in leads]
        if not arriving or not sent or not any(np.any(ct != 0) for ct in arriving):
            continue
        before = float(np.mean([np.mean(ct == 0) for ct in arriving if ct.size]))
        after = float(np.mean([np.mean(ct == 0) for ct in sent if ct.size]))
        if after > before and (worst is None or after - before > worst[0]):
            worst = after - before, step
    if worst is None:
        return _cancelled(steps, leads, share)
    action = worst[1].action
    op = _op(action)
    cause = "saturated" if op in SATURATING and not _at_zero(action) else "flat"
    what = {"flat": "has no slope there", "saturated": "is saturated"}[cause]
    count = "all" if share == 1.0 else f"{share:.0%}"
    return _said(cause, op, action.line, f"`{op}` {what}; {count} of the gradient is zero", share)


def _at_zero(action: Any) -> bool:
    """Whether it is a power of zero: at its bottom, where the slope is zero and not merely small."""
    base = [kept.value for kept in kept_by(action) if kept.position == 0 and kept.operand != "out"]
    return _op(action) in ("power", "float_power") and any(bool((to_numpy(value) == 0).any()) for value in base)


def _cancelled(steps: Sequence[Any], leads: set[int], share: float) -> Explanation:
    """No action sends a zero on: then two that were added are each other's opposite, or the root's own is zero."""
    for step in steps:
        for term in step.outgoing:
            sent, total = to_numpy(plain(term.value)), to_numpy(plain(term.after))
            if term.id.number in leads and np.any((sent != 0) & (total == 0)):
                op = _op(step.action)
                return _said("flat", op, step.action.line, f"what `{op}` adds cancels what was there", share)
    return Explanation("flat", text="its gradient is zero from the root on", share=share)
