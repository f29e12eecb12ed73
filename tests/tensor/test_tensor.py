"""Tensor: what it is made of, what it refuses, how it is copied."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from tapejax import errors
from tests import by_jax
from tests.some import one_in


def leaf(value):
    return tj.tensor(value, requires_grad=True)


# --- making one -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [1.0, 2, True, 1j, [1.0, 2.0], [[1, 2], [3, 4]], np.arange(3.0), np.float32(2), jnp.ones(3)]
)
def test_value_is_what_jax_would_make(data):
    expected = jnp.asarray(data)
    made = tj.tensor(data)
    assert made.dtype == expected.dtype
    assert made.weak_type == expected.weak_type
    assert np.array_equal(made.value, expected)
    assert not made.requires_grad


@pytest.mark.parametrize("data", ["text", [1.0, [2.0]], object(), {"a": 1}, None, np.array([object()])])
def test_data_that_cannot_be_a_tensor(data):
    with pytest.raises(TypeError, match="cannot become a Tensor") as caught:
        tj.tensor(data)
    assert __file__ in str(caught.value)


def test_requires_grad_needs_an_inexact_dtype():
    with pytest.raises(TypeError, match="float or complex"):
        tj.tensor([1, 2], requires_grad=True)
    assert tj.tensor([1, 2], dtype=jnp.float32, requires_grad=True).requires_grad


def test_numpy_data_is_copied():
    data = np.ones(1000, "f")
    made = tj.tensor(data)
    data[:] = 5
    assert (made.numpy() == 1).all()


def test_attributes():
    x = tj.tensor(np.ones((2, 3), "f"))
    assert (x.shape, x.ndim, x.size, x.nbytes, x.itemsize, len(x)) == ((2, 3), 2, 6, 24, 4, 2)
    assert x.dtype == jnp.float32
    assert x.T.shape == (3, 2)
    assert x.mT.shape == (3, 2)
    assert x.device == jax.devices()[0]
    assert x.sharding == x.value.sharding
    assert tj.tensor(1.0, device=jax.devices()[0]).value.committed


def test_repr_shows_value_op_and_id():
    x = leaf([1.0, 2.0])
    assert repr(x) == f"Tensor([1., 2.], dtype=float32, requires_grad=True, id={x.id.number})"
    y = x * x
    assert repr(y) == f"Tensor([1., 4.], dtype=float32, op=Multiply, id={y.id.number})"


def test_not_called_directly():
    with pytest.raises(TypeError, match=r"tapejax\.tensor"):
        tj.Tensor([1.0])


# --- immutable -------------------------------------------------------------------------------------------


def test_item_assignment_names_at():
    x = leaf([1.0, 2.0])
    with pytest.raises(TypeError, match=r"x\.at\[i\]\.set"):
        x[0] = 3.0
    x_before = x
    x += 1.0
    assert x is not x_before


@pytest.mark.parametrize("name", ["value", "id", "requires_grad", "shape", "grad", "anything"])
def test_attributes_cannot_be_set(name):
    with pytest.raises(AttributeError):
        setattr(leaf(1.0), name, 1)


# --- nothing drops the tape silently -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [jnp.sin, np.sin, np.asarray, jnp.asarray, jnp.sum, np.add.reduce, lambda x: jnp.add(x, 1)],
)
def test_recorded_tensor_refuses_to_become_a_plain_array(function):
    with pytest.raises(TypeError):
        function(leaf([1.0, 2.0]))


def test_refusal_says_the_way_out():
    with pytest.raises(errors.TensorConversionError, match=r"\.value or \.detach\(\)") as caught:
        np.asarray(leaf([1.0]))
    assert __file__ in str(caught.value)


def test_unrecorded_tensor_converts():
    assert np.array_equal(np.asarray(tj.tensor([1.0, 2.0])), [1.0, 2.0])


@pytest.mark.parametrize("other", [2.0, 2, np.float32(2), np.full(2, 2.0, "f"), jnp.full(2, 2.0)])
@pytest.mark.parametrize("op", one_in(2, ["+", "-", "*", "/", "**", "@", "//", "%"], at_once=["-", "@"]))
def test_reflected_operators_reach_tensor(op, other):
    if op == "@" and np.ndim(other) == 0:
        pytest.skip("matmul needs arrays")
    value = np.asarray([1.5, 2.5], "f")
    x = leaf(value)
    got = eval(f"other {op} x", {"other": other, "x": x})
    expected = eval(f"other {op} x", {"other": jnp.asarray(other), "x": jnp.asarray(value)})
    assert isinstance(got, tj.Tensor)
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got.value, expected, rtol=1e-6)
    plain = eval(f"x {op} other", {"other": other, "x": x})
    expected = eval(f"x {op} other", {"other": jnp.asarray(other), "x": jnp.asarray(value)})
    np.testing.assert_allclose(plain.value, expected, rtol=1e-6)


@pytest.mark.parametrize("other", ["text", [1.0, 2.0], (1.0, 2.0)])
def test_operand_of_a_wrong_kind(other):
    with pytest.raises(TypeError, match="convert it first"):
        leaf([1.0, 2.0]) + other


def test_unknown_operand_leaves_the_word_to_the_other():
    class Other:
        def __radd__(self, tensor):
            return "mine"

    assert leaf(1.0) + Other() == "mine"
    with pytest.raises(TypeError):
        leaf(1.0) + object()


def test_traced_tensor_says_why_it_has_no_number():
    def f(x):
        t = tj.tensor(x, requires_grad=True)
        with pytest.raises(errors.ConcreteValueError, match=r"jnp\.where or lax\.cond"):
            bool(t > 0)
        for convert in (float, int, bool, complex, np.asarray, lambda t: t.item(), lambda t: t.numpy()):
            with pytest.raises(TypeError):
                convert(t)
        return x

    jax.jit(f)(1.0)


# --- copies ---------------------------------------------------------------------------------------------------


def test_copies_of_a_result_keep_the_identity_and_a_deep_copy_of_a_leaf_does_not():
    x = leaf([1.0, 2.0])
    y = x * x
    same, deep, other = copy.copy(y), copy.deepcopy(y), copy.deepcopy(x)
    assert same.id == deep.id == y.id
    assert other.id != x.id
    assert other.is_leaf
    assert other.requires_grad
    assert np.array_equal(tj.backward(deep)[x], [2.0, 4.0])


def test_pickle_gives_a_new_leaf():
    x = leaf(np.arange(3, dtype="f"))
    loaded = pickle.loads(pickle.dumps(x))
    with pytest.raises(errors.TensorConversionError, match="given to pickle"):
        pickle.dumps(x * 1.0)
    with tj.no_grad():
        assert np.array_equal(pickle.loads(pickle.dumps(x * 1.0)).value, x.value)
    assert np.array_equal(loaded.value, x.value)
    assert loaded.requires_grad
    assert loaded.is_leaf
    assert loaded.id != x.id


def test_detach_and_stop_gradient():
    x = leaf(3.0)
    assert not x.detach().requires_grad
    assert x.detach().value is x.value
    y = x * tj.stop_gradient(x)
    assert tj.backward(y)[x] == 3.0
    tree = tj.stop_gradient({"a": x, "b": jnp.ones(2)})
    assert not tree["a"].requires_grad


def test_alias_shares_the_identity():
    x = leaf(3.0)
    y = x.alias() * x
    assert tj.backward(y)[x] == 6.0


def test_pytree_has_the_value_as_its_leaf():
    x = leaf([1.0, 2.0])
    leaves, structure = jax.tree_util.tree_flatten({"a": x})
    assert leaves[0] is x.value
    rebuilt = jax.tree_util.tree_unflatten(structure, leaves)["a"]
    assert isinstance(rebuilt, tj.Tensor)
    assert rebuilt.requires_grad
    assert rebuilt.id != x.id


def test_tensors_pass_through_jit():
    @jax.jit
    def f(t):
        return t * 2.0

    with pytest.raises(errors.TensorConversionError, match=r"tapejax\.jit"):
        f(leaf([1.0, 2.0]))
    with tj.no_grad():
        out = f(leaf([1.0, 2.0]))
    assert isinstance(out, tj.Tensor)
    assert np.array_equal(out.value, [2.0, 4.0])


# --- operators and methods, values and gradients against jax -------------------------------------------------------

A = np.array([[0.5, -1.5, 2.5], [3.5, 0.25, -0.75]], "f")
METHOD_CALLS = {
    "sum": lambda x: x.sum(axis=0),
    "sum-positional": lambda x: x.sum(1),
    "mean": lambda x: x.mean(axis=-1, keepdims=True),
    "max": lambda x: x.max(axis=1),
    "min": lambda x: x.min(),
    "prod": lambda x: x.prod(axis=0),
    "var": lambda x: x.var(axis=0),
    "std": lambda x: x.std(),
    "reshape": lambda x: x.reshape(3, 2),
    "reshape-tuple": lambda x: x.reshape((-1,)),
    "transpose": lambda x: x.transpose(1, 0),
    "T": lambda x: x.T,
    "astype": lambda x: x.astype(jnp.float16),
    "squeeze": lambda x: x[None].squeeze(0),
    "ravel": lambda x: x.ravel(),
    "flatten": lambda x: x.flatten(),
    "clip": lambda x: x.clip(-1.0, 1.0),
    "clip-keywords": lambda x: x.clip(min=-1.0, max=1.0),
    "dot": lambda x: x.dot(x.T),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "repeat": lambda x: x.repeat(2, axis=1),
    "take": lambda x: x.take(np.array([0, 2]), axis=1),
    "cumsum": lambda x: x.cumsum(axis=1),
    "cumprod": lambda x: x.cumprod(axis=1),
    "conj": lambda x: x.conj(),
    "trace": lambda x: x.trace(),
    "diagonal": lambda x: x.diagonal(),
    "ptp": lambda x: x.ptp(),
    "real": lambda x: x.real,
    "sort": lambda x: x.sort(axis=0),
    "neg": lambda x: -x,
    "pos": lambda x: +x,
    "abs": lambda x: abs(x),
    "pow-int": lambda x: x**3,
    "pow-zero": lambda x: x**0,
    "divmod": lambda x: divmod(x, 0.7)[1],
    "matmul": lambda x: x @ x.T,
    "getitem-int": lambda x: x[1],
    "getitem-negative": lambda x: x[-1, -2],
    "getitem-slice": lambda x: x[:, 1:],
    "getitem-step": lambda x: x[::-1, ::2],
    "getitem-empty": lambda x: x[:, 2:1],
    "getitem-new": lambda x: x[:, None, ..., 0],
    "getitem-array": lambda x: x[np.array([1, 0, 1])],
    "getitem-mixed": lambda x: x[np.array([0, 1]), 1:],
    "getitem-mask": lambda x: x[A > 0],
    "getitem-row-mask": lambda x: x[np.array([True, False])],
    "getitem-ellipsis": lambda x: x[..., 1:3],
    "at-set": lambda x: x.at[0].set(9.0),
    "at-add": lambda x: x.at[:, 1:].add(x[:, :2]),
    "at-mul": lambda x: x.at[np.array([0, 1]), np.array([1, 1])].multiply(2.0),
    "at-max": lambda x: x.at[1].max(0.0),
    "at-get": lambda x: x.at[np.array([0])].get(),
    "iteration": lambda x: sum(row * float(i + 1) for i, row in enumerate(x)),
}


@pytest.mark.parametrize("name", one_in(2, METHOD_CALLS))
def test_method_value_and_gradient_equal_jax(name):
    f = METHOD_CALLS[name]
    x = leaf(A)
    got = f(x)
    seed = np.random.default_rng(0).standard_normal(got.shape)
    expected, (gradient,) = by_jax.vjp(f, jnp.asarray(A), ct=lambda out: jnp.asarray(seed, out.dtype))
    assert got.dtype == expected.dtype
    assert got.weak_type == expected.weak_type
    np.testing.assert_allclose(np.asarray(got.value, "f"), np.asarray(expected, "f"), rtol=1e-6)
    np.testing.assert_allclose(tj.backward(got, seed.astype(expected.dtype))[x], gradient, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("op", ["==", "!=", "<", "<=", ">", ">="])
def test_comparisons(op):
    x = leaf(A)
    got = eval(f"x {op} 0.5", {"x": x})
    assert got.dtype == bool
    assert not got.requires_grad
    assert np.array_equal(got.value, eval(f"x {op} 0.5", {"x": A}))


@pytest.mark.parametrize("name", ["argmax", "argmin", "argsort", "all", "any"])
def test_methods_with_no_gradient(name):
    got = getattr(leaf(A), name)()
    assert not got.requires_grad
    assert np.array_equal(got.value, getattr(jnp.asarray(A), name)())


@pytest.mark.parametrize("index", [2, -3, (0, 3), (slice(None), 7), (0, 0, 0), "a", 1.5, {}])
def test_bad_index(index):
    with pytest.raises((IndexError, TypeError)):
        leaf(A)[index]


def test_list_as_index_means_an_array():
    x = leaf(A)
    assert np.array_equal(x[[1, 0, 1]].value, A[[1, 0, 1]])


def test_every_integer_index_is_one_plan():
    from tapejax.ops.operators import _getitem

    x = leaf(np.arange(50, dtype="f"))
    x[0], x[1:3]
    before = len(_getitem.plans)
    for i in range(40):
        x[i]
        x[i : i + 2]
    assert len(_getitem.plans) == before


def test_python_scalars_do_not_make_new_plans():
    from tapejax.ops.operators import OPS

    x = leaf(A)
    x * 1.5
    before = len(set(OPS["mul"].plans.values()))
    for i in range(20):
        x * (1.5 + i)
        (1.5 + i) * x
    assert len(set(OPS["mul"].plans.values())) <= before + 1


@pytest.mark.parametrize(
    "scalar", [2, 2.0, True, 2j, np.float32(2), np.float16(2), np.int8(2), np.array(2.0, np.float16)]
)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.complex64])
def test_promotion_and_weak_types_are_jax_own(scalar, dtype):
    x = tj.tensor([1, 2], dtype=dtype)
    got, expected = x * scalar, x.value * scalar
    assert got.dtype == expected.dtype
    assert got.weak_type == expected.weak_type
    assert got.shape == expected.shape


@pytest.mark.parametrize(
    "call",
    [
        jnp.sin, jax.lax.sin, jax.nn.relu, jax.scipy.special.erf, jnp.sum, jnp.linalg.norm, lambda x: jnp.concatenate([x, x]),
        lambda x: jnp.einsum("i,i", x, x), lambda x: jnp.where(True, x, x),
    ],
)  # fmt: skip
def test_a_function_of_jax_says_where_tensors_go(call):
    with pytest.raises(errors.TensorConversionError, match="Tensors go to the same function of tapejax") as refused:
        call(leaf([1.0, 2.0]))
    assert "test_tensor.py" in refused.value.at


@pytest.mark.parametrize(
    "call",
    [
        np.sin,
        np.add.reduce,
        lambda x: np.multiply.outer(np.ones(2), x),
        lambda x: np.add(np.ones(2), x, out=np.ones(2)),
    ],
)
def test_a_ufunc_of_numpy_says_where_tensors_go(call):
    with pytest.raises(tj.TapejaxError, match=r"tapejax\.numpy\.\w+ is recorded"):
        call(leaf([1.0, 2.0]))


def test_operators_of_numpy_step_back():
    x, array = leaf([1.0, 2.0]), np.array([3.0, 4.0], "f")
    for found, want in [(array + x, [4, 6]), (np.float32(2) * x, [2, 4]), (array - x, [2, 2]), (array @ x, 11)]:
        assert isinstance(found, tj.Tensor)
        np.testing.assert_array_equal(found.value, want)
    np.testing.assert_array_equal((array == x).value, [False, False])
    assert (array / x).backward()[x].tolist() == [-3.0, -1.0]


def test_its_type_prints_like_a_class(capsys):
    x = leaf([1.0, 2.0])
    printed = "<class 'tapejax.Tensor'>"
    assert repr(type(x)) == str(type(x)) == f"{type(x)}" == printed
    whole = []
    jax.tree.map(lambda t: whole.append(type(t)), {"recorded": x * 2})
    assert [repr(kind) for kind in whole] == [printed]
    jax.jit(lambda v: print(type(x), type(tj.tensor(v))))(1.0)
    jax.debug.print("{kind}", kind=type(x))
    jax.effects_barrier()
    assert capsys.readouterr().out.split("\n") == [f"{printed} {printed}", printed, ""]
