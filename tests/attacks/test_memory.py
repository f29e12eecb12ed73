"""Memory does not grow with the number of steps. Loose bounds: what is meant is a leak, not a megabyte."""

import pytest

from tests.attacks.alone import alone
from tests.attacks.memory import CASES


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_growth_is_bounded(case):
    (report,) = alone("memory", case, seconds=900)
    growth = report["after"] - report["before"]
    assert growth < 200, f"{case} grew by {growth:.0f} MB, from {report['before']:.0f}"
