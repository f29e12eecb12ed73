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

import jax

from tapejax.lazy import Lazy
from tapejax.plan import Plan

LIMIT = 128  # calls in a block: enough for a training step, little enough to compile
MAX_PROGRAMS = 512

_x64, _device, _precision = jax.enable_x64, jax.default_device, jax.default_matmul_precision

# A noted call: plan, input values, input identities (None if not recorded), results, their numbers.
Call = tuple[Plan, Sequence[Any], Sequence[Any] | None, Sequence[Lazy], Sequence[int]]


class Fusion:
    """Whether ops are deferred and fused: `tapejax.fusion.enabled = False` runs each by itself, at once.

    The environment variable TAPEJAX_FUSION=0 switches it off from the start.

    >>> import tapejax as tj
    >>> before, tj.fusion.enabled = tj.fusion.enabled, False
    >>> float(tj.tensor(2.0) * 3)  # ran when it was called
    6.0
    >>> tj.fusion.enabled = before
    """

    def __init__(self) -> None:
        self.enabled = os.environ.get("TAPEJAX_FUSION", "1") != "0"


fusion = Fusion()


def _references_to_nothing_else() -> int:
    """What getrefcount gives for a result that only its call holds."""
    held = ([object()],)
    (count,) = [getrefcount(item) for call in held for item in call]
    return count


_UNREACHED = _references_to_nothing_else()


class Block:
    """A run of op calls, appended by the thread that owns the tape, run once by whoever needs a value.

    Appending takes no lock: one list.append is atomic, and a call that comes in while another
    thread is running the block is found by the next flush.
    """

    __slots__ = ("calls", "device", "done", "lock", "precision", "sealed", "wiring", "x64")

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.done = 0
        self.sealed = False
        self.wiring: Wiring | None = None
        self.lock = threading.RLock()
        self.x64, self.device, self.precision = _x64.value, _device.value, _precision.value

    def takes_more(self) -> bool:
        return (
            not self.sealed
            and len(self.calls) < LIMIT
            and self.x64 is _x64.value
            and self.device is _device.value
            and self.precision is _precision.value
        )

    def wire(self) -> Wiring:
        """The calls as numbers; kept for the backward when the calls themselves are gone."""
        wiring = self.wiring
        if wiring is None or (not self.sealed and wiring.n_calls != len(self.calls)):
            wiring = self.wiring = Wiring(self.calls)
        return wiring

    def flush(self) -> None:
        """Run what was noted. What nobody can look at any more is not computed."""
        with self.lock:
            if self.sealed:
                self._run_late()
                return
            self.sealed = True  # from now on nobody is sure that a call is part of the wiring
            wiring = self.wiring = Wiring(self.calls)
            chosen = self.alive()
            with self.settings():
                values = run_forward(wiring, chosen, self.setting)
            self.settle(chosen, values)

    def _run_late(self) -> None:
        """Calls that were noted while another thread was running the block: one by one."""
        with self.settings():
            while self.calls:
                plan, values, _, lazies, _ = self.calls[0]
                operands = [v.force() if type(v) is Lazy and v.block is not self else _settled(v) for v in values]
                results = plan.forward(*operands)
                for lazy, value in zip(lazies, (results,) if plan.single else results, strict=True):
                    lazy.value, lazy.block = value, None
                del self.calls[0]

    def alive(self) -> tuple[int, ...]:
        """The slots of results that somebody else than the calls still holds."""
        uses, n_calls = self.wiring.uses, self.wiring.n_calls  # a later call is not for this run
        counts = [getrefcount(lazy) for call in self.calls[:n_calls] for lazy in call[3]]
        return tuple([slot for slot, count in enumerate(counts) if count - uses[slot] > _UNREACHED])

    def settle(self, slots: Sequence[int], values: Sequence[Any]) -> None:
        """Hand out values, and let go of everything that was only needed to compute them."""
        n_calls = self.wiring.n_calls
        lazies = [lazy for call in self.calls[:n_calls] for lazy in call[3]]
        for slot, value in zip(slots, values, strict=True):
            lazies[slot].value = value
        for lazy in lazies:
            lazy.block = None
        del self.calls[:n_calls]  # what another thread noted meanwhile stays for the next flush
        self.wiring.externals = ()

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


def _settled(value: Any) -> Any:
    return value.value if type(value) is Lazy else value


class Wiring:
    """Which result feeds which call, as numbers: results count up from 0, values from outside down from -1.

    key: for each call its plan, the slots of its values, the identity slots of the inputs that need
    a gradient. Values and identities are numbered apart: a detached tensor shares its value, not its
    identity.
    """

    __slots__ = ("externals", "id_leaf", "id_numbers", "identities", "key", "n_calls", "numbers", "uses")

    def __init__(self, calls: Sequence[Call]) -> None:
        key: list[Any] = []
        add = key.append
        externals: list[Any] = []
        slots: dict[int, int] = {}
        identities: dict[int, int] = {}
        id_numbers: list[int] = []
        id_leaf: list[bool] = []
        numbers: dict[int, int] = {}
        uses: list[int] = []  # of each result, by later calls
        n_results = 0
        for plan, values, ids, lazies, result_numbers in calls:
            add(plan)
            for value in values:
                slot = slots.get(id(value))
                if slot is None:
                    slot = slots[id(value)] = -1 - len(externals)
                    externals.append(_settled(value))
                elif slot >= 0:
                    uses[slot] += 1
                add(slot)
            if ids is not None:
                for tensor_id in ids if plan.all_wrt else plan.pick_wrt(ids):
                    number = tensor_id.number
                    slot = identities.get(number)
                    if slot is None:
                        slot = identities[number] = -1 - len(id_numbers)
                        id_numbers.append(number)
                        id_leaf.append(tensor_id.producer is None)
                    add(slot)
            slot = n_results
            for lazy in lazies:
                slots[id(lazy)] = n_results
                uses.append(0)
                n_results += 1
            for number in result_numbers:
                identities[number] = slot
                numbers[slot] = number
                slot += 1
        self.key, self.externals, self.n_calls, self.uses = tuple(key), externals, len(calls), uses
        self.identities, self.id_numbers, self.id_leaf, self.numbers = identities, id_numbers, tuple(id_leaf), numbers

    def number_of(self, slot: int) -> int:
        return self.id_numbers[-1 - slot] if slot < 0 else self.numbers[slot]


class Step:
    """One call of a structure, opened up."""

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


def steps_of(key: Sequence[Any]) -> list[Step]:
    steps, position, first = [], 0, 0
    while position < len(key):
        plan = key[position]
        start = position + 1
        middle = start + plan.n_in
        position = middle + plan.n_ids
        steps.append(Step(plan, key[start:middle], key[middle:position], first))
        first += plan.n_results
    return steps


class Programs:
    """What is known of a structure: bounded, and built only when it comes a second time."""

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

    def clear(self) -> None:
        with self.lock:
            self.entries.clear()


forward_programs = Programs()


def run_forward(wiring: Wiring, chosen: tuple[int, ...], setting: tuple[Any, ...]) -> Sequence[Any]:
    """The values of the chosen slots."""
    if not chosen:
        return ()

    def replay(externals):
        env = run_steps(steps_of(wiring.key), externals, set(chosen))
        return [env[slot] for slot in chosen]

    program = None
    if wiring.n_calls > 1:
        program = forward_programs.get((wiring.key, chosen, setting), lambda: jax.jit(replay))
    return (program or replay)(wiring.externals)


def run_steps(steps: Sequence[Step], externals: Sequence[Any], wanted: set[int]) -> dict[int, Any]:
    """The environment (slot -> value) after the steps that lead to the wanted slots."""
    wanted = set(wanted)
    needed = []
    for step in reversed(steps):
        if not wanted.isdisjoint(step.results):
            wanted.update(step.slots)
            needed.append(step)
    env: dict[int, Any] = {-1 - position: value for position, value in enumerate(externals)}
    for step in reversed(needed):
        results = step.plan.forward(*[env[slot] for slot in step.slots])
        env.update(zip(step.results, (results,) if step.plan.single else results, strict=True))
    return env
