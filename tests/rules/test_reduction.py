import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core.primitives import top_k_p

import tapejax as tj
from tapejax.errors import RefusedPrimitive
from tapejax.rules import reduction as rules
from tapejax.verify.check import our_vjp
from tapejax.verify.samples.reduction import SAMPLES
from tests.rules.harness import is_caught
from tests.some import one_in


def test_initial_value_is_refused():
    with pytest.raises(RefusedPrimitive, match="neutral element"):
        our_vjp(lambda x, i: lax.reduce(x, i, lambda a, b: a * b, (0,)), [jnp.ones(3), jnp.float32(1)], [True, True])


def test_sort_keeps_the_order_and_nothing_else():
    # The cotangents need where each element went: no sorting again, and none of the operands.
    from tapejax.calculus import reverse
    from tapejax.program import program

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


NAN = np.array([[1.0, np.nan, 3.0], [2.0, 2.0, -1.0], [np.nan, np.nan, 0.0], [3.0, 3.0, 3.0]])
OTHER = np.array([[1.0, 2.0, np.nan], [np.nan, 2.0, -1.0], [0.0, np.nan, 0.0], [3.0, 2.0, 4.0]])
PLACES = np.array([0, 0, 2, 1], np.int32)
pooled = lambda op, start: lambda x: lax.reduce_window(x, start, op, (2, 2), (1, 1), "VALID")
WITH_NAN = {
    "max": jnp.max, "min": jnp.min, "max of rows": lambda x: jnp.max(x, 1), "min of columns": lambda x: jnp.min(x, 0),
    "maximum": lambda x: jnp.maximum(x, OTHER.astype(x.dtype)), "minimum": lambda x: jnp.minimum(OTHER.astype(x.dtype), x),
    "clip": lambda x: jnp.clip(x, 0, 2), "sort": lambda x: jnp.sort(x, 0), "cummax": lambda x: lax.cummax(x, 0), "cummin": lambda x: lax.cummin(x, 1),
    "argmax": lambda x: jnp.take_along_axis(x, jnp.argmax(x, 1, keepdims=True), 1), "nanmax": lambda x: jnp.nanmax(x, 1),
    "max pooling": pooled(lax.max, -np.inf), "min pooling": pooled(lax.min, np.inf), "segment_max": lambda x: jax.ops.segment_max(x, PLACES, 3),
    "scatter_max": lambda x: x.at[PLACES].max(OTHER.astype(x.dtype)), "scatter_min": lambda x: x.at[PLACES].min(OTHER.astype(x.dtype)),
    "scatter_max of updates": lambda x: jnp.asarray(OTHER, x.dtype).at[PLACES].max(x), "logsumexp": lambda x: jax.nn.logsumexp(x, 1),
    "softmax": lambda x: jax.nn.softmax(x, 1)[:, 0], "ptp": lambda x: jnp.ptp(x, 1), "median": lambda x: jnp.median(x, 1),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", one_in(3, WITH_NAN))
def test_nan_goes_back_as_in_jax(name, dtype):
    # jax without jit: under jit XLA makes its inf * 0 a 0, where the 0 was a bool.
    function = WITH_NAN[name]
    with jax.enable_x64(dtype is np.float64):
        x = jnp.asarray(NAN.astype(dtype))
        out, pull = jax.vjp(function, x)
        ct = jnp.asarray(np.linspace(-1, 2, out.size).reshape(out.shape).astype(dtype))
        (expected,) = pull(ct)

        def ours(x):
            t = tj.tensor(x, requires_grad=True)
            return tj.backward(tj.lift(function)(t), ct)[t]

        for got in (ours(x), jax.jit(ours)(x)):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
