"""What a survey has found so far, in a file: one that was stopped goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import tapejax
from tapejax.errors import ArgumentError
from tapejax.verify.disagreements.calls import Call
from tapejax.verify.disagreements.judge import Disagreement, Refused
from tapejax.verify.disagreements.numbers import Numbers


@dataclass
class Judged:
    """What was found about one call, and what it cost."""

    found: list[Disagreement | Refused] = field(default_factory=list)
    checks: int = 0
    undefined: int = 0
    seconds: float = 0.0


class Kept:
    """A file with a line per call that was judged; None: nothing is kept."""

    def __init__(self, path: str | Path | None, calls: Sequence[Call]) -> None:
        self.path = None if path is None else Path(path)
        self.known: dict[str, Judged] = {}
        head = {"jax": jax.__version__, "tapejax": tapejax.__version__}
        if self.path is None:
            return
        if not self.path.exists():
            self.path.write_text(json.dumps(head) + "\n", encoding="utf-8")
            return
        by_key = {key(call): call for call in calls}
        first, *lines, cut_off = self.path.read_text(encoding="utf-8").split("\n")
        if json.loads(first) != head:
            raise ArgumentError(f"{self.path} was written with {first}, not with {json.dumps(head)}", fix="remove it")
        if cut_off:  # it was stopped while it was writing
            self.path.write_text("\n".join([first, *lines, ""]), encoding="utf-8")
        for line in lines:
            record = json.loads(line)
            if record["call"] in by_key:
                self.known[record["call"]] = _judged(record, by_key[record["call"]])

    def get(self, call: Call) -> Judged | None:
        return self.known.get(key(call))

    def add(self, call: Call, judged: Judged) -> None:
        if self.path is not None:
            record = {
                **asdict(replace(judged, found=[])),
                "call": key(call),
                "found": list(map(_to_json, judged.found)),
            }
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


def key(call: Call) -> str:
    """What tells a call from all others: its code, and the values it is called with."""
    values = [value.tolist() for value in call.make(call.dtypes[0])] if call.dtypes else []
    return f"{call.primitive} {call.text} {list(call.dtypes)} {values}"


def _judged(record: dict[str, Any], call: Call) -> Judged:
    found = [_from_json(one, call) for one in record["found"]]
    return Judged(found, record["checks"], record["undefined"], record["seconds"])


def _to_json(one: Disagreement | Refused) -> dict[str, Any]:
    if isinstance(one, Refused):
        return {"refused": True, "dtype": one.dtype, "who": one.who, "error": one.error, "right": one.right}
    numbers = None if one.numbers is None else {name: _plain(value) for name, value in asdict(one.numbers).items()}
    return {
        "elementwise": one.call.elementwise, "dtype": one.dtype, "loss": one.loss, "what": one.what, "verdict": one.verdict,
        "arguments": [{"dtype": np.asarray(a).dtype.name, "shape": np.shape(a), "values": _plain(np.asarray(a).reshape(-1).tolist())}
                      for a in one.arguments],
        "ours": _plain(one.ours), "jax": _plain(one.jax), "position": one.position, "index": one.index, "numbers": numbers,
    }  # fmt: skip


def _from_json(one: dict[str, Any], call: Call) -> Disagreement | Refused:
    if "refused" in one:
        return Refused(call, one["dtype"], one["who"], one["error"], one["right"])
    arguments = [np.array(_back(a["values"]), a["dtype"]).reshape(a["shape"]) for a in one["arguments"]]
    numbers = None
    if one["numbers"] is not None:
        known = {name: _back(value) for name, value in one["numbers"].items()}
        numbers = Numbers(**{**known, "sides": tuple(known["sides"]) if known["sides"] else None})
    return Disagreement(
        replace(call, elementwise=one["elementwise"]), one["dtype"], tuple(arguments), one["loss"], one["what"], one["verdict"],
        _back(one["ours"]), _back(one["jax"]), one["position"], tuple(one["index"]), numbers,
    )  # fmt: skip


def _plain(value: Any) -> Any:
    """Complex numbers as a pair under a name; others are JSON's, nan and inf too."""
    if isinstance(value, (list, tuple)):
        return list(map(_plain, value))
    return {"real": value.real, "imag": value.imag} if isinstance(value, complex) else value


def _back(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_back, value))
    return complex(value["real"], value["imag"]) if isinstance(value, dict) else value
