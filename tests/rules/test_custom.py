import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_derivatives import linear_call

import tapejax
from tapejax.calculus.reverse import Options, reverse
from tapejax.errors import RefusedPrimitive
from tapejax.program.program import trace
from tapejax.rules import custom
from tapejax.rules.registry import TABLE
from tapejax.verify.check import check_sample, our_vjp
from tapejax.verify.samples.custom import SAMPLES, clipped, root, scaled, tripled
from tests.rules.harness import (
    assert_equal_functions,
)


def draw(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(np.asarray(rng.standard_normal(shape), "float32")) for shape in shapes]


def back_of(f, args):
    program, _ = trace(f, args)
    return reverse(program, [True] * len(args))


# --- what is kept ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("f", "operands", "results"),
    [(jax.nn.relu, (0,), ()), (jax.nn.relu6, (0,), ()), (jax.nn.softplus, (0,), (0,)), (tripled, (0,), ())],
)
def test_an_activation_keeps_what_it_has_already(f, operands, results):
    back = back_of(f, draw((3,)))
    assert (back.saves_in, back.saves_out, back.extras) == (operands, results, ())


def test_relu_between_two_products_keeps_one_array():
    # The second product reads relu(z), relu's own rule reads z: relu is run again.
    back = back_of(lambda x, w, v: jax.nn.relu(x @ w) @ v, draw((4, 3), (3, 5), (5, 2)))
    assert [aval.shape for aval in back.extra_avals] == [(4, 5)]


def test_a_residual_that_is_an_operand_is_not_kept_again():
    @jax.custom_vjp
    def f(x, y):
        return x * jnp.sin(y)

    f.defvjp(
        lambda x, y: (out := x * jnp.sin(y), (x, y, out, jnp.cos(y))), lambda kept, ct: (ct, ct * kept[3] + kept[2])
    )
    back = back_of(f, draw((3,), (3,)))
    assert (back.saves_in, back.saves_out, len(back.extras)) == ((0, 1), (0,), 1)


def test_the_forward_of_a_custom_rule_runs_once():
    calls = []

    @jax.custom_vjp
    def f(x):
        return jnp.exp(x)

    def fwd(x):
        jax.debug.callback(lambda: calls.append("fwd"))
        return f(x), f(x)

    f.defvjp(fwd, lambda out, ct: (ct * out,))
    jax.jit(lambda x: our_vjp(f, [x], [True])[1]([x]))(*draw((3,)))
    jax.effects_barrier()
    assert calls == ["fwd"]


def test_effects_of_a_function_with_a_custom_jvp_happen():
    seen = []

    @jax.custom_jvp
    def f(x):
        jax.debug.callback(lambda x: seen.append(float(x)), x)
        return jnp.sin(x)

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * 2))
    found = jax.jit(lambda x: our_vjp(f, [x], [True])[1]([x]))(jnp.float32(3))
    jax.effects_barrier()
    assert (seen, found) == ([3], [6])


# --- custom rules are honoured, or ignored on demand -------------------------------------------


def slope(f, x, **options):
    return our_vjp(lambda x: [f(x)], [jnp.asarray(x, "float32")], [True], Options(**options))[1]([jnp.float32(1)])[0]


@pytest.mark.parametrize(
    ("f", "factor"),
    [
        (tripled, 3),
        (lambda x: jnp.sin(scaled(x, 5.0)), 5),
        (lambda x: jax.jit(tripled)(x), 3),
        (lambda x: jax.checkpoint(tripled)(x), 3),
        (lambda x: linear_call(lambda _, x: x, lambda _, ct: 7 * ct, 1.0, jnp.sin(x)), 7),
    ],
)
def test_a_wrong_rule_shows_by_ignoring_it(f, factor):
    np.testing.assert_allclose(slope(f, 0.5), factor * np.cos(0.5), rtol=1e-6)
    np.testing.assert_allclose(slope(f, 0.5, ignore_custom_rules=True), np.cos(0.5), rtol=1e-6)


def test_only_the_cotangents_that_are_asked_for():
    back = back_of(lambda a, b: clipped({"a": a, "b": b}, 0.3), draw((3,), (3, 2)))
    assert back.wrt == (True, True)
    program, _ = trace(lambda a, b: clipped({"a": a, "b": b}, 0.3), draw((3,), (3, 2)))
    back = reverse(program, [False, True])
    a, b = draw((3,), (3, 2))
    outs, extras = back.forward(a, b)
    kept = [[a, b][i] for i in back.saves_in] + [outs[i] for i in back.saves_out] + extras
    a_ct, b_ct = back.backward(kept, [None, jnp.ones(2)])
    assert a_ct is None
    np.testing.assert_allclose(b_ct, 2 * np.outer(a, np.ones(2)), rtol=1e-6)


def test_a_custom_rule_that_differentiates_a_loop_itself():
    # Values and tangents come out of one scan, so the program is not split between them.
    def slow(x):
        return lax.scan(lambda c, _: (jnp.sin(c) * x, c), x, None, length=3)

    @jax.custom_jvp
    def f(x):
        return slow(x)

    f.defjvp(lambda primals, tangents: jax.jvp(slow, primals, tangents))
    assert_equal_functions(f, slow, *draw((3,)))


def test_the_residuals_of_a_linear_call_are_refused():
    f = lambda r: linear_call(lambda r, x: r * x, lambda r, ct: r * ct, r, 2.0)
    with pytest.raises(RefusedPrimitive, match=r"residuals(.|\n)*test_custom.py:\d+"):
        our_vjp(f, [jnp.float32(3)], [True])


def test_a_root_needs_no_rule_of_jax():
    program, _ = trace(root, draw((3,), (3, 3)))
    assert reverse(program, [True, True]).foreign == ()


# --- wrong rules are caught --------------------------------------------------------------------


def doubled(rule):
    def wrong(*arguments):
        step = rule(*arguments)
        backward = step.backward
        step.backward = lambda saved, cts: [None if ct is None else 2 * ct for ct in backward(saved, cts)]
        return step

    return wrong


def opened(eqn, in_avals, out_avals, active_in, tools):
    return custom.inlined(eqn.params["call_jaxpr"], active_in, tools)


JVP, VJP = custom.p.custom_jvp_call_p, custom.p.custom_vjp_call_p
MUTANTS = {
    "custom_jvp: ignored": (JVP, opened),
    "custom_vjp: ignored": (VJP, opened),
    "custom_jvp: doubled": (JVP, doubled(custom.custom_jvp_call)),
    "custom_vjp: doubled": (VJP, doubled(custom.custom_vjp_call)),
    "linear_call: doubled": ("linear_call", doubled(custom.linear_call)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rule_is_caught(monkeypatch, name):
    primitive, wrong = MUTANTS[name]
    monkeypatch.setattr(TABLE[primitive], "function", wrong)
    assert not all(check_sample(sample, "float64").ok for sample in SAMPLES[primitive])


@jax.custom_jvp
def own(x, a):
    return jnp.sin(x) * a


@own.defjvp
def _own_jvp(primals, tangents):
    """Applies itself to tangents, and is linear in the second of its operands."""
    (x, a), (dx, da) = primals, tangents
    slope = lax.scan(lambda t, _: (own(x, t), None), dx * a, None, length=2)[0]
    return own(x, a), slope + 3 * own(x, da)


def test_rule_that_applies_its_own_function_to_tangents():
    def f(x, a):
        return own(own(x, a), 2.0) * a

    with jax.enable_x64(True):
        for argument in (0, 1):
            ours = lambda *args, argument=argument: pulled(f, args, argument)
            assert jnp.allclose(ours(0.7, 1.3), jax.grad(f, argument)(0.7, 1.3), rtol=1e-12)
            assert jnp.allclose(pulled(ours, (0.7, 1.3), 0), jax.grad(jax.grad(f, argument))(0.7, 1.3), rtol=1e-12)


def pulled(f, args, argument):
    _, pullback = our_vjp(f, [jnp.asarray(arg) for arg in args], [True] * len(args))
    return pullback([jnp.ones(())])[argument]


def test_a_fixed_argument_that_is_traced_gives_jax_s_answer_or_a_clear_refusal():
    """jax 0.10 cannot follow it either, inside a jit; 0.12 can."""
    expn, x = jax.scipy.special.expn, jnp.array([0.5, 1.0, 2.0])
    expected = jax.grad(lambda x: expn(2, x).sum())(x)
    weights = tapejax.tensor(x, requires_grad=True)
    np.testing.assert_allclose(tapejax.lift(lambda x: expn(2, x))(weights).sum().backward()[weights], expected, 1e-6)
    try:
        found = tapejax.lift(expn)(2, weights).sum().backward()[weights]
    except RefusedPrimitive as error:
        assert "lift(lambda" in str(error)  # noqa: PT017  either will do
    else:
        np.testing.assert_allclose(found, expected, 1e-6)
