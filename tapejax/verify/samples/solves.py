"""Samples: solves."""

import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jax import lax
from jax.extend.core.primitives import linear_solve_p
from jax.scipy.sparse import linalg as krylov

from tapejax.verify.samples.base import COMPLEX, WIDE, normal, positive_definite, sample, well_conditioned

FLOAT64 = ("float64",)
BOTH = ("float64", "complex128")
MATRIX = WIDE + COMPLEX


def triangular(**options):
    return lambda a, b: lax.linalg.triangular_solve(a, b, **options)


def by_inverse(a, b):
    """A solve for a matrix-vector product that is not linear in the matrix it closes over."""
    inverse = jnp.linalg.inv(a * a)
    solve = lambda _, b: inverse @ b
    transpose_solve = lambda _, b: inverse.T @ b
    return lax.custom_linear_solve(lambda x: (a * a) @ x, b, solve, transpose_solve)


def with_report(a, b):
    """A symmetric solve that also returns a number which is no part of the solution."""
    a = a + a.T
    solve = lambda matvec, b: (jsl.cho_solve(jsl.cho_factor(a), b), jnp.sum(b))
    x, _ = lax.custom_linear_solve(lambda x: a @ x, b, solve, symmetric=True, has_aux=True)
    return x


def tree_solve(a, b):
    """Unknowns in a tuple, the second of another shape."""
    divide = lambda _, b: (b[0] / a, b[1] / jnp.sum(a))
    return lax.custom_linear_solve(lambda x: (a * x[0], jnp.sum(a) * x[1]), b, divide, divide)


def tight(method):
    """The solution of a Krylov method, iterated until it is exact."""
    return lambda a, b: method(lambda x: a @ x, b, tol=1e-14, atol=0.0)[0]


KRYLOV = {"dtypes": FLOAT64, "rtol": 1e-8, "why": "an iterative solve stops at its tolerance"}

SAMPLES = {
    lax.linalg.triangular_solve_p: [
        sample(triangular(left_side=True, lower=True), well_conditioned(3), normal(3, 2), dtypes=MATRIX),
        sample(triangular(left_side=False, lower=False), well_conditioned(3, 2), normal(2, 4, 3), dtypes=BOTH),
        sample(
            triangular(left_side=True, lower=False, transpose_a=True), well_conditioned(3), normal(3, 2), dtypes=BOTH
        ),
        sample(
            triangular(left_side=False, lower=True, transpose_a=True, conjugate_a=True, unit_diagonal=True),
            well_conditioned(3), normal(2, 3), dtypes=BOTH,
        ),
        sample(
            triangular(left_side=True, lower=False, conjugate_a=True, unit_diagonal=True),
            normal(3, 3), normal(3, 1), dtypes=BOTH,
        ),
        sample(triangular(left_side=True, lower=True), normal(0, 0), normal(0, 2), dtypes=FLOAT64),
        sample(lambda a, b: jsl.solve_triangular(a, b, trans="C"), well_conditioned(3), normal(3), dtypes=BOTH),
        sample(lambda a, b: jsl.cho_solve((a, True), b), well_conditioned(3), normal(3), dtypes=BOTH),
    ],
    lax.linalg.tridiagonal_solve_p: [
        sample(
            lambda dl, d, du, b: lax.linalg.tridiagonal_solve(dl, d + 4, du, b),
            normal(4), normal(4), normal(4), normal(4, 2), dtypes=MATRIX,
        ),
        sample(
            lambda dl, d, du, b: lax.linalg.tridiagonal_solve(dl, d + 4, du, b),
            normal(2, 3), normal(2, 3), normal(2, 3), normal(2, 3, 1), dtypes=FLOAT64,
        ),
    ],
    linear_solve_p: [
        sample(by_inverse, well_conditioned(3), normal(3), dtypes=BOTH),
        sample(with_report, positive_definite(3), normal(3), dtypes=FLOAT64),
        sample(lambda a, b, c: tree_solve(a * a + 1, (b, c)), normal(3), normal(3), normal(), dtypes=FLOAT64),
        sample(jnp.linalg.solve, well_conditioned(3), normal(3), dtypes=MATRIX),
        sample(jnp.linalg.solve, well_conditioned(2, 2), normal(2, 2, 3), dtypes=FLOAT64, orders=1),
        sample(tight(krylov.cg), positive_definite(3), normal(3), **KRYLOV),
        # The same rule again, around programs that take long to compile.
        sample(tight(krylov.bicgstab), well_conditioned(3), normal(3), orders=1, **KRYLOV),
        sample(tight(krylov.gmres), well_conditioned(3), normal(3), orders=1, finite=False, **KRYLOV),
    ],
}  # fmt: skip
