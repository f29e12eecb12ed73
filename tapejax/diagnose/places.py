"""Where an equation comes from: the user's line, its text, and the library's own line beside it."""

from __future__ import annotations

import ast
import linecache
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tapejax.ground import compat
from tapejax.ground.callers import LIBRARY, USER, owners
from tapejax.ground.where import shown
from tapejax.program.program import Growing

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's code. library: the line of a library that was running there, `file:line`, or ''."""

    file: str = ""
    lineno: int = 0
    source: str = ""
    library: str = ""

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.lineno}" if self.file else "?"


NOWHERE = Place()


def place_of(sources: Any) -> Place:
    """The place of an equation, from the stacks of itself and of the calls around it, inside out."""
    library = ""
    outer: tuple[str, int] | None = None
    for source in sources:
        for file, line in compat.source_frames(source):
            if file.startswith(_HERE):
                break  # what follows is the call of ours that traced it
            owner = owners[file]
            if owner is USER:
                return Place(shown(file), line, linecache.getline(file, line).strip(), library)
            if owner is LIBRARY:
                library = library or f"{file}:{line}"
                outer = (file, line)
    if outer is None:
        return NOWHERE
    file, line = outer  # somebody's program that is installed beside jax
    return Place(shown(file), line, linecache.getline(file, line).strip(), "")


class Stack:
    """The frames of this moment, as a source of an equation.

    While jax runs a backward that somebody wrote, it says of each equation where the forward was called.
    """

    def __init__(self) -> None:
        self.traceback = self
        self.name_stack = compat.no_names()
        self.frames: list[Any] = []
        frame = sys._getframe(2)
        while frame is not None:
            self.frames.append(SimpleNamespace(file_name=frame.f_code.co_filename, line_num=frame.f_lineno))
            frame = frame.f_back


class WithStack(Growing):
    """A program that is written as a function is called, with the lines that call."""

    def add(self, eqn: Any, inputs: Sequence[int], calls: tuple[Any, ...] = ()) -> Sequence[int]:
        return super().add(eqn, inputs, calls if calls else (Stack(),))


def assigned_name(source: str) -> str:
    """`root` of `root = jnp.sqrt(x)`; '' if the line is no such assignment."""
    tree = _parsed(source)
    if isinstance(tree, ast.Assign) and len(tree.targets) == 1 and isinstance(tree.targets[0], ast.Name):
        return tree.targets[0].id
    return ""


def call_arguments(source: str, names: tuple[str, ...]) -> list[str]:
    """What a function with one of these names is called with on a line: ['x'] of `root = jnp.sqrt(x)`."""
    tree = _parsed(source)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in names:
                return [ast.unparse(argument) for argument in node.args]
    return []


def division(source: str) -> tuple[str, str] | None:
    """The two sides of the one division on a line, as text."""
    tree = _parsed(source)
    found = [
        node for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
    ] if tree is not None else []  # fmt: skip
    return (ast.unparse(found[0].left), ast.unparse(found[0].right)) if len(found) == 1 else None


def _parsed(source: str) -> ast.stmt | None:
    for text in (source, source.rstrip(":") + ": pass", source + ")", "(" + source):
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError):
            continue
        return body[0] if body else None
    return None


def file_and_line(line: str) -> tuple[str, int]:
    """("train.py", 12) of `train.py:12`, or of `train.py:12:4 (step)` as jax writes it."""
    found = re.match(r"(.*?):(\d+)", line)
    return (found[1], int(found[2])) if found else ("", 0)
