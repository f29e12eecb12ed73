"""Lazy: a value that has yet to be computed."""

from __future__ import annotations

from typing import Any


class Lazy:
    """A result of a call that a block has noted; it has a value when `block` is None."""

    __slots__ = ("block", "value")

    def __init__(self, block: Any):
        self.block = block
        self.value: Any = None

    def force(self) -> Any:
        """The value; computes it, with whatever else its block has noted, if need be."""
        block = self.block
        if block is not None:
            block.flush()
        return self.value


def force(value: Any) -> Any:
    return value.force() if type(value) is Lazy else value
