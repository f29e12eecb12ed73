"""Indexing: NumPy says what an index picks and which one is refused, jax what flows back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from tapejax import errors
from tests import by_jax
from tests.some import one_in

A = np.arange(6, dtype="f").reshape(2, 3)
B = np.arange(24, dtype="f").reshape(2, 3, 4)
MASK = np.array([[True, False, True], [False, True, False]])
ones = lambda *shape: np.ones(shape, bool)
AS = {
    "numpy": lambda part: part,
    "jax": lambda part: jnp.asarray(part) if isinstance(part, np.ndarray) else part,
    "Tensor": lambda part: tj.tensor(part) if isinstance(part, np.ndarray) else part,
}


def leaf(value):
    return tj.tensor(value, requires_grad=True)


def converted(index, how):
    return tuple(map(AS[how], index)) if isinstance(index, tuple) else AS[how](index)


# --- masks ------------------------------------------------------------------------------------------------

MASKS = [
    (A, MASK), (A, MASK[:, 0]), (A, (slice(None), MASK[0])), (A, (MASK[:, 0], 1)), (A, (..., MASK[0])), (A, (None, MASK)),
    (A, (MASK[:, 0], MASK[1])), (B, MASK), (B, (MASK, 0)), (B, (MASK, slice(1, 3))), (B, (0, ones(3, 4))), (B, (..., ones(3, 4))),
    (B, (MASK, [0, 1, 2])), (A, ~ones(2, 3)), (A, ~ones(2)), (A, np.array(True)), (A, np.array(False)), (A, np.bool_(True)), (A, [True, False]),
]  # fmt: skip
WRONG_MASKS = [
    (A, ones(3, 2)), (A, ones(3)), (A, ones(1)), (A, ones(1, 3)), (A, ones(2, 1)), (A, (slice(None), ones(2))), (A, (..., ones(2))),
    (A, ones(2, 3, 1)), (A, (MASK, 0)), (A, (MASK[:, 0], ones(2))), (B, (0, ones(4, 3))), (B, (None, ones(3, 2))), (B, (..., MASK)),
    (A, [True, False, True]),
]  # fmt: skip


@pytest.mark.parametrize("how", AS)
@pytest.mark.parametrize(("array", "index"), MASKS)
def test_mask_picks_what_numpy_picks(array, index, how):
    assert np.array_equal(leaf(array)[converted(index, how)].value, array[index])


@pytest.mark.parametrize("how", AS)
@pytest.mark.parametrize(("array", "index"), WRONG_MASKS)
def test_mask_of_another_shape_is_refused(array, index, how):
    with pytest.raises(IndexError):
        array[index]
    for use in (
        lambda x, i: x[i],
        lambda x, i: x.at[i].set(0.0),
        lambda x, i: x.at[i].add(1.0),
        lambda x, i: x.at[i].get(),
    ):
        with pytest.raises(errors.IndexingError, match="mask") as caught:
            use(leaf(array), converted(index, how))
        assert __file__ in caught.value.at
        assert str(array.shape) in caught.value.what


@pytest.mark.parametrize("name", one_in(2, ["set", "add", "multiply", "max"]))
@pytest.mark.parametrize(
    ("index", "value"), [(MASK, 2.0), (MASK, [1.0, 2.0, 3.0]), ((0, MASK[0]), 2.0), (~ones(2, 3), 2.0)]
)
def test_change_by_mask(name, index, value):
    change = lambda x: getattr(x.at[index], name)(jnp.asarray(value))
    expected, (gradient,) = by_jax.vjp(change, jnp.asarray(A), ct=lambda out: jnp.asarray(A))
    x = leaf(A)
    got = change(x)
    assert np.array_equal(got.value, expected)
    assert np.array_equal(tj.backward(got, A)[x], gradient)


# --- numbers ----------------------------------------------------------------------------------------------

OUT_OF_RANGE = [
    (2, 2, 0), (-3, -3, 0), ((0, 3), 3, 1), ([0, 2], 2, 0), ([-3], -3, 0), (np.array([5, 0]), 5, 0), (np.array(-7), -7, 0),
    ((0, np.array([3])), 3, 1), ((np.array([0, 1]), np.array([0, 3])), 3, 1), ((..., np.array([4])), 4, 1), (np.array([2**33]), 2**33, 0),
    (np.array([3], np.uint8), 3, 0), ((None, np.array([[0], [9]])), 9, 0), (range(3), 2, 0),
]  # fmt: skip


@pytest.mark.parametrize("how", AS)
@pytest.mark.parametrize(("index", "number", "axis"), OUT_OF_RANGE)
def test_index_out_of_range_is_refused(index, number, axis, how):
    if number == 2**33 and how != "numpy":
        pytest.skip("jax has no such integers without x64")
    with pytest.raises(IndexError):
        A[index]
    with pytest.raises(
        errors.IndexingError, match=f"index {number} is out of bounds for axis {axis} with size"
    ) as caught:
        leaf(A)[converted(index, how)]
    assert __file__ in caught.value.at


@pytest.mark.parametrize("how", AS)
@pytest.mark.parametrize(
    "index", [[], (slice(None), []), np.array([-2, 1]), np.array([1], np.uint8), [[0, 1], [1, 0]], range(2)]
)
def test_arrays_in_range(index, how):
    x = leaf(A)
    got = x[converted(index, how)]
    assert np.array_equal(got.value, A[index])
    expected = jax.vjp(
        lambda a: a[np.asarray(index, int) if not isinstance(index, tuple) else (slice(None), np.zeros(0, int))],
        jnp.asarray(A),
    )
    assert np.array_equal(tj.backward(got)[x], expected[1](jnp.ones(got.shape))[0])


def test_index_that_is_yet_to_be_computed_is_checked():
    with pytest.raises(errors.IndexingError, match="index 4"):
        leaf(A)[tj.tensor([1, 2]) * 2]


def test_traced_index_is_clamped_as_in_jax():
    got = jax.jit(lambda i: leaf(A)[i].value)(jnp.array([0, 9]))
    assert np.array_equal(got, jnp.asarray(A)[jnp.array([0, 9])])


@pytest.mark.parametrize("index", [np.array([1.0]), np.array([1j]), 1.5, "a", {}, [[0, 1], [1]], [0.5]])
def test_what_is_no_index(index):
    with pytest.raises(TypeError) as caught:
        leaf(A)[index]
    assert isinstance(caught.value, tj.TapejaxError)
    assert __file__ in caught.value.at


OFTEN_ENOUGH = [np.array([5, 1]), -7]  # of the places; the others run with the slow tests
PLACES = [*OFTEN_ENOUGH, *(pytest.param(at, marks=pytest.mark.slow) for at in (np.array([-7, 0]), 5, 1, -1, (0, 9)))]


@pytest.mark.parametrize("index", PLACES)
@pytest.mark.parametrize("mode", ["drop", "clip", "fill", "promise_in_bounds"])
def test_at_does_what_its_mode_says(index, mode):
    if mode == "promise_in_bounds":
        index = 1
    for use in (
        lambda x: x.at[index].set(7.0, mode=mode),
        lambda x: x.at[index].add(7.0, mode=mode),
        lambda x: x.at[index].get(mode=mode),
    ):
        expected, (gradient,) = by_jax.vjp(use, jnp.asarray(A))
        x = leaf(A)
        got = use(x)
        np.testing.assert_array_equal(got.value, expected)
        np.testing.assert_array_equal(tj.backward(got)[x], gradient)


def test_at_without_a_mode_drops_arrays_as_jax_does_and_refuses_a_number():
    assert np.array_equal(leaf(A).at[np.array([1, 5])].set(7.0).value, jnp.asarray(A).at[np.array([1, 5])].set(7.0))
    with pytest.raises(errors.IndexingError, match="index 5"):
        leaf(A).at[5].set(7.0)


def test_bounds_of_a_slice_may_be_numbers_of_any_kind():
    x = leaf(A)
    for one in (np.int64(1), tj.tensor(1), jnp.array(1)):
        assert np.array_equal(x[one:].value, A[1:])
        assert np.array_equal(x.at[one:].set(0.0).value, jnp.asarray(A).at[1:].set(0.0))


@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize(
    "index",
    [
        (..., 0),
        (..., -1),
        (0, ...),
        (slice(1, 3), ..., 0),
        (None, 1),
        (..., None),
        (1, None, ..., 0),
        (slice(None), -1, 0),
    ],
    ids=str,
)
def test_ellipsis_and_new_axes(index, how):
    x = np.arange(24, dtype="f").reshape(4, 6, 1)
    ct = np.random.default_rng(0).standard_normal(x[index].shape).astype("f")
    value, pull = jax.vjp(lambda x: x[index], x)
    ours = (jax.jit if how == "jit" else lambda f: f)(lambda x: tj.vjp(lambda x: x[index], x)[1](ct)[0])
    for _ in range(2):  # the second time it is known
        np.testing.assert_array_equal(tj.tensor(x)[index].value, value)
        np.testing.assert_array_equal(ours(x), pull(ct)[0])


def test_numbers_in_an_index_are_part_of_the_program_where_nothing_else_can_come():
    wide, narrow = jnp.ones((4, 6)), jnp.ones((4, 1))
    names = lambda f, x: {eqn.primitive.name for eqn in jax.make_jaxpr(f)(x).eqns}
    assert "dynamic_slice" not in names(lambda x: tj.vjp(lambda x: x[..., 0], x)[0], wide)
    with tj.Tape() as tape:
        tj.tensor(narrow, requires_grad=True)[:, 0]
        for i in range(3):
            tj.tensor(wide, requires_grad=True)[..., i]
    first, *others = tape
    assert len(first.inputs) == 1
    assert len({action.plan for action in others}) == 1  # one for every number
    with pytest.raises(tj.errors.IndexingError, match="out of bounds"):
        tj.tensor(narrow)[..., 1]
