import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tapejax.verify.check import flat, inexact, our_vjp
from tapejax.verify.samples.arithmetic import SAMPLES
from tests.rules.harness import is_caught


def gradients(function, *args):
    """The gradients under a cotangent of ones, by our rules, in float64."""
    with jax.enable_x64(True):
        args = [jnp.asarray(arg) for arg in args]
        outputs, pullback = our_vjp(flat(function), args, [inexact(arg) for arg in args])
        return pullback([jnp.ones_like(outputs[0])])


def test_rem_counts_whole_quotients():
    # 0.1 is a little more than a tenth and fits nine times; 1.0 / 0.1 rounds up to 10.
    _, by_divisor = gradients(lax.rem, 1.0, 0.1)
    assert float(by_divisor) == -9


def test_pow_with_an_integer_exponent_stays_finite_at_zero():
    # jax: nan, since its first derivative has turned the exponent into a float.
    first = lambda x: gradients(lambda x: lax.pow(x, jnp.array([0, 1, 2, 3])), x)[0]
    (second,) = gradients(first, np.zeros(4))
    np.testing.assert_array_equal(second, [0, 0, 2, 0])


def test_complex_numbers_are_ordered_by_real_then_imaginary_part():
    # jax 0.12 cannot differentiate this.
    x, y = [1 + 2j, 1 + 0j, 3.0], [1 + 1j, 1 + 0j, 4.0]
    np.testing.assert_array_equal(gradients(lax.max, x, y), [[1, 0.5, 0], [0, 0.5, 1]])
    np.testing.assert_array_equal(gradients(lax.min, x, y), [[0, 0.5, 1], [1, 0.5, 0]])


@pytest.mark.parametrize("which", [True, False, np.bool_(True), np.array(False), jnp.array(True)])
@pytest.mark.parametrize("jit", [lambda f: f, jax.jit])
def test_choice_by_a_constant(which, jit):
    x, y = np.float32([1.0, 2.0]), np.float32([3.0, 4.0])
    for choose in (lax.select, jnp.where, lambda which, x, y: lax.select_n(which, x, y)):
        function = jit(lambda x, y, choose=choose: choose(which, x * y, 2 * x))
        out, pull = jax.vjp(function, x, y)
        for found, expected in zip(gradients(function, x, y), pull(jnp.ones_like(out)), strict=True):
            np.testing.assert_array_equal(0.0 if found is None else found, expected)


def test_clamp_with_crossed_bounds_follows_the_upper_one():
    low, x, high = gradients(lax.clamp, [1.0, 1.0, 1.0], [-3.0, 0.5, 3.0], [0.0, 0.0, 0.0])
    np.testing.assert_array_equal([low, x, high], [[0, 0, 0], [0, 0, 0], [1, 1, 1]])


def test_products_in_a_wider_dtype_give_cotangents_in_the_operands_dtypes():
    x = jnp.ones(3, jnp.bfloat16)
    outputs, pullback = our_vjp(flat(lambda x, y: lax.mul(x, y, out_dtype=jnp.float32)), [x, 3 * x], [True, True])
    by_x, by_y = pullback([2 * outputs[0]])
    assert outputs[0].dtype == jnp.float32
    assert by_x.dtype == by_y.dtype == jnp.bfloat16
    assert (float(by_x[0]), float(by_y[0])) == (18, 6)


MUTANTS = {
    "sub: sign": (lax.sub_p, "", lambda ct, out, x, y: (ct, ct)),
    "mul: swapped": (lax.mul_p, "x y", lambda ct, out, x, y, *, out_dtype: (ct * x, ct * y)),
    "mul: conjugated": (lax.mul_p, "x y", lambda ct, out, x, y, *, out_dtype: (ct * y.conj(), ct * x.conj())),
    "div: sign": (lax.div_p, "out y", lambda ct, out, x, y: (ct / y, ct * out / y)),
    "rem: of the quotient's floor": (lax.rem_p, "x y", lambda ct, out, x, y: (ct, -ct * lax.floor(x / y))),
    "pow: exponent": (lax.pow_p, "x y out", lambda ct, out, x, y: (ct * y * lax.pow(x, y - 1), ct * out)),
    "max: ties not split": (lax.max_p, "x y", lambda ct, out, x, y: (ct * (x >= y), ct * (x < y))),
    "min: as max": (lax.min_p, "x y", lambda ct, out, x, y: (ct * (x > y), ct * (x < y))),
    "atan2: swapped": (lax.atan2_p, "x y", lambda ct, out, x, y: (-ct * x / (x * x + y * y), ct * y / (x * x + y * y))),
    "clamp: bound included": (
        lax.clamp_p,
        "a x b",
        lambda ct, out, a, x, b: (ct * (a > x), ct * ((x >= a) & (x <= b)), ct * (b < x)),
    ),
    "select_n: cases swapped": (
        lax.select_n_p,
        "w",
        lambda ct, out, w, *cases: (None, *(lax.select(w == i, 0 * ct, ct) for i in range(len(cases)))),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_caught(mutant, monkeypatch):
    assert is_caught(monkeypatch, *MUTANTS[mutant], SAMPLES)
