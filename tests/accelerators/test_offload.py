"""A checkpoint policy that offloads: what it names is kept in host memory, and nothing is computed again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import tapejax as tj
from tapejax.ground import compat

W = np.linspace(-1, 1, 16).astype("f").reshape(4, 4)


def policy(destination="pinned_host"):
    return jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["hidden"],
        offload_src="device",
        offload_dst=destination,
    )


def loss(w):
    return jnp.sin(checkpoint_name(w @ w, "hidden")).sum()


def primitives(function):
    inner, _ = compat.jaxpr_parts(jax.make_jaxpr(function)(W))
    return [eqn.primitive.name for eqn in inner.eqns], inner


def test_what_is_offloaded_is_in_host_memory_and_comes_back():
    names, inner = primitives(tj.grad(jax.checkpoint(loss, policy=policy())))
    moved = [eqn.params["devices"] for eqn in inner.eqns if eqn.primitive.name == "device_put"]
    assert moved == [(jax.memory.Space.Host,), (jax.memory.Space.Device,)]
    assert names.count("dot_general") == 3  # once forward, twice for its two cotangents
    again, _ = primitives(tj.grad(jax.checkpoint(loss)))
    assert again.count("dot_general") == 4


@pytest.mark.parametrize("fused", [True, False])
def test_the_gradient_is_the_same(fused):
    with tj.fusion(fused):
        w = tj.tensor(W, requires_grad=True)
        with tj.Tape() as tape:
            root = tj.checkpoint(loss, w, policy=policy())
            root.value.block_until_ready()
            kept = [value for action in tape.actions for value in action.kept or ()]
            assert "pinned_host" in [value.sharding.memory_kind for value in kept]
            gradient = tape.backward(root)[w]
    np.testing.assert_allclose(gradient, jax.grad(loss)(W), rtol=1e-5, atol=1e-6)
    assert gradient.sharding.memory_kind == "device"


def test_under_jit():
    found = jax.jit(tj.grad(jax.checkpoint(loss, policy=policy())))(W)
    np.testing.assert_allclose(found, jax.grad(loss)(W), rtol=1e-5, atol=1e-6)


def test_another_memory_is_refused():
    with pytest.raises(tj.errors.ArgumentError, match="unpinned_host") as caught:
        tj.lift(jax.checkpoint(loss, policy=policy("unpinned_host")))(tj.tensor(W, requires_grad=True))
    assert "pinned_host" in caught.value.fix
