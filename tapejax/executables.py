"""Compiled programs, and a bound on what they hold.

XLA keeps about 1.6 MB for a program on a CPU, however small it is (measured: 100 jitted functions of an 8x8
array). So the programs that were not used for longest are let go when there are too many. One that is asked for
again is compiled again, and the bound grows by it: what is used in turns fits sooner or later, and nothing is
compiled over and over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any
from weakref import ref

import jax

from tapejax import compat

PROGRAM_BYTES = 1_600_000
START_BYTES = 128 << 20


class Executable:
    """A function of arrays, jitted when it is called first. What was compiled may be let go at any time."""

    __slots__ = ("__weakref__", "_dropped", "_function", "_jitted", "_name")

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function, self._name = function, name
        self._jitted: Any = None
        self._dropped = False

    def __call__(self, *args: Any) -> Any:
        jitted = self._jitted
        if jitted is None:
            jitted = self._jitted = self._new()
            shelf.add(self, again=self._dropped)
        else:
            shelf.used(self)
        return jitted(*args)

    def _new(self) -> Any:
        # A function of its own each time: jax keeps what it compiled for as long as the function lives.
        function = self._function
        named = lambda *args: function(*args)
        named.__name__ = named.__qualname__ = self._name  # what profilers and XLA dumps show
        return jax.jit(named, inline=compat.INLINE)

    def drop(self) -> None:
        """Let go of what was compiled. A call that is under way still has it."""
        self._jitted, self._dropped = None, True


class Shelf:
    """The executables that are compiled, the one used last at the end."""

    def __init__(self) -> None:
        self.limit = START_BYTES
        self._order: OrderedDict[int, Any] = OrderedDict()  # by id(): a weak reference

    def add(self, one: Executable, *, again: bool) -> None:
        if again:
            self.limit += PROGRAM_BYTES
        key = id(one)
        self._order[key] = ref(one, lambda _: self._order.pop(key, None))
        while self.bytes > self.limit:
            try:
                _, oldest = self._order.popitem(last=False)
            except KeyError:  # another thread did it
                return
            found = oldest()
            if found is not None:
                found.drop()

    def used(self, one: Executable) -> None:
        try:
            self._order.move_to_end(id(one))
        except KeyError:  # another thread has just let it go
            return

    @property
    def bytes(self) -> int:
        """What the compiled programs hold, by estimate."""
        return len(self._order) * PROGRAM_BYTES

    def clear(self) -> None:
        for one in [found for reference in list(self._order.values()) if (found := reference()) is not None]:
            one.drop()
            one._dropped = False  # it was asked for: no reason to hold more
        self._order.clear()
        self.limit = START_BYTES


shelf = Shelf()
