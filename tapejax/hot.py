"""Hot tapes: the backward of a whole block as one compiled call, with its forward if that has yet to run.

Nothing else changes: the same Gradients come back, strict reverse order decides what is added to
what, and what cannot be fused runs action by action. A structure is noticed the first time it
comes and compiled the second time; see block.py for where, and why there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tapejax.block import CONSUMED, PENDING, Block, Sealed, fusion
from tapejax.executables import Executable
from tapejax.gradients import Gradients
from tapejax.layout import MAX_PROGRAMS, Layout
from tapejax.plan import Failed, zeros_for
from tapejax.tape import Tape
from tapejax.tensor import Tensor


def go_back(block: Block, sums: dict[int, Any], wanted: set[int] | None, *, alone: bool, only_ops: bool) -> bool:
    """Run the backward of a whole block as one program, with its forward if that has yet to run.

    False, and nothing has happened, if it is to go back action by action.
    alone: nobody needs the block again.
    only_ops: no action is somebody's own, which may read the gradient of a leaf.
    """
    if not fusion.enabled:
        return False
    with block.lock:
        sealed = block.seal()
        if sealed.state is CONSUMED:
            return False  # its actions say so
        found = find(block, sealed, sums, wanted, only_ops=only_ops)
        if found is None:
            return False
        structure, there = found
        cts = [sums[number] for number in there]
        if any([isinstance(ct, jax.core.Tracer) for ct in cts]):
            return False
        if not alone:
            sealed.run(block)
        held: dict[int, Tensor] = {}
        env: dict[int, Any] = {}
        pending = sealed.state is PENDING
        try:
            with block.running():
                if pending:
                    held = sealed.held()
                    env, gradients = structure.run_both(held, _values(sealed), cts)
                else:
                    gradients = structure.backward(sealed, cts)
                    if gradients is None:
                        return False
        except Exception:
            return False  # one by one, so that the one that fails is named
        if pending:
            sealed.consume(block, held, env)
        elif alone:
            sealed.use_up({})
    structure.file(sealed, gradients, sums, wanted, there)
    return True


def step(root: Tensor, wrt: Sequence[Tensor], tape: Tape) -> Gradients | None:
    """A training step, the quick way: one root, seeded with ones, of a tape that holds one block that has yet to run.

    None, and nothing has happened, if it is anything else, or if its structure is new.
    """
    block = root._value
    if type(block) is not Block or not tape.is_just(block) or not fusion.enabled or not root._kind.requires_grad:
        return None
    with block.lock:
        outside = block.outside  # sealing lets go of it
        sealed = block.seal()
        if sealed.state is not PENDING or sealed.actions is not None:
            return None
        if not outside:
            outside = {owner.number: slot for slot, owner in sealed.now.owners.items()}
        slots = tuple([x._slot if x._value is block else outside.get(x._number) for x in wrt])
        layout, how = sealed.layout, (root._slot, slots, block.setting)
        course = layout.courses.get(how)
        if course is None:
            course = _course(layout, root, slots, block.setting)
            if course is None:
                return None
            if len(layout.courses) >= MAX_PROGRAMS:
                layout.courses.clear()
            layout.courses[how] = course
        structure, places = course
        held = sealed.held()
        try:
            with block.running():
                env, found = structure.run_both(held, _values(sealed), [])
        except Exception:
            return None  # the long way, so that what fails is named
        numbers = [x._number for x in wrt]
        grads = Gradients()
        grads._sums = {number: found[place] for number, place in zip(numbers, places, strict=True) if place is not None}
        grads._told = {"roots": [root._number], "wrt": numbers}
        tape.restart(by="backward()")  # before it is used up: an interrupt must not leave a tape that looks whole
        sealed.consume(block, held, env)
    return grads


def _values(sealed: Sealed) -> list[Any]:
    return [tensor._value for tensor in sealed.now.inputs]


def _course(layout: Layout, root: Tensor, slots: Sequence[int | None], setting: Any) -> Any:
    """For `step`: the structure, if it was built, and where in its results each slot is."""
    there = {slot for slot in slots if slot is not None}
    if root._slot in there:
        return None
    structure = layout.backwards.entries.get(((root._slot,), (True,), _in_order(there), (), setting))
    if type(structure) is not Structure:
        return None
    places = {slot: place for place, slot in enumerate(structure.outputs)}
    return structure, [places.get(slot) for slot in slots]


def _in_order(slots: Any) -> tuple[int, ...]:
    return tuple(sorted(slots))


ONES: dict[Any, Any] = {}  # by kind of a root that is pending: the seed it is given if nobody says otherwise


def find(
    block: Block, sealed: Sealed, sums: dict[int, Any], wanted: set[int] | None, *, only_ops: bool
) -> tuple[Structure, list[int]] | None:
    """The structure of a block's backward, and whose gradients are there already; None the first time it comes."""
    layout = sealed.layout
    if len(sums) == 1 and wanted is None:
        (number,) = sums
        slot = sealed.slot_of(number)
        there, present = ([], ()) if slot is None else ([number], (slot,))
    else:
        places = sealed.slots
        there = _both(places, sums)
        present = tuple([places[number] for number in there])
    targets = leading = None
    if wanted is not None:
        targets = _in_order([places[number] for number in _both(places, wanted)])
        leading = sealed.led if only_ops else None
    ones = tuple([slot >= 0 and sums[n] is ONES.get(layout.kinds[slot]) for slot, n in zip(present, there)])
    how = (present, ones, targets, leading, block.setting)
    structure = layout.backwards.get(how, lambda: Structure(layout, present, ones, targets, leading))
    return None if structure is None else (structure, there)


def _both(places: dict[int, int], others: Any) -> list[int]:
    """The numbers that are in both, in the order of their places; looks at the smaller one only."""
    few, many = (others, places) if len(others) < len(places) else (places, others)
    found = [number for number in few if number in many]
    return found if len(found) < 2 else sorted(found, key=places.__getitem__)


class Structure:
    """What a block's backward looks like, apart from the numbers, and its compiled programs.

    layout: the block's calls; present: slots that have a gradient already; ones: whether it is ones, as a root's is,
    and so part of the program; targets: the slots that are wanted (None: all); leading: those from outside that lead
    on to earlier actions (None: any may).
    """

    def __init__(self, layout: Layout, present, ones, targets, leading):
        self.layout, self.present, self.ones = layout, present, ones
        self.reverse: list[int] = []  # the calls that have something to do
        touched = self._touched()
        if targets is not None:
            leads_on = lambda slot: slot < 0 and (leading is None or slot in leading)
            touched = [slot for slot in touched if slot in targets or leads_on(slot)]
        # Ones that are handed to the caller are the program's own: those that are kept here must not be given away.
        seeds = [
            s
            for s, o in zip(present, ones, strict=True)
            if o and s not in touched and (targets is None or s in targets)
        ]
        self.outputs = (*touched, *seeds)
        self.given = [place for place, is_ones in enumerate(ones) if not is_ones]
        self.read = tuple({slot: None for index in self.reverse for slot in layout.steps[index].kept})
        self._backward = Executable(self._pull_read, "backward")
        self._both: dict[tuple[int, ...], Callable[..., Any]] = {}

    def _touched(self) -> list[int]:
        """The slots to which the backward adds something, in the order in which it does."""
        have = set(self.present)
        touched: dict[int, None] = {}
        for index in self.layout.order:
            step = self.layout.steps[index]
            if not have.isdisjoint(step.outputs):
                self.reverse.append(index)
                have.update(step.ids)
                touched.update(dict.fromkeys(step.ids))
        return list(touched)

    def backward(self, sealed: Sealed, cts: list[Any]) -> list[Any] | None:
        """The gradients, of a block that ran; None if some of what its calls read is not there: their actions say why."""
        kept = sealed.kept_of(self.reverse)
        env: dict[int, Any] = {}
        for index in self.reverse:
            values = kept.get(index)
            if values is None or type(values) is Failed:
                return None
            env.update(zip(self.layout.steps[index].kept, values, strict=True))
        return self._backward([env[slot] for slot in self.read], self._given(cts))

    def _pull_read(self, values: list[Any], cts: list[Any]) -> list[Any]:
        return self.pull(dict(zip(self.read, values, strict=True)), cts)

    def run_both(self, held: Any, inputs: list[Any], cts: list[Any]) -> tuple[dict[int, Any], list[Any]]:
        """Run the block forward and back: an environment with the results that are held, and the gradients."""
        chosen = self.layout.choose(tuple(held))
        program = self._both.get(chosen)
        if program is None:
            needed = {*chosen, *self.read}

            def both(inputs, cts):
                env = self.layout.run(inputs, needed)
                return [env[slot] for slot in chosen], self.pull(env, cts)

            program = self._both[chosen] = Executable(both, "forward_and_backward")
        values, gradients = program(inputs, self._given(cts))
        return dict(zip(chosen, values, strict=True)), gradients

    def _given(self, cts: list[Any]) -> list[Any]:
        return cts if not cts else [cts[place] for place in self.given]

    def file(
        self, sealed: Sealed, gradients: Sequence[Any], sums: dict[int, Any], wanted: set[int] | None, there: list[int]
    ) -> None:
        """File gradients under their numbers; under `wanted`, those that were used up and are not go."""
        sums.update(zip(sealed.numbers_of(self.outputs), gradients, strict=True))
        if wanted is not None:
            for number, slot in zip(there, self.present, strict=True):
                if number not in wanted and slot >= 0:
                    del sums[number]

    def pull(self, env: dict[int, Any], cts: Sequence[Any]) -> list[Any]:
        """The gradients of `outputs`, from what was kept (by slot) and the cotangents that are given."""
        sums: dict[int, Any] = {}
        given = iter(cts)
        for slot, constant in zip(self.present, self.ones, strict=True):
            kind = self.layout.kinds.get(slot)
            sums[slot] = jnp.ones(kind.aval.shape, kind.aval.dtype) if constant else next(given)
        for index in self.reverse:
            step = self.layout.steps[index]
            plan, kept = step.plan, [env[slot] for slot in step.kept]
            out_cts = [sums.get(slot) for slot in step.outputs]
            filled = [zeros_for(k.aval) if ct is None else ct for ct, k in zip(out_cts, plan.out_kinds, strict=True)]
            for slot, gradient in zip(step.ids, plan.backward(*kept, *filled), strict=True):
                sums[slot] = gradient if slot not in sums else lax.add(sums[slot], gradient)
        return [sums[slot] for slot in self.outputs]
