"""An action as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Entry:
    """An action as data. inputs and outputs are numbers of tensors; kinds are those of the outputs, `float32[3]`."""

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kinds: tuple[str, ...]
    line: str = ""
    regions: tuple[str, ...] = ()
    steps: tuple[tuple[str, int], ...] = ()
    shown: str = ""  # options that its line shows: `axis=0`

    def __str__(self) -> str:
        numbers = lambda slots: " ".join(f"%{slot}" for slot in slots)
        steps = "".join(f" {loop}[{step}]" for loop, step in self.steps)
        return f"{numbers(self.outputs)} = {self.op} {numbers(self.inputs)}{self.shown}{steps}"

    @classmethod
    def read(cls, text: dict[str, Any]) -> Entry:
        """From JSON."""
        whole = lambda name: tuple(map(int, text[name]))
        words = lambda name: tuple(map(str, text[name]))
        steps = tuple([(str(loop), int(step)) for loop, step in text["steps"]])
        line, shown = str(text["line"]), str(text["shown"])
        return cls(
            str(text["op"]), whole("inputs"), whole("outputs"), words("kinds"), line, words("regions"), steps, shown
        )
