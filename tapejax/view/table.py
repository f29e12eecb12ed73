"""The log as a table: op, inputs, outputs, shapes, line; the stepper fills in gradient norms as they come."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tapejax.view.graph import ActionInfo, Bundle, Graph, Region

COLUMNS = ("", "op", "inputs", "outputs", "shape", "‖∇‖", "line")


def parts(graph: Graph, norms: dict[int, str]) -> tuple[str, list[str]]:
    """The table with its regions empty, and the rows of each region, which are put in as it is opened.

    norms: of the gradients, by tensor number.
    """
    head = "".join(f'<th scope="col">{escape(column) or "#"}</th>' for column in COLUMNS)
    if graph.regions:
        body, first = [], graph.actions[0].index
        rows = []
        for bundle, numbers in graph.units():
            if bundle is not None:
                body.append(_loop_heading(bundle, graph.bundles[bundle], graph.regions))
            for number in numbers:
                region = graph.regions[number]
                body.append(_heading(number, region, bundle) + _empty(number))
                inside = graph.actions[region.first - first : region.last - first + 1]
                rows.append("".join(_row(graph, action, norms, region.label) for action in inside))
    else:
        body, rows = [f"<tbody>{''.join(_row(graph, action, norms, '') for action in graph.actions)}</tbody>"], []
    return f'<table class="log"><thead><tr>{head}</tr></thead>{"".join(body)}</table>', rows


def filled(outline: str, rows: list[str]) -> str:
    """The table with the rows of all regions in it, open."""
    for number, inside in enumerate(rows):
        outline = outline.replace(_empty(number), f'<tbody class="body">{inside}</tbody>')
    return outline.replace(_FOLDED, "")


_FOLDED = ' data-folded="" hidden'  # of what belongs to a loop that is not opened


def _heading(number: int, region: Region, bundle: int | None) -> str:
    inside = "" if bundle is None else f' data-of="{bundle}"{_FOLDED}'
    kind = "group" if bundle is None else "group turn"
    return _group(f'class="{kind}"{inside}', f'data-region="{number}"', region.label, region.first, region.last)


def _loop_heading(number: int, bundle: Bundle, regions: Sequence[Region]) -> str:
    first, last = regions[bundle.first].first, regions[bundle.last].last
    return _group('class="group"', f'data-bundle="{number}"', bundle.label, first, last)


def _group(kind: str, of: str, label: str, first: int, last: int) -> str:
    count = last - first + 1
    return (
        f'<tbody {kind}><tr {of}><th scope="rowgroup" colspan="{len(COLUMNS)}">'
        f'<button type="button" aria-expanded="false">{escape(label)}</button>'
        f"<span>{first}–{last} · {count} action{'s' * (count > 1)}</span></th></tr></tbody>"
    )


def _empty(number: int) -> str:
    return f'<tbody class="body" data-region="{number}" hidden></tbody>'


def _row(graph: Graph, action: ActionInfo, norms: dict[int, str], said: str) -> str:
    show = lambda numbers: " ".join(_tensor(graph, number) for number in numbers)
    shapes = ", ".join(graph.tensors[number].kind for number in action.outputs)
    steps = action.loop and action.loop != said and f' <span class="loop">{escape(action.loop)}</span>'
    found = ", ".join(norms[number] for number in action.outputs if number in norms)
    return (
        f'<tr data-action="{action.index}"><td class="place">{action.index}</td>'
        f'<td class="op">{escape(action.op)}{steps or ""}</td><td>{show(action.inputs)}</td><td>{show(action.outputs)}</td>'
        f'<td class="shape">{escape(shapes)}</td><td class="norm">{escape(found)}</td>'
        f'<td class="line" title="{escape(action.line)}">{escape(action.place)}</td></tr>'
    )


def _tensor(graph: Graph, number: int) -> str:
    tensor = graph.tensors[number]
    constant = "" if tensor.wants_gradient else " constant"
    title = f"%{number} {tensor.kind}".strip()
    return (
        f'<span class="tensor{constant}" data-tensor="{number}" title="{escape(title)}">{escape(tensor.label)}</span>'
    )
