"""Where a gradient would be cut: parameters that somebody took apart while a tape recorded.

A parameter is a pytree, so that optimisers, jitted steps and `jax.tree.map` can work on it. What is rebuilt from its
value is a new leaf; what is computed from its plain value is an array. Both are out of the tape's sight, so there is a log
of what was taken apart and of what was rebuilt. Before backward begins, it looks at what came since the content of its tape
did. A gradient that would lack a part is an error with the lines of both; see docs/tensors-and-jax.md.

The log holds nothing alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from threading import RLock
from typing import Any, NamedTuple
from weakref import WeakSet, ref

from tapejax.errors import CutGradientError
from tapejax.ground import callers
from tapejax.ground.where import line_of, user_frame, user_line
from tapejax.tape.action import Composite, TensorId, next_number
from tapejax.tape.scope import current_scope


class Rebuilt(TensorId):
    """The identity of a leaf that was rebuilt from another's value.

    chain: the numbers of the identities it was rebuilt from, the last one first. Empty if that is not known: jax keeps
    structures, so what a structure remembers may be of an earlier call.
    """

    __slots__ = ("chain", "kind", "where")

    def __init__(self, number: int, chain: tuple[int, ...], kind: Any, where: Any):
        super().__init__(number)
        self.chain, self.kind, self.where = chain, kind, where


class Aux(int):
    """What the structure of a Tensor says: whether it needs a gradient. Beside it, what it was made from.

    Structures are alike if the numbers are: jax's caches see no difference in the rest, which is for the first who
    rebuilds a Tensor from this one.
    """

    chain: tuple[int, ...] = ()
    used = False

    def __repr__(self) -> str:
        return repr(bool(self))


class Taken:
    """That an identity was taken apart.

    time: what was made later has a larger number.
    exposed: whether plain arrays may have been handed out.
    inside: if a function that hands out leaves did it where a tape had just been opened to record: that tape's content.
    """

    __slots__ = ("caller", "exposed", "inside", "kind", "time", "traced")

    def __init__(self, caller: callers.Caller, kind: Any, traced: bool, inside: Any, exposed: bool, time: int):
        self.caller, self.kind, self.traced, self.inside, self.exposed = caller, kind, traced, inside, exposed
        self.time = time


class _Entry(ref):
    """An identity that was taken apart, held weakly, and by line the last time that it was."""

    __slots__ = ("lines", "number")

    def __init__(self, id: TensorId, forget: Any):
        super().__init__(id, forget)
        self.number = id.number
        self.lines: dict[Any, Taken] = {}

    def __new__(cls, id: TensorId, forget: Any):
        return super().__new__(cls, id, forget)

    def since(self, start: int) -> list[Taken]:
        return [taken for taken in self.lines.values() if taken.time > start]


class Log:
    """What was taken apart and rebuilt, by whom, in any thread.

    One for all tapes: a content of a tape has what came since it began. last: when something was last taken apart.
    """

    MAX_LINES = 4096

    def __init__(self) -> None:
        self._taken: dict[int, _Entry] = {}
        self._rebuilt: WeakSet[Rebuilt] = WeakSet()
        self._rebuilt_at: dict[Any, int] = {}  # by line, and whether it was traced: when something last was
        self._lock = RLock()
        self.last = 0

    def took(self, id: TensorId, taken: Taken, start: int) -> tuple[int, ...]:
        """File it; the number of this identity, and of those that led to it since then."""
        number, where = id.number, taken.caller.where
        with self._lock:
            entry = self._taken.get(number)
            if entry is None:
                entry = self._taken[number] = _Entry(id, self._forget)
            entry.lines[where] = taken
            self.last = taken.time
            if not isinstance(id, Rebuilt) or not id.chain:
                return (number,)
            before = [n for n in id.chain if n in self._taken and self._taken[n].since(start)]
            for other in before:
                self._taken[other].lines[where] = taken
        return number, *before

    def _forget(self, entry: _Entry) -> None:
        if self._taken.get(entry.number) is entry:
            del self._taken[entry.number]

    def rebuilt(self, leaf: Rebuilt, traced: bool) -> None:
        with self._lock:
            self._rebuilt.add(leaf)
            if len(self._rebuilt_at) >= self.MAX_LINES:
                self._rebuilt_at.clear()
            self._rebuilt_at[leaf.where, traced] = leaf.number

    def since(self, start: int) -> dict[TensorId, list[Taken]]:
        """What was taken apart."""
        with self._lock:
            found = [(entry(), entry.since(start)) for entry in list(self._taken.values())]
        return {id: takings for id, takings in found if takings and id is not None}

    def rebuilt_since(self, start: int) -> list[Rebuilt]:
        with self._lock:
            return [leaf for leaf in self._rebuilt if leaf.number > start]

    def exposed(self, taken: Taken) -> bool:
        """Whether plain arrays were handed out, so far as is known: if no Tensor was rebuilt in the same call."""
        return taken.exposed and self._rebuilt_at.get((taken.caller.where, taken.traced), 0) < taken.time


def origins(leaf: Rebuilt, taken: dict[TensorId, list[Taken]]) -> list[TensorId]:
    """What a leaf was, or may have been, rebuilt from."""
    known = [id for id in taken if id.number in leaf.chain]
    if known:
        return known
    may_be = lambda t: t.time < leaf.number and (t.caller.where == leaf.where or _alike(t.kind, leaf.kind))
    return [id for id, takings in taken.items() if any(map(may_be, takings))]


log = Log()


def _alike(a: Any, b: Any) -> bool:
    return (getattr(a, "shape", None), getattr(a, "dtype", None)) == (getattr(b, "shape", 0), getattr(b, "dtype", 0))


def took(id: TensorId, kind: Any, caller: callers.Caller, time: int, *, traced: bool, exposed: bool = True) -> Aux:
    """Log that an identity is taken apart; what its structure is to remember."""
    tape = current_scope().tape
    epoch = tape.epoch
    inside = epoch if caller.tree and epoch.first and not tape.weak else None
    made = Aux(True)
    made.chain = log.took(id, Taken(caller, kind.aval, traced, inside, exposed, time), epoch.start)
    return made


def rebuilt(number: int, chain: tuple[int, ...], kind: Any, caller: callers.Caller, *, traced: bool) -> TensorId:
    """The identity of a leaf that is rebuilt from what was taken apart."""
    made = Rebuilt(number, chain, kind.aval, caller.where)
    start = current_scope().tape.epoch.start
    if log.last > start:
        log.rebuilt(made, traced)
    return made


# --- what left the tape, for whoever asks why a gradient is missing --------------------------------------


class Exit(NamedTuple):
    """That a recorded Tensor left the tape. made: the number of the Tensor that came of it, 0 if none did.

    by_nature: through an op that has no derivative, such as argmax or a comparison.
    """

    number: int
    how: str
    made: int
    time: int
    where: Any
    by_nature: bool = False

    @property
    def line(self) -> str:
        return line_of(self.where)


exits: deque[Exit] = deque(maxlen=4096)
blocks_without_grad: deque[list[Any]] = deque(maxlen=1024)  # [first number, last number, where]


def left(number: int, how: str, made: int = 0, where: Any = None) -> None:
    """Log that a recorded Tensor became a plain value, or one that needs no gradient: its line, not its value."""
    exits.append(Exit(number, how, made, next_number(), where or user_frame(3)))


def dropped(op: str, tensors: Sequence[Any], made: Sequence[int]) -> None:
    """Log that recorded Tensors went into an op that has no derivative; made: the numbers of what came of it."""
    where, time = user_frame(3), next_number()
    given = [tensor.number for tensor in tensors if tensor.kind.requires_grad]
    exits.extend([Exit(number, op, result, time, where, by_nature=True) for number in given for result in made])


# --- before a backward --------------------------------------------------------------------------------


def check(tape: Any, roots: Sequence[Any], wanted: Iterable[int] | None) -> dict[int, str]:
    """Refuse a gradient that would lack a part.

    Of what is not asked for by name and has no gradient at all: the reason, by number.
    """
    start = tape.epoch.start
    asked = None if wanted is None else set(wanted)
    taken = log.since(start)
    suspects = {id: takings for id, takings in taken.items() if asked is None or id.number in asked}
    if not suspects:
        return {}
    read = _read(tape.entries())
    leaves = [x for x in log.rebuilt_since(start) if x.number in read and not (asked and x.number in asked)]
    found = [(id, leaf) for leaf in leaves for id in origins(leaf, taken) if id in suspects]
    exposed = [(id, taken) for id, takings in suspects.items() for taken in takings if log.exposed(taken)]
    if not found and not exposed:
        return {}
    way = _Way(tape, [root.number for root in roots])
    active = frozenset(code for code, _ in callers.stack())
    parts = [(id, _of_rebuilt(suspects[id], leaf, way)) for id, leaf in found if leaf.number in way.readers]
    parts += [(id, _of_exposed(taken)) for id, taken in exposed if way.passes(taken, active)]
    missing: dict[int, str] = {}
    for id, what in parts:
        reader = way.readers.get(id.number)
        if asked is None and reader is None:
            missing[id.number] = what
            continue
        raise CutGradientError(
            f"the gradient of {id!r} would lack a part: {what}",
            at=user_line(),
            action=None if reader is None else f"{reader!r}, which reads it as it is, at {reader.line}",
            fix="keep it on the tape: the same function of tapejax, or tapejax.lift(f)(x), or is_leaf for trees; "
            "where no gradient is meant to flow, do it within tapejax.no_grad(), or name both in wrt",
        )
    return missing


def _of_rebuilt(takings: list[Taken], leaf: Rebuilt, way: _Way) -> str:
    names = [taken.caller.name for taken in takings if taken.caller.where == leaf.where]
    by = f" by {names[0]}" if names else ""
    return f"{leaf!r} was rebuilt from it{by} at {line_of(leaf.where)}, and is read at {way.readers[leaf.number].line}"


def _of_exposed(taken: Taken) -> str:
    return (
        f"{taken.caller.name} took its plain value out at {taken.caller.line}, "
        "while what backward starts from was being recorded"
    )


def _read(entries: Iterable[Any]) -> set[int]:
    read: set[int] = set()
    for entry in entries:
        read.update(entry.reads() if isinstance(entry, Composite) else [id.number for id in entry.inputs or ()])
    return read


class _Way:
    """The actions that lead to the roots, and by number the first one that reads each identity."""

    def __init__(self, tape: Any, roots: Iterable[int]):
        needed = set(roots)
        self.epoch = tape.epoch
        self.actions: list[Any] = []
        self.readers: dict[int, Any] = {}
        for action in reversed(tape.actions):
            outputs = action.outputs
            if outputs is None or any(id.number in needed for id in outputs):
                self.actions.append(action)
                reads = getattr(action, "differentiable_inputs", lambda action=action: action.inputs or ())()
                for id in reads:
                    needed.add(id.number)
                    self.readers[id.number] = action

    def passes(self, taken: Taken, active: frozenset[Any]) -> bool:
        """Whether a plain value was taken out on the way: an array made of it may be part of the roots.

        It may if something was recorded before and after it; if a line that led to it, or a function that led to it and
        has returned, recorded later on; or if the tape was opened to record, and it came first.
        """
        time = lambda action: getattr(action, "sequence", 0)
        later = [action for action in self.actions if time(action) > taken.time]
        if not later:
            return False
        if taken.inside is self.epoch or len(later) < len(self.actions):
            return True
        returned = {code for code, _ in taken.caller.stack} - active
        lines = {line_of(where) for where in taken.caller.stack}
        return any(_code(action) in returned or action.line in lines for action in later)


def _code(action: Any) -> Any:
    where = getattr(action, "where", None)
    return where[0] if type(where) is tuple else None
