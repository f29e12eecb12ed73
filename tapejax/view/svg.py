"""The graph as SVG, written once: inputs left, loss right. The stepper only changes classes in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from html import escape

from tapejax.view.graph import MANY, ActionInfo, Graph, Region
from tapejax.view.layout import Box, place

MARGIN = 26
HEIGHT = 44
FAR = 14  # actions: what was drawn longer ago is drawn anew, since an edge over many boxes tells nothing


def draw(graph: Graph) -> str:
    """All actions, or the regions of a long tape."""
    return _regions(graph) if graph.regions else _actions(graph, graph.actions)


def draw_region(graph: Graph, region: Region) -> str:
    """The inside of a region."""
    start = graph.actions[0].index
    return _actions(graph, graph.actions[region.first - start : region.last - start + 1])


class _Picture:
    """Boxes with their drawing, edges with theirs."""

    def __init__(self) -> None:
        self.boxes: list[Box] = []
        self.shapes: list[tuple[str, str, list[str], str]] = []  # attributes, kind, lines, spoken label
        self.edges: list[tuple[int, int, str]] = []

    def box(self, kind: str, attributes: str, lines: list[str], spoken: str) -> int:
        longest = max(len(lines[0]) * 7.6, *(len(line) * 6.2 for line in lines[1:]), 30.0)
        height = HEIGHT if len(lines) > 1 else 30
        self.boxes.append(Box(min(longest, 190) + 24, height))
        self.shapes.append((attributes, kind, lines, spoken))
        return len(self.boxes) - 1

    def svg(self, title: str) -> str:
        placed = place(self.boxes, [(start, stop) for start, stop, _ in self.edges])
        width, height = placed.width + 2 * MARGIN, placed.height + 2 * MARGIN + 10
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="graph" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'data-width="{width:.0f}" data-height="{height:.0f}" role="group" aria-label="{escape(title)}">'
        ]
        parts += self._paths(placed.bends)
        for box, (attributes, kind, lines, spoken) in zip(self.boxes, self.shapes, strict=True):
            parts.append(_node(box, attributes, kind, lines, spoken))
        return "".join([*parts, "</svg>"])

    def _paths(self, bends: Sequence[Sequence[tuple[float, float]]]) -> Iterable[str]:
        arrivals: dict[int, list[int]] = {}
        for edge, (_, stop, _) in enumerate(self.edges):
            arrivals.setdefault(stop, []).append(edge)
        port: dict[int, float] = {}
        for stop, edges in arrivals.items():  # from top to bottom as they come, so that they do not cross at the box
            before = lambda edge: bends[edge][-1][1] if bends[edge] else self.boxes[self.edges[edge][0]].y
            edges.sort(key=before)
            step = min(9.0, (self.boxes[stop].height - 12) / max(len(edges), 1))
            for i, edge in enumerate(edges):
                port[edge] = (i - (len(edges) - 1) / 2) * step
        for edge, (start, stop, attributes) in enumerate(self.edges):
            a, b = self.boxes[start], self.boxes[stop]
            points = [(a.x + a.width / 2, a.y), *bends[edge], (b.x - b.width / 2 - 5, b.y + port[edge])]
            yield f'<path class="edge" {attributes} d="{_curve(points)}"/>'


def _curve(points: Sequence[tuple[float, float]]) -> str:
    shift = lambda x, y: f"{x + MARGIN:.1f} {y + MARGIN:.1f}"
    path = [f"M{shift(*points[0])}"]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if abs(y0 - y1) < 0.5:
            path.append(f"L{shift(x1, y1)}")
        else:
            half = (x1 - x0) / 2
            path.append(f"C{shift(x0 + half, y0)} {shift(x1 - half, y1)} {shift(x1, y1)}")
    return "".join(path)


def _node(box: Box, attributes: str, kind: str, lines: list[str], spoken: str) -> str:
    x, y = box.x - box.width / 2 + MARGIN, box.y - box.height / 2 + MARGIN
    middle = box.width / 2
    round_ = box.height / 2 if kind.startswith("leaf") else 8
    heads = [
        f'<text class="name" x="{middle:.1f}" y="{18 if len(lines) > 1 else 19}">{escape(_short(lines[0], 25))}</text>'
    ]
    heads += [f'<text class="kind" x="{middle:.1f}" y="34">{escape(_short(line, 30))}</text>' for line in lines[1:]]
    extra = behind = ""
    if kind == "region bundle":  # a stack
        behind = f'<rect class="behind" x="5" y="-5" width="{box.width:.1f}" height="{box.height:.0f}" rx="8"/>'
    if kind.startswith("region"):
        extra = (
            f'<rect class="track" x="10" y="{box.height - 6}" width="{box.width - 20:.1f}" height="3" rx="1.5"/>'
            f'<rect class="fill" x="10" y="{box.height - 6}" width="0" height="3" rx="1.5" data-full="{box.width - 20:.1f}"/>'
        )
    return (
        f'<g class="node {kind}" {attributes} transform="translate({x:.1f} {y:.1f})" role="img"><title>{escape(spoken)}</title>{behind}'
        f'<rect class="box" width="{box.width:.1f}" height="{box.height:.0f}" rx="{round_:.0f}"/>'
        f'{"".join(heads)}{extra}<text class="norm" x="{middle:.1f}" y="{box.height + 13:.0f}"></text></g>'
    )


def _short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _actions(graph: Graph, actions: Sequence[ActionInfo]) -> str:
    picture = _Picture()
    made: dict[int, int] = {}  # by tensor, the box it comes from
    drawn: dict[int, int] = {}  # by tensor, the action it was drawn for
    for action in actions:
        for number in dict.fromkeys(action.inputs):
            tensor = graph.tensors[number]
            # What no gradient flows to is drawn anew for each reader: a long edge would tell nothing.
            unwanted = tensor.leaf and not tensor.wants_gradient
            if number not in made or unwanted or action.index - drawn[number] > FAR:
                made[number] = _leaf(picture, graph, number)
                drawn[number] = action.index
        outputs = [graph.tensors[number] for number in action.outputs]
        lines = [action.op]
        if outputs:
            more = f" +{len(outputs) - 1}" if len(outputs) > 1 else ""
            lines.append(f"{outputs[0].label} {outputs[0].size}{more}".strip())
        spoken = f"action {action.index}: {action.text}" + (f", {action.place}" if action.place else "")
        box = picture.box("op", f'data-action="{action.index}"', lines, spoken)
        for number in action.inputs:  # one for each operand: x * x has two
            picture.edges.append((made[number], box, f'data-tensor="{number}" data-reader="{action.index}"'))
        made.update(dict.fromkeys(action.outputs, box))
        drawn.update(dict.fromkeys(action.outputs, action.index))
    return picture.svg("the graph of the tape: inputs left, results right")


def _leaf(picture: _Picture, graph: Graph, number: int) -> int:
    tensor = graph.tensors[number]
    if tensor.leaf:
        kind = "leaf" if tensor.wants_gradient else "leaf constant"
        spoken = f"input {tensor.label} {tensor.kind}" + ("" if tensor.wants_gradient else ", needs no gradient")
    else:
        kind, spoken = "leaf outside", f"{tensor.label} {tensor.kind}, made earlier on the tape"
    return picture.box(kind, f'data-tensor="{number}"', [tensor.label, tensor.size or "?"], spoken)


def _regions(graph: Graph) -> str:
    """Loops and regions, each with the inputs that it reads and that want a gradient."""
    picture = _Picture()
    start = graph.actions[0].index
    made: dict[int, int] = {}  # by tensor, the box it comes from
    for bundle, numbers in graph.units():
        first, last = graph.regions[numbers[0]].first, graph.regions[numbers[-1]].last
        inside = graph.actions[first - start : last - start + 1]
        read = dict.fromkeys(tensor for action in inside for tensor in action.inputs)
        place = f'data-first="{first}" data-last="{last}"'
        leaves = [tensor for tensor in read if graph.tensors[tensor].leaf and graph.tensors[tensor].wants_gradient]
        inputs = _inputs(picture, graph, leaves) if leaves else None
        box = _unit(picture, graph, bundle, numbers, place)
        if inputs is not None:
            picture.edges.append((inputs, box, f'data-tensors="{" ".join(map(str, leaves))}" {place}'))
        drawn = set()
        for tensor in read:
            there = made.get(tensor)
            if there is not None and there not in drawn:
                drawn.add(there)
                picture.edges.append((there, box, f'data-tensors="{tensor}" {place}'))
        made.update((tensor, box) for action in inside for tensor in action.outputs)
    return picture.svg("the regions of the tape: inputs left, results right")


def _unit(picture: _Picture, graph: Graph, bundle: int | None, numbers: Sequence[int], place: str) -> int:
    """A region, or a loop of them."""
    first, last = graph.regions[numbers[0]].first, graph.regions[numbers[-1]].last
    count, span = last - first + 1, f"{first}–{last}" if last > first else f"{first}"
    if bundle is None:
        label = graph.regions[numbers[0]].label
        spoken = f"region {numbers[0]}: {label}, {count} actions, {first} to {last}"
        return picture.box("region", f'data-region="{numbers[0]}" {place}', [label, span], spoken)
    label = graph.bundles[bundle].label
    spoken = f"loop: {label}, {count} actions, {first} to {last}; opens to its steps"
    return picture.box("region bundle", f'data-bundle="{bundle}" {place}', [label, span], spoken)


def _inputs(picture: _Picture, graph: Graph, numbers: Sequence[int]) -> int:
    """The parameters that a region reads, in one box."""
    tensors = [graph.tensors[number] for number in numbers]
    names = ", ".join(tensor.label for tensor in tensors)
    if len(tensors) > 1 and len(names) > 24:
        names = f"{tensors[0].label} +{len(tensors) - 1}"
    spoken = "reads " + ", ".join(f"{tensor.label} {tensor.kind}" for tensor in tensors[:MANY])
    size = tensors[0].size if len(tensors) == 1 else f"{len(tensors)} inputs"
    return picture.box("leaf inputs", f'data-tensors="{" ".join(map(str, numbers))}"', [names, size or "?"], spoken)
