"""Gradients: insert and retrieve, accumulate on collision, refuse what does not fit."""

import jax
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
    tree = grads.tree(params, zeros=True)
    assert np.array_equal(tree["w"], [3.0, 3.0])
    assert tree["b"][0] == 0.0


def test_tree_refuses_what_was_never_on_the_tape():
    params = {"w": tj.tensor([1.0, 2.0], requires_grad=True), "b": [tj.tensor(0.0, requires_grad=True)]}
    grads = tj.backward((params["w"] * 3.0).sum() + params["b"][0])
    assert grads.tree(params)["b"] == [1.0]
    rebuilt = jax.tree.map(lambda value: 0.5 * value, params)
    with pytest.raises(errors.MissingGradientError, match=r"at \['b'\]\[0\]: .*it was not used") as caught:
        grads.tree(rebuilt)
    assert "very tensors that the loss was computed from" in caught.value.fix
    assert np.array_equal(grads.tree(rebuilt, zeros=True)["w"], [0.0, 0.0])
    with pytest.raises(errors.MissingGradientError, match="asked for others only"):
        tj.backward(params["w"].sum() + params["b"][0], wrt=params["w"]).tree(params)


def test_what_needs_no_gradient_has_zeros():
    x = tj.tensor([2.0], requires_grad=True)
    params = {"x": x, "frozen": tj.tensor([3.0]), "steps": tj.tensor([4]), "mean": jnp.ones(2)}
    tree = tj.backward(x * params["frozen"]).tree(params)
    assert tree["x"] == 3.0
    assert [tree[name].tolist() for name in ("frozen", "steps", "mean")] == [[0.0], [0], [0.0, 0.0]]


def test_printed_with_names_and_values():
    weights = tj.tensor([1.0, 2.0], requires_grad=True)
    layers = [{"b": tj.tensor(0.5, requires_grad=True)}]
    long = tj.tensor(jnp.arange(100.0), requires_grad=True)
    grads = tj.backward((weights * 3.0).sum() * layers[0]["b"] + long.sum(), wrt=[weights, layers, long])
    lines = {line.split()[0]: line.split()[2:] for line in repr(grads).splitlines()[1:]}
    assert repr(grads).startswith("Gradients of 3 tensors\n")
    assert lines["weights"] == ["float32[2]", "[1.5,", "1.5]"]
    assert lines["layers[0].b"] == ["float32[]", "9."]
    assert lines["long"] == ["float32[100]", "[1.,", "1.,", "...,", "1.,", "1.]"]


def test_a_long_print_is_cut_short():
    grads = tj.Gradients()
    for _ in range(100):
        grads.insert(tj.TensorId(), 1.0)
    assert repr(grads).endswith("and 40 more")
    assert repr(tj.Gradients()) == "Gradients of 0 tensors"


def test_printed_while_it_is_traced():
    def step(value):
        x = tj.tensor(value, requires_grad=True)
        assert "float32[2]" in repr(tj.backward(x * x))
        return x.value

    jax.jit(step)(jnp.ones(2))


def test_a_frozen_tensor_is_told_how_to_get_a_gradient():
    frozen, x = tj.tensor([1.0]), tj.tensor([2.0], requires_grad=True)
    grads = (frozen * x).backward()
    with pytest.raises(KeyError, match="requires_grad=True, or use grads"):
        grads[frozen]
    with pytest.raises(KeyError) as caught:
        grads[tj.tensor([1])]
    assert "requires_grad=True" not in str(caught.value)
