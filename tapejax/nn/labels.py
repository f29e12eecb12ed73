"""Labels that are known are checked before the call: for a class out of range jax gives NaN, or counts from the end."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from tapejax.errors import ArgumentError
from tapejax.ground.where import user_line
from tapejax.ops.surface.op import Op
from tapejax.tensor.tensor import Tensor, Tracer


class LabelledOp(Op):
    """A loss of (logits, labels); with `where`, labels that do not count may be anything."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        labels = known(args[1] if len(args) > 1 else kwargs.get("labels"))
        if labels is not None and kwargs.get("where") is None:
            shape = getattr(args[0] if args else kwargs.get("logits"), "shape", ())
            axis = kwargs.get("axis", -1)
            if -len(shape) <= axis < len(shape):
                check(labels, shape[axis], self)
        return super().__call__(*args, **kwargs)


def known(labels: Any) -> np.ndarray | None:
    """Class numbers that the host has already: nothing is computed, waited for or copied from a device."""
    if isinstance(labels, Tensor):
        labels = labels.held
    if isinstance(labels, jax.Array):
        if isinstance(labels, Tracer) or not labels.is_ready() or {d.platform for d in labels.devices()} != {"cpu"}:
            return None
    elif isinstance(labels, (list, tuple)):
        if not all(isinstance(leaf, (int, np.integer)) for leaf in jax.tree_util.tree_leaves(labels)):
            return None
    elif not isinstance(labels, (int, np.ndarray, np.integer)):
        return None
    labels = np.asarray(labels)
    return labels if labels.dtype.kind in "iu" and labels.size else None


def check(labels: np.ndarray, classes: int, op: Op) -> None:
    """Refuse what is not 0, 1, ..., classes - 1."""
    low, high = labels.min(), labels.max()
    if low < 0 or high >= classes:
        raise ArgumentError(
            f"labels from {low} to {high} for {classes} classes",
            at=user_line(),
            action=f"{op.__module__}.{op.__name__}",
            fix=f"count classes from 0 to {classes - 1}; leave examples out (padding) by where=",
        )
