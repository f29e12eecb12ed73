"""jit and vmap of functions over Tensors mean what the functions mean eagerly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tapejax import errors


def leaf(value):
    return tj.tensor(value, requires_grad=True)


def test_a_call_on_recorded_tensors_is_one_action():
    traces = []

    @tj.jit
    def f(p, x):
        traces.append(1)
        return {"loss": (tnp.tanh(p["w"] * x)).sum(), "rest": p["b"].detach() * p["w"], "n": 3}

    p = {"w": leaf([1.0, 2.0]), "b": leaf([3.0, 4.0])}
    for _ in range(3):
        with tj.Tape() as tape:
            out = f(p, 0.5)
            total = out["loss"] + out["rest"].sum()
        assert tape[0].op == "F"
        assert isinstance(out["n"], jax.Array)
        grads = tape.backward(total)
        judge = jax.grad(lambda w: jnp.tanh(w * 0.5).sum() + (p["b"].value * w).sum())(p["w"].value)
        np.testing.assert_allclose(grads[p["w"]], judge, rtol=1e-6)
        assert not np.any(grads.get(p["b"], 0.0))  # detached inside
    assert len(traces) == 1


def test_no_grad_holds_inside():
    @tj.jit
    def f(x):
        with tj.no_grad():
            y = x * x
        return (y * x).sum()

    x = leaf([1.0, 2.0])
    np.testing.assert_allclose(tj.backward(f(x))[x], [1.0, 4.0])


@pytest.mark.parametrize("jit", [tj.jit, jax.jit, lambda f: f], ids=["tapejax", "jax", "eager"])
def test_a_whole_step_leaves_nothing_on_the_tape(jit):
    @jit
    def step(p, x):
        with tj.Tape() as tape:
            loss = ((x * p["w"] + p["b"]) ** 2).mean()
        grads = tape.backward(loss)
        return {k: tj.tensor(v.value - 0.1 * grads[v], requires_grad=True) for k, v in p.items()}, loss.value

    p = {"w": leaf(1.0), "b": leaf(0.0)}
    losses = []
    for _ in range(3):
        p, loss = step(p, jnp.arange(3.0))
        losses.append(float(loss))
        assert len(tj.current_tape()) == 0
        assert p["w"].is_leaf
        assert p["w"].requires_grad
    np.testing.assert_allclose(losses, [1.6666667, 0.5140740, 0.1929810], rtol=1e-5)


def test_what_is_handed_through_is_still_what_it_was():
    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    out = tj.jit(lambda x, y: (y, x * y))(x, y)
    assert out[0].id == y.id
    only = tj.jit(lambda x: x)(x)
    assert only.id == x.id
    np.testing.assert_allclose(tj.backward((only * out[0]).sum())[y], [1.0, 2.0])


def test_functions_written_for_arrays():
    x = leaf([1.0, 2.0])
    f = tj.jit(lambda x: jnp.sin(x).sum())
    np.testing.assert_allclose(tj.backward(f(x))[x], jnp.cos(x.value), rtol=1e-6)
    assert isinstance(f(x.value), jax.Array)


def test_static_and_donated_arguments():
    @tj.jit(static_argnums=1, static_argnames="flag", donate_argnums=0)
    def f(x, n, flag=True):
        assert isinstance(n, int)
        return x * n if flag else x + n

    assert f(tj.tensor([1.0]), 3).item() == 3.0
    assert f(tj.tensor([1.0]), 3, flag=False).item() == 4.0
    x = tj.tensor(np.ones(4, "f"))
    f(x, 2)
    assert x.value.is_deleted()
    x = leaf(np.ones(4, "f"))  # what is recorded is not donated: its backward may read it
    y = f(x, 2)
    assert not x.value.is_deleted()
    np.testing.assert_allclose(tj.backward(y)[x], 2 * np.ones(4))


def test_a_recorded_tensor_in_a_closure_is_refused():
    w = leaf(2.0)
    with pytest.raises(errors.ClosureError, match="closes over"):
        tj.jit(lambda x: (x * w).sum())(leaf([1.0]))


def test_grad_of_jit_and_jit_of_grad():
    f = lambda x: (tnp.sin(x) * x).sum()
    judge = jax.grad(lambda x: (jnp.sin(x) * x).sum())
    x = jnp.array([0.3, 0.7])
    for ours in (tj.grad(tj.jit(f)), tj.jit(tj.grad(f)), tj.jit(tj.grad(tj.jit(f))), jax.jit(tj.grad(tj.jit(f)))):
        np.testing.assert_allclose(ours(x), judge(x), rtol=1e-6)
    second = jax.grad(lambda x: judge(x).sum())(x)
    np.testing.assert_allclose(tj.grad(lambda x: tj.grad(tj.jit(f))(x).sum())(x), second, rtol=1e-6)


def test_vmap_is_recorded_with_what_it_closes_over():
    x, w = leaf([1.0, 2.0, 3.0]), leaf(2.0)
    with tj.Tape() as tape:
        y = tj.vmap(lambda a: tnp.sin(a * w))(x)
    assert len(tape) == 1
    grads = tape.backward(y)
    judge = jax.vjp(lambda x, w: jnp.sin(x * w), x.value, w.value)[1](jnp.ones(3))
    np.testing.assert_allclose(grads[x], judge[0], rtol=1e-6)
    np.testing.assert_allclose(grads[w], judge[1], rtol=1e-6)


def test_per_sample_gradients():
    loss = lambda w, x, y: jnp.sum((jnp.tanh(w @ x) - y) ** 2)
    w, x, y = jnp.ones((2, 3)) / 3, jnp.arange(12.0).reshape(4, 3) / 9, jnp.ones((4, 2))
    judge = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(w, x, y)
    for ours in (tj.vmap(tj.grad(loss), in_axes=(None, 0, 0)), jax.vmap(tj.grad(loss), in_axes=(None, 0, 0))):
        np.testing.assert_allclose(ours(w, x, y), judge, rtol=1e-5, atol=1e-6)
    over = tj.vmap(lambda a, b: a * b, in_axes=(1, None), out_axes=1)(leaf(np.ones((2, 3), "f")), leaf(2.0))
    assert over.shape == (2, 3)


def test_a_flag_in_an_if_is_told_to_be_static():
    def step(w, training=False):
        return w * 2 if training else w

    for w in (leaf(1.0), tj.tensor(1.0), jnp.ones(())):
        with pytest.raises(
            jax.errors.TracerBoolConversionError, match=r"tracing the function step at \S*test_jit"
        ) as e:
            tj.jit(step)(w, False)
        assert "argument training" in str(e.value)
        assert any("static_argnames=" in note for note in e.value.__notes__)
        for static in ({"static_argnames": "training"}, {"static_argnums": 1}):
            jitted = tj.jit(step, **static)
            assert float(jitted(w, True)) == float(jitted(w, training=True)) == 2.0


def test_gradients_do_not_leave_a_compiled_function_as_a_map():
    with pytest.raises(errors.ArgumentError, match=r"grads\.tree\(params\)") as caught:
        tj.jit(lambda w: (w * w).backward())(leaf(1.0))
    assert __file__ in caught.value.at
    assert tj.jit(lambda w: (w * w).backward().tree(w))(leaf(1.0)) == 2.0


def test_a_setting_that_changed_is_traced_anew():
    """As jax.jit does: what was recorded under other settings is not what is asked for now."""
    f = tj.jit(lambda w, n: (w * n).sum())
    w, n = leaf([1.0, 2.0]), tj.tensor(np.array([1, 2]))
    assert f(w, n).requires_grad
    with jax.numpy_dtype_promotion("strict"), pytest.raises(jax.dtypes.TypePromotionError):
        f(w, n)
    product = tj.jit(lambda w: w @ w)
    for precision in ("highest", "high"):
        with jax.default_matmul_precision(precision), tj.Tape() as tape:
            product(w)
        (equation,) = [eqn for eqn in tape[0].plan.flat_program.eqns if eqn.primitive.name == "dot_general"]
        assert {one.name.lower() for one in equation.params["precision"]} == {precision}
