"""What tapejax has compiled: look at it, or let go of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tapejax import layout
from tapejax.executables import shelf
from tapejax.lift import _lifted
from tapejax.plan import Plan
from tapejax.surface import functions


def _ops() -> Iterator[Any]:
    yield from list(_lifted)


def plans(name: str | None = None) -> list[Plan]:
    """The plans in memory, of all ops or of one: what each was made for, by name.

    A plan is made once for a function, the kinds of its operands (shape, dtype, needs a gradient) and
    its options. Each op keeps a bounded number of them.

    >>> import tapejax as tj, tapejax.numpy as tnp
    >>> y = tnp.tanh(tj.tensor([1.0, 2.0]))
    >>> tj.plans("tanh")
    [Plan(tanh: float32[2])]
    """
    found = {id(plan): plan for op in _ops() for plan in list(op.plans.values()) if name in (None, plan.name)}
    return sorted(found.values(), key=lambda plan: plan.name)


def clear_plans() -> None:
    """Forget every plan and every fused program; they are made again when they are needed.

    >>> import tapejax as tj
    >>> tj.clear_plans()
    >>> tj.plans()
    []
    """
    for op in _ops():
        with op._lock:
            op.plans.clear()
    functions.clear()
    layout.layouts.clear()
    shelf.clear()
