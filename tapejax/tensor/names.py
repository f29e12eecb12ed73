"""What the user calls their tensors: found in the variables of whoever asks for a cursor or a view."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from tapejax.ground.where import is_internal
from tapejax.tensor.tensor import Tensor

LOOKS = 20_000  # containers may be large; a view needs a few names


def names_around() -> dict[int, str]:
    """Names by tensor number, from the user's frames, or from the notebook when that displays something."""
    scopes: list[Mapping[str, Any]] = []
    shell = notebook()
    frame = sys._getframe(1)
    while frame is not None:
        if not is_internal(frame.f_code.co_filename):
            displays = "/IPython/" in frame.f_code.co_filename.replace("\\", "/")
            if not displays:
                scopes += [frame.f_locals] if frame.f_locals is frame.f_globals else [frame.f_locals, frame.f_globals]
            break
        frame = frame.f_back
    if shell is not None:
        scopes.append(shell.user_ns)
    found: dict[int, str] = {}
    for scope in scopes:
        for number, name in names_in(scope).items():
            found.setdefault(number, name)
    return found


def names_in(scope: Mapping[str, Any]) -> dict[int, str]:
    """Names of the tensors in some variables, in lists, tuples and dicts too: `w`, `layers[0]['w']`."""
    found: dict[int, str] = {}
    left = LOOKS

    def look(name: str, value: Any, depth: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            return
        if isinstance(value, Tensor):
            found.setdefault(value.id.number, name)
        elif depth and isinstance(value, (list, tuple)):
            fields = getattr(value, "_fields", None)
            for i, item in enumerate(value):
                look(f"{name}.{fields[i]}" if fields else f"{name}[{i}]", item, depth - 1)
        elif depth and isinstance(value, dict):
            for key, item in value.items():
                look(f"{name}[{key!r}]" if not _plain(key) else f"{name}.{key}", item, depth - 1)

    for depth in (0, 3):  # a variable of its own is a better name than a place in a list
        for name, value in list(scope.items()):
            if not name.startswith("_") and name not in ("In", "Out"):
                look(name, value, depth)
    return found


def _plain(key: Any) -> bool:
    return isinstance(key, str) and key.isidentifier()


def notebook() -> Any:
    """IPython's shell if it has a kernel behind it (a notebook), else None."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None
