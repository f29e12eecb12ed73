import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback

from tapejax.calculus.reverse import reverse
from tapejax.errors import RefusedPrimitive
from tapejax.program.program import trace
from tapejax.rules import control
from tapejax.rules.registry import TABLE
from tapejax.verify.check import check_sample, our_vjp
from tapejax.verify.samples.control import SAMPLES, checkpointed, either, layers, mapped, policies, several
from tests.rules.harness import (
    assert_equal_functions,
)


def draw(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(np.asarray(rng.standard_normal(shape), "float32")) for shape in shapes]


def back_of(f, args):
    program, _ = trace(f, args)
    return reverse(program, [jnp.issubdtype(arg.dtype, jnp.inexact) for arg in args])


# --- branches ----------------------------------------------------------------------------------


def test_operands_of_a_branch_are_referred_to():
    back = back_of(either, [jnp.int32(1), *draw((3,), (3,))])
    assert (back.saves_in, back.extras) == ((0, 1, 2), ())


def test_branches_share_the_room_for_what_they_keep():
    # The second branch keeps nothing that is not an operand, the third one exp(y @ ...).
    assert [aval.shape for aval in back_of(several, [jnp.int32(1), *draw((3,), (3,))]).extra_avals] == [(3,)]
    pool, places = control.pooled([draw((2,), (3,)), draw((3,)), draw((3,), (3,))])
    assert ([aval.shape for aval in pool], places) == ([(2,), (3,), (3,)], [[0, 1], [1], [1, 2]])


def test_an_operand_that_no_branch_differentiates_gets_nothing():
    f = lambda i, x, y: lax.switch(i, [lambda x, y: x * jnp.floor(y), lambda x, y: x], x, y)
    back = back_of(f, [jnp.int32(0), *draw((3,), (3,))])
    i_ct, x_ct, y_ct = back.backward([jnp.int32(1), *draw((3,))], [jnp.ones(3)])
    assert i_ct is None
    assert y_ct is None
    np.testing.assert_array_equal(x_ct, np.ones(3))


def test_only_one_branch_runs():
    seen = []

    def noisy(name):
        def branch(x):
            jax.debug.callback(lambda: seen.append(name))
            return jnp.sin(x)

        return branch

    x, ct = draw((3,), (3,))
    jax.jit(lambda x: our_vjp(lambda x: lax.cond(x[0] > 9, noisy("a"), noisy("b"), x), [x], [True])[1]([ct]))(x)
    jax.effects_barrier()
    assert seen == ["b"]


def test_random_keys_may_be_chosen_by_a_branch():
    def f(x, y):
        noise = lambda key: lambda x: x * jax.random.normal(jax.random.split(key)[0], x.shape)
        return lax.cond(x[0] > y[0], noise(jax.random.key(0)), noise(jax.random.key(1)), x)

    assert_equal_functions(f, f, *draw((3,), (3,)))


# --- checkpoint --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "n_extras"),
    [
        (None, 0),
        (policies.nothing_saveable, 0),
        (policies.dots_saveable, 2),
        (policies.save_only_these_names("inner"), 1),
    ],
)
def test_a_checkpoint_keeps_its_operands_and_what_its_policy_says(policy, n_extras):
    back = back_of(checkpointed(policy), draw((3, 3), (3, 3)))
    assert (back.saves_in, back.saves_out, len(back.extras)) == ((0, 1), (), n_extras)


def test_a_checkpoint_is_computed_again_behind_a_barrier():
    def gradients(f):
        return lambda x, w: our_vjp(f, [x, w], [True, True])[1]([x])

    args = draw((3, 3), (3, 3))
    count = lambda f, text: str(jax.make_jaxpr(gradients(f))(*args)).count(text)
    assert count(layers, "= tanh") == 1
    assert count(checkpointed(), "= tanh") == 2
    assert count(checkpointed(), "= optimization_barrier") == 1
    assert count(checkpointed(prevent_cse=False), "= optimization_barrier") == 0


# --- the rest ----------------------------------------------------------------------------------


def test_composites_and_functions_with_a_batching_rule_are_what_is_inside():
    x, w = draw((3, 3), (3, 3))
    assert_equal_functions(lax.composite(layers, "tapejax.layers"), layers, x, w)
    assert_equal_functions(mapped, lambda x: jnp.sin(x) * x, x)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
        lambda x: io_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
    ],
)
def test_callbacks_are_refused_with_the_way_out(call):
    with pytest.raises(RefusedPrimitive, match=r"test_control.py:\d+(.|\n)*custom_vjp"):
        our_vjp(call, draw((3,)), [True])


def test_looking_at_a_value_changes_nothing():
    def f(x):
        jax.debug.print("{}", x[0])
        jax.debug.callback(lambda x: None, x)
        return jnp.sin(x)

    assert_equal_functions(f, jnp.sin, *draw((3,)))


def mutant(eqn, change):
    """A rule whose backward is changed."""

    def rule(*arguments):
        step = eqn(*arguments)
        right = step.backward
        step.backward = lambda saved, cts: change(saved, cts, right)
        return step

    return rule


right_pooled = control.pooled
MUTANTS = {
    "cond: always the first branch": (lax.cond_p, lambda s, c, f: f([jnp.zeros_like(s[0]), *s[1:]], c)),
    "cond: the last cotangent lost": (lax.cond_p, lambda s, c, f: [*f(s, c)[:-1], None]),
    "cond: one result's cotangent lost": (lax.cond_p, lambda s, c, f: f(s, [*c[:-1], None])),
    "remat: doubled": (control.p.remat_p, lambda s, c, f: [None if ct is None else ct * 2 for ct in f(s, c)]),
    "remat: operands swapped": (control.p.remat_p, lambda s, c, f: f([s[1], s[0], *s[2:]], c)),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rule_is_caught(monkeypatch, name):
    primitive, change = MUTANTS[name]
    entry = TABLE[primitive]
    monkeypatch.setattr(entry, "function", mutant(entry.function, change))
    assert not all(check_sample(sample, "float64").ok for sample in SAMPLES[primitive])


def test_branches_that_write_over_each_other_are_caught(monkeypatch):
    # All that a branch keeps is put in the first place.
    def crowded(groups):
        pool, places = right_pooled(groups)
        return pool, [[0] * len(group) for group in places]

    f = lambda i, x: lax.switch(i, [lambda x: jnp.sin(x @ x) @ jnp.cos(x @ x @ x), jnp.tanh], x)
    with jax.enable_x64(True):
        x = jnp.asarray(draw((2, 2))[0], "float64")
        right = our_vjp(lambda x: f(0, x), [x], [True])[1]([x])[0]
        traced = lambda: jax.jit(lambda i: our_vjp(lambda x: f(i, x), [x], [True])[1]([x])[0])(0)
        np.testing.assert_allclose(traced(), right, rtol=1e-12)
        monkeypatch.setattr(control, "pooled", crowded)
        assert not np.allclose(traced(), right)
