"""Primitives through which no derivative flows, in groups, each with its reason.

Their results count as constants: zero where jax.vjp gives zeros. Most return integers or booleans;
the rest are steps, flat wherever they have a derivative at all.
"""

from jax.extend.core import primitives as p

from tapejax.rules.registry import constant, refused

constant(
    [p.eq_p, p.ne_p, p.lt_p, p.le_p, p.gt_p, p.ge_p, p.eq_to_p, p.lt_to_p, p.le_to_p, p.is_finite_p],
    "a comparison gives booleans",
)
constant(
    [p.and_p, p.or_p, p.xor_p, p.not_p, p.shift_left_p, p.shift_right_arithmetic_p, p.shift_right_logical_p,
     p.clz_p, p.population_count_p, "mulhi"],
    "works on the bits of integers",
)  # fmt: skip
constant([p.reduce_and_p, p.reduce_or_p, p.reduce_xor_p], "a reduction of booleans or of bits", cheap=False)
constant([p.floor_p, p.ceil_p, p.round_p], "a step function: flat between its steps")
constant([p.argmax_p, p.argmin_p, "lu_pivots_to_permutation"], "gives positions", cheap=False)
constant([p.iota_p, p.empty2_p, "empty"], "depends on no operand")
constant([p.axis_index_p], "the place of a device or of a mapped call")
constant([p.create_token_p, p.after_all_p], "a token orders effects and has no value", cheap=False)
constant(
    [p.random_seed_p, p.random_bits_p, p.random_split_p, p.random_fold_in_p, "random_wrap", "random_unwrap",
     "random_clone", p.threefry2x32_p, p.rng_bit_generator_p],
    "keys and random bits are integers",
    cheap=False,
)  # fmt: skip
constant([p.stop_gradient_p], "stop_gradient: the user asked for it", stops=True)

refused(
    [p.rng_uniform_p],
    "its numbers come from a hidden state, so its bounds cannot be moved while they stay the same",
    fix="use jax.random.uniform(key, ...), or wrap the bounds in stop_gradient",
)
refused(
    ["scaled_dot"],
    "jax has no derivative of a product of scaled low-precision arrays",
    fix="multiply the scales in and use lax.dot_general",
)
