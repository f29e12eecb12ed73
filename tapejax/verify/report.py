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
CUSTOM_RULE, JAX, TAPEJAX, CONVENTION, UNDECIDED = "custom_rule", "jax", "tapejax", "convention", "undecided"
BY_WEIGHT = (TAPEJAX, JAX, CUSTOM_RULE, UNDECIDED, CONVENTION, RIGHT)  # the first that was found is the verdict
FOLD = 6  # right rows up to this many are shown
BANNERS = {
    RIGHT: "right", CONVENTION: "right, by convention", UNDECIDED: "UNDECIDED", CUSTOM_RULE: "YOUR RULE IS WRONG",
    JAX: "JAX IS WRONG", TAPEJAX: "TAPEJAX IS WRONG (please report it)",
}  # fmt: skip


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


@dataclass(slots=True)
class Finding:
    """Who is wrong about one input, and why it is thought so: a verdict as in `Report.verdict`."""

    input: str
    order: int
    verdict: str
    why: str
    index: tuple[int, ...] | None = None

    def __str__(self) -> str:
        place = f" at {list(self.index)}" if self.index else ""
        return f"{self.input}{place}{', second derivative' if self.order == 2 else ''}: {self.why}"


@dataclass(slots=True)
class Stop:
    """A stop_gradient on the way: `change` is how far the gradient would move without it, relative to its size."""

    line: str
    change: float
    input: str
    in_a_rule: bool = False

    def __str__(self) -> str:
        moves = "grows from zero" if self.change == float("inf") else f"changes by {100 * self.change:.3g} %"
        return f"stop_gradient at {self.line}: without it the gradient of {self.input} {moves}"


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
    """The verdict on a function's gradient. `verdict`, `ok`, `assert_ok()`, `str()`, `to_json()`, `to_html()`.

    rows: one per input, judge and order. findings: who is wrong about each input, and why. kinks: where the function has no
    slope to check. stops: the stop_gradients that make a difference. notes: what else to know. culprit: what was found to
    cause it (a report on custom rules or on actions), or None.
    """

    function: str
    rows: list[Row]
    kinks: list[Kink] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seeds: int = 1
    seconds: float = 0.0
    culprit: Any = None
    findings: list[Finding] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    scalar: bool = False
    blamed: str | None = None  # who the culprit turned out to be, where that says more than the findings

    @property
    def verdict(self) -> str:
        """Who is wrong: "right" (nobody), "custom_rule", "jax", "tapejax", "convention", or "undecided"."""
        if self.blamed is not None:
            return self.blamed
        found = {finding.verdict for finding in self.findings}
        return next((verdict for verdict in BY_WEIGHT if verdict in found), UNDECIDED)

    @property
    def why(self) -> str:
        """The verdict's reason, in one sentence."""
        deciding = self.deciding
        return "nothing was checked" if deciding is None else str(deciding)

    @property
    def deciding(self) -> Finding | None:
        """The finding that the verdict rests on."""
        weight = {verdict: number for number, verdict in enumerate(BY_WEIGHT)}
        return min(self.findings, key=lambda finding: weight[finding.verdict], default=None)

    @property
    def reproducer(self) -> str:
        """Lines of Python that show a wrong rule of tapejax's or jax's by itself; '' if there are none."""
        if self.verdict not in (TAPEJAX, JAX):
            return ""
        return getattr(getattr(self.culprit, "first_wrong", None), "reproducer", "")

    @property
    def ok(self) -> bool:
        """Whether the gradient is right, or a matter of convention."""
        return self.verdict in (RIGHT, CONVENTION)

    @property
    def judged(self) -> list[Row]:
        return self.rows

    @property
    def title(self) -> str:
        return f"verify({self.function})"

    @property
    def verdict_line(self) -> str:
        """The verdict and its reason, in one line."""
        verdict, banner = self.verdict, BANNERS[self.verdict]
        unseen = ", ".join(f"{row.input} against {row.against}" for row in self.rows if row.verdict == UNCHECKED)
        unseen = f"; not checked: {unseen}" if unseen else ""
        if verdict == RIGHT:
            judges = " and ".join(dict.fromkeys(row.against for row in self.rows if row.verdict == RIGHT))
            return f"{banner}: the gradient of `{self.function}` agrees with {judges}{unseen}"
        raised = next((row for row in self.wrong if row.note.startswith(RAISES)), None)
        if raised is not None:
            return f"{banner}: no gradient of `{self.function}` by {raised.against}: {raised.note}"
        if verdict == CONVENTION:
            return f"{banner}: {self.why}{unseen}"
        if self.culprit is not None and verdict in (CUSTOM_RULE, JAX, TAPEJAX):
            return f"{banner}: {self.culprit.first_wrong}"
        return f"{banner}: the gradient of `{self.function}`, {self.why}"

    def __repr__(self) -> str:
        return f"<{self.title}: {self.verdict}>"

    def to_json(self) -> dict[str, Any]:
        """Everything, in types that json.dumps takes."""
        culprit = self.culprit.to_json() if isinstance(self.culprit, Findings) else self.culprit
        return plain_json({
            "function": self.function, "verdict": self.verdict, "ok": self.ok, "why": self.why, "seeds": self.seeds,
            "seconds": self.seconds, "jax": jax.__version__, "device": device(),
            "findings": [asdict(finding) for finding in self.findings], "rows": [asdict(row) for row in self.rows],
            "kinks": [asdict(kink) for kink in self.kinks], "stops": [asdict(stop) for stop in self.stops],
            "notes": self.notes, "culprit": culprit, "reproducer": self.reproducer,
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
        found += [("finding", str(finding)) for finding in self.findings if finding.verdict not in (RIGHT, CONVENTION)]
        found += [("convention", str(finding)) for finding in self.findings if finding.verdict == CONVENTION]
        for row in self.wrong:
            place = "" if row.index is None else f" at {list(row.index)}"
            values = "" if row.expected is None else f"got {value(row.got)}, {row.against} has {value(row.expected)}"
            words = "; ".join(part for part in (values, row.note) if part)
            found.append(("WRONG", f"{row.input}{place} against {row.against}: {words}"))
        for row in self.rows:
            if row.verdict == UNCHECKED:
                found.append(("unchecked", f"{row.input} against {row.against}: {row.note}"))
            elif row.verdict == RIGHT and row.note:
                found.append(("note", f"{row.input}: {row.note}"))
        found += [("kink", str(kink)) for kink in self.kinks]
        found += [("stop", str(stop)) for stop in self.stops]
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
                yield f"{name}: the smallest relative error it would notice, in one element of usual size, is {by}"

    def __str__(self) -> str:
        [(_, rows, verdicts)] = self.tables()
        shown = [row for row, verdict in zip(rows[1:], verdicts, strict=True) if verdict != RIGHT]
        folded = len(rows) - 1 - len(shown)
        if folded <= FOLD:
            shown, folded = rows[1:], 0
        lines = [self.verdict_line, f"  {self.title}, {self._seeded()}"]
        lines += aligned([rows[0], *shown]) if shown else []
        lines += [f"{folded} right rows are not shown"] if folded else []
        lines += [f"{label:<10} {text}" for label, text in self.remarks()]
        if self.reproducer:
            lines += ["to reproduce:", *(f"  {line}" for line in self.reproducer.splitlines())]
        lines.append(f"{self.seconds:.1f} s, jax {jax.__version__}, {device()}")
        return "\n".join(lines)

    def _seeded(self) -> str:
        return "cotangent 1" if self.scalar else f"{self.seeds} random cotangents"


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
    simulated = ", simulated" if first.platform == "cpu" and jax.device_count() > 1 else ""
    return f"{jax.device_count()} x {first.device_kind} ({first.platform}{simulated})"


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
