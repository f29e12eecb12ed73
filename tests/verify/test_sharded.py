"""A function over sharded arguments against one device: right, a collective that is missing, a gradient that is wrong."""

from tests.accelerators.subprocesses import lines_of


def test_on_four_devices():
    assert lines_of("tests.verify.sharded_on_devices", devices=4)[-1] == "ok"
