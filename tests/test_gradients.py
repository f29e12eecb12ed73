"""Gradients: insert and retrieve, accumulate on collision, refuse what does not fit."""

import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from tapejax import errors


def test_insert_and_retrieve():
    grads, key = tj.Gradients(), tj.TensorId()
    grads.insert(key, [1.0, 2.0])
    assert np.array_equal(grads.get(key), [1.0, 2.0])
    assert np.array_equal(grads[key], [1.0, 2.0])


def test_collision_sums():
    grads, key = tj.Gradients(), tj.TensorId()
    grads.insert(key, [1.0, 2.0])
    grads.insert(key, [3.0, 4.0])
    assert np.array_equal(grads.get(key), [4.0, 6.0])
    assert len(grads) == 1


@pytest.mark.parametrize(
    "second", [np.ones(3, "f"), np.ones((2, 1), "f"), np.ones((), "f"), np.ones(2, np.float16), np.ones(2, np.int32)]
)
def test_mismatch_is_an_error_and_loses_nothing(second):
    grads, key = tj.Gradients(), tj.TensorId()
    grads.insert(key, np.ones(2, "f"))
    with pytest.raises(errors.GradientMismatchError, match=r"cannot be added"):
        grads.insert(key, second)
    assert np.array_equal(grads[key], [1.0, 1.0])


def test_insert_by_tensor_checks_the_tensor():
    x = tj.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(errors.GradientMismatchError, match="does not fit"):
        tj.Gradients().insert(x, [1.0])


def test_remove_takes_it_out():
    grads, key = tj.Gradients(), tj.TensorId()
    grads.insert(key, 1.0)
    assert grads.remove(key) == 1.0
    assert grads.remove(key) is None
    assert key not in grads


def test_mapping_by_tensor_or_id():
    x = tj.tensor(1.0, requires_grad=True)
    grads = tj.Gradients()
    grads.insert(x, 2.0)
    assert x in grads
    assert x.id in grads
    assert grads[x] is grads[x.id]
    assert list(grads) == [x.id]
    assert grads.items() == [(x.id, grads[x])]
    assert "float32[]" in repr(grads)


def test_key_of_a_wrong_kind():
    with pytest.raises(TypeError, match="Tensor or TensorId"):
        tj.Gradients().get(3)
    assert 3 not in tj.Gradients()


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.complex64])
def test_any_dtype_accumulates_in_its_own(dtype):
    grads, key = tj.Gradients(), tj.TensorId()
    for _ in range(3):
        grads.insert(key, jnp.ones(4, dtype))
    assert grads[key].dtype == dtype
    assert (grads[key] == 3).all()


def test_tree_has_the_structure_of_the_parameters():
    params = {"w": tj.tensor([1.0, 2.0], requires_grad=True), "b": [tj.tensor(0.0, requires_grad=True)]}
    grads = tj.backward((params["w"] * 3.0).sum())
    tree = grads.tree(params)
    assert np.array_equal(tree["w"], [3.0, 3.0])
    assert tree["b"][0] == 0.0


def test_a_frozen_tensor_is_told_how_to_get_a_gradient():
    frozen, x = tj.tensor([1.0]), tj.tensor([2.0], requires_grad=True)
    grads = (frozen * x).backward()
    with pytest.raises(KeyError, match="requires_grad=True, or use grads"):
        grads[frozen]
    with pytest.raises(KeyError) as caught:
        grads[tj.tensor([1])]
    assert "requires_grad=True" not in str(caught.value)
