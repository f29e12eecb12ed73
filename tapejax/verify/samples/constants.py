"""Samples for rules/constants.py: each constant multiplied by x, so that only the factor x has a gradient."""

import jax
from jax import lax
from jax.extend.core import primitives as p

from tapejax.verify.samples.base import REAL, away_from_zero, distinct, exactly, sample

ONE = ("float64",)
PAIR = ("float64", "complex128")
INT = jax.numpy.int32


def times(constant, recipe=None, dtypes=ONE, **options):
    """constant(x) * x at numbers between the steps."""
    function = lambda x: lax.convert_element_type(constant(x), x.dtype) * x
    return sample(function, recipe or away_from_zero(3), dtypes=dtypes, orders=1, **options)


def on_integers(constant, **options):
    """constant of integers that were made from x."""
    # Away from whole numbers, or a finite difference would see the step.
    recipe = exactly([1.25, 5.5, 2.75])
    return times(lambda x: constant(lax.convert_element_type(x, INT)), recipe, **options)


def on_booleans(constant):
    return times(lambda x: constant(x > 0))


key = lambda x: jax.random.wrap_key_data(lax.bitcast_convert_type(lax.convert_element_type(x[:2], "float32"), "uint32"))
data = lambda key: lax.convert_element_type(jax.random.key_data(key).ravel()[0], INT)
halves = lambda x: lax.bitcast_convert_type(lax.convert_element_type(x[:2], "float32"), "uint32")
by_key = lambda constant: times(lambda x: constant(key(x)), exactly([1.25, 5.5, 2.75]), finite=False)

SAMPLES = {
    p.eq_p: [times(lambda x: lax.eq(x, x), dtypes=PAIR)],
    p.ne_p: [times(lambda x: lax.ne(x, 2 * x), dtypes=PAIR)],
    p.lt_p: [times(lambda x: lax.lt(x, 2 * x))],
    p.le_p: [times(lambda x: lax.le(x, 2 * x)), times(lambda x: x <= 0.0, exactly(0.5))],
    p.gt_p: [times(lambda x: lax.gt(x, 2 * x)), times(lambda x: x > 0.0, exactly([[]]))],
    p.ge_p: [times(lambda x: lax.ge(x, 2 * x))],
    p.eq_to_p: [times(lambda x: p.eq_to_p.bind(x, x))],
    p.lt_to_p: [times(lambda x: p.lt_to_p.bind(x, 2 * x))],
    p.le_to_p: [times(lambda x: p.le_to_p.bind(x, 2 * x))],
    p.is_finite_p: [times(lax.is_finite, dtypes=REAL)],
    p.and_p: [on_integers(lambda i: i & 5), on_booleans(lambda b: b & b)],
    p.or_p: [on_integers(lambda i: i | 5)],
    p.xor_p: [on_integers(lambda i: i ^ 5)],
    p.not_p: [on_integers(lax.bitwise_not), on_booleans(lax.bitwise_not)],
    p.shift_left_p: [on_integers(lambda i: lax.shift_left(i, INT(1)))],
    p.shift_right_arithmetic_p: [on_integers(lambda i: lax.shift_right_arithmetic(i, INT(1)))],
    p.shift_right_logical_p: [on_integers(lambda i: lax.shift_right_logical(i, INT(1)))],
    p.clz_p: [on_integers(lax.clz)],
    p.population_count_p: [on_integers(lax.population_count)],
    p.reduce_and_p: [on_booleans(lambda b: lax.reduce_and_p.bind(b, axes=(0,)))],
    p.reduce_or_p: [on_booleans(lambda b: lax.reduce_or_p.bind(b, axes=(0,)))],
    p.reduce_xor_p: [on_booleans(lambda b: lax.reduce_xor_p.bind(b, axes=(0,)))],
    p.floor_p: [times(lax.floor, dtypes=REAL)],
    p.ceil_p: [times(lax.ceil, dtypes=REAL)],
    p.round_p: [times(lax.round, dtypes=REAL)],
    p.argmax_p: [times(lambda x: lax.argmax(x, 0, INT), distinct(4, 1), dtypes=REAL)],
    p.argmin_p: [times(lambda x: lax.argmin(x, 0, INT), distinct(4, 1), dtypes=REAL)],
    "lu_pivots_to_permutation": [
        on_integers(lambda i: lax.linalg.lu_pivots_to_permutation(lax.iota(INT, 3) + (i > 9), 3)),
    ],
    p.iota_p: [times(lambda x: lax.iota(x.dtype, 3))],
    "empty": [times(lambda x: lax.empty((3,), x.dtype) * 0.0, finite=False)],
    p.random_seed_p: [by_key(lambda k: data(jax.random.key(data(k))))],
    p.random_bits_p: [by_key(lambda k: jax.random.bits(k, (3,)))],
    p.random_split_p: [by_key(lambda k: data(jax.random.split(k)))],
    p.random_fold_in_p: [by_key(lambda k: data(jax.random.fold_in(k, 3)))],
    "random_wrap": [by_key(data)],
    "random_unwrap": [by_key(data)],
    "random_clone": [by_key(lambda k: data(jax.random.clone(k)))],
    p.threefry2x32_p: [
        times(
            lambda x: p.threefry2x32_p.bind(*[halves(x)[:1]] * 4)[0].astype(INT), exactly([1.5, 2.5, 3.5]), finite=False
        )
    ],
    p.rng_bit_generator_p: [
        times(lambda x: lax.rng_bit_generator(halves(x).repeat(2), (3,))[1], exactly([1.5, 2.5, 3.5]), finite=False)
    ],
    p.stop_gradient_p: [times(lax.stop_gradient, dtypes=PAIR, finite=False)],
}
