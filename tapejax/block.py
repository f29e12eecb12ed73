"""Deferred execution: ops are noted down with known shapes, and run together when a value is needed.

A Block is a short run of op calls of one tape. Shapes and dtypes are known when a call is noted, so
a wrong one raises at its own line; the numbers come later. A block runs when one of its values is
looked at, when it is full, or in backward. The first time a structure of calls comes, its calls run
one by one, each by its own jitted plan. The second time (one call alone: after some more) it is
compiled as one program, in the calling thread (a compiler in the background would compete with the
loop it wants to speed up, and make it depend on timing which program ran), and found by its
structure from then on.

On the tape a block is one entry. Its actions are written when somebody looks at them; a backward that
runs the whole block as one program never needs them. A tape that keeps only what a live tensor can reach
holds a block by a weak reference, and the block lives as long as a result of it does. If several results
are held when such a block runs, its actions are written then: each keeps just what its own backward reads.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from sys import getrefcount
from typing import Any
from weakref import ref

import jax

from tapejax.compat import is_tracing
from tapejax.plan import OpAction, Plan
from tapejax.tape import Pending, TensorId
from tapejax.tensor import Tensor, Tracer

LIMIT = 128  # calls in a block: enough for a training step, little enough to compile
MAX_LAYOUTS = 512
MAX_PROGRAMS = 64  # of one layout
PATIENCE_WITH_ONE = 16  # how often one call alone comes before it is compiled with its backward: little is gained by it

_x64, _device, _precision = jax.enable_x64, jax.default_device, jax.default_matmul_precision


class Fusion:
    """Whether ops are deferred and fused: `tapejax.fusion.enabled = False` runs each by itself, at once.

    >>> import tapejax as tj
    >>> tj.fusion.enabled
    True
    """

    def __init__(self) -> None:
        self.enabled = os.environ.get("TAPEJAX_FUSION", "1") != "0"


fusion = Fusion()

_NOTHING = nullcontext()

# What getrefcount gives for an item that only its list holds.
(_ONLY_LISTED,) = map(getrefcount, [object()])
_CONCRETE: set[type] = set()  # types of values seen that are not tracers


class Block(Pending):
    """A run of op calls, noted by the thread that owns the tape, run once by whoever needs a value.

    Values are numbered: results count up from 0, those from outside down from -1. A tensor from
    outside that needs a gradient is known by its identity, any other by its value.

    key: for each call its plan, then the slots of its operands. Where two blocks have equal keys, the
    same program fits both.

    Noting takes no lock. Another thread that runs the block seals it first: who has noted a call and
    then finds the block sealed asks whether it was `missed`.
    """

    __slots__ = (
        "__weakref__", "actions", "device", "env", "epoch", "externals", "home", "key", "layout", "led", "lock",
        "logged", "named", "numbers", "order", "others", "outside", "owners", "precision", "ran", "results", "sealed", "weak",
        "wheres", "x64",
    )  # fmt: skip

    def __init__(self, tape: Any) -> None:
        self.epoch = tape.epoch
        self.weak = tape.weak  # whether the tape keeps only what a live tensor can reach
        self.home = ref(tape)
        self.logged = False  # whether it is on the tape: it is as soon as a call is recorded
        self.key: list[Any] = []
        self.wheres: list[Any] = []  # by call: the user's line; None if it is not recorded
        self.results: list[Any] = []  # by result: its Tensor
        self.externals: list[Any] = []  # values from outside
        self.owners: dict[int, Any] = {}  # by slot of those that need a gradient: the identity
        self.led: list[int] = []  # the slots of those that an action made
        self.outside: dict[int, int] = {}  # by id() of such an identity, or of a value that needs none: its slot
        self.others: list[int] = []  # by operand that needs no gradient, of a recorded call: the number of its identity
        self.sealed = self.ran = False
        self.layout: Layout | None = None  # of the calls that are part of it, once it is sealed
        self.order: tuple[int, ...] = ()  # the calls that its backward runs, the last first, once it is sealed
        self.numbers: list[int] = []  # by result: the number of its identity, once it is written or has run
        self.named: list[Any] = []  # of a weak one: references to the identities that ask it for their actions
        self.actions: list[Any] | None = None  # once they are written
        self.env: dict[int, Any] | None = None  # by slot: what backward reads, if it ran before they were
        self.lock = threading.RLock()
        self.x64, self.device, self.precision = _x64.value, _device.value, _precision.value

    def bring(self, tensor: Tensor) -> int | None:
        """The slot of a tensor that is not a pending result of this block.

        None if it is being traced, or if the block was sealed: nothing can be noted then.
        """
        externals, outside, owners = self.externals, self.outside, self.owners
        if self.sealed:  # before that, they are what it works with
            return None
        value, needs = tensor._value, tensor._kind.requires_grad
        if tensor._slot is not None:
            if type(value) is Tensor and value._value is self and not needs:
                return value._slot
            value = tensor.value
        handle = id(tensor._id if needs else value)
        slot = outside.get(handle)
        if slot is not None and externals[~slot] is value:
            return slot
        if type(value) not in _CONCRETE:
            if isinstance(value, Tracer):
                return None
            _CONCRETE.add(type(value))
        externals.append(value)
        slot = outside[handle] = -len(externals)
        if needs:
            owners[slot] = owner = tensor._id
            if owner._producer is not None:
                self.led.append(slot)
        return slot

    def missed(self, slot: int) -> bool:
        """Whether a call was noted too late, while another thread sealed the block."""
        with self.lock:
            return self.layout is not None and slot >= self.layout.n_results

    def seal(self) -> Layout:
        """From now on no call becomes part of the block."""
        if self.layout is None:
            self.sealed = True
            n_calls = len(self.wheres)
            layout = layout_of(tuple(self.key))
            if len(layout.steps) > n_calls:  # the owner is just noting a call, and will see that it was missed
                layout = layout_of(layout.beginning(n_calls))
            self.results, self.externals = self.results[: layout.n_results], self.externals[: layout.n_externals]
            self.owners = dict(self.owners)  # the owner of the tape may be adding to these still
            self.layout, self.order = layout, layout.order
        return self.layout

    # -- actions -------------------------------------------------------------------------------------

    def write(self) -> list[OpAction]:
        with self.lock:
            if self.actions is None:
                made = self._written(self.seal())
                self.actions = [ref(action) for action in made] if self.weak else made
        if not self.weak:
            return self.actions
        found = [action() for action in self.actions]
        return [action for action in found if action is not None]

    def _written(self, layout: Layout) -> list[OpAction]:
        """Actions of the recorded calls; of a block that is held weakly, those that a live tensor can reach."""
        results = self.results
        if not self.numbers:
            self.number()
        held = self.held()
        wanted = layout.reach(tuple(held)).order if self.weak and not self.ran else self.order
        identities: dict[int, TensorId] = {}
        actions: list[OpAction] = []
        others = 0
        for index, step in enumerate(layout.steps):
            plan = step.plan
            if not plan.records:
                continue
            if index in wanted:
                numbers = tuple(self.numbers[step.first : step.first + plan.n_out])
                given = iter(self.others[others : others + plan.n_in - plan.n_ids])
                inputs = [
                    (self.owners[slot] if slot < 0 else identities[slot]) if needs else TensorId(next(given))
                    for slot, needs in zip(step.slots, plan.wrt)
                ]
                kept = None if self.env is None else tuple([self.env[slot] for slot in step.kept])
                action = OpAction(plan, inputs, numbers, kept, self.wheres[index], self.epoch)
                if not self.ran or self.env is not None:
                    action.block, action.index = self, index
                for i, number in enumerate(numbers):
                    identities[step.first + i] = TensorId(number, action if plan.out_kinds[i].requires_grad else None)
                actions.append(action)
            others += plan.n_in - plan.n_ids
        if not self.ran:
            alive = set(held)
            for slot, tensor in enumerate(results):
                if slot not in alive:
                    results[slot] = None  # only the block held it
                elif slot in identities:
                    tensor._id = identities[slot]
        producers = {number: action for action in actions for number in action.numbers} if self.named else {}
        for reference in self.named:
            id = reference()
            if id is not None:
                id._producer = producers[id.number]
        self.env, self.named = None, []
        return actions

    def reads(self) -> list[int]:
        with self.lock:
            read = {slot for step in self.seal().steps for slot in step.ids}
        return [owner.number for slot, owner in self.owners.items() if slot in read]

    def action_of(self, number: int) -> OpAction:
        return next(action for action in self.write() if number in action.numbers)

    def is_over(self) -> bool:
        if self.weak and self.actions:
            self.actions = [action for action in self.actions if action() is not None]
        if not self.ran or self.env is not None:
            return False
        return not self.actions and (self.weak or not self.order)

    # -- running ---------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Run what was noted. What nobody can look at any more is not computed."""
        with self.lock:
            if self.ran:
                return
            layout = self.seal()
            held = tuple(self.held())
            reach = layout.reach(held)
            if self.actions is None and (reach.alone or not self.weak):
                self._run_whole(layout, held, reach)
            else:
                self._run_written(layout, held)

    def _run_whole(self, layout: Layout, held: tuple[int, ...], reach: Reach) -> None:
        """Run, and keep what the backward will read."""
        chosen, results, outer = reach.run_weak if self.weak else reach.run_all
        externals = self.externals
        with self.settings():
            env = dict(zip(chosen, layout.run_forward(chosen, self.setting, externals), strict=True))
        self.number()
        self.name(held)
        self.env = {slot: env[slot] for slot in results}
        for slot in outer:
            self.env[slot] = externals[~slot]
        if self.weak:
            self.order = reach.order
            if len(reach.owners) < len(self.owners):
                self.owners = {slot: owner for slot, owner in self.owners.items() if slot in reach.owners}
        self.settle(held, [env[slot] for slot in held])

    def _run_written(self, layout: Layout, held: tuple[int, ...]) -> None:
        """Run, and give each action what its own backward will read."""
        live = self.write()
        kept = {slot for action in live for slot in layout.steps[action.index].kept}
        chosen = tuple(sorted(kept.union(held).difference(layout.outer)))
        with self.settings():
            env = dict(zip(chosen, layout.run_forward(chosen, self.setting, self.externals), strict=True))
        env.update((slot, self.externals[~slot]) for slot in kept if slot < 0)
        for action in live:
            action._kept = tuple([env[slot] for slot in layout.steps[action.index].kept])
        self.owners = {slot: TensorId(owner.number) for slot, owner in self.owners.items()}
        self.wheres, self.others = [], []  # the actions have them
        self.settle(held, [env[slot] for slot in held])

    def held(self) -> list[int]:
        """The slots of results that somebody holds."""
        results = self.results
        counts = enumerate(map(getrefcount, results))
        return [slot for slot, count in counts if count > _ONLY_LISTED and results[slot] is not None]

    def settle(self, slots: Sequence[int], values: Sequence[Any]) -> None:
        """Hand out values, and let go of everything that was only needed to compute them."""
        for slot, value in zip(slots, values, strict=True):
            tensor = self.results[slot]
            tensor._value = value  # before _slot: whoever sees none must find the value
            tensor._slot = None
        self.ran = True
        tape = self.home()
        if tape is not None and tape.block is self:
            tape.block = None  # which would keep it alive
        self.results, self.externals, self.outside, self.key = [], [], {}, []

    def consume(self, slots: Sequence[int], values: Sequence[Any]) -> None:
        """Its forward and its backward ran as one program: hand out the values; nothing has to be kept."""
        self.name(slots)
        self.settle(slots, values)
        self.env = None

    def name(self, slots: Sequence[int]) -> None:
        """Give results identities that know whom to ask for their actions."""
        for slot in slots:
            tensor = self.results[slot]
            if tensor._kind.requires_grad:
                tensor._id = TensorId(tensor._id, self)
                if self.weak:
                    self.named.append(ref(tensor._id))

    def number(self) -> None:
        self.numbers = [0 if tensor is None else tensor._id for tensor in self.results]

    @property
    def setting(self) -> tuple[Any, ...]:
        return self.x64, self.device, self.precision

    def settings(self) -> Any:
        """jax's settings as they were when the calls were made, and no trace around."""
        eager = jax.ensure_compile_time_eval() if is_tracing() else _NOTHING
        if self.x64 is _x64.value and self.device is _device.value and self.precision is _precision.value:
            return eager
        stack = ExitStack()
        stack.enter_context(eager)
        if self.x64 is not _x64.value:
            stack.enter_context(_x64(self.x64))
        if self.device is not _device.value:
            stack.enter_context(_device(self.device))
        if self.precision is not _precision.value:
            stack.enter_context(_precision(self.precision))
        return stack


class Step:
    """One call of a structure, opened up.

    slots: of its operands; ids: of those that need a gradient; first: of its results; kept: of what its
    backward reads.
    """

    __slots__ = ("first", "ids", "kept", "plan", "slots")

    def __init__(self, plan: Plan, slots: tuple[int, ...], first: int):
        self.plan, self.slots, self.first = plan, slots, first
        self.ids = plan.pick_wrt(slots) if plan.records else ()
        self.kept = plan.keep((*slots, *self.results)) if plan.records else ()

    @property
    def results(self) -> range:
        return range(self.first, self.first + self.plan.n_results)


class Programs:
    """Programs that are built when they have been asked for a few times; bounded."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.entries: OrderedDict[Any, Any] = OrderedDict()  # a program, or how often it was asked for
        self.lock = threading.Lock()

    def get(self, key: Any, build: Callable[[], Any]) -> Any:
        """What was built for the key, or None the first times it is seen."""
        found = self.entries.get(key, 0)
        if type(found) is not int:
            return found
        with self.lock:
            found = self.entries.get(key, 0)
            if type(found) is int:
                found = self.entries[key] = build() if found >= self.patience else found + 1
                while len(self.entries) > MAX_PROGRAMS:
                    self.entries.popitem(last=False)
        return None if type(found) is int else found


class Layout:
    """What is known of a structure of calls: opened up, and its compiled programs."""

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.key = key
        self.steps = _opened(key)
        self.n_results = sum(step.plan.n_results for step in self.steps)
        self.n_externals = -min((slot for step in self.steps for slot in step.slots if slot < 0), default=0)
        self.kept = frozenset(slot for step in self.steps for slot in step.kept)
        self.outer = frozenset(range(-self.n_externals, 0))
        self.order = tuple(index for index, step in reversed([*enumerate(self.steps)]) if step.plan.records)
        self.kinds = [
            kind for s in self.steps for kind in (*s.plan.out_kinds, *[None] * (s.plan.n_results - s.plan.n_out))
        ]  # by result; extras have none
        self.reaches: dict[tuple[int, ...], Reach] = {}
        self.courses: dict[Any, Any] = {}  # of `hot.step`
        patience = 1 if len(self.steps) > 1 else PATIENCE_WITH_ONE
        self.forwards, self.backwards = Programs(patience), Programs(patience)

    def run_forward(self, chosen: tuple[int, ...], setting: tuple[Any, ...], externals: Sequence[Any]) -> Sequence[Any]:
        """The values of the chosen slots."""
        if not chosen:
            return ()
        if len(self.steps) == 1:
            (step,) = self.steps
            results = step.plan.forward(*[externals[~slot] for slot in step.slots])
            return (results,) if step.plan.single else [results[slot] for slot in chosen]

        def replay(externals):
            env = self.run(externals, set(chosen))
            return [env[slot] for slot in chosen]

        program = self.forwards.get((chosen, setting), lambda: jax.jit(replay))
        return (program or replay)(externals)

    def beginning(self, n_calls: int) -> tuple[Any, ...]:
        """The key of its first calls."""
        return self.key[: sum(1 + len(step.slots) for step in self.steps[:n_calls])]

    def reach(self, held: tuple[int, ...]) -> Reach:
        """What leads to these results."""
        found = self.reaches.get(held)
        if found is None:
            if len(self.reaches) >= MAX_PROGRAMS:
                self.reaches.clear()
            found = self.reaches[held] = Reach(self, held)
        return found

    def run(self, externals: Sequence[Any], wanted: set[int]) -> dict[int, Any]:
        """The environment (slot -> value) after the steps that lead to the wanted slots."""
        wanted = set(wanted)
        needed = []
        for step in reversed(self.steps):
            if not wanted.isdisjoint(step.results):
                wanted.update(step.slots)
                needed.append(step)
        env: dict[int, Any] = {-1 - position: value for position, value in enumerate(externals)}
        for step in reversed(needed):
            results = step.plan.forward(*[env[slot] for slot in step.slots])
            env.update(zip(step.results, (results,) if step.plan.single else results, strict=True))
        return env


class Reach:
    """What leads to results that somebody holds.

    order: the recorded calls, the last first; owners: what they read from outside that needs a gradient; alone: whether
    no more than one of the results needs a gradient, so that all of it goes when that one does.
    run_weak, run_all: what to compute if only this is to be kept, or the whole block: (the results, those of them that
    backwards read, what backwards read from outside).
    """

    def __init__(self, layout: Layout, held: Sequence[int]) -> None:
        wanted, order = set(held), []
        for index in layout.order:
            step = layout.steps[index]
            if any(step.first + i in wanted and kind.requires_grad for i, kind in enumerate(step.plan.out_kinds)):
                order.append(index)
                wanted.update(step.ids)
        self.order = tuple(order)
        self.owners = frozenset(slot for index in order for slot in layout.steps[index].ids if slot < 0)
        self.run_weak = self._to_run(held, {slot for index in order for slot in layout.steps[index].kept})
        self.run_all = self._to_run(held, layout.kept)
        self.alone = sum(layout.kinds[slot].requires_grad for slot in held) <= 1

    @staticmethod
    def _to_run(held: Sequence[int], kept: Any) -> tuple[tuple[int, ...], ...]:
        results = tuple(sorted(slot for slot in kept if slot >= 0))
        return tuple(sorted({*held, *results})), results, tuple(sorted(kept.difference(results)))


def _opened(key: tuple[Any, ...]) -> list[Step]:
    steps, rest, first = [], iter(key), 0
    for plan in rest:
        steps.append(Step(plan, tuple([next(rest) for _ in range(plan.n_in)]), first))
        first += plan.n_results
    return steps


layouts: OrderedDict[tuple[Any, ...], Layout] = OrderedDict()
_layouts_lock = threading.Lock()


def layout_of(key: tuple[Any, ...]) -> Layout:
    found = layouts.get(key)
    if found is None:
        with _layouts_lock:
            found = layouts.setdefault(key, Layout(key))
            while len(layouts) > MAX_LAYOUTS:
                layouts.popitem(last=False)
    return found
