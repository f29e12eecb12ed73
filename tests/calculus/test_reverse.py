"""What a derivative is defined for: arrays without elements too, as in jax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tests import by_jax
from tests.some import one_in

NONE = np.zeros(0, np.int32)
EMPTY = {  # a function of a namespace and an array, and the array's shape
    "sum": (lambda m, x: m.sum(x), (0, 3)), "sum of rows": (lambda m, x: m.sum(x, axis=1), (0, 3)), "sum of columns": (lambda m, x: m.sum(x, axis=0), (0, 3)),
    "mean of columns": (lambda m, x: m.mean(x, axis=0), (0, 3)), "mean of rows": (lambda m, x: m.mean(x, axis=1), (0, 3)),
    "max": (lambda m, x: m.max(x, initial=1.0), (0, 3)), "min of rows": (lambda m, x: m.min(x, axis=1), (0, 3)), "prod": (lambda m, x: m.prod(x, axis=0), (0, 3)),
    "matmul": (lambda m, x: m.matmul(x, m.ones((3, 2))), (0, 3)), "matmul over nothing": (lambda m, x: m.matmul(x.T, x), (0, 3)),
    "einsum": (lambda m, x: m.einsum("ij,kj->ik", x, x), (0, 3)), "concatenate": (lambda m, x: m.concatenate([x, x]), (0, 3)),
    "concatenate with some": (lambda m, x: m.concatenate([x, m.ones((2, 3))]), (0, 3)), "stack": (lambda m, x: m.stack([x, x]), (0, 3)),
    "exp": (lambda m, x: m.exp(x) * x, (0, 3)), "where": (lambda m, x: m.where(x > 0, x, 0.0), (0, 3)), "sort": (lambda m, x: m.sort(x, axis=0), (0, 3)),
    "cumsum": (lambda m, x: m.cumsum(x), (0,)), "cumprod": (lambda m, x: m.cumprod(x), (0,)), "reshape": (lambda m, x: m.reshape(x, (3, 0)), (0, 3)),
    "pad": (lambda m, x: m.pad(x, ((1, 1), (0, 0))), (0, 3)), "repeat": (lambda m, x: m.repeat(x, 0, axis=0), (2, 3)), "median": (lambda m, x: m.median(x, axis=1), (0, 3)),
    "indices": (lambda m, x: x[NONE], (2, 3)), "slice": (lambda m, x: x[1:1, 1:2], (2, 3)), "mask": (lambda m, x: x[np.zeros((2, 3), bool)], (2, 3)),
    "mask of rows": (lambda m, x: x[np.zeros(2, bool)], (2, 3)), "mask, and its sum": (lambda m, x: x[np.zeros(2, bool)].sum() + x[0, 0] ** 2, (2, 3)),
    "columns of nothing": (lambda m, x: x[:, np.array([0, 1])], (0, 3)), "take": (lambda m, x: m.take(x, NONE, axis=0), (2, 3)),
    "set": (lambda m, x: x.at[NONE].set(1.0), (2, 3)), "add": (lambda m, x: x.at[NONE].add(m.ones((0, 3))), (2, 3)), "interp": (lambda m, x: m.interp(x, np.arange(3.0), np.arange(3.0)), (0,)),
    "split": (lambda m, x: m.split(x, [0])[0], (2, 3)), "inv": (lambda m, x: m.linalg.inv(x), (0, 2, 2)),
}  # fmt: skip


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", one_in(2, EMPTY))
def test_array_without_elements(name, fused, monkeypatch):
    monkeypatch.setattr(tj.fusion, "enabled", fused)
    function, shape = EMPTY[name]
    a = jnp.asarray(np.asarray(np.random.default_rng(0).normal(size=shape), "f"))
    expected, (ct,) = by_jax.vjp(lambda a: function(jnp, a), a)
    for _ in range(3 if fused else 1):  # one by one, then compiled
        x = tj.tensor(a, requires_grad=True)
        y = function(tnp, x)
        np.testing.assert_array_equal(y.value, expected)
        np.testing.assert_allclose(tj.backward(y)[x], ct, rtol=1e-6)


def test_nothing_picked_within_a_lifted_function():
    x = tj.tensor([1.0, 2.0], requires_grad=True)
    y = tj.lift(lambda x: jnp.sum(x[NONE]))(x)
    np.testing.assert_array_equal(tj.backward(y)[x], jax.grad(lambda x: jnp.sum(x[NONE]))(x.value))
    assert not tj.lift(lambda x: jax.lax.stop_gradient(x)[0] * 2)(x).requires_grad
