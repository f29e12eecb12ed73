"""State space models: parallel against step by step against NumPy, complex ones too, gradients against jax.vjp."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.nn as tnn
from tapejax.nn import layers

rng = np.random.default_rng(5)
normal = lambda *shape: rng.standard_normal(shape)
complex_ = lambda *shape: normal(*shape) + 1j * normal(*shape)
slow = lambda *values: pytest.param(*values, marks=pytest.mark.slow)


def recurrence(a, b, x, h0):
    a, inputs = np.broadcast_arrays(a, b * x)
    h, states = np.broadcast_to(0.0 if h0 is None else h0, a.shape[1:]), []
    for t in range(len(a)):
        h = a[t] * h + inputs[t]
        states.append(h)
    return np.array(states)


def gradients_agree(lifted, plain, operands):
    tensors = [tj.tensor(operand, requires_grad=True) for operand in operands]
    out = lifted(*tensors)
    ct = normal(*out.shape) + (1j * normal(*out.shape) if jnp.iscomplexobj(out.value) else 0)
    grads = tj.backward(out, jnp.asarray(ct))
    judge = jax.jit(lambda ct, *x: jax.vjp(plain, *x)[1](ct))(ct, *operands)
    for tensor, want in zip(tensors, judge, strict=True):
        np.testing.assert_allclose(grads[tensor], want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("kind", "parallel"),
    [
        ("varying", True), ("complex", False), slow("one complex", True), slow("constant", False),
        slow("constant", True), slow("complex", True), slow("varying", False), slow("one complex", False),
    ],
)  # fmt: skip
def test_ssm_scan(kind, parallel):
    a = {"varying": normal(3, 2), "constant": normal(2), "complex": complex_(3, 2), "one complex": complex_(2)}[kind]
    numbers = complex_ if kind == "complex" else normal
    b, x, h0 = numbers(3, 2), normal(3, 2), numbers(2)
    scan = lambda f: lambda *v: f(*v, parallel=parallel)
    with jax.enable_x64(True):
        np.testing.assert_allclose(layers.ssm_scan(a, b, x, parallel=parallel), recurrence(a, b, x, None), rtol=1e-12)
        np.testing.assert_allclose(
            tnn.ssm_scan(tj.tensor(a), b, x, h0, parallel=parallel).value, recurrence(a, b, x, h0)
        )
        gradients_agree(scan(tnn.ssm_scan), scan(layers.ssm_scan), (a, b, x, h0))


@pytest.mark.parametrize("steps", [1, 7, slow(512), slow(4096)])
def test_parallel_is_sequential_at_every_length(steps):
    a, b, x, h0 = 1 - normal(steps, 2) ** 2 / 50, normal(steps, 2), normal(steps, 2), normal(2)
    with jax.enable_x64(True):
        ct = normal(steps, 2)
        found = {}
        for parallel in (True, False):
            tensors = [tj.tensor(v, requires_grad=True) for v in (a, b, x, h0)]
            out = tnn.ssm_scan(*tensors, parallel=parallel)
            grads = tj.backward(out, jnp.asarray(ct))
            found[parallel] = [out.value, *(grads[t] for t in tensors)]
        for one, other in zip(found[True], found[False], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(found[True][0], recurrence(a, b, x, h0), rtol=1e-9, atol=1e-9)


def model(kind):
    """x, delta, A, B, C, D, h0"""
    numbers = complex_ if kind == "complex" else normal
    lead = () if kind == "constant" else (2, 3)
    A = -(normal(3, 2) ** 2) + (1j * normal(3, 2) if kind == "complex" else 0)
    return normal(2, 3, 3), normal(2, 3, 3) ** 2, A, numbers(*lead, 2), numbers(*lead, 2), normal(3), numbers(2, 3, 2)


@pytest.mark.parametrize(
    ("kind", "parallel"),
    [
        ("complex", True), slow("constant", False), slow("complex", False),
        slow("varying", True), slow("constant", True), slow("varying", False),
    ],
)  # fmt: skip
def test_selective_scan(kind, parallel):
    x, delta, A, B, C, D, h0 = operands = model(kind)
    h, ys = h0, []
    Bs, Cs = (np.broadcast_to(v, (2, 3, 2)) for v in (B, C))
    for t in range(3):
        h = np.exp(delta[:, t, :, None] * A) * h + (delta * x)[:, t, :, None] * Bs[:, t, None, :]
        ys.append(np.real((h * Cs[:, t, None, :]).sum(-1)) + D * x[:, t])
    with jax.enable_x64(True):
        y, last = layers.selective_scan(*map(jnp.asarray, operands), parallel=parallel)
        assert y.dtype == np.float64
        np.testing.assert_allclose(y, np.stack(ys, 1), rtol=1e-10)
        np.testing.assert_allclose(last, h, rtol=1e-10)
        both = lambda f: lambda *v: f(*v, parallel=parallel)[0]
        gradients_agree(both(tnn.selective_scan), both(layers.selective_scan), operands)
