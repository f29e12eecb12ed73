"""Gradients lie where their values do; what is moved lies where it was moved to; collectives are differentiated."""

import pytest

from tests.accelerators.subprocesses import lines_of


@pytest.mark.parametrize("which", ["quick", pytest.param("slow", marks=pytest.mark.slow)])
def test_places_on_eight_devices(which):
    lines = lines_of("tests.accelerators.places_on_devices", which)
    assert [line for line in lines if not line.startswith("ok ")] == []
    assert lines
