"""Samples: linalg."""

import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jax import lax

from tapejax.verify.samples.base import COMPLEX, WIDE, exactly, normal, positive_definite, sample, well_conditioned

FLOAT64 = ("float64",)
BOTH = ("float64", "complex128")
MATRIX = WIDE + COMPLEX
TWICE = [[2.0, 0.0], [0.0, 2.0]]  # equal eigenvalues and singular values
ROTATING = [[1.0, 2.0, 0.5], [-1.0, 0.3, 0.2], [0.4, 0.1, 3.0]]  # two complex eigenvalues


def hermitian(a):
    return (a + jnp.conj(jnp.swapaxes(a, -1, -2))) / 2


def qr(**options):
    return lambda a: lax.linalg.qr(a, **options)[:2]


def svd(**options):
    return lambda a: jnp.linalg.svd(a, **options)


def eigenvectors(left, right):
    return lambda a: lax.linalg.eig(
        a, compute_left_eigenvectors=left, compute_right_eigenvectors=right, enable_eigvec_derivs=True
    )


SAMPLES = {
    lax.linalg.cholesky_p: [
        sample(lambda a: jnp.linalg.cholesky(hermitian(a)), positive_definite(3), dtypes=MATRIX),
        sample(lambda a: jnp.linalg.cholesky(hermitian(a)), positive_definite(2, 2), dtypes=BOTH),
        # Only the lower triangle is read. jax 0.10 gives the upper one a gradient all the same: differences judge.
        sample(
            lambda a: lax.linalg.cholesky(a, symmetrize_input=False), positive_definite(3), dtypes=FLOAT64, orders=0
        ),
        sample(lambda a: lax.linalg.cholesky(a), normal(0, 0), dtypes=FLOAT64),
        sample(lambda a: lax.linalg.cholesky(a), positive_definite(1), dtypes=FLOAT64),
    ],
    lax.linalg.lu_p: [
        sample(lax.linalg.lu, normal(3, 3), dtypes=MATRIX),
        sample(lax.linalg.lu, normal(4, 2), dtypes=FLOAT64),
        sample(lax.linalg.lu, normal(2, 4), dtypes=FLOAT64),
        sample(lax.linalg.lu, normal(2, 3, 3), dtypes=("complex128",)),
        sample(lambda a: jsl.lu(a), normal(3, 2), dtypes=FLOAT64),
        sample(jnp.linalg.inv, well_conditioned(3), dtypes=FLOAT64),
        sample(jnp.linalg.det, normal(4, 4), dtypes=FLOAT64),
        sample(jnp.linalg.slogdet, well_conditioned(3), dtypes=FLOAT64),
        sample(lambda a: jnp.linalg.matrix_power(a, -2), well_conditioned(2), dtypes=FLOAT64),
        sample(jsl.expm, normal(2, 2), dtypes=FLOAT64, orders=1),  # order 2 compiles for 15 s
    ],
    lax.linalg.qr_p: [
        sample(qr(full_matrices=False), normal(4, 2), dtypes=MATRIX),
        sample(qr(full_matrices=True), normal(3, 3), dtypes=BOTH),
        sample(qr(full_matrices=False), normal(2, 3, 2), dtypes=FLOAT64),
        sample(qr(full_matrices=False), normal(2, 4), dtypes=BOTH),
        sample(qr(full_matrices=True), normal(4, 2), dtypes=BOTH),
        sample(qr(full_matrices=False, pivoting=True), normal(4, 2), dtypes=FLOAT64),
        # jax reads the wrong columns of a wide pivoted matrix and cannot do a batch of them: differences judge.
        sample(qr(full_matrices=False, pivoting=True), normal(2, 4), dtypes=FLOAT64, orders=0),
        sample(qr(full_matrices=False, pivoting=True), normal(2, 3, 3), dtypes=FLOAT64, orders=0),
    ],
    lax.linalg.eigh_p: [
        sample(lambda a: jnp.linalg.eigh(a), positive_definite(3), dtypes=MATRIX),
        sample(lambda a: jnp.linalg.eigh(a, UPLO="U"), positive_definite(2, 2), dtypes=BOTH),
        sample(lambda a: jnp.linalg.eigvalsh(a), positive_definite(3), dtypes=BOTH),
        # Equal eigenvalues: the eigenvalues have a gradient, the vectors not a number.
        sample(jnp.linalg.eigvalsh, exactly(TWICE), dtypes=BOTH, orders=1, finite=False),
        sample(jnp.linalg.eigh, exactly(TWICE), dtypes=BOTH, orders=1, finite=False),
    ],
    lax.linalg.eig_p: [
        # jax has no second derivative of eigenvalues without enable_eigvec_derivs.
        sample(jnp.linalg.eigvals, exactly(ROTATING), dtypes=MATRIX, orders=1),
        sample(jnp.linalg.eigvals, well_conditioned(2, 2), dtypes=FLOAT64, orders=1),
        sample(eigenvectors(False, False), normal(3, 3), dtypes=BOTH),
        sample(eigenvectors(False, True), normal(3, 3), dtypes=FLOAT64),
        sample(eigenvectors(True, True), normal(2, 2, 2), dtypes=("complex128",)),
        sample(eigenvectors(True, False), normal(3, 3), dtypes=FLOAT64, orders=1),  # order 2: as the one before
    ],
    lax.linalg.svd_p: [
        sample(svd(full_matrices=False), normal(3, 2), dtypes=MATRIX),
        sample(svd(full_matrices=False), normal(2, 4), dtypes=BOTH),
        sample(svd(full_matrices=True), normal(2, 3, 3), dtypes=FLOAT64),
        sample(svd(compute_uv=False), normal(2, 3), dtypes=MATRIX),
        sample(svd(full_matrices=False), exactly(TWICE), dtypes=BOTH, orders=1, finite=False),
        sample(svd(compute_uv=False), exactly(TWICE), dtypes=BOTH, orders=1, finite=False),
        sample(jnp.linalg.pinv, normal(3, 2), dtypes=FLOAT64),
        sample(lambda a: jnp.linalg.norm(a, "nuc") + jnp.linalg.norm(a, 2), normal(2, 3), dtypes=FLOAT64),
    ],
}  # fmt: skip
