"""Where a bad number was born, and what lies on the way: plain data for those who walk."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tapejax.diagnose.elements import Index
from tapejax.diagnose.places import Place
from tapejax.diagnose.runs import Run
from tapejax.program.program import Eqn

FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True)
class Inside:
    """What surrounds a program: loop steps, the equations it was opened from, the function with a rule of its own."""

    steps: tuple[tuple[str, int], ...] = ()
    sources: tuple[Any, ...] = ()
    function: str = ""
    backward: bool = False  # whether the program is itself a backward

    def of(self, eqn: Eqn, step: tuple[str, int] | None = None, **changes: Any) -> Inside:
        steps = self.steps if step is None else (*self.steps, step)
        return replace(self, steps=steps, sources=(*eqn.sources, *self.sources), **changes)


@dataclass
class Hop:
    """A place on the way from birth to the result."""

    op: str
    place: Place
    steps: tuple[tuple[str, int], ...]
    index: Index
    direction: str
    kind: str
    value: Any = None


@dataclass
class Birth:
    """Where a bad number was born, with what was at hand there."""

    op: str
    place: Place
    steps: tuple[tuple[str, int], ...]
    index: Index
    direction: str
    cause: str
    kind: str
    value: Any
    dtype: str
    eqn: Eqn | None = None
    run: Run | None = None
    operands: list[Any] = field(default_factory=list)  # forward: what met, as arrays
    arrives: Any = None  # backward: the cotangent that arrives, at this element
    kept: list[tuple[str, Any, int]] = field(default_factory=list)  # backward: (name, value at this element, slot)
    slope: Any = None  # backward: the local derivative at this element
    at: int = 0  # which operand's cotangent
    function: str = ""
    input: int | None = None
    number: int | None = None  # backward: which step of the run
    origin: Birth | None = None  # where the infinity, or the kept number, came from


@dataclass(frozen=True)
class Arrived:
    """The edge of a program was reached: an input (going forward's way back), or an output's cotangent."""

    at: int
    index: Index
    last: Any = None
