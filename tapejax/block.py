"""Deferred execution: ops are noted with known shapes, and run together when a value is needed.

A Block is a short run of op calls of one tape. Shapes and dtypes are known when a call is noted, so a wrong
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

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import ref

import jax

from tapejax.compat import NO_CONTEXT, Settings, is_tracing
from tapejax.errors import ArgumentError
from tapejax.fused import Backward, Forward, backward_of, forward_of
from tapejax.gradients import Gradients
from tapejax.layout import MAX_PROGRAMS, Layout, layout_of, result_slot, run_each, trim
from tapejax.placement import Shardings, devices_of, pick, several_devices, shardings_of
from tapejax.plan import Failed, OpAction
from tapejax.stepwise import Place
from tapejax.tape import Composite, Request, Tape, TensorId
from tapejax.tensor import Tensor, Tracer
from tapejax.where import line_of, user_line

LIMIT = 128  # calls in a block: enough for a training step, little enough to compile
PENDING, RAN, CONSUMED = "pending", "ran", "consumed"


class Fusion:
    """Whether ops are deferred and fused. Without, each runs by itself, at once.

    `with tapejax.fusion(False):` holds inside of the block, in this task or thread and in the tasks that it starts.
    `tapejax.fusion.enabled = False` holds wherever no such block does. Blocks may be left in any order.

    Where several processes run together (jax.distributed), all must run the same programs: which ones must follow
    from the calls alone, never from what a process holds or looks at. So there it is disabled, unless
    `tapejax.fusion.enabled = True` says otherwise.

    >>> import tapejax as tj
    >>> with tj.fusion(False):
    ...     print(tj.fusion.enabled)
    False
    >>> tj.fusion.enabled
    True
    """

    __slots__ = ("_blocks", "_default", "_lock", "_open", "_said", "everywhere")

    def __init__(self) -> None:
        self._blocks: ContextVar[tuple[list[bool], ...]] = ContextVar("fusion", default=())  # each with its setting
        self._open = 0  # how many there are, in all tasks and threads
        self._lock = threading.RLock()  # a signal handler may come in between
        self._said = "TAPEJAX_FUSION" in os.environ  # whether somebody has said what is wanted
        self._default = os.environ.get("TAPEJAX_FUSION", "1") != "0"
        self._opened(0)

    def follow_processes(self) -> None:
        """Look once how many processes there are: when the first op is made, jax has started."""
        if not self._said:
            self.enabled = jax.process_count() == 1

    @property
    def enabled(self) -> bool:
        blocks = self._blocks.get()
        return blocks[-1][0] if blocks else self._default

    @enabled.setter
    def enabled(self, enabled: bool) -> None:
        self._default, self._said = bool(enabled), True
        self._opened(0)

    def _opened(self, more: int) -> None:
        with self._lock:
            self._open += more
            # Read at every op: enabled, and no block anywhere says otherwise.
            self.everywhere = self._default and not self._open

    @contextmanager
    def __call__(self, enabled: bool) -> Iterator[None]:
        if not isinstance(enabled, bool):
            raise ArgumentError(f"fusion({enabled!r})", at=user_line(), fix="with tapejax.fusion(False):")
        block = [enabled]
        self._opened(1)
        try:
            self._blocks.set((*self._blocks.get(), block))
            yield
        finally:
            self._blocks.set(tuple([other for other in self._blocks.get() if other is not block]))
            self._opened(-1)

    def __repr__(self) -> str:
        return f"<fusion, {'enabled' if self.enabled else 'disabled'}>"


fusion = Fusion()

_CONCRETE: set[type] = set()  # types of values seen that are not tracers


class Block(Composite):
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
        "__weakref__", "brought", "calls", "closed", "device", "devices", "epoch", "home", "lock", "logged", "outside", "precision",
        "promotion", "ranks", "sealed", "settings", "weak", "x64",
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
        self.lock = threading.RLock()
        self.settings = settings = Settings.now()
        self.x64, self.precision, self.promotion, self.ranks = (
            settings.x64, settings.precision, settings.promotion, settings.ranks,
        )  # fmt: skip
        self.device = jax.default_device.value
        self.devices: Any = None  # those to which what it reads is bound

    # -- noting: by the owner of the tape only ----------------------------------------------------------

    def bring(self, tensor: Tensor) -> int | None:
        """The slot of a tensor that is not a pending result of this block.

        None if it is being traced, or stands for something else than a tensor with its identity that came before:
        the call cannot be noted then.
        """
        brought, outside = self.brought, self.outside
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
            if several_devices() and not self.is_at(value):
                return None
            slot = ~len(brought)
            brought.append(tensor)
            if brought[~slot] is not tensor:  # another op was noted in between, by a signal handler or a finalizer
                slot = ~next(place for place, one in enumerate(brought) if one is tensor)
            slot = outside.setdefault(handle, slot)
        return slot if brought[~slot]._value is value else None

    def is_at(self, value: Any) -> bool:
        """Whether a value may be read by the same program as the others: it is bound to no other devices than they."""
        devices = devices_of(value)
        if devices is None:
            return True
        if self.devices is None:
            self.devices = devices
        return self.devices == devices

    def missed(self, call: tuple[Any, ...]) -> bool:
        """Whether a call was noted too late, while the block was being sealed."""
        return all(one is not call for one in self.seal().calls)

    # -- sealing ------------------------------------------------------------------------------------------

    def seal(self) -> Sealed:
        """What is known from the moment on when no call can be added."""
        sealed = self.sealed
        if sealed is None:
            with self.lock:
                self.closed = True  # before the calls are copied: who notes one later sees it
                calls, brought = self.calls, self.brought  # those of one moment: see the last line
                made = Sealed(tuple(calls), brought)
                sealed = self.sealed = self.sealed or made  # it may have been sealed while this one was made
                self.calls, self.brought, self.outside = [], [], {}
        return sealed

    def flush(self) -> None:
        self.seal().run(self)

    def settle(self, tensor: Tensor) -> None:
        sealed = self.seal()
        slot, now = tensor._slot, sealed.now
        if slot in now.errors:
            raise now.errors[slot]
        results, place = now.results, now.places.get(slot)
        if place is not None:
            sealed.hand_to(self, tensor, results[place])

    def write(self) -> list[OpAction]:
        return self.seal().write(self)

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
        if self.settings.is_now() and self.device is jax.default_device.value and not is_tracing():
            return NO_CONTEXT
        return self._running()

    @contextmanager
    def _running(self) -> Iterator[None]:
        with jax.ensure_compile_time_eval(), self.settings.hold(), jax.default_device(self.device):
            yield

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
        sums = grads._sums
        with self.lock:
            sealed = self.seal()
            if sealed.state is CONSUMED:
                return False  # its actions say so
            backward, there = sealed.backward(sums, asked)
            cts = [sums[number] for number in there]
            if any([isinstance(ct, jax.core.Tracer) for ct in cts]):
                return False
            if not asked.alone:
                sealed.run(self)
            try:
                with self.running():
                    gradients = sealed.go_back(self, backward, cts, alone=asked.alone)
            except Exception:
                return False  # one by one, so that the one that fails is named
        if gradients is None:
            return False
        sums.update(zip(sealed.numbers_of(backward.outputs), gradients, strict=True))
        if asked.wanted is not None:
            for number, slot in zip(there, backward.present, strict=True):
                if number not in asked.wanted and slot >= 0:
                    del sums[number]
        return True

    def step(self, root: Tensor, wrt: Sequence[Tensor], tape: Tape) -> Gradients | None:
        """A training step that has come before, quickly: this block is all its tape holds, and has yet to run.

        None, and nothing has happened, if it is anything else.
        """
        if not tape.is_just(self) or not fusion.everywhere or not root._kind.requires_grad:
            return None
        with self.lock:
            outside = self.outside  # sealing lets go of it
            sealed = self.seal()
            if sealed.state is not PENDING or sealed.actions is not None:
                return None
            if not outside:
                outside = {number: slot for slot, number in sealed.owners().items()}
            numbers = [id if type(id := x._id) is int else id.number for x in wrt]
            slots = [outside.get(number) for number in numbers]
            if None in slots:  # one that was made here, or that is not read here
                slots = [x._slot if x._value is self else slot for x, slot in zip(wrt, slots, strict=True)]
            held = sealed.held()
            found = _step(sealed.layout, root._slot, tuple(slots), tuple(held))
            if found is None:
                return None
            both, places = found
            try:
                with self.running():
                    results, gradients = both.run([tensor._value for tensor in sealed.now.inputs], [])
            except Exception:
                return None  # the long way, so that what fails is named
            grads = Gradients()
            grads._sums = {n: gradients[place] for n, place in zip(numbers, places, strict=True) if place is not None}
            grads._told = {"roots": [root._number], "wrt": numbers}
            tape.restart(by="backward()")  # before it is used up: an interrupt must not leave a tape that looks whole
            sealed.consume(self, held, both.places, results)
        return grads


def _step(layout: Layout, root: int, slots: tuple[int | None, ...], held: tuple[int, ...]) -> Any:
    """The program of a whole step, if it is compiled, and where in its gradients each slot is; None if it is not."""
    found = layout.steps.get((root, slots, held))
    if found is None:
        wanted = {slot for slot in slots if slot is not None}
        backward = layout.backwards.get(((root,), (True,), _in_order(wanted), ()))
        if root in wanted or backward is None:
            return None
        places = {slot: place for place, slot in enumerate(backward.outputs)}
        found = layout.steps[root, slots, held] = backward.both(held), [places.get(slot) for slot in slots]
        trim(layout.steps, MAX_PROGRAMS)
    return found if found[0].together.reason else None


def _in_order(slots: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(slots))


def _in_both(places: dict[int, int], others: Any) -> list[int]:
    """The numbers that are in both, in the order of their places; looks at the smaller one only."""
    few, many = (others, places) if len(others) < len(places) else (places, others)
    found = [number for number in few if number in many]
    return found if len(found) < 2 else sorted(found, key=places.__getitem__)


ONES: dict[Any, Any] = {}  # by kind of a root that is pending: the seed it is given if nobody says otherwise


class Outcome:
    """What a sealed block is at a moment. It is replaced, in one step, when the state changes.

    owners: the identities of what is from outside; None where nothing that is left leads there.
    order: the recorded calls that can go back, the last first.
    inputs: while it is pending, the tensors from outside.
    forward: how it ran, and kept: what backward reads (see Forward); None once actions have it.
    results: values that were computed, places: where they are, by slot; gone when they are handed out.
    errors: by slot of a result that could not be computed, why.
    shardings: of what is from outside, once it ran: its gradients are to have the same.
    """

    __slots__ = ("errors", "forward", "inputs", "kept", "order", "owners", "places", "results", "shardings", "state")

    def __init__(self, state: str, owners: list[Any], order: tuple[int, ...], inputs: Sequence[Tensor] = ()) -> None:
        self.state, self.owners, self.order, self.inputs = state, owners, order, inputs
        self.forward: Forward | None = None
        self.kept: list[Any] | None = None
        self.results: list[Any] = []
        self.places: dict[int, int] = {}
        self.errors: dict[int, Exception] = {}
        self.shardings: Shardings = None


class Sealed:
    """A block that takes no more calls.

    It does not know its block (which would make a circle), and is given it where it needs to.
    Whatever changes here changes by one assignment: a signal handler or a finalizer may use the block in
    between any two lines, and an exception may end a method at any line.

    now: its state, and what goes with it.
    actions: once they are written; weak references if the tape holds them weakly.
    named: of such a tape, references to the identities that ask the block for their actions.
    """

    __slots__ = ("_led", "_slots", "actions", "calls", "layout", "named", "now")

    def __init__(self, calls: tuple[tuple[Any, ...], ...], inputs: Sequence[Tensor]) -> None:
        self.calls = calls
        self.layout: Layout = layout_of(tuple([call[0] for call in calls]))
        inputs = inputs[: self.layout.n_inputs]
        self.now = Outcome(PENDING, [tensor._id for tensor in inputs], self.layout.order, inputs)
        self.actions: list[Any] | None = None
        self.named: list[Any] = []
        self._slots: dict[int, int] | None = None
        self._led: tuple[int, ...] | None = None

    @property
    def led(self) -> tuple[int, ...]:
        """The slots of what is from outside and was made by an action."""
        if self._led is None:
            owners = self.now.owners
            self._led = tuple(
                [s for s in self.layout.owners if (o := owners[~s]) is not None and o._producer is not None]
            )
        return self._led

    def owners(self) -> dict[int, int]:
        """By slot of what is from outside and needs a gradient: the number of its identity."""
        owners = self.now.owners
        return {slot: owner.number for slot in self.layout.owners if (owner := owners[~slot]) is not None}

    @property
    def state(self) -> str:
        return self.now.state

    @property
    def slots(self) -> dict[int, int]:
        """By number of an identity, of a result or of what is from outside and needs a gradient: its slot."""
        found = self._slots
        if found is None:
            found = {number: slot for slot, number in self.owners().items()}
            for index, call in enumerate(self.calls):
                if type(call[1]) is int:
                    found[call[1]] = index
                else:
                    found.update((number, result_slot(index, i)) for i, number in enumerate(call[1]))
            self._slots = found
        return found

    def slot_of(self, number: int) -> int | None:
        """The slot of an identity, if it has one here; quick for the last result, which a root often is."""
        if self.calls and self.calls[-1][1] == number:
            return len(self.calls) - 1
        return self.slots.get(number)

    def numbers_of(self, slots: Iterable[int]) -> list[int]:
        """The numbers of the identities in these slots."""
        if self.layout.is_plain:
            calls, owners = self.calls, self.now.owners
            return [owners[~slot].number if slot < 0 else calls[slot][1] for slot in slots]
        numbers = {slot: number for number, slot in self.slots.items()}
        return [numbers[slot] for slot in slots]

    def numbers(self, index: int) -> tuple[int, ...]:
        """Of the identities of a call's results."""
        number = self.calls[index][1]
        return (number,) if type(number) is int else number

    def held(self) -> dict[int, Tensor]:
        """By slot: the results that somebody holds."""
        if self.layout.is_plain:
            return {index: tensor for index, call in enumerate(self.calls) if (tensor := call[2]()) is not None}
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

    def spread(self, reached: set[int]) -> None:
        """Add the numbers of what recorded calls make of tensors whose numbers are there."""
        here = {slot for number, slot in self.slots.items() if number in reached}
        for index in reversed(self.layout.order):
            call = self.layout.calls[index]
            if not here.isdisjoint(call.ids):
                here.update(call.outputs)
                reached.update(self.numbers(index))

    # -- running ---------------------------------------------------------------------------------------

    def run(self, block: Block) -> None:
        """Compute the values that somebody holds, and what backward reads. Nobody else's value is computed."""
        if self.now.state is not PENDING:
            return
        with block.lock:
            now = self.now
            if now.state is not PENDING:
                return
            held = self.held()
            reach = self.layout.reach(tuple(held)) if block.weak else None
            live: dict[int, OpAction] = {}
            apart = self.actions is not None or (
                reach is not None and not reach.alone
            )  # each action keeps its own part
            if apart:
                live = {action.index: action for action in self.write(block)}
                order = tuple(sorted(live, reverse=True))
            else:
                order = self.layout.order if reach is None else reach.order
            forward = forward_of(self.layout, tuple(held), order)
            inputs = [tensor._value for tensor in now.inputs]
            results, errors = self._computed(block, inputs, forward)
            owners = now.owners
            if apart:  # what an identity leads to stays with the actions
                self._led = self.led
                owners = [TensorId(id) if type(id) is int else TensorId(id.number) for id in owners]
            elif reach is not None and len(reach.owners) < len(self.layout.owners):
                owners = [owner if ~place in reach.owners else None for place, owner in enumerate(owners)]
            ran = Outcome(RAN, owners, order)
            ran.forward, ran.kept = forward, forward.to_keep(results, inputs)
            ran.places, ran.results, ran.errors = forward.places, results, errors
            ran.shardings = shardings_of(inputs)
            self.now = now = ran if self.now is now else self.now
            if now is ran:
                for index, action in live.items():
                    action._kept = self.kept_by(index, ran)
                if apart:
                    ran.kept = None
                self.hand_out(block, held, ran)

    def _computed(self, block: Block, inputs: list[Any], forward: Forward) -> tuple[list[Any], dict[int, Exception]]:
        """The results, and the errors of those that could not be computed."""
        with block.running():
            try:
                return forward.run(inputs), {}
            except Exception:  # one by one, so that the one that fails is named, and is the only one
                env, errors = run_each(forward.calls, inputs, self._line)
                return [env.get(slot) for slot in forward.results], errors

    def _line(self, index: int) -> str:
        where = self.calls[index][3]
        return where.line if isinstance(where, Place) else line_of(where)

    def backward(self, sums: dict[int, Any], asked: Request) -> tuple[Backward, list[int]]:
        """What going back is here, and whose gradients are there already."""
        layout, wanted = self.layout, asked.wanted
        if len(sums) == 1 and wanted is None:
            (number,) = sums
            slot = self.slot_of(number)
            there, present = ([], ()) if slot is None else ([number], (slot,))
        else:
            places = self.slots
            there = _in_both(places, sums)
            present = tuple([places[number] for number in there])
        targets = leading = None
        if wanted is not None:
            targets = _in_order([places[number] for number in _in_both(places, wanted)])
            leading = self.led if asked.only_ops else None
        ones = tuple([slot >= 0 and sums[n] is ONES.get(layout.kinds[slot]) for slot, n in zip(present, there)])
        return backward_of(layout, present, ones, targets, leading), there

    def go_back(self, block: Block, backward: Backward, cts: list[Any], *, alone: bool) -> list[Any] | None:
        """The gradients of the backward's outputs, by one program or two; None if it is to go action by action."""
        if self.now.state is PENDING:
            held = self.held()
            both = backward.both(tuple(held))
            order = self.layout.reach(tuple(held)).order if block.weak else self.layout.order
            instead = (forward_of(self.layout, tuple(held), order).together, backward.together)
            if both.together.pays(instead):
                results, gradients = both.run([tensor._value for tensor in self.now.inputs], cts)
                self.consume(block, held, both.places, results)
                return gradients
            self.run(block)
        if not backward.together.pays():
            return None
        values = self._read_by(backward)
        if values is None:
            return None
        gradients = backward.run(values, cts, self.now.shardings)
        if alone:
            self.use_up()
        return gradients

    def _read_by(self, backward: Backward) -> list[Any] | None:
        """What a backward reads; None if some of it is not there: the actions say why."""
        now = self.now
        if now.kept is not None and now.forward is not None and not now.errors:
            return backward.read_from(now.forward, now.kept)
        there = {action.index: action for action in self.written()}
        env: dict[int, Any] = {}
        for index in backward.reverse:
            values = self.kept_by(index, now) if now.kept is not None else index in there and there[index]._kept
            if not isinstance(values, tuple):
                return None
            env.update(zip(self.layout.calls[index].kept, values, strict=True))
        return [env[slot] for slot in backward.read]

    def consume(self, block: Block, held: dict[int, Tensor], places: dict[int, int], results: list[Any]) -> None:
        """Its forward and its backward ran as one program: hand out the values; nothing has to be kept."""
        used = Outcome(CONSUMED, self.now.owners, self.now.order)
        used.places, used.results = places, results
        self.now = used
        if self.actions is not None:
            self._release()
        self.hand_out(block, held, used)

    def use_up(self) -> None:
        """A backward has read what was kept, for the last time."""
        now = self.now
        used = Outcome(CONSUMED, now.owners, now.order)
        used.places, used.results, used.errors = now.places, now.results, now.errors  # what was not handed out yet
        self.now = used
        self._release()

    def _release(self) -> None:
        for action in self.written():
            action.release()

    def hand_out(self, block: Block, held: dict[int, Tensor], now: Outcome) -> None:
        """Give results their values. Who does not get it here, because of an interrupt, asks for it."""
        results, places = now.results, now.places
        for slot, tensor in held.items():
            if slot not in now.errors:
                self.hand_to(block, tensor, results[places[slot]])
        now.places, now.results = {}, []  # in this order: see Block.settle
        block.leave()

    def hand_to(self, block: Block, tensor: Tensor, value: Any) -> None:
        """Give a result its value, and an identity that knows whom to ask for its action."""
        number = tensor._id
        if tensor._kind.requires_grad and type(number) is int:
            id = TensorId(number, block)
            if block.weak:
                self.named.append(ref(id))
            tensor._id = id
        tensor._value = value  # before _slot: whoever sees none must find the value
        tensor._slot = None

    # -- actions ------------------------------------------------------------------------------------------

    def written(self) -> list[OpAction]:
        """The actions that were written and are still there."""
        found = [action() if type(action) is ref else action for action in self.actions or ()]
        return [action for action in found if action is not None]

    def write(self, block: Block) -> list[OpAction]:
        """Its actions, in order; those that a live tensor can reach, if the tape holds them weakly."""
        with block.lock:
            if self.actions is None:
                held = self.held() if self.now.state is PENDING else {}
                made = self._made(block, self.now, held)
                self.actions = actions = made if self.actions is None else self.actions
                if actions is made:
                    self._tell(made, held)
                    self._give(made)
                    if block.weak:
                        self.actions = [ref(action) for action in made]
        return self.written()

    def _made(self, block: Block, now: Outcome, held: dict[int, Tensor]) -> list[OpAction]:
        order = now.order
        if now.state is PENDING and block.weak:
            order = self.layout.reach(tuple(held)).order
        identities: dict[int, TensorId] = {}
        actions: list[OpAction] = []
        for index in reversed(order):
            call, (_, _, _, where, others) = self.layout.calls[index], self.calls[index]
            plan, numbers = call.plan, self.numbers(index)
            given = iter(others or ())
            inputs = [
                (now.owners[~slot] if slot < 0 else identities[slot]) if needs else TensorId(next(given))
                for slot, needs in zip(call.slots, plan.wrt, strict=True)
            ]
            action = OpAction(plan, inputs, numbers, None, where, block.epoch)
            action.index = index
            if now.state is not CONSUMED:
                action.block = block
            for slot, number, kind in zip(call.outputs, numbers, plan.out_kinds, strict=True):
                identities[slot] = TensorId(number, action if kind.requires_grad else None)
            actions.append(action)
        return actions

    def _give(self, actions: list[OpAction]) -> None:
        """What was kept goes to the actions; asked only now, for the block may have run while they were written."""
        now = self.now
        if now.kept is not None:
            for action in actions:
                action._kept = self.kept_by(action.index, now)
            now.kept = None

    def _tell(self, actions: list[OpAction], held: dict[int, Tensor]) -> None:
        """Identities that would ask the block for their actions know them from now on."""
        producers = {number: action for action in actions for number in action.numbers}
        for tensor in held.values():
            number = tensor._id
            if type(number) is int and number in producers and tensor._kind.requires_grad:
                tensor._id = TensorId(number, producers[number])
        for reference in self.named:
            id = reference()
            if id is not None:
                id._producer = producers[id.number]
        self.named = []

    def is_over(self, weak: bool) -> bool:
        """Whether it will never have an action again."""
        now = self.now
        if now.state is PENDING or now.kept is not None:
            return False
        return not self.written() if weak else not (self.actions or now.order)

    def kept_by(self, index: int, now: Outcome) -> Any:
        """What the backward of a call reads; None if that is not here."""
        if now.kept is None or now.forward is None:
            return None
        slots, read, kept = self.layout.calls[index].kept, now.forward.read, now.kept
        failed = now.errors and next((now.errors[slot] for slot in slots if slot in now.errors), None)
        return Failed(failed) if failed else tuple([kept[read[slot]] for slot in slots])
