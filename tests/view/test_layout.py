"""Where boxes go: left to right, apart from each other, with few crossings."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tapejax.view.layout import GAP_Y, Box, crossings, nearest, place


def random_graph(seed, n):
    rng = random.Random(seed)
    edges = [(source, stop) for stop in range(1, n) for source in rng.sample(range(stop), min(stop, rng.randint(0, 2)))]
    return [Box(rng.uniform(40, 120), 44) for _ in range(n)], edges


@pytest.mark.parametrize(("seed", "n"), [(0, 1), (1, 5), (2, 20), (3, 60)])
def test_boxes_are_apart_and_edges_go_right(seed, n):
    boxes, edges = random_graph(seed, n)
    placed = place(boxes, edges)
    for start, stop in edges:
        assert boxes[start].x + boxes[start].width / 2 < boxes[stop].x - boxes[stop].width / 2
    for a, b in itertools.combinations(boxes, 2):
        assert abs(a.x - b.x) >= (a.width + b.width) / 2 or abs(a.y - b.y) >= (a.height + b.height) / 2
    for box in boxes:
        assert box.x - box.width / 2 >= -1e-6
        assert box.x + box.width / 2 <= placed.width + 1e-6
        assert box.y - box.height / 2 >= -1e-6
        assert box.y + box.height / 2 <= placed.height + 1e-6


def test_inputs_stand_just_before_their_first_use():
    boxes = [Box(50, 44) for _ in range(6)]
    place(boxes, [(0, 1), (1, 2), (3, 4), (2, 4), (4, 5)])  # 3 is an input of 4 alone
    assert [box.layer for box in boxes] == [0, 1, 2, 2, 3, 4]


def test_crossings_are_counted_and_undone():
    # two layers joined crosswise: 0-3, 1-2
    assert crossings([[0, 1], [2, 3]], [[3], [2], [], []]) == 1
    assert crossings([[1, 0], [2, 3]], [[3], [2], [], []]) == 0
    boxes = [Box(50, 44) for _ in range(4)]
    place(boxes, [(0, 3), (1, 2)])
    assert (boxes[0].y < boxes[1].y) == (boxes[3].y < boxes[2].y)


def test_an_empty_band_is_closed():
    boxes = [Box(50, 44) for _ in range(8)]
    placed = place(boxes, [(0, 1), (1, 2), (3, 4), (4, 5), (6, 7)])
    assert placed.height == pytest.approx(3 * 44 + 2 * GAP_Y)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(1, 30)), min_size=1, max_size=6))
def test_nearest_is_the_least_squares_answer(items):
    wanted, gaps = [want for want, _ in items], [gap for _, gap in items[1:]]
    found = np.array(nearest(wanted, gaps))
    assert np.all(np.diff(found) >= np.array(gaps) - 1e-9)
    cost = np.sum((found - wanted) ** 2)
    rng = np.random.default_rng(0)
    for _ in range(30):  # nothing allowed nearby is better
        other = found + rng.normal(size=len(found)) * 0.1
        if np.all(np.diff(other) >= np.array(gaps) - 1e-9):
            assert np.sum((other - wanted) ** 2) >= cost - 1e-6
