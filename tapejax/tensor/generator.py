"""The generator that hands out random keys: one stream per thread and task, none a copy of another."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import get_opaque_trace_state

from tapejax.errors import ArgumentError, RandomStateError
from tapejax.ground.where import user_line
from tapejax.tape.scope import whoami

Tracer = jax.core.Tracer
IMPLEMENTATIONS = ("threefry2x32", "rbg", "unsafe_rbg")
log = logging.getLogger("tapejax")


_lock = threading.Lock()
_main: Stream | None = None  # the main thread's: threads that inherit no context branch off here


class Stream:
    """A root key, and how many keys were drawn from it."""

    __slots__ = ("children", "count", "owner", "root")

    def __init__(self, root: Any, count: int = 0, children: int = 0):
        self.root, self.count, self.children, self.owner = root, count, children, whoami()

    def draw(self) -> Any:
        key = self._key()
        if isinstance(key, Tracer) and _trace_of_one_call.get() == get_opaque_trace_state():
            with jax.ensure_compile_time_eval():
                key = self._key()
        if isinstance(key, Tracer):
            raise RandomStateError(
                "the random generator was used under jax.jit, where its key would be the same in every run",
                at=user_line(),
                fix="draw the key outside, tapejax.random.next_key(), and pass it in as an argument",
            )
        self.count += 1
        return key

    def _key(self) -> Any:
        return jax.random.fold_in(jax.random.fold_in(self.root, 0), self.count)

    def child(self) -> Stream:
        """A stream that shares no key with this one, nor with its other children."""
        with _lock:
            number = self.children
            self.children += 1
        with jax.ensure_compile_time_eval():
            return Stream(jax.random.fold_in(jax.random.fold_in(self.root, 1), number))


_stream: ContextVar[Stream | None] = ContextVar("tapejax_random", default=None)
_trace_of_one_call: ContextVar[Any] = ContextVar("tapejax_trace_of_one_call", default=None)


def _started(number: int) -> Stream:
    with jax.ensure_compile_time_eval():
        return Stream(jax.random.key(number))


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread() and whoami()[1] is None


def _main_stream() -> Stream:
    global _main
    with _lock:
        if _main is None:
            _main = _started(_first_seed())
        return _main


def _first_seed() -> int:
    """Any number; where several processes run together, one that is the same in all of them without asking."""
    if jax.process_count() == 1:
        return secrets.randbits(31)
    log.warning("several processes draw random numbers without a seed: all of them start with tapejax.random.seed(0)")
    return 0


def current() -> Stream:
    """The stream of this thread and task: its own, or a new child of the one it found there."""
    stream = _stream.get()
    if stream is not None and stream.owner == whoami():
        return stream
    if stream is None and _is_main():
        stream = _main_stream()
        stream.owner = whoami()
    else:
        stream = (stream or _main_stream()).child()
    _stream.set(stream)
    return stream


def seed(number: int) -> None:
    """Start this context's stream of random keys anew.

    >>> import tapejax as tj
    >>> tj.random.seed(0)
    >>> first = tj.random.normal()
    >>> tj.random.seed(0)
    >>> bool(first == tj.random.normal())
    True
    """
    global _main
    if not isinstance(number, (int, np.integer)):
        raise ArgumentError(
            f"a seed is an integer, not {type(number).__name__}", at=user_line(), fix="tapejax.random.seed(0)"
        )
    stream = _started(int(number))
    _stream.set(stream)
    if _is_main():
        with _lock:
            _main = stream


def next_key() -> Any:
    """A new key from this context's stream; draw it outside of a jitted function and pass it in.

    >>> import jax, tapejax as tj
    >>> jax.jit(lambda key: jax.random.normal(key, (2,)))(tj.random.next_key()).shape
    (2,)
    """
    return current().draw()


def get_state() -> tuple[int, tuple[int, ...], int]:
    """The state of this context's stream: integers, to be kept or written to a file, by Orbax too.

    Which of IMPLEMENTATIONS draws, the words of the root key, and how many keys were drawn.

    >>> import tapejax as tj
    >>> tj.random.seed(0)
    >>> implementation, words, drawn = tj.random.get_state()
    >>> words, drawn
    ((0, 0), 0)
    """
    stream = current()
    words = np.asarray(jax.random.key_data(stream.root))
    name = str(jax.random.key_impl(stream.root))
    if name not in IMPLEMENTATIONS:
        raise RandomStateError(
            f"the state of a generator of kind {name!r} cannot be written",
            at=user_line(),
            fix=f"use one of jax's own kinds: {', '.join(IMPLEMENTATIONS)}",
        )
    return IMPLEMENTATIONS.index(name), tuple(int(word) for word in words), stream.count


def set_state(state: Any) -> None:
    """Go on from a state that get_state gave.

    >>> import tapejax as tj
    >>> state = tj.random.get_state()
    >>> first = tj.random.normal()
    >>> tj.random.set_state(state)
    >>> bool(first == tj.random.normal())
    True
    """
    try:
        number, words, count = state
        impl = IMPLEMENTATIONS[int(number)]
        root = jax.random.wrap_key_data(jnp.asarray([int(word) for word in words], jnp.uint32), impl=impl)
        _stream.set(Stream(root, int(count)))
    except (TypeError, ValueError, IndexError) as cause:
        raise RandomStateError(
            "this is not a state of the random generator", at=user_line(), fix="set_state takes what get_state returned"
        ) from cause


@contextmanager
def traced_for_one_call() -> Iterator[None]:
    """Within it keys may be drawn, for what is being traced is traced anew at every call (loops inside it are not)."""
    token = _trace_of_one_call.set(get_opaque_trace_state())
    try:
        yield
    finally:
        _trace_of_one_call.reset(token)


Place = tuple[Any, int, int]


def place() -> tuple[Place, Place | None]:
    """Where this context's stream is, and the one that threads without a context branch off (None: the same)."""
    stream, main = current(), _main
    here = (stream.root, stream.count, stream.children)
    return here, None if main is None or main is stream else (main.root, main.count, main.children)


def rewind(places: tuple[Place, Place | None]) -> None:
    """Go on from an earlier place, as if nothing had been drawn since."""
    stream = current()
    stream.root, stream.count, stream.children = places[0]


@contextmanager
def replaying(places: tuple[Place, Place | None], *, threads: bool = False) -> Iterator[None]:
    """Draw again from an earlier place; afterwards every stream goes on where it was.

    threads: new threads branch off at the earlier place too. Nothing tells whose threads they are, so one
    that somebody else starts meanwhile does as well.
    """
    global _main
    here, main = places
    outer, outer_main = current(), _main
    replayed = Stream(*here)
    branched = replayed if main is None else Stream(*main)
    _stream.set(replayed)
    if threads:
        with _lock:
            _main = branched
    try:
        yield
    finally:
        _stream.set(outer)
        with _lock:
            if _main is branched or _is_main():  # the main thread may have called seed()
                _main = outer_main


def is_key(value: Any) -> bool:
    """A typed key, or the words of one (any uint32 array with dimensions counts as that)."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return False
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key)) or (dtype == np.uint32 and value.ndim > 0)
