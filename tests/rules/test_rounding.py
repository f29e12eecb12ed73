import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tapejax.rules.registry import TABLE, Rule
from tapejax.verify.check import check_finite, check_sample, our_vjp
from tapejax.verify.samples.base import fixed, sample
from tapejax.verify.samples.rounding import SAMPLES
from tests.rules.harness import assert_finite

TURNING = [
    sample(lax.sign, fixed(np.array([1.5 + 1j, -2 + 0.3j, -0.2j]))),
    sample(lambda z: lax.sign(z) * z * z, fixed(np.array(0.3 - 1j))),
]


@pytest.mark.parametrize("turning", TURNING)
def test_complex_sign_equals_finite_differences(turning):
    """jax before 0.12 says zero here, so the judge is the difference quotient."""
    assert_finite(turning)


def test_sign_of_complex_zero_is_flat():
    _, pullback = our_vjp(lax.sign, [jnp.zeros(2, "complex64")], [True])
    assert np.array_equal(pullback([jnp.ones(2, "complex64")])[0], np.zeros(2))


def test_nextafter_moves_with_its_first_operand():
    x, y = jnp.array([1.0, -2.0]), jnp.array([3.0, 0.0])
    _, pullback = our_vjp(lax.nextafter, [x, y], [True, True])
    dx, dy = pullback([jnp.array([2.0, 3.0])])
    assert np.array_equal(dx, [2.0, 3.0])
    assert np.array_equal(dy, [0.0, 0.0])


COMPLEX_SIGN_MUTANTS = {
    "not turned": lambda ct, out, x: (ct / lax.complex(lax.abs(x), lax.abs(x) * 0),),
    "constant": lambda ct, out, x: (None,),
    "not conjugated": lambda ct, out, x: (1j * (ct * out).imag * out / lax.abs(x),),
    "no division": lambda ct, out, x: (1j * (ct * out).imag * lax.conj(out),),
}


@pytest.mark.parametrize("mutant", COMPLEX_SIGN_MUTANTS.values(), ids=COMPLEX_SIGN_MUTANTS)
def test_a_wrong_rule_is_caught(mutant, monkeypatch):
    entry = Rule("sign", mutant, "out x", cheap=True, zeros=True, family="rounding")
    monkeypatch.setitem(TABLE, lax.sign_p, entry)
    with jax.enable_x64(True):
        assert not all(check_finite(turning).ok for turning in TURNING)
    if jax.__version_info__ >= (0, 12):
        assert not all(check_sample(s, "complex128").ok for s in SAMPLES[lax.sign_p] if "complex128" in s.dtypes)
