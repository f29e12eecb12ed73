"""The tape: a linear log of actions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, overload
from weakref import ref

from tapejax.errors import ArgumentError, IndexingError, TapeError, UnknownAttributeError
from tapejax.ground import habits
from tapejax.ground.where import line_of, user_frame, user_line
from tapejax.tape.above import above
from tapejax.tape.action import Composite, TapeAction, check_action, materialised, next_number
from tapejax.tape.scope import Entered, Entry, Scope, current_scope, enter, install_ambient, whoami

if TYPE_CHECKING:
    from pathlib import Path

    from tapejax.engine.cursor import Cursor
    from tapejax.tensor.gradients import Gradients
    from tapejax.tensor.tensor import Tensor


class Epoch:
    """The life of a tape's content between two takes; what a recorded action points to.

    It holds no actions, so that an action never keeps a whole tape alive.
    """

    __slots__ = ("ambient", "first", "hooks", "label", "merged_into", "start", "taken_by", "thread")

    def __init__(self, label: str, ambient: bool = False):
        self.label = label
        self.ambient = ambient
        self.start = next_number()  # what was made later has a larger number
        self.first = False  # whether its tape was opened for it
        self.merged_into: Epoch | None = None
        self.taken_by: tuple[str, Any] | None = None
        self.hooks: dict[Any, list[Any]] | None = None  # see hooks/registry.py
        self.thread = get_ident()

    @property
    def consumed_by(self) -> str | None:
        """Who took the actions, and where; None as long as nobody did."""
        return None if self.taken_by is None else f"{self.taken_by[0]} at {line_of(self.taken_by[1])}"

    def current(self) -> Epoch:
        epoch = self
        while epoch.merged_into is not None:
            epoch = epoch.merged_into
        return epoch


_labels = itertools.count(1)


class Tape(Entered):
    """A linear log of actions. `with Tape() as tape:` makes it the one that records.

    It keeps every action until it is taken. `detail="primitives"` records each lax primitive as an
    action of its own, with loops run step by step, instead of one action per user-level op.

    >>> import tapejax as tj
    >>> x = tj.tensor([1.0, 2.0], requires_grad=True)
    >>> with tj.Tape() as tape:
    ...     loss = (x * x).sum()
    >>> len(tape)
    2
    >>> tape.backward(loss)[x]
    Array([2., 4.], dtype=float32)
    """

    forgets = False  # whether ops that run on it leave no action (the first run of a checkpoint)
    observer: Any = None  # called with every op that runs on it: observer(plan, tensors, results, where)
    weak = False  # whether it keeps only the actions that a live tensor can reach
    execution: Any = None  # how ops run while it records, if not as usual: see Scope

    __slots__ = ("__weakref__", "_entries", "_forks", "_owner", "block", "detail", "epoch", "forked_from", "guarded", "label", "logged")  # fmt: skip

    def __init__(self, *, detail: str = "ops", label: str | None = None):
        if detail not in ("ops", "primitives"):
            raise ArgumentError(f"unknown detail {detail!r}", fix='detail="ops" or detail="primitives"')
        self.label = label or f"tape {next(_labels)}"
        self.detail = detail
        self.guarded = False  # whether taking a recorded Tensor apart, as a pytree, is refused
        self._owner: tuple[object, Any] | None = None
        self._entries: list[Entry] = []
        self._forks = 0
        self.forked_from: tuple[Epoch, int] | None = None
        self.logged: list[Any] = []  # the log itself; a block may be there by a weak reference
        self.block: Any = None  # takes the calls that are deferred here, until something else comes
        self.epoch = Epoch(self.label, self.weak)
        self.epoch.first = True

    if not TYPE_CHECKING:  # for a type checker an unknown name stays unknown

        def __getattr__(self, name: str) -> Any:
            fix = habits.OF_TAPES.get(name)
            if fix is not None:
                raise UnknownAttributeError(f"'Tape' object has no attribute {name!r}", at=user_line(), fix=fix)
            return object.__getattribute__(self, name)  # fails again, in Python's own words

    def _start(self) -> tuple[Epoch, list[Any]]:
        """Begin anew, with nothing; what was before. One step: an interrupt comes before it or after it."""
        fresh, log = Epoch(self.label, self.weak), []
        before = self.epoch, self.logged
        self.epoch, self.logged, self.block = fresh, log, None
        return before

    # -- the log ------------------------------------------------------------------------------

    def push(self, action: TapeAction) -> None:
        """Put an action at the end of the log."""
        check_action(action)
        self.append(action)

    def append(self, action: Any) -> None:
        """`push` without a look at what it is. Calls that come later are deferred behind it."""
        self.block = None
        self.logged.append(action)

    def log(self, block: Any) -> None:
        """Put calls that are being deferred at the end of the log."""
        self.logged.append(block)  # an interrupt after this may put it there twice: `entries` sees to that
        block.logged = True

    def take_all(self, by: str = "take_all()") -> list[TapeAction]:
        """Return the actions in order and leave the tape empty."""
        return materialised(self.take_entries(by))

    def take_entries(self, by: str) -> list[Any]:
        """`take_all`, with what is pending left so."""
        return _entries(self.restart(by))

    def restart(self, by: str) -> list[Any]:
        """Its content is consumed: begin anew; what was in the log."""
        where = user_frame(2)
        epoch, log = self._start()
        epoch.taken_by = by, where
        return log

    def is_just(self, block: Any) -> bool:
        """Whether these calls are all it holds."""
        log = self.logged
        if len(log) != 1:
            return False
        entry = log[0]
        return (entry() if type(entry) is ref else entry) is block

    def entries(self) -> list[Any]:
        """The log: actions, and stretches of it that are pending."""
        return _entries(self.logged)

    def _live(self) -> list[TapeAction]:
        return materialised(self.entries())

    @property
    def actions(self) -> tuple[TapeAction, ...]:
        return tuple(self._live())

    def __len__(self) -> int:
        return len(self._live())

    def __bool__(self) -> bool:
        return True  # an empty tape is still a tape

    def __iter__(self) -> Iterator[TapeAction]:
        return iter(self._live())

    @overload
    def __getitem__(self, index: int) -> TapeAction: ...
    @overload
    def __getitem__(self, index: slice) -> list[TapeAction]: ...
    def __getitem__(self, index):
        actions = self._live()
        try:
            return actions[index]
        except IndexError:
            raise IndexingError(f"no action {index} on {self.label}, which has {len(actions)}") from None
        except TypeError:
            raise ArgumentError(f"actions are numbered, {index!r} is no number") from None

    def __repr__(self) -> str:
        count = len(self)
        return f"<{self.label}: {count} action{'s' * (count != 1)}>"

    def __str__(self) -> str:
        rows = [f"{index:>4}  {action!r}" for index, action in enumerate(self)]
        return "\n".join([repr(self), *rows])

    # -- the scope ----------------------------------------------------------------------------

    def __enter__(self) -> Tape:
        me = whoami()
        if self._entries and self._owner != me:
            raise TapeError(
                f"{self.label} is in use by another thread or task",
                at=user_line(),
                fix="give each thread or task a tape of its own: child = tape.fork(), then tape.merge([child, ...])",
            )
        if self._owner != me:
            self.block = None  # the calls deferred by whoever had it before run when they are needed
        self._owner = me
        return enter(self)

    def within(self, outer: Scope) -> Scope:
        return Scope(self, outer.enabled, (outer.thread, outer.task), outer.bindings, outer.execution or self.execution)

    # -- joining work of several threads or tasks ------------------------------------------------

    def fork(self, label: str | None = None) -> Tape:
        """A child tape for another thread or task; its actions come back with `merge`."""
        self._forks += 1
        child = Tape(detail=self.detail, label=label or f"{self.label}.{self._forks}")
        child.forked_from = (self.epoch, self._forks)
        return child

    def merge(self, children: Iterable[Tape]) -> None:
        """Move the actions of forked tapes to the end of this one, in an order that never varies.

        The order is that of the forks, then each child's own. Children that read each other's
        results are merged in the order in which the actions ran.
        """
        tapes = list(children) if isinstance(children, (list, tuple, set, Iterator)) else [children]
        for child in tapes:
            if not isinstance(child, Tape):
                raise ArgumentError(f"merge takes tapes, not {type(child).__name__}", fix="tape.merge([child, ...])")
            if child.forked_from is None or child.forked_from[0].current() is not self.epoch:
                raise TapeError(
                    f"{child.label} was not forked from {self.label} since it was last taken",
                    at=user_line(),
                    fix="merge only tapes made by this tape's fork(), before its backward",
                )
            if child._entries:
                raise TapeError(f"{child.label} is still recording", at=user_line(), fix="leave its `with` block first")
        tapes.sort(key=lambda child: child.forked_from[1])
        epochs = {child.epoch: child for child in tapes}
        if len(epochs) != len(tapes):
            raise TapeError("a tape was given to merge twice", at=user_line())
        crossed = any(
            producer is not None and epochs.get(getattr(producer, "epoch", None), child) is not child
            for child in tapes
            for action in child
            for producer in (id.producer for id in action.inputs or ())
        )
        actions = [action for child in tapes for action in child]
        if crossed:
            actions.sort(key=lambda action: getattr(action, "sequence", 0))
        for action in actions:
            self.append(action)
        for child in tapes:
            epoch, _ = child._start()
            epoch.merged_into = self.epoch
            child.forked_from = (self.epoch, child.forked_from[1])

    # -- what people call --------------------------------------------------------------------

    def backward(self, root: Tensor | Sequence[Tensor], seed: Any = None, **options: Any) -> Gradients:
        """The gradients of a root, by tensor: `backward(loss)[x]`. The tape is empty then, unless `retain_tape=True`.

        The same as `tapejax.backward`, which lists the options, on this tape, whether or not it is the current one.
        """
        return above.backward(root, seed, tape=self, **options)

    def cursor(
        self, root: Tensor | Sequence[Tensor], seed: Any = None, *, retain_tape: bool = True, hooks: bool = True
    ) -> Cursor:
        """The backward pass one action at a time, with every partial sum: see `Cursor`. The tape stays as it is.

        hooks: whether hooks on what it goes over are called.

        >>> import tapejax as tj
        >>> x = tj.tensor(3.0, requires_grad=True)
        >>> with tj.Tape() as tape:
        ...     loss = x * x
        >>> [float(term.value) for step in tape.cursor(loss) for term in step.outgoing]
        [3.0, 3.0]
        """
        return above.cursor(self, root, seed, retain_tape=retain_tape, hooks=hooks)

    def save_html(self, path: Any, root: Tensor | Sequence[Tensor] | None = None, seed: Any = None) -> Path:
        """Write the viewer (log, graph, stepper) as one HTML file that needs no network; its path.

        Backward starts at `root`, or at the last result. The tape stays as it is. See docs/viewer.md.
        """
        return above.save(self if root is None else self.cursor(root, seed, hooks=False), path)

    def to_dot(self) -> str:
        """The graph in Graphviz's language: `dot -Tsvg` draws it.

        >>> import tapejax as tj
        >>> with tj.Tape() as tape:
        ...     y = tj.tensor(2.0, requires_grad=True) * 3
        >>> "multiply" in tape.to_dot()
        True
        """
        return above.dot(self)

    def _repr_html_(self) -> str:
        return above.html(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return above.bundle(self)


class AmbientTape(Tape):
    """The tape that records where nobody opened one: one per thread and per task.

    It holds the library's own actions weakly. A live tensor keeps the actions it came from; the
    rest is gone at once, and its place in the log is swept when half of the log is dead.
    Actions recorded by hand are held strongly: nothing tells when they are no longer wanted.
    """

    __slots__ = ("_limit",)
    weak = True

    def __init__(self, *, label: str) -> None:
        super().__init__(label=label)
        self._limit = 64

    def log(self, block: Any) -> None:
        if self.logged:  # the last one may be over by now; if these calls read a result of it, the one before it is
            self.logged[-2:] = [entry for entry in self.logged[-2:] if not _is_over(entry)]
        self.logged.append(ref(block))
        block.logged = True
        if len(self.logged) > self._limit:
            self._sweep()

    def append(self, action: Any) -> None:
        super().append(ref(action) if getattr(action, "reachable", False) else action)
        if len(self.logged) > self._limit:
            self._sweep()

    def _sweep(self) -> None:
        self.logged[:] = [entry for entry in self.logged if not _is_over(entry)]
        self._limit = 2 * len(self.logged) + 64


def _referred(entry: Any) -> Any:
    """An entry of a log, or what a weak reference there leads to."""
    return entry() if type(entry) is ref else entry


def _entries(log: list[Any]) -> list[Any]:
    """What is in a log and still there; a stretch that is pending once, even if an interrupt put it there twice."""
    found: list[Any] = []
    for entry in map(_referred, log):
        again = found and entry is found[-1] and isinstance(entry, Composite)
        if entry is not None and not again:
            found.append(entry)
    return found


def _is_over(entry: Any) -> bool:
    found = _referred(entry)
    return found is None or (isinstance(found, Composite) and found.is_over())


install_ambient(AmbientTape)


def current_tape() -> Tape:
    """The tape that records here.

    >>> import tapejax as tj
    >>> with tj.Tape() as tape:
    ...     tj.current_tape() is tape
    True
    """
    return current_scope().tape


def record(action: TapeAction) -> None:
    """Record an action on the current tape (not within no_grad).

    >>> import tapejax as tj
    >>> class Note(tj.TapeAction):
    ...     def name(self):
    ...         return "a note"
    ...     def backward(self, grads):
    ...         pass
    >>> with tj.Tape() as tape:
    ...     tj.record(Note())
    >>> tape.actions
    (a note,)
    """
    scope = current_scope()
    check_action(action)
    if scope.enabled:
        scope.tape.append(action)


def take() -> list[TapeAction]:
    """Take all actions off the current tape, in order; it is empty afterwards.

    >>> import tapejax as tj
    >>> with tj.Tape() as tape:
    ...     y = tj.tensor(2.0, requires_grad=True) * 3
    ...     actions = tj.take()
    >>> [action.op for action in actions], len(tape)
    (['Multiply'], 0)
    """
    return current_tape().take_all(by="take()")


def is_recording() -> bool:
    """Whether ops are recorded here (False within no_grad).

    >>> import tapejax as tj
    >>> with tj.no_grad():
    ...     tj.is_recording()
    False
    """
    scope = current_scope()
    return scope.enabled and not scope.tape.forgets
