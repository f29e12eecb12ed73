import jax.numpy as jnp
import pytest
from jax import lax
from jax.extend.core.primitives import linear_solve_p

from tapejax.errors import RefusedPrimitive
from tapejax.rules import solves
from tapejax.verify.check import check_sample, our_vjp
from tapejax.verify.samples.solves import SAMPLES
from tests.rules.harness import is_caught


def test_a_solve_without_its_transpose_is_refused():
    solve = lambda a, b: lax.custom_linear_solve(lambda x: a * x, b, lambda _, b: b / a)
    with pytest.raises(RefusedPrimitive, match=r"(?s)no transpose_solve.*test_solves.py.*fix +give transpose_solve"):
        our_vjp(solve, [jnp.ones(3), jnp.ones(3)], [True, True])


triangular, tridiagonal = solves.triangular_solve, solves.tridiagonal_solve
MUTANTS = {
    "triangular_solve: sign": (
        lax.linalg.triangular_solve_p, "out a",
        lambda ct, out, a, b, **params: triangular(ct, -out, a, b, **params),
    ),
    "triangular_solve: diagonal forgotten": (
        lax.linalg.triangular_solve_p, "out a",
        lambda ct, out, a, b, **params: (jnp.tril((f := triangular(ct, out, a, b, **params))[0], -1), f[1]),
    ),
    "tridiagonal_solve: not transposed": (
        lax.linalg.tridiagonal_solve_p, "out dl d du",
        lambda ct, out, dl, d, du, b, **params: tridiagonal(ct, out, du, d, dl, b, **params),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_caught(mutant, monkeypatch):
    assert is_caught(monkeypatch, *MUTANTS[mutant], SAMPLES)


def test_a_solve_that_is_not_transposed_is_caught(monkeypatch):
    monkeypatch.setattr(solves, "transposed", lambda four: four)
    assert not check_sample(SAMPLES[linear_solve_p][0], "float64").ok
