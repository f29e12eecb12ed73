"""A function's program, written as it is called, is the one that make_jaxpr gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tapejax as tj
from tapejax.program import program, tracing

X = jnp.linspace(0.5, 2.0, 6).reshape(2, 3)


@jax.custom_jvp
def cube(x):
    return x**3


@cube.defjvp
def _(primals, tangents):
    return cube(primals[0]), 3 * primals[0] ** 2 * tangents[0]


@jax.custom_vjp
def twice(x):
    return 2 * x


twice.defvjp(lambda x: (twice(x), None), lambda kept, ct: (2 * ct,))


def loop(x):
    return lax.scan(lambda c, row: (c * row + x[0], jnp.tanh(c)), x[1], x)


def slope(x):
    return jax.grad(lambda y: jnp.sum(jnp.sin(y) * x))(x)


FUNCTIONS = {
    "operators": lambda x: 2 * x + x / 3 - 1,
    "jitted inside": lambda x: jnp.mean(jax.nn.gelu(x), axis=1),
    "tree": lambda x: {"a": x.sum(), "b": (x.T, x[1, ::2])},
    "indices": lambda x: x[jnp.array([1, 0]), 1:],
    "closure": lambda x: x @ X.T,
    "conversions": lambda x: jnp.maximum(x.astype(jnp.bfloat16), 1).astype(jnp.float32) * np.float32(2),
    "constant": lambda x: (x, X),
    "custom_jvp": lambda x: jax.nn.relu(x) + cube(x),
    "custom_vjp": lambda x: twice(x) * x,
    "loop": loop,
    "branches": lambda x: lax.cond(x[0, 0] > 1, jnp.sin, lambda y: y * x, x),
    "derivative": slope,
    "batched": lambda x: jax.vmap(jnp.dot, (0, None))(x, x[0]),
    "concrete inside": lambda x: x * jax.jit(lambda: jnp.arange(3.0))(),
}


def written(f, args, **options):
    """`tracing.trace`, which may not leave it to make_jaxpr."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "trace", None)
        return tracing.trace(f, args, **options)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_program_is_that_of_make_jaxpr(name):
    f = FUNCTIONS[name]
    found, structure = written(f, (X,))
    expected, expected_structure = program.trace(f, (X,))
    assert structure == expected_structure
    assert [eqn.name for eqn in found.eqns] == [eqn.name for eqn in expected.eqns]
    assert [[found.avals[slot] for slot in eqn.inputs] for eqn in found.eqns] == [
        [expected.avals[slot] for slot in eqn.inputs] for eqn in expected.eqns
    ]
    assert found.out_avals == expected.out_avals
    assert [a.weak_type for a in found.out_avals] == [a.weak_type for a in expected.out_avals]
    for value, right in zip(found.run(X), jax.tree.leaves(f(X)), strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-6)


def test_weak_types_stay_weak():
    found, _ = written(lambda x, y: (x * 2, x + y), (jnp.asarray(1.0), jnp.float32(2.0)))
    assert [aval.weak_type for aval in found.out_avals] == [True, False]


def test_lines_are_the_users():
    found, _ = written(lambda x: jnp.sin(x) + 1, (X,))
    assert all("test_tracing.py" in eqn.line for eqn in found.eqns)


def test_custom_rules_are_opened_on_demand():
    found, _ = written(cube, (X,), ignore_custom_rules=True)
    assert [eqn.name for eqn in found.eqns] == ["integer_pow"]


def test_traces_nest_and_outer_values_are_constants():
    def outer(x):
        inner, _ = written(lambda y: y * x, (X,))
        return inner.run(2 * X)[0]

    found, _ = written(outer, (X,))
    np.testing.assert_allclose(found.run(X)[0], 2 * X * X)


def test_effects_and_plain_results_are_left_to_make_jaxpr():
    for f in (lambda x: jax.debug.print("{}", x) or x, lambda x: (x, 2.0)):
        with pytest.raises(TypeError, match="NoneType"):
            written(f, (X,))
        found, _ = tracing.trace(f, (X,))
        assert found.out_avals == program.trace(f, (X,))[0].out_avals


def test_errors_are_those_of_make_jaxpr():
    with pytest.raises(jax.errors.TracerBoolConversionError, match="depends on the value"):
        tracing.trace(lambda x: x if x.sum() > 0 else -x, (X,))


def test_a_value_that_escapes_is_refused():
    kept = []
    tracing.trace(lambda x: kept.append(x) or x, (X,))
    with pytest.raises(jax.errors.UnexpectedTracerError):
        kept[0] + 1


def test_a_custom_rule_over_a_closure_is_still_right():
    def f(x):
        @jax.custom_jvp
        def scaled(y):
            return x * y

        scaled.defjvps(lambda t, out, y: 5 * t)
        return scaled(jnp.sin(x))

    np.testing.assert_allclose(tj.lift(f)(tj.tensor(X)).value, X * jnp.sin(X), rtol=1e-6)


def test_an_error_is_that_of_one_trace():
    def f(x):
        return x + jnp.ones(3)

    with pytest.raises(TypeError, match="incompatible shapes") as caught:
        tracing.trace(f, [jnp.ones(2)])
    assert caught.value.__context__ is None
