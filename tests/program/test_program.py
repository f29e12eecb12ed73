"""The flat form of a jaxpr: it computes what the function does, and holds nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive

from tapejax.program.program import Program, live, run_eqns, trace

X = np.linspace(-1, 2, 6).reshape(2, 3).astype("f")


def inner(x):
    return jnp.sin(x) * 2.0


@jax.custom_jvp
def bent(x):
    return jnp.cos(x)


bent.defjvp(lambda primals, tangents: (bent(*primals), 3.0 * tangents[0]))


@jax.custom_vjp
def turned(x):
    return x * x


turned.defvjp(lambda x: (turned(x), x), lambda x, ct: (ct * x,))

FUNCTIONS = {
    "one op": jnp.tanh,
    "jit within jit": jax.jit(lambda x: jax.jit(inner)(x) + jax.jit(inner)(2 * x)),
    "the same function twice": lambda x: inner(inner(x)),
    "constants": lambda x: x * np.arange(3.0, dtype="f") + 1,
    "a result twice": lambda x: (x + 1, x + 1, x),
    "an argument as result": lambda x: x,
    "a constant as result": lambda x: (jnp.ones(2), x.sum()),
    "a loop": lambda x: lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(3), x),
    "a branch": lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
    "custom derivatives": lambda x: bent(x) + turned(x),
    "a tree": lambda x: {"a": x[0], "b": [x[1], (x.T @ x)]},
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("ignore", [False, True])
def test_it_computes_what_the_function_does(name, ignore):
    function = FUNCTIONS[name]
    program, structure = trace(function, [X], ignore_custom_rules=ignore)
    got = jax.tree.unflatten(structure, program.run(X))
    expected = jax.jit(function)(X)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def names(program):
    return [eqn.name for eqn in program.eqns]


def test_calls_are_opened_and_every_value_has_a_slot_of_its_own():
    program, _ = trace(FUNCTIONS["jit within jit"], [X])
    assert names(program).count("sin") == 2
    assert "jit" not in names(program)
    made = [slot for eqn in program.eqns for slot in eqn.outputs]
    assert len(made) == len(set(made))
    assert not set(made) & set(program.inputs)


def test_custom_rules_stay_unless_they_are_to_be_ignored():
    program, _ = trace(FUNCTIONS["custom derivatives"], [X])
    assert {"custom_jvp_call", "custom_vjp_call"} <= set(names(program))
    program, _ = trace(FUNCTIONS["custom derivatives"], [X], ignore_custom_rules=True)
    assert not {"custom_jvp_call", "custom_vjp_call"} & set(names(program))


def test_what_nobody_reads_is_gone():
    def function(x):
        jnp.exp(x) + jnp.arange(3.0)
        return jnp.sin(x)

    program, _ = trace(function, [X])
    assert names(program) == ["sin"]
    assert not program.constants


def test_effects_stay():
    seen = []

    def function(x):
        jax.debug.callback(lambda value: seen.append(float(value)), x[0, 0])
        return jnp.sin(x)

    program, _ = trace(function, [X])
    assert any(eqn.has_effects for eqn in program.eqns)
    program.run(X)
    jax.effects_barrier()
    assert seen == [float(X[0, 0])]


def test_a_call_of_somebody_elses_primitive_is_not_opened():
    """A name says nothing: this one is called `jit`, has a jaxpr, and does something else with it."""
    mine = Primitive("jit")
    mine.def_impl(lambda x, jaxpr: x + 100)
    mine.def_abstract_eval(lambda x, jaxpr: x)
    body = jax.make_jaxpr(jnp.sin)(X)
    program, _ = trace(lambda x: mine.bind(x, jaxpr=body), [X])
    assert names(program) == ["jit"]
    np.testing.assert_array_equal(program.run(X)[0], X + 100)


def test_live_and_environment():
    program, _ = trace(lambda x: (jnp.sin(x), jnp.cos(x) * 2.0), [X])
    first, second = program.outputs
    assert [eqn.name for eqn in live(program.eqns, [first])] == ["sin"]
    assert [eqn.name for eqn in live(program.eqns, [second])] == ["cos", "mul"]
    env = program.environment([X])
    assert {first, second} <= set(env)
    again = dict(program.constants) | dict(zip(program.inputs, [X], strict=True))
    run_eqns(program.eqns, again)
    np.testing.assert_array_equal(again[second], env[second])
    smaller = Program(program.avals, program.inputs, program.constants, live(program.eqns, [first]), [first])
    np.testing.assert_allclose(smaller.run(X)[0], np.sin(X), rtol=1e-6)
