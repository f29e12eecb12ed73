"""plan_memory: what it promises is what is measured, and the gradients are the same."""

import jax
import numpy as np
import pytest

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
