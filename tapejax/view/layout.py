"""Where the boxes of a graph go: layers from left to right, few crossings, short edges. Pure Python.

A tape is sorted already, so the layers are free: one past the last of what a node reads. An edge
over several layers gets a bend in each. Crossings are reduced by barycenters, sweeping to and fro;
then each layer is placed, in its order, as near as it can be to its neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

SWEEPS = 12
GAP_X, GAP_Y = 46.0, 22.0


@dataclass(slots=True)
class Box:
    """Something to place: its size, and after `place` its layer and the middle of it."""

    width: float
    height: float
    layer: int = 0
    x: float = 0.0
    y: float = 0.0


@dataclass(slots=True)
class Placed:
    """The picture's size and, for each edge, the bends between its two boxes."""

    width: float
    height: float
    bends: list[list[tuple[float, float]]] = field(default_factory=list)


def place(boxes: Sequence[Box], edges: Sequence[tuple[int, int]]) -> Placed:
    """Give every box a place. Edges go from a box to one later in the sequence."""
    _layers(boxes, edges)
    n_boxes = len(boxes)
    everything = list(boxes)
    links: list[tuple[int, int]] = []
    chains: list[list[int]] = []
    for start, stop in edges:
        chain = []
        before = start
        for layer in range(boxes[start].layer + 1, boxes[stop].layer):
            chain.append(len(everything))
            everything.append(Box(0.0, 6.0, layer))
            links.append((before, chain[-1]))
            before = chain[-1]
        links.append((before, stop))
        chains.append(chain)

    left: list[list[int]] = [[] for _ in everything]
    right: list[list[int]] = [[] for _ in everything]
    for start, stop in links:
        left[stop].append(start)
        right[start].append(stop)
    layers: list[list[int]] = [[] for _ in range(1 + max((box.layer for box in everything), default=-1))]
    for number, box in enumerate(everything):
        layers[box.layer].append(number)

    layers = _reduce_crossings(layers, left, right)
    width = _columns(everything, layers)
    height = _rows(everything, layers, left, right)
    bends = [[(everything[number].x, everything[number].y) for number in chain] for chain in chains]
    assert len(boxes) == n_boxes
    return Placed(width, height, bends)


def _layers(boxes: Sequence[Box], edges: Sequence[tuple[int, int]]) -> None:
    reads: list[list[int]] = [[] for _ in boxes]
    readers: list[list[int]] = [[] for _ in boxes]
    for start, stop in edges:
        reads[stop].append(start)
        readers[start].append(stop)
    for number, box in enumerate(boxes):
        box.layer = 1 + max((boxes[source].layer for source in reads[number]), default=-1)
    for number in reversed(range(len(boxes))):
        # An input, or what is made of inputs alone, stands just before its first use.
        if readers[number] and not any(reads[source] for source in reads[number]):
            boxes[number].layer = min(boxes[reader].layer for reader in readers[number]) - 1


def _reduce_crossings(layers: list[list[int]], left: list[list[int]], right: list[list[int]]) -> list[list[int]]:
    best, fewest = layers, crossings(layers, right)
    layers = [list(layer) for layer in layers]
    for sweep in range(SWEEPS):
        if fewest == 0:
            break
        onwards = sweep % 2 == 0
        neighbours = left if onwards else right
        order = range(1, len(layers)) if onwards else range(len(layers) - 2, -1, -1)
        for number in order:
            place_of = {node: i for i, node in enumerate(layers[number - 1 if onwards else number + 1])}
            own = {node: i for i, node in enumerate(layers[number])}

            def center(node: int, place_of=place_of, own=own, neighbours=neighbours) -> float:
                places = [place_of[other] for other in neighbours[node]]
                return sum(places) / len(places) if places else own[node]

            layers[number].sort(key=center)
        found = crossings(layers, right)
        if found < fewest:
            best, fewest = [list(layer) for layer in layers], found
    return best


def crossings(layers: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> int:
    """How many pairs of edges cross between neighbouring layers."""
    total = 0
    for here, there in itertools.pairwise(layers):
        place_of = {node: i for i, node in enumerate(there)}
        ends = [place for node in here for place in sorted(place_of[other] for other in right[node])]
        counts = [0] * (len(there) + 1)  # a Fenwick tree over the ends seen so far
        for seen, end in enumerate(ends):
            i, before = end + 1, 0
            while i:
                before += counts[i]
                i -= i & -i
            total += seen - before
            i = end + 1
            while i < len(counts):
                counts[i] += 1
                i += i & -i
    return total


def _columns(boxes: Sequence[Box], layers: Sequence[Sequence[int]]) -> float:
    x = 0.0
    for layer in layers:
        widest = max(boxes[number].width for number in layer)
        for number in layer:
            boxes[number].x = x + widest / 2
        x += widest + GAP_X
    return max(x - GAP_X, 0.0)


def _rows(
    boxes: Sequence[Box], layers: Sequence[Sequence[int]], left: list[list[int]], right: list[list[int]]
) -> float:
    for layer in layers:
        y = 0.0
        for number in layer:
            boxes[number].y = y + boxes[number].height / 2
            y += boxes[number].height + GAP_Y
    for sweep in range(SWEEPS):
        order = layers if sweep % 2 == 0 else layers[::-1]
        for layer in order:
            wanted = []
            for number in layer:
                near = left[number] if sweep % 2 == 0 else right[number]
                near = near if near and sweep < SWEEPS - 4 else left[number] + right[number]
                middle = sum(boxes[i].y for i in near) / len(near) if near else None
                wanted.append(middle if middle is not None else wanted[-1] if wanted else 0.0)  # a loner stays near
            gaps = [
                (boxes[a].height + boxes[b].height) / 2 + (GAP_Y if boxes[a].width and boxes[b].width else GAP_Y / 2)
                for a, b in itertools.pairwise(layer)
            ]
            for number, y in zip(layer, nearest(wanted, gaps), strict=True):
                boxes[number].y = y
    bottom = 0.0
    shift = min((box.y - box.height / 2 for box in boxes), default=0.0)
    for box in sorted(boxes, key=lambda box: box.y - box.height / 2):
        top = box.y - box.height / 2 - shift
        shift += max(top - bottom - GAP_Y, 0.0)  # an empty band across all layers is closed
        box.y -= shift
        bottom = max(bottom, box.y + box.height / 2)
    return bottom


def nearest(wanted: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """The places nearest to the wanted ones (least squares) that keep the order and the gaps.

    >>> nearest([0.0, 0.0, 9.0], [2.0, 2.0])
    [-1.0, 1.0, 9.0]
    """
    offsets = [0.0]
    for gap in gaps:
        offsets.append(offsets[-1] + gap)
    pools: list[tuple[float, int]] = []  # (mean, count): neighbours that would overlap move as one
    for want, offset in zip(wanted, offsets):
        mean, count = want - offset, 1
        while pools and pools[-1][0] > mean:
            other, others = pools.pop()
            mean, count = (mean * count + other * others) / (count + others), count + others
        pools.append((mean, count))
    places = [mean for mean, count in pools for _ in range(count)]
    return [place + offset for place, offset in zip(places, offsets)]
