"""The log as a table: op, inputs, outputs, shapes, line; the stepper fills in gradient norms as they come."""

from __future__ import annotations

from html import escape

from tapejax.view.graph import ActionInfo, Graph, Region

COLUMNS = ("", "op", "inputs", "outputs", "shape", "‖∇‖", "line")


def table(graph: Graph, norms: dict[int, str]) -> str:
    """The rows in tape order. norms: of the gradients, by tensor number."""
    head = "".join(f'<th scope="col">{escape(column) or "#"}</th>' for column in COLUMNS)
    rows: list[str] = []
    regions = {region.first: (number, region) for number, region in enumerate(graph.regions)}
    inside, region = False, Region("", 0, 0)
    for action in graph.actions:
        if action.index in regions:
            number, region = regions[action.index]
            count = region.last - region.first + 1
            rows.append("</tbody>" * inside)
            rows.append(
                f'<tbody class="group"><tr data-region="{number}"><th scope="rowgroup" colspan="{len(COLUMNS)}">'
                f'<button type="button" aria-expanded="false">{escape(region.label)}</button>'
                f"<span>{region.first}–{region.last} · {count} action{'s' * (count > 1)}</span></th></tr></tbody>"
                f'<tbody class="body" data-region="{number}" hidden>'
            )
            inside = True
        rows.append(_row(graph, action, norms, region.label if inside else ""))
    rows.append("</tbody>" if inside else "")
    body = "".join(rows) if graph.regions else f"<tbody>{''.join(rows)}</tbody>"
    return f'<table class="log"><thead><tr>{head}</tr></thead>{body}</table>'


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
