"""The cursor: a backward pass that goes one action at a time, forwards and back again.

It runs the same `backward` of the same actions as the engine, into a Gradients that notes every
insert. What a step did is kept, so going back and forth runs nothing twice, hooks included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tapejax.engine.backward import failure, hand_over, look_for_cuts, pull, start
from tapejax.errors import ArgumentError, HookError, ReplayError
from tapejax.ground.placement import local_part
from tapejax.ground.where import user_line
from tapejax.hooks import passing
from tapejax.hooks.registry import live as live_hooks
from tapejax.tape import cuts
from tapejax.tape.above import above
from tapejax.tape.action import TapeAction, TensorId
from tapejax.tape.tape import Tape
from tapejax.tensor.gradients import Gradients
from tapejax.tensor.names import names_around
from tapejax.tensor.tensor import Tensor, Tracer

if TYPE_CHECKING:
    from pathlib import Path

_NOTHING = object()


@dataclass(slots=True, frozen=True)
class Term:
    """One contribution to a gradient. `index` is the place on the tape of the action it came from, None for a seed.

    before: the sum that was there already, or None; after: the sum with this term.
    """

    id: TensorId
    value: Any
    before: Any
    after: Any
    index: int | None

    @property
    def accumulates(self) -> bool:
        """Whether it was added to something, rather than being the first."""
        return self.before is not None


@dataclass(slots=True, frozen=True)
class Sum:
    """A gradient so far: its terms in the order in which they came, and their sum."""

    id: TensorId
    terms: tuple[Term, ...]
    value: Any


@dataclass(slots=True, frozen=True)
class Step:
    """What one action did in the backward pass.

    incoming: the gradients of its outputs, as it found them.
    outgoing: what it added, in order.
    removed: whose gradients it took out.
    skipped: no gradient had reached its outputs, so that it did nothing.
    replaced: what hooks on Tensors put in the place of a gradient, `before` it and `after`.
    """

    index: int
    action: TapeAction
    incoming: dict[TensorId, Any]
    outgoing: tuple[Term, ...]
    removed: tuple[TensorId, ...]
    skipped: bool
    replaced: tuple[Term, ...] = ()

    @property
    def accumulates(self) -> bool:
        return any(term.accumulates for term in self.outgoing)


@dataclass(slots=True, frozen=True)
class _Replaced:
    """A gradient was replaced as a whole: the term is all that it is made of now."""

    term: Term


class _Change:
    """A step with the sums before and after it, for going back and forth."""

    __slots__ = ("after", "before", "events", "step")

    def __init__(self, step: Step, events: list[Any], before: dict[int, Any], after: dict[int, Any]):
        self.step, self.events, self.before, self.after = step, events, before, after


class _Sums(dict):
    """The sums, noting what each entry was before it was first touched."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[int, Any] = {}

    def __setitem__(self, number: int, value: Any) -> None:
        self.before.setdefault(number, self.get(number, _NOTHING))
        super().__setitem__(number, value)

    def __delitem__(self, number: int) -> None:
        self.before.setdefault(number, self.get(number, _NOTHING))
        super().__delitem__(number)

    def pop(self, number: int, *default: Any) -> Any:  # type: ignore[override]
        self.before.setdefault(number, self.get(number, _NOTHING))
        return super().pop(number, *default)

    def put(self, entries: dict[int, Any]) -> None:
        """Restore entries, without noting it."""
        for number, value in entries.items():
            if value is _NOTHING:
                super().pop(number, None)
            else:
                super().__setitem__(number, value)


class _Observed(Gradients):
    """Gradients that note who reads, adds and removes what."""

    __slots__ = ("events", "index", "reads", "watched")

    def __init__(self) -> None:
        super().__init__()
        self.sums = self.watched = _Sums()
        self.watch(None)

    def watch(self, index: int | None) -> None:
        self.index = index
        self.events: list[Term | _Replaced | int] = []  # a term that came, or the number of a gradient that went
        self.reads: dict[TensorId, Any] = {}
        self.watched.before = {}

    def add(self, number: int, gradient: Any) -> None:
        before = self.sums.get(number)
        super().add(number, gradient)
        self.events.append(Term(TensorId(number), gradient, before, self.sums[number], self.index))

    def replace(self, number: int, gradient: Any) -> None:
        before = self.sums[number]
        super().replace(number, gradient)
        self.events.append(_Replaced(Term(TensorId(number), gradient, before, gradient, self.index)))

    def get(self, key: Tensor | TensorId, default: Any = None) -> Any:
        return self._read(key, super().get(key, default))

    def __getitem__(self, key: Tensor | TensorId) -> Any:
        return self._read(key, super().__getitem__(key))

    def remove(self, key: Tensor | TensorId, default: Any = None) -> Any:
        if key in self:
            self._read(key, super().get(key))
            self.events.append(_identity(key).number)
        return super().remove(key, default)

    def _read(self, key: Tensor | TensorId, found: Any) -> Any:
        if key in self:
            self.reads.setdefault(_identity(key), found)
        return found


class Cursor:
    """A backward pass that goes one action at a time, forwards and back. Made by `Tape.cursor`.

    In a notebook it shows itself as the viewer; `print` gives the same as text. Hooks are called when an action is visited
    for the first time.

    >>> import tapejax as tj
    >>> x = tj.tensor(3.0, requires_grad=True)
    >>> with tj.Tape() as tape:
    ...     loss = x * x + x
    >>> cursor = tape.cursor(loss)
    >>> cursor.step().action.op
    'Add'
    >>> [float(term.value) for term in cursor.sums[x.id].terms]
    [1.0]
    >>> cursor.next_accumulation().action.op
    'Multiply'
    >>> [float(term.value) for term in cursor.sums[x.id].terms], float(cursor.sums[x.id].value)
    ([1.0, 3.0, 3.0], 7.0)
    >>> cursor.back().index, float(cursor.gradients[x])
    (1, 1.0)
    >>> float(cursor.finish()[x])
    7.0
    """

    def __init__(
        self,
        actions: Sequence[TapeAction],
        roots: Sequence[tuple[TensorId, Any]],
        label: str = "the tape",
        names: Mapping[int, str] | None = None,
        hooks: bool = True,
    ):
        self.actions: tuple[TapeAction, ...] = tuple(actions)
        self.roots: tuple[TensorId, ...] = tuple(id for id, _ in roots)
        self.label = label
        self.names = dict(names or {})  # what the user calls tensors, by number; for showing
        self.marked: int | None = None  # an action that the viewer marks, by its place on the tape
        self._grads = _Observed()
        self._grads.requested = {"roots": [id.number for id in self.roots], "wrt": None}
        self._position = 0
        self._changes: list[_Change] = []
        self._terms: dict[int, list[Term]] = {}
        self.listeners: list[Callable[[Cursor], None]] = []
        self._calls_hooks = hooks
        self._hooks: tuple[Any, passing.Hooked | None] = ((), None)  # which were there, and what they are on
        for id, seed in roots:
            self._grads.add(id.number, seed)
        if not self.actions and (hooked := self._hooked()) is not None:
            hooked.finish(self._grads)
        self._seeds = self._grads.events
        self._file(self._seeds)

    # -- where it is ------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """How many actions have been visited: 0 at the start, `len(cursor)` at the end."""
        return self._position

    def __len__(self) -> int:
        return len(self.actions)

    @property
    def done(self) -> bool:
        return self._position == len(self.actions)

    @property
    def current(self) -> Step | None:
        """What the action under the cursor did; None at the start, where there are only seeds."""
        return self._changes[self._position - 1].step if self._position else None

    @property
    def index(self) -> int | None:
        """The place on the tape of the action under the cursor, None at the start."""
        return None if self.current is None else self.current.index

    @property
    def action(self) -> TapeAction | None:
        return None if self.current is None else self.current.action

    @property
    def incoming(self) -> dict[TensorId, Any]:
        """The gradients that the action under the cursor started from."""
        return {} if self.current is None else self.current.incoming

    @property
    def outgoing(self) -> tuple[Term, ...]:
        """What the action under the cursor added."""
        return () if self.current is None else self.current.outgoing

    @property
    def at_accumulation(self) -> bool:
        """Whether the action under the cursor added to a gradient that was there already."""
        return self.current is not None and self.current.accumulates

    @property
    def sums(self) -> dict[TensorId, Sum]:
        """Every gradient so far, with the terms it was added up from."""
        found = self._grads.sums
        return {
            TensorId(number): Sum(TensorId(number), tuple(self._terms.get(number, ())), value)
            for number, value in found.items()
        }

    @property
    def gradients(self) -> Gradients:
        """The gradients so far, as a map of their own."""
        grads = Gradients()
        grads.sums.update(self._grads.sums)
        grads.requested = dict(self._grads.requested)
        return grads

    # -- moving -----------------------------------------------------------------------------------

    def step(self, count: int = 1) -> Step | None:
        """Go on by one action (or several); what the last of them did, None if there was none left."""
        moved = self._go(min(self._position + _steps(count), len(self.actions)))
        return self.current if moved else None

    def back(self, count: int = 1) -> Step | None:
        """Undo one step (or several); the action that is now under the cursor, None at the start."""
        self._go(max(self._position - _steps(count), 0))
        return self.current

    def jump(self, index: int) -> Step:
        """Go to the action at this place on the tape (as in `tape[index]`), on or back."""
        n = len(self.actions)
        if not isinstance(index, (int, np.integer)) or not -n <= index < n:
            raise ArgumentError(
                f"there is no action {index!r} on a tape of {n}",
                at=user_line(),
                fix=f"an index from 0 (the first recorded, the last to go back through) to {n - 1}" if n else None,
            )
        self._go(n - int(index) % n)
        assert self.current is not None
        return self.current

    def next_accumulation(self) -> Step | None:
        """Go on to the next action that adds to a gradient that is there already; None if there is none (then at the end)."""
        moved = False
        try:
            while self._position < len(self.actions):
                moved = self._move(self._position + 1) or moved
                if self.at_accumulation:
                    return self.current
            return None
        finally:
            if moved:
                self._tell()

    def rewind(self) -> None:
        """Go back to the start, where there are only the seeds."""
        self._go(0)

    def finish(self) -> Gradients:
        """Go on to the end: the same gradients, to the last bit, as the engine gives action by action.

        Where `backward` runs a known structure as one compiled program, that may round differently.
        """
        self._go(len(self.actions))
        return self.gradients

    def __iter__(self) -> Iterator[Step]:
        """The steps that are left, each made when it is asked for."""
        while (step := self.step()) is not None:
            yield step

    def seek(self, position: int) -> None:
        """Go to where this many actions have been visited."""
        if not isinstance(position, (int, np.integer)) or not 0 <= position <= len(self.actions):
            raise ArgumentError(f"position {position!r} is not one of 0 to {len(self.actions)}", at=user_line())
        self._go(int(position))

    def _go(self, position: int) -> bool:
        moved = False
        try:
            moved = self._move(position)
        finally:
            if moved:
                self._tell()
        return moved

    def _tell(self) -> None:
        for listener in self.listeners:
            listener(self)

    def _move(self, position: int) -> bool:
        start = self._position
        while self._position < position:
            if self._position == len(self._changes):
                self._changes.append(self._run(len(self.actions) - 1 - self._position))
            else:
                self._grads.watched.put(self._changes[self._position].after)
            self._file(self._changes[self._position].events)
            self._position += 1
        while self._position > position:
            self._position -= 1
            change = self._changes[self._position]
            self._grads.watched.put(change.before)
            self._unfile(change)
        return start != self._position

    def _run(self, index: int) -> _Change:
        """Run one action for the first time. If it fails, all is as before."""
        action, grads = self.actions[index], self._grads
        outputs = getattr(action, "outputs", None)
        there: dict[TensorId, Any] = {}

        def visit(action: TapeAction, into: Gradients) -> None:
            there.update({id: into.sums[id.number] for id in outputs or () if id.number in into.sums})
            pull(action, into)

        grads.watch(index)
        try:
            hooked = self._hooked()
            if hooked is None:
                visit(action, grads)
            else:
                hooked.pull(action, index, grads, visit)
                if index == 0:
                    hooked.finish(grads)
        except Exception as cause:
            grads.watched.put(grads.watched.before)
            if isinstance(cause, (ReplayError, HookError)):  # it names the action and the reason already
                hand_over(cause, action, list(self.actions[: index + 1]), self.gradients)
                raise
            raise failure(action, list(self.actions[: index + 1]), self.gradients, cause) from cause
        events, before = grads.events, grads.watched.before
        step = Step(
            index,
            action,
            incoming=there if outputs is not None else grads.reads,
            outgoing=tuple(event for event in events if isinstance(event, Term)),
            removed=tuple(TensorId(event) for event in events if isinstance(event, int)),
            skipped=outputs is not None and not there,
            replaced=tuple(event.term for event in events if isinstance(event, _Replaced)),
        )
        return _Change(step, events, before, {number: grads.sums.get(number, _NOTHING) for number in before})

    def _hooked(self) -> passing.Hooked | None:
        """What is hooked about this pass now: hooks may be registered and removed between steps."""
        if not (live_hooks and self._calls_hooks):
            return None
        there, hooked = self._hooks
        if there != (now := tuple(live_hooks)):
            hooked = passing.over(list(self.actions), self._grads, None)
            self._hooks = (now, hooked)
        return hooked

    def _file(self, events: Sequence[Term | _Replaced | int]) -> None:
        for event in events:
            if isinstance(event, _Replaced):
                self._terms[event.term.id.number] = [event.term]
            elif isinstance(event, Term):
                self._terms.setdefault(event.id.number, []).append(event)
            else:
                self._terms.pop(event, None)

    def _unfile(self, change: _Change) -> None:
        if change.step.removed or change.step.replaced:  # rare: file everything up to here anew
            self._terms = {}
            self._file(self._seeds)
            for earlier in self._changes[: self._position]:
                self._file(earlier.events)
            return
        for event in reversed(change.events):
            terms = self._terms[event.id.number]
            terms.pop()
            if not terms:
                del self._terms[event.id.number]

    # -- showing ----------------------------------------------------------------------------------

    def save_html(self, path: Any) -> Path:
        """Write the viewer as one HTML file that needs no network; its path."""
        return above.save(self, path)

    def _repr_html_(self) -> str:
        return above.html(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return above.bundle(self)

    def __repr__(self) -> str:
        return f"<cursor on {self.label}: {self._position} of {len(self.actions)} actions>"

    def __str__(self) -> str:
        step = self.current
        lines = [repr(self)]
        if step is None:
            lines += [f"  seed   {_show(sum.id, sum.value)}" for sum in self.sums.values()]
            return "\n".join(lines)
        lines.append(f"  {step.index:>4}  {step.action!r}{'  (skipped: no gradient reached it)' * step.skipped}")
        lines += [f"  in     {_show(id, value)}" for id, value in step.incoming.items()]
        lines += [f"  out    {_show(term.id, term.value)}" for term in step.outgoing]
        lines += [f"  hook   {_show(term.id, term.before)} became {_text(term.after)}" for term in step.replaced]
        for number in dict.fromkeys(term.id.number for term in step.outgoing if term.accumulates):
            terms = self._terms.get(number, [])
            added = " + ".join(_text(term.value) for term in terms[-4:])
            lines.append(f"  sum    %{number} = {'... + ' * (len(terms) > 4)}{added} = {_text(terms[-1].after)}")
        return "\n".join(lines)


def cursor(
    tape: Tape, root: Tensor | Sequence[Tensor], seed: Any = None, *, retain_tape: bool = True, hooks: bool = True
) -> Cursor:
    """See `Tape.cursor`."""
    starts = start(root, seed, tape)
    if cuts.log.last > tape.epoch.start:
        look_for_cuts(root, None, tape)
    actions = tape.actions if retain_tape else tape.take_all(by=f"cursor() at {user_line()}")
    return Cursor(actions, [(one.id, given) for one, _, given in starts], tape.label, names_around(), hooks)


def _identity(key: Tensor | TensorId) -> TensorId:
    return key.id if isinstance(key, Tensor) else key


def _steps(count: Any) -> int:
    if not isinstance(count, (int, np.integer)) or count < 0:
        raise ArgumentError(f"a number of steps is an integer from 0 on, not {count!r}", at=user_line())
    return int(count)


def _show(id: TensorId, value: Any) -> str:
    return f"%{id.number} {value.dtype}{list(value.shape)}  {_text(value)}"


def _text(value: Any) -> str:
    value = value.value if isinstance(value, Tensor) else value
    if isinstance(value, Tracer):
        return "(traced)"
    array, part = local_part(value)
    if array.dtype.kind not in "fciub":
        array = array.astype(np.float32)  # bfloat16 and the like
    text = " ".join(np.array2string(array, precision=4, threshold=8, edgeitems=2, separator=", ").split())
    return f"{text} ({part})" if part else text
