"""Lazy: a value that has yet to be computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Lazy:
    """A result of a call that a block has noted, in a numbered slot; it has a value when `block` is None."""

    __slots__ = ("block", "slot", "value")

    def __init__(self, block: Any, slot: int = 0):
        self.block = block
        self.slot = slot

    def force(self) -> Any:
        """The value; computes it, with whatever else its block has noted, if need be."""
        block = self.block
        if block is not None:
            block.flush()
        return self.value


class Packed(Lazy):
    """What a saved-tensor hook made of a value that an action keeps."""

    __slots__ = ("handle", "unpack")

    def __init__(self, handle: Any, unpack: Callable[[Any], Any]):
        super().__init__(None)
        self.handle, self.unpack = handle, unpack

    def force(self) -> Any:
        """The value again; it is not kept here, so that it goes as soon as it is used."""
        return self.unpack(self.handle)


def force(value: Any) -> Any:
    return value.force() if isinstance(value, Lazy) else value
