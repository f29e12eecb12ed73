"""float8, as jax has it: casts, products that are summed in float32, gradients; the judge is jax.grad of the same program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp

X = np.linspace(-1, 1, 12, dtype="f").reshape(3, 4)
W = np.linspace(-2, 1, 8, dtype="f").reshape(4, 2)
KINDS = [jnp.float8_e4m3fn, jnp.float8_e5m2]


def product(n, dtype, x, w):
    """float32 in, float32 out; the product is of float8 numbers, and summed in float32."""
    return (n.matmul(x.astype(dtype), w.astype(dtype), preferred_element_type=jnp.float32) ** 2).sum()


@pytest.mark.parametrize("dtype", KINDS)
def test_a_product_of_float8_numbers(dtype):
    expected = jax.grad(lambda x, w: product(jnp, dtype, x, w), (0, 1))(X, W)
    found = tj.grad(lambda x, w: product(jnp, dtype, x, w), (0, 1))(X, W)
    x, w = (tj.tensor(data, requires_grad=True) for data in (X, W))
    grads = tj.backward(product(tnp, dtype, x, w))
    for want, *got in zip(expected, found, (grads[x], grads[w]), strict=True):
        for each in got:
            assert each.dtype == jnp.float32
            np.testing.assert_array_equal(each, want)
    rounded = np.asarray(X.astype(dtype).astype("f"))
    assert np.abs(rounded - X).max() > 1e-3, "it was float8 indeed"


@pytest.mark.parametrize("dtype", KINDS)
def test_a_parameter_in_float8_gets_its_gradient_in_float8_and_sums_are_rounded_as_jax_rounds_them(dtype):
    def loss(x):
        wide = x.astype(jnp.float32)
        return (wide**2).sum() + (x * x).astype(jnp.float32).sum()

    x = tj.tensor(jnp.asarray(X, dtype), requires_grad=True)
    found = tj.backward(loss(x))[x]
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.astype("f"), jax.grad(loss)(x.value).astype("f"))
