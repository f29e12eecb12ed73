"""Compiled programs, and a bound on what they hold.

XLA keeps about 1.6 MB for a program on a CPU, however small it is (measured: 100 jitted functions of an 8x8
array). So the programs that were not used for longest are let go when there are too many. One that is asked for
again is compiled again, and the bound grows by it: what is used in turns fits sooner or later, and nothing is
compiled over and over.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any
from weakref import ref

import jax

from tapejax.ground import compat
from tapejax.ground.caches import register
from tapejax.ground.placement import bounds_programs_in_flight
from tapejax.ground.where import user_line
from tapejax.plan.tiers import Quick, Tiers

next_use: Callable[[], int] = itertools.count(1).__next__
PROGRAM_BYTES = 1_600_000
START_BYTES = 128 << 20
MOST_BYTES = 16 * START_BYTES  # however often programs have to be compiled again
MAX_LAYOUTS = 16  # ways in which the results of one program are laid out over devices
IN_FLIGHT = 16  # programs that Python starts before it waits for one, where that has to be bounded
NAMED = 4  # calls in the name of a program
STALL = 1.0  # seconds that need a word
log = logging.getLogger("tapejax")


class Executable:
    """A function of arrays, jitted when it is called first. What was compiled may be let go at any time.

    describe: gives the names of the calls in it, and why they were compiled together; None for a single op.
    tiers: when it is compiled quickly first; None: never.
    """

    __slots__ = (
        "__weakref__", "_dropped", "_function", "_laid_out", "_out_shardings", "describe", "jitted", "last_use", "name", "seconds", "tiers",
    )  # fmt: skip

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        describe: Callable[[], Any] | None = None,
        out_shardings: Any = None,
        tiers: Tiers | None = None,
    ) -> None:
        self._function, self.name, self.describe = function, name, describe
        self._out_shardings, self.tiers = out_shardings, tiers
        self._laid_out: dict[Any, Executable] = {}  # the same with results that are laid out, by their shardings
        self.jitted: Any = None
        self._dropped = False
        self.last_use = 0
        self.seconds = 0.0  # what its first calls took: to trace, to compile, to start

    @property
    def is_compiled(self) -> bool:
        return self.jitted is not None or any([one.is_compiled for one in self._laid_out.values()])

    @property
    def is_quick(self) -> bool:
        """Whether it was compiled quickly, and will be compiled well when it has come often."""
        return type(self.jitted) is Quick

    def laid_out(self, shardings: Any, of_results: Callable[[Any], Any] = tuple) -> Executable:
        """The same function, whose results have these shardings (None: no matter which).

        of_results: from a tuple of them to the structure of its results.
        """
        found = self._laid_out.get(shardings)
        if found is None:
            if len(self._laid_out) >= MAX_LAYOUTS:
                self._laid_out.clear()
            found = Executable(self._function, self.name, self.describe, of_results(shardings), self.tiers)
            self._laid_out[shardings] = found
        return found

    def __call__(self, *args: Any) -> Any:
        jitted = self.jitted
        if jitted is None:
            return self._first(args)
        self.last_use = use = next_use()
        try:
            results = jitted(*args)
        except RecursionError:  # asked for while it is compiled, by a signal handler or a debugger: jax refuses that
            results = self._new()(*args)  # one of its own. A stack that is really too deep raises again.
        if not use % IN_FLIGHT and bounds_programs_in_flight():
            jax.block_until_ready(results)
        return results

    def _first(self, args: Sequence[Any]) -> Any:
        jitted, begin = self._new(), perf_counter()
        self.jitted = jitted  # also if it raises: it may be compiled by then
        shelf.add(self, again=self._dropped)
        results = jitted(*args)
        self.seconds += perf_counter() - begin
        shelf.tell_of(self)
        return results

    @property
    def full_name(self) -> str:
        """What profilers and XLA dumps show: what it does, and of what."""
        if self.describe is None:
            return self.name
        calls = self.describe()[0]
        few = calls if len(calls) <= NAMED else [*calls[: NAMED - 1], f"{len(calls) - NAMED + 1}_more"]
        return "_".join([self.name, "of", *few])

    def _new(self) -> Any:
        # A function of its own each time: jax keeps what it compiled for as long as the function lives.
        function = self._function
        named = lambda *args: function(*args)
        named.__name__ = named.__qualname__ = self.full_name
        options = {"inline": compat.INLINE}
        if self._out_shardings is not None:
            options["out_shardings"] = self._out_shardings
        return self.tiers.jit(named, self._replace, **options) if self.tiers else jax.jit(named, **options)

    def _replace(self, quick: Any, well: Any) -> None:
        """It has come often: from now on it runs by what was compiled well."""
        if self.jitted is quick:
            self.jitted = well

    def drop(self) -> None:
        """Let go of what was compiled. A call that is under way still has it."""
        self.jitted, self._dropped = None, True


class Shelf:
    """The executables that are compiled."""

    def __init__(self) -> None:
        self.limit = START_BYTES
        self._all: dict[int, Any] = {}  # by id(): a weak reference
        self._has_told = False

    def add(self, one: Executable, *, again: bool) -> None:
        if again:
            self.limit = min(self.limit + PROGRAM_BYTES, MOST_BYTES)
        key = id(one)
        self._all[key] = ref(one, lambda _: self._all.pop(key, None))
        one.last_use = next_use()
        if self.bytes > self.limit:
            self._let_go(self.bytes - self.limit)

    def _let_go(self, bytes: int) -> None:
        """Of those not used for longest, as many as hold this much."""
        oldest = sorted(self.there(), key=lambda one: one.last_use)
        for one in oldest[: -(-bytes // PROGRAM_BYTES)]:
            self._all.pop(id(one), None)
            one.drop()

    def tell_of(self, one: Executable) -> None:
        """Say once that compiling takes long, and what can be done."""
        if one.seconds < STALL or self._has_told:
            return
        self._has_told = True
        calls = one.describe()[0] if one.describe else [one.name]
        shown = ", ".join(calls[:4]) + (", ..." if len(calls) > 4 else "")
        at = user_line()
        log.warning(
            "compiling %d call%s (%s) took %.1f s%s. It is done once for each new shape and structure: pad to a few "
            "shapes, or use jax's compilation cache. tapejax.programs() lists what was compiled. (Said once.)",
            len(calls), "s" * (len(calls) != 1), shown, one.seconds, f", at {at}" * bool(at),
        )  # fmt: skip

    def there(self) -> list[Executable]:
        return [one for reference in list(self._all.values()) if (one := reference()) is not None]

    @property
    def bytes(self) -> int:
        """What the compiled programs hold, by estimate."""
        return len(self._all) * PROGRAM_BYTES

    def clear(self) -> None:
        for one in self.there():
            one.drop()
            one._dropped = False  # it was asked for: no reason to hold more
        self._all.clear()
        self.limit = START_BYTES


shelf = Shelf()
register("compiled programs, bytes", MOST_BYTES, lambda: shelf.bytes, shelf.clear)
