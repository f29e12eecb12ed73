"""The scope: which tape records here, and whether it does.

A context variable holds the current scope. Contexts are copied to new threads (free-threaded
Python), tasks and `asyncio.to_thread`; a copied tape would be shared by accident. So a scope knows
the thread and task that own it, and one that belongs to somebody else is not trusted: whoever
finds it there gets an ambient tape of their own. `no_grad`, by contrast, is inherited.
"""

from __future__ import annotations

from asyncio import _get_running_loop as running_loop  # exported for event loops; None without one, and fast
from asyncio import current_task
from collections.abc import Callable
from contextvars import ContextVar
from threading import current_thread, local
from typing import TYPE_CHECKING, Any
from weakref import ref

from tapejax.errors import TapeError

if TYPE_CHECKING:
    from tapejax.tape.tape import Tape


class Scope:
    """Which tape records, whether it does, and whose it is. Never changed, only replaced.

    bindings: within the body of a function of functions, the values that stand for the Tensors from outside.
    execution: None, or how ops run if not deferred and fused: one by one, and what they keep may be packed.
    entry, outer: the `with` block that made it, if one did, and the scope around that.
    """

    __slots__ = ("bindings", "enabled", "entry", "execution", "outer", "special", "tape", "task", "thread")

    entry: Entry | None
    outer: Scope | None

    def __init__(
        self, tape: Tape, enabled: bool, owner: tuple[object, Any], bindings: Any = None, execution: Any = None
    ):
        self.tape = tape
        self.enabled = enabled
        self.thread, self.task = owner
        self.bindings = bindings
        self.execution = execution
        self.special = (
            bindings is not None or execution is not None or tape.detail != "ops"
        )  # ops are not just deferred
        self.entry = self.outer = None


scope_variable: ContextVar[Scope | None] = ContextVar("tapejax_scope", default=None)
get_scope = scope_variable.get
set_scope = scope_variable.set


class _Thread(local):
    """A token per thread. An ident would not do: the next thread may get the same one."""

    def __init__(self) -> None:
        self.token = object()


this_thread = _Thread()


def ambient_tape(label: str) -> Tape:
    """A tape for where nobody opened one."""
    return _ambient[0](label=label)


_ambient: list[Callable[..., Tape]] = []  # the class of such tapes: tape.py puts it here


def install_ambient(made: Callable[..., Tape]) -> None:
    _ambient[:] = [made]


def whoami() -> tuple[object, Any]:
    """The current thread and asyncio task (None outside of one); a task is named by a weak reference."""
    task = None if running_loop() is None else current_task()
    return this_thread.token, None if task is None else ref(task)


def _my_name() -> str:
    """The current task, or else thread, by the name that Python and people know it under."""
    task = None if running_loop() is None else current_task()
    return f"thread {current_thread().name!r}" if task is None else f"task {task.get_name()!r}"


def current_scope() -> Scope:
    """The scope of this thread and task, made now if there is none or only somebody else's copy."""
    scope = get_scope()
    if scope is not None and scope.thread is this_thread.token:
        if scope.task is None:
            if running_loop() is None or current_task() is None:
                return scope
        elif running_loop() is not None and scope.task() is current_task():
            return scope
    if scope is not None and scope.thread is None:  # its block was left elsewhere
        restore(scope)
        return current_scope()
    enabled = scope is None or scope.enabled
    execution = None if scope is None else scope.execution
    scope = Scope(ambient_tape(f"the ambient tape of {_my_name()}"), enabled, whoami(), execution=execution)
    scope_variable.set(scope)
    return scope


# --- entering and leaving ------------------------------------------------------------------------
#
# `with` blocks of generators may be left in another order than they were entered, and elsewhere: each takes
# back its own effect only. So a scope knows the blocks that made it, and is made again without those left.


class Entry:
    """One entering of a `with` block: `block.within(outer)` is the scope within it."""

    __slots__ = ("block", "left", "scope")

    def __init__(self, block: Any):
        self.block = block
        self.left = False
        self.scope: Scope | None = None

    def over(self, outer: Scope) -> Scope:
        """The scope that it makes of another one."""
        scope = self.block.within(outer)
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


class Entered:
    """What is entered and left by `with`, as often as one likes: see `enter` and `leave`."""

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
