"""Every error: the builtin that people expect, four parts, and a way to another process."""

import inspect
import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive

import tapejax as tj
from tapejax import errors
from tapejax.rules import rule

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, tj.TapejaxError)]
BUILTINS = {
    "RequiresGradError": ValueError, "TapeError": RuntimeError, "ConsumedTapeError": RuntimeError,
    "WrongTapeError": RuntimeError, "CutGradientError": RuntimeError, "SeedError": ValueError, "BackwardError": RuntimeError,
    "GradientMismatchError": ValueError, "MissingGradientError": KeyError, "TensorConversionError": TypeError,
    "GivenToJaxError": TypeError, "ArrayAttributeError": AttributeError,
    "ImmutableTensorError": TypeError, "UnknownAttributeError": AttributeError, "ConcreteValueError": TypeError, "DtypeError": TypeError,
    "ArgumentError": (TypeError, ValueError), "IndexingError": IndexError, "MissingRule": NotImplementedError,
    "RefusedPrimitive": NotImplementedError, "RuleSignatureError": TypeError, "UnknownLengthError": ValueError,
}  # fmt: skip
BASES = {"TapejaxError", "RuleError", "WantsArraysError"}


def leaf(data=(1.0, 2.0)):
    return tj.tensor(list(data), requires_grad=True)


def unknown_primitive(x):
    primitive = Primitive("nobody_knows_me")
    primitive.def_impl(lambda x: x)
    primitive.def_abstract_eval(lambda x: x)
    return primitive.bind(x)


def newton(a):
    return lax.while_loop(lambda s: jnp.abs(s * s - a) > 1e-6, lambda s: (s + a / s) / 2, a)


class Failing(tj.TapeAction):
    def __init__(self, tensor):
        self.inputs = self.outputs = (tensor.id,)

    def backward(self, grads):
        raise ZeroDivisionError("never")


# --- one way to meet each error, as a user would --------------------------------------------------


def requires_grad():
    tj.backward(tj.tensor(1.0))


def tape():
    parent, child = tj.Tape(), tj.Tape()
    parent.merge([child])


def consumed_tape():
    y = leaf() * 2
    tj.backward(y)
    tj.backward(y)


def wrong_tape():
    with tj.Tape():
        y = leaf() * 2
    tj.backward(y)


def seed():
    tj.backward(leaf() * 2, seed=np.ones(3, "f"))


def backward():
    x = leaf()
    tj.record(Failing(x))
    tj.backward(x)


def gradient_mismatch():
    tj.Gradients().insert(leaf(), np.ones(3, "f"))


def missing_gradient():
    tj.Gradients()[leaf()]


def tensor_conversion():
    np.asarray(leaf())


def cut_gradient():
    x = leaf()
    tj.backward((jax.device_put(x) + x).sum())


def given_to_jax():
    jnp.asarray(leaf())


def immutable_tensor():
    leaf()[0] = 1.0


def unknown_attribute():
    leaf().zero_grad()


def array_attribute():
    leaf().addressable_shards


def indexing():
    leaf()[5]


def concrete_value():
    jax.jit(lambda v: tj.tensor(v).item())(1.0)


def dtype():
    tj.tensor([1, 2], requires_grad=True)


def argument():
    tj.lift(3)


def missing_rule():
    tj.lift(unknown_primitive)(leaf())


def missing_rule_when_refused():
    tj.lift(unknown_primitive, foreign="error")(leaf())


def refused_primitive():
    like = jax.ShapeDtypeStruct((2,), jnp.float32)
    tj.lift(lambda x: jax.pure_callback(lambda v: v, like, x))(leaf())


def rule_signature():
    rule("no_such_primitive", saves="z")(lambda ct, out, x: (ct,))


def unknown_length():
    jax.jit(lambda v: tj.lift(newton)(tj.tensor(v, requires_grad=True)).value)(2.0)


WAYS = [
    cut_gradient, requires_grad, tape, consumed_tape, wrong_tape, seed, backward, gradient_mismatch, missing_gradient,
    tensor_conversion, given_to_jax, immutable_tensor, unknown_attribute, array_attribute, indexing, concrete_value, dtype, argument, missing_rule,
    missing_rule_when_refused, refused_primitive, rule_signature, unknown_length,
]  # fmt: skip


def meet(way):
    with pytest.raises(tj.TapejaxError) as caught:
        way()
    return caught.value


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_error_says_what_and_where(way):
    error = meet(way)
    text = str(error)
    assert text.splitlines()[0] == error.what.splitlines()[0]
    assert error.at
    assert __file__ in error.at, "the user's line is in this file"
    for part in (error.at, error.action, error.fix):
        assert part is None or part in text


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_error_survives_pickling(way):
    error = meet(way)
    loaded = pickle.loads(pickle.dumps(error))
    assert type(loaded) is type(error)
    assert str(loaded) == str(error)
    assert (loaded.what, loaded.at, loaded.action, loaded.fix) == (error.what, error.at, error.action, error.fix)


def test_every_error_of_the_core_is_met_above():
    met = {type(meet(way)).__name__ for way in WAYS}
    assert met == set(BUILTINS)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_class_is_also_the_builtin_people_expect(cls):
    assert cls.__doc__
    expected = BUILTINS.get(cls.__name__, ())
    assert all(issubclass(cls, one) for one in (expected if isinstance(expected, tuple) else (expected,)))
    also = [base for base in cls.__mro__ if base.__module__ == "builtins"]
    assert cls.__name__ in BASES or also != [Exception, BaseException, object]


def test_parts_stand_in_their_own_lines():
    error = errors.SeedError("it went wrong", at="train.py:41", action="%7 = foo %3", fix="do it right")
    assert str(error) == "it went wrong\n  at      train.py:41\n  action  %7 = foo %3\n  fix     do it right"


def test_a_key_error_shows_its_message_and_not_its_repr():
    assert "\n" in str(meet(missing_gradient))


def test_an_error_keeps_no_program_alive():
    assert isinstance(meet(refused_primitive).action, str)


def test_what_a_failed_pass_keeps_is_named_in_another_process():
    loaded = pickle.loads(pickle.dumps(meet(backward)))
    assert loaded.failed == loaded.actions[-1]
    assert loaded.failed.startswith("Failing(TensorId(")
    assert loaded.gradients is None
    assert loaded.index == 0


def test_the_line_is_that_of_the_call():
    line = sys._getframe().f_lineno + 2
    with pytest.raises(tj.TapejaxError) as caught:
        np.asarray(leaf())
    assert caught.value.at == f"{__file__}:{line}"


@pytest.mark.parametrize(
    ("call", "action"),
    [
        (lambda x: x @ x, "matmul of float32[2,3] float32[2,3]"),
        (lambda x: x + np.ones(4, "f"), "add of float32[2,3] float32[4]"),
        (lambda x: x.sum(axis=7), "sum of float32[2,3]"),
        (lambda x: x.reshape(5), "reshape of float32[2,3]"),
        (lambda x: x.at[0].set(np.ones(5, "f")), "at_set of float32[2,3]"),
        (lambda x: tj.numpy.concatenate([x, x.T]), "tapejax.numpy.concatenate of float32[2,3] float32[3,2]"),
        (lambda x: tj.lift(lambda x: tj.lift(jnp.dot, name="inner")(x, x), name="outer")(x), "outer of float32[2,3]"),
    ],
)
def test_an_error_of_jax_says_which_op_and_where(call, action):
    with pytest.raises((TypeError, ValueError)) as caught:
        call(tj.tensor(np.ones((2, 3), "f"), requires_grad=True))
    error = caught.value
    if action.startswith("outer"):  # what a function of the user's raised stays what it is
        (told,) = [note for note in error.__notes__ if note.startswith("  at ")]
    else:
        assert isinstance(error, tj.TapejaxError)
        told = str(error)
    assert __file__ in told
    assert f"action  {action}" in told


def matrix():
    return tj.tensor(np.ones((2, 3), "f"), requires_grad=True)


BAD = {  # a call, the builtin that people expect, and what the message says
    "tape": (lambda: tj.backward(leaf(), tape="t"), TypeError, "tape='t' is not a Tape"),
    "wrt": (lambda: tj.backward(leaf().sum(), wrt=3), TypeError, "wrt takes Tensors"),
    "seed": (lambda: tj.backward(leaf(), object()), ValueError, "is no seed"),
    "ragged seed": (lambda: tj.backward(leaf(), [[1.0], [1.0, 2.0]]), ValueError, "is no seed"),
    "complex seed": (lambda: tj.backward(leaf().sum(), 1j), ValueError, "the seed is complex64"),
    "detail": (lambda: tj.Tape(detail=3), ValueError, "unknown detail 3"),
    "exit": (lambda: tj.Tape().__exit__(None, None, None), RuntimeError, "had not been entered"),
    "merge": (lambda: tj.Tape().merge([1]), TypeError, "merge takes tapes, not int"),
    "merge of a tape": (lambda: tj.Tape().merge(tj.Tape()), RuntimeError, "was not forked"),
    "action": (lambda: tj.Tape()[5], IndexError, "no action 5"),
    "action by name": (lambda: tj.Tape()["a"], TypeError, "'a' is no number"),
    "no_grad of a function": (lambda: tj.no_grad(leaf), TypeError, "with parentheses"),
    "no_grad of a number": (lambda: tj.no_grad()(3), TypeError, "wraps a function, not int"),
    "large integer": (lambda: tj.tensor(2**40), TypeError, "cannot become a Tensor"),
    "device": (lambda: tj.tensor(1.0, device="cpu:99"), ValueError, "device='cpu:99'"),
    "gradient": (lambda: tj.Gradients().insert(tj.TensorId(), "abc"), ValueError, "a str is no gradient"),
    "gradients by name": (lambda: tj.Gradients()["a"], TypeError, "filed by Tensor"),
    "map": (lambda: tj.Gradients().map(3), TypeError, "map takes a function"),
    "lift": (lambda: tj.lift(3), TypeError, "lift takes a function"),
    "lift's name": (lambda: tj.lift(jnp.sin, name=3), TypeError, "a string"),
    "static names": (lambda: tj.lift(jnp.sum, static_argnames=3), TypeError, "static_argnames=3"),
    "static positions": (lambda: tj.jit(jnp.sum, static_argnums="a"), TypeError, "static_argnums='a'"),
    "jit": (lambda: tj.jit(3), TypeError, "not int"),
    "checkpoint": (lambda: tj.checkpoint(3, leaf()), TypeError, "not int"),
    "argnums": (lambda: tj.grad(jnp.sin, argnums="a"), TypeError, "argnums='a'"),
    "axis by name": (lambda: matrix().sum(axis="a"), TypeError, "an axis is a number"),
    "axis": (lambda: matrix().max(axis=7), ValueError, "of 2 axes the first is 0, the last -1"),
    "two axes": (lambda: matrix().swapaxes(0, 7), IndexError, "of 2 axes the first is 0"),
    "float axis": (lambda: matrix().mean(axis=1.0), TypeError, "integers"),
    "dtype": (lambda: matrix().sum(dtype="florp"), TypeError, "jnp.float32"),
    "astype": (lambda: matrix().astype("florp"), TypeError, "'florp' is no dtype"),
    "reshape": (lambda: matrix().reshape(4, 4), TypeError, "one of them may be -1"),
    "reshape by name": (lambda: matrix().reshape("a"), TypeError, "'a' is no integer"),
    "reshape to None": (lambda: matrix().reshape(None), TypeError, "None is no integer"),
    "transpose": (lambda: matrix().transpose(0, 0), TypeError, "name every axis once"),
    "transpose by name": (lambda: matrix().transpose("a"), TypeError, "'a' is no integer"),
    "keyword": (lambda: matrix().sum(axes=0), TypeError, "axes"),
    "shapes": (lambda: matrix() + np.ones(4, "f"), ValueError, "counted from the last axis"),
    "matmul": (lambda: matrix() @ matrix(), TypeError, "must have one size"),
    "float": (lambda: float(matrix()), TypeError, "float() of a Tensor of float32[2, 3]"),
    "truth": (lambda: bool(matrix()), ValueError, "x.any()"),
    "item": (lambda: matrix().item(), ValueError, "item() of a Tensor"),
    "item's place": (lambda: matrix().item(99), IndexError, "index 99"),
    "index": (lambda: [1, 2][matrix()], TypeError, "an index of a Tensor"),
    "len": (lambda: len(matrix().sum()), TypeError, "no dimensions"),
    "iteration": (lambda: iter(matrix().sum()), TypeError, "no dimensions"),
    "slice": (lambda: matrix()[0.5:], TypeError, "0.5 is no integer"),
    "step": (lambda: matrix()[::0], ValueError, "the step of a slice is 0"),
    "ellipses": (lambda: matrix()[..., ...], IndexError, "more than one"),
    "indices": (lambda: matrix()[np.array([0, 1, 0]), np.array([0, 1])], ValueError, "(3,), (2,)"),
    "mode": (lambda: matrix().at[0].set(1, mode="zz"), ValueError, "zz"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_call_is_answered_in_our_words(case):
    call, builtin, text = BAD[case]
    with pytest.raises(builtin) as caught:
        call()
    assert isinstance(caught.value, tj.TapejaxError)
    assert __file__ in caught.value.at
    assert text in str(caught.value)
