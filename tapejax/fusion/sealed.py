"""A block that takes no more calls: its states, its values, its actions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import ref

from tapejax.fusion.fused import Backward, Forward, Origin, backward_for_all, backward_of, forward_of, look_at
from tapejax.fusion.layout import Layout, layout_of, result_slot, run_each
from tapejax.ground.caches import table
from tapejax.ground.placement import Shardings, shardings_of
from tapejax.ground.where import line_of
from tapejax.plan.plan import Failed, OpAction
from tapejax.plan.stepwise import Place
from tapejax.tape.action import Request, TensorId
from tapejax.tensor.tensor import Tensor

if TYPE_CHECKING:
    from tapejax.fusion.block import Block
    from tapejax.plan.policy import Together

PENDING, RAN, CONSUMED = "pending", "ran", "consumed"
identity_of = attrgetter("identity")
NONE: Mapping[int, Any] = MappingProxyType({})


def in_order(slots: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(slots))


def in_both(places: dict[int, int], others: Any) -> list[int]:
    """The numbers that are in both, in the order of their places; looks at the smaller one only."""
    few, many = (others, places) if len(others) < len(places) else (places, others)
    found = [number for number in few if number in many]
    return found if len(found) < 2 else sorted(found, key=places.__getitem__)


ONES = table("seeds", 128)  # by kind of a root that is pending: the seed it is given if nobody says otherwise


class Outcome:
    """What a sealed block is at a moment. It is replaced, in one step, when the state changes.

    owners: the identities of what is from outside; None where nothing that is left leads there.
    order: the recorded calls that can go back, the last first.
    inputs, made: while it is pending, the tensors from outside, and weak references to the results (see Block).
    forward: how it ran, and kept: what backward reads (see Forward); None once actions have it.
    results: values that were computed, places: where they are, by slot; gone when they are handed out.
    errors: by slot of a result that could not be computed, why.
    shardings: of what is from outside, once it ran: its gradients are to have the same.
    held: the slots of results that somebody held when it ran.
    """

    __slots__ = (
        "errors", "forward", "held", "inputs", "kept", "made", "order", "owners", "places", "results", "shardings", "state",
    )  # fmt: skip

    def __init__(self, state: str, owners: list[Any], order: tuple[int, ...], inputs: Sequence[Tensor] = ()) -> None:
        self.state, self.owners, self.order, self.inputs = state, owners, order, inputs
        self.made: Sequence[Any] = ()
        self.forward: Forward | None = None
        self.kept: list[Any] | None = None
        self.results: Sequence[Any] = ()
        self.places: Mapping[int, int] = NONE
        self.errors: Mapping[int, Exception] = NONE
        self.held: tuple[int, ...] = ()
        self.shardings: Shardings = None


class Sealed:
    """A block that takes no more calls.

    It does not know its block (which would make a circle), and is given it where it needs to.
    Whatever changes here changes by one assignment: a signal handler or a finalizer may use the block in
    between any two lines, and an exception may end a method at any line.

    number, where, others: of each call, what Block says. In columns: few objects are left of a million calls, so that the
    garbage collector has little to look at.
    now: its state, and what goes with it.
    actions: once they are written; weak references if the tape holds them weakly.
    named: of such a tape, references to the identities that ask the block for their actions.
    places, leading: what `slots` and `led` have found.
    """

    __slots__ = ("actions", "layout", "leading", "named", "now", "number", "others", "places", "where")

    def __init__(self, calls: Sequence[tuple[Any, ...]], inputs: Sequence[Tensor]) -> None:
        keys, self.number, references, self.where, self.others = zip(*calls, strict=True) if calls else ((),) * 5
        self.layout: Layout = layout_of(keys)
        inputs = inputs[: self.layout.n_inputs]
        self.now = Outcome(PENDING, list(map(identity_of, inputs)), self.layout.order, inputs)
        self.now.made = references
        self.actions: list[Any] | None = None
        self.named: list[Any] = []
        self.places: dict[int, int] | None = None
        self.leading: tuple[int, ...] | None = None

    @property
    def led(self) -> tuple[int, ...]:
        """The slots of what is from outside and was made by an action."""
        if self.leading is None:
            owners = self.now.owners
            self.leading = tuple(
                [s for s in self.layout.owners if (o := owners[~s]) is not None and o.made_by is not None]
            )
        return self.leading

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
        found = self.places
        if found is None:
            found = {number: slot for slot, number in self.owners().items()}
            for index, number in enumerate(self.number):
                if type(number) is int:
                    found[number] = index
                else:
                    found.update((one, result_slot(index, i)) for i, one in enumerate(number))
            self.places = found
        return found

    def slot_of(self, number: int) -> int | None:
        """The slot of an identity, if it has one here; quick for the last result, which a root often is."""
        if self.number and self.number[-1] == number:
            return len(self.number) - 1
        return self.slots.get(number)

    def numbers_of(self, slots: Iterable[int]) -> list[int]:
        """The numbers of the identities in these slots."""
        if self.layout.is_plain:
            numbers, owners = self.number, self.now.owners
            return [owners[~slot].number if slot < 0 else numbers[slot] for slot in slots]
        numbers = {slot: number for number, slot in self.slots.items()}
        return [numbers[slot] for slot in slots]

    def numbers(self, index: int) -> tuple[int, ...]:
        """Of the identities of a call's results."""
        number = self.number[index]
        return (number,) if type(number) is int else number

    def held(self) -> dict[int, Tensor]:
        """By slot: the results that somebody holds, as long as it is pending."""
        references = self.now.made
        if self.layout.is_plain:
            return {index: tensor for index, made in enumerate(references) if (tensor := made()) is not None}
        found: dict[int, Tensor] = {}
        for index, made in enumerate(references):
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
                here.update(call.results)
                reached.update(self.numbers(index))

    # -- running ---------------------------------------------------------------------------------------

    def compute(self, block: Block) -> None:
        """Compute the values that somebody holds, and what backward reads. Nobody else's value is computed."""
        if self.now.state is not PENDING:
            return
        with block.lock:
            now = self.now
            if now.state is not PENDING:
                return
            held = self.held()
            look = look_at(self.layout, tuple(held), block.weak)
            forward, order, owners = look.forward, look.order, now.owners
            live: dict[int, OpAction] = {}
            apart = forward is None or self.actions is not None  # each action keeps its own part
            if apart:
                live = {action.index: action for action in self.materialise(block)}
                order = tuple(sorted(live, reverse=True))
                forward = forward_of(self.layout, tuple(held), order)
            inputs = [tensor.held for tensor in now.inputs]
            results, errors = self._computed(block, inputs, forward)
            if apart:  # what an identity leads to stays with the actions
                self.leading = self.led
                owners = [TensorId(id) if type(id) is int else TensorId(id.number) for id in owners]
            elif look.owners is not None:
                owners = [owner if ~place in look.owners else None for place, owner in enumerate(owners)]
            ran = Outcome(RAN, owners, order)
            ran.forward, ran.kept = forward, forward.to_keep(results, inputs)
            ran.places, ran.results, ran.errors = forward.places, results, errors
            ran.held = self.layout.choose(tuple(held))
            if block.several:
                ran.shardings = shardings_of(inputs)
            self.now = now = ran if self.now is now else self.now
            if now is ran:
                for index, action in live.items():
                    action.held = self.kept_by(index, ran)
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
                return [env.get(slot) for slot in forward.calls.outputs], errors

    def _line(self, index: int) -> str:
        where = self.where[index]
        return where.line if isinstance(where, Place) else line_of(where)

    def backward(self, sums: dict[int, Any], asked: Request, leaves_out: bool) -> tuple[Backward, list[int]]:
        """What going back is here, and whose gradients are there already.

        leaves_out: whether gradients of what nobody holds may be left out, if all are wanted.
        """
        layout, wanted = self.layout, asked.wanted
        if len(sums) == 1 and wanted is None:
            (number,) = sums
            slot = self.slot_of(number)
            there, present = ([], ()) if slot is None else ([number], (slot,))
        else:
            places = self.slots
            there = in_both(places, sums)
            present = tuple([places[number] for number in there])
        targets = leading = None
        if wanted is not None:
            targets = in_order([places[number] for number in in_both(places, wanted)])
            leading = self.led if asked.only_ops else None
        ones = tuple([slot >= 0 and sums[n] is ONES.get(layout.kinds[slot]) for slot, n in zip(present, there)])
        if leaves_out and wanted is None:
            return self.backward_for_all(present, ones), there
        return backward_of(layout, present, ones, targets, leading), there

    def backward_for_all(self, present: tuple[int, ...], ones: tuple[bool, ...]) -> Backward:
        """That of everything, some of which may be left out."""
        now = self.now
        if now.state is PENDING:
            return backward_for_all(self.layout, present, ones, self.layout.choose(tuple(self.held())), False)
        if now.errors:
            return backward_of(self.layout, present, ones, None, None)
        return backward_for_all(self.layout, present, ones, now.held, True)

    def go_back(
        self, block: Block, backward: Backward, cts: list[Any], *, alone: bool, leaves_out: bool
    ) -> tuple[Backward, list[Any], Origin] | None:
        """What went back, the gradients of its outputs, and what they were computed from; by one program or two.

        None if it is to go action by action.
        """
        if self.now.state is PENDING:
            held = self.held()
            both = backward.both(tuple(held))
            if both.together.pays(self._instead(block, held, backward)):
                inputs = [tensor.held for tensor in self.now.inputs]
                results, gradients = both.run(inputs, cts)
                self.consume(block, held, both.places, results)
                return backward, gradients, backward.origin(inputs, cts)
            self.compute(block)
            if leaves_out and backward.left_out:
                backward = self.backward_for_all(backward.present, backward.ones)
        if not backward.together.pays():
            return None
        values = self.read_by(backward)
        if values is None:
            return None
        gradients = backward.run(values, cts, self.now.shardings)
        if alone:
            self.use_up()
        return backward, gradients, Origin(True, values, cts)

    def _instead(self, block: Block, held: dict[int, Tensor], backward: Backward) -> Iterator[Together]:
        """What would run if its forward and its backward were two programs; looked at only as long as that is open."""
        order = look_at(self.layout, tuple(held), block.weak).order
        yield forward_of(self.layout, tuple(held), order).together
        yield backward.together

    def read_by(self, backward: Backward) -> list[Any] | None:
        """What a backward reads; None if some of it is not there: the actions say why."""
        now = self.now
        if now.kept is not None and now.forward is not None and not now.errors:
            return backward.read_from(now.forward, now.kept)
        there = {action.index: action for action in self.materialised()}
        env: dict[int, Any] = {}
        for call in backward.calls:
            index = call.outputs[0]
            values = self.kept_by(index, now) if now.kept is not None else index in there and there[index].held
            if not isinstance(values, tuple):
                return None
            env.update(zip(call.kept, values, strict=True))
        return [env[slot] for slot in backward.read]

    def consume(self, block: Block, held: dict[int, Tensor], places: Mapping[int, int], results: Sequence[Any]) -> None:
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
        for action in self.materialised():
            action.release()

    def hand_out(self, block: Block, held: dict[int, Tensor], now: Outcome) -> None:
        """Give results their values. Who does not get it here, because of an interrupt, asks for it."""
        results, places = now.results, now.places
        for slot, tensor in held.items():
            if slot not in now.errors:
                self.hand_to(block, tensor, results[places[slot]])
        now.places, now.results = {}, ()  # in this order: see Block.settle
        block.leave()

    def hand_to(self, block: Block, tensor: Tensor, value: Any) -> None:
        """Give a result its value, and an identity that knows whom to ask for its action."""
        number = tensor.identity
        if tensor.kind.requires_grad and type(number) is int:
            id = TensorId(number, block)
            if block.weak:
                self.named.append(ref(id))
            tensor.identity = id
        tensor.held = value  # before _slot: whoever sees none must find the value
        tensor.slot = None

    # -- actions ------------------------------------------------------------------------------------------

    def materialised(self) -> list[OpAction]:
        """The actions that were written and are still there."""
        found = [action() if type(action) is ref else action for action in self.actions or ()]
        return [action for action in found if action is not None]

    def materialise(self, block: Block) -> list[OpAction]:
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
        return self.materialised()

    def _made(self, block: Block, now: Outcome, held: dict[int, Tensor]) -> list[OpAction]:
        order = now.order
        if now.state is PENDING and block.weak:
            order = self.layout.reach(tuple(held)).order
        identities: dict[int, TensorId] = {}
        actions: list[OpAction] = []
        for index in reversed(order):
            call, numbers = self.layout.calls[index], self.numbers(index)
            plan, given = call.plan, iter(self.others[index] or ())
            inputs = [
                (now.owners[~slot] if slot < 0 else identities[slot]) if needs else TensorId(next(given))
                for slot, needs in zip(call.inputs, plan.wrt, strict=True)
            ]
            action = OpAction(plan, inputs, numbers, None, self.where[index], block.epoch)
            action.index = index
            if now.state is not CONSUMED:
                action.block = block
            for slot, number, kind in zip(call.results, numbers, plan.out_kinds, strict=True):
                identities[slot] = TensorId(number, action if kind.requires_grad else None)
            actions.append(action)
        return actions

    def _give(self, actions: list[OpAction]) -> None:
        """What was kept goes to the actions; asked only now, for the block may have run while they were written."""
        now = self.now
        if now.kept is not None:
            for action in actions:
                action.held = self.kept_by(action.index, now)
            now.kept = None

    def _tell(self, actions: list[OpAction], held: dict[int, Tensor]) -> None:
        """Identities that would ask the block for their actions know them from now on."""
        producers = {number: action for action in actions for number in action.numbers}
        for tensor in held.values():
            number = tensor.identity
            if type(number) is int and number in producers and tensor.kind.requires_grad:
                tensor.identity = TensorId(number, producers[number])
        for reference in self.named:
            id = reference()
            if id is not None:
                id.made_by = producers[id.number]
        self.named = []

    def is_over(self, weak: bool) -> bool:
        """Whether it will never have an action again."""
        now = self.now
        if now.state is PENDING or now.kept is not None:
            return False
        return not self.materialised() if weak else not (self.actions or now.order)

    def kept_by(self, index: int, now: Outcome) -> Any:
        """What the backward of a call reads; None if that is not here."""
        if now.kept is None or now.forward is None:
            return None
        slots, read, kept = self.layout.calls[index].kept, now.forward.read, now.kept
        failed = now.errors and next((now.errors[slot] for slot in slots if slot in now.errors), None)
        return Failed(failed) if failed else tuple([kept[read[slot]] for slot in slots])
