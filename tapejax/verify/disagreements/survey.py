"""All calls judged, and what was found put together: one entry per primitive, parameters and verdict."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from tapejax.verify.disagreements.calls import Call, calls
from tapejax.verify.disagreements.judge import OUTSIDE, Disagreement, Judge, Refused
from tapejax.verify.disagreements.kept import Judged, Kept
from tapejax.verify.disagreements.reproducer import number, point, reproducer, title
from tapejax.verify.report import CONVENTION, JAX, TAPEJAX, UNDECIDED, plain_json

ORDER = (JAX, TAPEJAX, UNDECIDED, CONVENTION, OUTSIDE)


@dataclass
class Entry:
    """One disagreement: the first place where it was seen, and how many others there are."""

    first: Disagreement
    dtypes: list[str] = field(default_factory=list)
    points: list[str] = field(default_factory=list)
    batched: bool = False
    samples: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        return self.first.verdict

    @property
    def primitive(self) -> str:
        return self.first.call.primitive

    def add(self, found: Disagreement) -> None:
        if found.dtype not in self.dtypes:
            self.dtypes.append(found.dtype)
        if (text := point(found)) and text not in self.points:
            self.points.append(text)
        self.batched = self.batched or bool(found.call.batch)

    def to_json(self) -> dict[str, Any]:
        first, numbers = self.first, self.first.numbers
        said = None if numbers is None else numbers.slope if numbers.slope is not None else numbers.beside
        return {
            "title": title(first), "primitive": self.primitive, "call": first.call.text, "what": first.what,
            "verdict": self.verdict, "dtypes": self.dtypes, "points": self.points, "batched": self.batched,
            "samples": self.samples, "tapejax": number(first.ours), "jax": number(first.jax), "differences": number(said),
            "complex_step": number(None if numbers is None else numbers.complex_step), "reproducer": reproducer(first),
        }  # fmt: skip


@dataclass
class Survey:
    """What was found. calls, checks: how many were made; undefined: what jax does not take."""

    entries: list[Entry]
    refused: list[Refused]
    calls: int
    checks: int
    undefined: int
    seconds: float
    samples: bool = True  # whether the rules' samples are among the calls

    @property
    def ok(self) -> bool:
        """Whether tapejax is nowhere the one that is wrong."""
        return not any(entry.verdict == TAPEJAX for entry in self.entries)

    @property
    def counts(self) -> Counter[str]:
        return Counter(entry.verdict for entry in self.entries)

    def to_json(self) -> dict[str, Any]:
        return plain_json({
            "jax": jax.__version__, "calls": self.calls, "checks": self.checks, "undefined": self.undefined,
            "seconds": self.seconds, "counts": dict(self.counts), "entries": [entry.to_json() for entry in self.entries],
            "refused": [
                {"call": r.call.text, "dtype": r.dtype, "who": r.who, "error": r.error, "right": r.right} for r in self.refused
            ],
        })  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{entry.verdict:10}  {title(entry.first)}" for entry in self.entries if entry.verdict != OUTSIDE]
        counts = ", ".join(f"{self.counts[verdict]} {verdict}" for verdict in ORDER if self.counts[verdict])
        said = f"{self.calls} calls, {self.checks} checks in {self.seconds:.0f} s with jax {jax.__version__}"
        return "\n".join([*lines, f"{counts or 'no disagreement'}  ({said})"])


def survey(
    *,
    only: Sequence[str] | None = None,
    todo: Iterable[Call] | None = None,
    samples: bool = True,
    progress: Callable[[int, int, str], None] | None = None,
    keep: str | Path | None = None,
) -> Survey:
    """Judge all calls (or those of some primitives): where our gradient and jax's differ, and who is right.

    keep: a file for what is found on the way. If it is there, what it holds is not judged again.
    """
    chosen = [call for call in (calls(samples=samples) if todo is None else todo) if not only or call.primitive in only]
    kept = Kept(keep, chosen)
    every = []
    for done, call in enumerate(chosen):
        if progress is not None:
            progress(done, len(chosen), call.primitive)
        judged = kept.get(call)
        if judged is None:
            judged = _judged(call)
            kept.add(call, judged)
        every.append(judged)
    entries, refused = together([one for judged in every for one in judged.found])
    sums = (sum(getattr(judged, name) for judged in every) for name in ("checks", "undefined", "seconds"))
    return Survey(entries, refused, len(chosen), *sums, samples)


def _judged(call: Call) -> Judged:
    start, judge = time.perf_counter(), Judge()
    found = list(judge(call))
    return Judged(found, judge.seen, judge.undefined, time.perf_counter() - start)


def together(found: Iterable[Disagreement | Refused]) -> tuple[list[Entry], list[Refused]]:
    """Entries in the order of their verdicts; those of samples are folded into others of the same primitive and verdict."""
    entries: dict[Any, Entry] = {}
    refused: dict[str, Refused] = {}
    late = []
    for one in found:
        if isinstance(one, Refused):
            refused.setdefault(one.call.primitive + one.error, one)
        elif _is_sample(one.call):
            late.append(one)
        else:
            key = one.call.primitive, one.call.code, one.what, one.verdict
            entries.setdefault(key, Entry(one)).add(one)
    for one in late:
        same = [e for e in entries.values() if (e.primitive, e.verdict) == (one.call.primitive, one.verdict)]
        if same:
            same[0].samples.append(one.call.code)
        else:
            entries[one.call.primitive, one.call.code, one.what, one.verdict] = entry = Entry(one)
            entry.add(one)
    ordered = sorted(entries.values(), key=lambda e: (ORDER.index(e.verdict), _is_sample(e.first.call), e.primitive))
    return ordered, sorted(refused.values(), key=lambda r: (r.who, r.call.primitive))


def _is_sample(call: Call) -> bool:
    return call.code.startswith("sample(")
