"""Regions: a name for all that is recorded within a `with` block.

What is recorded knows nothing of it. A region notes the numbers that identities had when it was entered and left, and
an action belongs to it if its own number lies between. While jax traces a function, the name goes into the equations.
"""

from __future__ import annotations

import functools
import re
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from threading import get_ident
from typing import Any, TypeVar

import jax

from tapejax.errors import ArgumentError
from tapejax.ground import compat
from tapejax.tape.action import next_number
from tapejax.tape.tape import current_tape

F = TypeVar("F", bound=Callable[..., Any])
MAX_REGIONS = 65536


class Interval:
    """One entering of a region: the numbers between."""

    __slots__ = ("epoch", "first", "last", "name", "scope", "thread")

    def __init__(self, name: str):
        self.name, self.first, self.last = name, next_number(), 0
        self.epoch, self.thread = current_tape().epoch, get_ident()
        self.scope: Any = None

    def holds(self, number: int, epoch: Any) -> bool:
        if number < self.first or (self.last and number > self.last):
            return False
        if epoch is None or epoch is self.epoch or epoch.current() is self.epoch.current():
            return True
        # A tape that was opened, or began anew, within the region.
        return epoch.thread == self.thread and epoch.start >= self.first


_noted: deque[Interval] = deque(maxlen=MAX_REGIONS)
_open: ContextVar[tuple[Interval, ...]] = ContextVar("regions", default=())


class region:
    """What is recorded within belongs to a region of this name: for hooks, and for looking at a tape. Also a decorator.

    Regions may be nested, and entered as often as one likes. In a function that jax traces, it is a jax.named_scope.

    >>> import tapejax as tj
    >>> x = tj.tensor(2.0, requires_grad=True)
    >>> with tj.Tape() as tape:
    ...     with tj.region("block1"):
    ...         y = x * x
    ...     z = y + 1
    >>> [tj.regions_of(action) for action in tape]
    [('block1',), ()]
    """

    __slots__ = ("_entered", "name")

    def __init__(self, name: str):
        if not isinstance(name, str) or not name or re.search(r"[/()]", name):
            raise ArgumentError(f"{name!r} is no name of a region", fix="a string without slashes and parentheses")
        self.name = name
        self._entered: list[Interval] = []

    def __enter__(self) -> region:
        entered = Interval(self.name)
        if compat.is_tracing():
            entered.scope = jax.named_scope(self.name)
            entered.scope.__enter__()
        self._entered.append(entered)
        _noted.append(entered)
        _open.set((*_open.get(), entered))
        return self

    def __exit__(self, *exc_info: Any) -> None:
        left = self._entered.pop()
        left.last = next_number()
        _open.set(tuple([one for one in _open.get() if one is not left]))
        if left.scope is not None:
            left.scope.__exit__(*exc_info)
            left.scope = None

    def __call__(self, function: F) -> F:
        name = self.name

        @functools.wraps(function)
        def called(*args, **kwargs):
            with region(name):
                return function(*args, **kwargs)

        return called  # type: ignore[return-value]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, region) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"region({self.name!r})"


def open_regions() -> tuple[str, ...]:
    """The regions that are open here, the outermost first."""
    return tuple([interval.name for interval in _open.get()])


def regions_of(action: Any) -> tuple[str, ...]:
    """The regions that an action was recorded in, the outermost first.

    >>> import tapejax as tj
    >>> with tj.Tape() as tape, tj.region("encoder"), tj.region("norm"):
    ...     y = tj.tensor(2.0, requires_grad=True) * 3
    >>> tj.regions_of(tape[0])
    ('encoder', 'norm')
    """
    return Regions([action]).of(action)


class Regions:
    """The regions of some actions of a tape."""

    def __init__(self, actions: Iterable[Any]):
        numbers = [number for number in map(number_of, actions) if number]
        least, most = (min(numbers), max(numbers)) if numbers else (0, 0)
        self.noted = [one for one in tuple(_noted) if one.first <= most and (not one.last or one.last >= least)]

    def of(self, action: Any) -> tuple[str, ...]:
        number, epoch = number_of(action), getattr(action, "epoch", None)
        around = [one.name for one in self.noted if one.holds(number, epoch)] if number else []
        return (*around, *regions_of_place(getattr(action, "where", None)))


def number_of(action: Any) -> int:
    """The number of the first identity that an action made; 0 if it does not tell."""
    outputs = action.outputs
    return outputs[0].number if outputs else 0


def regions_of_place(place: Any) -> tuple[str, ...]:
    """The regions around an equation of a program that was opened."""
    found: list[str] = []
    while getattr(place, "eqn", None) is not None:
        found[:0] = names_around(place.eqn)
        place = place.outer
    return tuple(found)


def names_around(eqn: Any) -> list[str]:
    """The names of the scopes that an equation was traced in, the outermost first."""
    return [name for source in reversed(eqn.sources) for name in scopes_of(source)]


def scopes_of(source: Any) -> list[str]:
    """The names in a stack of jax's: `vmap(block)/inner` has two."""
    stack = str(getattr(source, "name_stack", ""))
    return [name for name in re.findall(r"[^/()]+(?=[/)]|$)", stack) if name]
