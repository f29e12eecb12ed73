import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tapejax.rules import shape as rules
from tapejax.rules.registry import lookup
from tapejax.verify.check import our_vjp
from tapejax.verify.samples.shape import SAMPLES
from tests.rules.harness import is_caught


def gradient(function, *args, ct):
    _, pullback = our_vjp(lambda *a: [function(*a)], args, [True] * len(args))
    return pullback([ct])


def test_infinite_cotangent_of_an_element_does_not_reach_the_padding():
    ct = jnp.array([1.0, np.inf, np.nan, 2.0])
    ct_x, ct_value = gradient(lambda x, v: lax.pad(x, v, [(1, 1, 0)]), jnp.ones(2), jnp.float32(0), ct=ct)
    np.testing.assert_array_equal(ct_x, ct[1:3])
    assert ct_value == 3


def test_the_bits_of_a_number_have_no_derivative():
    assert lookup(lax.bitcast_convert_type_p).kind == "constant"
    x = jnp.ones(3)
    (ct,) = gradient(lambda x: lax.bitcast_convert_type(lax.bitcast_convert_type(x, np.int32), x.dtype), x, ct=x)
    assert not ct.any()


def test_cotangent_goes_back_to_the_device_it_came_from():
    device = jax.devices()[0]
    (ct,) = gradient(lambda x: jax.device_put(x, device, src=device), jnp.ones(2), ct=jnp.ones(2))
    assert ct.devices() == {device}


MUTANTS = {
    "broadcast_in_dim: mean": (
        lax.broadcast_in_dim_p,
        "",
        lambda ct, out, x, **params: (rules.broadcast_in_dim(ct, out, x, **params)[0] / 2,),
    ),
    "transpose: not inverted": (lax.transpose_p, "", lambda ct, out, x, **_: (lax.reshape(ct, x.shape),)),
    "rev: forgotten": (lax.rev_p, "", lambda ct, out, x, *, dimensions: (ct,)),
    "slice: shifted": (
        lax.slice_p,
        "",
        lambda ct, out, x, **params: (jnp.roll(rules.slice(ct, out, x, **params)[0], 1, 0),),
    ),
    "pad: value gets all": (
        lax.pad_p,
        "",
        lambda ct, out, x, value, **params: (rules.pad(ct, out, x, value, **params)[0], jnp.sum(ct)),
    ),
    "concatenate: sign": (
        lax.concatenate_p,
        "",
        lambda ct, out, *xs, dimension: rules.concatenate(-ct, out, *xs, dimension=dimension),
    ),
    "tile: last copy only": ("tile", "", lambda ct, out, x, *, reps: (lax.slice(ct, (0,) * x.ndim, x.shape),)),
    "convert_element_type: imaginary part": (
        lax.convert_element_type_p,
        "",
        lambda ct, out, x, **_: (jnp.imag(ct).astype(x.dtype),),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_caught(mutant, monkeypatch):
    assert is_caught(monkeypatch, *MUTANTS[mutant], SAMPLES)
