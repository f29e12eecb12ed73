"""Deferred execution: ops are deferred with known shapes, and run together when a value is needed.

A Block is a short run of op calls of one tape. Shapes and dtypes are known when a call is deferred, so a wrong
one raises at its own line; the numbers come later. Noting a call is one append to a list: it happens or it
does not, whatever interrupts it. A block is sealed, and runs, when one of its values is looked at, when it
is full, or in backward. From then on no call is added, and it goes through these states:

    PENDING -> RAN -> CONSUMED     (a backward that runs it as one program goes straight to CONSUMED)

PENDING   nothing is computed; what it reads is held.
RAN       values are there, and so is what backward reads.
CONSUMED  a backward used up what was kept.

Its calls run together, as one program that is found by their structure, or one by one, each by its own plan:
see fused.py for the programs and policy.py for the choice. A program is compiled in the calling thread: a
compiler in the background would compete with the loop it wants to speed up, and make it depend on timing which
program ran. If a program fails, its calls run one by one, and the one that fails keeps its error: the others
have their values all the same.

On the tape a block is one action, made of others. Those are written when somebody looks at them; a backward
that runs the whole block as one program never needs them. A tape that keeps only what a live tensor can reach
holds a block by a weak reference, and the block lives as long as a result of it does. If several results
are held when such a block runs, its actions are written then: each keeps just what its own backward reads.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import ref

import jax

from tapejax.fusion import short
from tapejax.fusion.later import Later
from tapejax.fusion.sealed import CONSUMED, Sealed
from tapejax.ground.compat import DEVICE, NO_CONTEXT, Settings, is_tracing, looks_for_nonfinite
from tapejax.ground.placement import Shardings, devices_of, pick, several_devices
from tapejax.plan.plan import OpAction
from tapejax.tape.action import Composite, Request, TensorId
from tapejax.tape.switch import fusion
from tapejax.tensor.gradients import Gradients
from tapejax.tensor.tensor import Tensor, Tracer

LIMIT = 128  # calls in a block: enough for a training step, little enough to compile
RLock = type(threading.RLock())  # the class itself, without the function around it
CONCRETE: set[type] = set()  # types of values seen that are not tracers


class Block(Composite):
    """A run of op calls. Its tape's owner defers them, without a lock; whoever needs a value seals it and runs it.

    A call is a tuple:
        key     its plan, then the slots of its operands (see layout.py)
        number  of its result's identity (a tuple of them if there are several)
        made    a weak reference to its result (likewise)
        where   the user's line; None if the call is not recorded
        others  the numbers of the operands that need no gradient, of a recorded call that has such

    A tensor from outside that needs a gradient is known by the number of its identity, any other by its value.
    """

    __slots__ = (
        "__weakref__", "brought", "calls", "closed", "devices", "epoch", "home", "last", "lock", "logged", "outside", "sealed",
        "settings", "several", "state", "weak",
    )  # fmt: skip

    def __init__(self, tape: Any) -> None:
        self.epoch = tape.epoch
        self.weak = tape.weak  # whether the tape keeps only what a live tensor can reach
        self.home = ref(tape)
        self.logged = False  # whether it is on the tape: it is as soon as a call is recorded
        self.calls: list[tuple[Any, ...]] = []
        self.brought: list[Tensor] = []  # from outside
        self.outside: dict[int, int] = {}  # by number of such an identity, or minus id() of a value: its slot
        self.closed = False  # whether it takes no more calls
        self.sealed: Sealed | None = None
        self.lock = RLock()
        self.last = LIMIT - 1  # the place of its last call
        self.settings = settings = Settings.now()
        self.state = settings.with_device(DEVICE.value)  # of jax, when its calls are made
        self.several = several_devices()
        self.devices: Any = None  # if there are several, those to which what it reads is bound

    # -- deferring: by the owner of the tape only ----------------------------------------------------------

    def bring(self, tensor: Tensor) -> int | None:
        """The slot of a tensor that is not a pending result of this block.

        None if it is being traced, or stands for something else than a tensor with its identity that came before:
        the call cannot be deferred then.
        """
        brought, outside = self.brought, self.outside
        value, needs, identity = tensor.held, tensor.kind.requires_grad, tensor.identity
        if tensor.slot is not None:
            if type(value) is Tensor and value.held is self and not needs:
                return value.slot
            value, identity = tensor.value, tensor.identity
        handle = -id(value) if not needs else identity if type(identity) is int else identity.number
        slot = outside.get(handle)
        if slot is None:
            if type(value) not in CONCRETE:
                if isinstance(value, Tracer):
                    return None
                CONCRETE.add(type(value))
            if self.several and not self.is_at(value):
                return None
            place = len(brought)
            brought.append(tensor)
            if brought[place] is not tensor:  # another op was deferred in between, by a signal handler or a finalizer
                place = next(place for place, one in enumerate(brought) if one is tensor)
            slot = outside.setdefault(handle, ~place)
            if slot == ~place:
                return slot
        return slot if brought[~slot].held is value else None

    def is_at(self, value: Any) -> bool:
        """Whether a value may be read by the same program as the others: it is bound to no other devices than they."""
        devices = devices_of(value)
        if devices is None:
            return True
        if self.devices is None:
            self.devices = devices
        return self.devices == devices

    def missed(self, call: tuple[Any, ...]) -> bool:
        """Whether a call was deferred too late, while the block was being sealed."""
        return call[1] not in self.seal().number

    # -- sealing ------------------------------------------------------------------------------------------

    def seal(self) -> Sealed:
        """What is known from the moment on when no call can be added."""
        sealed = self.sealed
        if sealed is None:
            with self.lock:
                self.closed = True  # before the calls are copied: who defers one later sees it
                calls, brought = self.calls, self.brought  # those of one moment: see the last line
                made = Sealed(tuple(calls), brought)
                sealed = self.sealed = self.sealed or made  # it may have been sealed while this one was made
                self.calls, self.brought, self.outside = [], [], {}
        return sealed

    def flush(self) -> None:
        self.seal().compute(self)

    def settle(self, tensor: Tensor) -> None:
        sealed = self.seal()
        slot, now = tensor.slot, sealed.now
        if slot in now.errors:
            raise now.errors[slot]
        results, place = now.results, now.places.get(slot)
        if place is not None:
            sealed.hand_to(self, tensor, results[place])

    def materialise(self) -> list[OpAction]:
        return self.seal().materialise(self)

    def kept_by(self, index: int) -> Any:
        """What the backward of a call reads, if it is here."""
        sealed = self.seal()
        return sealed.kept_by(index, sealed.now)

    def shardings_for(self, index: int) -> Shardings:
        """Those that the gradients of a call's inputs are to have."""
        sealed = self.seal()
        shardings = sealed.now.shardings
        return None if shardings is None else pick(shardings, [~slot for slot in sealed.layout.calls[index].ids])

    def reads(self) -> list[int]:
        return list(self.seal().owners().values())

    def spread(self, reached: set[int]) -> None:
        self.seal().spread(reached)

    def action_of(self, number: int) -> OpAction:
        return next(action for action in self.materialise() if number in action.numbers)

    def is_over(self) -> bool:
        return self.sealed is not None and self.sealed.is_over(self.weak)

    def leave(self) -> None:
        """Its tape need not hold it as the one that takes calls."""
        tape = self.home()
        if tape is not None and tape.block is self:
            tape.block = None

    def is_as_it_was(self) -> bool:
        """Whether jax's settings are as they were when the calls were made, and there is no trace around."""
        return self.settings.is_now() and self.state[1] is DEVICE.value and not is_tracing()

    def running(self) -> Any:
        """jax's settings as they were when the calls were made, and no trace around."""
        return NO_CONTEXT if self.is_as_it_was() else self.settings.at(self.state[1])

    # -- as one action ----------------------------------------------------------------------------------

    @property
    def inputs(self) -> list[TensorId]:
        return [TensorId(number) for number in self.reads()]

    @property
    def outputs(self) -> list[TensorId]:
        sealed = self.seal()
        return [TensorId(number) for index in reversed(sealed.now.order) for number in sealed.numbers(index)]

    def name(self) -> str:
        return f"Block({', '.join([call.plan.op for call in self.seal().layout.calls])})"

    def go_back(self, grads: Gradients, asked: Request) -> bool:
        """Its backward as one program, with its forward if that has yet to run.

        False, and nothing has happened, if it is to go back action by action.
        """
        if not (fusion.everywhere or fusion.enabled):
            return False
        sums = grads.sums
        with self.lock:
            sealed = self.seal()
            if sealed.state is CONSUMED:
                return False  # its actions say so
            unasked = asked.unasked
            leaves_out = unasked is not None and asked.alone and not (self.several or looks_for_nonfinite())
            backward, there = sealed.backward(sums, asked, leaves_out)
            cts = [sums[number] for number in there]
            if any([isinstance(ct, jax.core.Tracer) for ct in cts]):
                return False
            if not asked.alone:
                sealed.compute(self)
            try:
                with self.running():
                    went = sealed.go_back(self, backward, cts, alone=asked.alone, leaves_out=leaves_out)
            except Exception:
                return False  # one by one, so that the one that fails is named
        if went is None:
            return False
        backward, gradients, origin = went
        numbers, place = sealed.numbers_of(backward.outputs), len(sums)
        sums.update(zip(numbers, gradients, strict=True))
        if unasked is not None and backward.left_out:  # which it is only where that was allowed
            unasked.append((place, Later(backward, sealed.number, numbers, origin, self.settings, self.state[1])))
        if asked.wanted is not None:
            for number, slot in zip(there, backward.present, strict=True):
                if number not in asked.wanted and slot >= 0:
                    del sums[number]
        return True

    step = short.step  # type: ignore[assignment]  # whose `self` is called block
