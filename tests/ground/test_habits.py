"""What people of another library write gets an answer, and nothing else is in its way."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from tapejax import errors
from tapejax.ground import habits


def matrix():
    return tj.tensor(np.ones((2, 3), "f"), requires_grad=True)


@pytest.mark.parametrize(
    ("call", "fix"),
    [
        (lambda x: x.grad, "grads[x]"),
        (lambda x: x.zero_grad(), "fresh gradients"),
        (lambda x: x.add_(1), "x = x + y"),
        (lambda x: x.clip_(0, 1), "x = x.clip(...)"),
        (lambda x: x.requires_grad_(), "requires_grad=True"),
        (lambda x: x.unsqueeze(0), "expand_dims"),
        (lambda x: x.numel(), "x.size"),
        (lambda x: x.cuda(), "device"),
        (lambda x: x.cpu(), "x.numpy()"),
    ],
)
def test_a_missing_attribute_says_what_to_write(call, fix):
    with pytest.raises(errors.UnknownAttributeError) as caught:
        call(matrix())
    assert isinstance(caught.value, AttributeError)
    assert fix in caught.value.fix
    assert __file__ in caught.value.at


def test_a_place_by_the_name_of_another_library():
    with pytest.raises(errors.ArgumentError) as caught:
        matrix().to("cuda")
    assert "jax.devices()" in caught.value.fix
    assert __file__ in caught.value.at


def test_the_table_is_of_what_neither_we_nor_jax_have():
    for name in habits.ATTRIBUTES:
        assert not hasattr(tj.Tensor, name), name
        assert not hasattr(jax.Array, name), name
        assert not hasattr(matrix(), name)


def test_what_is_unknown_to_all_fails_in_pythons_own_words():
    for name in ("nobody_knows", "_private_", "__jax_array__", "_repr_html_"):
        assert habits.of_attribute(name) is None
        with pytest.raises(AttributeError, match=f"^'Tensor' object has no attribute '{name}'$"):
            getattr(matrix(), name)
    x = matrix()
    assert copy.copy(x).id.number == x.id.number
    assert pickle.loads(pickle.dumps(x)).tolist() == copy.deepcopy(x).tolist() == x.tolist()


def test_an_attribute_error_within_a_property_is_not_hidden():
    def fails(x):
        raise AttributeError("from deep within")

    x = matrix()
    x.held = type("Failing", (), {"device": property(fails)})()
    with pytest.raises(AttributeError, match="from deep within"):
        x.device


@pytest.mark.parametrize(
    "call", [lambda x: x.mean(dim=0), lambda x: x.sum(axis=0, keepdim=True), lambda x: tj.numpy.max(x, dim=1)]
)
def test_keywords_of_torch(call):
    with pytest.raises(TypeError, match="axis= for dim=, keepdims= for keepdim="):
        call(matrix())


def test_view_takes_no_shape():
    for sizes in ((3, 2), ((3, 2),), (-1,)):
        with pytest.raises(errors.ArgumentError, match="reshape"):
            matrix().view(*sizes)
    assert matrix().view(jnp.int32).dtype == jnp.int32


def test_a_traced_function_gets_the_answer_too():
    for transform in (tj.jit, tj.grad):
        with pytest.raises(errors.UnknownAttributeError):
            transform(lambda x: x.unsqueeze(0))(matrix() if transform is tj.jit else jnp.ones(2))
