"""Packed: what a saved-tensor hook made of a value that an action keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Packed:
    """A handle that the hook's pack returned, and its unpack."""

    __slots__ = ("handle", "unpack")

    def __init__(self, handle: Any, unpack: Callable[[Any], Any]):
        self.handle, self.unpack = handle, unpack

    def force(self) -> Any:
        """The value again; it is not kept here, so that it goes as soon as it is used."""
        return self.unpack(self.handle)


def force(value: Any) -> Any:
    return value.force() if isinstance(value, Packed) else value
