"""Hot tapes: the backward of a whole block as one compiled call, with its forward if that has yet to run.

Nothing else changes: the same Gradients come back, strict reverse order decides what is added to
what, and what cannot be fused runs action by action. A structure is noticed the first time it
comes and compiled the second time; see block.py for where, and why there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from tapejax.block import Block, Layout, fusion, layout_of
from tapejax.plan import OpAction, zeros_for
from tapejax.tape import TapeAction


def run_block(
    actions: list[TapeAction], sums: dict[int, Any], wanted: set[int] | None, *, alone: bool, only_ops: bool
) -> int:
    """Run the last block's actions as one program and take them off; 0.

    Or do nothing and say how many of the last actions are to run one by one.
    alone: nobody else holds the actions, so that what they keep need not outlive this.
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
    if len(group) < 2 or any([isinstance(ct, jax.core.Tracer) for ct in sums.values()]):
        return len(group)
    layout = block.layout if block.sealed else layout_of(tuple(block.key))
    identities = block.identities
    # Gradients that are there already: of the block's own results, or of tensors from outside.
    there = [number for number in sums if number in identities]
    present = tuple([identities[number] for number in there])
    indices = tuple([action.index for action in group])
    if wanted is None:
        targets = leaves = None
    else:
        targets = tuple(sorted([identities[number] for number in wanted if number in identities]))  # a set has no order
        leaves = tuple(block.id_leaf) if only_ops else None
    how = (indices, present, targets, leaves, block.setting)
    structure = layout.backwards.get(how, lambda: Structure(layout, indices, present, targets, leaves))
    if structure is None:
        return len(group)
    cts = [sums[number] for number in there]
    try:
        found = run_with_forward(block, group, structure, cts) if alone else None
        if found is None:
            kept = [action.kept for action in group]
            with block.settings():
                found = structure.backward(kept, cts)
    except Exception:
        return len(group)  # one by one, so that the one that fails is named
    for slot, gradient in zip(structure.outputs, found, strict=True):
        sums[block.number_of(slot)] = gradient
    if wanted is not None:
        for number in there:
            if number not in wanted and identities[number] in structure.own:
                del sums[number]
    del actions[-len(group) :]
    return 0


def run_with_forward(block: Block, group: list[OpAction], structure: Structure, cts: list[Any]) -> Sequence[Any] | None:
    """The gradients of a block that has yet to run: its forward and backward as one program."""
    with block.lock:
        if block.sealed:
            return None
        layout = block.seal()
        try:
            if layout is not structure.layout:
                raise RuntimeError("another thread has noted a call meanwhile")
            chosen, live = block.alive(layout, group)
            with block.settings():
                values, found = structure.forward_and_backward(chosen)(block.externals, cts)
        except BaseException:
            block.unseal()
            raise
        block.settle(layout, chosen, values, live)
    return found


class Structure:
    """What a block's backward looks like, apart from the numbers, and its compiled programs.

    layout: the block's calls; indices: which of them have an action on the tape, the last first;
    present: identity slots that have a gradient already; targets: those that are wanted (None:
    all); leaves: whether each identity from outside is a leaf (the others lead on to earlier actions,
    and so do results of calls that are not among the indices; None: any may).
    """

    def __init__(self, layout: Layout, indices, present, targets, leaves):
        self.layout = layout
        self.present = present
        self.reverse = [layout.steps[index] for index in indices]
        self.own = {slot for step in self.reverse for slot in step.results}
        touched = self._touched()
        if targets is not None:
            leads_on = lambda s: not (leaves and leaves[-1 - s]) if s < 0 else s not in self.own
            touched = [s for s in touched if s in targets or leads_on(s)]
        self.outputs = tuple(touched)
        self.backward = jax.jit(self.pull)
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
            needed = set(chosen).union(*(step.kept for step in self.reverse))

            def both(externals, cts):
                env = self.layout.run(externals, needed)
                kept = [[env[slot] for slot in step.kept] for step in self.reverse]
                return [env[slot] for slot in chosen], self.pull(kept, cts)

            program = self._both[chosen] = jax.jit(both)
        return program

    def pull(self, kept: Sequence[Sequence[Any]], cts: Sequence[Any]) -> list[Any]:
        """The gradients of `outputs`, from what each action kept and the cotangents that are present."""
        sums: dict[int, Any] = dict(zip(self.present, cts, strict=True))
        for step, values in zip(self.reverse, kept, strict=True):
            plan = step.plan
            out_cts = [sums.get(step.first + i) for i in range(plan.n_out)]
            if all(ct is None for ct in out_cts):
                continue
            filled = [zeros_for(k.aval) if ct is None else ct for ct, k in zip(out_cts, plan.out_kinds, strict=True)]
            for slot, gradient in zip(step.ids, plan.backward(*values, *filled), strict=True):
                sums[slot] = gradient if slot not in sums else lax.add(sums[slot], gradient)
        return [sums[slot] for slot in self.outputs]
