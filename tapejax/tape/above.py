"""What people call on a tape or a Tensor, and what layers above it do: they are installed here, by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Above:
    """Functions of layers above, imported when they are first asked for. `install(backward="tapejax.engine.backward")`."""

    def __init__(self) -> None:
        self._homes: dict[str, str] = {}

    def install(self, **homes: str) -> None:
        """Say in which module each function is."""
        self._homes.update(homes)

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__.get("_homes", ()):
            raise AttributeError(f"nothing was installed as {name!r}")
        found = self.__dict__[name] = getattr(import_module(self._homes[name]), name)
        return found


above = Above()
