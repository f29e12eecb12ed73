"""The short way of a training step: one look, one program.

Where a tape holds a block and nothing else, and what is asked of it has been asked before, the tape need not be
read: the program is known. The gradients are those of the long way, and so is the state that everything is left in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from tapejax.fusion.fused import Backward, Origin
from tapejax.fusion.later import Later
from tapejax.fusion.layout import Layout
from tapejax.fusion.sealed import CONSUMED, ONES, PENDING, RAN, Sealed, in_order
from tapejax.ground.compat import looks_for_nonfinite
from tapejax.tape.switch import fusion
from tapejax.tape.tape import Tape
from tapejax.tensor.gradients import Gradients
from tapejax.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tapejax.fusion.block import Block

UNHELD_LATER = "unheld later"  # everything is wanted, but of what nobody holds only when somebody asks


def step(block: Block, root: Tensor, wrt: Sequence[Tensor] | None, tape: Tape) -> Gradients | None:
    """The gradients of a result of the block; None, and nothing has happened, if it has to go the long way.

    wrt: None for everything.
    """
    if not (tape.is_just(block) and fusion.everywhere and root.kind.requires_grad and block.is_as_it_was()):
        return None
    with block.lock:
        outside = block.outside  # sealing lets go of it
        sealed = block.seal()
        state = sealed.now.state
        if state is CONSUMED or sealed.actions is not None or (state is RAN and root.slot is not None):
            return None  # the last: an interrupt came before the root got its value
        numbers = slots = None
        if wrt is not None:
            numbers = [id if type(id := x.identity) is int else id.number for x in wrt]
            slots = _slots_of(numbers, outside, sealed)
        elif not (block.several or looks_for_nonfinite()):
            slots = UNHELD_LATER
        return (_there_and_back if state is PENDING else _back)(block, sealed, root, numbers, slots, tape)


def _slots_of(numbers: list[int], outside: dict[int, int], sealed: Sealed) -> tuple[int | None, ...]:
    """The slots of identities; None for one that is neither read nor made in the block."""
    slots = [outside.get(number) for number in numbers]
    if None in slots:
        slots = [sealed.slots.get(number) for number in numbers]
    return tuple(slots)


def _there_and_back(
    block: Block, sealed: Sealed, root: Tensor, numbers: list[int] | None, slots: Any, tape: Tape
) -> Gradients | None:
    """Forward and backward as one program."""
    held = sealed.held()
    found = _known(sealed.layout, root.slot, slots, tuple(held), pending=True)
    if found is None:
        return None
    both, places = found
    run = both.run if block.several else both.program
    inputs = [tensor.held for tensor in sealed.now.inputs]
    try:
        results, gradients = run(inputs, [])
    except Exception:
        return None  # the long way, so that what fails is named
    origin = both.backward.origin(inputs, ()) if numbers is None else None
    grads = _filed(block, sealed, root, numbers, places, both.backward, gradients, origin)
    tape.restart(by="backward()")  # before it is used up: an interrupt must not leave a tape that looks whole
    sealed.consume(block, held, both.places, results)
    return grads


def _back(
    block: Block, sealed: Sealed, root: Tensor, numbers: list[int] | None, slots: Any, tape: Tape
) -> Gradients | None:
    """Backward alone: the forward has run, since somebody looked at a result."""
    now, there = sealed.now, None
    if slots is UNHELD_LATER:
        slots, there = (None, None) if now.errors else (slots, (now.held, True))
    found = _known(sealed.layout, sealed.slot_of(root.number), slots, there, pending=False)
    seed = ONES.get((root.kind, root.held.sharding))
    if found is None or seed is None:
        return None
    backward, places = found
    try:
        values = sealed.read_by(backward)
        if values is None:
            return None
        gradients = backward.run(values, [seed], now.shardings)
    except Exception:
        return None
    grads = _filed(block, sealed, root, numbers, places, backward, gradients, Origin(True, values, [seed]))
    if numbers is None:
        grads.ready[root.number] = jnp.array(seed)  # the caller's own
    tape.restart(by="backward()")
    sealed.use_up()
    return grads


def _known(layout: Layout, start: int | None, slots: Any, held: Any, *, pending: bool) -> tuple[Any, list[Any]] | None:
    """The program, if it is compiled, and where in its gradients each slot is; None if it is not.

    start: the root's slot; slots: those that are wanted, None for all, UNHELD_LATER for all, some of which may be left out;
    held: the slots of results that somebody holds, if the forward is pending; if it has run and gradients are left out: those
    that somebody held then, and True.
    """
    found = layout.steps.get((start, slots, held))
    if found is None:
        given = (start,), (pending,)  # ones that are pending too are part of the program
        wanted = {slot for slot in slots if slot is not None} if type(slots) is tuple else ()
        if slots is UNHELD_LATER:
            backward = layout.for_all.get((*given, *((layout.choose(held), False) if pending else held)))
        else:
            backward = layout.backwards.get((*given, *((None, None) if slots is None else (in_order(wanted), ()))))
        if backward is None or start in wanted:
            return None
        places = {slot: place for place, slot in enumerate(backward.outputs)}
        program = backward.both(held) if pending else backward
        each = [places.get(slot) for slot in slots] if type(slots) is tuple else []
        found = layout.steps.keep((start, slots, held), (program, each))
    return found if found[0].together.reason else None


def _filed(
    block: Block, sealed: Sealed, root: Tensor, numbers: list[int] | None, places: list[Any], backward: Backward,
    gradients: list[Any], origin: Origin | None,
) -> Gradients:  # fmt: skip
    """A map of gradients; the root's is the first, as it is where the loop adds up."""
    grads, start = Gradients(), root.number
    if numbers is None:
        there = sealed.numbers_of(backward.outputs)
        grads.ready = {start: None, **dict(zip(there, gradients, strict=True))}
        if backward.left_out and origin is not None:
            grads.unasked = [(1, Later(backward, sealed.number, there, origin, block.settings, block.state[1]))]
    else:
        grads.ready = {n: gradients[place] for n, place in zip(numbers, places, strict=True) if place is not None}
    grads.requested = {"roots": [start], "wrt": numbers}
    return grads
