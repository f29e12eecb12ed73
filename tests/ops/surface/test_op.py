"""Ops of the surface: dtypes, weak types, options, plans, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tapejax import errors
from tests import by_jax
from tests.some import one_in


def leaf(value, dtype=None):
    return tj.tensor(value, dtype=dtype, requires_grad=True)


# --- dtypes and weak types -------------------------------------------------------------------------

OPERANDS = {
    "python int": 2,
    "python float": 2.5,
    "python bool": True,
    "python complex": 1 + 2j,
    "numpy scalar": np.float32(2.0),
    "numpy int8": np.int8(3),
    "numpy array": np.array([1.0, 2.0], np.float16),
    "0-d array": jnp.array(2.0),
    "bfloat16": jnp.array([1.0, 2.0], jnp.bfloat16),
    "int array": jnp.array([1, 2]),
    "weak array": jnp.asarray(2.0),
}
FUNCTIONS = ["add", "multiply", "divide", "maximum", "power", "where"]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32"])
def test_mixed_operands_give_jaxs_dtype_and_weak_type(function, dtype):
    x = jnp.array([1, 2], dtype)
    for name, other in OPERANDS.items():
        given = (True, x, other) if function == "where" else (x, other)
        expected = jax.eval_shape(lambda *given: getattr(jnp, function)(*given), *given)
        on_tape = tuple(tj.tensor(part) if part is x else part for part in given)
        found = getattr(tnp, function)(*on_tape)  # nothing is computed: a value is only a promise here
        assert (found.dtype, found.weak_type) == (expected.dtype, expected.weak_type), name


def test_weak_tensors_stay_weak():
    x = tj.tensor(2.0)
    assert x.weak_type == jax.typeof(jnp.asarray(2.0)).weak_type
    assert tnp.sin(tj.tensor(jnp.asarray(2.0))).weak_type == jax.typeof(jnp.sin(jnp.asarray(2.0))).weak_type


# --- operands and options ---------------------------------------------------------------------------


def test_sequences_of_anything():
    x, y = leaf([1.0, 2.0]), leaf([3.0])
    out = tnp.concatenate([x, np.ones(1, "f"), y, jnp.zeros(1)])
    assert np.array_equal(out.value, [1, 2, 1, 3, 0])
    grads = tj.backward(out, np.arange(5, dtype="f"))
    assert np.array_equal(grads[x], [0, 1])
    assert np.array_equal(grads[y], [3])


def test_a_list_of_recorded_tensors_becomes_an_array():
    x, y = leaf(1.0), leaf(2.0)
    assert np.array_equal(tj.backward(tnp.array([[x, y], [y, 1.0]]).sum())[y], 2.0)


def test_numbers_as_operands_make_no_new_plan():
    x = leaf([1.0, 2.0])
    tnp.add(x, 1.0)
    tnp.clip(x, 1.0, 2.0)
    before = len(tj.plans("add")), len(tj.plans("clip"))
    for number in (2.0, 3.5, -1.0):
        tnp.add(x, number)
        tnp.clip(x, number, number + 1)
    assert (len(tj.plans("add")), len(tj.plans("clip"))) == before


def test_an_integer_exponent_is_what_it_is_for_jax():
    x = leaf([-2.0, 0.0, 3.0])
    for exponent in (2, 3, 0):
        want = jax.grad(lambda v, n=exponent: jnp.power(v, n).sum())(x.value)
        assert np.array_equal(tj.backward(tnp.power(x, exponent).sum())[x], want)


def test_options_by_position_keyword_array_and_tensor():
    x = leaf(np.arange(6, dtype="f").reshape(2, 3))
    assert tnp.sum(x, 1).shape == tnp.sum(x, axis=1).shape == tnp.sum(x, axis=np.int64(1)).shape == (2,)
    assert tnp.sum(x, axis=tj.tensor(1)).shape == (2,)
    assert tnp.reshape(x, np.array([3, 2])).shape == (3, 2)
    assert tnp.repeat(x, np.array([1, 2]), axis=0).shape == (3, 3)
    assert tnp.repeat(x, np.array([2, 2]), axis=0).shape == (4, 3)
    assert tnp.delete(x, slice(0, 2), 1).shape == (2, 1)


def test_a_recorded_tensor_as_option_is_refused():
    with pytest.raises(errors.ArgumentError, match="no gradient flows through options"):
        tnp.sum(leaf([1.0]), axis=leaf(0.0))


def test_ufunc_methods():
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    assert np.array_equal(tj.backward(tnp.multiply.reduce(x, axis=1).sum())[x], [[2, 1], [4, 3]])
    assert tnp.add.outer(x, x).shape == (2, 2, 2, 2)
    assert tnp.add.nin == 2


def test_size_is_read_off_the_values():
    x = leaf([3.0, 1.0, 3.0])
    out = tnp.unique(x)
    assert np.array_equal(out.value, [1.0, 3.0])
    want = jax.grad(lambda v: (jnp.unique(v, size=2) * jnp.array([1.0, 10.0])).sum())(x.value)
    assert np.array_equal(tj.backward(out, jnp.array([1.0, 10.0]))[x], want)
    assert tnp.intersect1d(x, jnp.array([7.0])).shape == (0,)
    assert tnp.extract(x > 2, x).shape == (2,)


def test_what_is_not_recorded_works_by_value(tmp_path):
    x = leaf([0.0, 2.0])
    assert np.array_equal(tnp.nonzero(x)[0].value, [1])
    assert tnp.result_type(x) == jnp.float32
    assert tnp.shape(x) == (2,)
    tnp.save(tmp_path / "x.npy", x)
    assert np.array_equal(np.load(tmp_path / "x.npy"), x.value)
    with pytest.raises(errors.LostGradientError, match=r"x\.detach\(\)") as caught:
        tnp.from_dlpack(x)
    assert __file__ in str(caught.value)
    assert tnp.from_dlpack(x.detach()).shape == (2,)


def test_classes_of_jax_over_tensors():
    from tapejax.scipy.interpolate import RegularGridInterpolator
    from tapejax.scipy.stats import gaussian_kde

    values = leaf([0.0, 1.0, 4.0])
    out = RegularGridInterpolator((np.arange(3.0),), values)(np.array([[0.5], [1.75]]))
    assert np.allclose(out.value, [0.5, 3.25])
    assert np.allclose(tj.backward(out)[values], [0.5, 0.75, 0.75])
    data = leaf([0.0, 1.0, 3.0])
    want = jax.grad(lambda d: jax.scipy.stats.gaussian_kde(d).logpdf(jnp.array([0.5])).sum())(data.value)
    assert np.allclose(tj.backward(gaussian_kde(data).logpdf(jnp.array([0.5])))[data], want, rtol=1e-5)


def test_cholesky_factor_and_its_flag():
    a = leaf([[4.0, 1.0], [1.0, 3.0]])
    b = jnp.array([1.0, 2.0])
    # Only one triangle is read, and jax spreads its gradient over both: the symmetric part is what counts.
    f = lambda linalg, a: linalg.cho_solve(linalg.cho_factor((a + a.T) / 2, lower=True), b).sum()
    want = jax.grad(lambda a: f(jax.scipy.linalg, a))(a.value)
    assert np.allclose(tj.backward(f(tj.scipy.linalg, a))[a], want, rtol=1e-5)


# --- plans -------------------------------------------------------------------------------------------


def test_plans_can_be_seen_and_cleared():
    tnp.cosh(leaf([1.0]))
    assert "cosh: float32[1]" in repr(tj.plans("cosh"))
    tj.clear_plans()
    assert tj.plans() == []
    assert np.isclose(tj.backward(tnp.cosh(leaf(1.0))) is not None, True)


# --- one loss everywhere ------------------------------------------------------------------------------


def loss(x, w):
    h = tnp.tanh(tnp.dot(x, w) + 1)
    h = tnp.concatenate([h, tnp.where(h > 0, h, 2 * h)], axis=-1)
    return tnp.mean(tnp.square(h)) + tnp.linalg.norm(w)


def test_the_same_loss_by_tape_grad_jit_and_vmap():
    rng = np.random.default_rng(0)
    x, w = jnp.asarray(rng.standard_normal((4, 3)), "float32"), jnp.asarray(rng.standard_normal((3, 2)), "float32")
    tx, tw = leaf(x), leaf(w)
    out = loss(tx, tw)
    grads = tj.backward(out)
    value, (gx, gw) = jax.value_and_grad(loss, (0, 1))(x, w)
    assert np.isclose(out.value, value, rtol=1e-6)
    assert np.allclose(grads[tx], gx, rtol=1e-5, atol=1e-7)
    assert np.allclose(grads[tw], gw, rtol=1e-5, atol=1e-7)
    assert np.isclose(jax.jit(loss)(x, w), value, rtol=1e-6)
    rows = jax.vmap(loss, (0, None))(x, w)
    assert np.allclose(rows, [loss(tx[i], tw).item() for i in range(4)], rtol=1e-6)

    @jax.jit
    def by_tape(x, w):
        x, w = leaf(x), leaf(w)
        with tj.Tape() as tape:
            out = loss(x, w)
        return tape.backward(out)[w]

    assert np.allclose(by_tape(x, w), gw, rtol=1e-5, atol=1e-7)


# --- lists of integers -----------------------------------------------------------------------------------

CUBE, B = np.arange(24, dtype="f").reshape(2, 3, 4), np.arange(12, dtype="f").reshape(3, 4)
LISTS = {
    "einsum": lambda m, x: m.einsum(x, [0, 1, 2], B, [1, 3], [0, 3]), "einsum, no result": lambda m, x: m.einsum(x, [5, 1, 2], B, [1, 2]),
    "einsum, all": lambda m, x: m.einsum(x, [0, 1, 2], x, [0, 1, 2]), "einsum, ellipsis": lambda m, x: m.einsum(x, [..., 0], B, [1, 0]),
    "einsum, tuples": lambda m, x: m.einsum(x, (2, 0, 1)), "einsum, order": lambda m, x: m.einsum(x, [2, 0, 1], [1, 2]),
    "tensordot": lambda m, x: m.tensordot(x, B, [[1, 2], [0, 1]]), "tensordot, one": lambda m, x: m.tensordot(x, B, axes=[1, 0]),
    "transpose": lambda m, x: m.transpose(x, [2, 0, 1]), "moveaxis": lambda m, x: m.moveaxis(x, [0, 1], [2, 0]),
    "pad": lambda m, x: m.pad(x, [[1, 1], [0, 0], [2, 0]]), "pad, values": lambda m, x: m.pad(x, [1, 2], constant_values=[3.0, 4.0]),
    "roll": lambda m, x: m.roll(x, [1, 2], [0, 2]), "flip": lambda m, x: m.flip(x, [0, 1]), "expand_dims": lambda m, x: m.expand_dims(x, [0, 3]),
    "repeat": lambda m, x: m.repeat(x, np.array([1, 2]), axis=0), "split": lambda m, x: m.split(x, [1, 3], axis=2)[1], "sum": lambda m, x: m.sum(x, axis=[0, 1]),
    "tile": lambda m, x: m.tile(x, [2, 1, 1]), "reshape": lambda m, x: m.reshape(x, [4, 6]), "broadcast_to": lambda m, x: m.broadcast_to(x, [2, 2, 3, 4]),
    "fftn": lambda m, x: m.fft.fftn(x, s=[2, 2], axes=[0, 1]).real, "at": lambda m, x: x.at[np.array([0, 1]), np.array([1, 2])].add(1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", one_in(2, LISTS))
def test_lists_of_integers_are_options(name):
    function = LISTS[name]
    x = leaf(CUBE)
    y = function(tnp, x)
    ct = np.random.default_rng(0).normal(size=y.shape).astype(y.dtype)
    out, (gradient,) = by_jax.vjp(lambda a: function(jnp, a), jnp.asarray(CUBE), ct=lambda out: jnp.asarray(ct))
    np.testing.assert_allclose(y.value, out, rtol=1e-6)
    np.testing.assert_allclose(tj.backward(y, ct)[x], gradient, rtol=1e-5, atol=1e-5)


# --- bad input ---------------------------------------------------------------------------------------


def traced(f):
    return lambda: jax.jit(lambda x: f(tj.tensor(x)))(jnp.ones(()))


X = [1.0, 2.0]
BAD = {
    "jnp.sin of a recorded Tensor": (lambda: jnp.sin(leaf(X)), TypeError, "Tensor"),
    "np.sin of a recorded Tensor": (lambda: np.sin(leaf(X)), TypeError, "Tensor"),
    "np.asarray of a recorded Tensor": (lambda: np.asarray(leaf(X)), TypeError, "tapejax.numpy"),
    "float() under a trace": (traced(float), TypeError, "lax.scan"),
    "if under a trace": (traced(lambda x: 1 if x > 0 else 0), TypeError, "lax.cond"),
    "a string": (lambda: tnp.add(leaf(X), "abc"), TypeError, "str"),
    "an object array": (lambda: tnp.add(leaf(X), np.array([None, 1], object)), TypeError, "numeric dtype"),
    "a wrong axis": (lambda: tnp.sum(leaf(X), axis=3), ValueError, "axis 3 is out of bounds"),
    "wrong shapes": (lambda: tnp.dot(leaf(X), jnp.ones(3)), TypeError, "shape"),
    "an unhashable option": (lambda: tnp.sum(leaf(X), axis={1}), TypeError, "hashable"),
    "a name that is not there": (lambda: tnp.sum(leaf(X), axes=0), TypeError, "axes"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_says_what_to_do(case):
    call, kind, text = BAD[case]
    with pytest.raises(kind) as caught:
        call()
    told = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert text in told
    if case not in ("jnp.sin of a recorded Tensor", "np.sin of a recorded Tensor"):  # those are jax's and NumPy's words
        assert __file__ in told


def test_an_error_of_jax_names_the_op_and_the_line():
    with pytest.raises(ValueError, match="axis 3") as caught:
        tnp.sum(leaf(X), axis=3)
    assert isinstance(caught.value, tj.TapejaxError)
    assert "tapejax.numpy.sum" in caught.value.action
    assert __file__ in caught.value.at
    assert caught.value.fix == "of 1 axes the first is 0, the last -1"


def test_an_error_of_the_users_own_stays_what_it_is():
    def mine(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        tj.lift(mine)(leaf(X))
    assert not isinstance(caught.value, tj.TapejaxError)
    assert __file__ in caught.value.__notes__[-1]
