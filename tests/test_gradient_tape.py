"""GradientTape: each record against jax.vjp, whole tapes against jax.grad, and what it refuses.

The caller computes the forward: here NumPy and jax do, never the tape.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tapejax as tj
from tapejax.errors import (
    ArgumentError,
    ConcreteValueError,
    DtypeError,
    GradientMismatchError,
    NumericalInstabilityError,
    SeedError,
    SlotError,
    TapeError,
)
from tapejax.nn import layers

few = settings(max_examples=4, deadline=None, derandomize=True)
size = st.integers(1, 3)


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def normal(seed, *shape, dtype="float64"):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.startswith("complex") else x).astype(dtype)


def agrees(record, function, operands):
    """record(tape, slots, operands) against jax.vjp of the function: the root's shape, and every gradient."""
    tape = tj.GradientTape()
    slots = [tape.input(x.shape, x.dtype) for x in operands]
    root = record(tape, slots, operands)
    value = jax.eval_shape(function, *operands)
    assert (tape.shape(root), tape.num_tensors) == (value.shape, len(operands) + 1)
    ct = normal(99, *value.shape, dtype=str(value.dtype))
    judge = jax.jit(lambda ct, *x: jax.vjp(function, *x)[1](ct))(ct, *operands)
    buffers = tape.buffers()
    tape.backward(ct, buffers)
    for slot, want in zip(slots, judge, strict=True):
        np.testing.assert_allclose(buffers[slot], want, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(buffers[root], ct)


# --- each record ---------------------------------------------------------------------------------

BROADCAST = st.sampled_from(
    [((3,), (3,)), ((2, 3), (3,)), ((), (2,)), ((3, 1), (1, 2)), ((0, 2), (2,)), ((2, 1, 3), (2, 1))]
)
DTYPE = st.sampled_from(["float64", "float64", "complex128"])


@few
@given(BROADCAST, DTYPE)
def test_add(shapes, dtype):
    operands = [normal(i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]
    agrees(lambda tape, s, x: tape.record_add(*s), jnp.add, operands)


@few
@given(BROADCAST, DTYPE)
def test_mul(shapes, dtype):
    operands = [normal(i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]
    agrees(lambda tape, s, x: tape.record_mul(s[0], x[0], s[1], x[1]), jnp.multiply, operands)


@few
@given(size, size, size, st.sampled_from(["matrices", "vector left", "vector right", "stack"]))
def test_matmul(n, k, m, form):
    left, right = (
        {"vector left": (k,), "stack": (2, n, k)}.get(form, (n, k)),
        (k,) if form == "vector right" else (k, m),
    )
    operands = [normal(1, *left), normal(2, *right)]
    agrees(lambda tape, s, x: tape.record_matmul(s[0], x[0], s[1], x[1]), jnp.matmul, operands)


@few
@given(st.lists(size, max_size=3))
def test_silu(shape):
    agrees(lambda tape, s, x: tape.record_silu(s[0], x[0]), jax.nn.silu, [normal(1, *shape)])


@few
@given(size, st.integers(2, 5), st.integers(1, 3), st.sampled_from([-1, 0, (0, 1)]))
def test_layer_norm(rows, columns, operands, axis):
    given = [normal(1, rows + 1, columns), normal(2, columns), normal(3, columns)][:operands]

    def record(tape, s, x):
        rest = [s[1], x[1], *s[2:]] if len(s) > 1 else []
        return tape.record_layer_norm(s[0], x[0], *rest, axis=axis)

    agrees(record, lambda *x: layers.layer_norm(*x, axis=axis), given)


def sequential(a, b, x, h0, axis, reverse):
    """The recurrence one step at a time: an independent judge of the values and, by jax, of the gradients."""
    a, inputs = jnp.broadcast_arrays(a, b * x)
    a, inputs = jnp.moveaxis(a, axis, 0), jnp.moveaxis(inputs, axis, 0)

    def step(h, each):
        h = each[0] * h + each[1]
        return h, h

    start = jnp.zeros(a.shape[1:], a.dtype) if h0 is None else jnp.broadcast_to(h0, a.shape[1:])
    return jnp.moveaxis(jax.lax.scan(step, start, (a, inputs), reverse=reverse)[1], 0, axis)


@few
@given(
    st.sampled_from([1, 2, 5, 8]), size, st.booleans(), st.booleans(), st.booleans(), st.booleans(),
    st.sampled_from(["float64", "complex128"]),
)  # fmt: skip
def test_ssm_scan(steps, channels, constant, starts, reverse, along_last, dtype):
    axis, shape = (1, (channels, steps)) if along_last else (0, (steps, channels))
    a_shape = shape if not constant else (channels, 1) if along_last else (channels,)
    operands = [normal(i, *s, dtype=dtype) for i, s in enumerate([shape, a_shape, shape, (channels,)])][: 3 + starts]

    def record(tape, s, x):
        rest = [s[3], x[3]] if starts else []
        return tape.record_ssm_scan(s[0], x[0], s[1], x[1], s[2], x[2], *rest, axis=axis, reverse=reverse)

    judge = lambda x, a, b, h0=None: sequential(a, b, x, h0, axis, reverse)
    agrees(record, judge, operands)


slow = lambda *values: pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("steps", "constant"),
    [(1, False), (63, True), (4096, False), slow(4096, True), slow(1000, False), slow(1000, True), slow(64, False)],
)
def test_long_scans(steps, constant):
    a = 1 - normal(1, *((2,) if constant else (steps, 2))) ** 2 / 50
    operands = [normal(0, steps, 2), a, normal(2, steps, 2), normal(3, 2)]
    record = lambda tape, s, x: tape.record_ssm_scan(s[0], x[0], s[1], x[1], s[2], x[2], s[3], x[3])
    agrees(record, lambda x, a, b, h0: sequential(a, b, x, h0, 0, False), operands)


# --- whole tapes ---------------------------------------------------------------------------------


def apply(op, tape, slots, values, i, j):
    """Record one op on the tape, and return the new slot and its value."""
    x, y = values[i], values[j]
    scan = lambda a: layers.ssm_scan(a, y, x)
    if op == "add":
        return tape.record_add(slots[i], slots[j]), x + y
    if op == "mul":
        return tape.record_mul(slots[i], x, slots[j], y), x * y
    if op == "matmul":
        return tape.record_matmul(slots[i], x, slots[j], y), x @ y
    if op == "silu":
        return tape.record_silu(slots[i], x), jax.nn.silu(x)
    if op == "scan":
        a = values[0]
        return tape.record_ssm_scan(slots[i], x, slots[0], a, slots[j], y), scan(a)
    if op == "half":
        return tape.record_mul(slots[i], x, None, np.float64(0.5)), x * 0.5
    return tape.record_layer_norm(slots[i], x, slots[j], y, slots[0]), layers.layer_norm(x, y, values[0])


class Nothing:
    """Takes the place of the tape while jax traces the same program."""

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


OPS = ["add", "mul", "matmul", "silu", "layer_norm", "layer_norm", "scan", "half"]
instruction = st.tuples(st.sampled_from(OPS), st.integers(0, 10**6), st.integers(0, 10**6))


programs = st.lists(instruction, min_size=1, max_size=40)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(programs)
def test_more_mixed_programs(program):
    check_mixed(program)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(programs)
@example([(op, 2 * i + 1, i) for i in range(5) for op in OPS])  # 40 records
def test_mixed_programs(program):
    check_mixed(program)


def check_mixed(program):
    def run(tape, slots, values):
        for op, i, j in program:
            slot, value = apply(op, tape, slots, values, i % len(values), j % len(values))
            if value.size and op in ("matmul", "mul", "scan"):  # keep the numbers in range
                slot2 = tape.record_layer_norm(slot, value)
                slot, value = slot2, layers.layer_norm(value)
            slots.append(slot)
            values.append(value)
        return values[-1]

    leaves = [jnp.asarray(normal(i, 3, 3)) / 2 for i in range(3)]
    tape = tj.GradientTape()
    slots = [tape.input((3, 3)) for _ in leaves]
    out = run(tape, list(slots), list(leaves))
    ct = normal(9, 3, 3)
    buffers = tape.buffers()
    tape.backward(ct, buffers)
    judge = jax.jit(jax.grad(lambda *x: jnp.sum(run(Nothing(), [None] * 3, list(x)) * ct), (0, 1, 2)))(*leaves)
    assert out.shape == (3, 3)
    for slot, want in zip(slots, judge, strict=True):
        np.testing.assert_allclose(buffers[slot], want, rtol=1e-8, atol=1e-10)


def chain():
    tape = tj.GradientTape()
    x, w = tape.input((2,)), tape.input((2,))
    x_data, w_data = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    y = tape.record_mul(x, x_data, w, w_data)
    tape.record_mul(y, x_data * w_data, x, x_data)  # x^2 w
    return tape, x, w


def test_backward_runs_again_and_adds():
    tape, x, w = chain()
    buffers = tape.buffers()
    for times in (1, 2, 3):
        tape.backward(np.ones(2), buffers)
        np.testing.assert_array_equal(
            buffers[x], times * np.array([6.0, 16.0])
        )  # what is there is never used as a gradient
        np.testing.assert_array_equal(buffers[w], times * np.array([1.0, 4.0]))
    tape.record_silu(x, [1.0, 2.0])  # and the tape goes on
    buffers = tape.buffers()
    tape.backward(np.ones(2), buffers)
    assert not buffers[w].any()
    tape.backward(np.ones(2), buffers, root=2)
    np.testing.assert_array_equal(buffers[w], [1.0, 2.0])


def test_jax_buffers_are_replaced_in_the_list_and_numpy_ones_change_in_place():
    tape, x, w = chain()
    first, second = np.zeros(2), jnp.zeros(2)
    buffers = [first, second, *map(jnp.asarray, tape.buffers()[2:])]
    tape.backward(np.ones(2), buffers)
    assert buffers[x] is first
    assert first.tolist() == [6.0, 16.0]
    assert second.tolist() == [0.0, 0.0]
    assert buffers[w].tolist() == [1.0, 4.0]


def test_buffers_may_be_wider_than_the_slots():
    tape = tj.GradientTape()
    x = tape.input((2,), jnp.bfloat16)
    tape.record_add(x, x)
    buffers = [np.zeros(2), np.zeros(2, "f")]
    tape.backward(jnp.ones(2, jnp.bfloat16), buffers)
    assert buffers[x].tolist() == [2.0, 2.0]


def test_data_is_kept_as_it_was():
    tape = tj.GradientTape()
    x, data = tape.input((2,)), np.ones(2)
    tape.record_mul(x, data, x, data)
    data[:] = 7.0
    buffers = tape.buffers()
    tape.backward(np.ones(2), buffers)
    assert buffers[x].tolist() == [2.0, 2.0]
    assert len([plan for plan in tj.plans("mul") if plan.n_in == 2]) >= 1


def test_under_jit_with_jax_buffers():
    def gradient(x):
        tape = tj.GradientTape(check_finite=False)
        slot = tape.input(x.shape)
        tape.record_silu(slot, x)
        buffers = [jnp.zeros(x.shape)] * 2
        tape.backward(jnp.ones(x.shape), buffers)
        return buffers[slot]

    x = jnp.asarray(normal(0, 3))
    np.testing.assert_allclose(jax.jit(gradient)(x), jax.vjp(jax.nn.silu, x)[1](jnp.ones(3))[0], rtol=1e-12)

    def checked(x):
        tape = tj.GradientTape()
        tape.record_silu(tape.input(x.shape), x)
        tape.backward(jnp.ones(x.shape), [jnp.zeros(x.shape)] * 2)

    with pytest.raises(ConcreteValueError, match="check_finite=False"):
        jax.jit(checked)(x)


def test_works_whatever_the_caller_has_set_about_x64():
    tape, x, _ = chain()
    buffers = tape.buffers()
    with jax.enable_x64(False):
        tape.backward(np.ones(2), buffers)
    assert buffers[x].tolist() == [6.0, 16.0]


def test_the_shortcut_of_layer_norm_has_a_name_and_is_wrong():
    x, scale, ct = normal(1, 4, 6), normal(2, 6), normal(3, 4, 6)
    found = {}
    for approximation in (None, "mean-only"):
        tape = tj.GradientTape()
        slots = tape.input((4, 6)), tape.input((6,)), tape.input((6,))
        tape.record_layer_norm(slots[0], x, slots[1], scale, slots[2], epsilon=0.0, approximation=approximation)
        found[approximation] = tape.buffers()
        tape.backward(ct, found[approximation])
        assert ("mean_only" in str(tape)) is (approximation is not None)
    sigma = x.std(-1, keepdims=True)
    shortcut = scale / sigma * (ct - ct.mean(-1, keepdims=True))
    np.testing.assert_allclose(found["mean-only"][0], shortcut, rtol=1e-10)
    off = np.linalg.norm(found["mean-only"][0] - found[None][0]) / np.linalg.norm(found[None][0])
    assert off > 0.2
    for exact, same in zip(found[None][1:], found["mean-only"][1:], strict=True):
        np.testing.assert_allclose(exact, same, rtol=1e-10)
    with pytest.raises(ArgumentError, match="unknown approximation"):
        tape.record_layer_norm(0, x, approximation="fast")


def test_one_calculus(monkeypatch):
    """A wrong rule shows up here too, so there is no second set of derivatives; and jax's autodiff is not asked."""
    from tapejax import gradient_tape

    tj.clear_plans()
    source = inspect.getsource(gradient_tape)
    assert not any(f"jax.{judge}" in source for judge in ("grad(", "vjp", "jvp", "linearize"))
    from tapejax.rules import TABLE

    rule = TABLE[jax.lax.logistic_p]
    assert rule is not None
    monkeypatch.setitem(TABLE, jax.lax.logistic_p, TABLE[jax.lax.tanh_p])
    try:
        with pytest.raises(AssertionError, match="Not equal"):
            agrees(lambda tape, s, x: tape.record_silu(s[0], x[0]), jax.nn.silu, [normal(1, 7)])
    finally:
        tj.clear_plans()


# --- NaN and Inf ---------------------------------------------------------------------------------


def unstable(tape, seed, root=None):
    buffers = tape.buffers()
    with pytest.raises(NumericalInstabilityError, match="nothing was written") as caught:
        tape.backward(seed, buffers, root=root)
    assert not any(buffer.any() for buffer in buffers)
    assert isinstance(caught.value, FloatingPointError)
    return caught.value


def test_incoming():
    error = unstable(chain()[0], np.array([1.0, np.inf]))
    assert (error.op, error.slot, error.count, error.first_index) == ("loss_grad", 3, 1, (1,))


def test_intermediate():
    tape = tj.GradientTape()
    x = tape.input((2, 2))
    y = tape.record_silu(x, np.ones((2, 2)))
    tape.record_mul(y, np.ones((2, 2)), None, np.array([[1.0, 1.0], [np.nan, np.inf]]))
    error = unstable(tape, np.ones((2, 2)))
    assert (error.op, error.slot, error.count, error.first_index) == ("mul", y, 2, (1, 0))
    assert error.action == "%2 = mul %1 constant"
    assert "test_gradient_tape.py:" in error.at


def test_first_written_into_a_leaf():
    tape = tj.GradientTape()
    x, w = tape.input((3,)), tape.input((3,))
    tape.record_mul(x, np.array([1.0, np.nan, 2.0]), w, np.ones(3))  # the gradient of w, and of w alone, is bad
    error = unstable(tape, np.ones(3))
    assert (error.op, error.slot, error.count, error.first_index) == ("mul", w, 1, (1,))
    assert "(input)" in str(error)


def test_a_sum_that_overflows():
    tape = tj.GradientTape()
    x = tape.input((1,), "float32")
    for _ in range(2):
        y = tape.record_mul(x, np.ones(1, "f"), None, np.full(1, 3e38, "f"))
    tape.record_add(y, y - 1)
    assert unstable(tape, np.ones(1, "f")).slot == x
    tape = tj.GradientTape()
    x = tape.input((1,), "float32")
    tape.record_add(x, None, b_data=np.ones(1, "f"))
    buffers = [np.full(1, 3e38, "f"), np.zeros(1, "f")]
    with pytest.raises(NumericalInstabilityError, match="what its buffer holds"), np.errstate(over="ignore"):
        tape.backward(np.full(1, 3e38, "f"), buffers)
    assert (buffers[0] == np.float32(3e38)).all()
    assert not buffers[1].any()


def test_what_does_not_reach_a_gradient_is_nobodys_business():
    tape = tj.GradientTape()
    x = tape.input((2,))
    y = tape.record_silu(x, [1.0, 2.0])
    tape.record_mul(y, [np.nan, np.nan], x, [np.nan, np.nan])
    buffers = tape.buffers()
    tape.backward(np.ones(2), buffers, root=y)
    assert np.isfinite(buffers[x]).all()
    tape.check_finite = False
    tape.backward(np.ones(2), buffers)
    assert np.isnan(buffers[x]).all()


# --- what is refused -----------------------------------------------------------------------------

X = np.ones((2, 3))
REFUSED = {
    "no such slot": (SlotError, "no slot 7", lambda t: t.record_add(0, 7)),
    "negative": (SlotError, "no slot -1", lambda t: t.record_silu(-1, X)),
    "not a number": (ArgumentError, "not str", lambda t: t.record_silu("x", X)),
    "a truth value": (ArgumentError, "not bool", lambda t: t.record_silu(True, X)),
    "shape of data": (
        ArgumentError,
        r"float64\[3\], slot 0 is float64\[2, 3\]",
        lambda t: t.record_silu(0, np.ones(3)),
    ),
    "dtype of data": (ArgumentError, "data is float32", lambda t: t.record_silu(0, X.astype("f"))),
    "no array": (ArgumentError, "not an array", lambda t: t.record_silu(0, "many")),
    "operands": (ArgumentError, "do not fit", lambda t: t.record_matmul(0, X, 0, X)),
    "no data": (ArgumentError, "reads the data of b", lambda t: t.record_mul(0, X, 0, None)),
    "no data for the scan": (ArgumentError, "reads the data of a", lambda t: t.record_ssm_scan(0, X, 0, None, 0, X)),
    "constants only": (ArgumentError, "constant", lambda t: t.record_mul(None, X, None, X)),
    "empty constant": (ArgumentError, "needs data", lambda t: t.record_mul(0, X, None, None)),
    "shape": (ArgumentError, "not a shape", lambda t: t.input((2, -1))),
    "integers": (DtypeError, "no gradient", lambda t: t.input((2,), "int32")),
    "dtype": (DtypeError, "not a dtype", lambda t: t.input((2,), "number")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_record_that_is_refused_leaves_no_trace(what):
    kind, message, record = REFUSED[what]
    tape = tj.GradientTape()
    tape.input((2, 3))
    with pytest.raises(kind, match=message) as caught:
        record(tape)
    assert "test_gradient_tape.py:" in caught.value.at
    assert repr(tape) == "<gradient tape: 1 slot, 0 records>"


def readonly():
    buffer = np.zeros(2)
    buffer.flags.writeable = False
    return buffer


def changed(position, buffer):
    return lambda b: [*b[:position], buffer, *b[position + 1 :]]


BUFFERS = {
    "too few": (ArgumentError, "3 buffers for 4 slots", lambda b: b[:3]),
    "too many": (ArgumentError, "5 buffers for 4 slots", lambda b: [*b, np.zeros(2)]),
    "no list": (ArgumentError, "not ndarray", lambda b: np.zeros((4, 2))),
    "shape": (GradientMismatchError, "slot 3", changed(3, np.zeros(3))),
    "narrow": (GradientMismatchError, "float32", changed(1, np.zeros(2, "f"))),
    "integers": (GradientMismatchError, "int64", changed(1, np.zeros(2, int))),
    "no array": (ArgumentError, "is a list", changed(2, [0.0, 0.0])),
    "read-only": (ArgumentError, "read-only", changed(3, readonly())),
    "shared": (ArgumentError, "slots 0 and 1 share", lambda b: [b[0], b[0], *b[2:]]),
    "a tuple of jax arrays": (ArgumentError, "in a tuple", lambda b: tuple(map(jnp.asarray, b))),
}


@pytest.mark.parametrize("what", BUFFERS)
def test_a_backward_that_is_refused_writes_nothing(what):
    kind, message, change = BUFFERS[what]
    tape = chain()[0]
    buffers = tape.buffers()
    with pytest.raises(kind, match=message):
        tape.backward(np.ones(2), change(buffers))
    assert not any(buffer.any() for buffer in buffers)


def test_the_seed_and_the_root_must_fit():
    tape = chain()[0]
    with pytest.raises(SeedError, match=r"float64\[3\], slot 3 is float64\[2\]"):
        tape.backward(np.ones(3), tape.buffers())
    with pytest.raises(SlotError, match="root"):
        tape.backward(np.ones(2), tape.buffers(), root=4)
    with pytest.raises(TapeError, match="nothing was recorded"):
        tj.GradientTape().backward(1.0, [])
