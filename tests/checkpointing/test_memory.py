"""plan_memory: what it promises is what is measured, and the gradients are the same."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import print_saved_residuals

import tapejax as tj
import tapejax.numpy as tnp
from tapejax import errors

SIZE = 1024
W = tj.tensor(np.full(SIZE, 1.01, "float32"), requires_grad=True)


def layer(x):
    return tnp.sin(x * W)


@pytest.fixture
def x():
    return tj.tensor(np.ones(SIZE, "float32"), requires_grad=True)


def test_the_cheapest_that_fits_is_chosen(x):
    chain = [layer] * 16
    assert tj.plan_memory(chain, (x,), 10**9).chosen.name == "none"
    plans = [tj.plan_memory(chain, x, budget) for budget in (130_000, 60_000, 20_000)]
    work = [plan.chosen.evaluations for plan in plans]
    assert work == sorted(work)
    assert len(set(work)) == 3
    want = tj.backward(tj.sequential(chain, segments=1)(x))
    for plan in plans:
        assert plan.bytes <= plan.budget_bytes
        assert plan.chosen.name in str(plan)
        grads = tj.backward(plan(x))
        np.testing.assert_allclose(grads[x], want[x], rtol=1e-5)
        np.testing.assert_allclose(grads[W], want[W], rtol=1e-4)
    with pytest.raises(errors.ArgumentError, match="no schedule fits"):
        tj.plan_memory(chain, x, 1000)
    with pytest.raises(errors.ArgumentError, match="number of bytes"):
        tj.plan_memory(chain, x, "1 GB")


def test_what_is_counted_is_what_is_kept(x):
    live = lambda: sum(array.nbytes for array in jax.live_arrays())
    chain = [layer] * 8
    counted = tj.plan_memory(chain, (x,), 10**9).bytes
    before, tj.fusion.enabled = tj.fusion.enabled, False
    try:
        start = live()
        y = tj.sequential(chain, segments=1)(x)
        assert abs(live() - start - counted) <= 2 * x.nbytes  # the result, and what it is made of
    finally:
        tj.fusion.enabled = before
    tj.backward(y)


def test_a_single_function_is_cut_by_itself(x):
    def whole(tree):
        h = tree["x"]
        for _ in range(5):
            h = tnp.sin(h * W) + tree["bias"]
        return h.sum(), h

    tree = {"x": x, "bias": 0.5}
    none = tj.plan_memory(whole, (tree,), 10**9)
    plan = tj.plan_memory(whole, (tree,), none.bytes // 2)
    assert none.chosen.name == "none"
    assert plan.chosen.name != "none"
    assert plan.pieces > 5
    total, h = plan(tree)
    ours, want = tj.backward(total + h[0]), tj.backward((lambda out: out[0] + out[1][0])(whole(tree)))
    np.testing.assert_allclose(ours[x], want[x], rtol=1e-4)
    np.testing.assert_allclose(ours[W], want[W], rtol=1e-4)
    with pytest.raises(errors.ArgumentError, match="structure"):
        plan((tree, 1))


def dense(w, x):
    return jnp.tanh(x @ w)


def normalised(w, x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w


def attention(w, x):
    return jax.nn.softmax(x @ w @ x.T) @ x


LAYERS = [dense, normalised, attention]


def residuals_of(layer, w, x, capsys):
    """The bytes that jax keeps for the backward of a layer, arguments left out, as it prints them."""
    print_saved_residuals(layer, w, x)
    lines = [line for line in capsys.readouterr().out.splitlines() if "from the argument" not in line]
    shapes = [re.match(r"(f32|f64)\[([\d,]*)\]", line) for line in lines]
    return sum(
        int(shape[1][1:]) // 8 * np.prod([int(n) for n in shape[2].split(",") if n]) for shape in shapes if shape
    )


@pytest.mark.parametrize("layer", LAYERS)
def test_no_layer_keeps_more_than_jax_says_that_it_does(layer, capsys):
    drawn = np.random.default_rng(0)
    x = drawn.normal(size=(16, 16)).astype("f")
    w = drawn.normal(size=(16,) if layer is normalised else (16, 16)).astype("f")
    by_jax = residuals_of(layer, w, x, capsys)
    assert by_jax == sum(leaf.nbytes for leaf in inner_leaves(layer, w, x))
    weight = tj.tensor(w, requires_grad=True)
    plan = tj.plan_memory([lambda y: tj.lift(layer)(weight, y)], (tj.tensor(x, requires_grad=True),), 10**9)
    assert plan.pieces == len(plan.kept) == 1
    assert 0 < plan.kept[0] <= by_jax


def inner_leaves(layer, w, x):
    """What jax.vjp holds, without the arguments."""
    held = [leaf for leaf in jax.tree.leaves(jax.vjp(layer, w, x)[1]) if isinstance(leaf, jax.Array)]
    return [leaf for leaf in held if not any(leaf.shape == y.shape and (leaf == y).all() for y in (w, x))]
