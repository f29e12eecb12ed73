"""Who takes a Tensor apart: jax's function, whose code called it, on which line of the user's.

Functions are known by the identity of their code. Names serve messages only: no decision hangs on them.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from inspect import getclosurevars
from itertools import islice
from sys import _getframe
from types import CodeType, FunctionType
from typing import Any

import jax
import numpy as np

from tapejax.ground.caches import cached
from tapejax.ground.where import OURS as OUR_FOLDER
from tapejax.ground.where import folder_of, line_of

# Whose file a frame belongs to. What stands beside jax is a library: what it does with leaves is not in the user's sight.
OURS, JAX, PYTHON, LIBRARY, USER = "tapejax", "jax", "python", "library", "user"
_JAX = folder_of(jax.__file__)
_PACKAGES = (os.path.dirname(_JAX.rstrip(os.sep)) + os.sep, _JAX.rstrip(os.sep) + "lib" + os.sep)
_NUMPY = folder_of(np.__file__)
_PYTHON = tuple(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "platstdlib"))


class _Owners(dict):
    """Whose a file is, by its name; found once per file."""

    def __missing__(self, filename: str) -> str:
        found = self[filename] = _owner(filename)
        return found


def _owner(filename: str) -> str:
    if filename.startswith(OUR_FOLDER):
        return OURS
    if filename.startswith(_JAX):
        return JAX
    if filename.startswith(_PACKAGES):
        return LIBRARY
    if filename.startswith(_PYTHON) or filename.startswith("<frozen"):
        return LIBRARY if "site-packages" in filename or "dist-packages" in filename else PYTHON
    return USER


owners = _Owners()


def _codes(function: Any) -> Iterator[CodeType]:
    """The code of a function and of those it wraps, be it that they are closed over only."""
    while function is not None:
        code = getattr(function, "__code__", None)
        if code is not None:
            yield code
        for value in getclosurevars(function).nonlocals.values() if isinstance(function, FunctionType) else ():
            if isinstance(value, FunctionType):
                yield value.__code__
        function = getattr(function, "__wrapped__", None)


def _all_codes(*functions: Callable[..., Any]) -> frozenset[CodeType]:
    return frozenset(code for function in functions for code in _codes(function))


# jax's own wrapper around what it makes (it shortens tracebacks): says nothing of the function inside.
_WRAPPERS = frozenset.intersection(*[_all_codes(made) for made in (jax.make_jaxpr(len), jax.vmap(len), jax.grad(len))])
# They give back what they were given, or nothing of its value: through them nothing is lost.
_LOOKING = _all_codes(
    jax.block_until_ready, jax.tree.structure, jax.tree_util.tree_structure, jax.eval_shape, jax.make_jaxpr(len),
    jax.debug.print, jax.debug.callback,
) - _WRAPPERS  # fmt: skip
_TREES = frozenset(code.co_filename for code in _all_codes(jax.tree.map, jax.tree_util.tree_map))


@cached(1)
def _operators() -> frozenset[str]:
    """The files of an array's operators. Not when we are imported: to make an array starts jax, and it is for users to say when."""
    return frozenset(code.co_filename for code in _all_codes(jax.Array.__add__, type(jax.numpy.zeros(())).__add__))


@cached(1)
def _numpy() -> tuple[str, ...]:
    return tuple(map(folder_of, _operators()))


def _equinox_module() -> CodeType | None:
    """What makes an equinox module: it looks at the leaves of what is given, and keeps that as it is."""
    module = getattr(sys.modules.get("equinox"), "Module", None)
    return getattr(type(module).__call__, "__code__", None)


_taking: set[CodeType] = set()


def takes_apart(function: Any) -> Any:
    """Say of a function of tapejax that it gives Tensors to jax on purpose, and puts them together again itself."""
    _taking.add(function.__code__)
    return function


class Caller:
    """Who called.

    kind: whose code called jax's function, or called directly: OURS, LIBRARY or USER.
    looks: whether the function only looks, or is one of ours that `takes_apart`. tree: whether it is one of jax.tree's.
    where: the line in the user's own code, as `where.user_frame` has it.
    """

    __slots__ = ("called", "jax", "kind", "library", "looks", "stack", "tree", "where")

    def __init__(self, called: str | None = None) -> None:
        self.kind, self.looks, self.tree = USER, False, False
        self.called = called  # what was called, if it was not jax
        self.jax: list[CodeType] = []  # jax's functions, the outermost last
        self.library: CodeType | None = None  # the outermost function of a library
        self.where: tuple[Any, int] | None = None
        self.stack: tuple[Any, ...] = ()  # the same for all of the user's functions that are being called, if asked for

    @property
    def line(self) -> str:
        return line_of(self.where)

    @property
    def name(self) -> str:
        """What was called, as people write it; a guess where jax hides it."""
        if self.called is not None:
            return self.called
        if self.kind is OURS:
            return "tapejax.lift as the result of a function over arrays"
        if self.library is not None:
            module = os.path.relpath(self.library.co_filename, _PACKAGES[0]).split(os.sep)[0].removesuffix(".py")
            return f"{module}.{self.library.co_qualname.split('.<locals>')[0]}"
        return public_name(self.jax)


def find(depth: int = 2, *, called: str | None = None, whole: bool = False) -> Caller:
    """Who called the function that stands so many frames above. whole: with the stack."""
    frame: Any = _getframe(depth)
    found = Caller(called)
    found.tree = True
    while frame is not None:  # jax's own frames, and what of Python it uses
        code = frame.f_code
        owner = owners[code.co_filename]
        if owner is JAX:
            if code not in _WRAPPERS:
                found.jax.append(code)
            found.tree &= code.co_filename in _TREES
        elif owner is not PYTHON:
            break
        frame = frame.f_back
    found.tree &= bool(found.jax)
    if frame is None:
        return found
    found.kind = owner
    if owner is OURS:  # which looks, or traces a function that must not hand out what is recorded
        found.looks = frame.f_code in _taking
    else:
        found.looks = bool(found.jax) and found.jax[-1] in _LOOKING  # what was called, not what it uses
        found.looks |= owner is LIBRARY and frame.f_code is _equinox_module()
    innermost = frame
    while frame is not None and (owner := owners[frame.f_code.co_filename]) is not USER:
        if owner is LIBRARY:
            found.library = frame.f_code
        frame = frame.f_back
    if frame is None:  # somebody's program that is installed beside jax
        frame, found.library = innermost, None
    found.where = frame.f_code, frame.f_lasti
    if whole:
        found.stack = tuple(islice(stack(frame), 12))
    return found


class _Last(threading.local):
    """The last answer of `find_again`, in this thread."""

    stamp: int = -2
    frames: tuple[Any, ...] = ()
    caller: Caller | None = None


_last = _Last()


def find_again(stamp: int, depth: int = 2) -> Caller:
    """`find` with the stack, for a tree's leaves one after the other: the same call has the same answer.

    stamp: counts up with everything that is made. Where only leaves were taken apart since, by a frame at the same place
    as before, it is the same call.
    """
    frame: Any = _getframe(depth)
    outer = frame.f_back
    frames = (frame.f_code, frame.f_lasti, id(frame), outer and (outer.f_code, outer.f_lasti, id(outer)))
    if stamp == _last.stamp + 1 and frames == _last.frames and _last.caller is not None:
        _last.stamp = stamp
        return _last.caller
    found = find(depth + 1, whole=True)
    _last.stamp, _last.frames, _last.caller = stamp, frames, found
    return found


def stack(frame: Any = None) -> Iterator[tuple[CodeType, int]]:
    """Where the user's functions that are being called are, the innermost first."""
    frame = _getframe(1) if frame is None else frame
    while frame is not None:
        if owners[frame.f_code.co_filename] is USER:
            yield frame.f_code, frame.f_lasti
        frame = frame.f_back


def is_jax_but_no_operator(depth: int = 2) -> bool:
    """Whether jax.numpy asks, and not for `array + tensor`, which it leaves to us.

    Elsewhere jax asks in C, where an error is not passed on; there it words a refusal of its own soon.
    """
    filename = _getframe(depth).f_code.co_filename
    return filename.startswith(_numpy()) and filename not in _operators()


def of_refusal(depth: int = 2) -> Caller | None:
    """Who called jax, if jax asks while it words a refusal. Its functions of trees describe, those that look print."""
    if owners[_getframe(depth).f_code.co_filename] is not JAX:
        return None
    caller = find(depth + 1)
    prints = caller.looks or caller.where is None  # a callback of jax's has nobody's line above it
    return None if caller.tree or prints else caller


def is_asked_by_a_library() -> bool:
    """Whether the code that asks tapejax for something is a library's, be it by way of NumPy."""
    frame: Any = _getframe(2)
    while frame is not None:
        filename = frame.f_code.co_filename
        if owners[filename] not in (OURS, PYTHON) and not filename.startswith(_NUMPY):
            return owners[filename] is LIBRARY
        frame = frame.f_back
    return False


def is_raised_by_jax(error: BaseException) -> bool:
    """Whether the frame that raised an error is one of jax's own."""
    return _raiser(error) is JAX


def is_raised_by_a_library(error: BaseException) -> bool:
    """Whether the frame that raised an error is that of a library beside jax."""
    return _raiser(error) is LIBRARY


def _raiser(error: BaseException) -> str | None:
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return None if last is None else owners[last.tb_frame.f_code.co_filename]


# --- names: for messages ------------------------------------------------------------------------------

_MODULES = (
    "jax",
    "jax.tree",
    "jax.lax",
    "jax.tree_util",
    "jax.flatten_util",
    "jax.nn",
    "jax.numpy",
    "jax.experimental",
)
_names: dict[CodeType, str] = {}
COMPILED = "a function that jax.jit compiled"  # on the way to which jax has no frame of its own


def public_name(codes: list[CodeType]) -> str:
    """`jax.lax.scan` for calls of it, or of a function that it made, the outermost last."""
    if not _names:
        for module in reversed(_MODULES):
            for name, function in list(vars(sys.modules.get(module, jax)).items()):
                if not name.startswith("_"):
                    _names.update(dict.fromkeys(_codes(function), f"{module}.{name}"))
    for place, code in enumerate(reversed(codes)):
        if place and code.co_filename in _TREES:
            continue  # used by what was called
        made_by = code.co_qualname.split(".<locals>")[0].lstrip("_")
        name = _names.get(code) or (f"jax.{made_by}" if hasattr(jax, made_by) else None)
        if name is not None:
            return name
    return COMPILED


def counterpart(name: str) -> str:
    """`, tapejax.lax.scan`: the function of tapejax that does the same and records. Nothing if there is none."""
    if name == COMPILED:
        return ", or to one that tapejax.jit compiled"
    path = name.split(".")
    found: Any = sys.modules.get("tapejax")
    if path[0] != "jax" or path[1:2] in (["tree"], ["tree_util"]):
        return ""
    for part in path[1:]:
        found = getattr(found, part, None)
    return "" if found is None else f", {'.'.join(['tapejax', *path[1:]])}"
