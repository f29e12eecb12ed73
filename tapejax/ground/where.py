"""The user's own line: what every error and every action can name."""

from __future__ import annotations

import os
import sys
from sys import _getframe
from typing import Any

import jax
import numpy as np
from jax.extend import source_info_util


def folder_of(file: Any) -> str:
    return os.path.dirname(os.path.abspath(str(file))) + os.sep


OURS = os.path.dirname(os.path.dirname(folder_of(__file__))) + os.sep  # all of tapejax
_PLUGIN = OURS.rstrip(os.sep).removesuffix("tapejax") + "pytest_tapejax" + os.sep  # beside it
_PACKAGES = (OURS, _PLUGIN, folder_of(jax.__file__), folder_of(np.__file__))
source_info_util.register_exclusion(OURS)  # so that the lines jax keeps are the user's too


def is_internal(filename: str) -> bool:
    """Whether a file belongs to tapejax, jax or numpy (their frames are skipped when naming a line)."""
    return filename.startswith(_PACKAGES)


class _Internal(dict):
    """`is_internal` by file name, whose hash is kept; hashing a code object is slow."""

    def __missing__(self, filename: str) -> bool:
        found = self[filename] = is_internal(filename)
        return found


INTERNAL = _Internal()
is_own = INTERNAL.__getitem__  # whether a file is one of those, quickly


def user_frame(depth: int = 1) -> tuple[Any, int] | None:
    """(code, instruction offset) of the innermost frame outside of tapejax; cheap to keep."""
    frame: Any = _getframe(depth)
    code = frame.f_code
    while INTERNAL[code.co_filename]:
        frame = frame.f_back
        if frame is None:
            return None
        code = frame.f_code
    return code, frame.f_lasti


def line_of(where: tuple[Any, int] | None) -> str:
    """`file:line` of what `user_frame` returned."""
    if where is None:
        return ""
    code, offset = where
    lines = [line for start, stop, line in code.co_lines() if start <= offset < stop and line is not None]
    return f"{shown(code.co_filename)}:{lines[-1] if lines else code.co_firstlineno}"


def shown(filename: str) -> str:
    """The file's name; for a cell of a notebook, whose file is a temporary one, the cell's: `In[3]`."""
    if "IPython" in sys.modules:
        shell = sys.modules["IPython"].get_ipython()
        name = shell and shell.compile.format_code_name(filename)
        if name:
            return name[1]
    return filename


def is_of_jax(function: Any) -> bool:
    """Whether it is one of jax's own, or one that we wrote around these."""
    while (inner := getattr(function, "__wrapped__", None) or getattr(function, "func", None)) is not None:
        function = inner
    module = getattr(function, "__module__", None) or type(function).__module__
    return module.split(".")[0] in ("jax", "jaxlib", "numpy", "tapejax")


def user_line() -> str:
    return line_of(user_frame(2))
