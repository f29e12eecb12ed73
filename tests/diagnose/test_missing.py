"""explain: one cut gradient per cause, with the line that cuts it. The line is the one marked `# here`."""

import inspect

import jax
import jax.numpy as jnp
import pytest

import tapejax as tj

CASES = []


def case(cause, op="", share=0.0, x=(1.0, 2.0)):
    def add(function):
        CASES.append((function, cause, op, share, x))
        return function

    return add


@case("unused")
def never_used(x, z):
    return (z * z).sum()


@case("cut", "numpy()")
def by_numpy(x, z):
    return (z * x.numpy()).sum()  # here


@case("cut", "item()")
def by_item(x, z):
    scale = x.sum().item()  # here
    return (z * scale).sum()


@case("cut", "float()")
def by_float(x, z):
    scale = float(x[0])  # here
    return (z * scale).sum()


@case("cut", "int()")
def by_int(x, z):
    count = int(x[1])  # here
    return (z * count).sum()


@case("cut", "tolist()")
def by_tolist(x, z):
    again = tj.tensor(x.tolist(), requires_grad=True)  # here
    return (z * again).sum()


@case("cut", "a truth value (`if`, `while`, `and`, `or`, `not`)")
def by_a_branch(x, z):
    if x.sum():  # here
        return (2.0 * z).sum()
    return z.sum()


@case("cut", "detach")
def by_detach(x, z):
    fixed = (3.0 * x).detach()  # here
    return (z * fixed).sum()


@case("cut", "detach")
def by_stop_gradient(x, z):
    fixed = tj.stop_gradient(x)  # here
    return (z * fixed).sum()


@case("cut", "no_grad")
def by_no_grad(x, z):
    with tj.no_grad():  # here
        scale = 2.0 * x
    return (z * scale).sum()


@case("cut", "jax.tree.map")
def by_tree_map(x, z):
    doubled = jax.tree.map(lambda a: 2.0 * a, x)  # here
    return (z * doubled).sum()


@case("cut", "detach")
def root_is_detached(x, z):
    return (x * z).sum().detach()  # here


@case("partial", "detach")
def a_part_by_detach(x, z):
    fixed = x.detach()  # here
    return (x * fixed).sum()


@case("flat", "relu", 1.0)
def dead_relu(x, z):
    return tj.nn.relu(x - 5.0).sum()  # here


@case("flat", "relu", 0.5)
def half_dead_relu(x, z):
    return tj.nn.relu(x - 1.5).sum()  # here


@case("flat", "round", 1.0)
def rounding(x, z):
    return (tj.numpy.round(x) * z).sum()  # here


@case("flat", "floor", 1.0)
def by_floor(x, z):
    return tj.numpy.floor(x).sum()  # here


@case("flat", "where", 1.0)
def masked_out(x, z):
    kept = tj.numpy.where(x > 9.0, x, 0.0)  # here
    return kept.sum()


@case("flat", "multiply", 1.0)
def times_zero(x, z):
    return (x * 0.0).sum()  # here


@case("flat", "sign", 1.0)
def only_its_sign(x, z):
    return (tj.numpy.sign(x) * z).sum()  # here


@case("saturated", "sigmoid", 1.0)
def saturated_sigmoid(x, z):
    return tj.nn.sigmoid(200.0 * x).sum()  # here


@case("saturated", "tanh", 1.0)
def saturated_tanh(x, z):
    return tj.numpy.tanh(100.0 * x).sum()  # here


@case("saturated", "clip", 0.5)
def beyond_the_clip(x, z):
    return tj.numpy.clip(x, 0.0, 1.5).sum()  # here


@case("saturated", "exp", 1.0)
def underflow(x, z):
    return tj.numpy.exp(-1000.0 * x).sum()  # here


@case("none")
def nothing_wrong(x, z):
    return (x * x).sum()


@pytest.mark.parametrize(("function", "cause", "op", "share", "x"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_why(function, cause, op, share, x):
    x = tj.tensor(x, requires_grad=True)
    z = tj.tensor([3.0, 4.0], requires_grad=True)
    with tj.Tape():
        found = tj.explain(function(x, z), x)
    assert (found.cause, found.op, found.share) == (cause, op, share), found
    lines, start = inspect.getsourcelines(function)
    marked = [start + i for i, line in enumerate(lines) if "# here" in line]
    assert found.lineno == (marked[0] if marked else 0)
    assert not marked or found.file == __file__
    assert found.to_json()["cause"] == cause


def test_the_error_of_a_missing_gradient_names_the_cut():
    x = tj.tensor([1.0, 2.0], requires_grad=True)
    z = tj.tensor([3.0, 4.0], requires_grad=True)
    with tj.Tape() as tape:
        loss = (z * x.numpy()).sum()
    line = inspect.currentframe().f_lineno - 1
    with pytest.raises(KeyError, match=rf"numpy\(\) took it off the tape at .*test_missing.py:{line}"):
        tape.backward(loss)[x]


def test_an_integer_has_no_gradient():
    x = tj.tensor(jnp.array([1, 2]))
    y = tj.tensor(1.0, requires_grad=True) * x
    assert tj.explain(y.sum(), x).cause == "cut"
