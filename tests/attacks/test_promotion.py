"""Strict settings hold for ops that are known from before, under the standard ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp

FLOATS, INTEGERS = np.array([0.25, -0.5, 1.0], "f"), np.array([1, 2, 3], "i")
MATRIX = np.ones((3, 3), "f")

OPS = {
    "operator": lambda x, y: x * y,
    "right operator": lambda x, y: y - x,
    "function": tnp.add,
    "lift": tj.lift(lambda x, y: jnp.sin(x) * y),
    "where": lambda x, y: tnp.where(FLOATS > 0, x, y),
}


def leaf(value):
    return tj.tensor(value, requires_grad=True)


def operands(other):
    return {"a Tensor": tj.tensor(other), "an array": jnp.asarray(other)}


def result(op, first, kind, other):
    return op(leaf(first), operands(other)[kind])


@pytest.mark.parametrize("kind", ["a Tensor", "an array"])
@pytest.mark.parametrize("visits", [1, 2, 4])
@pytest.mark.parametrize("name", OPS)
def test_strict_promotion(name, visits, kind):
    op = OPS[name]
    for _ in range(visits):
        expected = result(op, FLOATS, kind, INTEGERS).numpy()
    for _ in range(3):
        with jax.numpy_dtype_promotion("strict"), pytest.raises(Exception, match=r"(?i)promotion"):
            result(op, FLOATS, kind, INTEGERS).numpy()
    np.testing.assert_allclose(result(op, FLOATS, kind, INTEGERS).numpy(), expected)


@pytest.mark.parametrize("kind", ["a Tensor", "an array"])
@pytest.mark.parametrize("visits", [1, 2, 4])
@pytest.mark.parametrize("name", [name for name in OPS if name != "where"])  # jnp.where does not ask that setting
def test_no_rank_promotion(name, visits, kind):
    op = OPS[name]
    for _ in range(visits):
        expected = result(op, FLOATS, kind, MATRIX).numpy()
    for _ in range(3):
        with jax.numpy_rank_promotion("raise"), pytest.raises(Exception, match=r"(?i)rank|promotion"):
            result(op, FLOATS, kind, MATRIX).numpy()
    np.testing.assert_allclose(result(op, FLOATS, kind, MATRIX).numpy(), expected)


def test_what_is_allowed_is_allowed_under_strict_settings_too():
    for _ in range(4):
        with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
            x = leaf(FLOATS)
            gradient = tj.backward((tnp.tanh(x) * 2.0 * x).sum())[x]
        np.testing.assert_allclose(gradient, 2 * (np.tanh(FLOATS) + FLOATS / np.cosh(FLOATS) ** 2), rtol=1e-5)


@pytest.mark.parametrize("op", [lambda x: x ** np.int32(2), lambda x: x * 2.5, lambda x: x + 1, lambda x: x - x.mean()])
def test_what_jax_allows_under_strict_settings_is_allowed_here(op):
    expected = np.asarray(op(jnp.asarray(FLOATS)))
    for _ in range(4):
        with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
            op(jnp.asarray(FLOATS))  # jax does
            np.testing.assert_allclose(op(leaf(FLOATS)).numpy(), expected, rtol=1e-6)
