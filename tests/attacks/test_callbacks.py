"""A host callback that records, looks or goes back: right numbers or a typed error, and an end."""

import pytest

from tests.attacks.alone import alone, no_failures
from tests.attacks.callbacks import HOSTS, WAYS

CONTROLS = ("plain", "jax")  # what does no work of ours; one way of each is enough


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("way", WAYS)
def test_tapejax_within_a_callback(way, host):
    if host in CONTROLS and way != "lift":
        pytest.skip("a control")
    no_failures(alone("callbacks", way, host, seconds=60))
