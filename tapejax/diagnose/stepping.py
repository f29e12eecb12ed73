"""From a report to the viewer: the function on a tape of primitives, with a cursor at the action where it was born."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tapejax.diagnose.elements import is_inexact, kind_of, to_numpy
from tapejax.diagnose.places import file_and_line
from tapejax.engine.cursor import Cursor
from tapejax.ops.lift import lift
from tapejax.tape.tape import Tape
from tapejax.tensor.tensor import Tensor, make
from tapejax.transforms.recording import plain


def cursor_at(
    born: Any,
    function: Callable[..., Any],
    values: Sequence[Any],
    flags: Sequence[bool],
    names: Sequence[str],
    label: str,
) -> Cursor:
    """The backward pass of a function of arrays, action by action, at the one where a number was born."""
    tensors = [make(value, flag) for value, flag in zip(values, flags, strict=True)]
    with Tape(label=label, detail="primitives") as tape:
        made = lift(function, name=label)(*tensors)
    leaves = jax.tree_util.tree_leaves(made, is_leaf=lambda leaf: isinstance(leaf, Tensor))
    roots = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    seeds = [(root.id, jnp.ones(root.shape, root.dtype)) for root in roots]
    called = {tensor.id.number: name for tensor, name in zip(tensors, names, strict=True)}
    cursor = Cursor(tape.actions, seeds, label, called, hooks=False)
    found = place_of_birth(born, cursor)
    if found is not None:
        cursor.marked = found
        cursor.jump(found)
    return cursor


def place_of_birth(born: Any, cursor: Cursor) -> int | None:
    """The action that is told as the birth: by line, steps and op. If it is inside of one, that one; else the first that
    sends on what is bad although nothing bad arrives."""
    lines = {_line(born.file, born.lineno), _line(*file_and_line(born.library))}
    there = []
    for index, action in enumerate(cursor.actions):
        if _line(*file_and_line(action.line)) in lines:
            same_op = getattr(getattr(action, "plan", None), "name", "") == born.op
            there.append(((getattr(action, "steps", ()) == born.steps) + same_op, index))
    if there:
        best = max(alike for alike, _ in there)
        last = born.direction == "backward"
        places = [index for alike, index in there if alike == best]
        return places[-1 if last else 0]
    return _first_bad(cursor)


def _line(file: str, lineno: int) -> tuple[str, int]:
    return os.path.basename(file), lineno


def _first_bad(cursor: Cursor) -> int | None:
    bad = lambda value: is_inexact(value) and kind_of(to_numpy(plain(value))) is not None
    for step in cursor:
        if any(bad(term.value) for term in step.outgoing) and not any(map(bad, step.incoming.values())):
            return step.index
    return None
