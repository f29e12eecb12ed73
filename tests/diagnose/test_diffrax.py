"""A bad number inside a differential equation solver: the line of the vector field and the step are named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj

diffrax = pytest.importorskip("diffrax")

ADJOINTS = ["RecursiveCheckpointAdjoint", "DirectAdjoint"]


def solved(y0, adjoint, field, end):
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(field), diffrax.Euler(), 0.0, end, dt0=0.25, y0=y0, max_steps=16,
        adjoint=getattr(diffrax, adjoint)(),
    )  # fmt: skip
    return solution.ys.sum()


@pytest.mark.slow
@pytest.mark.parametrize("adjoint", ADJOINTS)
def test_a_root_of_what_became_negative_on_the_way(adjoint):
    def field(t, y, args):
        return -jnp.sqrt(y - 0.5)

    y = 1.0
    steps = 0
    while y > 0.5:  # by hand: at which step the root is that of a negative number
        y, steps = y - 0.25 * np.sqrt(y - 0.5), steps + 1
    report = tj.find_nonfinite(lambda y0: solved(y0, adjoint, field, 2.0), jnp.array([1.0, 3.0]))
    assert not report.ok
    assert (report.born.op, report.born.direction, report.born.index) == ("sqrt", "forward", (0,))
    assert report.born.file == __file__
    assert report.born.lineno == field.__code__.co_firstlineno + 1
    assert steps in [step for _, step in report.born.steps]


@pytest.mark.slow
@pytest.mark.parametrize("adjoint", ADJOINTS)
def test_a_solver_that_is_healthy_is_not_accused(adjoint):
    field = lambda t, y, args: -jnp.sqrt(jnp.maximum(y, 0.1))
    function = lambda y0: solved(y0, adjoint, field, 1.0)
    assert np.isfinite(jax.grad(function)(jnp.array([1.0, 3.0]))).all()
    assert tj.find_nonfinite(function, jnp.array([1.0, 3.0])).ok
