"""Results as tables (Markdown, also readable as they are) and as a plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import bars
from benchmarks.statistics import Spread, ratio, spread

TITLES = {
    "forward": "forward with recording",
    "gradient": "forward and backward",
    "compiled": "compiled in one piece (twice the rounds)",
}
MANY_TIMES = 20
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *body)]
    line = lambda cells: "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths)) + " |"
    return "\n".join([line(head), line(["-" * width for width in widths]), *map(line, body)])


def seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def factor(value: float) -> str:
    if value < 0.1:
        return f"{value:.3f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.2f}"


# --- tables ------------------------------------------------------------------------------------------


def text(results: dict[str, Any], beside: dict[str, Any] | None = None) -> str:
    """The whole report; beside: another run, whose figures stand beside those of the bars."""
    parts = [machine(results), "### The bars", bar_table(results, beside)]
    for name, measured in results["workloads"].items():
        parts += workload_tables(name, measured)
    if results["scale"]:
        parts.append(scale_table(results["scale"]))
    return "\n\n".join(parts) + "\n"


def machine(results: dict[str, Any]) -> str:
    rows = [[key, value] for key, value in results["environment"].items()]
    rows += [["rounds", str(results["rounds"])], ["settings", results.get("settings", "")]]
    rows += [["command", f"`{results['command']}`"]]
    if "minutes" in results:
        rows.append(["took", f"{results['minutes']:.1f} minutes"])
    rows += [[f"skipped: {name}", why] for name, why in results["skipped"].items()]
    return table(["what", "value"], rows)


def bar_table(results: dict[str, Any], beside: dict[str, Any] | None = None) -> str:
    return rows_table(bars.rows(results), bars.rows(beside) if beside else None, beside and beside["settings"])


def rows_table(rows: Sequence[bars.Row], beside: Sequence[bars.Row] | None = None, head: str | None = None) -> str:
    """The table of bars; beside: the same rows of another run, under the name `head`."""
    others = {row.measure: row.value for row in beside or ()}
    body = []
    for row in rows:
        value, around = _shown(row.value)
        line = [row.measure, value, around, f"{row.bar:.3g}", row.verdict]
        if beside is not None:
            line.append(_shown(others.get(row.measure))[0])
        body.append([*line, row.note])
    extra = [] if beside is None else [head or "beside"]
    return table(["measure", "measured", "quartiles", "at most", "", *extra, "note"], body)


def _shown(value: Spread | None) -> tuple[str, str]:
    if value is None:
        return "", ""
    return factor(value.median), f"{factor(value.low)} to {factor(value.high)}"


def workload_tables(name: str, measured: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    for mode, title in TITLES.items():
        if measured.get(mode):
            yield f"{title}:\n\n" + time_table(measured[mode])
    if "compilation" in measured:
        yield "compiling:\n\n" + compile_table(measured["compilation"])
    if measured.get("unsettled"):
        yield f"Still compiling when it was timed: {'; '.join(measured['unsettled'])}."
    if measured.get("absent"):
        yield "\n".join(f"- without {who}: {why}" for who, why in measured["absent"].items())


def time_table(times: dict[str, Any]) -> str:
    """The fastest first; ratios are medians of what was measured in the same round."""
    order = sorted(times, key=lambda name: spread(times[name]["seconds"]).median)
    ours = "tapejax" if "tapejax" in times else bars.OURS
    head = ["contestant", "median", "quartiles", "/ fastest", f"/ {ours}", "cores"]
    body = []
    for name in order:
        each = times[name]["seconds"]
        value = spread(each)
        body.append([
            name, seconds(value.median), f"{seconds(value.low)} to {seconds(value.high)}",
            factor(ratio(each, times[order[0]]["seconds"]).median),
            factor(ratio(each, times[ours]["seconds"]).median) if ours in times else "",
            f"{spread(times[name]['cores']).median:.2f}",
        ])  # fmt: skip
    return table(head, body)


def compile_table(found: dict[str, Any]) -> str:
    labels = {"warm": "trace + lower", "cold": "trace + lower, caches empty", "compile": "XLA compile"}
    body = []
    for key, label in labels.items():
        ours, theirs = found[bars.OURS][key], found[bars.JAX][key]
        apart = ratio(ours, theirs)
        body.append([
            label, seconds(spread(ours).median), seconds(spread(theirs).median), factor(apart.median),
            f"{factor(apart.low)} to {factor(apart.high)}",
        ])  # fmt: skip
    ours, theirs = found[bars.OURS]["temp_bytes"], found[bars.JAX]["temp_bytes"]
    body.append(["XLA temp bytes", f"{ours:,}", f"{theirs:,}", factor(ours / theirs) if theirs else "", ""])
    return table(["measure", bars.OURS, bars.JAX, "ratio", "quartiles"], body)


def scale_table(found: dict[str, Any]) -> str:
    """One action of a chain of adds, by way."""
    body = []
    for length, row in found.items():
        for way, times in row.items():
            if way != "bytes":
                each = [seconds(spread(times[part]).median) for part in ("forward", "backward", "asked")]
                body.append([f"{int(length):,}", way, *each, *_weights(int(length), row.get("bytes"))])
    head = ["actions", "way", "forward", "backward", "all asked for", "bytes (Python)", "bytes (resident)"]
    return "### Scale: one action of a chain of adds\n\n" + table(head, body)


def _weights(length: int, bytes: dict[str, float] | None) -> tuple[str, str]:
    if bytes is None:
        return "", ""
    return (
        f"{bytes['traced']:.0f}",
        f"{bytes['resident']:.0f}" if length >= 10_000 else "",
    )  # pages are too coarse for less


def fill(page: str, figures: str) -> str:
    """A page with the text between its markers replaced."""
    before, _, rest = page.partition(BEGIN)
    _, marker, after = rest.partition(END)
    if not marker:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{figures}\n{END}{after}"


# --- plot --------------------------------------------------------------------------------------------


def plot(results: dict[str, Any], path: str) -> None:
    """Forward and backward of every contestant, a panel per workload: medians, quartiles as whiskers."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = {name: measured["gradient"] for name, measured in results["workloads"].items() if measured.get("gradient")}
    if not shown:
        raise ValueError("nothing to plot: no workload was timed")
    columns = min(3, len(shown))
    lines = -(-len(shown) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(5.2 * columns, 2.9 * lines), squeeze=False)
    for axis in axes.flat[len(shown) :]:
        axis.set_visible(False)
    for axis, (name, times) in zip(axes.flat, shown.items()):
        order = sorted(times, key=lambda who: -spread(times[who]["seconds"]).median)
        values = [spread(times[who]["seconds"]) for who in order]
        middle = [1e6 * value.median for value in values]
        whiskers = [[1e6 * (v.median - v.low) for v in values], [1e6 * (v.high - v.median) for v in values]]
        colours = ["tab:orange" if who.startswith("tapejax") else "tab:blue" for who in order]
        axis.barh(order, middle, xerr=whiskers, color=colours)
        if max(middle) > MANY_TIMES * min(middle):
            axis.set_xscale("log")  # otherwise bars begin at zero, so that their lengths compare
        axis.set_title(name)
        axis.set_xlabel("microseconds, one thread")
        axis.tick_params(labelsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
