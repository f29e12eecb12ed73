import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core.primitives import top_k_p

from tapejax.errors import RefusedPrimitive
from tapejax.rules import reduction as rules
from tapejax.verify.check import our_vjp
from tapejax.verify.samples.reduction import SAMPLES
from tests.rules.harness import is_caught


def test_initial_value_is_refused():
    with pytest.raises(RefusedPrimitive, match="neutral element"):
        our_vjp(lambda x, i: lax.reduce(x, i, lambda a, b: a * b, (0,)), [jnp.ones(3), jnp.float32(1)], [True, True])


def test_sort_keeps_the_order_and_nothing_else():
    # The cotangents need where each element went: no sorting again, and none of the operands.
    from tapejax import program, reverse

    sorting, _ = program.trace(lambda x, y: lax.sort((x, y), num_keys=1), [jnp.ones(3), jnp.ones(3)])
    kept = reverse.reverse(sorting, [True, True])
    assert (kept.saves_in, kept.saves_out, [aval.dtype for aval in kept.extra_avals]) == ((), (), [np.int32])


def test_masked_start_of_a_running_logsumexp_gives_no_nan():
    x = jnp.array([-np.inf, -np.inf, 0.0, 1.0])
    _, pullback = our_vjp(lambda x: [lax.cumlogsumexp(x)], [x], [True])
    (ct,) = pullback([jnp.ones(4)])
    late = 1 / (1 + np.e)
    np.testing.assert_allclose(ct, [0, 0, 1 + late, 1 - late], rtol=1e-6)


MUTANTS = {
    "reduce_sum: mean": (
        lax.reduce_sum_p,
        "",
        lambda ct, out, x, *, axes, out_sharding: (rules.along(ct, axes, x) / max(x.shape, default=1),),
    ),
    "reduce_max: ties not split": (
        lax.reduce_max_p,
        "out x",
        lambda ct, out, x, *, axes, out_sharding=None: (rules.along(ct, axes, x) * (x == rules.along(out, axes, x)),),
    ),
    "reduce_min: the largest": (
        lax.reduce_min_p,
        "x",
        lambda ct, out, x, *, axes, out_sharding=None: (rules.shared_by_equals(ct, lax.reduce_max(x, axes), x, axes),),
    ),
    "reduce_prod: by division": (
        lax.reduce_prod_p,
        "out x",
        lambda ct, out, x, *, axes: (rules.along(ct * out, axes, x) / x,),
    ),
    "cumsum: same direction": (
        lax.cumsum_p,
        "",
        lambda ct, out, x, *, axis, reverse: (lax.cumsum(ct, axis, reverse=reverse),),
    ),
    "cumprod: by division": (
        lax.cumprod_p,
        "out x",
        lambda ct, out, x, *, axis, reverse: (lax.cumsum(ct * out, axis, reverse=not reverse) / x,),
    ),
    "cumlogsumexp: as a whole": (
        lax.cumlogsumexp_p,
        "out x",
        lambda ct, out, x, *, axis, reverse: (lax.exp(x - out) * lax.cumsum(ct, axis, reverse=not reverse),),
    ),
    "cummax: shares to all equals": (
        lax.cummax_p,
        "out x",
        lambda ct, out, x, *, axis, reverse: (lax.cumsum(ct, axis, reverse=not reverse) * (x == out),),
    ),
    "sort: left in order": (lax.sort_p, "", lambda cts, outs, *xs, **_: cts),
    "top_k: the first k": (
        top_k_p,
        "",
        lambda cts, outs, x, *, k, axis, is_stable=True: (
            lax.pad(cts[0], np.zeros((), x.dtype), [(0, x.shape[d] - cts[0].shape[d], 0) for d in range(x.ndim)]),
        ),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_caught(mutant, monkeypatch):
    assert is_caught(monkeypatch, *MUTANTS[mutant], SAMPLES)
