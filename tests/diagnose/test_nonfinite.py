"""find_nonfinite on the catalogue: op, line, step, element, direction, cause; no alarm on healthy programs."""

import inspect
from pathlib import Path

import jax
import numpy as np
import pytest

import tapejax as tj
from tests.diagnose import catalogue, outside, unseen

BAD = catalogue.BAD + unseen.BAD + outside.BAD
HEALTHY = catalogue.HEALTHY + unseen.HEALTHY + outside.HEALTHY

# Of the programs in outside.py, those that show what no other in the catalogue does; the rest is slow in sum.
AT_ONCE = {
    "cast_to_eight_bits", "loop_of_a_given_length", "mean_of_an_empty_row", "rule_that_kept_an_infinity",
    "markov_chain_with_a_state_out_of_reach", "markov_chain_from_one_state", "step_that_is_skipped",
}  # fmt: skip


def params(cases):
    """Every third one of the catalogue, and those of outside.py that are named above; the others are slow."""
    others = {id(case) for case in outside.BAD + outside.HEALTHY}
    at_once = lambda number, case: case.name in AT_ONCE if id(case) in others else number % 3 == 0
    return [
        pytest.param(case, id=case.name, marks=[] if at_once(number, case) else [pytest.mark.slow])
        for number, case in enumerate(cases)
    ]


@pytest.mark.parametrize("case", params(BAD))
def test_where_it_is_born(case):
    if case.name == "cross_entropy_of_masked_classes":
        jax.clear_caches()  # jax 0.12 keeps the line at which its own jitted product was first traced
    report = tj.find_nonfinite(case.function, *case.args, **case.options)
    born = report.born
    assert not report.ok
    found = (born.op, born.lineno, born.steps, born.index, born.direction, born.cause)
    assert found == (case.op, case.lineno, case.steps, case.index, case.direction, case.cause), report
    assert born.file == inspect.getsourcefile(case.function)
    assert report.fix


@pytest.mark.parametrize("case", params(HEALTHY))
def test_no_alarm_where_nothing_bad_arrives(case):
    report = tj.find_nonfinite(case.function, *case.args, **case.options)
    assert report.ok, report
    assert report.born is None
    values = (
        jax.tree.leaves(jax.jit(jax.grad(case.function, has_aux="has_aux" in case.options))(*case.args))
        if case.name != "best_so_far"
        else []
    )
    if "has_aux" not in case.options:
        assert all(np.isfinite(value).all() for value in values)


def test_the_page_counts_the_whole_catalogue():
    page = Path(__file__).parents[2] / "docs" / "find-a-nan.md"
    text = page.read_text()
    assert f"| of {len(BAD)} | op | line |" in text
    assert f"alarms, of {len(HEALTHY)} |" in text
    assert len(unseen.BAD) + len(outside.BAD) >= len(BAD) / 3
