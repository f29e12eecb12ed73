"""What public libraries compute, by tapejax and by jax: value, gradient and second order in float64."""

import jax
import jax.numpy as jnp
import pytest

from tests.libraries.sweep import STAGES, compared, sweep
from tests.libraries.table import arguments_for, installed
from tests.verify.faults import WRONG_RULES
from tests.verify.planted import wrong_in_tapejax


def test_the_sweep_sees_a_difference():
    """Nothing is said of a function that both differentiate alike; a rule made wrong is noticed, at each order."""
    right = compared(lambda x: jnp.sin(x) * x, (jnp.array([0.3, 0.7]),))
    assert right == dict.fromkeys(STAGES, "")
    fault = next(fault for fault in WRONG_RULES if fault.op == "sin")
    with wrong_in_tapejax(fault)():
        wrong = compared(lambda x: jnp.sin(x) * x, (jnp.array([0.3, 0.7]),))
    assert "instead of" in wrong["gradient"]
    assert "instead of" in wrong["second order"]
    assert wrong["value"] == ""


def test_arguments_are_found_by_trying():
    args = arguments_for(lambda logits, labels: jax.nn.log_softmax(logits)[labels])
    assert args is not None
    assert args[1] is not None
    assert arguments_for(lambda: 1.0) is None
    assert arguments_for(lambda text: text.upper()) is None


@pytest.mark.parametrize(
    ("library", "step"),
    [pytest.param("jax.nn", 12), pytest.param("optax.projections", 1, marks=pytest.mark.slow)],
)
def test_it_agrees_with_jax(library, step, capsys):
    """The rest of the table runs by `python -m tests.libraries.sweep`."""
    if not installed(library):
        pytest.skip(f"{library} is not installed")
    coverage = sweep(library, slice(None, None, step))
    with capsys.disabled():
        print(f"\n{coverage}")
    assert coverage.called >= 3
    assert not coverage.wrong
