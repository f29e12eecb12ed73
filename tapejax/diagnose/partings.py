"""Where two runs part: the first action that differs, going forward, and the first, going back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from tapejax.diagnose.entries import Entry


@dataclass(frozen=True)
class Parting:
    """The action where two runs part. what: "program" (another op), "value" or "cotangent" of an output."""

    index: int
    what: str
    a: str
    b: str
    line_a: str = ""
    line_b: str = ""
    element: tuple[int, ...] = ()
    number_a: float | complex | None = None
    number_b: float | complex | None = None

    def __str__(self) -> str:
        if self.what == "program":
            return f"action {self.index}: {self.a or 'nothing'}  ({self.line_a})\n      but {self.b or 'nothing'}  ({self.line_b})"
        place = f"action {self.index}" if self.index >= 0 else "at the leaves"
        return f"{place}: {self.a}  ({self.line_a})\n      {self.what} at {list(self.element)}: {self.number_a} but {self.number_b}"


@dataclass(frozen=True)
class Difference:
    """Where two runs part, forward and back; None where they do not."""

    forward: Parting | None = None
    backward: Parting | None = None

    @property
    def ok(self) -> bool:
        return self.forward is None and self.backward is None

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok} | asdict(self)

    def __str__(self) -> str:
        ways = (("forward", self.forward), ("back", self.backward))
        rows = [f"{way:<8}{part}" for way, part in ways if part is not None]
        return "\n".join(rows) or "the runs are alike, forward and back"


def difference(a_run: Any, b_run: Any, rtol: float | None) -> Difference:
    """Of two TapeData."""
    forward = backward = None
    pairs = list(zip(a_run.entries, b_run.entries))
    for index, (a, b) in enumerate(pairs):
        if (a.op, a.inputs, a.kinds, a.shown) != (b.op, b.inputs, b.kinds, b.shown):
            return Difference(Parting(index, "program", str(a), str(b), a.line, b.line))
        forward = forward or _parting(index, "value", a, b, a_run.values, b_run.values, rtol)
    if len(a_run) != len(b_run):
        longer = a_run if len(a_run) > len(b_run) else b_run
        extra = longer.entries[len(pairs)]
        texts = (str(extra), "") if longer is a_run else ("", str(extra))
        return Difference(forward or Parting(len(pairs), "program", *texts, extra.line, extra.line))
    for index, (a, b) in reversed(list(enumerate(pairs))):
        backward = _parting(index, "cotangent", a, b, a_run.cotangents, b_run.cotangents, rtol)
        if backward is not None:
            break
    if backward is None:
        at = [slot for slot in a_run.leaves.values() if slot in a_run.cotangents and slot in b_run.cotangents]
        ends = Entry("gradient", (), tuple(at), ())
        backward = _parting(-1, "cotangent", ends, ends, a_run.cotangents, b_run.cotangents, rtol)
    return Difference(forward, backward)


def _parting(index: int, what: str, a: Entry, b: Entry, of_a: Any, of_b: Any, rtol: float | None) -> Parting | None:
    for slot_a, slot_b in zip(a.outputs, b.outputs):
        x, y = of_a.get(slot_a), of_b.get(slot_b)
        if x is None or y is None or x.shape != y.shape:
            continue
        apart = _apart(x, y, rtol)
        if apart.any():
            element = tuple(int(i) for i in np.unravel_index(np.argmax(apart), apart.shape))
            return Parting(index, what, str(a), str(b), a.line, b.line, element, x[element].item(), y[element].item())
    return None


def _apart(x: np.ndarray, y: np.ndarray, rtol: float | None) -> np.ndarray:
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return np.asarray(x != y)
    if rtol is None:
        rtol = 64 * max(float(jnp.finfo(x.dtype).eps), float(jnp.finfo(y.dtype).eps))
    wide = np.complex128 if np.iscomplexobj(x) else np.float64
    x, y = x.astype(wide), y.astype(wide)
    finite = np.isfinite(x) & np.isfinite(y)
    scale = max(np.abs(x[finite]).max(initial=0.0), np.abs(y[finite]).max(initial=0.0))
    far = np.abs(np.where(finite, x, 0) - np.where(finite, y, 0)) > rtol * scale
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.where(finite, far, ~same)
