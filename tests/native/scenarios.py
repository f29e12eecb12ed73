"""Small programs, each of which says all that can be seen of it, as plain data.

python -m tests.native.scenarios [NAME ...]        # one JSON object per line: {"name": ..., "seen": ...}

The same is run with and without the C extension: test_same.py. A call takes the quick way only once its plan is known,
and a step only once its structure has come before. So everything here is done several times.
"""

# ruff: noqa: B023  # functions that are called at once

import asyncio
import collections
import contextlib
import contextvars
import copy
import enum
import faulthandler
import functools
import gc
import inspect
import json
import operator
import os
import pickle
import pydoc
import re
import sys
import threading
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np

import tapejax as tj
import tapejax.lax as tlax
import tapejax.nn as tnn
import tapejax.numpy as tnp
from tapejax import hooks
from tapejax.native import native
from tapejax.tensor.gradients import Gradients

SCENARIOS = {}
VISITS = 6
SECONDS = 40  # for one scenario: then its process ends, and says where it was


def scenario(function):
    assert function.__name__ not in SCENARIOS
    SCENARIOS[function.__name__] = function
    return function


def each(table):
    """One scenario for each entry of a table: the function gets its name and what is there."""

    def given(function):
        for name, entry in table.items():
            one = functools.partial(function, name, entry)
            one.__name__ = f"{function.__name__}[{name}]"
            scenario(one)
        return function

    return given


# --- what can be seen, as plain data ---------------------------------------------------------------------


def plain(thing):
    """Anything as lists, strings and numbers."""
    if thing is None or isinstance(thing, (bool, int, str)):
        return thing if type(thing) in (type(None), bool, int, str) else f"{type(thing).__name__} {thing!r}"
    if isinstance(thing, (float, complex)) and not isinstance(thing, np.generic):
        return repr(thing)
    if isinstance(thing, tj.Tensor):
        return tensor_seen(thing)
    if isinstance(thing, jax.core.Tracer):
        return f"tracer {thing.aval.str_short()}"
    if isinstance(thing, (jax.Array, np.ndarray, np.generic)):
        weak = " weak" * bool(getattr(thing, "weak_type", False))
        return f"{type(thing).__name__} {thing.dtype}{list(thing.shape)}{weak} {np.asarray(thing).tolist()!r}"
    if isinstance(thing, Gradients):
        return [[repr(id), plain(value)] for id, value in thing.items()]
    if isinstance(thing, tj.Tape):
        return [repr(thing), str(thing), *[plain(action) for action in thing]]
    if isinstance(thing, tj.TapeAction):
        return [repr(thing), thing.name(), thing.line, getattr(thing, "op", None)]
    if isinstance(thing, dict):
        return {str(key): plain(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        start = [] if type(thing) in (list, tuple) else [type(thing).__name__]
        return start + [plain(one) for one in thing]
    return repr(thing)


def about(tensor):
    """What is known of a Tensor without looking at its value."""
    weak = " weak" * tensor.weak_type
    flags = f"requires_grad={tensor.requires_grad} is_leaf={tensor.is_leaf}"
    return f"{type(tensor).__name__} {tensor.dtype}{list(tensor.shape)}{weak} {flags} size={tensor.size}"


def tensor_seen(tensor):
    start = about(tensor)
    value = attempt(lambda: tensor.value)
    producer = tensor.id.producer
    made_by = None if producer is None else [repr(producer), producer.line]
    return [start, plain(value), repr(tensor.id), made_by, f"afterwards is_leaf={tensor.is_leaf}"]


def attempt(function, *args, **kwargs):
    """The result, or all that can be seen of the error."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return error_seen(error)


def error_seen(error):
    frames, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename == __file__ and code is not attempt.__code__:
            frames.append(f"{code.co_name} {__file__}:{trace.tb_lineno}")
        trace = trace.tb_next
    parts = {name: str(getattr(error, name)) for name in ("at", "action", "fix") if hasattr(error, name)}
    cause = error.__cause__
    return {
        "error": type(error).__name__,
        "also": [kind.__name__ for kind in type(error).__mro__[1:-1]],
        "says": str(error),
        "notes": list(getattr(error, "__notes__", [])),
        "cause": None if cause is None else f"{type(cause).__name__}: {cause}",
        "frames": frames,
        **parts,
    }


class Names:
    """What differs from process to process, or moves with an edit of this file, by a name that does not."""

    def __init__(self, first_line):
        self.first_line, self.ids = first_line, {}

    def id(self, found):
        number = self.ids.setdefault(found[2], len(self.ids))
        return f"{found[1]}#{number}"

    def line(self, found):
        return f"line {int(found[1]) - self.first_line}"

    def text(self, text):
        text = re.sub(re.escape(__file__) + r":(\d+)", self.line, text)
        text = text.replace(ROOT, "")
        text = re.sub(r"0x[0-9a-f]{6,}", "0x", text)
        return re.sub(r"(%|TensorId\(|\bid=|tensor )(\d+)", self.id, text)

    def all(self, seen):
        if isinstance(seen, str):
            return self.text(seen)
        if isinstance(seen, list):
            return [self.all(one) for one in seen]
        if isinstance(seen, dict):
            return {self.text(key): self.all(value) for key, value in seen.items()}
        return seen


ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


def run(name):
    """What can be seen of one scenario. It starts with an empty tape."""
    function = SCENARIOS[name]
    tj.take()
    code = (function.func if isinstance(function, functools.partial) else function).__code__
    try:
        seen = plain(function())
    except Exception as error:
        seen = {"not caught": plain(error_seen(error))}
    seen = Names(code.co_firstlineno).all(seen)
    tj.take()
    return seen


# --- things that the scenarios are made of ------------------------------------------------------------------

DATA = np.array([0.5, -1.5, 2.0], "f")
MATRIX = np.linspace(-1.0, 1.0, 6, dtype="f").reshape(2, 3)
tanh = tj.lift(jnp.tanh)


def leaf(value=DATA, **options):
    return tj.tensor(value, requires_grad=True, **options)


def on_tape():
    """The tape that records here, as it is now."""
    return plain(tj.current_tape())


def network(n, x, w, b):
    h = n.tanh(x @ w + b)
    y = h * h - 0.5 * h
    return h, y, (y * y).sum()


def parameters(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"x": (2, 3), "w": (3, 3), "b": (3,)}
    return {name: leaf(rng.standard_normal(shape).astype("f")) for name, shape in shapes.items()}


@jax.jit
def by_jax(x, w, b):
    return jax.value_and_grad(lambda *args: network(jnp, *args)[2], argnums=(0, 1, 2))(x, w, b)


def as_jax(loss, grads, p):
    """Whether the numbers are jax's; test_same.py wants no False."""
    value, expected = by_jax(*[one.value for one in p.values()])
    pairs = [(grads.get(one), by) for one, by in zip(p.values(), expected)]
    close = [np.allclose(got, by, rtol=1e-4, atol=1e-5) for got, by in pairs if got is not None]
    return {"as jax": bool(np.allclose(loss.value, value, rtol=1e-5) and all(close))}


class Note(tj.TapeAction):
    """An action of the user's."""

    def __init__(self, text, tensor=None, seen=None):
        self.text, self.seen = text, [] if seen is None else seen
        if tensor is not None:
            self.inputs = self.outputs = (tensor.id,)

    def name(self):
        return self.text

    def backward(self, grads):
        self.seen.append(f"{self.text}: {[repr(id) for id in grads]}")


class Small(int):
    pass


class Real(float):
    pass


class Axis(enum.IntEnum):
    first, second = 0, 1


class Mine:
    """An operand that knows what to do with a Tensor."""

    def __radd__(self, other):
        return f"Mine + {type(other).__name__}"

    def __rmul__(self, other):
        raise ZeroDivisionError("not today")

    def __lt__(self, other):
        return "Mine <"

    def __gt__(self, other):
        return "Mine >"


class AsArray:
    def __array__(self, dtype=None, copy=None):
        return np.ones(3, dtype or "f")


class AsJax:
    def __jax_array__(self):
        return jnp.ones(3)


# --- operators ----------------------------------------------------------------------------------------------

BINARY = [
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "eq", "ne", "lt", "le", "gt", "ge",
    "and_", "or_", "xor", "lshift", "rshift",
]  # fmt: skip
BITS = {"and_", "or_", "xor", "lshift", "rshift"}


def operands():
    return {
        "leaf": leaf([1.0, 2.0, 4.0]),
        "constant": tj.tensor([1.0, 2.0, 4.0]),
        "integers": tj.tensor([1, 2, 3]),
        "int": 2,
        "float": 0.5,
        "bool": True,
        "complex": 1.0 + 2.0j,
        "zero": 0.0,
        "minus zero": -0.0,
        "nan": float("nan"),
        "infinite": float("-inf"),
        "large": 2**31 - 1,
        "too large": 2**31,
        "huge": 2**70,
        "large float": 1e300,
        "np.float32": np.float32(2.0),
        "np.float64": np.float64(2.0),
        "np.int64": np.int64(3),
        "np.bool": np.True_,
        "np array": np.array([1.0, 2.0, 4.0], "f"),
        "np doubles": np.array([1.0, 2.0, 4.0]),
        "np objects": np.array([1.0, None, "a"], object),
        "jax array": jnp.array([1.0, 2.0, 4.0]),
        "jax scalar": jnp.float32(2.0),
        "int of its own": Small(2),
        "float of its own": Real(2.0),
        "enum": Axis.second,
        "list": [1.0, 2.0, 3.0],
        "tuple": (1.0,),
        "str": "a",
        "none": None,
        "object": object(),
        "mine": Mine(),
        "as array": AsArray(),
        "by protocol": AsJax(),
        "type": tj.Tensor,
        "wrong shape": tj.tensor([1.0, 2.0]),
        "row": leaf(np.ones((1, 3), "f")),
    }


def results_seen(results, x):
    """All results of many ops, with one gradient for all of them."""
    seen = {name: about(one) if isinstance(one, tj.Tensor) else plain(one) for name, one in results.items()}
    tape = on_tape()
    roots = [one for one in results.values() if isinstance(one, tj.Tensor) and one.requires_grad]
    grads = attempt(lambda: tj.backward(roots, wrt=x)) if roots else None
    values = {name: plain(one.value) for name, one in results.items() if isinstance(one, tj.Tensor)}
    return [seen, tape, plain(grads), values, on_tape()]


@each({name: getattr(operator, name) for name in BINARY})
def operator_with_anything(name, op):
    """Twice: the second time each plan is known."""
    x = tj.tensor([3, 5, 6]) if name in BITS else leaf()
    seen = []
    for _ in range(2):
        for order in (lambda other: op(x, other), lambda other: op(other, x)):
            tj.take()
            results = {kind: attempt(order, other) for kind, other in operands().items()}
            seen.append(results_seen(results, x))
    return seen


@scenario
def divmod_has_two_results():
    x, seen = leaf(), []
    for _ in range(3):
        for other in (2, 2.0, x, np.ones(3, "f"), "a", None, object(), -0.0):
            seen.append(plain([attempt(divmod, x, other), attempt(divmod, other, x)]))
        quotient, rest = divmod(x, leaf([1.0, 2.0, 4.0]))
        seen.append([on_tape(), plain(tj.backward((quotient * rest).sum(), wrt=x)), plain([quotient, rest])])
    return seen


@scenario
def unary_operators():
    seen = []
    for make in (leaf, lambda: tj.tensor([1, -2, 3]), lambda: tj.tensor([True, False]), lambda: leaf([1 + 2j, -0.0])):
        for _ in range(3):
            x = make()
            results = {op.__name__: attempt(op, x) for op in (operator.neg, operator.pos, abs, operator.invert)}
            seen.append(results_seen(results, x))
    return seen


@scenario
def in_place_operators_make_new_ones():
    seen = []
    for _ in range(4):
        x = leaf()
        before = x
        x += 1.0
        x *= before
        x -= 0
        x /= 2
        x **= 2
        seen += [x is before, plain(x), on_tape(), plain(tj.backward(x)[before])]
    return seen


@scenario
def powers():
    x, seen = leaf([0.0, -0.0, 2.0]), []
    for _ in range(2):
        exponents = (0, 1, 2, 3, -1, 2.0, 0.5, True, np.int32(2), np.float32(2), 0.0, -0.0, 1 + 0j, 1000, Small(2), x)
        results = {repr(e) if e is not x else "x": attempt(lambda e=e: x**e) for e in exponents}
        results |= {f"{b!r} **": attempt(lambda b=b: b**x) for b in (0, 2, 2.0, -1.0, True, 1j)}
        seen.append(results_seen(results, x))
        seen.append(plain([attempt(pow, x, 2, 3), attempt(pow, 2, x, 3)]))
    return seen


@scenario
def zeros_and_nan_by_sign():
    """Numbers that are equal, and are not the same."""
    x, seen = leaf([1.0, -1.0]), []
    for _ in range(3):
        numbers = (0.0, -0.0, 0, False, 1, 1.0, True, 1 + 0j, 0j, -0j, complex(0.0, -0.0), float("nan"), -float("nan"))
        results = {f"{i}: {n!r}": attempt(lambda n=n: x * n) for i, n in enumerate(numbers)}
        results |= {f"{i}: / {n!r}": attempt(lambda n=n: x / n) for i, n in enumerate(numbers)}
        seen.append(results_seen(results, x))
    return seen


@scenario
def constants_stay_constants():
    """Operands that need no gradient: nothing is recorded."""
    seen = []
    for _ in range(4):
        a, b = tj.tensor([1.0, 2.0]), tj.tensor([1, 2])
        results = [a + b, a * 2, b * 2, b / 2, a @ a, b << 1, a > b, ~(a == b), a.sum(), b.astype("f")]
        seen.append([[about(one) for one in results], on_tape(), plain(results)])
        seen.append(attempt(tj.backward, results[0]))
    return seen


@scenario
def dtypes_are_promoted_as_in_jax():
    names = ["bool", "int8", "uint8", "int32", "float16", "bfloat16", "float32", "complex64"]
    seen = []
    for _ in range(2):
        made = [tj.tensor(np.ones(2), dtype=name) for name in names]
        for n in (True, 1, 1.0, 1j):
            seen.append([attempt(lambda t=t, n=n: about(t + n)) for t in made])
        seen.append([attempt(lambda s=s, t=t: about(s * t)) for s in made for t in made])
        seen.append([about(tj.tensor(2.0) * t) for t in made])
    return seen


@scenario
def methods_called_on_the_class():
    x, y, seen = leaf(), leaf([1.0, 2.0, 3.0]), []
    T = tj.Tensor
    for _ in range(3):
        seen.append(plain([T.__add__(x, y), T.__radd__(x, 2), T.sum(x), T.__neg__(x), T.mean(x, 0, keepdims=True)]))
        for call in (
            lambda: T.__add__(self=x, other=y),
            lambda: T.__add__(x, other=y),
            lambda: x.__add__(None),
            lambda: x.__add__(object()),
            lambda: x.__lt__("a"),
            lambda: x.__radd__(None),
            lambda: x.__eq__(None),
            lambda: x.sum(x),
        ):
            result = attempt(call)
            seen.append("NotImplemented" if result is NotImplemented else plain(result))
    return seen


@scenario
def methods_called_wrongly():
    """With too few or too many arguments, or with something else than a Tensor as the first."""
    x, y, seen = leaf(), leaf([1.0, 2.0, 3.0]), []
    T = tj.Tensor
    for _ in range(3):
        for call in (
            lambda: T.__add__(),
            lambda: T.__add__(x),
            lambda: T.__add__(x, y, y),
            lambda: T.__add__(2.0, x),
            lambda: T.__add__(None, x),
            lambda: T.__radd__(2.0, x),
            lambda: T.__neg__(),
            lambda: T.__neg__(3.0),
            lambda: T.__neg__(x, x),
            lambda: T.sum(),
            lambda: T.sum(3.0),
            lambda: T.sum(DATA),
            lambda: T.sum(None),
            lambda: T.sum("a"),
            lambda: x.__add__(),
            lambda: x.__neg__(1),
        ):
            result = attempt(call)
            seen.append("NotImplemented" if result is NotImplemented else plain(result))
    return seen


# --- methods with options --------------------------------------------------------------------------------------


@scenario
def reductions_with_options():
    x, seen = leaf(MATRIX), []
    for _ in range(2):
        for name in ("sum", "mean", "max"):
            method = getattr(x, name)
            calls = {
                "plain": method,
                "0": lambda method=method: method(0),
                "axis=0": lambda method=method: method(axis=0),
                "axis=-1": lambda method=method: method(axis=-1),
                "True": lambda method=method: method(True),
                "axis=1.0": lambda method=method: method(axis=1.0),
                "(0, 1)": lambda method=method: method((0, 1)),
                "(1,)": lambda method=method: method((1,)),
                "()": lambda method=method: method(()),
                "(True,)": lambda method=method: method((True,)),
                "[0]": lambda method=method: method([0]),
                "None": lambda method=method: method(None),
                "np": lambda method=method: method(np.int64(1)),
                "enum": lambda method=method: method(Axis.second),
                "keepdims": lambda method=method: method(axis=1, keepdims=True),
                "other order": lambda method=method: method(keepdims=True, axis=1),
                "keepdims=1": lambda method=method: method(axis=1, keepdims=1),
                "keepdims alone": lambda method=method: method(keepdims=True),
                "twice": lambda method=method: method(0, axis=0),
                "out of range": lambda method=method: method(axis=7),
                "unknown": lambda method=method: method(sideways=1),
                "a str": lambda method=method: method("a"),
                "a Tensor": lambda method=method: method(tj.tensor(0)),
                "axis=Tensor": lambda method=method: method(axis=tj.tensor(0)),
            }
            results = {name: attempt(call) for name, call in calls.items()}
            seen.append([name, *results_seen(results, x)])
    return seen


@scenario
def other_methods_with_options():
    x, seen = leaf(MATRIX), []
    for _ in range(2):
        calls = {
            "std": lambda: x.std(ddof=1),
            "cumsum": lambda: x.cumsum(axis=1),
            "sum dtype": lambda: x.sum(dtype="float16"),
            "sum jnp dtype": lambda: x.sum(dtype=jnp.bfloat16),
            "argmax": lambda: x.argmax(),
            "argmax axis": lambda: x.argmax(axis=1),
            "sort": lambda: x.sort(descending=True),
            "clip": lambda: x.clip(0, 1),
            "clip other": lambda: x.clip(0, 2),
            "clip floats": lambda: x.clip(-0.0, 0.25),
            "clip one": lambda: x.clip(max=0.5),
            "clip tensor": lambda: x.clip(x * 0.5, None),
            "dot": lambda: x.dot(np.ones(3, "f")),
            "dot tensor": lambda: x.dot(x.T),
            "take": lambda: x.take(np.array([0, 2]), axis=1),
            "repeat": lambda: x.repeat(2, axis=0),
            "round": lambda: x.round(1),
            "swapaxes": lambda: x.swapaxes(0, 1),
            "trace": lambda: x.trace(),
            "diagonal": lambda: x.diagonal(offset=1),
            "ravel": lambda: x.ravel("F"),
            "flatten": lambda: x.flatten(),
            "squeeze": lambda: x[:, :1].squeeze(1),
            "squeeze wrong": lambda: x.squeeze(0),
            "any": lambda: (x > 0).any(axis=0),
            "all": lambda: (x > 0).all(),
            "real": lambda: x.real,
            "T": lambda: x.T,
            "mT": lambda: x.mT,
            "conj": lambda: x.conj(),
            "ptp": lambda: x.ptp(1),
            "where": lambda: x.sum(where=MATRIX > 0),
            "initial": lambda: x.max(initial=0.75),
            "initial by tensor": lambda: x.sum(initial=tj.tensor(3.0)),
            "nonzero": lambda: x.nonzero(),
            "no such": lambda: x.shift(),
        }
        seen.append(results_seen({name: attempt(call) for name, call in calls.items()}, x))
    return seen


@scenario
def shapes_and_dtypes():
    x, seen = leaf(MATRIX), []
    for _ in range(3):
        calls = {
            "3, 2": lambda: x.reshape(3, 2),
            "(3, 2)": lambda: x.reshape((3, 2)),
            "[3, 2]": lambda: x.reshape([3, 2]),
            "-1": lambda: x.reshape(-1),
            "F": lambda: x.reshape(6, order="F"),
            "np": lambda: x.reshape(np.int64(3), np.int64(2)),
            "bools": lambda: x.reshape(True, 6),
            "wrong": lambda: x.reshape(4, 2),
            "by a float": lambda: x.reshape(3.0, 2),
            "str": lambda: x.reshape("a"),
            "transpose": lambda: x.transpose(),
            "transpose 1, 0": lambda: x.transpose(1, 0),
            "transpose tuple": lambda: x.transpose((1, 0)),
            "transpose None": lambda: x.transpose(None),
            "transpose wrong": lambda: x.transpose(0, 0),
            "half": lambda: x.astype("float16"),
            "jnp half": lambda: x.astype(jnp.float16),
            "int": lambda: x.astype(int),
            "bool": lambda: x.astype(bool),
            "float": lambda: x.astype(float),
            "complex": lambda: x.astype(complex),
            "None": lambda: x.astype(None),
            "no dtype": lambda: x.astype("nonsense"),
            "nothing": lambda: x.astype(),
            "view": lambda: x.view("int32"),
        }
        seen.append(results_seen({name: attempt(call) for name, call in calls.items()}, x))
    return seen


@scenario
def indices():
    x, seen = leaf(MATRIX), []
    for _ in range(3):
        places = {
            "0": 0, "-1": -1, "1, 2": (1, 2), "np": np.int64(1), "True": True, "False": False, "Small": Small(1),
            ":": slice(None), "1:": slice(1, None), ":, 1:3": (slice(None), slice(1, 3)), "::2": slice(None, None, 2),
            "::-1": slice(None, None, -1), "...": ..., "..., 0": (..., 0), "None": None, ":, None": (slice(None), None),
            "()": (), "array": np.array([1, 0, 1]), "jax": jnp.array([0]), "tensor": tj.tensor([1, 1]), "list": [0, 1],
            "mask": MATRIX > 0, "row mask": np.array([True, False]), "two arrays": (np.array([0, 1]), np.array([2, 0])),
            "wrong": 5, "wrong array": np.array([7]), "too many": (0, 0, 0), "float": 1.5, "str": "a", "two ...": (..., ...),
            "numpy slice": slice(np.int64(0), np.int64(1)), "empty": slice(2, 1), "object": object(), "wrong slice": slice("a"),
        }  # fmt: skip
        results = {name: attempt(lambda place=place: x[place]) for name, place in places.items()}
        seen.append(results_seen(results, x))
        seen.append(plain(list(x)))
        first, second = x
        seen.append(plain(first + second))
        seen.append(
            results_seen({"set": x.at[0].set(2.0), "add": x.at[:, 1].add(x[:, 0]), "mul": x.at[1, 1].mul(3)}, x)
        )
        seen.append(plain([attempt(operator.setitem, x, 0, 1.0), len(x), attempt(len, x.sum())]))
    return seen


# --- functions of tapejax.numpy and friends ---------------------------------------------------------------------


@scenario
def functions_with_options():
    x, seen = leaf(MATRIX), []
    for _ in range(2):
        calls = {
            "exp": lambda: tnp.exp(x),
            "maximum": lambda: tnp.maximum(x, 0),
            "maximum 0.0": lambda: tnp.maximum(x, 0.0),
            "maximum -0.0": lambda: tnp.maximum(-0.0, x),
            "where": lambda: tnp.where(x > 0, x, 0.0),
            "where numpy": lambda: tnp.where(MATRIX > 0, x, -x),
            "concatenate": lambda: tnp.concatenate([x, x], axis=1),
            "concatenate mixed": lambda: tnp.concatenate([x, MATRIX]),
            "stack": lambda: tnp.stack([x, 2 * x], axis=-1),
            "stack tuple": lambda: tnp.stack((x, x)),
            "sum": lambda: tnp.sum(x, axis=(0, 1), keepdims=True),
            "sum by position": lambda: tnp.sum(x, 0),
            "sum by keyword": lambda: tnp.sum(a=x, axis=0),
            "einsum": lambda: tnp.einsum("ij,kj->ik", x, x),
            "dot": lambda: tnp.dot(x, x.T, precision="highest"),
            "tensordot": lambda: tnp.tensordot(x, x, axes=((0, 1), (0, 1))),
            "roll 1": lambda: tnp.roll(x, 1),
            "roll 2": lambda: tnp.roll(x, 2),
            "roll axis": lambda: tnp.roll(x, 1, axis=1),
            "reshape": lambda: tnp.reshape(x, (3, 2)),
            "reshape -1": lambda: tnp.reshape(x, -1),
            "pad": lambda: tnp.pad(x, 1, constant_values=2.0),
            "linspace": lambda: tnp.linspace(0.0, x[0, 0], 3),
            "softmax": lambda: tnn.softmax(x, axis=0),
            "relu": lambda: tnn.relu(x),
            "one_hot": lambda: tnn.one_hot(tj.tensor([0, 1]), 3) * x,
            "lax": lambda: tlax.sin(x),
            "lax add": lambda: tlax.add(x, x),
            "lax add wrong": lambda: tlax.add(x, 1),
            "isnan": lambda: tnp.isnan(x),
            "sort": lambda: tnp.sort(x, axis=None),
            "numbers only": lambda: tnp.add(1, 2),
            "arrays only": lambda: tnp.add(MATRIX, 1),
            "no arguments": lambda: tnp.exp(),
            "too many": lambda: tnp.exp(x, x),
            "unknown": lambda: tnp.exp(x, nonsense=1),
            "none": lambda: tnp.add(x, None),
            "a str": lambda: tnp.add(x, "a"),
            "a list": lambda: tnp.add(x, [1.0, 2.0, 3.0]),
            "an object": lambda: tnp.add(x, object()),
            "wrong shape": lambda: tnp.add(x, np.ones((2, 2), "f")),
            "wrong axis": lambda: tnp.sum(x, axis="a"),
            "unhashable": lambda: tnp.sum(x, axis={0}),
            "of np": lambda: np.exp(x),
            "of jnp": lambda: jnp.exp(x),
            "of np, constant": lambda: np.asarray(x.detach()),
        }
        seen.append(results_seen({name: attempt(call) for name, call in calls.items()}, x))
    return seen


@scenario
def lifted_with_static_arguments():
    seen = []

    @functools.partial(tj.lift, static_argnums=1)
    def scaled(x, by, add=0.0):
        """Its own words."""
        return x * by + add + (10 if by is True else 0)

    named = tj.lift(lambda x, *, mode, by=1: x * by + len(str(mode)), name="named", static_argnames=("mode", "by"))
    for _ in range(3):
        x = leaf()
        results = {f"{by!r}": attempt(scaled, x, by) for by in (1, True, 1.0, 2, -0.0, 0.0, Small(2), np.float32(2))}
        results |= {f"add {add!r}": attempt(scaled, x, 2, add) for add in (1, 1.0, True, np.ones(3, "f"))}
        results |= {f"mode {m!r}": attempt(named, x, mode=m) for m in ("a", "bb", None, 1, True, (1, 2), ("a",), 1.5)}
        results["by keyword"] = scaled(x=x, by=3)
        results["added by keyword"] = scaled(x, 3, add=x)
        results["static tensor"] = attempt(scaled, x, x)
        results["unhashable"] = attempt(named, x, mode=[1])
        results["missing"] = attempt(scaled, x)
        results["too many"] = attempt(scaled, x, 1, 2, 3)
        results["mode missing"] = attempt(named, x)
        results["no Tensor"] = attempt(scaled, 3.0, 2)
        seen.append(results_seen(results, x))
        seen.append([repr(scaled), repr(named), scaled.__name__, scaled.__doc__, str(inspect.signature(scaled))])
    return seen


Pair = collections.namedtuple("Pair", "first second")


@scenario
def lifted_with_several_results():
    functions = {
        "tuple": lambda x: (x * 2, x.sum()),
        "one": lambda x: (x * 2,),
        "list": lambda x: [x, x + 1, 3.0],
        "dict": lambda x: {"b": x * 2, "a": jnp.argmax(x)},
        "nested": lambda x: {"a": (x, [x * x]), "n": None},
        "named": lambda x: Pair(x * 2, (x > 0)),
        "itself": lambda x: x,
        "constant": lambda x: jnp.ones(2),
        "number": lambda x: 3.0,
        "nothing": lambda x: None,
        "empty": lambda x: (),
        "integer": lambda x: x.astype(int),
        "twice": lambda x: (x, x),
        "no array": lambda x: "a",
        "divmod": lambda x: jnp.divmod(x, 2.0),
    }
    ops = {name: tj.lift(function, name=name.replace(" ", "_")) for name, function in functions.items()}
    is_tensor = lambda one: isinstance(one, tj.Tensor)
    seen = []
    for visit in range(3):
        for name, op in ops.items():
            x = leaf()
            made = attempt(op, x)
            tensors = [one for one in jax.tree.leaves(made, is_leaf=is_tensor) if is_tensor(one)]
            seen.append([name, visit, type(made).__name__, [about(one) for one in tensors], on_tape()])
            roots = [one for one in tensors if one.requires_grad]
            if visit == 2:  # only one of them
                roots = roots[-1:]
            seen.append([plain(attempt(tj.backward, roots)), plain(made)])
    return seen


@scenario
def results_of_several_are_let_go():
    both = tj.lift(lambda x: (x * 2, x * 3), name="both")
    seen = []
    for visit in range(VISITS):
        x = leaf()
        first, second = both(x)
        if visit % 2:
            del first
            root = second * x
        else:
            del second
            root = first * x
        seen.append([plain(tj.backward(root.sum(), wrt=x)), plain(root), on_tape()])
    return seen


@scenario
def lifted_trees_of_arguments():
    @tj.lift
    def loss(params, batch, *, scale=1.0):
        return ((batch @ params["w"] + params["b"]) ** 2).mean() * scale

    seen = []
    for visit in range(VISITS):
        params = {"w": leaf(), "b": leaf(0.5)}
        y = loss(params, MATRIX, scale=1.0 + visit % 2)
        grads = tj.backward(y)
        seen.append([plain(grads.tree(params)), plain(y), on_tape()])
        seen.append(plain(loss({"w": leaf(), "b": 1}, tj.tensor(MATRIX), scale=tj.tensor(2.0))))
        seen.append(plain(attempt(loss, {"w": leaf()}, MATRIX)))
        seen.append(plain(attempt(loss, {"w": leaf(), "b": "a"}, MATRIX)))
        seen.append(plain(attempt(loss, params, MATRIX.T)))
    return [*seen, repr(loss)]


@scenario
def lifted_as_a_method():
    class Layer:
        def __init__(self):
            self.w = leaf()

        @tj.lift
        def static(x, w):
            return x * w

        def __call__(self, x):
            return type(self).static(x, self.w)

    seen = []
    for _ in range(VISITS):
        layer = Layer()
        x = leaf([1.0, 2.0, 3.0])
        y = layer(x).sum()
        seen.append([plain(tj.backward(y)[layer.w]), plain(attempt(layer.static, x)), repr(Layer.static)])
    return seen


@scenario
def a_lifted_function_that_raises():
    calls = []

    @functools.partial(tj.lift, static_argnames="wrong")
    def sometimes(x, *, wrong):
        calls.append(wrong)
        if wrong:
            raise ZeroDivisionError(f"wrong={wrong}")
        return x * 2

    seen = []
    for wrong in (False, True, False, True, "also", False):
        x = leaf()
        result = attempt(sometimes, x, wrong=wrong)
        seen.append([plain(result), on_tape(), list(calls)])
    return seen


@scenario
def closures_are_read_once():
    factor = [2.0]
    op = tj.lift(lambda x: x * factor[0], name="scaled")
    seen = []
    for _ in range(4):
        x = leaf()
        seen.append(plain([op(x), op(tj.tensor([1.0]))]))
        factor[0] += 1.0
    tj.clear_plans()
    return [*seen, plain(op(leaf()))]


# --- recording on and off ---------------------------------------------------------------------------------------


@scenario
def recording_on_and_off():
    seen = []
    for _ in range(4):
        x = leaf()
        a = x * 2
        with tj.no_grad():
            b = x * 2 + a
            with tj.enable_grad():
                c = b * x
                with tj.no_grad():
                    d = tanh(c)
            e = (x + x).sum()
        f = (a * b + c * d + e).sum()
        seen.append([[about(one) for one in (a, b, c, d, e, f)], on_tape()])
        grads = tj.backward(f)
        seen.append([plain([a, b, c, d, e, f]), plain(grads), plain(attempt(lambda: grads[b])), grads.explain(b)])
        seen.append(plain(attempt(tj.backward, e)))
    return seen


@scenario
def recording_by_decorator_and_generator():
    @tj.no_grad()
    def quiet(x):
        return x * x

    @tj.no_grad()
    def steps(x):
        yield x * x
        yield tanh(x)

    seen = []
    for _ in range(4):
        x = leaf()
        walk = steps(x)
        made = [quiet(x), next(walk), x * x, next(walk), tanh(x)]
        seen.append([[about(one) for one in made], plain(made), on_tape(), tj.is_recording()])
    return seen


@scenario
def stop_gradient_and_detach():
    seen = []
    for visit in range(VISITS):
        x = leaf()
        h = x * x
        cut = h.detach() if visit % 2 else tj.stop_gradient(h)
        loss = (h * cut + tnp.floor(h)).sum()
        grads = tj.backward(loss)
        seen.append([plain(grads), grads.explain(cut), plain(cut), plain(attempt(lambda: grads[cut])), on_tape()])
        y = (cut * x).sum()
        only = tj.backward(y, wrt=x)
        seen.append([plain(only), only.explain(h), only.explain(cut), only.explain(leaf())])
    return seen


@scenario
def values_taken_and_explained():
    seen = []
    for visit in range(VISITS):
        x, w = leaf(), leaf([1.0, 2.0, 3.0])
        h = x * w
        taken = [lambda: tj.tensor(h.value), lambda: tj.tensor(h.numpy()), lambda: h.detach(), lambda: 2.0][visit % 4]()
        loss = (taken * x).sum()
        grads = attempt(tj.backward, loss)
        seen.append(plain(grads))
        if isinstance(grads, Gradients):
            seen.append([grads.explain(w), grads.explain(h), plain(attempt(lambda g=grads: g[w])), repr(grads)])
        seen.append([on_tape(), plain(h)])
    return seen


@scenario
def numbers_taken():
    seen = []
    for _ in range(4):
        x = leaf(2.0)
        y = x * 3
        seen.append(
            plain([float(y), int(y), complex(y), bool(y), y.item(), y.tolist(), y.numpy(), f"{y:.2f}", repr(y)])
        )
        seen.append(plain([attempt(operator.index, y), attempt(float, leaf() * 2), attempt(bool, leaf() * 2)]))
        seen.append(plain(attempt(__import__("math").sin, y)))
        seen.append([on_tape(), plain(tj.backward(y))])
    return seen


# --- tapes ------------------------------------------------------------------------------------------------------


@scenario
def tapes_within_tapes():
    seen = []
    for visit in range(VISITS):
        x = leaf()
        before = x * 2
        with tj.Tape(label="outer") as outer:
            a = x * before
            with tj.Tape(label="inner") as inner:
                b = (x * a).sum()
            c = (a + b).sum()
        after = (x * 3).sum()
        seen.append([plain(one) for one in (outer, inner, tj.current_tape())])
        if visit % 2:
            seen.append(plain(attempt(inner.backward, b)))
            seen.append(plain(attempt(outer.backward, c)))
        else:
            seen.append(plain(attempt(tj.backward, c)))
            seen.append(plain(attempt(tj.backward, c, tape=outer, wrt=[x, a])))
            seen.append(plain(attempt(tj.backward, c, tape=outer)))
        seen.append(plain(attempt(tj.backward, after)))
        seen.append([plain(one) for one in (outer, inner, tj.current_tape(), before)])
    return seen


@scenario
def tape_given_to_backward():
    seen = []
    for visit in range(2 * VISITS):
        p = parameters(visit)
        tape = tj.Tape(label="given")
        with tape:
            h, _y, loss = network(tnp, *p.values())
            if visit % 3 == 0:
                grads = tj.backward(loss, wrt=list(p.values()))
        if visit % 3 == 1:
            grads = tj.backward(loss, tape=tape, wrt=list(p.values()))
        if visit % 3 == 2:
            grads = tape.backward(loss)
        seen.append([plain(grads), plain(loss), plain(h), len(tape), as_jax(loss, grads, p)])
        seen.append([plain(attempt(tape.backward, loss)), plain(attempt(tj.backward, loss, tape="a")), on_tape()])
    return seen


@scenario
def one_tape_over_and_over():
    tape, p, seen = tj.Tape(label="same"), parameters(), []
    for visit in range(VISITS):
        with tape:
            loss = network(tnp, *p.values())[2]
        grads = tape.backward(loss, wrt=p)
        seen.append([plain(grads), len(tape), as_jax(loss, grads, p)])
        if visit == 3:
            with tape:
                p["w"] * 2  # stays there
        seen.append(plain(tape))
    return seen


@scenario
def actions_taken():
    seen = []
    for visit in range(VISITS):
        x = leaf()
        y = (x * x).sum()
        if visit % 2:
            float(y)
        taken = tj.take()
        seen.append([plain(taken), on_tape(), plain(attempt(tj.backward, y)), plain(y)])
    return seen


@scenario
def tapes_held_open_by_exceptions():
    seen = []
    for _ in range(VISITS):
        x = leaf()
        tape = tj.Tape(label="left")
        with contextlib.suppress(ZeroDivisionError), tape:
            y = (x * x).sum()
            raise ZeroDivisionError
        z = (x + 1.0).sum()
        seen.append([plain(tape), on_tape(), plain(tape.backward(y)), plain(tj.backward(z))])
    return seen


@scenario
def forked_and_merged():
    seen = []
    for _ in range(VISITS):
        x, parent = leaf(), tj.Tape(label="parent")
        children = [parent.fork(), parent.fork()]
        parts = []
        for i in (1, 0):
            with children[i]:
                parts.append((x * (i + 2)).sum())
        parent.merge(children)
        with parent:
            total = parts[0] * parts[1]
        seen.append([plain(parent), plain(parent.backward(total)), plain(attempt(parent.backward, total))])
    return seen


@scenario
def primitives_seen_from_near():
    x, seen = leaf(), []
    for visit in range(VISITS):
        with tj.Tape(detail="primitives" if visit % 2 else "ops", label="near") as tape:
            y = tnn.softmax(x * 2).max()
        seen.append([plain(tape), plain(tape.backward(y, wrt=x)), plain(y)])
    return seen


@scenario
def ambient_tape_forgets():
    x, seen = leaf(), []
    for _ in range(3):
        for _ in range(5):
            y = tanh(x) * x
        seen.append([on_tape(), len(tj.current_tape())])
        del y
        gc.collect()
        seen.append([on_tape(), len(tj.current_tape())])
        tj.take()
    return seen


@scenario
def numbers_of_identities():
    """How many an op takes: those who print tapes see them."""
    x, seen = leaf(), []
    both = tj.lift(lambda x: (x, x * 2))
    for _ in range(3):
        start = tj.TensorId().number
        made = [x * x, x * 2, 2 - x, x.sum(), x.sum(axis=0), tanh(x), *both(x), x[0], -x, x**2, x > 0]
        grads = tj.backward(made[0])
        seen.append([[one.id.number - start for one in made], [id.number - start for id in grads if id != x.id]])
        seen.append(tj.TensorId().number - start)
    return seen


# --- training steps -----------------------------------------------------------------------------------------------


def look_never(h, y, loss):
    return None


def look_at_loss(h, y, loss):
    return float(loss)


def look_in_between(h, y, loss):
    return plain(h.value)


def look_at_all(h, y, loss):
    return plain([h, y, loss])


def look_at_tape(h, y, loss):
    return on_tape()


def look_at_ids(h, y, loss):
    return [repr(h.id), repr(loss.id), plain(loss.id.producer)]


LOOKS = [look_never, look_at_loss, look_in_between, look_at_all, look_at_tape, look_at_ids]


def part(*names):
    return lambda h, y, loss, p: [p[name] for name in names]


WANTED = {
    "everything": lambda h, y, loss, p: None,
    "one leaf": lambda h, y, loss, p: p["w"],
    "list": part("w", "b"),
    "all leaves": part("x", "w", "b"),
    "other order": part("b", "x", "w"),
    "tuple": lambda h, y, loss, p: (p["w"], p["b"]),
    "dict": lambda h, y, loss, p: p,
    "nested": lambda h, y, loss, p: {"a": [p["w"], {"b": p["b"]}], "c": ()},
    "twice": part("w", "w"),
    "in between": lambda h, y, loss, p: h,
    "in between and leaf": lambda h, y, loss, p: [y, p["w"], h],
    "root": lambda h, y, loss, p: loss,
    "root and leaf": lambda h, y, loss, p: [loss, p["w"]],
    "not used": lambda h, y, loss, p: leaf(),
    "not used and leaf": lambda h, y, loss, p: [leaf(), p["w"]],
    "no gradient": lambda h, y, loss, p: [p["w"], tj.tensor([1.0])],
    "copy": lambda h, y, loss, p: [copy.copy(p["w"]), p["b"]],
    "nothing": lambda h, y, loss, p: [],
    "set": lambda h, y, loss, p: {p["w"]},
    "array": lambda h, y, loss, p: p["w"].value,
    "number": lambda h, y, loss, p: 3,
    "id": lambda h, y, loss, p: p["w"].id,
    "generator": lambda h, y, loss, p: (one for one in p.values()),
    "with None": lambda h, y, loss, p: [p["w"], None],
}


@each(WANTED)
def steps_with_respect_to(name, wanted):
    """A step that comes over and over: the first goes the long way, later ones the short one."""
    p, seen = parameters(), []
    for visit in range(VISITS):
        h, y, loss = network(tnp, *p.values())
        grads = attempt(lambda h=h, y=y, loss=loss: tj.backward(loss, wrt=wanted(h, y, loss, p)))
        seen.append([plain(grads), plain(loss), on_tape()])
        if isinstance(grads, Gradients):
            seen.append([as_jax(loss, grads, p), repr(grads), len(grads), grads.has_intermediates])
            seen.append([plain(attempt(lambda g=grads, t=t: g[t])) for t in (p["x"], h, y, loss, leaf())])
            seen.append([[one in grads for one in (p["x"], h, loss)], plain(attempt(lambda g=grads: g.tree(p)))])
        else:
            tj.take()
        if visit == 3:  # nobody holds anything in between
            del h, y
    return seen


@each({look.__name__: look for look in LOOKS})
def steps_looked_at(name, look):
    """Before backward, and what is held of it afterwards."""
    seen = []
    for wanted in ("everything", "list", "in between and leaf"):
        for held in (True, False):
            p = parameters(1)
            for _ in range(VISITS):
                h, y, loss = network(tnp, *p.values())
                looked = look(h, y, loss)
                wrt = WANTED[wanted](h, y, loss, p)
                if not held:
                    del h, y
                grads = tj.backward(loss, wrt=wrt)
                seen.append([looked, plain(grads), on_tape(), loss.is_leaf, plain(loss), as_jax(loss, grads, p)])
                if held:
                    seen.append(plain([h, y, attempt(tj.backward, loss), attempt(tj.backward, h)]))
                del wrt
    return seen


@scenario
def steps_that_nobody_looks_at():
    """Values are looked at when all steps are done."""
    p = parameters(2)
    kept = []
    for _ in range(2 * VISITS):
        _h, _y, loss = network(tnp, *p.values())
        kept.append((tj.backward(loss, wrt=p), loss))
    return [[plain(grads), plain(loss), as_jax(loss, grads, p)] for grads, loss in kept]


@scenario
def steps_that_hold_now_this_now_that():
    seen, held = [], []
    p = parameters(3)
    for visit in range(3 * VISITS):
        h, y, loss = network(tnp, *p.values())
        held[:] = [[], [h], [y], [h, y]][visit % 4]
        del h, y
        grads = tj.backward(loss, wrt=p["w"])
        seen.append([plain(grads), plain(held), plain(loss)])
    return seen


@scenario
def training_goes_down():
    """Parameters are new leaves at every step; the numbers are jax's."""
    p, seen = parameters(4), []
    by = {name: one.value for name, one in p.items()}
    for visit in range(12):
        loss = network(tnp, *p.values())[2]
        grads = tj.backward(loss, wrt=p)
        expected, slopes = by_jax(*by.values())
        p = {name: leaf(one.value - 0.05 * grads[one]) for name, one in p.items()}
        by = {name: one - 0.05 * slope for (name, one), slope in zip(by.items(), slopes)}
        seen.append([plain(loss.value), {"as jax": bool(np.allclose(loss.value, expected, rtol=1e-4))}])
        if visit % 4 == 3:
            seen.append([plain(p), on_tape()])
    return seen


@scenario
def updates_on_tensors():
    """The update is made of ops too, under no_grad."""
    p, seen = parameters(5), []
    for _ in range(VISITS):
        loss = network(tnp, *p.values())[2]
        grads = tj.backward(loss, wrt=p)
        with tj.no_grad():
            new = {name: one - 0.05 * grads[one] for name, one in p.items()}
        seen.append([[about(one) for one in new.values()], on_tape()])
        p = {name: tj.tensor(one, requires_grad=True) for name, one in new.items()}
        seen.append(plain([loss, p]))
    return seen


@scenario
def retained_tapes():
    p, seen = parameters(6), []
    for visit in range(2 * VISITS):
        h, y, loss = network(tnp, *p.values())
        first = tj.backward(loss, wrt=p, retain_tape=True)
        seen.append([plain(first), on_tape()])
        if visit % 2:
            seen.append(plain(tj.backward(h, wrt=p["w"], retain_tape=True)))
        again = tj.backward(loss, wrt=p)
        seen.append([plain(again), on_tape(), plain(attempt(tj.backward, loss)), as_jax(loss, again, p)])
        seen.append(plain([h, y, loss]))
    return seen


@scenario
def several_roots_and_seeds():
    p, seen = parameters(7), []
    for _ in range(VISITS):
        h, _y, loss = network(tnp, *p.values())
        seen.append(plain(tj.backward([h, loss], [np.ones((2, 3), "f"), 2.0], wrt=p)))
        h, _y, loss = network(tnp, *p.values())
        seen.append(plain(tj.backward(h, wrt=p)))
        h, _y, loss = network(tnp, *p.values())
        for seed in ([1.0, 2.0], "a", 3.0, jnp.float32(2.0), tj.tensor(1.5)):
            result = attempt(tj.backward, loss, seed, retain_tape=True, wrt=p["w"])
            seen.append(plain(result))
        seen.append(plain([attempt(tj.backward, one) for one in (3.0, None, [], [h, None], p["x"].value)]))
        seen.append(plain([tj.backward(loss, wrt=p), tj.backward(p["w"]), on_tape()]))
    return seen


@scenario
def two_roots_of_one_block():
    """The second root's tape was consumed by the first."""
    seen = []
    for visit in range(VISITS):
        x = leaf()
        h = x * x
        a, b = h.sum(), (h * 2).sum()
        seen.append(plain(tj.backward(a, wrt=x)))
        seen.append(plain([attempt(tj.backward, b, wrt=x), b, h]))
        c = (h * x).sum()  # of what is consumed
        seen.append(plain([attempt(tj.backward, c, wrt=x) if visit % 2 else attempt(tj.backward, c), c]))
        seen.append(on_tape())
        tj.take()
    return seen


@scenario
def leaves_of_many_kinds_in_one_step():
    seen = []
    for _ in range(VISITS):
        x, half = leaf(MATRIX), leaf(np.ones(3), dtype="bfloat16")
        z, n = leaf([1 + 2j, 0.5j, -1.0]), tj.tensor([1, 2, 3])
        loss = abs(x * half * z).sum() + (x * n).sum()
        grads = tj.backward(loss)
        seen.append([plain(grads), plain(loss), plain(attempt(lambda g=grads, n=n: g[n])), grads.explain(n)])
    return seen


@scenario
def the_same_tensor_many_times():
    seen = []
    for visit in range(VISITS):
        x = leaf(1.5)
        y = x * x + x * x - x / x
        for _ in range(3):
            y = y * y * 0.5 + x
        grads = tj.backward(y, wrt=[x, x] if visit % 2 else None)
        expected = jax.grad(by_hand)(1.5)
        close = bool(np.allclose(grads[x], expected, rtol=1e-5))
        seen.append([plain(grads), plain(y), {"as jax": close}])
    return seen


def by_hand(x):
    y = x * x + x * x - x / x
    for _ in range(3):
        y = y * y * 0.5 + x
    return y


@scenario
def a_root_that_is_a_copy():
    seen = []
    for visit in range(VISITS):
        x = leaf()
        loss = (x * x).sum()
        root = [loss, copy.copy(loss), copy.deepcopy(loss), loss.alias()][visit % 4]
        seen.append([plain(tj.backward(root, wrt=x)), plain([loss, root]), on_tape()])
    return seen


@scenario
def more_than_128_ops():
    x, seen = leaf([0.5, 0.25]), []
    for visit in range(4):
        y, middle = x, None
        for i in range(150):
            y = y * 0.99 + x * 0.01 if i % 2 else tanh(y)
            if i == 70:
                middle = y
        loss = y.sum()
        if visit == 2:
            middle.value
        count, lines = len(tj.current_tape()), {action.line for action in tj.current_tape()} if visit == 3 else ()
        grads = tj.backward(loss, wrt=x)
        seen.append([count, sorted(lines), plain(grads), plain(loss), on_tape()])
        if visit % 2:
            seen.append(plain(middle))
    return seen


@scenario
def exactly_as_many_as_fit():
    seen = []
    for count in (126, 127, 128, 129, 130):
        for _ in range(3):
            x = leaf(1.0)
            y = x
            for _ in range(count - 1):
                y = y + x
            grads = tj.backward(y, wrt=x)
            seen.append([plain(grads), plain(y.value), on_tape(), {"as jax": float(grads[x]) == count}])
    return seen


@scenario
def names_are_for_printing_only():
    weight = leaf()
    seen = []
    for _ in range(VISITS):
        hidden = weight * weight
        grads = tj.backward(hidden.sum())
        seen.append([repr(grads), repr(weight), repr(hidden), str(hidden)])
    return seen


# --- after a step has come often, something else ------------------------------------------------------------------


class Changed:
    """Each makes one step another than those before it."""

    def nothing(p):
        return step(p)

    def other_dtype(p):
        return step({**p, "x": leaf(p["x"].value.astype("float16"))})

    def other_shape(p):
        return step({**p, "x": leaf(np.ones((4, 3), "f"))})

    def wrong_shape(p):
        return step({**p, "x": leaf(np.ones((4, 2), "f"))})

    def needs_no_gradient(p):
        return step({**p, "w": p["w"].detach()})

    def with_respect_to_nothing(p):
        return step({name: one.detach() for name, one in p.items()})

    def weak_type(p):
        return step({**p, "b": leaf(1.0)})

    def a_number(p):
        return step({**p, "b": 1.0})

    def an_array(p):
        return step({**p, "b": np.ones(3, "f")}, wrt=[p["w"]])

    def deleted(p):
        x = leaf(np.ones((2, 3), "f"))
        h, _y, loss = network(tnp, *{**p, "x": x}.values())
        x.value.delete()
        return [attempt(tj.backward, loss, wrt=p["w"]), loss, h, on_tape()]

    def deleted_before(p):
        x = leaf(np.ones((2, 3), "f"))
        x.value.delete()
        return step({**p, "x": x})

    def donated(p):
        x = leaf(np.ones((2, 3), "f"))
        loss = network(tnp, *{**p, "x": x}.values())[2]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            jax.jit(lambda a: a * 2, donate_argnums=0)(x.value)
        return [attempt(tj.backward, loss), loss]

    def not_fused(p):
        with tj.fusion(False):
            return step(p)

    def not_fused_in_between(p):
        h = tnp.tanh(p["x"] @ p["w"] + p["b"])
        with tj.fusion(False):
            y = h * h - 0.5 * h
        loss = (y * y).sum()
        return [on_tape(), tj.backward(loss, wrt=p), loss]

    def not_fused_backward(p):
        loss = network(tnp, *p.values())[2]
        with tj.fusion(False):
            return [tj.backward(loss, wrt=p), loss]

    def turned_off(p):
        tj.fusion.enabled = False
        try:
            return step(p)
        finally:
            tj.fusion.enabled = True

    def without_gradients(p):
        with tj.no_grad():
            return step(p)

    def backward_without_gradients(p):
        loss = network(tnp, *p.values())[2]
        with tj.no_grad():
            return [tj.backward(loss, wrt=p), loss]

    def hook_on_leaf(p):
        calls = []
        handle = p["w"].register_hook(lambda g: calls.append(plain(g)))
        made = step(p)
        handle.remove()
        return [made, calls, step(p), calls]

    def hook_that_changes(p):
        handle = p["w"].register_hook(lambda g: g * 2)
        made = step(p)
        handle.remove()
        return [made, step(p)]

    def hook_in_between(p):
        calls = []
        h, _y, loss = network(tnp, *p.values())
        h.register_hook(lambda g: calls.append(plain(g)))
        return [tj.backward(loss, wrt=p), calls, step(p), calls]

    def hook_on_all_actions(p):
        calls = []
        handle = hooks.before(hooks.EVERYTHING, lambda action, cts: calls.append(repr(action)))
        made = attempt(step, p)
        handle.remove()
        return [made, calls]

    def hook_forward(p):
        calls = []
        handle = hooks.forward("tanh", lambda call: calls.append(type(call).__name__))
        made = step(p)
        handle.remove()
        return [made, calls, step(p), calls]

    def hook_that_raises(p):
        handle = p["w"].register_hook(lambda g: 1 / 0)
        made = attempt(step, p)
        handle.remove()
        return [made, on_tape()]

    def create_graph(p):
        loss = network(tnp, *p.values())[2]
        first = tj.backward(loss, create_graph=True, wrt=p)
        total = sum([(one * one).sum() for one in first.values()])
        count = len(tj.current_tape())
        return [count, first, tj.backward(total, wrt=p), total, on_tape()]

    def action_of_my_own(p):
        seen = []
        h = tnp.tanh(p["x"] @ p["w"] + p["b"])
        tj.record(Note("in between", seen=seen))
        y = h * h - 0.5 * h
        return [on_tape(), tj.backward((y * y).sum(), wrt=p), seen]

    def action_of_my_own_at_the_end(p):
        seen = []
        loss = network(tnp, *p.values())[2]
        tj.record(Note("at the end", loss, seen))
        return [on_tape(), tj.backward(loss, wrt=p), seen]

    def action_of_my_own_first(p):
        seen = []
        tj.record(Note("first", seen=seen))
        return [step(p), seen]

    def other_ops_before(p):
        kept = leaf() * 2
        made = step(p)
        return [made, kept, on_tape()]

    def other_ops_after(p):
        loss = network(tnp, *p.values())[2]
        kept = leaf() * 2
        return [tj.backward(loss, wrt=p), loss, kept, attempt(tj.backward, kept)]

    def other_tape(p):
        with tj.Tape(label="other") as tape:
            loss = network(tnp, *p.values())[2]
        return [attempt(tj.backward, loss, wrt=p), tape.backward(loss, wrt=p), loss]

    def within_a_tape(p):
        h = tnp.tanh(p["x"] @ p["w"] + p["b"])
        with tj.Tape(label="other") as tape:
            y = h * h - 0.5 * h
            loss = (y * y).sum()
        return [tape, tape.backward(loss, wrt=[p["w"], h]), h, attempt(tj.backward, h, wrt=p)]

    def taken_first(p):
        loss = network(tnp, *p.values())[2]
        taken = tj.take()
        return [attempt(tj.backward, loss, wrt=p), loss, len(taken)]

    def x64(p):
        with jax.enable_x64(True):
            return step(p)

    def x64_in_between(p):
        h = tnp.tanh(p["x"] @ p["w"] + p["b"])
        with jax.enable_x64(True):
            y = h * h - 0.5 * h
        loss = (y * y).sum()
        return [on_tape(), tj.backward(loss, wrt=p), loss]

    def x64_backward(p):
        loss = network(tnp, *p.values())[2]
        with jax.enable_x64(True):
            return [tj.backward(loss, wrt=p), loss]

    def precision(p):
        with jax.default_matmul_precision("highest"):
            return step(p)

    def precision_backward(p):
        loss = network(tnp, *p.values())[2]
        with jax.default_matmul_precision("highest"):
            return [tj.backward(loss, wrt=p), loss]

    def strict_promotion(p):
        with jax.numpy_dtype_promotion("strict"):
            return step(p)

    def ranks(p):
        with jax.numpy_rank_promotion("raise"):
            return step(p)

    def ranks_warn(p):
        with warnings.catch_warnings(record=True) as caught, jax.numpy_rank_promotion("warn"):
            warnings.simplefilter("always")
            return [step(p), [f"{one.category.__name__}: {one.message}" for one in caught]]

    def device(p):
        with jax.default_device(jax.devices()[0]):
            return step(p)

    def debug_nans(p):
        with jax.debug_nans(True):
            return step({**p, "b": leaf(np.array([np.nan, 1.0, 1.0], "f"))})

    def inside_jit(p):
        values = {name: one.value for name, one in p.items()}
        return jax.jit(step_of_arrays)(values)

    def inside_grad(p):
        values = {name: one.value for name, one in p.items()}
        return jax.grad(lambda v: sum(one.sum() for one in step_of_arrays(v)[1].values()))(values)

    def inside_vmap(p):
        values = {name: one.value for name, one in p.items()}
        return jax.vmap(lambda x: step_of_arrays({**values, "x": x}))(jnp.ones((2, 2, 3)))

    def leaves_of_tracers_and_values(p):
        def mixed(x):
            loss = network(tnp, tj.tensor(x, requires_grad=True), p["w"], p["b"])[2]
            return tj.backward(loss, wrt=p["w"])[p["w"]]

        return [attempt(jax.jit(mixed), p["x"].value), on_tape()]

    def pending_outside_used_inside(p):
        w = p["w"] * 1.0

        def inner(x):
            return network(tnp, tj.tensor(x), w, p["b"])[2].value

        return [attempt(jax.jit(inner), p["x"].value), w, on_tape()]

    def in_a_thread(p):
        return in_thread(lambda: [step(p), on_tape()])

    def backward_in_a_thread(p):
        loss = network(tnp, *p.values())[2]
        return [in_thread(lambda: attempt(tj.backward, loss, wrt=p)), attempt(tj.backward, loss, wrt=p), loss]

    def in_a_context(p):
        return contextvars.copy_context().run(lambda: [step(p), on_tape()])

    def plans_cleared(p):
        tj.clear_plans()
        return step(p)

    def plans_cleared_in_between(p):
        loss = network(tnp, *p.values())[2]
        tj.clear_plans()
        return [tj.backward(loss, wrt=p), loss]

    def jax_cleared(p):
        jax.clear_caches()
        return step(p)

    def rebuilt_leaf(p):
        moved = jax.tree.map(lambda value: value, p["b"])
        return [step({**p, "b": moved}), attempt(step, {**p, "b": moved * p["b"]})]

    def rebuilt_and_used_both(p):
        moved = jax.device_put(p["b"])
        h = tnp.tanh(p["x"] @ p["w"] + p["b"] + moved)
        return [attempt(tj.backward, h.sum()), attempt(tj.backward, h.sum(), wrt=p)]

    def failing_op(p):
        def fails(x):
            return x / 0

        call = tj.lift(lambda x: jax.pure_callback(fails, jax.ShapeDtypeStruct(x.shape, x.dtype), x), name="calls")
        return [attempt(lambda: type(call(p["x"].detach())).__name__), step(p)]

    def saved_tensors(p):
        loss = network(tnp, *p.values())[2]
        with tj.saved_tensors_hooks(lambda value: value * 2, lambda packed: packed / 2):
            inner = network(tnp, *p.values())[2]
        return [tj.backward(loss + inner, wrt=p), loss, inner]

    def interleaved(p):
        q = parameters(9)
        first, second = network(tnp, *p.values())[2], network(tnp, *q.values())[2]
        return [tj.backward(first, wrt=p), attempt(tj.backward, second, wrt=q), second]

    def root_not_scalar(p):
        h, _y, loss = network(tnp, *p.values())
        return [tj.backward(h, wrt=p), h, loss]

    def seeded(p):
        loss = network(tnp, *p.values())[2]
        return [tj.backward(loss, 2.0, wrt=p), loss]

    def root_of_integers(p):
        loss = network(tnp, *p.values())[2]
        return [attempt(tj.backward, loss.astype(int), wrt=p), attempt(tj.backward, loss > 0, wrt=p)]


def step(p, wrt=None):
    """One step and all of it that is seen; what goes wrong is part of it."""

    def whole():
        h, _y, loss = network(tnp, *p.values())
        kept = about(loss)
        grads = tj.backward(loss, wrt=list(p.values()) if wrt is None else wrt)
        return [kept, plain(grads), plain(loss), plain(h), on_tape()]

    return plain(attempt(whole))


def step_of_arrays(values):
    p = {name: tj.tensor(value, requires_grad=True) for name, value in values.items()}
    loss = network(tnp, *p.values())[2]
    grads = tj.backward(loss, wrt=p)
    return loss.value, grads.tree(p)


@each({name: change for name, change in vars(Changed).items() if not name.startswith("_")})
def steps_and_then(name, change):
    p = parameters()
    seen = []
    for _ in range(4):
        loss = network(tnp, *p.values())[2]
        seen.append(plain([tj.backward(loss, wrt=list(p.values())), loss]))
    seen.append(plain(attempt(change, p)))
    seen.append(plain([attempt(change, p), on_tape()]))
    tj.take()
    for _ in range(2):  # and it goes on as before
        loss = network(tnp, *p.values())[2]
        grads = tj.backward(loss, wrt=list(p.values()))
        seen.append([plain([grads, loss]), as_jax(loss, grads, p), on_tape()])
    return seen


# --- settings of jax ------------------------------------------------------------------------------------------------

SETTINGS = {
    "x64": lambda: jax.enable_x64(True),
    "precision": lambda: jax.default_matmul_precision("bfloat16"),
    "strict": lambda: jax.numpy_dtype_promotion("strict"),
    "ranks": lambda: jax.numpy_rank_promotion("raise"),
    "device": lambda: jax.default_device(jax.devices()[0]),
    "nans": lambda: jax.debug_nans(True),
    "no jit": lambda: jax.disable_jit(),
    "key": lambda: jax.legacy_prng_key("error"),
}


@each(SETTINGS)
def settings_change_between_ops(name, setting):
    seen = []
    for visit in range(2):
        x = leaf(MATRIX)
        a = x * 2
        with setting():
            results = {
                "mul": attempt(lambda: x * 2),
                "zero": attempt(lambda: x * -0.0),
                "large": attempt(lambda: x + 2**40),
                "doubles": attempt(lambda: x * np.ones(3)),
                "rank": attempt(lambda: x + leaf()),
                "integers": attempt(lambda: x * tj.tensor([1, 2, 3])),
                "matmul": attempt(lambda: x @ x.T),
                "of pending": attempt(lambda: a * x),
                "index": attempt(lambda: x[0, 1:]),
                "sum": attempt(lambda: x.sum(axis=0)),
                "power": attempt(lambda: x**2),
                "new": attempt(lambda: tj.tensor(np.ones(2), requires_grad=True) * 2),
                "number": attempt(lambda: tj.tensor(2.0) + 1),
            }
            seen.append({n: about(one) if isinstance(one, tj.Tensor) else plain(one) for n, one in results.items()})
            if visit:
                seen.append(results_seen(results, x))
        seen.append(plain(attempt(lambda a=a: a * 3)))
        seen.append(results_seen({**results, "a": a}, x))
    return seen


@scenario
def settings_change_at_every_op():
    seen = []
    for _ in range(4):
        x = leaf()
        y = x * 2
        for setting in (SETTINGS["x64"], SETTINGS["strict"], SETTINGS["precision"], SETTINGS["x64"]):
            with setting():
                y = y * x
            y = tanh(y)
        seen.append([on_tape(), plain(tj.backward(y.sum(), wrt=x)), plain(y)])
    return seen


@scenario
def doubles_from_the_start():
    seen = []
    with jax.enable_x64(True):
        for _ in range(VISITS):
            x = leaf(np.linspace(0, 1, 3))
            loss = (tanh(x) * 3 * x + 2**40).sum()
            seen.append([about(loss), plain(tj.backward(loss, wrt=x)), plain(loss)])
    return seen


# --- under jax -------------------------------------------------------------------------------------------------------


@scenario
def within_jit_vmap_and_grad():
    def slope(v):
        t = tj.tensor(v, requires_grad=True)
        with tj.Tape() as tape:
            y = (tanh(t * t) * 2 + t[0] - t.sum() ** 2).sum()
        recorded.append([plain(tape), about(y)])
        return tape.backward(y)[t]

    seen = []
    for _ in range(2):
        recorded = []
        v = jnp.asarray(DATA)
        seen.append(plain([slope(v), jax.jit(slope)(v), jax.vmap(slope)(jnp.ones((2, 3)))]))
        seen.append(plain(jax.grad(lambda v: slope(v).sum())(v)))
        x = leaf()
        seen.append(plain([tj.backward(tj.lift(slope)(x).sum())[x], jax.make_jaxpr(slope)(v).jaxpr.outvars]))
        seen.append(recorded)
    return seen


@scenario
def tracers_looked_at():
    seen = []

    def inner(v):
        t = tj.tensor(v, requires_grad=True)
        y = t * 2
        return plain([attempt(float, y[0]), attempt(bool, y.sum()), attempt(lambda: y[y > 0]), repr(type(y)), about(y)])

    for _ in range(3):
        jax.jit(lambda v: (seen.append(inner(v)), v)[1])(DATA)
        jax.eval_shape(lambda v: (seen.append(inner(v)), v)[1], DATA)
    return seen


@scenario
def leaked_tracers():
    seen = []
    for _ in range(3):
        leaked = []
        jax.jit(lambda v: leaked.append(tj.tensor(v, requires_grad=True)) or v)(DATA)
        x = leaf()
        result = attempt(lambda: (x * leaked[0]).shape)
        seen.append([plain(result) if not isinstance(result, dict) else result["error"], len(tj.take())])
    return seen


@scenario
def tensors_given_to_jax():
    seen = []
    for _ in range(3):
        x = leaf()
        h = x * 2
        for call in (
            lambda: jnp.sin(h),
            lambda: jax.jit(lambda v: v)(h),
            lambda: jnp.add(h, 1),
            lambda: jnp.ones(3) * h,
            lambda: np.ones(3, "f") * h,
            lambda: np.add(np.ones(3, "f"), h),
            lambda: np.add(h, h, out=np.zeros(3)),
            lambda: np.add.reduce(h),
            lambda: jnp.float32(2) - h,
            lambda: jax.tree.leaves([h])[0] * 2,
            lambda: jax.tree.map(lambda t: t * 2, {"h": h}),
            lambda: jax.device_put(x) * x,
        ):
            seen.append(plain(attempt(call)))
        seen.append(on_tape())
        tj.take()
    return seen


@scenario
def jit_of_tapejax():
    seen = []

    @tj.jit
    def whole(x, w):
        return (tanh(x * w) + 1).sum()

    for _ in range(VISITS):
        x, w = leaf(), leaf([1.0, 2.0, 3.0])
        y = whole(x, w) * 2
        seen.append([on_tape(), plain(tj.backward(y, wrt=[x, w])), plain(y)])
    return seen


@scenario
def grad_of_tapejax():
    seen = []
    f = lambda x: (tanh(x) * x - 2**x + x[0]).sum()
    for _ in range(4):
        x = leaf()
        seen.append(plain([tj.grad(f)(x), tj.value_and_grad(f)(DATA), tj.grad(lambda v: tj.grad(f)(v).sum())(x)]))
        seen.append(on_tape())
    return seen


@scenario
def checkpointed():
    seen = []
    for _ in range(VISITS):
        p = parameters()
        inner = lambda x, w: tanh(x @ w) * 2 - x
        h = tj.checkpoint(inner, p["x"], p["w"])
        loss = (tj.checkpoint(inner, h, p["w"]) + p["b"]).sum()
        seen.append([on_tape(), plain(tj.backward(loss, wrt=p)), plain(loss)])
    return seen


@scenario
def ops_of_my_own():
    @tj.custom_op
    def rounded(x, *, by):
        return jnp.round(x / by) * by

    @rounded.defbackward
    def _(ct, out, x, *, by):
        return (ct * by,)

    seen = []
    for visit in range(VISITS):
        x = leaf()
        y = rounded(x * 1.5, by=0.5 if visit % 2 else 2) * x
        seen.append([on_tape(), plain(tj.backward(y.sum(), wrt=x)), plain(y)])
        seen.append(plain(attempt(rounded, x)))
        tj.take()
    return seen


@scenario
def loops_and_branches():
    newton = tj.lift(lambda a: jax.lax.while_loop(lambda s: jnp.abs(s * s - a) > 1e-5, lambda s: (s + a / s) / 2, a))
    scan = tj.lift(lambda v: jax.lax.scan(lambda c, _: (jnp.tanh(c) * v, c), v, length=3), name="scan")
    seen = []
    for _ in range(3):
        x = leaf(2.0)
        y = newton(x * 1.0) * 3
        seen.append([plain(tj.backward(y, wrt=x)), plain(y), on_tape()])
        last, all_of_them = scan(leaf() * 2)
        seen.append([on_tape(), plain(tj.backward((all_of_them * last).sum()))])
    return seen


@scenario
def random_numbers():
    seen = []
    for _ in range(3):
        x, key = leaf(), jax.random.key(3)
        noise = tj.random.normal(key, (3,))
        y = x * noise + tj.lift(lambda v: v * jax.random.uniform(jax.random.key(1), v.shape))(x)
        seen.append([plain(noise), on_tape(), plain(tj.backward(y.sum(), wrt=x)), plain(y)])
    return seen


@scenario
def effects_and_callbacks():
    seen, printed = [], []
    shout = tj.lift(lambda x: (jax.debug.callback(lambda v: printed.append(plain(v)), x), x * 2)[1], name="shout")
    for _ in range(4):
        x = leaf()
        a = x * 3
        b = shout(a)
        jax.effects_barrier()
        seen.append([list(printed), on_tape(), plain(tj.backward((b * a).sum(), wrt=x)), plain(b)])
        printed.clear()
    return seen


# --- hooks, second derivatives, user's actions --------------------------------------------------------------------------


@scenario
def hooks_on_the_way():
    seen = []
    for _ in range(VISITS):
        x, calls = leaf(), []
        h = tanh(x)
        h.register_hook(lambda g: calls.append(plain(g)))
        hooks.on_gradient(x, lambda g: g * 10)
        hooks.after_accumulation(x, lambda t, g: calls.append([repr(t.id), plain(g)]))
        loss = (h * h + 2 * h).sum()
        grads = tj.backward(loss)
        seen.append([calls, plain(grads), on_tape()])
        seen.append(plain(attempt(h.register_hook, lambda g: g)))
        with tj.region("named"):
            y = x * 2
        seen.append([on_tape(), plain(tj.backward(y.sum()))])
    return seen


@scenario
def ops_watched():
    seen = []
    for visit in range(VISITS):
        x, calls = leaf(), []
        told = lambda call, calls=calls: calls.append([call.op, call.line, *map(about, call.inputs + call.outputs)])
        watching = hooks.forward(hooks.EVERYTHING, told) if visit % 2 else contextlib.nullcontext()
        with watching:
            y = (tanh(x) * 2 + x).sum()
        seen.append([calls, on_tape(), plain(tj.backward(y)), plain(y)])
    return seen


@scenario
def alarms_between_steps():
    """Whoever looks at a gradient looks at this one too, however often the step has come before."""
    seen = []
    for visit in range(2 * VISITS):
        x, wrong = leaf(), tj.tensor(0.0, requires_grad=True)
        with tj.debug_nonfinite(on="collect") if visit % 3 == 2 else contextlib.nullcontext() as found:
            grads = tj.backward((tnp.sqrt(wrong) * x).sum(), wrt=[x, wrong])
        seen.append([plain(grads), on_tape(), [report.born.op for report in found.reports] if found else None])
    assert [bool(reports) for *_, reports in seen] == [False, False, True] * (2 * VISITS // 3)
    return seen


@scenario
def second_and_third_derivatives():
    seen = []
    for _ in range(4):
        x = leaf()
        y = (tanh(x) * x * x).sum()
        first = tj.backward(y, create_graph=True)[x]
        second = tj.backward(first.sum(), create_graph=True)[x]
        third = tj.backward(second.sum())[x]
        expected = jax.grad(lambda v: jax.grad(lambda v: jax.grad(third_of)(v).sum())(v).sum())(jnp.asarray(DATA))
        close = bool(np.allclose(third, expected, rtol=1e-3, atol=1e-4))
        seen.append([plain([first, second, third]), on_tape(), {"as jax": close}])
    return seen


def third_of(v):
    return (jnp.tanh(v) * v * v).sum()


@scenario
def actions_in_between():
    seen = []
    for visit in range(VISITS):
        x, ran = leaf(), []
        h = x * x
        tj.record(Note("between", h if visit % 2 else None, ran))
        y = (h * 2).sum()
        seen.append(on_tape())
        seen.append([plain(tj.backward(y, wrt=x if visit > 2 else None)), ran, plain([h, y])])
        seen.append(plain([attempt(tj.record, one) for one in (None, 3, Note, object())]))
    return seen


@scenario
def an_action_that_fails():
    class Broken(tj.TapeAction):
        def __init__(self, tensor):
            self.inputs = self.outputs = (tensor.id,)

        def backward(self, grads):
            raise ZeroDivisionError("no derivative today")

    seen = []
    for _ in range(VISITS):
        x = leaf()
        h = x * x
        tj.record(Broken(h))
        error = attempt(tj.backward, h.sum())
        good = (x * 3).sum()
        seen.append([plain(error), on_tape(), plain(h), plain(tj.backward(good, wrt=x))])
    return seen


@scenario
def wrong_ops_between_good_ones():
    """An op that raises leaves no trace."""
    seen = []
    for _ in range(VISITS):
        x = leaf()
        h = x * 2
        errors = [attempt(call) for call in (
            lambda: h + tj.tensor([1.0, 2.0]),
            lambda: h @ tj.tensor([1.0, 2.0]),
            lambda: h + "a",
            lambda: h + object(),
            lambda: h.sum(axis=4),
            lambda: h.reshape(7),
            lambda: h[9],
            lambda: tnp.stack([h, 1.0]),
            lambda: h + 2**100,
        )]  # fmt: skip
        y = (h * h).sum()
        seen.append([plain(errors), on_tape(), plain(tj.backward(y, wrt=x)), plain(y)])
    return seen


def kind_of(result):
    """The type of an error: what jax says of a number that is none is long."""
    return result["error"] if isinstance(result, dict) else plain(result)


@scenario
def failing_when_it_runs():
    seen = []
    for _ in range(4):
        with jax.debug_nans(True):
            one = leaf(1.0)
            good, bad = one * 3.0, tnp.log(one - 2.0)
            after = bad * 2.0
            seen.append([kind_of(attempt(float, one)) for one in (good, bad, after)])
            seen.append([kind_of(attempt(tj.backward, one)) for one in (bad, good)])
        seen.append([len(tj.current_tape()), plain(tj.backward(leaf(2.0) * 2))])
    return seen


@scenario
def deleted_buffers():
    seen = []
    for visit in range(VISITS):
        x, w = leaf(), leaf([1.0, 2.0, 3.0])
        h = x * w
        if visit % 2:
            h.value  # computed before
        x.value.delete()
        y = attempt(lambda: (h * x).sum())
        seen.append(plain([attempt(repr, x), y, attempt(lambda: h * 2)]))
        seen.append(plain(attempt(tj.backward, y, wrt=w) if isinstance(y, tj.Tensor) else None))
        seen.append(plain([attempt(tj.backward, h, wrt=w), on_tape()]))
        tj.take()
    return seen


@scenario
def data_is_copied():
    seen = []
    for _ in range(4):
        data, x = np.ones(3, "f"), leaf()
        y = x * data
        z = data + x
        w = tnp.dot(x, data)
        data[:] = 7.0
        seen.append([plain([y, z, w]), plain(tj.backward(y.sum() + z.sum() + w, wrt=x))])
    return seen


# --- copies, classes, what things look like --------------------------------------------------------------------------


@scenario
def copies_and_pickles():
    seen = []
    for _ in range(VISITS):
        x = leaf()
        h = x * 2
        for make in (copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t)), tj.tensor):
            for one in (x, h, h.detach(), tj.tensor([1, 2])):
                made = attempt(make, one)
                seen.append([about(made), made.id == one.id] if isinstance(made, tj.Tensor) else plain(made))
        twin = copy.copy(h)
        y = (twin * h * copy.copy(x)).sum()
        seen.append([plain(attempt(tj.backward, y)), plain([h, twin, y]), on_tape()])
        tj.take()
    return seen


@scenario
def ops_are_copied_and_pickled():
    scaled, x, seen = tj.lift(jnp.sin, name="scaled"), leaf(), []
    for make in (copy.copy, copy.deepcopy, lambda op: pickle.loads(pickle.dumps(op))):
        for op in (scaled, tnp.exp, tj.Tensor.sum, tj.Tensor.__add__, x.sum):
            made = attempt(make, op)
            if isinstance(made, dict):
                seen.append(made["error"])
            else:
                seen.append([type(made) is type(op), made is op, plain(attempt(made, x))])
    return seen


@scenario
def subclasses_of_tensor():
    class Mine(tj.Tensor):
        __slots__ = ()

    class Counting(tj.Tensor):
        __slots__ = ()

        def __mul__(self, other):
            return "counted"

        def __rmul__(self, other):
            return "counted, reflected"

    def made(kind, of):
        one = object.__new__(kind)
        one.held, one.slot, one.identity, one.kind = of.held, of.slot, of.identity, of.kind
        return one

    seen = [plain(attempt(Mine, 3.0))]
    for _ in range(4):
        x, y = leaf(), leaf([1.0, 2.0, 3.0])
        mine, counting = made(Mine, x), made(Counting, y)
        results = {
            "mul": attempt(lambda: mine * y),
            "rmul": attempt(lambda: y * mine),
            "number": attempt(lambda: 2 * mine - 1),
            "sum": attempt(lambda: mine.sum(axis=0)),
            "itself": attempt(lambda: mine @ mine),
            "tanh": attempt(tanh, mine),
            "add": attempt(tnp.add, mine, mine),
            "super": attempt(lambda: super(Mine, mine).__mul__(y)),
            "index": attempt(lambda: mine[0]),
            "neg": attempt(operator.neg, mine),
            "counted": attempt(lambda: counting * x),
            "counted reflected": attempt(lambda: x * counting),
            "counted number": attempt(lambda: 2 * counting),
        }
        seen.append(results_seen(results, x))
        whole = jax.tree.leaves({"h": x * 2})[0]
        seen.append([type(whole).__mro__[1].__name__, plain(attempt(lambda: (whole * x).sum()))])
        seen.append(plain(attempt(lambda: tj.backward((whole * x).sum(), wrt=x))))
        tj.take()
    return seen


@scenario
def subclasses_of_ops():
    """The class of lifted functions is called as any other."""
    kind = type(tanh)

    class Loud(kind):
        def __call__(self, *args, **kwargs):
            calls.append(len(args))
            return super().__call__(*args, **kwargs)

    seen = [kind.__name__, kind.__module__, kind.__doc__, [one.__name__ for one in kind.__mro__[:1]]]
    for _ in range(3):
        calls, x = [], leaf()
        one = copy.copy(tanh)
        one.__class__ = Loud
        y = attempt(one, x)
        seen.append([plain(y), calls, plain(attempt(kind.__call__, tanh, x))])
        seen.append(plain([attempt(kind), callable(tanh)]))
    return seen


@scenario
def methods_replaced_for_a_while():
    seen = []
    for name in ("__mul__", "sum", "__rsub__"):
        before = vars(tj.Tensor)[name]
        x = leaf()
        for _ in range(3):
            (x * 2 * x).sum(), 1 - x
        setattr(tj.Tensor, name, lambda self, *args, before=before: (before(self, *args), "replaced"))
        try:
            seen.append(plain([attempt(lambda: x * 2), attempt(x.sum), attempt(lambda: 1 - x)]))
        finally:
            setattr(tj.Tensor, name, before)
        seen.append(plain([x * 2, x.sum(), 1 - x]))
        tj.take()
    return seen


METHODS = [
    "__add__",
    "__radd__",
    "__eq__",
    "__neg__",
    "__pow__",
    "__getitem__",
    "sum",
    "mean",
    "reshape",
    "clip",
    "dot",
]


@scenario
def signatures_and_words():
    x, seen = leaf(), []
    for name in METHODS:
        method = getattr(tj.Tensor, name)
        seen.append([name, attempt(lambda m=method: str(inspect.signature(m))), method.__doc__])
        seen.append([method.__name__, method.__qualname__, attempt(lambda m=method: m.__module__)])
        seen.append(attempt(lambda m=method: str(inspect.signature(m))))
        bound = getattr(x, name)
        seen.append([attempt(lambda b=bound: str(inspect.signature(b))), bound.__name__, bound.__doc__])
        words = pydoc.render_doc(method, renderer=pydoc.plaintext)
        seen.append(words.splitlines()[2:3])  # after the kind of thing it is
    for op in (tnp.exp, tnp.sum, tanh, tnn.softmax):
        seen.append([repr(op), op.__name__, (op.__doc__ or "")[:200], str(inspect.signature(op)), callable(op)])
        seen.append(attempt(lambda op=op: pydoc.render_doc(op, renderer=pydoc.plaintext)[:300]))
    return seen


@scenario
def what_methods_look_like():
    x, seen = leaf(), []
    for name in METHODS:
        method, bound = getattr(tj.Tensor, name), getattr(x, name)
        seen.append([name, repr(method), repr(bound).split(" of ")[0], bound.__self__ is x, bound == getattr(x, name)])
        seen.append(
            [inspect.isroutine(method), callable(method), inspect.ismethod(bound), hash(method) == hash(method)]
        )
        seen.append(
            [name in dir(tj.Tensor), name in vars(tj.Tensor), getattr(x, name).__func__ is vars(tj.Tensor)[name]]
        )
        seen.append([weakref.ref(method)() is method, hasattr(method, "__get__"), method == vars(tj.Tensor)[name]])
        seen.append(
            [method.__get__(x)() if name == "sum" else None, plain(attempt(method.__get__, None, tj.Tensor) == method)]
        )
    tj.take()
    return seen


@scenario
def methods_as_values():
    """Bound before, called later; as partial; from map and reduce."""
    seen = []
    for _ in range(VISITS):
        x = leaf()
        total, add = x.sum, x.__add__
        twice = functools.partial(tj.Tensor.__mul__, x)
        made = [
            total(),
            add(1),
            add(x),
            twice(2),
            functools.reduce(operator.add, [x] * 4),
            sum([x, x]),
            max(x, x.sum(), key=id) is not None,
        ]
        made += [
            *map(tj.Tensor.__neg__, [x, x]),
            operator.methodcaller("mean", 0, keepdims=True)(x),
            operator.itemgetter(1)(x),
        ]
        made.append(sorted([x[0], x[1], x[2]])[0])
        seen.append([plain(made), on_tape()])
        tj.take()
    return seen


@scenario
def how_things_print():
    seen = []
    for visit in range(VISITS):
        x = leaf()
        h = x * 2
        y = h.sum()
        with tj.Tape(label="printed") as tape:
            z = x.mean(axis=0) ** 3
        text = [
            repr(h),
            str(y),
            f"{y}",
            repr(tape),
            str(tape),
            repr(tj.current_tape()),
            repr(h.id),
            repr(h.id.producer),
        ]
        if visit % 2:
            text = [repr(z), *text]
        grads = tj.backward(y)
        seen.append([text, repr(grads), repr(h), repr(y), repr(tj.Tensor)])
    return seen


@scenario
def lines_are_the_users():
    seen = []

    def inner(x):
        return x * x

    for _ in range(3):
        x = leaf()
        # fmt: off
        a = (
            x
            * 2.0
            + tanh(
                x,
            )
        )
        # fmt: on
        b, _ = [inner(one) for one in (a, x)]
        c = functools.reduce(operator.add, [b, b, a])
        d = (lambda t: t.sum(axis=0))(c)
        e = d.reshape(1)[0]
        text = "f = e * 2"
        names = {"e": e}
        exec(compile(text, "made up.py", "exec"), names)
        seen.append([plain(action) for action in tj.current_tape()])
        seen.append(plain(tj.backward(names["f"], wrt=x)))
    return seen


@scenario
def cursor_goes_back_one_by_one():
    seen = []
    for visit in range(VISITS):
        x = leaf()
        with tj.Tape(label="walked") as tape:
            y = (tanh(x) * x).sum()
        if visit % 2:
            float(y)
        cursor = attempt(tape.cursor, y)
        seen.append([type(cursor).__name__, plain(tape)])
        seen.append(plain(attempt(tape.backward, y)))
    return seen


@scenario
def weak_references_die():
    seen = []
    for visit in range(VISITS):
        x = leaf()
        h = tanh(x)
        y = (h * x).sum()
        watched = [weakref.ref(one) for one in (x, h, y)]
        del h
        alive = [one() is not None for one in watched]
        if visit % 2:
            float(y)
        grads = tj.backward(y, wrt=x)
        seen.append([alive, [one() is not None for one in watched], plain(grads)])
        del x, y, grads
        gc.collect()
        seen.append([one() is not None for one in watched])
    return seen


# --- threads, tasks, contexts -----------------------------------------------------------------------------------------


def in_thread(function):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(attempt(function)), name="other")
    thread.start()
    thread.join(30)
    return seen


@scenario
def a_fresh_thread_has_its_own_tape():
    seen = []
    x = leaf()
    for _ in range(VISITS):
        here = x * 2

        def there(here=here):
            y = (x * x).sum()
            z = (here * x).sum()
            return [on_tape(), plain(tj.backward(y, wrt=x)), plain(attempt(tj.backward, z)), tj.is_recording()]

        seen.append([plain(in_thread(there)), on_tape(), plain(here), plain(tj.backward(here))])
        with tj.no_grad():
            seen.append(plain(in_thread(lambda: [tj.is_recording(), about(x * 2)])))
    return seen


@scenario
def a_tape_in_another_thread():
    seen = []
    x, tape = leaf(), tj.Tape(label="shared")
    for _ in range(4):
        with tape:
            y = (x * 2).sum()
            seen.append(plain(in_thread(lambda: tape.__enter__())))
        seen.append(plain(in_thread(lambda: [tape.backward(y, wrt=x)])))
        seen.append([plain(tape), plain(y)])
    return seen


@scenario
def threads_use_what_is_pending_here():
    seen = []
    for _ in range(VISITS):
        x = leaf()
        h = tanh(x)
        seen.append(plain(in_thread(lambda: [h * 2, float((h * x).sum())])))
        y = (h * x).sum()
        seen.append([plain(tj.backward(y, wrt=x)), on_tape()])
    return seen


@scenario
def tasks_have_their_own_tapes():
    seen = []

    async def work(i, x):
        y = x * (i + 2)
        await asyncio.sleep(0)
        z = (y * x).sum()
        await asyncio.sleep(0)
        return [on_tape(), plain(tj.backward(z, wrt=x)), plain(y), on_tape()]

    async def main():
        x = leaf()
        outer = x * 5
        parts = await asyncio.gather(*[work(i, x) for i in range(3)])
        thread = await asyncio.to_thread(lambda: [on_tape(), plain((x * 2).sum())])
        return [parts, thread, on_tape(), plain(tj.backward(outer, wrt=x))]

    for visit in range(4):
        with tj.no_grad() if visit == 3 else contextlib.nullcontext():
            seen.append(attempt(asyncio.run, main()))
        seen.append(on_tape())
    return seen


@scenario
def copied_contexts():
    seen = []
    for _ in range(VISITS):
        x = leaf()
        a = x * 2
        context = contextvars.copy_context()
        b = context.run(lambda: x * a)
        with tj.Tape(label="inner") as tape:
            inside = contextvars.copy_context()
            c = inside.run(lambda: x * 3)
        late = inside.run(lambda: x * 4)
        there = in_thread(lambda: context.run(lambda: [about(x * 5), on_tape()]))
        seen.append([plain(tape), on_tape(), plain(there), [about(one) for one in (a, b, c, late)]])
        seen.append(plain([attempt(tj.backward, (b + a).sum(), wrt=x), attempt(tj.backward, late)]))
        tj.take()
        empty = contextvars.Context()
        seen.append(plain(empty.run(lambda: [tj.backward((x * 2).sum(), wrt=x), on_tape()])))
    return seen


@scenario
def generators_that_wait():
    def waiting(x):
        with tj.Tape(label="waiting") as tape:
            y = x * 2
            yield tape
            z = (y * x).sum()
            yield tape.backward(z, wrt=x)

    seen = []
    for _ in range(VISITS):
        x = leaf()
        first, second = waiting(x), waiting(x)
        tapes = [next(first), next(second)]
        y = x * 3
        seen.append([plain(tapes), about(y)])
        seen.append(plain([attempt(next, first), attempt(next, second), tapes]))
        first.close(), second.close()
        seen.append(on_tape())
        tj.take()
    return seen


def main(names):
    names = names or list(SCENARIOS)
    # What is printed by the way must not be taken for an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps({"native": native is not None}), file=answers, flush=True)
    for i, name in enumerate(names):
        if i % 10 == 0:
            gc.freeze()  # some collect garbage, and need not look through what others left
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        print(json.dumps({"name": name, "seen": run(name)}), file=answers, flush=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(sys.argv[1:])
