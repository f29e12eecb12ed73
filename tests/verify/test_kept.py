"""A sweep that was stopped goes on where it was, and ends with the same."""

import pytest

from tapejax import errors
from tapejax.verify.disagreements import survey
from tapejax.verify.disagreements.calls import Call
from tapejax.verify.disagreements.page import section
from tapejax.verify.samples.base import exactly, positive

SUM = Call("reduce", "lax.reduce(x, 3.0, lax.add, (0,))", (positive(4),), dtypes=("float64",))
NEVER = Call(
    "symmetric_product", "lax.linalg.symmetric_product(x, y)", (positive(3, 2), positive(3, 3)), dtypes=("float64",)
)
EDGE = Call("igamma", "lax.igamma(1.0, x)", (exactly([0.0, 1.0]),), True, dtypes=("float64",))
SPENCE = Call("spence", "jax.scipy.special.spence(x)", (exactly([0.5, 1.1]),), True, dtypes=("float64",), composed=True)
CALLS = [SUM, NEVER, EDGE, SPENCE]


def timeless(found):
    return section(found).split("\n", 1)[1], found.calls, found.checks, found.undefined


def test_it_goes_on_where_it_was(tmp_path, monkeypatch):
    whole = survey(todo=CALLS)
    assert {entry.primitive for entry in whole.entries} == {"reduce", "igamma", "spence"}
    file = tmp_path / "found.jsonl"
    survey(todo=CALLS[:2], keep=file)
    with file.open("a") as half:
        half.write('{"call": "igamma')  # stopped while it was writing
    assert timeless(survey(todo=CALLS, keep=file)) == timeless(whole)
    # Nothing is judged again.
    monkeypatch.setitem(survey.__globals__, "Judge", None)
    assert timeless(survey(todo=CALLS, keep=file)) == timeless(whole)


def test_a_file_of_another_jax_is_refused(tmp_path):
    file = tmp_path / "found.jsonl"
    file.write_text('{"jax": "0.0.1", "tapejax": "0"}\n')
    with pytest.raises(errors.ArgumentError, match=r"0\.0\.1"):
        survey(todo=[SUM], keep=file)


def test_a_slope_that_both_miss_is_found_in_what_jax_composed():
    [entry] = survey(todo=[SPENCE]).entries
    assert entry.verdict == "jax"
    assert entry.points == ["x = 1.1"]
    assert entry.first.numbers.slope == pytest.approx(-0.953101798)
