"""What is said in lax is the program that jax.numpy comes to, whatever the operands."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from tapejax.ops.straight import ONE, SUMS, TWO, straight
from tapejax.program.program import flatten

X = jnp.ones((3, 4, 5))
OPERANDS = [
    X, X.astype(jnp.bfloat16), X.astype(int), X + 1j, jnp.ones(()), jnp.asarray(2.0), jnp.zeros((0, 4, 5)), X[0],
]  # fmt: skip
AXES = [{}, {"axis": 1}, {"axis": (0, -1)}, {"axis": ()}, {"axis": (0, 0)}, {"axis": 3}, {"axis": -1, "keepdims": True}]
CALLS = [
    *[(function, {}) for function in ONE],
    *[(function, options) for function in (jnp.sum, jnp.mean) for options in AXES],
]


OPERATORS = {jnp.add: operator.add, jnp.subtract: operator.sub}


def program_of(function, *operands):
    """All that a program is, as text; or the error's type."""
    try:
        program = flatten(jax.make_jaxpr(function)(*operands))
    except Exception as error:
        return type(error)
    say = lambda slots: [
        f"{program.avals[slot]!r} {program.avals[slot].weak_type} {program.constants.get(slot)}" for slot in slots
    ]
    return [(eqn.name, str(eqn.params), say(eqn.inputs)) for eqn in program.eqns], say(program.outputs)


@pytest.mark.parametrize(("function", "options"), CALLS, ids=lambda part: getattr(part, "__name__", str(part)))
def test_of_one_operand(function, options):
    short = straight(function)
    assert short.__name__ == function.__name__
    for x in OPERANDS:
        assert program_of(lambda x: short(x, **options), x) == program_of(lambda x: function(x, **options), x)


@pytest.mark.parametrize("function", [*TWO, jnp.matmul], ids=lambda function: function.__name__)
def test_of_two_operands(function):
    short = straight(function)
    matrix = jnp.ones((5, 3))
    for x, y in [
        *((x, x) for x in OPERANDS),
        *([] if function in SUMS else [(X, X[0]), (matrix, X[0, :3])]),  # see below
        (X[0], matrix),
        (X, 2),
        (X.astype(jnp.bfloat16), 2.0),
        *([(X, 2.0)] if function is jnp.matmul else []),
        (matrix, matrix),
    ]:
        assert program_of(short, x, y) == program_of(function, x, y)


@pytest.mark.parametrize("function", TWO, ids=lambda function: function.__name__)
def test_a_number_is_taken_as_it_is(function):
    for x, y in [(X, 2.0), (2.0, X), (X + 1j, 2j), (jnp.float32(3), 2.0)]:
        (step,), out = program_of(straight(function), x, y)
        assert step[0] in ("add", "sub", "mul", "div")
        assert out == program_of(function, x, y)[1]
        assert (jax.jit(straight(function))(x, y) == function(x, y)).all()


@pytest.mark.parametrize("function", SUMS, ids=lambda function: function.__name__)
def test_what_lacks_axes_is_stretched_in_one_step(function):
    rows, row = jax.random.normal(jax.random.key(0), (3, 4, 5)), jax.random.normal(jax.random.key(1), (5,))
    for x, y in [(rows, row), (row, rows), (rows, rows[0]), (rows.astype(jnp.bfloat16), row.astype(jnp.bfloat16))]:
        steps, out = program_of(straight(function), x, y)
        assert [name for name, *_ in steps] == ["broadcast_in_dim", {jnp.add: "add", jnp.subtract: "sub"}[function]]
        assert out == program_of(function, x, y)[1]
        assert (straight(function)(x, y) == function(x, y)).all()
        ct = jax.random.normal(jax.random.key(2), rows.shape).astype(x.dtype)
        for ours, theirs in zip(tj.vjp(OPERATORS[function], x, y)[1](ct), jax.vjp(function, x, y)[1](ct), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(
                ours.astype("f"), theirs.astype("f"), rtol=1e-5 if x.dtype == "f" else 0.1, atol=1e-5
            )
    for x, y in [(rows, row.astype(jnp.bfloat16)), (rows, row[None]), (rows, row[:1])]:
        assert program_of(straight(function), x, y) == program_of(function, x, y)  # they differ in more
    with jax.numpy_rank_promotion("raise"):
        assert program_of(straight(function), rows, row) is ValueError


def test_arguments_by_position_and_by_name():
    assert program_of(lambda x: straight(jnp.sum)(x, 1), X) == program_of(lambda x: jnp.sum(x, 1), X)
    assert program_of(lambda x: straight(jnp.mean)(a=x, axis=1), X) == program_of(lambda x: jnp.mean(x, 1), X)
    assert straight(jax.nn.sigmoid)(x=X).shape == X.shape
    assert straight(jnp.matmul)(X[0].T, X[0], precision="highest").shape == (5, 5)


def test_others_are_as_they_are():
    assert straight(jnp.arctan2) is jnp.arctan2
