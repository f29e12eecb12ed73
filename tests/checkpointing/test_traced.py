"""Within a trace, and with a policy, a checkpoint is jax's own: kept is what the policy says."""

import jax
import jax.ad_checkpoint
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tapejax import errors

X = np.random.default_rng(0).normal(size=(3, 3)).astype("float32")
policies = jax.checkpoint_policies


def leaf(value):
    return tj.tensor(value, requires_grad=True)


def f(x, w):
    return tnp.sin(tj.checkpoint_name(tnp.tanh(tnp.sin(x) @ w), "inner") @ w).sum()


def g(x, w):
    return jnp.sin(jax.ad_checkpoint.checkpoint_name(jnp.tanh(jnp.sin(x) @ w), "inner") @ w).sum()


# policy: how many arrays are kept besides the inputs
POLICIES = {"nothing": 0, "dots": 2, policies.everything_saveable: None, policies.dots_saveable: 2, ("inner",): 1}


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: getattr(policy, "__name__", str(policy)))
def test_policies_eagerly(policy):
    x, w = leaf(X), leaf(X + 1)
    with tj.Tape() as tape:
        y = tj.checkpoint(f, x, w, policy=policy)
    (action,) = tape
    if POLICIES[policy] is not None:
        assert len(action.plan.reversed.extras) == POLICIES[policy]
    grads = tape.backward(y)
    for tensor, want in zip((x, w), jax.grad(g, (0, 1))(X, X + 1), strict=True):
        np.testing.assert_allclose(grads[tensor], want, rtol=1e-4, atol=1e-5)


def test_a_policy_with_a_closure_and_dropout():
    x, w = leaf(X), leaf(X + 1)
    h = lambda x: (tnp.sin(x @ w) * tj.random.bernoulli(0.5, (3, 3))).sum()
    for _ in range(2):
        tj.random.seed(0)
        ours = [tj.backward(tj.checkpoint(h, x, policy="dots")) for _ in range(2)]
        state = tj.random.get_state()
        tj.random.seed(0)
        plain = [tj.backward(h(x)) for _ in range(2)]
        assert tj.random.get_state() == state
        for a, b in zip(ours, plain, strict=True):
            np.testing.assert_allclose(a[x], b[x], rtol=1e-5)
            np.testing.assert_allclose(a[w], b[w], rtol=1e-5)
    assert not np.array_equal(plain[0][x], plain[1][x])


def test_draws_that_would_repeat_are_refused():
    x = leaf(X)
    loop = lambda x: tj.lax.scan(lambda c, _: (c * tj.random.normal((3,)), None), x, None, length=2)[0]
    with pytest.raises(errors.RandomStateError):
        tj.checkpoint(loop, x, policy="dots")
    with pytest.raises(errors.RandomStateError):
        jax.jit(lambda v: tj.checkpoint(lambda x: x * tj.random.normal((3,)), tj.tensor(v)).value)(X)


def primitives(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from primitives(inner)


def test_within_jit_it_is_the_primitive_of_jax():
    h = lambda v: tj.checkpoint(lambda x: tnp.sin(tnp.exp(x)).sum(), tj.tensor(v)).value
    assert "remat2" in primitives(jax.make_jaxpr(h)(X).jaxpr)
    np.testing.assert_allclose(jax.jit(jax.grad(h))(X), np.cos(np.exp(X)) * np.exp(X), rtol=1e-5)
    ours = tj.grad(lambda x: tj.checkpoint(lambda x: tnp.sin(tnp.exp(x)).sum(), x))
    assert "optimization_barrier" in primitives(jax.make_jaxpr(ours)(X).jaxpr)  # XLA must not keep it after all
    np.testing.assert_allclose(jax.jit(ours)(X), np.cos(np.exp(X)) * np.exp(X), rtol=1e-5)


def test_memory_is_saved_within_jit():
    """In a loop, where XLA's CPU compiler cannot undo it (straight-line code it merges again, for jax.checkpoint too)."""

    def looped(x, call):
        body = lambda c, _: (call(lambda c: tnp.sin(tnp.sin(c @ c) @ c), c), None)
        return tj.lax.scan(body, x, None, length=16)[0].sum()

    def size(call):
        compiled = jax.jit(tj.grad(lambda x: looped(x, call))).lower(np.ones((32, 32))).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert size(tj.checkpoint) < 0.6 * size(lambda f, x: f(x))


def test_within_tapejax_jit_vmap_and_scan():
    x, w = leaf(X), leaf(X + 1)
    step = lambda c: tj.checkpoint(lambda c: tnp.tanh(c @ w), c)
    judge = lambda x, w: jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=4)[0].sum()
    want = jax.grad(judge, (0, 1))(X, X + 1)
    scanned = lambda x: tj.lax.scan(lambda c, _: (step(c), None), x, None, length=4)[0].sum()
    around = lambda x: tj.checkpoint(scanned, x)
    jitted = tj.jit(lambda x, w: tj.lax.scan(lambda c, _: (tj.checkpoint(lambda c, w: tnp.tanh(c @ w), c, w), None), x, None, length=4)[0].sum())  # fmt: skip
    for run in (scanned, around, lambda x: jitted(x, w)):
        grads = tj.backward(run(x))
        for tensor, gradient in zip((x, w), want, strict=True):
            np.testing.assert_allclose(grads[tensor], gradient, rtol=2e-4, atol=1e-5)
    mapped = tj.vmap(lambda row: tj.checkpoint(lambda row: tnp.sin(row) * w[0], row))
    grads = tj.backward(mapped(x))
    np.testing.assert_allclose(grads[x], np.cos(X) * (X + 1)[0], rtol=1e-5)
    np.testing.assert_allclose(grads[w][0], np.sin(X).sum(0), rtol=1e-5)


def test_functions_over_arrays():
    def over_arrays(x, w):
        return {"y": jax.jit(jnp.sin)(x @ w), "name": "y", "n": None}

    x, w = leaf(X), leaf(X + 1)
    for _ in range(2):
        out = tj.checkpoint(over_arrays, x, w)
        assert out["name"] == "y"
        assert out["n"] is None
        grads = tj.backward(out["y"].sum())
        for tensor, want in zip((x, w), jax.grad(lambda x, w: jnp.sin(x @ w).sum(), (0, 1))(X, X + 1), strict=True):
            np.testing.assert_allclose(grads[tensor], want, rtol=1e-4, atol=1e-5)


def test_a_closure_over_a_tracer():
    def h(v):
        t = tj.tensor(v)
        return tj.checkpoint(lambda x: (x * t).sum(), tj.tensor(X)).value

    np.testing.assert_allclose(jax.jit(h)(X), (X * X).sum(), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(h)(X), X, rtol=1e-5)
