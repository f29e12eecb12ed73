"""What a function keeps for its backward, and a schedule of checkpoints that fits a budget.

Bytes are counted in one forward run that keeps nothing: each op says what it would have kept. An array
that several ops keep counts once; the given arguments and the tensors closed over live anyway, and do not count.
Of an array that is spread over devices, what one of them holds counts: the budget is for a device.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from tapejax.calculus.reverse import Options
from tapejax.checkpointing.run import RunTape, Trail, run_on
from tapejax.checkpointing.sequential import DEEPEST, Sequential, evaluations, repetitions
from tapejax.errors import ArgumentError
from tapejax.ground.placement import bytes_of
from tapejax.ground.where import user_line
from tapejax.ops.lift import Lifted, as_tensor, is_data, is_tensor
from tapejax.ops.surface import functions
from tapejax.plan.plan import Plan
from tapejax.program.program import Program, run_eqns, trace

_tree = jax.tree_util
BLOCKS = 32  # into how many pieces a single function is cut at most


class Meter(Trail):
    """Counts what ops would keep."""

    __slots__ = ("_seen", "kept")

    def __init__(self, alive: Iterable[Any]):
        super().__init__()
        self.kept = 0
        self._seen: dict[int, Any] = {}
        for value in alive:
            self._is_new(value)

    def note(self, op: Any, tensors: Sequence[Any], results: Iterable[Any], where: Any) -> None:
        if not (isinstance(op, Plan) and op.records and op.reversed is not None):
            return
        for tensor in tensors:
            if tensor.number < self.start:
                self._is_new(tensor.value)
        for value in op.keep((*[tensor.value for tensor in tensors], *results)):
            if self._is_new(value):
                self.kept += bytes_of(value)

    def _is_new(self, value: Any) -> bool:
        found = self._seen.get(id(value))
        if found is not None and found() is value:
            return False
        self._seen[id(value)] = weakref.ref(value)
        return True


def _measured(chain: Sequence[Callable[..., Any]], inputs: tuple[Any, ...]) -> tuple[list[int], list[int]]:
    """For each function: the bytes that it keeps, and those of the state before it."""
    tensors = [leaf for leaf in _leaves(inputs) if is_tensor(leaf)]
    meter = Meter([tensor.value for tensor in tensors])
    tape = RunTape(meter, forgets=True, detail="ops", label="a run that counts bytes")
    kept, states = [], []

    def follow() -> None:
        nonlocal inputs
        given = {id(tensor.value) for tensor in tensors}
        for function in chain:
            new = [leaf.value for leaf in _leaves(inputs) if is_tensor(leaf) and id(leaf.value) not in given]
            states.append(sum(map(bytes_of, new)))
            before = meter.kept
            inputs = (function(*inputs),)
            kept.append(meter.kept - before)

    run_on(follow, tape)
    return kept, states


def _leaves(tree: Any) -> list[Any]:
    return _tree.tree_leaves(tree, is_leaf=is_tensor)


@dataclass(frozen=True)
class Candidate:
    """A schedule: how it is called, what it keeps at most, how many times functions run."""

    name: str
    bytes: int
    evaluations: int
    segments: int | None = None
    slots: int | None = None


class MemoryPlan:
    """A function with the schedule that was chosen for it: call it like the function; print it for the reasons.

    kept: the bytes that each piece (each function of a list) keeps for its backward if nothing is checkpointed, on one device.
    """

    def __init__(
        self, call: Callable[..., Any], chosen: Candidate, candidates: list[Candidate], budget: int, kept: list[int]
    ):
        self._call, self.chosen, self.candidates, self.budget_bytes = call, chosen, candidates, budget
        self.kept, self.pieces = tuple(kept), len(kept)

    @property
    def bytes(self) -> int:
        return self.chosen.bytes

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    def __str__(self) -> str:
        rows = [f"budget {self.budget_bytes:,} bytes, {self.pieces} pieces: {self.chosen.name}"]
        for candidate in self.candidates:
            mark = "*" if candidate is self.chosen else "+" if candidate.bytes <= self.budget_bytes else " "
            rows.append(
                f" {mark} {candidate.name:<22} {candidate.bytes:>14,} bytes {candidate.evaluations:>8} forward runs"
            )
        return "\n".join(rows)

    def __repr__(self) -> str:
        return f"<memory plan: {self.chosen.name}, {self.chosen.bytes:,} of {self.budget_bytes:,} bytes>"


def plan_memory(
    function: Callable[..., Any] | Sequence[Callable[..., Any]],
    args: Any,
    budget_bytes: int,
    *,
    verify: Any = "outputs",
) -> MemoryPlan:
    """Choose checkpoints such that what is kept for backward fits the budget, and as little as possible runs again.

    function: a list of functions (a chain, cut between them), or one function, which is traced and cut
    into pieces by itself. The budget is for what is kept on the way, at its highest point in backward;
    arguments, parameters and gradients come on top. Of what is spread over devices, the part of one counts.

    >>> import tapejax as tj, tapejax.numpy as tnp
    >>> x = tj.tensor([1.0] * 256, requires_grad=True)
    >>> plan = tj.plan_memory([tnp.sin] * 16, (x,), budget_bytes=8 * 1024)
    >>> print(plan)
    budget 8,192 bytes, 16 pieces: 2 segments
       none                           15,360 bytes       16 forward runs
     * 2 segments                      8,192 bytes       24 forward runs
     + 3 segments                      7,168 bytes       26 forward runs
    ...
    >>> plan(x).shape
    (256,)
    """
    args = args if isinstance(args, tuple) else tuple(args) if isinstance(args, list) else (args,)
    if not isinstance(budget_bytes, int) or budget_bytes < 1:
        raise ArgumentError(f"a budget is a number of bytes, not {budget_bytes!r}", at=user_line())
    cut = None if isinstance(function, (list, tuple)) else Cut(function, args)
    chain: list[Callable[..., Any]] = list(function) if cut is None else cut.blocks
    kept, states = _measured(chain, args if cut is None else (cut.state(args),))
    candidates = _candidates(kept, states)
    if cut is not None:  # left alone, it keeps what its own ops keep
        alone, _ = _measured([cut.function], args)
        candidates[0] = Candidate("none", sum(alone), len(chain))
    fitting = [candidate for candidate in candidates if candidate.bytes <= budget_bytes]
    if not fitting:
        least = min(candidates, key=lambda candidate: candidate.bytes)
        raise ArgumentError(
            f"no schedule fits {budget_bytes:,} bytes: the least is {least.bytes:,}, with {least.name}",
            at=user_line(),
            fix="a larger budget, smaller pieces, or save_on_cpu and save_to_disk",
        )
    chosen = min(fitting, key=lambda candidate: (candidate.evaluations, candidate.bytes))
    segments = "binomial" if chosen.slots is not None else chosen.segments or 1
    call: Callable[..., Any] = Sequential(chain, segments, chosen.slots, None, verify)
    if cut is not None:
        call = cut.function if chosen.name == "none" else cut.around(call)
    return MemoryPlan(call, chosen, _worth_showing(candidates, chosen), budget_bytes, kept)


def _candidates(kept: list[int], states: list[int]) -> list[Candidate]:
    n = len(kept)
    found = [Candidate("none", sum(kept), n)]
    for k in range(2, n + 1):
        bounds = [n * i // k for i in range(k + 1)]
        held, peak = 0, 0
        for start, stop in itertools.pairwise(bounds):
            held += states[start]
            # The state before a piece is also what its first function keeps, as a rule: counted once.
            peak = max(peak, held + sum(kept[start:stop]) - min(states[start], kept[start]))
        found.append(Candidate(f"{k} segments", peak, n + bounds[-2], segments=k))
    largest, most = max(states), max(kept)
    for slots in range(1, n):
        if repetitions(n, slots) <= DEEPEST:
            found.append(
                Candidate(
                    f"binomial, {slots} slot{'s' * (slots > 1)}",
                    slots * largest + most,
                    evaluations(n, slots),
                    slots=slots,
                )
            )
    return found


def _worth_showing(candidates: list[Candidate], chosen: Candidate) -> list[Candidate]:
    """Those that no other beats in both bytes and work, and a handful of them."""
    best: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: (c.evaluations, c.bytes)):
        if candidate is chosen or all(candidate.bytes < other.bytes for other in best):
            best.append(candidate)
    step = max(1, len(best) // 8)
    return [c for i, c in enumerate(best) if i % step == 0 or c is chosen or c is best[-1]]


class Cut:
    """A single function as a chain: its program, cut into blocks; the state between them is what is read later."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]):
        self.function = function
        leaves, self.structure = _tree.tree_flatten(args, is_leaf=is_tensor)
        self.places = [i for i, leaf in enumerate(leaves) if is_tensor(leaf) or is_data(leaf)]
        operands = [leaves[i] if is_tensor(leaves[i]) else as_tensor(leaves[i]) for i in self.places]
        found: Any = None

        def call(bindings: functions.Bindings, values: Sequence[Any]) -> list[Any]:
            nonlocal found
            filled = list(leaves)
            for place, value in zip(self.places, values, strict=True):
                filled[place] = value
            results = functions.Body(function, bindings, True)(*_tree.tree_unflatten(self.structure, filled))
            results, found = _tree.tree_flatten(results)
            return results

        values = [tensor.value for tensor in operands]
        bindings = functions.Bindings()
        program, _ = trace(lambda *values: call(bindings, values), values)
        self.captured = list(bindings.found.values())
        if self.captured:
            numbers, n = list(bindings.found), len(operands)
            explicit = lambda *values: call(functions.Bindings(dict(zip(numbers, values[n:], strict=True))), values[:n])
            program, _ = trace(explicit, [*values, *(tensor.value for tensor in self.captured)])
        self.program, self.out_structure = program, found
        self.blocks = _blocks(program)

    def state(self, args: tuple[Any, ...]) -> dict[int, Any]:
        leaves, structure = _tree.tree_flatten(args, is_leaf=is_tensor)
        if structure != self.structure:
            raise ArgumentError("the arguments have another structure than those of the plan", at=user_line())
        given = [leaves[i] if is_tensor(leaves[i]) else as_tensor(leaves[i]) for i in self.places]
        return dict(zip(self.program.inputs, [*given, *self.captured], strict=True))

    def around(self, chain: Callable[..., Any]) -> Callable[..., Any]:
        """The function again, by way of its blocks."""
        return lambda *args: self.outward(chain(self.state(args)))

    def outward(self, state: dict[int, Any]) -> Any:
        constants = self.program.constants
        results = [state[slot] if slot in state else as_tensor(constants[slot]) for slot in self.program.outputs]
        return _tree.tree_unflatten(self.out_structure, results)


def _blocks(program: Program) -> list[Callable[..., Any]]:
    n = len(program.eqns)
    count = max(1, min(BLOCKS, n))
    bounds = [n * i // count for i in range(count + 1)]
    return [_block(program, start, stop) for start, stop in itertools.pairwise(bounds)]


def _block(program: Program, start: int, stop: int) -> Callable[..., Any]:
    eqns = program.eqns[start:stop]
    made = {slot for eqn in eqns for slot in eqn.outputs}
    later = {slot for eqn in program.eqns[stop:] for slot in eqn.inputs} | set(program.outputs)
    reads = sorted({slot for eqn in eqns for slot in eqn.inputs} - made - set(program.constants))
    results = sorted(made & later)

    def compute(*values: Any) -> list[Any]:
        env = program.constants | dict(zip(reads, values, strict=True))
        run_eqns(eqns, env)
        return [env[slot] for slot in results]

    op = Lifted(compute, f"equations_{start}_to_{stop - 1}", set(), set(), Options())

    def block(state: dict[int, Any]) -> dict[int, Any]:
        found = op(*[state[slot] for slot in reads]) if reads else map(as_tensor, compute())
        state = state | dict(zip(results, found, strict=True))
        return {slot: tensor for slot, tensor in state.items() if slot in later}

    return block
