import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tapejax.errors import RefusedPrimitive
from tapejax.rules import linalg
from tapejax.verify.check import check_sample, our_vjp
from tapejax.verify.samples.linalg import SAMPLES
from tests.rules.harness import is_caught

REFUSED = {
    "completed u": (lambda a: lax.linalg.svd(a), "full_matrices=False"),
    "some singular vectors": (lambda a: lax.linalg.svd(a, full_matrices=False, subset_by_index=(0, 1)), "subset"),
    "some eigenvectors": (lambda a: lax.linalg.eigh(a[:2], subset_by_index=(0, 1)), "leave subset_by_index out"),
    "eigenvectors": (lambda a: jnp.linalg.eig(a[:2])[1], "enable_eigvec_derivs=True"),
    "schur": (lambda a: lax.linalg.schur(a[:2]), "custom_vjp"),
    "hessenberg": (lambda a: lax.linalg.hessenberg(a[:2]), "custom_vjp"),
    "tridiagonal": (lambda a: lax.linalg.tridiagonal(a[:2]), "custom_vjp"),
    "householder_product": (lambda a: lax.linalg.householder_product(a, a[0]), "lax.linalg.qr"),
    "cholesky_update": (lambda a: lax.linalg.cholesky_update(a[:2], a[0]), "lax.linalg.cholesky"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_derivative_is_refused_with_a_way_out(case):
    function, fix = REFUSED[case]
    with pytest.raises(RefusedPrimitive, match=rf"(?s)cannot be differentiated.*test_linalg.py.*fix.*{fix}"):
        our_vjp(function, [jnp.ones((3, 2))], [True])


def test_eigenvalues_have_a_second_derivative():
    """jax refuses it without enable_eigvec_derivs, though no eigenvector's phase enters."""
    a = np.array([[1.0, 2.0, 0.5], [-1.0, 0.3, 0.2], [0.4, 0.1, 3.0]])
    with jax.enable_x64(True):
        gradient = lambda a: our_vjp(jnp.linalg.eigvals, [a], [True])[1]([jnp.asarray([1.0, 2j, 0.5])])
        _, pullback = our_vjp(gradient, [jnp.asarray(a)], [True])
        (second,) = pullback([jnp.asarray(a)])
        steps = 1e-6 * np.eye(9).reshape(9, 3, 3)
        slopes = [np.sum(a * (gradient(a + step)[0] - gradient(a - step)[0])) / 2e-6 for step in steps]
        np.testing.assert_allclose(np.ravel(second), slopes, rtol=1e-6, atol=1e-8)


cholesky, lu, qr, eigh = linalg.cholesky, linalg.lu, linalg.qr, linalg.eigh
MUTANTS = {
    "cholesky: diagonal doubled": (
        lax.linalg.cholesky_p, "out", lambda ct, out, a: (2 * linalg.half_diagonal(cholesky(ct, out, a)[0]),),
    ),
    "lu: rows not put back": (
        lax.linalg.lu_p, "out", lambda ct, out, a: lu(ct, (*out[:2], jnp.sort(out[2], axis=-1)), a),
    ),
    "qr: r forgotten": (
        lax.linalg.qr_p, "out", lambda ct, out, a, **params: qr((ct[0], 0 * ct[1], *ct[2:]), out, a, **params),
    ),
    "eigh: turned the other way": (
        lax.linalg.eigh_p, "out", lambda ct, out, a, **params: eigh((-ct[0], ct[1]), out, a, **params),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_caught(mutant, monkeypatch):
    assert is_caught(monkeypatch, *MUTANTS[mutant], SAMPLES)


def test_singular_vectors_that_do_not_turn_are_caught(monkeypatch):
    right = linalg.svd_cotangent
    monkeypatch.setattr(linalg, "svd_cotangent", lambda s_hat, u_hat, vt_hat, *out: right(s_hat, None, vt_hat, *out))
    assert not check_sample(SAMPLES[lax.linalg.svd_p][0], "float64").ok


def test_eigenvalues_with_a_conjugation_too_few_are_caught(monkeypatch):
    monkeypatch.setattr(linalg, "conjugate", lambda x: x)
    assert not check_sample(SAMPLES[lax.linalg.eig_p][2], "complex128").ok
