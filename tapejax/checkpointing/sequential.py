"""Chains of functions: which of them are checkpointed, and with how many states kept.

- Segments: the chain is cut into k pieces; the states between them are kept, and each piece but the last
  runs a second time. About 2 sqrt(n) states in memory for k = sqrt(n).
- Binomial (Griewank and Walther's Revolve): with s slots for states, functions run again as often as it
  takes, and no oftener: r times at most, where binomial(s + 1 + r, r) >= n.

A binomial schedule is nothing but checkpoints within checkpoints: to go back over n functions with s
slots, checkpoint the first m of them (they will go back with s slots, when their turn comes), and go
on over the other n - m with one slot less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb, isqrt
from typing import Any

from tapejax.checkpointing.core import checkpoint
from tapejax.errors import ArgumentError
from tapejax.ground.where import user_line
from tapejax.tape.scope import current_scope

DEEPEST = 64  # checkpoints within checkpoints: each level is a few frames of Python


def sequential(
    functions: Sequence[Callable[..., Any]],
    *,
    segments: int | str = "sqrt",
    slots: int | None = None,
    policy: Any = None,
    verify: str | bool = "outputs",
) -> Sequential:
    """The functions one after the other, as one function, with the states between some of them kept.

    segments: a number of pieces, "sqrt" for the root of the number of functions, or "binomial" with
    `slots` for the number of states to keep. Each function takes what the one before returned, the
    first whatever the chain is given. policy and verify are those of `checkpoint`.

    >>> import tapejax as tj, tapejax.numpy as tnp
    >>> chain = tj.sequential([tnp.sin] * 100, segments="binomial", slots=4)
    >>> x = tj.tensor(1.0, requires_grad=True)
    >>> print(tj.backward(chain(x))[x])
    0.003698...
    >>> chain.forward_evaluations
    416
    """
    return Sequential(functions, segments, slots, policy, verify)


class Sequential:
    """See `sequential`.

    forward_evaluations: how many times a function runs, forward and backward together.
    states: how many states are kept at most, the input not counted.
    """

    def __init__(self, functions: Sequence[Callable[..., Any]], segments: Any, slots: Any, policy: Any, verify: Any):
        self.functions = tuple(functions)
        n = len(self.functions)
        if not n or not all(map(callable, self.functions)):
            raise ArgumentError("sequential takes a list of functions, one at least", at=user_line())
        self.policy, self.verify = policy, verify
        self.slots: int | None = None
        self.segments: int | None = None
        self._pieces: dict[tuple[int, int, int | None], Piece] = {}
        if segments == "binomial":
            if not isinstance(slots, int) or slots < 1:
                raise ArgumentError(f'segments="binomial" needs slots, 1 or more, not {slots!r}', at=user_line())
            self.slots = min(slots, max(n - 1, 1))
            repeats = repetitions(n, self.slots)
            if repeats > DEEPEST:
                raise ArgumentError(
                    f"{slots} slots for {n} functions: each would run up to {repeats} times",
                    at=user_line(),
                    fix=f"give {fewest_slots(n)} slots or more, or make fewer, longer functions",
                )
            self.forward_evaluations, self.states = evaluations(n, self.slots), self.slots
            return
        if slots is not None:
            raise ArgumentError('slots belong to segments="binomial"', at=user_line())
        if segments == "sqrt":
            segments = ceil_sqrt(n)
        if not isinstance(segments, int) or segments < 1:
            raise ArgumentError(
                f"unknown segments={segments!r}", at=user_line(), fix='a number, "sqrt" or "binomial" with slots'
            )
        self.segments = min(segments, n)
        self.bounds = [n * i // self.segments for i in range(self.segments + 1)]
        self.forward_evaluations = n + self.bounds[-2]
        self.states = self.segments - 1

    def __call__(self, *inputs: Any) -> Any:
        if not inputs:
            raise ArgumentError("a sequential function needs an input", at=user_line())
        if self.slots is not None:
            return self.go_on(0, len(self.functions), self.slots, inputs)
        for start, stop in zip(self.bounds[:-2], self.bounds[1:-1], strict=True):
            inputs = (self._checkpointed(start, stop, None, inputs),)
        return self.straight(self.bounds[-2], self.bounds[-1], inputs)

    def straight(self, start: int, stop: int, inputs: tuple[Any, ...]) -> Any:
        for function in self.functions[start:stop]:
            inputs = (function(*inputs),)
        return inputs[0]

    def go_on(self, start: int, stop: int, slots: int, inputs: tuple[Any, ...]) -> Any:
        """Recorded such that going back needs this many slots."""
        scope = current_scope()
        if (not scope.enabled and scope.bindings is None) or scope.tape.forgets:
            return self.straight(start, stop, inputs)  # nobody goes back over this run
        while stop - start > 1:
            first = split(stop - start, slots)
            inputs = (self._checkpointed(start, start + first, slots, inputs),)
            start += first
            slots = max(slots - 1, 0)
        return self.straight(start, stop, inputs)

    def _checkpointed(self, start: int, stop: int, slots: int | None, inputs: tuple[Any, ...]) -> Any:
        piece = self._pieces.get((start, stop, slots))
        if piece is None:
            piece = self._pieces[start, stop, slots] = Piece(self, start, stop, slots)
        return checkpoint(piece, *inputs, policy=self.policy, verify=self.verify)

    def __repr__(self) -> str:
        how = f"{self.slots} slots" if self.slots is not None else f"{self.segments} segments"
        return f"<sequential, {len(self.functions)} functions, {how}>"


class Piece:
    """Some functions of a chain, as one; parts: what to look at if it does not do the same twice."""

    def __init__(self, chain: Sequential, start: int, stop: int, slots: int | None):
        self.chain, self.start, self.stop, self.slots = chain, start, stop, slots
        self.__name__ = f"functions {start} to {stop - 1} of a chain"

    @property
    def parts(self) -> tuple[Callable[..., Any], ...]:
        return tuple(dict.fromkeys(self.chain.functions[self.start : self.stop]))

    def __call__(self, *inputs: Any) -> Any:
        if self.slots is None:
            return self.chain.straight(self.start, self.stop, inputs)
        return self.chain.go_on(self.start, self.stop, self.slots, inputs)


# --- the arithmetic of schedules --------------------------------------------------------------------------


def ceil_sqrt(n: int) -> int:
    return isqrt(n - 1) + 1


def repetitions(n: int, slots: int) -> int:
    """How often a function runs at most before it is recorded: the least r with comb(slots + 1 + r, r) >= n.

    The state that the chain starts from has a place of its own, besides the slots.
    """
    repeats = 0
    while comb(slots + 1 + repeats, repeats) < n:
        repeats += 1
    return repeats


def fewest_slots(n: int) -> int:
    return next(slots for slots in range(1, n + 1) if repetitions(n, slots) <= DEEPEST)


def split(n: int, slots: int) -> int:
    """How many of n functions to run before the next state is kept.

    The first part then goes back with r - 1 repetitions and all slots, the second with r and one slot
    less. Without a slot, that is up to the last function, again and again.
    """
    r = repetitions(n, slots)
    return max(1, min(comb(slots + r, r - 1), n - comb(slots + r - 1, r - 1)))


def evaluations(n: int, slots: int) -> int:
    """How often functions run to go forward and back over n of them: each once, recorded, and what leads there."""
    r = repetitions(n, slots)
    return (r + 1) * n - comb(slots + 1 + r, r - 1) if r else n
