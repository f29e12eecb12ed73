"""`tapejax disagreements`: planted ones are found and attributed, and the page keeps what it had."""

import contextlib
import io
import json

import jax
import pytest
from jax import lax

from tapejax import cli
from tapejax.verify.disagreements import survey
from tapejax.verify.disagreements.call import Call
from tapejax.verify.disagreements.page import page, section, sections_of, write
from tapejax.verify.samples.base import exactly, positive
from tests.verify.faults import WRONG_RULES
from tests.verify.planted import BEFORE_0_12, wrong_in_jax, wrong_in_tapejax

LOG1P = Call("log1p", "lax.log1p(x)", (exactly([0.5, 1.5]),), True, dtypes=("float64", "complex128"))
LENGTH = Call("cumsum", "lax.cumsum(x, axis=0, reverse=True)", (positive(3),), dtypes=("float64",))


def test_nothing_is_found_where_all_agree():
    found = survey(todo=[LOG1P, LENGTH])
    assert found.entries == []
    assert found.checks == 3


def test_a_planted_fault_of_jax_is_found_and_attributed():
    with wrong_in_jax(lax.log1p_p)():
        found = survey(todo=[LOG1P, LENGTH])
        [entry] = found.entries
        assert (entry.verdict, entry.primitive) == ("jax", "log1p")
        assert set(entry.dtypes) == {"float64", "complex128"}
        assert found.ok
        # The reproducer shows jax's number.
        assert printed(entry.to_json()["reproducer"]) == pytest.approx(entry.first.jax)
    assert entry.first.ours == pytest.approx(1 / 1.5)
    assert entry.first.jax == pytest.approx(1.5 / 1.5)
    assert entry.first.numbers.slope == pytest.approx(1 / 1.5)
    assert entry.first.numbers.complex_step == pytest.approx(1 / 1.5)


def test_a_planted_fault_of_ours_is_found_and_attributed():
    fault = next(fault for fault in WRONG_RULES if fault.op == "tanh")
    call = Call("tanh", "lax.tanh(x)", (exactly([0.5, 1.5]),), True, dtypes=("float64",))
    with wrong_in_tapejax(fault)():
        found = survey(todo=[call])
    [entry] = found.entries
    assert entry.verdict == "tapejax"
    assert not found.ok


def test_a_value_that_jax_changes_is_found():
    call = Call("reduce", "lax.reduce(x, 3.0, lax.add, (0,))", (positive(4),), dtypes=("float64",))
    [entry] = survey(todo=[call]).entries
    assert (entry.verdict, entry.first.what) == ("jax", "value")
    assert entry.first.ours - entry.first.jax == pytest.approx(3.0)


def test_sides_of_a_branch_cut_the_edge_of_a_domain_and_kinks():
    cut = Call("acosh", "lax.acosh(x)", (exactly([-0.5 + 0j]),), True, dtypes=("complex128",))
    assert [entry.verdict for entry in survey(todo=[cut]).entries] == (["jax"] if BEFORE_0_12 else [])
    edge = Call("igamma", "lax.igamma(1.0, x)", (exactly([0.0]),), True, dtypes=("float64",))
    [entry] = survey(todo=[edge]).entries  # 1 - exp(-x), from 0 on
    assert entry.verdict == "jax"
    assert entry.first.ours == pytest.approx(1.0)
    with wrong_in_jax(lax.abs_p)():  # at 0 whatever jax says is a choice
        kink = Call("abs", "lax.abs(x)", (exactly([0.0]),), True, dtypes=("float64",))
        [entry] = survey(todo=[kink]).entries
    assert entry.verdict == "convention"


def test_the_page_keeps_the_sections_of_other_versions(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(page({"0.0.1": section(survey(todo=[]))}))
    with wrong_in_jax(lax.log1p_p)():
        write(survey(todo=[LOG1P]), path)
    text = path.read_text()
    assert list(sections_of(text)) == ["0.0.1", jax.__version__]
    assert "| 0.0.1 | None | 0 | 0 |" in text
    assert f"| {jax.__version__} | 1 of jax | 1 | 2 |" in text
    assert "#### Wrong `gradient of lax.log1p(x)` (float64, complex128)" in text


def test_the_command(capsys):
    assert cli.main(["disagreements", "--only", "cbrt", "--json", "-"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert known["calls"] >= 2
    assert known["jax"] == jax.__version__
    assert cli.main(["disagreements", "--only", "cbrr"]) == 2
    assert "do you mean cbrt" in capsys.readouterr().err


def printed(code):
    out = io.StringIO()
    x64 = jax.config.jax_enable_x64
    try:
        with contextlib.redirect_stdout(out):
            exec(code, {})
    finally:
        jax.config.update("jax_enable_x64", x64)
    return complex(out.getvalue().strip().replace(" ", ""))
