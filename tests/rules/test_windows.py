import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core.primitives import select_and_gather_add_p, select_and_scatter_add_p, select_and_scatter_p

from tapejax.errors import RefusedPrimitive
from tapejax.rules import windows as rules
from tapejax.rules.registry import lookup
from tapejax.verify.check import our_vjp
from tapejax.verify.samples.windows import SAMPLES
from tests import by_jax
from tests.rules.harness import (
    assert_equal_functions,
    is_caught,
)

X = [0.5, -1.0, 2.0, 0.0, 3.0]


def unrolled(combine, gap):
    """Windows of two elements `gap` apart, by indexing."""
    return lambda x: combine(x[: 5 - gap], x[gap:])


def test_windows_of_products_equal_products_of_slices():
    ours = lambda x: lax.reduce_window(x, 1.0, lax.mul, (2,), (1,), "VALID")
    assert_equal_functions(ours, unrolled(jnp.multiply, 1), X)


@pytest.mark.parametrize(("combine", "worst"), [(lax.max, -np.inf), (lax.min, np.inf)])
def test_dilated_windows_equal_slices(combine, worst):
    ours = lambda x: lax.reduce_window(x, worst, combine, (2,), (1,), "VALID", window_dilation=(2,))
    assert_equal_functions(ours, unrolled(combine, 2), X)


@pytest.mark.parametrize("dilation", [1, 2])
def test_the_first_of_equals_gets_it_all(dilation):
    pooled = lambda x: [lax.reduce_window(x, -np.inf, lax.max, (3,), (1,), "VALID", window_dilation=(dilation,))]
    outputs, pullback = our_vjp(pooled, [jnp.ones(5)], [True])
    (ct,) = pullback([jnp.ones(outputs[0].shape)])
    np.testing.assert_array_equal(ct, [1, 1, 1, 0, 0] if dilation == 1 else [1, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("shape", "size"), [((2, 6, 6, 3), (1, 2, 2, 1)), ((2, 7, 9), (1, 2, 3)), ((10,), (3,)), ((3, 3), (4, 4))]
)
@pytest.mark.parametrize(("combine", "worst"), [(lax.max, -np.inf), (lax.min, np.inf)])
@pytest.mark.parametrize("holes", [0.0, 0.2])
def test_windows_side_by_side_select_as_jax_does(shape, size, combine, worst, holes):
    rng = np.random.default_rng(0)
    x = np.round(rng.normal(size=shape)).astype(np.float32)  # with many equals
    x[rng.random(shape) < holes] = np.nan
    pooled = lambda x: lax.reduce_window(x, worst, combine, size, size, "VALID")
    ct = rng.normal(size=[n // s for n, s in zip(shape, size, strict=True)]).astype(np.float32)
    ours = jax.jit(lambda x, ct: our_vjp(lambda x: [pooled(x)], [x], [True])[1]([ct])[0])
    np.testing.assert_array_equal(ours(x, ct), by_jax.vjp(pooled, x, ct=lambda out: jnp.asarray(ct))[1][0])


def test_what_is_refused_says_why():
    assert lookup(select_and_scatter_p).kind == "refused"
    product = lambda x, i: lax.reduce_window(x, i, lax.mul, (2,), (1,), "VALID")
    with pytest.raises(RefusedPrimitive, match="neutral element"):
        our_vjp(product, [jnp.ones(3), jnp.float32(1)], [True, True])


def extremum(better):
    def wrong(ct, out, x, *, base_dilation, window_dilation, **where):
        return (select_and_scatter_add_p.bind(ct, x, select_prim=better, **where),)

    return wrong


MUTANTS = {
    "reduce_window_sum: window not turned": (
        lax.reduce_window_sum_p,
        "",
        lambda ct, out, x, *, padding, **where: rules.reduce_window_sum(
            ct, out, x, padding=[(high, low) for low, high in padding], **where
        ),
    ),
    "reduce_window_sum: mean": (
        lax.reduce_window_sum_p,
        "",
        lambda ct, out, x, **where: [ct / 2 for ct in rules.reduce_window_sum(ct, out, x, **where)],
    ),
    "reduce_window_max: the last of equals": (lax.reduce_window_max_p, "x", extremum(lax.gt_p)),
    "reduce_window_min: the largest": (lax.reduce_window_min_p, "x", extremum(lax.ge_p)),
    "select_and_scatter_add: the other end": (
        select_and_scatter_add_p,
        "x",
        lambda ct, out, y, x, *, select_prim, **where: rules.select_and_scatter_add(
            ct, out, y, x, select_prim=lax.le_p if select_prim is lax.ge_p else lax.ge_p, **where
        ),
    ),
    "select_and_gather_add: sign": (
        select_and_gather_add_p,
        "x",
        lambda ct, out, y, x, *, select_prim, base_dilation, window_dilation, **where: (
            -select_and_scatter_add_p.bind(ct, x, select_prim=select_prim, **where),
            None,
        ),
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_caught(mutant, monkeypatch):
    assert is_caught(monkeypatch, *MUTANTS[mutant], SAMPLES)
