"""The words the rules of linear algebra are written in. No rules here.

Matrices are the last two dimensions, everything before them is a batch. `ct` pairs with a change as
sum(ct * change), without conjugation. A rule that is easier to write with conjugate transposes works
on `conjugate(ct)`, which pairs as Re tr(conjugate(ct)^H change), and takes `conjugate` of its result.
"""

import jax.numpy as jnp
from jax import lax


def T(x):
    """The transpose."""
    return lax.transpose(x, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2])


def conjugate(x):
    """The conjugate."""
    return lax.conj(x) if jnp.iscomplexobj(x) else x


def H(x):
    """The conjugate transpose."""
    return conjugate(T(x))


def mm(*matrices):
    """The product of matrices, from left to right, in full precision."""
    product, *rest = matrices
    last = product.ndim - 1
    numbers = (((last,), (last - 1,)), (range(last - 1), range(last - 1)))
    for matrix in rest:
        product = lax.dot_general(product, matrix, numbers, precision=lax.Precision.HIGHEST)
    return product


def diagonal(x):
    """The matrices x without what is off their diagonals."""
    return jnp.tril(jnp.triu(x))


def on_diagonal(x):
    """The diagonal matrices with the vectors x on their diagonals."""
    return x[..., None] * jnp.eye(x.shape[-1], dtype=x.dtype)


def half_diagonal(x):
    """x with its diagonal halved."""
    return x - 0.5 * diagonal(x)


def inverse_differences(x, *, of=lambda x, y: x - y):
    """1 / (x[j] - x[i]) at [i, j], zero on the diagonal. Infinite where two entries are equal, as in jax."""
    eye = jnp.eye(x.shape[-1], dtype=x.dtype)
    return 1 / (of(x[..., None, :], x[..., :, None]) + eye) - eye


def put_back(x, permutation, axis):
    """y such that x is y with the entries of this axis (-1 or -2) in the order of `permutation`."""
    indices = jnp.expand_dims(jnp.argsort(permutation, axis=-1), -3 - axis)
    return jnp.take_along_axis(x, indices, axis)
