"""Whether a function of Python's `math` is being called: it takes a number, and gives back one that no tape knows."""

from __future__ import annotations

import ast
import linecache
import math
from itertools import islice
from types import CodeType, FrameType, ModuleType
from typing import Any

from tapejax.ground.caches import cached

# What people compute with; isnan, floor and the like only look. Then what to write instead.
_OTHER_NAMES = {"erf": "erf", "erfc": "erfc", "gamma": "gamma", "lgamma": "gammaln"}
_NAMES = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cos", "cosh", "exp", "exp2", "expm1", "fabs", "hypot",
    "log", "log10", "log1p", "log2", "pow", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
_INSTEAD = {getattr(math, name): f"tapejax.numpy.{name}" for name in _NAMES} | {
    getattr(math, name): f"tapejax.scipy.special.{new}" for name, new in _OTHER_NAMES.items()
}

_KNOWN = {function.__name__ for function in _INSTEAD}


def called_by(frame: FrameType) -> tuple[str, str] | None:
    """The function of math that a frame is calling right now, and ours; None if it calls another, or has no source."""
    path = _callee(frame.f_code, frame.f_lasti)
    found = _value(frame, path) if path else None
    instead = _INSTEAD.get(found) if callable(found) and getattr(found, "__module__", None) == "math" else None
    return None if instead is None else (f"math.{found.__name__}", instead)


@cached(256)
def _callee(code: CodeType, offset: int) -> tuple[str, ...] | None:
    """The dotted name in front of the parentheses, of the call that stands at an instruction."""
    first, last, start, stop = next(islice(code.co_positions(), offset // 2, None))
    if first is None or first != last or start is None or stop is None:
        return None
    text = linecache.getline(code.co_filename, first).encode()[start:stop].decode()
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:  # not an expression by itself, or the file is another one by now
        return None
    names, part = [], call.func if isinstance(call, ast.Call) else None
    while isinstance(part, ast.Attribute):
        names.append(part.attr)
        part = part.value
    return (part.id, *reversed(names)) if isinstance(part, ast.Name) else None


def _value(frame: FrameType, path: tuple[str, ...]) -> Any:
    name, *attributes = path
    code = frame.f_code
    if name in code.co_varnames + code.co_cellvars + code.co_freevars:
        # f_locals is a copy that stays with the frame, and holds what is deleted later: only for a name that can be meant.
        found = frame.f_locals.get(name) if path[-1] in _KNOWN else None
    else:
        found = frame.f_globals.get(name)
    for attribute in attributes:
        if not isinstance(found, ModuleType):  # an object's attribute may run code
            return None
        found = getattr(found, attribute, None)
    return found
