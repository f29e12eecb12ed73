"""Why a second run differs from the first: which name changed, which op was the first to differ, on which line."""

from __future__ import annotations

import dis
import functools
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from tapejax.checkpointing.digest import same
from tapejax.checkpointing.run import Trail
from tapejax.ground.caches import cached
from tapejax.ground.where import shown
from tapejax.plan.plan import Plan
from tapejax.tensor.tensor import Tensor

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SKIPPED = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)


class Surroundings:
    """The values that a function reads by name, from its closure and its module, as they are now."""

    __slots__ = ("looks",)

    def __init__(self, function: Callable[..., Any]):
        parts = [_python(part) for part in getattr(function, "parts", (function,))]
        self.looks = [(part, {name: look(value) for name, value in _read(part)}) for part in parts if part is not None]

    def changed(self) -> list[tuple[str, str, str]]:
        """(name, what happened to it, the line that reads it) for each value that is another one now."""
        found = []
        for part, looks in self.looks:
            for name, value in _read(part):
                before, after = looks.get(name), look(value)
                if before is not None and before != after:
                    found.append((name, _story(name, value, before, after), _line_of(part.__code__, name)))
        return found


def _python(function: Any) -> types.FunctionType | None:
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__wrapped__", function)
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType):
        function = vars(type(function)).get("__call__")
    return function if isinstance(function, types.FunctionType) else None


def _read(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Names and values; of modules, functions and classes none, for they do not change."""
    values: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # not yet assigned
            continue
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            values[name] = function.__globals__[name]
    return ((name, value) for name, value in values.items() if not isinstance(value, _SKIPPED))


@cached(1024)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:  # functions inside the function
        if isinstance(constant, types.CodeType):
            names.update(dict.fromkeys(_global_names(constant)))
    return tuple(names)


def look(value: Any, depth: int = 2) -> Any:
    """What can be told of a value at little cost, to see later that it is another one."""
    if isinstance(value, _PLAIN):
        return ("=", repr(value))
    if isinstance(value, Tensor):
        return ("Tensor", value.id.number)
    if isinstance(value, jax.Array):
        return ("array", id(value))
    if isinstance(value, np.ndarray):
        return ("ndarray", value.shape, value.dtype.str, value.tobytes() if value.nbytes <= 4096 else None)
    if isinstance(value, np.random.Generator):
        return ("generator", repr(value.bit_generator.state))
    if isinstance(value, np.random.RandomState):
        return ("generator", repr(value.get_state(legacy=False)))
    if isinstance(value, random.Random):
        return ("generator", hash(value.getstate()))
    if depth and isinstance(value, (list, tuple)) and len(value) <= 32:
        return ("items", tuple(look(item, depth - 1) for item in value))
    if depth and isinstance(value, dict) and len(value) <= 32:
        return ("items", tuple((repr(key), look(item, depth - 1)) for key, item in value.items()))
    attributes = getattr(value, "__dict__", None)
    if depth and isinstance(attributes, dict) and len(attributes) <= 32:
        return ("attributes", look(attributes, depth))
    return ("object", id(value))


def _story(name: str, value: Any, before: Any, after: Any) -> str:
    if before[0] == "generator":
        return f"it draws from `{name}`, a {type(value).__name__} of its own that no checkpoint can rewind"
    if before[0] == after[0] == "=":
        return f"it reads `{name}`, which was {before[1]} and is {after[1]} now"
    return f"it reads `{name}`, which has changed since"


def _line_of(code: types.CodeType, name: str) -> str:
    """`file:line` of the first instruction that reads a name."""
    line = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        position = instruction.positions.lineno if instruction.positions is not None else None
        line = position or line
        if instruction.argval == name and instruction.opname.startswith("LOAD"):
            return f"{shown(code.co_filename)}:{line}"
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType) and name in _global_names(constant) + constant.co_freevars:
            return _line_of(constant, name)
    return f"{shown(code.co_filename)}:{code.co_firstlineno}"


class Difference:
    """The first op at which two runs part."""

    __slots__ = ("index", "line", "op", "what")

    def __init__(self, index: int, op: str, line: str, what: str):
        self.index, self.op, self.line, self.what = index, op, line, what


def first_difference(before: Trail, after: Trail) -> Difference | None:
    """None if the same ops ran, and those whose results were looked at gave the same."""
    for index, (old, new) in enumerate(zip(before.ops, after.ops, strict=False)):
        if not _same_op(old, new):
            return Difference(index, _name(new), after.line(index), f"in place of {_name(old)}")
        # A digest is missing where one of the runs was not looked at in detail: map then compares nothing.
        if not all(map(same, before.digest(index), after.digest(index))):
            return Difference(index, _name(new), after.line(index), "the first whose result differs")
    if len(before.ops) > len(after.ops):
        index = len(after.ops)
        return Difference(index, _name(before.ops[index]), before.line(index), "which ran in the first run only")
    if len(before.ops) < len(after.ops):
        index = len(before.ops)
        return Difference(index, _name(after.ops[index]), after.line(index), "which did not run in the first run")
    return None


def _same_op(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if isinstance(old, Plan) and isinstance(new, Plan):
        return old.name == new.name and old.examples == new.examples and old.wrt == new.wrt
    return False


def _name(op: Any) -> str:
    if isinstance(op, Plan):
        return f"{op.op}({', '.join(aval.str_short() for aval in op.examples)})"
    return getattr(op, "name", type(op).__name__)
