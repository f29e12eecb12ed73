"""Functions of functions: bodies over Tensors, closures included, as one action."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tapejax as tj
import tapejax.lax as tlax
import tapejax.numpy as tnp
from tapejax import errors
from tapejax.ops.surface import functions

XS = np.array([0.5, -0.3, 0.8], "f")


def leaf(value):
    return tj.tensor(value, requires_grad=True)


# Each case: f(numpy, lax, w, x) with w closed over and x given; w is a scalar, x has three elements.
CASES = {
    "scan": lambda np_, lax_, w, x: lax_.scan(lambda c, e: (c * w + e, np_.sin(c)), w * 0 + 1.0, x)[1].sum(),
    "scan over a pytree": lambda np_, lax_, w, x: lax_.scan(
        lambda c, e: ({"a": c["a"] * e["x"], "n": c["n"] + 1}, c["a"] * w), {"a": w, "n": 0}, {"x": x}, reverse=True
    )[1].sum(),
    "nested scan": lambda np_, lax_, w, x: lax_.scan(
        lambda c, e: (lax_.scan(lambda d, g: (d * w + g * e, None), c, x)[0], None), w, x
    )[0],
    "cond": lambda np_, lax_, w, x: lax_.cond(x[0] > 0, lambda y: np_.sin(y) * w, lambda y: y, x).sum(),
    "cond with no operands": lambda np_, lax_, w, x: lax_.cond(x[0] < 0, lambda: w * 2, lambda: w * x.sum()),
    "switch": lambda np_, lax_, w, x: lax_.switch(1, [lambda y: y, lambda y: y * w * w, np_.cos], x).sum(),
    "fori_loop": lambda np_, lax_, w, x: lax_.fori_loop(0, 3, lambda i, c: c * w + x[i], 1.0),
    "map": lambda np_, lax_, w, x: lax_.map(lambda e: np_.tanh(e * w), x).sum(),
    "associative_scan": lambda np_, lax_, w, x: lax_.associative_scan(lambda a, b: a * b + w * 0, x).sum(),
    "vectorize": lambda np_, lax_, w, x: np_.vectorize(lambda a, b: np_.dot(a, b) * w, signature="(n),(n)->()")(x, x).sum(),
    "apply_along_axis": lambda np_, lax_, w, x: np_.apply_along_axis(lambda r: r * w, 0, x).sum(),
    "piecewise": lambda np_, lax_, w, x: np_.piecewise(x, [x < 0, x >= 0], [lambda y: y * w, lambda y: y * y]).sum(),
    "reduce": lambda np_, lax_, w, x: lax_.reduce(x * w, np.float32(0), lax_.add, (0,)),
    "reduce_window": lambda np_, lax_, w, x: (lax_.reduce_window(x * w, -np.inf, lax_.max, (2,), (1,), "VALID") * 2).sum(),
    "custom_root": lambda np_, lax_, w, x: lax_.custom_root(
        lambda s: s * s - w, 1.0, lambda f, s: _newton(np_, f, s), lambda g, y: y / g(1.0)
    ) * x.sum(),
}  # fmt: skip


def _newton(np_, f, s):
    for _ in range(20):
        s = s - f(s) / (2 * s)
    return s


@pytest.mark.parametrize("case", CASES)
def test_value_and_gradients(case):
    f = CASES[case]
    w, x = leaf(np.float32(1.3)), leaf(XS)
    with tj.Tape() as tape:
        out = f(tnp, tlax, w, x)
    grads = tape.backward(out)
    value, want = jax.jit(jax.value_and_grad(lambda w, x: f(jnp, lax, w, x), (0, 1)))(w.value, x.value)
    assert np.allclose(out.value, value, rtol=1e-5)
    assert np.allclose(grads[w], want[0], rtol=1e-5, atol=1e-6)
    assert np.allclose(grads[x], want[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", ["scan", "cond", "nested scan", "fori_loop"])
def test_only_the_closure_is_recorded(case):
    f = CASES[case]
    w = leaf(np.float32(1.3))
    grads = tj.backward(f(tnp, tlax, w, jnp.asarray(XS)))
    want = jax.jit(jax.grad(lambda w: f(jnp, lax, w, jnp.asarray(XS))))(w.value)
    assert np.allclose(grads[w], want, rtol=1e-5)


def test_a_call_is_one_action():
    w = leaf(2.0)
    with tj.Tape() as tape:
        tlax.scan(lambda c, e: (c * w + e, c), leaf(1.0), leaf(XS))
    assert [action.op for action in tape] == ["Scan"]


def test_plain_arrays_get_jaxs_own():
    out, _ = tlax.scan(lambda c, e: (c + e, jnp.sin(c)), 0.0, jnp.asarray(XS))
    assert isinstance(out, jax.Array)
    assert np.isclose(jax.grad(lambda x: tlax.scan(lambda c, e: (c * e, None), 1.0, x)[0])(jnp.asarray(XS))[0], -0.24)
    assert np.allclose(jax.jit(lambda x: tlax.map(lambda e: e * 2, x))(jnp.asarray(XS)), XS * 2)


def test_a_while_loop_of_unknown_length():
    w = leaf(1.5)
    out = tlax.while_loop(lambda c: c < 10.0, lambda c: c * w, leaf(1.0))
    assert np.isclose(out.value, 1.5**6)
    assert np.isclose(tj.backward(out)[w], 6 * 1.5**5)


def test_a_new_function_object_with_the_same_body_is_not_compiled_again():
    functions._known.clear()

    def run(lax_, w, table, start, xs):
        return lax_.scan(lambda c, e: (c * w + (e * table).sum(), None), start, xs)[0]

    for number in (1.0, 2.0, 3.0):
        w, table = leaf(number), jnp.full(3, number)
        found = tj.backward(run(tlax, w, table, leaf(1.0), leaf(XS)))[w]
        want = jax.grad(lambda w, table=table: run(lax, w, table, 1.0, jnp.asarray(XS)))(number)
        assert np.isclose(found, want, rtol=1e-5)
    assert sum(map(len, functions._known.values())) == 1


def test_a_constant_in_the_body_is_part_of_it():
    outs = [tlax.map(lambda e, n=n: e * n, leaf(XS)).value for n in (2.0, 3.0)]
    assert np.allclose(outs, [XS * 2, XS * 3])


def test_a_detached_copy_of_a_closed_over_tensor_stays_detached():
    w = leaf(2.0)
    frozen = w.detach()
    out = tlax.map(lambda e: e * w * frozen, leaf(XS))
    assert np.isclose(tj.backward(out.sum())[w], XS.sum() * 2, rtol=1e-6)


def test_under_jit():
    @jax.jit
    def step(w, x):
        w = leaf(w)
        out = tlax.scan(lambda c, e: (c * w + e, None), leaf(1.0), tj.tensor(x))[0]
        return tj.backward(out)[w]

    want = jax.grad(lambda w: lax.scan(lambda c, e: (c * w + e, None), 1.0, jnp.asarray(XS))[0])(2.0)
    assert np.isclose(step(2.0, jnp.asarray(XS)), want, rtol=1e-6)


def test_a_body_that_reads_other_tensors_every_time_is_refused():
    fresh = iter([leaf(1.0), leaf(2.0), leaf(3.0)])
    with pytest.raises(errors.ClosureError, match="operand") as caught:
        tlax.map(lambda e: e * next(fresh), leaf(XS))
    assert __file__ in str(caught.value)


def test_no_grad_records_nothing():
    w = leaf(2.0)
    with tj.no_grad():
        out = tlax.map(lambda e: e * w, leaf(XS))
    assert not out.requires_grad


def test_primitives_of_a_scan_step_by_step():
    w = leaf(2.0)
    with tj.Tape(detail="primitives") as tape:
        out, _ = tlax.scan(lambda c, e: (c * w + e, None), leaf(1.0), leaf(XS))
    assert len(tape) > 3
    assert np.isclose(tape.backward(out)[w], 3 * 4 + 2 * 2 * 0.5 - 0.3)
