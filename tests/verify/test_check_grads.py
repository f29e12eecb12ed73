"""check_grads accepts right derivatives and catches wrong ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tapejax import errors


@jax.custom_vjp
def off_by_a_little(x):
    return jnp.sin(x)


off_by_a_little.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jnp.cos(x) * 1.01,))


@jax.custom_vjp
def wrong_the_second_time(x):
    return jnp.sin(x)


wrong_the_second_time.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jax.lax.stop_gradient(jnp.cos(x)),))


def test_right_ones_pass():
    with jax.enable_x64(True):
        x, n = jnp.array([0.3, 0.7]), jnp.array([1, 2])
        tj.check_grads(lambda p, n: {"a": tnp.tanh(p["w"] * n), "n": n}, ({"w": x}, n), order=2)
        tj.check_grads(lambda z: z * jnp.conj(z) * z, (jnp.array([0.3 + 0.2j]),), order=1)


def test_wrong_ones_are_caught_at_their_order():
    with jax.enable_x64(True):
        x = (np.array([0.3, 0.7]),)
        with pytest.raises(errors.GradientCheckError, match="rev"):
            tj.check_grads(off_by_a_little, x, order=1, modes=["rev"])
        tj.check_grads(wrong_the_second_time, x, order=1)
        with pytest.raises(AssertionError, match=r"of (fwd|rev)"):
            tj.check_grads(wrong_the_second_time, x, order=2)
