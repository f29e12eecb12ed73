"""Primitives of other packages, whatever they are called."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

import tapejax as tj
from tapejax.ground import compat
from tapejax.rules import TABLE, lookup


def tripled_by(name, slope):
    """A primitive of somebody's: three times its operand, with a slope by which its rule can be told."""
    primitive = Primitive(name)
    primitive.def_impl(lambda x, **params: x * 3)
    primitive.def_abstract_eval(lambda x, **params: x)
    mlir.register_lowering(primitive, mlir.lower_fun(lambda x, **params: x * 3, multiple_results=False))
    ad.deflinear2(primitive, lambda ct, x, **params: [ct * slope])
    batching.defvectorized(primitive)
    return primitive


# Names under which we have a rule, a constant, a refusal, a call that is opened, a loop that is recorded step by step.
NAMES = ("split", "tile", "stack", "shard_map", "mulhi", "pallas_call", "jit", "closed_call", "custom_jvp_call", "scan")


@pytest.mark.parametrize("name", [*NAMES, "mul", "while", "cond"])
def test_a_primitive_with_a_name_of_jax_has_its_own_rule(name):
    primitive = tripled_by(name, slope=5)
    x = tj.tensor([1.0, 2.0], requires_grad=True)
    for detail in ("ops", "primitives"):
        with tj.Tape(detail=detail) as tape:
            y = tj.lift(lambda x: primitive.bind(x, jaxpr=None, call_jaxpr=None, sizes=(1, 1), axis=0, reps=(1,)))(x)
        assert [action.foreign for action in tape] == [True]
        np.testing.assert_array_equal(y.value, [3, 6])
        np.testing.assert_array_equal(tape.backward(y)[x], [5, 5])
    with pytest.raises(tj.errors.MissingRule, match=name):
        tj.lift(lambda x: primitive.bind(x), foreign="error")(x)


def test_such_a_primitive_in_a_loop():
    primitive = tripled_by("mul", slope=5)
    f = lambda c, xs: jax.lax.scan(lambda c, x: (c + x, primitive.bind(c)), c, xs)[1]
    args = [jnp.ones(2), jnp.ones((3, 2))]
    pulled = tj.vjp(f, *args)[1](jnp.ones((3, 2)))
    for found, expected in zip(pulled, jax.vjp(f, *args)[1](jnp.ones((3, 2))), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_what_is_jaxs_own():
    unpacked = jax.make_jaxpr(lambda x: jax.lax.split(x, (1, 1)))(jnp.ones(2)).eqns[0].primitive
    assert "split" in TABLE
    assert compat.is_own(unpacked)
    assert lookup(unpacked) is TABLE["split"]
    somebodys = tripled_by("split", slope=3)
    assert not compat.is_own(somebodys)
    assert lookup(somebodys) is None


def test_every_rule_that_is_found_by_name_is_found():
    """The primitives of this release that jax's tables of derivatives name."""
    import jax.experimental.sparse  # noqa: F401

    listed = {*ad.primitive_jvps, *ad.primitive_transposes}
    named = [p for p in listed if p not in TABLE and p.name in TABLE and compat.is_own(p)]
    assert len(named) > 30
    assert all(lookup(primitive) is TABLE[primitive.name] for primitive in named)


def test_the_tangent_of_a_custom_jvp_may_have_a_transpose_rule_only():
    tangent = Primitive("slope_times")
    tangent.def_impl(lambda slope, dx: slope * dx)
    tangent.def_abstract_eval(lambda slope, dx: dx)
    mlir.register_lowering(tangent, mlir.lower_fun(lambda slope, dx: slope * dx, multiple_results=False))
    ad.primitive_transposes[tangent] = lambda ct, slope, dx: [None, slope * ct]

    sine = jax.custom_jvp(jnp.sin)
    sine.defjvp(lambda primals, tangents: (sine(*primals), tangent.bind(jnp.cos(primals[0]), tangents[0])))
    x = jnp.array([0.3, 1.2])
    f = lambda x: jnp.sum(sine(x) * x)
    np.testing.assert_allclose(tj.grad(f)(x), jnp.sin(x) + x * jnp.cos(x), rtol=1e-6)
    np.testing.assert_allclose(tj.grad(f)(x), jax.grad(f)(x), rtol=1e-6)
    with pytest.raises(tj.errors.MissingRule, match="slope_times"):
        tj.lift(tangent.bind)(x, tj.tensor(x, requires_grad=True))
