"""Deferred execution: ops are noted down with known shapes, and run together when a value is needed.

A Block is a short run of op calls of one tape. Shapes and dtypes are known when a call is noted, so
a wrong one raises at its own line; the numbers come later. A block runs when one of its values is
looked at, when it is full, or in backward. The first time a structure of calls comes, its calls run
one by one, each by its own jitted plan. The second time it is compiled as one program, in the
calling thread (a compiler in the background would compete with the loop it wants to speed up, and
make it depend on timing which program ran), and found by its structure from then on.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from sys import getrefcount
from typing import Any
from weakref import ref

import jax

from tapejax.lazy import Lazy
from tapejax.plan import OpAction, Plan

LIMIT = 128  # calls in a block: enough for a training step, little enough to compile
MAX_LAYOUTS = 512
MAX_PROGRAMS = 64  # of one layout

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

# What getrefcount gives for an item that only its list holds.
(_ONLY_LISTED,) = [getrefcount(item) for item in [object()]]


class Block:
    """A run of op calls, noted by the thread that owns the tape, run once by whoever needs a value.

    Calls are noted as numbers: results count up from 0, values from outside down from -1. Values and
    identities are numbered apart: a detached tensor shares its value, not its identity.

    key: for each call its plan, then for each operand the slot of its value and, if it needs a
    gradient, the slot of its identity. Where two blocks have equal keys, the same program fits both.

    Noting takes no lock. Another thread that runs the block seals it first: who has noted a call and
    then finds the block sealed sees to the call with `catch_up`.
    """

    __slots__ = (
        "actions", "device", "externals", "id_leaf", "id_numbers", "identities", "key", "layout", "limit", "lock",
        "numbers", "outside", "precision", "results", "sealed", "x64",
    )  # fmt: skip

    def __init__(self) -> None:
        self.key: list[Any] = []
        self.layout: Layout | None = None  # of the calls that ran
        self.externals: list[Any] = []
        self.outside: dict[int, int] = {}  # by id() of an external value: its slot
        self.results: list[Lazy] = []
        self.numbers: list[int] = []  # by result: the number of its identity, 0 if it has none
        self.identities: dict[int, int] = {}  # by number: the slot
        self.id_numbers: list[int] = []  # by external identity: its number, and whether it is a leaf
        self.id_leaf: list[bool] = []
        self.actions: list[ref[OpAction] | None] = []  # one per call; None if it is not recorded
        self.sealed = False
        self.limit = LIMIT
        self.lock = threading.RLock()
        self.x64, self.device, self.precision = _x64.value, _device.value, _precision.value

    def takes_more(self) -> bool:
        return (
            not self.sealed
            and len(self.actions) < self.limit
            and self.x64 is _x64.value
            and self.device is _device.value
            and self.precision is _precision.value
        )

    def flush(self) -> None:
        """Run what was noted. What nobody can look at any more is not computed."""
        with self.lock:
            if self.sealed:
                return
            layout = self.seal()
            try:
                chosen, live = self.alive(layout)
                with self.settings():
                    values = layout.run_forward(chosen, self.setting, self.externals)
            except BaseException:
                self.unseal()
                raise
            self.settle(layout, chosen, values, live)

    def seal(self) -> Layout:
        """From now on nobody is sure that a call belongs to the block."""
        self.sealed = True
        n_calls = len(self.actions)
        layout = layout_of(tuple(self.key))
        if len(layout.steps) > n_calls:  # the owner is just noting a call, and will `catch_up`
            layout = layout_of(layout.beginning(n_calls))
        if len(self.externals) > layout.n_externals:
            self.externals = self.externals[: layout.n_externals]
        self.layout = layout
        return layout

    def unseal(self) -> None:
        """The run failed: whoever looks at a value tries again, and new calls go elsewhere."""
        self.limit = 0
        self.sealed = False

    def alive(self, layout: Layout, but: Sequence[OpAction] = ()) -> tuple[tuple[int, ...], list[OpAction]]:
        """What must come out: the slots of results, and which live actions have yet to keep theirs.

        A result must if a Tensor holds it, or the backward of such an action reads it.
        but: actions whose backward is seen to.
        """
        counts = [getrefcount(lazy) for lazy in self.results][: layout.n_results]  # more may be noted meanwhile
        slots = [slot for slot, count in enumerate(counts) if count > _ONLY_LISTED]
        if len(but) == layout.n_recorded:
            return tuple(slots), []
        done = {action.index for action in but}
        recorded = [action() for action in self.actions[: len(layout.steps)] if action is not None]
        live = [action for action in recorded if action is not None and action.index not in done]
        read = {slot for action in live for slot in layout.kept[action.index] if slot >= 0}
        return tuple(sorted(read.union(slots))), live

    def settle(self, layout: Layout, slots: Sequence[int], values: Sequence[Any], live: list[OpAction]) -> None:
        """Hand out values, and let go of everything that was only needed to compute them."""
        results, externals = self.results[: layout.n_results], self.externals
        for slot, value in zip(slots, values, strict=True):
            results[slot].value = value
        for action in live:
            action._kept = tuple(
                [externals[-1 - slot] if slot < 0 else results[slot].value for slot in layout.kept[action.index]]
            )
        for lazy in results:
            lazy.block = None
        self.results, self.externals, self.actions, self.outside = [], [], [], {}

    def catch_up(self, plan: Plan, tensors: Sequence[Any], lazies: Sequence[Lazy], action: OpAction | None) -> None:
        """Another thread ran the block while this call was being noted: run the call, if it came too late."""
        with self.lock:
            if not lazies or lazies[0].block is None:
                return
            values = [tensor.value for tensor in tensors]
            with self.settings():
                results = plan.forward(*values)
            results = (results,) if plan.single else results
            for lazy, value in zip(lazies, results, strict=True):
                lazy.value, lazy.block = value, None
            if action is not None:
                action.block, action._kept = None, plan.keep((*values, *results))
                for number in action.numbers:
                    self.identities.pop(number, None)

    def number_of(self, slot: int) -> int:
        """The number of the identity in a slot."""
        return self.id_numbers[-1 - slot] if slot < 0 else self.numbers[slot]

    @property
    def setting(self) -> tuple[Any, ...]:
        return self.x64, self.device, self.precision

    def settings(self) -> Any:
        """jax's settings as they were when the calls were made, and no trace around."""
        eager = jax.ensure_compile_time_eval()
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

    slots: of its operands; ids: of the identities of those that need a gradient; first: of its results.
    """

    __slots__ = ("first", "ids", "plan", "slots")

    def __init__(self, plan: Plan, slots: tuple[int, ...], ids: tuple[int, ...], first: int):
        self.plan, self.slots, self.ids, self.first = plan, slots, ids, first

    @property
    def results(self) -> range:
        return range(self.first, self.first + self.plan.n_results)

    @property
    def kept(self) -> tuple[int, ...]:
        """The slots of what the plan keeps for its backward."""
        return self.plan.keep((*self.slots, *self.results))


class Programs:
    """Programs that are built when they are asked for a second time; bounded."""

    def __init__(self) -> None:
        self.entries: OrderedDict[Any, Any] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, key: Any, build: Callable[[], Any]) -> Any:
        """What was built for the key, or None the first time it is seen."""
        found = self.entries.get(key)
        if found is not None:
            return found
        with self.lock:
            if key not in self.entries:
                self.entries[key] = None
                while len(self.entries) > MAX_PROGRAMS:
                    self.entries.popitem(last=False)
                return None
            if self.entries[key] is None:
                self.entries[key] = build()
            return self.entries[key]


class Layout:
    """What is known of a structure of calls: opened up, and its compiled programs."""

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.key = key
        self.steps = _opened(key)
        self.n_results = sum(step.plan.n_results for step in self.steps)
        self.n_externals = -min((slot for step in self.steps for slot in step.slots if slot < 0), default=0)
        self.kept = [step.kept if step.plan.records else () for step in self.steps]
        self.n_recorded = sum(step.plan.records for step in self.steps)
        self.forwards, self.backwards = Programs(), Programs()

    def run_forward(self, chosen: tuple[int, ...], setting: tuple[Any, ...], externals: Sequence[Any]) -> Sequence[Any]:
        """The values of the chosen slots."""
        if not chosen:
            return ()

        def replay(externals):
            env = self.run(externals, set(chosen))
            return [env[slot] for slot in chosen]

        program = None
        if len(self.steps) > 1:
            program = self.forwards.get((chosen, setting), lambda: jax.jit(replay))
        return (program or replay)(externals)

    def beginning(self, n_calls: int) -> tuple[Any, ...]:
        """The key of its first calls."""
        return self.key[: sum(1 + len(step.slots) + len(step.ids) for step in self.steps[:n_calls])]

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


def _opened(key: tuple[Any, ...]) -> list[Step]:
    steps, rest, first = [], iter(key), 0
    for plan in rest:
        slots, ids = [], []
        for wanted in plan.wrt:
            slots.append(next(rest))
            if wanted and plan.records:
                ids.append(next(rest))
        steps.append(Step(plan, tuple(slots), tuple(ids), first))
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
