"""What a check found, as an object: a verdict, a table, a page, JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import jax

from tapejax.errors import VerificationError

RIGHT, WRONG, UNCHECKED = "right", "wrong", "unchecked"
RAISES = "it raises"  # how the note of such a row begins


@dataclass(slots=True)
class Row:
    """One input's gradient against one judge.

    verdict: "right", "wrong", or "unchecked" with the reason in `note`. power: the smallest relative error of a single
    element of usual size that this judge would notice.
    """

    input: str
    kind: str
    against: str
    order: int
    verdict: str
    max_abs: float = 0.0
    max_rel: float = 0.0
    index: tuple[int, ...] | None = None
    got: Any = None
    expected: Any = None
    tolerance: float = 0.0
    reason: str = ""
    note: str = ""
    power: float = 0.0


@dataclass(slots=True)
class Kink:
    """A point where the slopes from the two sides differ, so that finite differences cannot judge."""

    input: str
    index: tuple[int, ...]
    left: float
    right: float

    def __str__(self) -> str:
        place = f"{self.input}{list(self.index)}" if self.index else self.input
        return f"{place}: slope {self.left:.4g} from below, {self.right:.4g} from above"


class Findings:
    """What every report can do; subclasses have `judged` (what has a verdict each), `title`, `verdict_line` and `__str__`."""

    title = "report"
    verdict_line = ""

    @property
    def judged(self) -> Sequence[Any]:
        raise NotImplementedError

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong, and at least one thing was checked."""
        return not self.wrong and any(result.verdict == RIGHT for result in self.judged)

    @property
    def wrong(self) -> list[Any]:
        return [result for result in self.judged if result.verdict == WRONG]

    @property
    def first_wrong(self) -> Any:
        return next(iter(self.wrong), None)

    def to_json(self) -> dict[str, Any]:
        raise NotImplementedError

    def assert_ok(self) -> None:
        """Raise a VerificationError (an AssertionError) with the whole report, if something is wrong."""
        __tracebackhide__ = True
        if not self.ok:
            error = VerificationError(f"{self.verdict_line}\n{self}")  # the verdict first: a summary shows one line
            error.report = self
            raise error

    def tables(self) -> list[tuple[str, list[Sequence[str]], list[str]]]:
        """For the page: (heading, rows with the head first, a verdict per row)."""
        return []

    def remarks(self) -> list[tuple[str, str]]:
        """For the page: (label, text)."""
        return []

    def _repr_html_(self) -> str:
        from tapejax.verify.page import fragment

        return fragment(self)

    def to_html(self) -> str:
        """A page of its own, with nothing loaded from elsewhere."""
        from tapejax.verify.page import page

        return page(self)

    def save_html(self, path: Any) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.to_html())

    def __repr__(self) -> str:
        return f"<{self.title}: {'right' if self.ok else 'WRONG'}>"


@dataclass(slots=True, repr=False)
class Report(Findings):
    """The verdict on a function's gradient. `ok`, `assert_ok()`, `str()`, `to_json()`, `to_html()`.

    rows: one per input, judge and order. kinks: where the function has none to check. notes: what else to know.
    culprit: when something is wrong, what was found to cause it (an action, a custom rule), or None.
    """

    function: str
    rows: list[Row]
    kinks: list[Kink] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seeds: int = 1
    seconds: float = 0.0
    culprit: Any = None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong, and every input had at least one judge."""
        judged = {(row.input, row.order) for row in self.rows if row.verdict == RIGHT}
        everything = {(row.input, row.order) for row in self.rows}
        return bool(self.rows) and not self.wrong and judged == everything

    @property
    def judged(self) -> list[Row]:
        return self.rows

    @property
    def title(self) -> str:
        return f"verify({self.function})"

    @property
    def verdict_line(self) -> str:
        judges = " and ".join(dict.fromkeys(row.against for row in self.rows if row.verdict != UNCHECKED))
        raised = next((row for row in self.wrong if row.note.startswith(RAISES)), None)
        if raised is not None:
            return f"WRONG: no gradient of `{self.function}` by {raised.against}: {raised.note}"
        if self.wrong:
            by = " and ".join(dict.fromkeys(row.against for row in self.wrong))
            return f"WRONG: the gradient of `{self.function}` disagrees with {by}"
        if not self.ok:
            return f"UNCHECKED: nothing could judge some input of `{self.function}`"
        missing = ", ".join(f"{row.input} against {row.against}" for row in self.rows if row.verdict == UNCHECKED)
        return f"right: the gradient of `{self.function}` agrees with {judges}" + (
            f"; not checked: {missing}" if missing else ""
        )

    def to_json(self) -> dict[str, Any]:
        """Everything, in types that json.dumps takes."""
        culprit = self.culprit.to_json() if isinstance(self.culprit, Findings) else self.culprit
        return plain_json({
            "function": self.function, "ok": self.ok, "seeds": self.seeds, "seconds": self.seconds,
            "jax": jax.__version__, "device": device(), "rows": [asdict(row) for row in self.rows],
            "kinks": [asdict(kink) for kink in self.kinks], "notes": self.notes, "culprit": culprit,
        })  # fmt: skip

    def tables(self) -> list[tuple[str, list[Sequence[str]], list[str]]]:
        head = ("input", "kind", "against", "order", "max abs", "max rel", "worst at", "tolerance", "verdict")
        rows: list[Sequence[str]] = [head]
        rows += [
            (
                row.input, row.kind, row.against, str(row.order), number(row.max_abs), number(row.max_rel),
                "" if row.index is None else str(list(row.index)), number(row.tolerance), row.verdict,
            )
            if row.verdict != UNCHECKED and not row.note.startswith(RAISES)
            else (row.input, row.kind, row.against, str(row.order), "", "", "", "", row.verdict)
            for row in self.rows
        ]  # fmt: skip
        return [("", rows, [row.verdict for row in self.rows])]

    def remarks(self) -> list[tuple[str, str]]:
        found = []
        if self.culprit is not None:
            found.append(("culprit", self.culprit.verdict_line.removeprefix("WRONG: ")))
        for row in self.wrong:
            place = "" if row.index is None else f" at {list(row.index)}"
            values = "" if row.expected is None else f"got {value(row.got)}, expected {value(row.expected)}"
            words = "; ".join(part for part in (values, row.note) if part)
            found.append(("WRONG", f"{row.input}{place} against {row.against}: {words}"))
        for row in self.rows:
            if row.verdict == UNCHECKED:
                found.append(("unchecked", f"{row.input} against {row.against}: {row.note}"))
            elif row.verdict == RIGHT and row.note:
                found.append(("note", f"{row.input}: {row.note}"))
        found += [("kink", str(kink)) for kink in self.kinks]
        reasons = dict.fromkeys(
            f"{number(row.tolerance)} against {row.against}: {row.reason}" for row in self.rows if row.reason
        )
        found += [("tolerance", reason) for reason in reasons]
        found += [("power", text) for text in self._powers()]
        found += [("note", note) for note in self.notes]
        return list(dict.fromkeys(found))

    def _powers(self) -> Iterable[str]:
        """What a judge would have noticed, had one element alone been wrong."""
        if self.wrong:
            return
        for name in dict.fromkeys(row.input for row in self.rows):
            mine = [row for row in self.rows if row.input == name and row.verdict == RIGHT and row.power]
            if mine:
                by = ", ".join(f"{row.power:.1e} by {row.against}" for row in mine)
                yield f"{name}: noticed at one element of usual size is a relative error of {by}"

    def __str__(self) -> str:
        [(_, rows, _)] = self.tables()
        lines = [f"{self.title}: {self.seeds} random cotangents", *aligned(rows)]
        lines += [f"{label:<10} {text}" for label, text in self.remarks()]
        lines.append(f"{self.verdict_line}  ({self.seconds:.1f} s, jax {jax.__version__}, {device()})")
        return "\n".join(lines)


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """A table in plain text, its head underlined."""
    rows = [tuple(map(str, row)) for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def number(x: float) -> str:
    return "0" if x == 0 else f"{x:.1e}"


def value(x: Any) -> str:
    return f"{x:.6g}" if isinstance(x, (int, float)) else str(x)


def device() -> str:
    first = jax.devices()[0]
    return f"{jax.device_count()} x {first.device_kind} ({first.platform})"


def plain_json(tree: Any) -> Any:
    """Numbers that JSON has no word for (nan, inf, complex) as text, tuples as lists."""
    if isinstance(tree, dict):
        return {key: plain_json(item) for key, item in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [plain_json(item) for item in tree]
    if isinstance(tree, bool) or tree is None or isinstance(tree, (int, str)):
        return tree
    if isinstance(tree, float):
        return tree if math.isfinite(tree) else str(tree)
    return str(tree)
