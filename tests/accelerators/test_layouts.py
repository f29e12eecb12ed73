"""Training on 8 virtual devices equals training on one, in every layout and in every way."""

import pytest

from tests.accelerators.subprocesses import lines_of


@pytest.mark.slow
def test_every_layout_trains_as_one_device_does():
    lines = lines_of("tests.accelerators.layouts_on_devices", timeout=600)
    assert [line for line in lines if not line.startswith("ok ")] == []
    assert len(lines) == 2 * 4 * 9
