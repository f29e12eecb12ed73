"""The page of disagreements holds what the sweep would find: its size, its counts, and code that shows what it says."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

from tapejax.verify.disagreements.calls import calls
from tapejax.verify.disagreements.page import SIZE, sections_of
from tests.verify.test_disagreements import printed

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "disagreements.md"


def test_the_page_has_the_size_of_the_sweep():
    sections = sections_of(PAGE.read_text(encoding="utf-8"))
    assert {".".join(version.split(".")[:2]) for version in sections} == {"0.10", "0.12"}
    for text in sections.values():
        sizes = SIZE.search(text)
        assert sizes is not None
        if "Without the rules' samples" in text:
            assert int(sizes[1]) == len(calls(samples=False))
        else:
            assert int(sizes[1]) >= len(calls())  # more where there are several devices


def test_the_page_says_of_nobody_that_tapejax_is_wrong():
    assert "tapejax is wrong" not in PAGE.read_text(encoding="utf-8")


def test_readme_says_how_many():
    said = (ROOT / "README.md").read_text(encoding="utf-8")
    for version, text in sections_of(PAGE.read_text(encoding="utf-8")).items():
        count = re.search(r"(\d+) of jax", SIZE.search(text)[4])
        assert f"{count[1]} with jax {'.'.join(version.split('.')[:2])}" in said


@pytest.mark.slow
def test_every_reproducer_shows_what_the_page_says():
    text = sections_of(PAGE.read_text(encoding="utf-8")).get(jax.__version__)
    if text is None:
        pytest.skip("the page has no section of this jax")
    blocks = [block for block in re.findall(r"```text\n(.*?)\n```", text, re.DOTALL) if "sample(" not in block]
    assert blocks
    for block in blocks[:: max(1, len(blocks) // 8)]:
        assert len(block.splitlines()) <= 6
        said = complex(block.rpartition("# ")[2].replace("infj", "infj"))
        assert np.isclose(printed(block), said, rtol=1e-4, equal_nan=True), block
