"""Deferred execution: ops are noted with known shapes, and run together when a value is needed.

A Block is a short run of op calls of one tape. Shapes and dtypes are known when a call is noted, so a wrong
one raises at its own line; the numbers come later. Noting a call is one append to a list: it happens or it
does not, whatever interrupts it. A block is sealed, and runs, when one of its values is looked at, when it
is full, or in backward. From then on no call is added, and it goes through these states:

    PENDING -> RAN -> CONSUMED     (a backward that runs it as one program goes straight to CONSUMED)

PENDING   nothing is computed; what it reads is held.
RAN       values have been handed out; what backward reads is kept.
CONSUMED  a backward used up what was kept.

The first time a structure of calls comes, its calls run one by one, each by its own jitted plan. The second
time (one call alone: after some more) it is compiled as one program, in the calling thread (a compiler in the
background would compete with the loop it wants to speed up, and make it depend on timing which program ran),
and found by its structure from then on. If running it fails, its calls run one by one, and the one that
fails keeps its error: the others have their values all the same.

On the tape a block is one entry. Its actions are written when somebody looks at them; a backward that
runs the whole block as one program never needs them. A tape that keeps only what a live tensor can reach
holds a block by a weak reference, and the block lives as long as a result of it does. If several results
are held when such a block runs, its actions are written then: each keeps just what its own backward reads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ref

import jax

from tapejax.compat import NO_CONTEXT, Settings, is_tracing
from tapejax.layout import Layout, layout_of, result_slot
from tapejax.plan import Failed, OpAction
from tapejax.stepwise import Place
from tapejax.tape import Pending, TensorId
from tapejax.tensor import Tensor, Tracer
from tapejax.where import line_of

LIMIT = 128  # calls in a block: enough for a training step, little enough to compile
PENDING, RAN, CONSUMED = "pending", "ran", "consumed"


class Fusion:
    """Whether ops are deferred and fused: `tapejax.fusion.enabled = False` runs each by itself, at once.

    >>> import tapejax as tj
    >>> tj.fusion.enabled
    True
    """

    def __init__(self) -> None:
        self.enabled = os.environ.get("TAPEJAX_FUSION", "1") != "0"


fusion = Fusion()

_CONCRETE: set[type] = set()  # types of values seen that are not tracers


class Block(Pending):
    """A run of op calls. Its tape's owner notes them, without a lock; whoever needs a value seals it and runs it.

    A call is a tuple:
        key     its plan, then the slots of its operands (see layout.py)
        number  of its result's identity (a tuple of them if there are several)
        made    a weak reference to its result (likewise)
        where   the user's line; None if the call is not recorded
        others  the numbers of the operands that need no gradient, of a recorded call that has such

    A tensor from outside that needs a gradient is known by the number of its identity, any other by its value.
    """

    __slots__ = (
        "__weakref__", "calls", "closed", "device", "epoch", "home", "inputs", "lock", "logged", "outside", "precision",
        "promotion", "ranks", "sealed", "settings", "weak", "x64",
    )  # fmt: skip

    def __init__(self, tape: Any) -> None:
        self.epoch = tape.epoch
        self.weak = tape.weak  # whether the tape keeps only what a live tensor can reach
        self.home = ref(tape)
        self.logged = False  # whether it is on the tape: it is as soon as a call is recorded
        self.calls: list[tuple[Any, ...]] = []
        self.inputs: list[Tensor] = []  # from outside
        self.outside: dict[int, int] = {}  # by number of such an identity, or minus id() of a value: its slot
        self.closed = False  # whether it takes no more calls
        self.sealed: Sealed | None = None
        self.lock = threading.RLock()
        self.settings = settings = Settings.now()
        self.x64, self.precision, self.promotion, self.ranks = (
            settings.x64, settings.precision, settings.promotion, settings.ranks,
        )  # fmt: skip
        self.device = jax.default_device.value

    # -- noting: by the owner of the tape only ----------------------------------------------------------

    def bring(self, tensor: Tensor) -> int | None:
        """The slot of a tensor that is not a pending result of this block.

        None if it is being traced, or stands for something else than a tensor with its identity that came before:
        the call cannot be noted then.
        """
        inputs, outside = self.inputs, self.outside
        value, needs = tensor._value, tensor._kind.requires_grad
        if tensor._slot is not None:
            if type(value) is Tensor and value._value is self and not needs:
                return value._slot
            value = tensor.value
        handle = tensor._number if needs else -id(value)
        slot = outside.get(handle)
        if slot is None:
            if type(value) not in _CONCRETE:
                if isinstance(value, Tracer):
                    return None
                _CONCRETE.add(type(value))
            slot = ~len(inputs)
            inputs.append(tensor)
            if inputs[~slot] is not tensor:  # another op was noted in between, by a signal handler or a finalizer
                slot = ~next(place for place, one in enumerate(inputs) if one is tensor)
            slot = outside.setdefault(handle, slot)
        return slot if inputs[~slot]._value is value else None

    def missed(self, call: tuple[Any, ...]) -> bool:
        """Whether a call was noted too late, while the block was being sealed."""
        return all(one is not call for one in self.seal().calls)

    # -- sealing ------------------------------------------------------------------------------------------

    def seal(self) -> Sealed:
        """What is known from the moment on when no call can be added."""
        sealed = self.sealed
        if sealed is None:
            with self.lock:
                if self.sealed is None:
                    self.closed = True  # before the calls are copied: who notes one later sees it
                    self.sealed = Sealed(tuple(self.calls), self.inputs)
                sealed = self.sealed
                self.calls, self.inputs, self.outside = [], [], {}
        return sealed

    @property
    def ran(self) -> bool:
        return self.sealed is not None and self.sealed.state is not PENDING

    def flush(self) -> None:
        self.seal().run(self)

    def error_of(self, slot: int) -> Exception:
        """Why a result has no value, although the block ran."""
        return self.seal().errors[slot]

    def write(self) -> list[OpAction]:
        return self.seal().write(self)

    def reads(self) -> list[int]:
        sealed = self.seal()
        read = {slot for step in sealed.layout.steps for slot in step.ids}
        return [owner.number for slot, owner in sealed.owners.items() if slot in read]

    def spread(self, reached: set[int]) -> None:
        self.seal().spread(reached)

    def action_of(self, number: int) -> OpAction:
        return next(action for action in self.write() if number in action.numbers)

    def is_over(self) -> bool:
        return self.sealed is not None and self.sealed.is_over(self.weak)

    def leave(self) -> None:
        """Its tape need not hold it as the one that takes calls."""
        tape = self.home()
        if tape is not None and tape.block is self:
            tape.block = None

    def running(self) -> Any:
        """jax's settings as they were when the calls were made, and no trace around."""
        if self.settings is Settings.now() and self.device is jax.default_device.value and not is_tracing():
            return NO_CONTEXT
        return self._running()

    @contextmanager
    def _running(self) -> Iterator[None]:
        with jax.ensure_compile_time_eval(), self.settings.hold(), jax.default_device(self.device):
            yield

    @property
    def setting(self) -> tuple[Any, ...]:
        """What a program depends on besides its structure."""
        return self.settings, self.device


class Sealed:
    """A block that takes no more calls. What it reads never changes.

    It does not know its block (which would make a circle), and is given it where it needs to.

    order: the recorded calls that can still go back, the last first.
    owners: by slot of what is from outside and needs a gradient, its identity.
    led: the slots of those that an action made.
    kept: when it has run and no actions were written, by slot: what backward reads.
    actions: once they are written; weak references if the tape holds them weakly.
    named: of such a tape, references to the identities that ask the block for their actions.
    errors: by slot of a result that could not be computed, why.
    """

    __slots__ = (
        "_slots",
        "actions",
        "calls",
        "errors",
        "inputs",
        "kept",
        "layout",
        "led",
        "named",
        "order",
        "owners",
        "state",
    )

    def __init__(self, calls: tuple[tuple[Any, ...], ...], inputs: Sequence[Tensor]) -> None:
        self.calls = calls
        self.layout: Layout = layout_of(tuple([call[0] for call in calls]))
        self.inputs = inputs[: self.layout.n_inputs]  # let go when it has run
        self.owners: dict[int, TensorId] = {
            ~place: tensor._id for place, tensor in enumerate(self.inputs) if tensor._kind.requires_grad
        }
        self.led = tuple([slot for slot, owner in self.owners.items() if owner._producer is not None])
        self.order = self.layout.order
        self.state = PENDING
        self.kept: dict[int, Any] | None = None
        self.actions: list[Any] | None = None
        self.named: list[Any] = []
        self.errors: dict[int, Exception] = {}
        self._slots: dict[int, int] | None = None

    @property
    def slots(self) -> dict[int, int]:
        """By number of an identity, of a result or of what is from outside and needs a gradient: its slot."""
        found = self._slots
        if found is None:
            found = {owner.number: slot for slot, owner in self.owners.items()}
            for index, call in enumerate(self.calls):
                if type(call[1]) is int:
                    found[call[1]] = index
                else:
                    found.update((number, result_slot(index, i)) for i, number in enumerate(call[1]))
            self._slots = found
        return found

    def numbers(self, index: int) -> tuple[int, ...]:
        """Of the identities of a call's results."""
        number = self.calls[index][1]
        return (number,) if type(number) is int else number

    def held(self) -> dict[int, Tensor]:
        """By slot: the results that somebody holds."""
        found: dict[int, Tensor] = {}
        for index, call in enumerate(self.calls):
            made = call[2]
            if type(made) is ref:
                tensor = made()
                if tensor is not None:
                    found[index] = tensor
            else:
                found.update((result_slot(index, i), t) for i, one in enumerate(made) if (t := one()) is not None)
        return found

    def values(self) -> list[Any]:
        return [tensor._value for tensor in self.inputs]

    def spread(self, reached: set[int]) -> None:
        """Add the numbers of what recorded calls make of tensors whose numbers are there."""
        here = {slot for number, slot in self.slots.items() if number in reached}
        for index in reversed(self.layout.order):
            step = self.layout.steps[index]
            if not here.isdisjoint(step.ids):
                here.update(step.outputs)
                reached.update(self.numbers(index))

    # -- running ---------------------------------------------------------------------------------------

    def run(self, block: Block) -> None:
        """Compute the values that somebody holds, and what backward reads. Nobody else's value is computed."""
        if self.state is not PENDING:
            return
        with block.lock:
            if self.state is not PENDING:
                return
            held = self.held()
            reach = self.layout.reach(tuple(held))
            live = None
            if self.actions is not None or (block.weak and not reach.alone):
                live = {action.index: action for action in self.write(block)}
                order = tuple(sorted(live, reverse=True))
            else:
                order = reach.order if block.weak else self.layout.order
            wanted, kept = reach.to_run(order)
            env, errors = self._computed(block, wanted)
            if self.state is not PENDING:
                return  # it ran in the meantime: a signal handler, a finalizer or a callback looked at a value
            self.errors = errors
            self.kept = env if errors else {slot: env[slot] for slot in kept}
            if live is not None:
                for index, action in live.items():
                    action._kept = self.kept_by(index)
                self.kept = None
            self.order = order
            if block.weak and live is None and len(reach.owners) < len(self.owners):
                self.owners = {slot: owner for slot, owner in self.owners.items() if slot in reach.owners}
            elif live is not None:  # what an identity leads to stays with the actions
                self.owners = {slot: TensorId(owner.number) for slot, owner in self.owners.items()}
            self.hand_out(block, held, env)
            self.settle(block, RAN)

    def _computed(self, block: Block, wanted: tuple[int, ...]) -> tuple[dict[int, Any], dict[int, Exception]]:
        """An environment (slot -> value), and the errors of what could not be computed."""
        values = self.values()
        with block.running():
            try:
                env, errors = self.layout.run_forward(wanted, block.setting, values), {}
            except Exception:  # one by one, so that the one that fails is named, and is the only one
                env, errors = self.layout.run_apart(values, wanted, self._line)
        for place, value in enumerate(values):
            env[~place] = value
        return env, errors

    def _line(self, index: int) -> str:
        where = self.calls[index][3]
        return where.line if isinstance(where, Place) else line_of(where)

    def kept_by(self, index: int) -> Any:
        """What the backward of a call reads, of a block that ran and whose actions are not written."""
        slots = self.layout.steps[index].kept
        failed = self.errors and next((self.errors[slot] for slot in slots if slot in self.errors), None)
        return Failed(failed) if failed else tuple([self.kept[slot] for slot in slots])

    def hand_out(self, block: Block, held: dict[int, Tensor], env: dict[int, Any]) -> None:
        """Give results their values, and identities that know whom to ask for their actions."""
        for slot, tensor in held.items():
            if slot in self.errors:
                continue
            if tensor._kind.requires_grad and type(tensor._id) is int:
                tensor._id = id = TensorId(tensor._id, block)
                if block.weak:
                    self.named.append(ref(id))
            tensor._value = env[slot]  # before _slot: whoever sees none must find the value
            tensor._slot = None

    def settle(self, block: Block, state: str) -> None:
        """It is in its next state: let go of what was only needed before."""
        self.state = state
        self.inputs = ()
        block.leave()

    def consume(self, block: Block, held: dict[int, Tensor], env: dict[int, Any]) -> None:
        """Its forward and its backward ran as one program: hand out the values; nothing has to be kept."""
        self.hand_out(block, held, env)
        self.use_up(block)

    def use_up(self, block: Block) -> None:
        """A backward has read what was kept, for the last time."""
        self.kept = None
        for action in self.written():
            action.release()
        self.settle(block, CONSUMED)

    # -- actions ------------------------------------------------------------------------------------------

    def written(self) -> list[OpAction]:
        """The actions that were written and are still there."""
        found = [action() if type(action) is ref else action for action in self.actions or ()]
        return [action for action in found if action is not None]

    def write(self, block: Block) -> list[OpAction]:
        """Its actions, in order; those that a live tensor can reach, if the tape holds them weakly."""
        with block.lock:
            if self.actions is None:
                made = self._made(block)  # alive until the results lead to them
                self._tell(made)
                self.actions = [ref(action) for action in made] if block.weak else made
                self.kept = None
                return list(made)
        return self.written()

    def _made(self, block: Block) -> list[OpAction]:
        order = self.order
        held = self.held() if self.state is PENDING else {}
        if self.state is PENDING and block.weak:
            order = self.layout.reach(tuple(held)).order
        identities: dict[int, TensorId] = {}
        actions: list[OpAction] = []
        for index in reversed(order):
            step, (_, _, _, where, others) = self.layout.steps[index], self.calls[index]
            plan, numbers = step.plan, self.numbers(index)
            given = iter(others or ())
            inputs = [
                (self.owners[slot] if slot < 0 else identities[slot]) if needs else TensorId(next(given))
                for slot, needs in zip(step.slots, plan.wrt, strict=True)
            ]
            action = OpAction(
                plan, inputs, numbers, None if self.kept is None else self.kept_by(index), where, block.epoch
            )
            action.index = index
            if self.state is not CONSUMED:
                action.block = block
            for slot, number, kind in zip(step.outputs, numbers, plan.out_kinds, strict=True):
                identities[slot] = TensorId(number, action if kind.requires_grad else None)
            actions.append(action)
        for slot, tensor in held.items():
            if slot in identities and type(tensor._id) is int:
                tensor._id = identities[slot]
        return actions

    def _tell(self, actions: list[OpAction]) -> None:
        """Identities that would ask the block for their actions know them from now on."""
        if self.named:
            producers = {number: action for action in actions for number in action.numbers}
            for reference in self.named:
                id = reference()
                if id is not None:
                    id._producer = producers[id.number]
            self.named = []

    def is_over(self, weak: bool) -> bool:
        """Whether it will never have an action again."""
        if weak and self.actions:
            self.actions = [action for action in self.actions if action() is not None]
        if self.state is PENDING or self.kept is not None:
            return False
        return not self.actions and (weak or not self.order)

    def kept_of(self, indices: Sequence[int]) -> dict[int, Any]:
        """By recorded call: what its backward reads, if it has run."""
        if self.kept is not None:
            return {index: self.kept_by(index) for index in indices}
        there = {action.index: action for action in self.written()}
        return {index: there[index]._kept for index in indices if index in there}
