"""Every cache of the package: what it holds, how much it may hold, and how it is emptied.

A cache that is made elsewhere grows without anybody's knowledge, so all are made here: a test looks for others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Cache(NamedTuple):
    """bound: the most that `size` can be."""

    name: str
    bound: int
    size: Callable[[], int]
    clear: Callable[[], None]


_caches: list[Cache] = []


def register(name: str, bound: int, size: Callable[[], int], clear: Callable[[], None]) -> None:
    """Make a cache known that keeps to its bound by itself."""
    _caches.append(Cache(name, bound, size, clear))


def caches() -> list[Cache]:
    return list(_caches)


def clear_caches() -> None:
    """Empty them all; what they held is made again when it is needed."""
    for cache in _caches:
        cache.clear()


class Table(OrderedDict[Any, Any]):
    """A table that lets its oldest entries go. Read it as any dict; `keep` puts something in."""

    def __init__(self, bound: int) -> None:
        super().__init__()
        self.bound = bound

    def keep(self, key: Any, value: Any) -> Any:
        """What is there under a key from now on: the value, or what another thread has put there first."""
        found = self.setdefault(key, value)
        while len(self) > self.bound:
            try:
                self.popitem(last=False)
            except KeyError:  # another thread does the same
                break
        return found


def table(name: str, bound: int) -> Table:
    """A table that is known here."""
    made = Table(bound)
    register(name, bound, made.__len__, made.clear)
    return made


def cached(bound: int, *, typed: bool = False) -> Callable[[F], F]:
    """A function whose results are kept, by its arguments; the ones not used for longest go first."""

    def keeping(function: F) -> F:
        made: Any = lru_cache(maxsize=bound, typed=typed)(function)
        name = f"{function.__module__}.{function.__qualname__}"
        register(name, bound, lambda: made.cache_info().currsize, made.cache_clear)
        return made

    return keeping
