from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from tapejax.calculus.reverse import Options, reverse
from tapejax.errors import UnknownLengthError
from tapejax.program.program import trace
from tapejax.rules import loops, scanning
from tapejax.verify.check import check_sample, our_vjp
from tapejax.verify.samples.base import normal, sample
from tapejax.verify.samples.custom import in_a_loop, scaled, tripled
from tapejax.verify.samples.loops import SAMPLES, lstm, rnn, selective_ssm
from tests.rules.harness import (
    assert_equal_functions,
    assert_sample,
)

# --- what is kept ------------------------------------------------------------------------------


def draw(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(np.asarray(rng.standard_normal(shape), "float32")) for shape in shapes]


def kept(f, args):
    """(operands, results, shapes of extras) that the backward of f reads."""
    program, _ = trace(f, args)
    back = reverse(program, [True] * len(args))
    return back.saves_in, back.saves_out, sorted(aval.shape for aval in back.extra_avals)


def test_an_output_of_the_loop_is_never_kept_twice():
    # h of the step before is the output of the step before: the initial state and the output do.
    assert kept(rnn, draw((3,), (3, 3), (5, 3))) == ((0, 1), (1,), [])


def test_consts_and_xs_are_referred_to_and_only_states_are_stacked():
    args = draw((3, 2), (7, 3), (7, 3), (7, 2), (7, 2))
    assert kept(selective_ssm, args) == ((0, 1, 2, 3, 4), (), [(7, 3, 2)])


def test_what_no_step_changes_is_computed_once():
    def f(c, w):
        return lax.scan(lambda c, _: (jnp.sin((w @ w) @ c), None), c, None, length=5)[0]

    # w @ w once; (w @ w) @ c and c at each step
    assert kept(f, draw((3,), (3, 3)))[2] == [(3, 3), (5, 3), (5, 3)]


def test_a_carry_that_no_step_changes_is_not_stacked():
    def f(c, w):
        return lax.scan(lambda cw, _: ((jnp.exp(cw[0]) * cw[1], cw[1]), None), (c, w), None, length=5)[0]

    assert kept(f, draw((3,), (3,))) == ((1,), (), [(5, 3)])


def test_nothing_is_kept_for_outputs_that_get_no_cotangent():
    def f(c, xs):
        return lax.scan(lambda c, x: (c + x, jnp.sin(c)), c, xs)[0]

    program, _ = trace(f, draw((3,), (5, 3)))
    assert reverse(program, [True, True]).extras == ()


def value_and_gradients(f, args):
    def run(*args):
        outs, pullback = our_vjp(f, args, [True] * len(args))
        return outs, pullback([jnp.ones_like(out) for out in outs])

    return run


LSTM = draw((4, 16), (4, 16), (16, 64), (16, 64), (64,), (50, 4, 16))
SSM = draw((16, 8), (50, 16), (50, 16), (50, 8), (50, 8))


@pytest.mark.parametrize(("f", "args"), [(lstm, LSTM), (selective_ssm, SSM)])
def test_no_more_memory_than_jax(f, args):
    def judge(*args):
        outs, pullback = jax.vjp(lambda *a: jax.tree.leaves(f(*a)), *args)
        return outs, pullback([jnp.ones_like(out) for out in outs])

    size = lambda f: jax.jit(f).lower(*args).compile().memory_analysis().temp_size_in_bytes
    ours = value_and_gradients(lambda *a: jax.tree.leaves(f(*a)), args)
    assert size(ours) <= size(judge)


def test_the_forward_loop_runs_once():
    jaxpr = jax.make_jaxpr(value_and_gradients(lambda *a: jax.tree.leaves(lstm(*a)), LSTM))(*LSTM)
    assert str(jaxpr).count("= scan[") == 2


def test_products_with_small_factors_are_done_after_the_loop(monkeypatch):
    done = []
    monkeypatch.setattr(scanning, "product_over_steps", lambda x, y, **k: done.append(x.shape) or right(x, y, **k))
    value_and_gradients(lambda *a: jax.tree.leaves(lstm(*a)), LSTM)(*LSTM)
    assert len(done) == 2  # the gradients of w and u


# --- programs of all kinds ---------------------------------------------------------------------


def test_cotangents_that_no_step_needs_are_computed_after_the_loop():
    def f(h, a, b, x, reverse=False):
        return lax.scan(lambda h, row: (row[0] * h + row[1] * row[2],) * 2, h, (a, b, x), reverse=reverse)[1]

    args = draw((3,), (5, 3), (5, 3), (5, 3))
    scans = [eqn for eqn in back_equations(f, args) if eqn.primitive.name == "scan"]
    assert [len(scan.outvars) for scan in scans] == [2]  # the carry, and one stack for the cotangents of a, b and x
    for g in (f, partial(f, reverse=True)):
        assert_sample(sample(g, normal(3), normal(5, 3), normal(5, 3), normal(5, 3)), "float64", order=2)


def back_equations(f, args):
    """The equations of the backward of f."""
    program, _ = trace(f, args)
    back = reverse(program, [True] * len(args))
    outputs, extras = back.forward(*args)
    kept = [args[i] for i in back.saves_in] + [outputs[i] for i in back.saves_out] + extras
    return jax.make_jaxpr(back.backward)(kept, outputs).jaxpr.eqns


def test_second_derivative_of_custom_rules_in_a_loop_is_that_of_the_unrolled_loop():
    def unrolled(x, y):
        ys = []
        for _ in range(3):
            x = tripled(x) + scaled(x, 0.5) * jax.nn.softplus(y)
            ys.append(jnp.sin(x) ** 2)
        return x, jnp.stack(ys)

    assert_equal_functions(in_a_loop, unrolled, *draw((3,), (3,)))


def test_ignore_custom_rules_reaches_into_loops_and_branches():
    def f(x):
        return [lax.scan(lambda c, _: (lax.cond(c > 9, jnp.cos, tripled, c), None), x, None, length=2)[0]]

    slope = lambda **o: our_vjp(f, [jnp.float32(0.5)], [True], Options(**o))[1]([jnp.float32(1)])[0]
    true = jnp.cos(0.5) * jnp.cos(jnp.sin(0.5))
    np.testing.assert_allclose(slope(ignore_custom_rules=True), true, rtol=1e-6)
    np.testing.assert_allclose(slope(), 9 * true, rtol=1e-6)


def test_one_body_used_twice():
    body = jax.jit(lambda c, x: (jnp.tanh(c * x), c))
    f = lambda x, xs: lax.scan(body, lax.scan(body, x, xs)[0] * 2, xs * 3)
    assert_equal_functions(f, f, *draw((), (4,)))


def test_dropout_in_a_loop():
    def f(x):
        def body(carry, _):
            x, key = carry
            key, sub = jax.random.split(key)
            return (jnp.where(jax.random.bernoulli(sub, 0.5, x.shape), jnp.sin(x), x), key), None

        return lax.scan(body, (x, jax.random.key(0)), None, length=3)[0][0]

    assert_sample(sample(f, normal(4)), "float32", 1)


def test_effects_in_the_body_happen_once_per_step():
    seen = []

    def body(c, x):
        jax.debug.callback(lambda c: seen.append(float(c)), c)
        return c * x, None

    args = [jnp.float32(1), jnp.asarray([2.0, 3.0, 4.0], "float32")]
    jax.jit(value_and_gradients(lambda *a: [lax.scan(body, *a)[0]], args))(*args)
    jax.effects_barrier()
    assert sorted(seen) == [1, 2, 6]


def test_a_missing_cotangent_is_not_made_up():
    f = lambda x, y: lax.scan(lambda c, _: ((c[0] * 2, c[1] * 3), None), (x, y), None, length=2)[0]
    program, _ = trace(f, draw((2,), (2,)))
    back = reverse(program, [True, True])
    x_ct, y_ct = back.backward([], [jnp.ones(2), None])
    np.testing.assert_array_equal(x_ct, [4, 4])
    assert y_ct is None


def test_half_precision_carries_keep_their_dtype():
    assert_sample(
        sample(lambda h, xs: lax.scan(lambda h, x: (h * x, h * 2.0), h, xs), normal(2), normal(3, 2)), "bfloat16", 1
    )


def test_shardings_and_varying_axes_are_kept():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("d")

    @partial(jax.shard_map, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec)
    def f(x, w):
        return lax.scan(lambda c, _: (jnp.sin(c @ w), c), x, None, length=3)[0]

    assert_equal_functions(f, f, *draw((2, 3), (3, 3)))
    with jax.set_mesh(jax.make_mesh((1,), ("d",), axis_types=(AxisType.Explicit,))):
        x, w = draw((2, 3), (3, 3))
        x = jax.sharding.reshard(x, PartitionSpec("d", None))
        g = lambda x, w: [lax.scan(lambda c, y: (jnp.sin(c @ w) + y, c), x, jnp.stack([x, x]))[0]]
        _, found = jax.jit(value_and_gradients(g, [x, w]))(x, w)
        assert jax.typeof(found[0]) == jax.typeof(x)


# --- while -------------------------------------------------------------------------------------


def test_a_while_of_unknown_length_is_refused_with_its_line_and_the_way_out():
    f = lambda x: lax.while_loop(lambda c: c < 5, lambda c: c * 2, x)
    with pytest.raises(UnknownLengthError, match=r"test_loops.py:\d+(.|\n)*lax.scan"):
        our_vjp(f, [jnp.float32(1)], [True])


def test_a_while_may_be_active_where_no_cotangent_arrives():
    def f(x):
        n, _ = lax.while_loop(lambda c: c[1] < 5, lambda c: (c[0] + 1, c[1] * 2), (0, x))
        return [x * n]

    _, pullback = our_vjp(f, [jnp.float32(1)], [True])
    assert pullback([jnp.float32(1)]) == [3]


def test_a_condition_may_depend_on_what_is_differentiated():
    def f(x):
        n = lax.while_loop(lambda n: n < x, lambda n: n + 1, 0.0)
        return [x * lax.stop_gradient(n)]

    _, pullback = our_vjp(f, [jnp.float32(2.5)], [True])
    assert pullback([jnp.float32(1)]) == [3]


# --- wrong rules are caught --------------------------------------------------------------------

right = scanning.product_over_steps
Scan, BackScan = scanning.Scan, scanning.BackScan


def same_direction(self, step, init, xs, *, backwards=False):
    return lax.scan(step, init, xs, length=self.length, reverse=self.reverse, unroll=self.unroll)


def unshifted(self, saved, found=BackScan.found):
    fixed, stacks = found(self, saved)
    results = dict(zip(self.saves_out, saved[len(self.saves_in) :], strict=False))
    return fixed, stacks | {slot: results[j] for slot, (_, j) in self.kept.shifted.items()}


def no_initial_state(self, saved, cts, backward=BackScan.backward):
    found = backward(self, saved, cts)
    return [*found[: self.loop.n_consts], *[None] * self.loop.n_carry, *found[self.loop.n_consts + self.loop.n_carry :]]


def no_ys(self, saved, cts, backward=BackScan.backward):
    carry, ys = self.loop.split_out(cts)
    return backward(self, saved, [*carry, *[None] * len(ys)])


def reversed_xs(self, saved, cts, backward=BackScan.backward):
    consts, carry, xs = self.loop.split_in(backward(self, saved, cts))
    return [*consts, *carry, *(None if x is None else x[::-1] for x in xs)]


def everything_invariant(self, invariant=Scan.invariant):
    slots, eqns = invariant(self)
    return slots | set(self.split_in(self.body.inputs)[1]), eqns


MUTANTS = {
    "the backward loop runs the same way as the forward": (Scan, "run", same_direction),
    "the state after a step is taken for the one before": (BackScan, "found", unshifted),
    "the initial state gets nothing": (BackScan, "backward", no_initial_state),
    "cotangents of the ys are lost": (BackScan, "backward", no_ys),
    "cotangents of the xs come in the wrong order": (BackScan, "backward", reversed_xs),
    "states are taken for constants": (Scan, "invariant", everything_invariant),
    "only the last step's product": (scanning, "product_over_steps", lambda x, y, **k: right(x[-1:], y[-1:], **k)),
    "carries do not become active": (loops, "active_in_body", lambda loop, wrt, tools: (wrt, tools.active(loop.body, wrt))),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rule_is_caught(monkeypatch, name):
    monkeypatch.setattr(*MUTANTS[name])
    assert not all(check_sample(sample, "float64").ok for sample in SAMPLES[lax.scan_p])
