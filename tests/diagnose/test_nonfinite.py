"""find_nonfinite on the catalogue: op, line, step, element, direction, cause; no alarm on healthy programs."""

import inspect
from pathlib import Path

import jax
import pytest

import tapejax as tj
from tests.diagnose import catalogue, unseen

BAD = catalogue.BAD + unseen.BAD
HEALTHY = catalogue.HEALTHY + unseen.HEALTHY


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_where_it_is_born(case):
    report = tj.find_nonfinite(case.function, *case.args, **case.options)
    born = report.born
    assert not report.ok
    found = (born.op, born.lineno, born.steps, born.index, born.direction, born.cause)
    assert found == (case.op, case.lineno, case.steps, case.index, case.direction, case.cause), report
    assert born.file == inspect.getsourcefile(case.function)
    assert report.fix


@pytest.mark.parametrize("case", HEALTHY, ids=lambda case: case.name)
def test_no_alarm_where_nothing_bad_arrives(case):
    report = tj.find_nonfinite(case.function, *case.args, **case.options)
    assert report.ok, report
    assert report.born is None
    values = (
        jax.tree.leaves(jax.grad(case.function, has_aux="has_aux" in case.options)(*case.args))
        if case.name != "best_so_far"
        else []
    )
    if "has_aux" not in case.options:
        assert all(bool(jax.numpy.isfinite(value).all()) for value in values)


def test_the_page_counts_the_whole_catalogue():
    page = Path(__file__).parents[2] / "docs" / "find-a-nan.md"
    text = page.read_text()
    assert f"| of {len(BAD)} | op | line |" in text
    assert f"alarms, of {len(HEALTHY)} |" in text
    assert len(unseen.BAD) >= len(BAD) / 3
