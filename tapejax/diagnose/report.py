"""What was found, as data first: text, JSON and a page are made of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from tapejax.engine.cursor import Cursor
from tapejax.errors import ArgumentError
from tapejax.verify.report import plain_json


@dataclass(frozen=True, slots=True)
class Bad:
    """A result that holds NaN or infinities. what: "gradient" or "output"."""

    what: str
    name: str
    kind: str
    index: tuple[int, ...]
    count: int
    size: int

    def __str__(self) -> str:
        name = {"gradient": f"gradient of {self.name}", "output": self.name}[self.what]
        place = f" at {list(self.index)}" if self.index else ""
        return f"{name}: {self.kind}{place} ({self.count} of {self.size})"


@dataclass(frozen=True, slots=True)
class Born:
    """Where a bad number was born.

    steps: loop steps, as `action.steps`: (("scan", 17),). index: the element. direction: "forward" or "backward".
    cause: "value" (finite numbers made it), "infinities" (infinities met), "input", "constant"; going back "derivative"
    (the slope made it), "kept" (a value kept from the forward was bad), "cotangent" (what arrived met).
    numbers: what met. function: the name of the function with a custom rule around it. arguments: the inputs it depends on.
    """

    op: str
    file: str
    lineno: int
    source: str
    library: str
    steps: tuple[tuple[str, int], ...]
    index: tuple[int, ...]
    direction: str
    cause: str
    kind: str
    dtype: str
    numbers: tuple[str, ...]
    function: str = ""
    arguments: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{os.path.basename(self.file)}:{self.lineno}" if self.file else "?"

    @property
    def title(self) -> str:
        words = [self.op, "going back" if self.direction == "backward" else "going forward"]
        words += [f"{loop}[{step}]" for loop, step in self.steps]
        words += [f"at {list(self.index)}"] if self.index else []
        words += [f"in {self.function}"] if self.function else []
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class Stop:
    """A place on the way from the birth to the result."""

    op: str
    file: str
    lineno: int
    steps: tuple[tuple[str, int], ...]
    index: tuple[int, ...]
    direction: str
    kind: str


@dataclass(frozen=True, slots=True)
class Hidden:
    """What drops the value, but not the slope."""

    op: str
    file: str
    lineno: int


@dataclass(slots=True, repr=False)
class NonfiniteReport:
    """What `find_nonfinite` found. `ok`, `born`, `path`, `fix`; `str()`, `to_json()`, `to_html()`, `save_html(path)`.

    results: the outputs and gradients that hold NaN or infinities. born: where the first of them comes from.
    path: from there to the result, the birth first. origin: where the infinity or the kept number that met there was made, if elsewhere.
    hidden: what drops the value but not the slope. notes: what could not be looked at.
    """

    function: str
    results: tuple[Bad, ...] = ()
    born: Born | None = None
    path: tuple[Stop, ...] = ()
    origin: Born | None = None
    hidden: Hidden | None = None
    fix: str = ""
    finite: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    recorded: Callable[[Born], Cursor] | None = field(default=None, compare=False)  # the function, to be run again

    def cursor(self) -> Cursor:
        """The function on a tape of primitives, and a cursor at the action where it was born, which the viewer marks.

        In a notebook it shows itself there; `save_html` writes that page. It runs the function again, loops step by step.

        >>> import jax.numpy as jnp, tapejax as tj
        >>> report = tj.find_nonfinite(lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0).sum(), jnp.array([4.0, 0.0]))
        >>> cursor = report.cursor()
        >>> cursor.action.op, [term.value.tolist() for term in cursor.outgoing]
        ('Sqrt', [[0.25, nan]])
        """
        if self.born is None or self.recorded is None:
            raise ArgumentError(
                "there is nothing to step to: "
                + ("all is finite" if self.ok else "this report is of a tape's backward"),
                fix="report.cursor() is for what find_nonfinite(f, *args) found; tape.cursor(root) steps through a tape",
            )
        return self.recorded(self.born)

    @property
    def ok(self) -> bool:
        """Whether every output and every gradient is finite."""
        return not self.results

    def __bool__(self) -> bool:
        return self.ok

    def headline(self) -> str:
        if self.ok:
            return f"{self.function}: every output and gradient is finite"
        first = str(self.results[0])
        others = self.results[1:]
        more = f"; also bad: {', '.join(_label(bad) for bad in others)}" if others else ""
        return first + (f"; {', '.join(self.finite)} finite" if self.finite else "") + more

    def rows(self) -> list[tuple[str, str]]:
        """(label, text) of what is said below the headline."""
        rows: list[tuple[str, str]] = []
        if self.born is not None:
            rows.append(("born", f"{self.born.title}    {self.born.place}  {self.born.source}".rstrip()))
            if self.born.library:
                rows.append(("", f"inside {self.born.library}"))
            if self.born.numbers:
                rows.append(("", "   ".join(self.born.numbers)))
        if self.origin is not None:
            said = f"   {self.origin.numbers[0]}" if self.origin.numbers else ""
            rows.append(("from", f"{self.origin.title}    {self.origin.place}  {self.origin.source}{said}"))
        if self.hidden is not None:
            same = self.born is not None and self.born.file == self.hidden.file
            place = f":{self.hidden.lineno}" if same else f"{os.path.basename(self.hidden.file)}:{self.hidden.lineno}"
            rows.append(("hidden", f"`where` at {place} drops the value, not the slope"))
        if self.fix:
            rows.append(("try", self.fix))
        rows += [("note", note) for note in self.notes]
        return rows

    def __str__(self) -> str:
        return "\n".join([self.headline(), *(f"{label:<8}{text}" for label, text in self.rows())])

    def __repr__(self) -> str:
        return f"<nonfinite({self.function}): {self.headline()}>"

    def to_json(self) -> dict[str, Any]:
        """Everything, in types that json.dumps takes."""
        part = lambda thing: None if thing is None else asdict(thing)
        return plain_json({
            "function": self.function, "ok": self.ok, "results": [asdict(bad) for bad in self.results],
            "born": part(self.born), "path": [asdict(stop) for stop in self.path], "origin": part(self.origin),
            "hidden": part(self.hidden), "fix": self.fix, "notes": list(self.notes),
        })  # fmt: skip

    def _repr_html_(self) -> str:
        verdict = "right" if self.ok else "wrong"
        body = [f'<div class="verdict {verdict}">{escape(self.headline())}</div>']
        terms = "".join(f"<dt>{escape(label)}</dt><dd><code>{escape(text)}</code></dd>" for label, text in self.rows())
        body.append(f"<dl>{terms}</dl>" if terms else "")
        if self.path:
            body.append("<h2>from there to the result</h2>" + _table(self.path))
        return _page_part(f"nonfinite({self.function})", "".join(body))

    def to_html(self) -> str:
        """A page of its own, with nothing loaded from elsewhere."""
        from tapejax.verify.page import PAGE

        return PAGE.format(title=escape(f"nonfinite({self.function})"), body=self._repr_html_())

    def save_html(self, path: Any) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.to_html())


def _label(bad: Bad) -> str:
    return f"gradient of {bad.name}" if bad.what == "gradient" else bad.name


def _page_part(title: str, body: str) -> str:
    from tapejax.verify.page import STYLE

    return f'<div class="tj-report"><style>{STYLE}</style><h1>{escape(title)}</h1>{body}</div>'


def _table(path: Sequence[Stop]) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("op", "line", "steps", "element", "direction", ""))
    rows = []
    for stop in path:
        steps = " ".join(f"{loop}[{step}]" for loop, step in stop.steps)
        line = f"{os.path.basename(stop.file)}:{stop.lineno}" if stop.file else ""
        cells = (stop.op, line, steps, str(list(stop.index)), stop.direction, stop.kind)
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'
