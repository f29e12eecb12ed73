"""Whether ops are deferred and run together."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

from tapejax.errors import ArgumentError
from tapejax.ground.where import user_line


class Fusion:
    """Whether ops are deferred and fused. Without, each runs by itself, at once.

    `with tapejax.fusion(False):` holds inside of the block, in this task or thread and in the tasks that it starts.
    `tapejax.fusion.enabled = False` holds wherever no such block does. Blocks may be left in any order.

    Where several processes run together (jax.distributed), all must run the same programs: which ones must follow
    from the calls alone, never from what a process holds or looks at. So there it is disabled, unless
    `tapejax.fusion.enabled = True` says otherwise.

    >>> import tapejax as tj
    >>> with tj.fusion(False):
    ...     print(tj.fusion.enabled)
    False
    >>> tj.fusion.enabled
    True
    """

    __slots__ = ("_blocks", "_default", "_lock", "_open", "_said", "everywhere")

    def __init__(self) -> None:
        self._blocks: ContextVar[tuple[list[bool], ...]] = ContextVar("fusion", default=())  # each with its setting
        self._open = 0  # how many there are, in all tasks and threads
        self._lock = threading.RLock()  # a signal handler may come in between
        self._said = "TAPEJAX_FUSION" in os.environ  # whether somebody has said what is wanted
        self._default = os.environ.get("TAPEJAX_FUSION", "1") != "0"
        self.opened(0)

    def follow_processes(self) -> None:
        """Look once how many processes there are: when the first op is made, jax has started."""
        if not self._said:
            self.enabled = jax.process_count() == 1

    @property
    def enabled(self) -> bool:
        blocks = self._blocks.get()
        return blocks[-1][0] if blocks else self._default

    @enabled.setter
    def enabled(self, enabled: bool) -> None:
        self._default, self._said = bool(enabled), True
        self.opened(0)

    def opened(self, more: int) -> None:
        with self._lock:
            self._open += more
            # Read at every op: enabled, and no block anywhere says otherwise.
            self.everywhere = self._default and not self._open

    @contextmanager
    def __call__(self, enabled: bool) -> Iterator[None]:
        if not isinstance(enabled, bool):
            raise ArgumentError(f"fusion({enabled!r})", at=user_line(), fix="with tapejax.fusion(False):")
        block = [enabled]
        self.opened(1)
        try:
            self._blocks.set((*self._blocks.get(), block))
            yield
        finally:
            self._blocks.set(tuple([other for other in self._blocks.get() if other is not block]))
            self.opened(-1)

    def __repr__(self) -> str:
        return f"<fusion, {'enabled' if self.enabled else 'disabled'}>"


fusion = Fusion()
