"""The survey as a page: a section per jax version, each entry ready to be filed."""

from __future__ import annotations

import re
from pathlib import Path

import jax

from tapejax.verify.disagreements.judge import OUTSIDE, VALUE
from tapejax.verify.disagreements.reproducer import number, reproducer, title
from tapejax.verify.disagreements.survey import ORDER, Entry, Survey
from tapejax.verify.report import CONVENTION, JAX, TAPEJAX, UNDECIDED

HEADINGS = {
    JAX: "jax is wrong", TAPEJAX: "tapejax is wrong", UNDECIDED: "Undecided", CONVENTION: "A matter of convention",
    OUTSIDE: "Where the function has no finite value",
}  # fmt: skip
INTRODUCTION = """# Where tapejax and jax disagree

`tapejax disagreements` calls jax's functions at the edges of their domains, at both sides of their branch cuts, with
parameters that are not the defaults and under `jax.vmap`, and every sample of every rule: elementwise functions and products in
every dtype they take, the others in float64 and complex128. It compares tapejax's gradient with jax's. Where they differ,
extrapolated finite differences decide, and the complex step where the function takes complex numbers. `tapejax disagreements
--page docs/disagreements.md` writes the section of the installed jax (`--no-samples`: without the samples of the rules; `--keep FILE`: it
can be stopped, and goes on with what the file holds). Functions that jax wrote with others (`jax.numpy`, `jax.scipy`, `jax.nn`) are
judged by numbers even where tapejax and jax agree: both follow their code.

Each entry under "jax is wrong" can be filed as it stands: its heading is a title, the sentence says what is seen and
what is expected, and the code shows it without tapejax.
"""
SIZE = re.compile(r"^(\d+) calls, (\d+) checks, (\d+) s\. (.*)\.$", re.MULTILINE)
SECTION = re.compile(r"^## jax (\S+)$", re.MULTILINE)


def write(found: Survey, path: str | Path) -> None:
    """Put the section of the installed jax into a page; the sections of other versions stay as they are."""
    path = Path(path)
    sections = sections_of(path.read_text(encoding="utf-8")) if path.exists() else {}
    sections[jax.__version__] = section(found)
    path.write_text(page(sections), encoding="utf-8")


def sections_of(text: str) -> dict[str, str]:
    """The text of each section, by jax version."""
    parts = SECTION.split(text)
    return {version: body.strip("\n") + "\n" for version, body in zip(parts[1::2], parts[2::2], strict=True)}


def page(sections: dict[str, str]) -> str:
    rows = ["| jax | disagreements | calls | checks |", "| --- | --- | --- | --- |"]
    for version in sorted(sections, key=_as_numbers):
        sizes = SIZE.search(sections[version])
        assert sizes is not None
        rows.append(f"| {version} | {sizes[4]} | {sizes[1]} | {sizes[2]} |")
    body = [f"## jax {version}\n\n{sections[version]}" for version in sorted(sections, key=_as_numbers)]
    return "\n".join([INTRODUCTION, "\n".join(rows), "", *body])


def _as_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def section(found: Survey) -> str:
    counts = [f"{found.counts[verdict]} {_word(verdict)}" for verdict in ORDER if found.counts[verdict]]
    lines = [f"{found.calls} calls, {found.checks} checks, {found.seconds:.0f} s. {', '.join(counts) or 'None'}.", ""]
    if not found.samples:
        lines += ["Without the rules' samples: `tapejax verify` compares those with jax and differences, too.", ""]
    for verdict in ORDER:
        mine = [entry for entry in found.entries if entry.verdict == verdict]
        if not mine:
            continue
        lines += [f"### {HEADINGS[verdict]}", ""]
        if verdict == OUTSIDE:
            lines += _table(mine)
            continue
        for entry in mine:
            lines += [
                f"#### {_heading(entry)}",
                "",
                _sentence(entry),
                "",
                "```text",
                reproducer(entry.first),
                "```",
                "",
            ]
    ours = [r for r in found.refused if r.who == JAX and r.right]
    if ours:
        lines += [
            "### jax has no derivative",
            "",
            "Here tapejax gives one, and it is the slope that differences give.",
            "",
        ]
        lines += ["| primitive | call | jax says |", "| --- | --- | --- |"]
        lines += [f"| `{r.call.primitive}` | {_code(r.call.text)} | {_cell(r.error)} |" for r in ours] + [""]
    theirs = [r for r in found.refused if r.who == TAPEJAX]
    if theirs:
        lines += ["### tapejax has no derivative", "", "| primitive | call | tapejax says |", "| --- | --- | --- |"]
        lines += [f"| `{r.call.primitive}` | {_code(r.call.text)} | {_cell(r.error)} |" for r in theirs] + [""]
    return "\n".join(lines)


def _word(verdict: str) -> str:
    return {
        JAX: "of jax", TAPEJAX: "of tapejax", UNDECIDED: "undecided", CONVENTION: "by convention",
        OUTSIDE: "where the function has no finite value",
    }[verdict]  # fmt: skip


def _heading(entry: Entry) -> str:
    kind = "Wrong " if entry.verdict in (JAX, TAPEJAX) else ""
    return f"{kind}{_short(title(entry.first))} ({', '.join(entry.dtypes)})"


def _short(text: str) -> str:
    """Long parameters are in the code below."""
    text = re.sub(r"lax\.(Gather|Scatter)DimensionNumbers\([^)]*\(.*?\)\)", "...", text)
    return f"`{text}`" if len(text) <= 110 else f"`{text[:107]}...`"


def _sentence(entry: Entry) -> str:
    first, numbers = entry.first, entry.first.numbers
    if first.what == VALUE:
        return f"`jax.vjp` returns {number(first.jax)} as the function's value; the function itself gives {number(first.ours)}."
    if numbers is None:
        return f"`jax.vmap` gives {number(first.jax)}; row by row the same function gives {number(first.ours)}."
    said = [f"`jax.grad` gives {number(first.jax)}, tapejax {number(first.ours)}"]
    if numbers.slope is not None:
        said.append(f"central differences {number(numbers.slope)}")
    elif numbers.beside is not None:
        place = "beside the branch cut" if isinstance(numbers.beside, complex) else "from inside the domain"
        said.append(f"differences {place} {number(numbers.beside)}")
    elif numbers.sides is not None:
        said.append(f"the slopes are {number(numbers.sides[0])} from below and {number(numbers.sides[1])} from above")
    else:
        said.append("differences do not settle")
    if numbers.complex_step is not None and numbers.slope is not None and entry.verdict == JAX:
        said.append(f"the complex step {number(numbers.complex_step)}")
    more = ""
    if len(entry.points) > 1:
        more = f" Seen at {len(entry.points)} points: {'; '.join(entry.points[:8])}{'; ...' if len(entry.points) > 8 else ''}."
    if entry.batched and not first.call.batch:
        more += " Under `jax.vmap` too."
    return f"{', '.join(said)}.{more}"


def _table(entries: list[Entry]) -> list[str]:
    rows = ["| call | dtypes | points | jax | tapejax |", "| --- | --- | --- | --- | --- |"]
    for entry in entries:
        first = entry.first
        where = "; ".join(entry.points[:4]) + ("; ..." if len(entry.points) > 4 else "")
        rows.append(
            f"| {_code(first.call.text)} | {', '.join(entry.dtypes)} | {where} | {number(first.jax)} | {number(first.ours)} |"
        )
    return [*rows, ""]


def _code(text: str) -> str:
    return _short(text).replace("|", "\\|")


def _cell(text: str) -> str:
    return text[:100].replace("|", "\\|").replace("<", "&lt;")
