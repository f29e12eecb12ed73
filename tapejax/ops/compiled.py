"""What tapejax has compiled: look at it, or let go of it."""

from __future__ import annotations

from typing import NamedTuple

from tapejax.ground.caches import clear_caches
from tapejax.ops.lift import known_ops
from tapejax.plan.executables import shelf
from tapejax.plan.plan import Plan


def plans(name: str | None = None) -> list[Plan]:
    """The plans in memory, of all ops or of one: what each was made for, by name.

    A plan is made once for a function, the kinds of its operands (shape, dtype, needs a gradient) and
    its options. Each op keeps a bounded number of them.

    >>> import tapejax as tj, tapejax.numpy as tnp
    >>> y = tnp.tanh(tj.tensor([1.0, 2.0]))
    >>> tj.plans("tanh")
    [Plan(tanh: float32[2])]
    """
    found = {id(plan): plan for op in list(known_ops) for plan in list(op.plans.values()) if name in (None, plan.name)}
    return sorted(found.values(), key=lambda plan: plan.name)


class Program(NamedTuple):
    """A compiled program: what it is, the calls in it, why they were compiled together, and how long that took.

    quick: whether it was compiled quickly; it will be compiled well when it has come often.
    """

    name: str
    calls: tuple[str, ...]
    reason: str
    seconds: float
    quick: bool


def programs() -> list[Program]:
    """What is compiled now, in the order of its last use.

    New calls are compiled together, as one program; see `tapejax.plan.policy` for when not.

    >>> import tapejax as tj, tapejax.numpy as tnp
    >>> tj.clear_plans()
    >>> x = tj.tensor([1.0, 2.0], requires_grad=True)
    >>> grads = tj.backward(tnp.tanh(x * x).sum(), wrt=x)
    >>> [program.calls for program in tj.programs() if program.name == "forward_and_backward"]
    [('multiply', 'tanh', 'sum')]
    """
    found = []
    for one in sorted(shelf.there(), key=lambda one: one.last_use):
        calls, reason = one.describe() if one.describe else ([one.name], "a call by itself")
        found.append(Program(one.name, tuple(calls), reason, one.seconds, one.is_quick))
    return found


def clear_plans() -> None:
    """Forget every plan and every fused program; they are made again when they are needed.

    >>> import tapejax as tj
    >>> tj.clear_plans()
    >>> tj.plans()
    []
    """
    clear_caches()
