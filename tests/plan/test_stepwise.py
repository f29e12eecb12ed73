"""Primitive by primitive recording, and while loops of unknown length in reverse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tapejax as tj
from tapejax import errors
from tests import by_jax


def leaf(value):
    return tj.tensor(value, requires_grad=True)


def newton(a):
    """The square root of a, to a tolerance: the number of steps depends on a."""
    return lax.while_loop(lambda x: jnp.abs(x * x - a) > 1e-5, lambda x: 0.5 * (x + a / x), a)


def unrolled(a, steps):
    x = a
    for _ in range(steps):
        x = 0.5 * (x + a / x)
    return x


@pytest.mark.parametrize("value", [2.0, 9.0, 100.0])
def test_while_loop_of_unknown_length_equals_the_unrolled_program(value):
    a = leaf(value)
    with tj.Tape() as tape:
        y = tj.lift(newton)(a)
    steps = [action for action in tape if action.steps]
    assert len(steps) == len(tape)
    assert [action.steps for action in steps] == [(("while", i),) for i in range(len(steps))]
    gradient = tape.backward(y)[a]
    expected = jax.grad(unrolled)(value, len(steps))
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, 0.5 / np.sqrt(value), rtol=1e-4)
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.grad(newton)(value)


def test_while_loop_that_never_runs():
    x = leaf(1.0)
    y = tj.lift(lambda x: lax.while_loop(lambda c: c > 5.0, lambda c: c - 1.0, x) * 2.0)(x)
    assert tj.backward(y)[x] == 2.0


def test_while_loop_inside_a_scan_and_a_cond():
    def f(x):
        def body(c, x):
            c = lax.while_loop(lambda v: v < 10.0, lambda v: v * x, c)
            return c / 3.0, c

        c, ys = lax.scan(body, x[0], x)
        return (
            lax.cond(c > 0, lambda v: lax.while_loop(lambda u: u < 50.0, lambda u: u * u, v), lambda v: v, c) + ys.sum()
        )

    def plain(x):
        c, total = x[0], 0.0
        for i in range(3):
            while c < 10.0:
                c = c * x[i]
            total = total + c
            c = c / 3.0
        while c < 50.0:
            c = c * c
        return c + total

    value = np.array([1.5, 2.0, 3.0], "f")
    x = leaf(value)
    gradient = tj.backward(tj.lift(f)(x))[x]
    np.testing.assert_allclose(gradient, jax.grad(plain)(jnp.asarray(value)), rtol=1e-5)


def bounded(go_on, body, start):
    """lax.while_loop of at most 40 steps, which jax can differentiate."""
    return lax.scan(lambda c, _: (lax.cond(go_on(c), body, lambda c: c, c), None), start, None, length=40)[0]


QUICK = ("lanes end at different steps", "infinite slopes at the end")
LANES = {
    "lanes end at different steps": (lambda v, loop: loop(lambda s: s < 10, lambda s: s * v + 1, v), [1.5, 3.0, 1.1]),
    "a lane never runs": (lambda v, loop: loop(lambda s: s < 10, lambda s: s * v + 1, v), [1.5, 20.0, 1.1]),
    "no lane runs": (lambda v, loop: loop(lambda s: s < 0, lambda s: s * v, v), [1.5, 2.0]),
    "newton": (lambda v, loop: loop(lambda s: abs(s * s - v) > 1e-8, lambda s: (s + v / s) / 2, v), [2.0, 100.0, 9.0]),
    "infinite slopes at the end": (
        lambda v, loop: loop(lambda s: s > 0, lambda s: s - v * jnp.sqrt(s) - 0.1, v * v),
        [1.5, 0.0, 2.5],
    ),
    "keys and counts": (
        lambda v, loop: loop(
            lambda c: c[0] < 10,
            lambda c: (c[0] * v + jax.random.uniform(c[1]), jax.random.fold_in(c[1], c[2]), c[2] + 1),
            (v, jax.random.key(0), 0),
        )[0],
        [1.5, 20.0, 3.0],
    ),
    "matrices": (lambda v, loop: loop(lambda c: c.sum() < 9, lambda c: c * v + 1, v * jnp.eye(2)), [1.5, 2.5, 7.0]),
}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in LANES]
)
def test_a_mapped_while_loop_equals_its_lanes_one_by_one(case):
    with jax.enable_x64(True):
        f, values = LANES[case]
        x = jnp.asarray(values)
        ours = jax.vmap(lambda v: f(v, lax.while_loop))
        judge = lambda x: jnp.stack([f(v, bounded) for v in x])
        ct = jnp.asarray(np.random.default_rng(0).normal(size=jax.eval_shape(judge, x).shape))
        slope = lambda vjp, f: lambda x: (vjp(f, x)[1](ct)[0] ** 2).sum()
        expected = by_jax.vjp(judge, x, ct=lambda out: ct)[1][0]
        np.testing.assert_allclose(tj.vjp(ours, x)[1](ct)[0], expected, rtol=1e-10)
        expected = jax.jit(jax.grad(slope(jax.vjp, judge)))(x)
        np.testing.assert_allclose(tj.grad(slope(tj.vjp, ours))(x), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("detail", ["ops", "primitives"])
def test_a_while_loop_mapped_twice(detail):
    x = leaf([[1.0, 20.0, 3.0], [4.0, 5.0, 6.0]])
    grow = lambda v: lax.while_loop(lambda s: s < 10, lambda s: s * 1.2 + 0.3, v)
    with tj.Tape(detail=detail) as tape:
        y = tj.lift(jax.vmap(jax.vmap(grow)))(x).sum()
    steps = [[9, 0, 6], [5, 4, 3]]
    np.testing.assert_allclose(tape.backward(y)[x], 1.2 ** np.array(steps), rtol=1e-5)


def test_while_loop_under_a_trace_says_what_to_do():
    def f(a):
        t = tj.tensor(a, requires_grad=True)
        return tj.backward(tj.lift(newton)(t))[t]

    with pytest.raises(errors.UnknownLengthError, match=r"lax\.scan"):
        jax.jit(f)(2.0)


def program(x, w):
    def cell(h, x):
        h = jnp.tanh(h @ w + x)
        return h, h.sum()

    h, sums = lax.scan(cell, jnp.zeros(3), x)
    return lax.cond(h[0] > 0, jnp.sin, jnp.cos, h).sum() + jax.nn.relu(sums).sum()


def test_primitive_detail_gives_the_same_gradients():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 3)).astype("f"), rng.standard_normal((3, 3)).astype("f")
    expected = jax.grad(program, argnums=(0, 1))(x, w)
    tx, tw = leaf(x), leaf(w)
    with tj.Tape(detail="primitives") as tape:
        y = tj.lift(program)(tx, tw)
    names = [action.plan.name for action in tape]
    assert {"dot_general", "tanh", "add", "reduce_sum", "scan_slice", "scan_stack"} <= set(names)
    assert names.count("tanh") == 4
    assert [a.steps for a in tape if a.plan.name == "tanh"] == [(("scan", i),) for i in range(4)]
    tanh = next(a for a in tape if a.plan.name == "tanh")
    assert "test_stepwise.py" in tanh.line
    grads = tape.backward(y)
    np.testing.assert_allclose(grads[tx], expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grads[tw], expected[1], rtol=1e-5, atol=1e-6)


def test_reversed_scan_with_no_carry_and_integer_carry():
    def f(x):
        (_, c), ys = lax.scan(lambda s, x: ((s[0] + 1, s[1] * x), s[1] * s[0]), (0, x[0]), x, reverse=True)
        return c + ys.sum() + lax.map(lambda v: v * v, x).sum()

    value = np.array([1.5, 2.0, 3.0], "f")
    x = leaf(value)
    with tj.Tape(detail="primitives") as tape:
        y = tj.lift(f)(x)
    np.testing.assert_allclose(tape.backward(y)[x], jax.grad(f)(jnp.asarray(value)), rtol=1e-6)


def test_operators_are_opened_too():
    x = leaf(np.ones((2, 3), "f"))
    with tj.Tape(detail="primitives") as tape:
        y = x.mean()
    assert [action.plan.name for action in tape] == ["reduce_sum", "div"]
    np.testing.assert_allclose(tape.backward(y)[x], np.full((2, 3), 1 / 6), rtol=1e-6)


def test_line_inside_jax_own_jitted_functions_is_the_users():
    from pathlib import Path

    x = leaf(np.eye(2, dtype="f") * np.array([1.0, 2.0], "f"))
    with tj.Tape(detail="primitives") as tape:
        tj.lift(lambda x: jnp.linalg.svd(x)[1])(x)  # here
    here = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# here"))
    svd = next(action for action in tape if action.plan.name == "svd")
    assert f"test_stepwise.py:{here}" in svd.line


def test_loop_that_cannot_be_opened_is_refused():
    double = lambda v: lax.while_loop(lambda c: c < 10.0, lambda c: c * 2, v)
    f = tj.lift(lambda x: lax.cond(x > 0, double, lambda v: v, x))

    def slope(value):
        x = leaf(value)
        return tj.backward(f(x))[x]

    assert slope(1.0) == 16.0
    with pytest.raises(errors.UnknownLengthError, match="inside `cond`"):
        jax.jit(slope)(1.0)
