"""A host callback that records, looks or goes back: right numbers or a typed error, and an end."""

import pytest

from tests.attacks.alone import alone, no_failures
from tests.attacks.callbacks import HOSTS, WAYS
from tests.some import one_in

CONTROLS = ("plain", "jax")  # what does no work of ours; one way of each is enough


@pytest.mark.parametrize("way", one_in(3, WAYS))
def test_tapejax_within_a_callback(way):
    hosts = [host for host in HOSTS if way == "lift" or host not in CONTROLS]
    reports = alone("callbacks", way, *hosts, seconds=60)
    no_failures(reports)
    assert [report["host"] for report in reports] == hosts
