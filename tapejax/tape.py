"""The tape: a linear log of actions, and the scope that says which tape records.

A context variable holds the current scope. Contexts are copied to new threads (free-threaded
Python), tasks and `asyncio.to_thread`; a copied tape would be shared by accident. So a tape knows
the thread and task that own it, and a scope whose tape belongs to somebody else is not trusted:
whoever finds it there gets an ambient tape of their own. `no_grad`, by contrast, is inherited.
"""

from __future__ import annotations

import itertools
from asyncio import _get_running_loop as running_loop  # exported for event loops; None without one, and fast
from asyncio import current_task
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from threading import current_thread, get_ident, local
from typing import TYPE_CHECKING, Any, overload
from weakref import ref

from tapejax.errors import ArgumentError, IndexingError, TapeError
from tapejax.where import line_of, user_frame, user_line

if TYPE_CHECKING:
    from pathlib import Path

    from tapejax.cursor import Cursor
    from tapejax.gradients import Gradients
    from tapejax.tensor import Tensor

_numbers = itertools.count(1)
next_number: Callable[[], int] = _numbers.__next__
_sequence = itertools.count(1)
next_sequence: Callable[[], int] = _sequence.__next__


class TensorId:
    """The identity of a tensor: what gradients are filed under.

    Clones and views that must keep their identity share it. It knows the action that produced the
    tensor, and so keeps alive exactly the part of an ambient tape that a live tensor can reach.

    >>> import tapejax as tj
    >>> x = tj.tensor([1.0, 2.0], requires_grad=True)
    >>> (x + 0).id == x.id, x[:].id.producer.op
    (False, 'Getitem')
    """

    __slots__ = ("__weakref__", "_producer", "hooks", "number")
    hooks: list[Any]  # of a leaf that has some: see hooks/registry.py

    def __init__(self, number: int | None = None, producer: TapeAction | Composite | None = None):
        self.number: int = next_number() if number is None else number
        self._producer = producer

    @property
    def producer(self) -> TapeAction | None:
        """The action that made it; None for a leaf."""
        found = self._producer
        if isinstance(found, Composite):
            found = self._producer = found.action_of(self.number)
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorId) and other.number == self.number

    def __hash__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"TensorId({self.number})"

    def __reduce__(self):
        # A number means nothing in another process: what is loaded is a new identity.
        return (TensorId, ())


class TapeAction:
    """One entry of the tape: the contract between what ran forward and the engine.

    Subclass it and implement `backward` and `name` to record an action of your own. If `inputs` and
    `outputs` are given (tuples of TensorId), the engine skips the action when none of its outputs
    has a gradient, and `wrt` can prune it; otherwise its `backward` is always called.

    >>> import tapejax as tj
    >>> class Twice(tj.TapeAction):
    ...     def __init__(self, source, target):
    ...         self.inputs, self.outputs = (source.id,), (target.id,)
    ...     def backward(self, grads):
    ...         grads.insert(self.inputs[0], 2 * grads[self.outputs[0]])
    >>> x = tj.tensor(3.0, requires_grad=True)
    >>> y = tj.tensor(6.0, requires_grad=True)
    >>> tj.record(Twice(x, y))
    >>> tj.backward(y)[x]
    Array(2., dtype=float32)
    """

    __slots__ = ()

    inputs: Sequence[TensorId] | None = None
    outputs: Sequence[TensorId] | None = None
    line: str = ""

    def backward(self, grads: Gradients) -> None:
        """Read the gradients of the outputs, add those of the inputs: `grads.insert(id, value)`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement backward(grads)")

    def release(self) -> None:
        """Let go of what backward reads: it has run, and the tape is consumed."""

    def name(self) -> str:
        """A readable name, e.g. `Add(TensorId(1), TensorId(2))`."""
        inputs = self.inputs
        return type(self).__name__ if inputs is None else f"{type(self).__name__}({', '.join(map(repr, inputs))})"

    def __repr__(self) -> str:
        return self.name()


def check_action(action: Any) -> None:
    """Refuse what cannot be run backward."""
    if isinstance(action, type) and issubclass(action, TapeAction):
        name = action.__name__
        raise ArgumentError(f"{name} is a class, not a TapeAction", fix=f"record an instance of it: {name}(...)")
    if isinstance(action, type) or not callable(getattr(action, "backward", None)):
        raise ArgumentError(
            f"a {type(action).__name__} is not a TapeAction",
            fix="subclass tapejax.TapeAction and implement backward(grads) and name()",
        )


class Request:
    """What a backward was asked for.

    wanted: the numbers of the identities whose gradients are wanted; None for all.
    alone: nobody needs the actions again. only_ops: none of them is somebody's own, which may read any gradient.
    """

    __slots__ = ("alone", "only_ops", "wanted")

    def __init__(self, wanted: set[int] | None = None, *, alone: bool = False, only_ops: bool = False):
        self.wanted, self.alone, self.only_ops = wanted, alone, only_ops


class Composite(TapeAction):
    """An action made of others, which are written when somebody looks at them: see block.py."""

    __slots__ = ()
    epoch: Epoch

    def go_back(self, grads: Gradients, asked: Request) -> bool:
        """Its backward as a whole. False, and nothing has happened, if its actions are to go back one by one."""
        return False

    def step(self, root: Any, wrt: Sequence[Any], tape: Tape) -> Gradients | None:
        """The whole of a training step that starts at one of its results; None if it has to go the usual way."""
        return None

    def backward(self, grads: Gradients) -> None:
        if not self.go_back(grads, Request()):
            for action in reversed(self.write()):
                action.backward(grads)

    def flush(self) -> None:
        """Compute the values of its tensors."""
        raise NotImplementedError

    def write(self) -> list[Any]:
        """Its actions, in order; those that are still wanted, if the tape holds its actions weakly."""
        raise NotImplementedError

    def reads(self) -> list[int]:
        """The numbers of the tensors from outside that its actions read, as far as these need a gradient."""
        raise NotImplementedError

    def spread(self, reached: set[int]) -> None:
        """Add the numbers of what its actions make of tensors whose numbers are there."""
        raise NotImplementedError

    def settle(self, tensor: Tensor) -> None:
        """Give a result the value that `flush` did not hand to it, or raise why there is none."""
        raise NotImplementedError

    def action_of(self, number: int) -> Any:
        """The action that made what has this number."""
        raise NotImplementedError

    def is_over(self) -> bool:
        """Whether it will never have an action again."""
        raise NotImplementedError


def written(entries: Iterable[Any]) -> list[Any]:
    """Entries of a log as actions: what is pending is written out."""
    found: list[Any] = []
    for entry in entries:
        if isinstance(entry, Composite):
            found += entry.write()
        else:
            found.append(entry)
    return found


class Epoch:
    """The life of a tape's content between two takes; what a recorded action points to.

    It holds no actions, so that an action never keeps a whole tape alive.
    """

    __slots__ = ("_by", "ambient", "first", "hooks", "label", "merged_into", "start", "thread")

    def __init__(self, label: str, ambient: bool = False):
        self.label = label
        self.ambient = ambient
        self.start = next_number()  # what was made later has a larger number
        self.first = False  # whether its tape was opened for it
        self.merged_into: Epoch | None = None
        self._by: tuple[str, Any] | None = None
        self.hooks: dict[Any, list[Any]] | None = None  # see hooks/registry.py
        self.thread = get_ident()

    @property
    def consumed_by(self) -> str | None:
        """Who took the actions, and where; None as long as nobody did."""
        return None if self._by is None else f"{self._by[0]} at {line_of(self._by[1])}"

    def current(self) -> Epoch:
        epoch = self
        while epoch.merged_into is not None:
            epoch = epoch.merged_into
        return epoch


_labels = itertools.count(1)


class Entered:
    """What is entered and left by `with`, as often as one likes: see `enter` and `leave` at the end of this file."""

    __slots__ = ()
    _entries: list[Entry]

    def __exit__(self, *exc_info: object) -> None:
        before = (*self._entries,)
        try:
            leave(self)
        except BaseException:  # an interrupt: what was begun is done
            if before and len(self._entries) == len(before):
                leave(self)
            restore(current_scope())
            raise


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
    watch: Any = None  # told of every op that runs on it: watch(plan, tensors, results, where)
    weak = False  # whether it keeps only the actions that a live tensor can reach
    manner: Any = None  # how ops run while it records, if not as usual: see Scope

    __slots__ = ("__weakref__", "_entries", "_forks", "_log", "_origin", "_owner", "block", "detail", "epoch", "guarded", "label")  # fmt: skip

    def __init__(self, *, detail: str = "ops", label: str | None = None):
        if detail not in ("ops", "primitives"):
            raise ArgumentError(f"unknown detail {detail!r}", fix='detail="ops" or detail="primitives"')
        self.label = label or f"tape {next(_labels)}"
        self.detail = detail
        self.guarded = False  # whether taking a recorded Tensor apart, as a pytree, is refused
        self._owner: tuple[object, Any] | None = None
        self._entries: list[Entry] = []
        self._forks = 0
        self._origin: tuple[Epoch, int] | None = None
        self._log: list[Any] = []
        self.block: Any = None  # takes the calls that are noted here, until something else comes
        self.epoch = Epoch(self.label, self.weak)
        self.epoch.first = True

    def _start(self) -> tuple[Epoch, list[Any]]:
        """Begin anew, with nothing; what was before. One step: an interrupt comes before it or after it."""
        fresh, log = Epoch(self.label, self.weak), []
        before = self.epoch, self._log
        self.epoch, self._log, self.block = fresh, log, None
        return before

    # -- the log ------------------------------------------------------------------------------

    def push(self, action: TapeAction) -> None:
        """Put an action at the end of the log."""
        check_action(action)
        self.append(action)

    def append(self, action: Any) -> None:
        """`push` without a look at what it is. Calls that come later are noted behind it."""
        self.block = None
        self._log.append(action)

    def log(self, block: Any) -> None:
        """Put calls that are being noted at the end of the log."""
        self._log.append(block)  # an interrupt after this may put it there twice: `entries` sees to that
        block.logged = True

    def take_all(self, by: str = "take_all()") -> list[TapeAction]:
        """Return the actions in order and leave the tape empty."""
        return written(self.take_entries(by))

    def take_entries(self, by: str) -> list[Any]:
        """`take_all`, with what is pending left so."""
        return _entries(self.restart(by))

    def restart(self, by: str) -> list[Any]:
        """Its content is consumed: begin anew; what was in the log."""
        where = user_frame(3)
        epoch, log = self._start()
        epoch._by = by, where
        return log

    def is_just(self, block: Any) -> bool:
        """Whether these calls are all it holds."""
        return len(self._log) == 1 and _referred(self._log[0]) is block

    def entries(self) -> list[Any]:
        """The log: actions, and stretches of it that are pending."""
        return _entries(self._log)

    def _live(self) -> list[TapeAction]:
        return written(self.entries())

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
            self.block = None  # the calls noted by whoever had it before run when they are needed
        self._owner = me
        return enter(self)

    def _inside(self, outer: Scope) -> Scope:
        return Scope(self, outer.enabled, (outer.thread, outer.task), outer.bindings, outer.manner or self.manner)

    # -- joining work of several threads or tasks ------------------------------------------------

    def fork(self, label: str | None = None) -> Tape:
        """A child tape for another thread or task; its actions come back with `merge`."""
        self._forks += 1
        child = Tape(detail=self.detail, label=label or f"{self.label}.{self._forks}")
        child._origin = (self.epoch, self._forks)
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
            if child._origin is None or child._origin[0].current() is not self.epoch:
                raise TapeError(
                    f"{child.label} was not forked from {self.label} since it was last taken",
                    at=user_line(),
                    fix="merge only tapes made by this tape's fork(), before its backward",
                )
            if child._entries:
                raise TapeError(f"{child.label} is still recording", at=user_line(), fix="leave its `with` block first")
        tapes.sort(key=lambda child: child._origin[1])
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
            child._origin = (self.epoch, child._origin[1])

    # -- what people call --------------------------------------------------------------------

    def backward(self, root: Tensor | Sequence[Tensor], seed: Any = None, **options: Any) -> Gradients:
        """`tapejax.backward` on this tape, whether or not it is the current one."""
        from tapejax.engine import backward

        return backward(root, seed, tape=self, **options)

    def cursor(self, root: Tensor | Sequence[Tensor], seed: Any = None, *, retain_tape: bool = True) -> Cursor:
        """The backward pass one action at a time, with every partial sum: see `Cursor`. The tape stays as it is.

        >>> import tapejax as tj
        >>> x = tj.tensor(3.0, requires_grad=True)
        >>> with tj.Tape() as tape:
        ...     loss = x * x
        >>> [float(term.value) for step in tape.cursor(loss) for term in step.outgoing]
        [3.0, 3.0]
        """
        from tapejax.cursor import cursor

        return cursor(self, root, seed, retain_tape=retain_tape)

    def save_html(self, path: Any, root: Tensor | Sequence[Tensor] | None = None, seed: Any = None) -> Path:
        """Write the viewer (log, graph, stepper) as one HTML file that needs no network; its path.

        Backward starts at `root`, or at the last result. The tape stays as it is. See docs/viewer.md.
        """
        from tapejax.view import save

        return save(self if root is None else self.cursor(root, seed), path)

    def to_dot(self) -> str:
        """The graph in Graphviz's language: `dot -Tsvg` draws it.

        >>> import tapejax as tj
        >>> with tj.Tape() as tape:
        ...     y = tj.tensor(2.0, requires_grad=True) * 3
        >>> "multiply" in tape.to_dot()
        True
        """
        from tapejax.view import dot

        return dot(self)

    def _repr_html_(self) -> str:
        from tapejax.view import html

        return html(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from tapejax.view import bundle

        return bundle(self)


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
        # The last one may be over by now; if these calls read a result of it, the one before it is.
        self._log[-2:] = [entry for entry in self._log[-2:] if not _is_over(entry)]
        self._log.append(ref(block))
        block.logged = True
        if len(self._log) > self._limit:
            self._sweep()

    def append(self, action: Any) -> None:
        super().append(ref(action) if getattr(action, "reachable", False) else action)
        if len(self._log) > self._limit:
            self._sweep()

    def _sweep(self) -> None:
        self._log[:] = [entry for entry in self._log if not _is_over(entry)]
        self._limit = 2 * len(self._log) + 64


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


# --- scope ---------------------------------------------------------------------------------------


class Scope:
    """Which tape records, whether it does, and whose it is. Never changed, only replaced.

    bindings: within the body of a function of functions, the values that stand for the Tensors from outside.
    manner: None, or how ops run if not deferred and fused: one by one, and what they keep may be packed.
    entry, outer: the `with` block that made it, if one did, and the scope around that.
    """

    __slots__ = ("bindings", "enabled", "entry", "manner", "outer", "special", "tape", "task", "thread")

    entry: Entry | None
    outer: Scope | None

    def __init__(self, tape: Tape, enabled: bool, owner: tuple[object, Any], bindings: Any = None, manner: Any = None):
        self.tape = tape
        self.enabled = enabled
        self.thread, self.task = owner
        self.bindings = bindings
        self.manner = manner
        self.special = bindings is not None or manner is not None or tape.detail != "ops"  # ops are not just noted
        self.entry = self.outer = None


_scope: ContextVar[Scope | None] = ContextVar("tapejax_scope", default=None)
get_scope = _scope.get
set_scope = _scope.set


class _Thread(local):
    """A token per thread. An ident would not do: the next thread may get the same one."""

    def __init__(self) -> None:
        self.token = object()


_thread = _Thread()


def whoami() -> tuple[object, Any]:
    """The current thread and asyncio task (None outside of one); a task is named by a weak reference."""
    task = None if running_loop() is None else current_task()
    return _thread.token, None if task is None else ref(task)


def _my_name() -> str:
    """The current task, or else thread, by the name that Python and people know it under."""
    task = None if running_loop() is None else current_task()
    return f"thread {current_thread().name!r}" if task is None else f"task {task.get_name()!r}"


def current_scope() -> Scope:
    """The scope of this thread and task, made now if there is none or only somebody else's copy."""
    scope = get_scope()
    if scope is not None and scope.thread is _thread.token:
        if scope.task is None:
            if running_loop() is None or current_task() is None:
                return scope
        elif running_loop() is not None and scope.task() is current_task():
            return scope
    if scope is not None and scope.thread is None:  # its block was left elsewhere
        restore(scope)
        return current_scope()
    enabled = scope is None or scope.enabled
    manner = None if scope is None else scope.manner
    scope = Scope(AmbientTape(label=f"the ambient tape of {_my_name()}"), enabled, whoami(), manner=manner)
    _scope.set(scope)
    return scope


# --- entering and leaving ------------------------------------------------------------------------
#
# `with` blocks of generators may be left in another order than they were entered, and elsewhere: each takes
# back its own effect only. So a scope knows the blocks that made it, and is made again without those left.


class Entry:
    """One entering of a `with` block: `block._inside(outer)` is the scope within it."""

    __slots__ = ("block", "left", "scope")

    def __init__(self, block: Any):
        self.block = block
        self.left = False
        self.scope: Scope | None = None

    def over(self, outer: Scope) -> Scope:
        """The scope that it makes of another one."""
        scope = self.block._inside(outer)
        scope.outer, scope.entry, self.scope = outer, self, scope
        return scope


def enter(block: Any) -> Any:
    """Make the scope within a block the current one; the block. An interrupt leaves things as they were."""
    entry, outer = Entry(block), current_scope()
    try:
        block._entries.append(entry)
        set_scope(entry.over(outer))
        return block
    except BaseException:
        set_scope(outer)
        block._entries[:] = [one for one in block._entries if one is not entry]
        raise


def leave(block: Entered) -> None:
    """Take back what the last entering of a block here has changed, and only that."""
    entries, scope = block._entries, current_scope()
    if not entries:
        fix = "use `with`, which does both, once each"
        name = getattr(block, "label", type(block).__name__)
        raise TapeError(f"{name} was left, but had not been entered", fix=fix)
    here = [layer.entry for layer in layers(scope)]
    entry = next((entry for entry in reversed(entries) if entry in here), entries[-1])
    if entry not in here and entry.scope is not None:
        entry.scope.thread = None  # nobody's: whoever finds it in a context makes it anew, see `current_scope`
    entry.left, entry.scope = True, None
    entries.remove(entry)
    restore(scope)


def restore(scope: Scope) -> None:
    """Make a scope the current one again, without the blocks that have been left since."""
    while scope.entry is not None and scope.entry.left and scope.outer is not None:
        scope = scope.outer
    if scope.entry is not None:
        made = layers(scope)
        scope = _without_left(made) if any([layer.entry.left for layer in made]) else scope
    set_scope(scope)


def layers(scope: Scope) -> list[Any]:
    """The scopes that blocks made, one over the other, the innermost first."""
    found = []
    while scope.entry is not None and scope.outer is not None:
        found.append(scope)
        scope = scope.outer
    return found


def _without_left(made: list[Any]) -> Scope:
    scope = made[-1].outer
    for layer in reversed(made):
        if not layer.entry.left:
            scope = layer if layer.outer is scope else layer.entry.over(scope)
    return scope


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
