"""What formulas are written in: one lax equation per operator, nothing before it is wanted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax as jax_lax

from tapejax.calculus.reverse import reverse
from tapejax.program.program import trace
from tapejax.rules.registry import TABLE, Rule
from tapejax.rules.terms import OPERATORS, later, lax, term


def equations(function, *args):
    """(primitives, avals of the results) of a function over Terms."""
    jaxpr = jax.make_jaxpr(lambda *values: function(*map(term, values)).value)(*args).jaxpr
    return [eqn.primitive.name for eqn in jaxpr.eqns], [var.aval for var in jaxpr.outvars]


X, Y = jnp.arange(3, dtype="float16"), jnp.ones(3, "float16")


def test_an_operator_is_one_equation_of_lax():
    binary = [name for name in OPERATORS if name not in ("and", "or")]
    for name in binary:
        names, _ = equations(lambda x, y, name=name: getattr(x, f"__{name}__")(y), X, Y)
        assert len(names) == 1
        names, (aval,) = equations(lambda x, name=name: getattr(x, f"__{name}__")(2), X)
        assert len(names) == 1
        assert not aval.weak_type
        assert aval.dtype in (X.dtype, bool)
    assert equations(lambda x, y: -x / (1 - y * x), X, Y)[0] == ["neg", "mul", "sub", "div"]
    assert equations(lambda x, y: (x > 1) & ~(x == y), X, Y)[0] == ["gt", "eq", "not", "and"]


def test_values_are_those_of_lax():
    x, y = X.astype("float32"), Y
    np.testing.assert_array_equal((2 / (1 + term(x))).value, jax_lax.div(np.float32(2), np.float32(1) + x))
    np.testing.assert_array_equal((term(y) - 0.1).value, jax_lax.sub(y, np.float16(0.1)))
    np.testing.assert_array_equal(lax.cos(term(x)).value, jax_lax.cos(x))
    np.testing.assert_array_equal((x * term(x)).value, x * x)  # an array and a number of NumPy's leave it to the Term
    np.testing.assert_array_equal((np.float32(2) * term(x)).value, 2 * x)


def test_weak_types_stay_weak_and_others_strong():
    weak = jax.make_jaxpr(lambda x: (2 * term(x)).value)(3.0).out_avals[0]
    strong = jax.make_jaxpr(lambda x: (2 * term(x)).value)(np.float32(3)).out_avals[0]
    assert weak.weak_type
    assert not strong.weak_type


@pytest.mark.parametrize(
    "fault",
    [
        lambda x: x + jnp.ones(3, "float32"),  # another dtype
        lambda x: x * jnp.ones(2, "float16"),  # another shape
        lambda x: x * jnp.ones((2, 3), "float16"),  # which jax.numpy would broadcast
        lambda x: lax.select(x, x, x),
        lambda x: x + True,
    ],
)
def test_nothing_is_promoted_or_broadcast(fault):
    with pytest.raises((TypeError, ValueError)):
        _ = fault(term(X)).value


def test_a_term_waits_and_is_computed_once():
    calls = []
    count = later(lambda x: calls.append(x) or x)
    shared = count(term(X))
    both = shared + shared
    assert calls == []
    assert both.value.shape == (3,)
    assert len(calls) == 1


def test_a_term_is_no_condition():
    with pytest.raises(TypeError, match=r"lax\.select"):
        bool(term(X) > 1)


def backward_of(function, args, wrt):
    program, _ = trace(function, args)
    back = reverse(program, wrt)
    outputs, extras = back.forward(*args)
    kept = [args[i] for i in back.saves_in] + [outputs[i] for i in back.saves_out] + extras
    jaxpr = jax.make_jaxpr(back.backward)(kept, [jnp.ones_like(out) for out in outputs])
    return [eqn.primitive.name for eqn in jaxpr.jaxpr.eqns]


@pytest.mark.parametrize(
    ("function", "of_x", "of_y"),
    [
        (jax_lax.mul, ["mul"], ["mul"]),
        (jax_lax.div, ["div"], ["div", "mul", "neg"]),
        (jax_lax.sub, [], ["neg"]),
        (jax_lax.atan2, ["square", "square", "add", "div", "mul"], ["square", "square", "add", "div", "mul", "neg"]),
        (jax_lax.rem, [], ["neg", "sub", "div", "round", "mul"]),
    ],
)
def test_a_cotangent_that_nobody_wants_is_not_computed(function, of_x, of_y):
    args = [jnp.ones(3), jnp.full(3, 2.0)]
    names = lambda wrt: [name for name in backward_of(function, args, wrt) if name not in ("broadcast_in_dim", "rem")]
    assert names([True, False]) == of_x
    assert names([False, True]) == of_y


def test_products_are_computed_for_one_operand_only():
    args = [jnp.ones((2, 3)), jnp.ones((3, 4))]
    assert backward_of(jnp.matmul, args, [True, False]).count("dot_general") == 1
    image, window = jnp.ones((1, 2, 5)), jnp.ones((3, 2, 2))
    convolve = lambda x, w: jax_lax.conv(x, w, (1,), "SAME")
    assert backward_of(convolve, [image, window], [False, True]).count("conv_general_dilated") == 1


def test_no_rule_asks_who_wants_its_cotangents():
    signatures = {entry.name: entry.keywords for entry in TABLE.values() if isinstance(entry, Rule)}
    assert len(signatures) > 100
    assert [name for name, keywords in signatures.items() if "wanted" in keywords] == []
