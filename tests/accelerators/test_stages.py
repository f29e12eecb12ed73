"""jit, stage by stage: lower, compile and export; donated buffers."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp

W, X = np.linspace(-1, 1, 8).astype("f").reshape(4, 2), np.linspace(0, 2, 12).astype("f").reshape(3, 4)


def loss(n, w, x):
    return (n.tanh(x @ w) ** 2).mean()


def true_step(w, x):
    value, gradient = jax.value_and_grad(lambda w: loss(jnp, w, x))(w)
    return value, w - 0.5 * gradient


@tj.jit
def step(w, x):
    root = loss(tnp, w, x)
    return root, w.value - 0.5 * tj.backward(root, wrt=w)[w]


def check(found, x=X):
    value, w = true_step(jnp.asarray(W), x)
    np.testing.assert_allclose(
        np.asarray(found[0].value if isinstance(found[0], tj.Tensor) else found[0]), value, rtol=1e-5
    )
    np.testing.assert_allclose(np.asarray(found[1]), w, rtol=1e-5)


def test_lowered_and_compiled_is_called_as_the_function_is():
    w = tj.tensor(W, requires_grad=True)
    lowered = step.lower(w, X)
    assert "stablehlo" in lowered.as_text()
    compiled = lowered.compile()
    assert compiled.cost_analysis() is not None
    found = compiled(w, X)
    assert isinstance(found[0], tj.Tensor)
    check(found)
    with pytest.raises(TypeError, match="float32"):
        compiled(w, np.ones((5, 4), "f"))  # jax's own words: not what it was compiled for


def test_compiled_hands_through_what_it_was_given():
    through = tj.jit(lambda w: (w, w * 2.0))
    w = tj.tensor(W, requires_grad=True)
    same, twice = through.lower(w).compile()(w)
    assert same.id.number == w.id.number
    assert not twice.requires_grad


def test_compiled_records_nothing_and_says_so():
    compiled = tj.jit(lambda x: x * 2.0).lower(tj.tensor(W, requires_grad=True)).compile()
    recorded = tj.tensor(W, requires_grad=True) * 1.0
    with pytest.raises(tj.errors.ArgumentError, match="recorded") as caught:
        compiled(recorded)
    assert __file__ in caught.value.at


def test_a_step_is_exported():
    exported = jax.export.export(step.over_arrays)(W, X)
    check(exported.call(W, X))


def test_a_step_is_exported_with_a_symbolic_batch():
    (batch,) = jax.export.symbolic_shape("batch")
    shapes = jax.ShapeDtypeStruct(W.shape, W.dtype), jax.ShapeDtypeStruct((batch, 4), X.dtype)
    for function in (
        step.over_arrays,
        jax.jit(lambda w, x: (true_step(w, x)[0], w - 0.5 * tj.grad(lambda w: loss(tnp, w, x))(w))),
    ):
        exported = jax.export.export(function)(*shapes)
        for n in (1, 7):
            x = np.linspace(0, 2, 4 * n).astype("f").reshape(n, 4)
            check(exported.call(W, x), x)


def test_a_donated_buffer_that_is_looked_at_again():
    update = tj.jit(lambda w, g: w.value - g, donate_argnums=0)
    w, gone = tj.tensor(W, requires_grad=True), tj.tensor(W + 1.0)
    np.testing.assert_allclose(update(gone, X[:1, :1]), W + 1.0 - X[:1, :1])
    for look in (lambda: gone.numpy(), lambda: repr(gone), lambda: (gone * w).value, lambda: gone.item(0)):
        with pytest.raises(tj.errors.DeletedError, match="donated") as caught:
            look()
        assert __file__ in caught.value.at
    with pytest.raises(tj.errors.DeletedError), tj.fusion(False):
        gone * 2.0


def test_an_op_that_was_called_before_reads_what_is_donated_after():
    update = tj.jit(lambda w: w.value * 2.0, donate_argnums=0)
    w = tj.tensor(W)
    before = w * 3.0
    update(w)
    np.testing.assert_allclose(before.numpy(), W * 3.0)


def test_a_backward_that_reads_what_was_donated():
    update = tj.jit(lambda w: w.value * 2.0, donate_argnums=0)
    w = tj.tensor(W, requires_grad=True)
    root = (w * w).sum()
    update(w)
    with pytest.raises(tj.errors.BackwardError) as caught:
        tj.backward(root)
    assert "deleted" in str(caught.value) or "donated" in str(caught.value)
