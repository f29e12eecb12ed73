"""A report as HTML: a fragment for notebooks, a page of its own for the command line. Nothing is loaded from elsewhere."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from tapejax.verify.report import Findings

# Colours by role; the dark set follows the reader's system.
STYLE = """
.tj-report{--ink:#1d2430;--soft:#5d6878;--line:#dde2ea;--band:#f5f7fa;--paper:#fff;--good:#12703f;--good-band:#e3f4ea;
 --bad:#b3202c;--bad-band:#fde8e9;--open:#8a5a00;--open-band:#fdf1d8;color:var(--ink);background:var(--paper);
 font:14px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;text-align:left}
@media(prefers-color-scheme:dark){.tj-report{--ink:#e4e8ee;--soft:#9aa5b4;--line:#313a48;--band:#1c222c;--paper:#12161d;
 --good:#6fd79d;--good-band:#12301f;--bad:#ff8f96;--bad-band:#3a1619;--open:#f0c26b;--open-band:#33280f}}
.tj-report h1{font-size:20px;line-height:1.3;margin:0 0 4px;font-weight:650;overflow-wrap:anywhere}
.tj-report h2{font-size:14px;margin:24px 0 8px;color:var(--soft);font-weight:600}
.tj-report .verdict{margin:16px 0;padding:12px 16px;border-radius:8px;font-size:15px;border-left:4px solid;overflow-wrap:anywhere}
.tj-report .right{color:var(--good)}.tj-report .wrong{color:var(--bad)}.tj-report .unchecked{color:var(--open)}
.tj-report .verdict.right{background:var(--good-band)}.tj-report .verdict.wrong{background:var(--bad-band)}
.tj-report .about{color:var(--soft);margin:0}
.tj-report .scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px}
.tj-report table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;margin:0}
.tj-report th,.tj-report td{padding:6px 12px;border:0;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap;
 background:none;color:inherit}
.tj-report tr:last-child td{border-bottom:0}
.tj-report th{background:var(--band);color:var(--soft);font-weight:600;font-size:12px;position:sticky;top:0}
.tj-report td.number,.tj-report th.number{text-align:right}
.tj-report td.mono,.tj-report code{font-family:ui-monospace,"SF Mono",Menlo,Consolas,monospace;font-size:12.5px}
.tj-report tr.wrong td{background:var(--bad-band);color:var(--ink)}.tj-report tr.total td{font-weight:650;background:var(--band)}
.tj-report td.word{font-weight:600}.tj-report tr.wrong td.word.wrong{color:var(--bad)}
.tj-report dl{display:grid;grid-template-columns:max-content 1fr;gap:6px 16px;margin:0}
.tj-report dt{font-weight:600;color:var(--soft)}.tj-report dt.wrong{color:var(--bad)}
.tj-report dd{margin:0;overflow-wrap:anywhere}
"""

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title>
<style>body{{margin:0;background:#fff}}@media(prefers-color-scheme:dark){{body{{background:#12161d}}}}
body>.tj-report{{max-width:1040px;margin:0 auto;padding:32px 24px}}</style></head>
<body>{body}</body></html>
"""

VERDICTS = ("right", "wrong", "unchecked")


def page(report: Findings) -> str:
    """The report as a page of its own."""
    return PAGE.format(title=escape(report.title), body=fragment(report))


def fragment(report: Findings) -> str:
    """The report as a part of a page."""
    verdict = "right" if report.ok else "wrong"
    seconds = getattr(report, "seconds", 0.0)
    parts = [
        f"<h1>{escape(report.title)}</h1>",
        f'<p class="about">jax {escape(jax.__version__)} on {escape(_device(report))}, {seconds:.1f} s</p>',
        f'<div class="verdict {verdict}">{code(_sentence(report.verdict_line))}</div>',
    ]
    for heading, rows, verdicts in report.tables():
        if heading:
            parts.append(f"<h2>{escape(heading)}</h2>")
        parts.append(_table(rows, verdicts))
    remarks = report.remarks()
    if remarks:
        parts.append("<h2>remarks</h2>")
        parts.append(f"<dl>{''.join(_remark(label, text) for label, text in remarks)}</dl>")
    return f'<div class="tj-report"><style>{STYLE}</style>{"".join(parts)}</div>'


def _device(report: Any) -> str:
    from tapejax.verify.report import device

    return getattr(report, "device", None) or device()


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _remark(label: str, text: str) -> str:
    kind = ' class="wrong"' if label in ("WRONG", "culprit") else ""
    return f"<dt{kind}>{escape(label.lower())}</dt><dd>{code(text)}</dd>"


def _table(rows: Any, verdicts: list[str]) -> str:
    head, *body = [list(map(str, row)) for row in rows]
    numeric = [bool(body) and all(_is_number(row[i]) for row in body) for i in range(len(head))]
    align = lambda i: ' class="number"' if numeric[i] else ""
    out = ["<tr>", *(f"<th{align(i)}>{escape(cell)}</th>" for i, cell in enumerate(head)), "</tr>"]
    for row, verdict in zip(body, verdicts, strict=True):
        kind = f' class="{verdict}"' if verdict in ("wrong", "total") else ""
        cells = []
        for i, cell in enumerate(row):
            if cell in VERDICTS:
                cells.append(f'<td class="word {cell}">{cell}</td>')
            else:
                cells.append(f'<td class="{"number" if numeric[i] else "mono" if i == 0 else ""}">{escape(cell)}</td>')
        out += [f"<tr{kind}>", *cells, "</tr>"]
    return f'<div class="scroll"><table>{"".join(out)}</table></div>'


def _is_number(text: str) -> bool:
    if text == "":
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def code(text: str) -> str:
    """Escaped text with `names` set as code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if i % 2 else piece for i, piece in enumerate(pieces))
