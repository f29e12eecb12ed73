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

from tapejax.block import MAX_PROGRAMS, Block, Layout, fusion
from tapejax.gradients import Gradients
from tapejax.plan import OpAction, zeros_for
from tapejax.tape import Tape, TapeAction
from tapejax.tensor import Tensor


def run_block(
    actions: list[TapeAction], sums: dict[int, Any], wanted: set[int] | None, *, alone: bool, only_ops: bool
) -> int:
    """Run the last block's actions as one program and take them off; 0.

    Or do nothing and say how many of the last actions are to run one by one.
    alone: nobody else needs the actions again.
    only_ops: no action is somebody's own, which may read the gradient of a leaf.
    """
    last = actions[-1]
    if type(last) is not OpAction or last.block is None or not fusion.enabled:
        return 1
    block = last.block
    group = []
    for action in reversed(actions):
        if type(action) is not OpAction or action.block is not block:
            break
        group.append(action)
    if len(group) < 2 or _is_traced(sums):
        return len(group)
    found = find(block, tuple([action.index for action in group]), sums, wanted, only_ops=only_ops)
    if found is None:
        return len(group)
    structure, there = found
    try:
        env: dict[int, Any] = {}
        for action, step in zip(group, structure.reverse, strict=True):
            env.update(zip(step.kept, action.kept, strict=True))
        with block.settings():
            gradients = structure.backward([env[slot] for slot in structure.read], [sums[number] for number in there])
    except Exception:
        return len(group)  # one by one, so that the one that fails is named
    structure.file(block, gradients, sums, wanted, there)
    del actions[-len(group) :]
    if alone:
        for action in group:
            action.release()
    return 0


def run_pending(block: Block, sums: dict[int, Any], wanted: set[int] | None, *, only_ops: bool) -> bool:
    """Run the backward of a block whose actions were never written as one program. Whether that was done.

    With its forward, if nobody has looked at a value yet.
    """
    if block.actions is not None or not fusion.enabled or _is_traced(sums):
        return False
    with block.lock:
        block.seal()
        if not block.ran:
            block.number()
        found = find(block, block.order, sums, wanted, only_ops=only_ops)
        if found is None:
            return False
        structure, there = found
        cts = [sums[number] for number in there]
        chosen, values = (), ()
        try:
            with block.settings():
                if block.ran:
                    gradients = structure.backward([block.env[slot] for slot in structure.read], cts)
                else:
                    chosen = tuple(block.held())
                    values, gradients = structure.forward_and_backward(chosen)(block.externals, cts)
        except Exception:
            return False  # one by one, so that the one that fails is named
        block.consume(chosen, values)
    structure.file(block, gradients, sums, wanted, there)
    return True


def step(root: Tensor, wrt: Sequence[Tensor], tape: Tape) -> Gradients | None:
    """A training step, the quick way: one root, seeded with ones, of a tape that holds one block that has yet to run.

    None, and nothing has happened, if it is anything else, or if its structure is new.
    """
    block = root._value
    if type(block) is not Block or not tape.is_just(block) or not fusion.enabled or not root._kind.requires_grad:
        return None
    with block.lock:
        if block.ran or block.actions is not None:
            return None
        layout, outside = block.seal(), block.outside
        slots = tuple([x._slot if x._value is block else outside.get(id(x._id)) for x in wrt])
        how = (root._slot, slots, block.setting)
        course = layout.courses.get(how)
        if course is None:
            course = _course(layout, root, slots, block.setting)
            if course is None:
                return None
            if len(layout.courses) >= MAX_PROGRAMS:
                layout.courses.clear()
            layout.courses[how] = course
        structure, seed, places = course
        block.number()
        chosen = tuple(block.held())
        try:
            with block.settings():
                values, found = structure.forward_and_backward(chosen)(block.externals, seed)
        except Exception:
            return None  # the long way, so that what fails is named
        block.consume(chosen, values)
    tape.restart(by="backward()")
    numbers = [x._number for x in wrt]
    grads = Gradients()
    grads._sums = {number: found[place] for number, place in zip(numbers, places) if place is not None}
    grads._told = {"roots": [root._number], "wrt": numbers}
    return grads


def _course(layout: Layout, root: Tensor, slots: Sequence[int | None], setting: Any) -> Any:
    """For `step`: the structure, if it was built, what is given for its seed, and where in its results each slot is."""
    there = {slot for slot in slots if slot is not None}
    if root._slot in there:
        return None
    targets = (*sorted([s for s in there if s < 0], reverse=True), *sorted([s for s in there if s >= 0]))
    structure = layout.backwards.entries.get((layout.order, (root._slot,), (True,), targets, (), setting))
    seed = ONES.get(root._kind)
    if type(structure) is not Structure or seed is None:
        return None
    places = {slot: place for place, slot in enumerate(structure.outputs)}
    return structure, [seed], [places.get(slot) for slot in slots]


ONES: dict[Any, Any] = {}  # by kind of a root that is pending: the seed it is given if nobody says otherwise


def _is_traced(sums: dict[int, Any]) -> bool:
    return any([isinstance(ct, jax.core.Tracer) for ct in sums.values()])


def find(
    block: Block, indices: tuple[int, ...], sums: dict[int, Any], wanted: set[int] | None, *, only_ops: bool
) -> tuple[Structure, list[int]] | None:
    """The structure of these calls' backward, and whose gradients are there already; None the first time it comes."""
    layout = block.seal()
    outer = {owner.number: slot for slot, owner in block.owners.items()}
    numbers = block.numbers
    inner = numbers if len(sums) < 8 else frozenset(numbers)
    there = [number for number in sums if number in inner or number in outer]
    present = tuple([outer[number] if number in outer else numbers.index(number) for number in there])
    targets = leading = None
    if wanted is not None:
        targets = tuple([slot for number, slot in outer.items() if number in wanted])
        if not wanted.isdisjoint(numbers):
            targets += tuple([slot for slot, number in enumerate(numbers) if number in wanted])
        leading = tuple(block.led) if only_ops else None
    ones = tuple([slot >= 0 and sums[n] is ONES.get(layout.kinds[slot]) for slot, n in zip(present, there)])
    how = (indices, present, ones, targets, leading, block.setting)
    structure = layout.backwards.get(how, lambda: Structure(layout, indices, present, ones, targets, leading))
    return None if structure is None else (structure, there)


class Structure:
    """What a block's backward looks like, apart from the numbers, and its compiled programs.

    layout: the block's calls; indices: which of them have an action on the tape, the last first;
    present: identity slots that have a gradient already; ones: whether it is ones, as a root's is, and so part of
    the program; targets: those that are wanted (None: all); leading: those from outside that lead on to earlier
    actions, as do results of calls that are not among the indices (None: any may).
    """

    def __init__(self, layout: Layout, indices, present, ones, targets, leading):
        self.layout = layout
        self.present, self.ones = present, ones
        self.reverse = [layout.steps[index] for index in indices]
        self.own = {slot for step in self.reverse for slot in step.results}
        touched = self._touched()
        if targets is not None:
            leads_on = lambda s: (leading is None or s in leading) if s < 0 else s not in self.own
            touched = [s for s in touched if s in targets or leads_on(s)]
        self.outputs = tuple(touched)
        self.read = tuple({slot: None for step in self.reverse for slot in step.kept})
        self.backward = jax.jit(lambda values, cts: self.pull(dict(zip(self.read, values, strict=True)), cts))
        self._both: dict[tuple[int, ...], Callable[..., Any]] = {}

    def _touched(self) -> list[int]:
        """The identities to which the backward adds something, in the order in which it does."""
        have = set(self.present)
        touched: dict[int, None] = {}
        for step in self.reverse:
            if any(step.first + i in have for i in range(step.plan.n_out)):
                have.update(step.ids)
                touched.update(dict.fromkeys(step.ids))
        return list(touched)

    def forward_and_backward(self, chosen: tuple[int, ...]) -> Callable[..., Any]:
        """The program that also runs the block, and returns the chosen results besides the gradients."""
        program = self._both.get(chosen)
        if program is None:
            needed = {*chosen, *self.read}

            def both(externals, cts):
                env = self.layout.run(externals, needed)
                return [env[slot] for slot in chosen], self.pull(env, cts)

            program = self._both[chosen] = jax.jit(both)
        return program

    def file(
        self, block: Block, gradients: Sequence[Any], sums: dict[int, Any], wanted: set[int] | None, there: list[int]
    ) -> None:
        """File gradients under their numbers; under `wanted`, those that were used up and are not go."""
        numbers, owners = block.numbers, block.owners
        for slot, gradient in zip(self.outputs, gradients, strict=True):
            sums[owners[slot].number if slot < 0 else numbers[slot]] = gradient
        if wanted is not None:
            for number, slot in zip(there, self.present, strict=True):
                if number not in wanted and slot in self.own:
                    del sums[number]

    def pull(self, env: dict[int, Any], cts: Sequence[Any]) -> list[Any]:
        """The gradients of `outputs`, from what was kept (by slot) and the cotangents that are present."""
        sums: dict[int, Any] = {}
        for slot, ct, constant in zip(self.present, cts, self.ones, strict=True):
            sums[slot] = jnp.ones(ct.shape, ct.dtype) if constant else ct
        for step in self.reverse:
            plan = step.plan
            out_cts = [sums.get(step.first + i) for i in range(plan.n_out)]
            if all(ct is None for ct in out_cts):
                continue
            filled = [zeros_for(k.aval) if ct is None else ct for ct, k in zip(out_cts, plan.out_kinds, strict=True)]
            kept = [env[slot] for slot in step.kept]
            for slot, gradient in zip(step.ids, plan.backward(*kept, *filled), strict=True):
                sums[slot] = gradient if slot not in sums else lax.add(sums[slot], gradient)
        return [sums[slot] for slot in self.outputs]
