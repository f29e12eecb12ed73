"""Arrays of which other processes hold a part: they are shown as far as they are here, and that is said."""

import pytest

from tests.accelerators.subprocesses import together


@pytest.mark.slow
def test_what_is_not_here_is_said():
    for index, text in enumerate(together("tests.accelerators.part_here")):
        assert f"ok {index}" in text, text[-3000:]
