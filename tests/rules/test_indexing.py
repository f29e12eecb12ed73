import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tapejax as tj
from tapejax.errors import RefusedPrimitive
from tapejax.rules import indexing as rules
from tapejax.verify.check import our_vjp
from tapejax.verify.samples.indexing import SAMPLES
from tests.rules.harness import (
    assert_equal_functions,
    is_caught,
)


@pytest.mark.parametrize("updates", [[0.5, 2.0, 3.0, -1.0], [0.0, 2.0, 0.0, 3.0], [0.0, 0.0, 0.0, 0.0]])
def test_product_at_repeated_places_equals_a_product_of_masks(updates):
    places = np.array([0, 2, 0, 0])

    def by_masks(x, u):
        return x * jnp.prod(jnp.where(np.arange(3)[:, None] == places, u, 1.0), axis=1)

    assert_equal_functions(lambda x, u: x.at[places].multiply(u), by_masks, [1.5, 0.0, -2.0], updates)


def test_applied_function_equals_reading_changing_and_writing():
    places = np.array([0, 2])
    ours = lambda x: x.at[places].apply(jnp.sin, unique_indices=True)
    assert_equal_functions(ours, lambda x: x.at[places].set(jnp.sin(x[places])), [1.5, 0.0, -2.0])


def test_applied_function_is_refused_where_places_may_repeat():
    with pytest.raises(RefusedPrimitive, match="unique_indices=True"):
        our_vjp(lambda x: x.at[np.array([0, 0])].apply(jnp.sin), [jnp.ones(3)], [True])


def test_clipped_places_share_a_maximum():
    clipped = lambda x, u: x.at[np.array([7, 8])].max(u, mode="clip")
    assert_equal_functions(clipped, lambda x, u: x.at[np.array([2, 2])].max(u), [1.0, 2, 3], [3.0, 3.0])


def test_untouched_nan_keeps_its_cotangent():
    x = jnp.array([np.nan, 1.0])
    _, pullback = our_vjp(lambda x, u: [x.at[1].max(u)], [x, jnp.float32(2)], [True, True])
    np.testing.assert_array_equal(pullback([jnp.ones(2)])[0], [1, 0])


def changed(rule, which, change):
    """The rule with one of its cotangents changed."""

    def wrong(*args, **params):
        cts = list(rule(*args, **params))
        cts[which] = change(cts[which])
        return cts

    wrong.__signature__ = inspect.signature(rule)
    return wrong


MUTANTS = {
    "dynamic_slice: not clamped": (
        lax.dynamic_slice_p,
        "starts",
        changed(rules.dynamic_slice, 0, lambda ct: jnp.roll(ct, 1, -1) if ct.ndim else -ct),
    ),
    "dynamic_update_slice: also to what was replaced": (
        lax.dynamic_update_slice_p,
        "starts",
        lambda ct, out, x, update, *starts: (ct, lax.dynamic_slice(ct, starts, update.shape), *[None for _ in starts]),
    ),
    "gather: repeated places counted once": (lax.gather_p, "indices", changed(rules.gather, 0, lambda ct: ct / 2)),
    "scatter: all that meet win": (
        lax.scatter_p,
        "indices",
        lambda ct, out, x, indices, updates, *, unique_indices, **how: rules.scatter_set(
            ct, out, x, indices, updates, unique_indices=True, **how
        ),
    ),
    "scatter-add: to the operand only": (
        lax.scatter_add_p,
        "indices",
        changed(rules.scatter_add, 2, lambda ct: 0 * ct),
    ),
    "scatter-sub: sign": ("scatter-sub", "indices", changed(rules.scatter_sub, 2, lambda ct: -ct)),
    "scatter-mul: factors forgotten": (
        lax.scatter_mul_p,
        "indices x updates",
        lambda ct, out, x, indices, updates, **how: (ct, *rules.scatter_mul(ct, out, x, indices, updates, **how)[1:]),
    ),
    "scatter-mul: the others forgotten": (
        lax.scatter_mul_p,
        "indices x updates",
        lambda ct, out, x, indices, updates, *, unique_indices, **how: rules.scatter_mul(
            ct, out, x, indices, updates, unique_indices=True, **how
        ),
    ),
    "scatter-max: ties not split": (
        lax.scatter_max_p,
        "x indices updates out",
        changed(rules.scatter_max, 2, lambda ct: lax.round(2 * ct) / 2),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_caught(mutant, monkeypatch):
    assert is_caught(monkeypatch, *MUTANTS[mutant], SAMPLES)


@pytest.mark.parametrize("start", [-7, -5, -1, 3, 9])
def test_a_start_far_below_zero_is_clamped_in_both_directions(start):
    """Counted from the end once, then clamped: the rule must read and write where the forward did."""
    x, y = jnp.arange(1.0, 5.0), jnp.array([7.0, 8.0])
    weights = jnp.array([2.0, 3.0, 5.0, 7.0])
    sliced = lambda x: jnp.sum(lax.dynamic_slice(x, (start,), (2,)) * weights[:2])
    updated = lambda x, y: jnp.sum(lax.dynamic_update_slice(x, y, (start,)) * weights)
    np.testing.assert_array_equal(tj.grad(sliced)(x), jax.grad(sliced)(x))
    for ours, theirs in zip(tj.grad(updated, (0, 1))(x, y), jax.grad(updated, (0, 1))(x, y), strict=True):
        np.testing.assert_array_equal(ours, theirs)
