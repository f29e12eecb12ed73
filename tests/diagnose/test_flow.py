"""gradient_flow against the formulas of the gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from tapejax.diagnose.flow import norm, sparkline


def test_norms_do_not_overflow():
    assert norm(np.full(4, 1e300)) == pytest.approx(2e300)
    assert norm(np.full(4, 1e-300)) == pytest.approx(2e-300)
    assert norm(np.zeros(3)) == 0.0
    assert norm(np.array([1.0, np.inf])) == np.inf


@pytest.mark.parametrize(("w", "verdict"), [(3.0, "exploding"), (1.0, "healthy"), (0.2, "vanishing")])
def test_a_loop_that_multiplies(w, verdict):
    def loss(w, h):
        return jax.lax.scan(lambda h, _: (w * h, None), h, None, length=20)[0].sum()

    flow = tj.gradient_flow(loss, jnp.float32(w), jnp.ones(4))
    assert flow.verdict == verdict
    (loop,) = flow.loops
    np.testing.assert_allclose(loop.norms, [2.0 * w ** (19 - i) for i in range(20)], rtol=1e-5)
    assert loop.factor == pytest.approx(w, rel=1e-5)
    gradient = {layer.name: layer.gradient for layer in flow.layers}
    assert gradient["h"] == pytest.approx(2.0 * w**20, rel=1e-5)
    assert gradient["w"] == pytest.approx(4 * 20 * w**19, rel=1e-5)
    if w > 1:
        assert loop.overflow == int(np.ceil(np.log(3.4028235e38) / np.log(w)))
    assert str(flow).startswith(f"gradient_flow(loss): {verdict}")


def test_layers_say_what_is_dead():
    params = {"a": jnp.array([1.0, -1.0]), "b": jnp.array([2.0, 5.0])}
    flow = tj.gradient_flow(lambda p: jnp.sum(jax.nn.relu(p["a"]) * p["b"]), params)
    dead = {layer.name: layer.dead for layer in flow.layers}
    assert dead == {"p['a']": 0.5, "p['b']": 0.5}
    assert {passage.op for passage in flow.actions} >= {"mul"}
    assert flow.to_json()["verdict"] == "healthy"


def test_a_history_plots():
    pytest.importorskip("matplotlib").use("agg")
    history = tj.diagnose.FlowHistory()
    for step in range(3):
        history.add({"w": jnp.ones(4)}, {"w": jnp.ones(4) / (step + 1)}, {"w": jnp.ones(4) * 1e-3})
    assert history.gradients["['w']"] == pytest.approx([2.0, 1.0, 2 / 3])
    assert len(history.plot().lines) == 1
    assert "update/weight" in str(history)
    flow = tj.gradient_flow(lambda x: jnp.sin(x).sum(), jnp.ones(3))
    assert len(flow.plot().lines) == 1


def test_sparklines():
    assert sparkline([1.0, 1e4, 0.0, np.inf]) == "▁█ !"
