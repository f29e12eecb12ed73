"""Norms, clipping, accumulation and loss scaling, against optax or the plain formula."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tapejax as tj

G = {"a": jnp.array([3.0, -4.0]), "b": [jnp.array(12.0)]}


def test_norm_and_clipping_as_optax_has_them():
    assert tj.training.global_norm(G) == 13.0
    assert tj.training.global_norm({}) == 0.0
    clip = lambda transform: transform.update(G, transform.init(G))[0]
    for ours, judge in [
        (tj.training.clip_by_norm(G, 1.0), clip(optax.clip_by_global_norm(1.0))),
        (tj.training.clip_by_norm(G, 50.0), G),
        (tj.training.clip_by_value(G, 3.5), clip(optax.clip(3.5))),
        (tj.training.clip_by_norm(jax.tree.map(jnp.zeros_like, G), 1.0), jax.tree.map(jnp.zeros_like, G)),
    ]:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, judge)


def test_float16_norm_does_not_overflow():
    g = jnp.full(4, 300.0, jnp.float16)
    assert tj.training.global_norm(g) == 600.0
    assert tj.training.clip_by_norm(g, 1.0).dtype == jnp.float16


def test_clipping_of_tensors_is_recorded():
    x = tj.tensor([3.0, 4.0], requires_grad=True)
    y = tj.training.clip_by_norm(x, 1.0).sum()
    judge = jax.grad(lambda x: (x / jnp.sqrt(jnp.sum(x * x))).sum())(x.value)
    np.testing.assert_allclose(tj.backward(y)[x], judge, atol=1e-6)


def test_accumulated_gradients_are_those_of_the_whole_batch():
    loss = lambda p, x, y: jnp.mean((jnp.tanh(x @ p["w"]) - y) ** 2)
    p, x, y = {"w": jnp.ones(3) / 2}, jnp.arange(24.0).reshape(8, 3) / 24, jnp.linspace(0.0, 1.0, 8)
    judge = jax.value_and_grad(loss)(p, x, y)
    for steps in (1, 4):
        ours = jax.jit(tj.training.accumulate(loss, steps, batch=(1, 2)))(p, x, y)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), ours, judge)
    with pytest.raises(ValueError, match="cut into 3"):
        tj.training.accumulate(loss, 3, batch=(1, 2))(p, x, y)


def test_loss_scaling_saves_small_gradients():
    tiny = jnp.float16(1e-4)
    f = lambda w: (w * tiny) * tiny  # its gradient, 1e-8, is 0 in float16
    assert tj.grad(f)(jnp.float16(1.0)) == 0.0
    scaling = tj.training.LossScale.start(2.0**14)
    scaled = tj.grad(lambda w: scaling.scale(f(w)))(jnp.float16(1.0))
    assert tj.training.all_finite(scaled)
    np.testing.assert_allclose(scaled.astype(jnp.float32) / scaling.factor, 1e-8, rtol=1e-2)


def test_loss_scale_shrinks_on_overflow_and_grows_after_good_steps():
    scaling = tj.training.LossScale.start(8.0, period=2)
    assert not tj.training.all_finite({"a": jnp.array([1.0, jnp.nan])})
    assert scaling.adjust(jnp.array(False)).factor == 4.0
    once = scaling.adjust(jnp.array(True))
    assert (once.factor, once.good_steps) == (8.0, 1)
    twice = jax.jit(lambda s: s.adjust(jnp.array(True)))(once)
    assert (twice.factor, twice.good_steps) == (16.0, 0)


def test_accumulator_gives_the_mean_and_the_norm_before_clipping():
    loss = lambda p, x: jnp.mean((x @ p["w"] + p["b"]) ** 2)
    p, x = {"w": jnp.ones(3) / 2, "b": jnp.array(2.0)}, jnp.arange(24.0).reshape(8, 3) / 24
    total = tj.training.Accumulator()
    for part in x.reshape(4, 2, 3):
        total.add(tj.grad(loss)(p, part))
    judge = jax.grad(loss)(p, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), total.mean(), judge)
    clipped, norm = total.clip_by_norm(0.5)
    np.testing.assert_allclose(norm, optax.tree.norm(judge), rtol=1e-6)
    np.testing.assert_allclose(optax.tree.norm(clipped), 0.5, rtol=1e-6)
    same, again = total.clip_by_norm(100.0)
    assert again == norm
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), same, judge)
    total.reset()
    assert (len(total), total.steps) == (0, 0)


def test_accumulator_refuses_what_does_not_fit_and_keeps_what_it_has():
    total = tj.training.Accumulator()
    with pytest.raises(ValueError, match="no micro-batch"):
        total.mean()
    with pytest.raises(ValueError, match="without gradients"):
        total.add({})
    total.add({"a": jnp.ones(2), "b": jnp.ones(1)})
    for wrong, message in [
        ({"a": jnp.ones(2)}, "'b' is missing"),
        ({"a": jnp.ones(2), "b": jnp.ones(1), "c": jnp.ones(1)}, "'c' was not in the first"),
        ({"a": jnp.ones(2), "b": jnp.ones(2)}, r"'b' is float32\[2\], before it was float32\[1\]"),
        ({"a": jnp.ones(2), "b": jnp.ones(1, int)}, "'b' is of int32"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            total.add(wrong)
    assert total.steps == 1
    assert total.mean()["a"].tolist() == [1.0, 1.0]


def test_accumulator_sums_small_numbers_in_a_wide_dtype():
    total = tj.training.Accumulator()
    total.add({"a": jnp.float16(1000.0)})
    for _ in range(9):
        total.add({"a": jnp.float16(0.25)})  # 1000.25 is 1000 in float16
    assert total.mean()["a"] == jnp.float16(100.225)


def test_a_map_of_gradients_may_stand_for_a_pytree():
    w = tj.tensor([3.0, -4.0], requires_grad=True)
    grads = lambda **options: tj.backward((w * w / 2).sum(), **options)
    assert tj.training.global_norm(grads(wrt=w)) == 5.0
    clipped = tj.training.clip_by_norm(grads(wrt=[w]), 1.0)
    assert isinstance(clipped, tj.Gradients)
    np.testing.assert_allclose(clipped[w], [0.6, -0.8], rtol=1e-6)
    assert tj.training.clip_by_value(grads(), 3.5)[w].tolist() == [3.0, -3.5]
    assert tj.training.all_finite(grads())
    assert not tj.training.all_finite(tj.backward(w, [jnp.nan, 1.0]))
    for function in (tj.training.global_norm, lambda all: tj.training.clip_by_norm(all, 1.0)):
        with pytest.raises(tj.TapejaxError, match=r"grads\.tree\(params\), or .* wrt=params"):
            function(grads())


def test_the_root_says_where_they_are():
    for name in (
        "Accumulator",
        "LossScale",
        "accumulate",
        "all_finite",
        "clip_by_norm",
        "clip_by_value",
        "global_norm",
    ):
        assert getattr(tj.training, name)
        with pytest.raises(AttributeError, match=rf"it is tapejax\.training\.{name}$"):
            getattr(tj, name)
        assert name not in dir(tj)


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e20, 3e38])
def test_a_norm_does_not_leave_the_range_on_the_way(size):
    gradients = {"a": jnp.array([3.0, 0.0]) * jnp.float32(size / 5), "b": jnp.float32(size / 5) * 4.0}
    exact = np.sqrt(sum(np.sum(np.float64(g) ** 2) for g in (gradients["a"], gradients["b"])))
    np.testing.assert_allclose(tj.training.global_norm(gradients), exact, rtol=1e-6)
    limit = min(0.5, 0.5 * size)
    clipped = tj.training.clip_by_norm(gradients, limit)
    np.testing.assert_allclose(clipped["a"], np.array([0.6, 0.0]) * limit, rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], 0.8 * limit, rtol=1e-6)


def test_a_norm_beyond_the_range_still_clips():
    clipped = tj.training.clip_by_norm(jnp.array([3e38, 3e38]), 1.0)
    np.testing.assert_allclose(clipped, np.full(2, np.sqrt(0.5)), rtol=1e-6)
