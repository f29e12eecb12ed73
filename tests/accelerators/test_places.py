"""Gradients lie where their values do; what is moved lies where it was moved to."""

from tests.accelerators.subprocesses import lines_of


def test_places_on_eight_devices():
    lines = lines_of("tests.accelerators.places_on_devices")
    assert [line for line in lines if not line.startswith("ok ")] == []
    assert lines
