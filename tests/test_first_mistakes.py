"""What newcomers write first and does not exist here: each gets an answer that names the thing to use."""

import math
import subprocess
import sys
import traceback
from math import sqrt

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from tapejax.ground import habits


def leaf(values=(1.0, 2.0)):
    return tj.tensor(np.asarray(values, np.float32), requires_grad=True)


def as_in_tensorflow():
    with tj.GradientTape() as tape:
        tape.watch(1)


def as_in_torch():
    w = leaf()
    (w * w).sum().backward()
    return w.grad


def as_in_torch_again():
    w = leaf()
    grads = (w * w).sum().backward()
    with tj.no_grad():
        w = w - 0.1 * grads[w]
    (w * w).sum().backward()


def tape_of_a_sum():
    x = leaf()
    with tj.Tape() as tape:
        (x * x).sum()
    return tape


MISTAKES = {
    "tape.watch": (lambda: tape_of_a_sum().watch(leaf()), "requires_grad=True"),
    "tj.zeros": (lambda: tj.zeros(3), "tapejax.numpy.zeros"),
    "tj.ones": (lambda: tj.ones(3), "tapejax.tensor(jnp.ones(shape), requires_grad=True)"),
    "tj.relu": (lambda: tj.relu(leaf()), "tapejax.nn.relu"),
    "tj.sin": (lambda: tj.sin(leaf()), "tapejax.numpy.sin"),
    "tj.normal": (lambda: tj.normal(3), "tapejax.random.normal"),
    "tj.randn": (lambda: tj.randn(3), "jax.random.normal(key, shape)"),
    "tj.nn.Linear": (lambda: tj.nn.Linear(3, 4), "x @ w + b"),
    "tj.nn.Module": (lambda: tj.nn.Module, "equinox"),
    "tj.nn.ReLU": (lambda: tj.nn.ReLU(), "tapejax.nn.relu(x)"),
    "tj.optim": (lambda: tj.optim.SGD, "optax"),
    "tape.gradient": (lambda: tape_of_a_sum().gradient, "tape.backward(loss)[x]"),
    "with tj.GradientTape()": (as_in_tensorflow, "with tapejax.Tape() as tape"),
    "w.grad": (as_in_torch, "grads = loss.backward(); grads[x]"),
    "jax.grad(f)(tensor)": (lambda: jax.grad(lambda x: (x * x).sum())(leaf()), "tapejax.grad"),
    "math.sin(tensor)": (lambda: math.sin(leaf(3.0)) * leaf(), "tapejax.numpy.sin"),
    "sqrt(tensor)": (lambda: sqrt(leaf(3.0)), "tapejax.numpy.sqrt"),
    "math.erf in tj.grad": (lambda: tj.grad(lambda x: math.erf(x))(1.0), "tapejax.scipy.special.erf"),
    "backward of a number": (lambda: tj.backward(leaf().sum().item()), "x.item() leave"),
    "an update under no_grad": (as_in_torch_again, "tapejax.tensor(w.value - step, requires_grad=True)"),
    "tj.gradient": (lambda: tj.gradient(lambda x: x), "tapejax.grad(f)(x)"),
    "tape.grad": (lambda: tape_of_a_sum().grad, "tape.backward(loss)[x]"),
    "tj.gradcheck": (lambda: tj.gradcheck(jnp.sum, (leaf(),)), "tapejax.check_grads(f, (x,), order=1)"),
    "tj.autograd.Function": (lambda: tj.autograd.Function, "tapejax.custom_op"),
    "tj.custom_op of a class": (lambda: tj.custom_op(type("Square", (), {})), "backward(ct, out, x)"),
    "tj.cat": (lambda: tj.cat([leaf(), leaf()]), "tapejax.numpy.concatenate"),
    "jnp.sin(tensor)": (lambda: jnp.sin(leaf()), "tapejax.numpy.sin"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_first_mistake_names_the_thing_to_use(name):
    mistake, answer = MISTAKES[name]
    with pytest.raises(tj.TapejaxError) as caught:
        mistake()
    assert answer in caught.value.fix
    assert "test_first_mistakes.py" in str(caught.value.at)


def test_an_unknown_name_is_plainly_unknown_and_the_known_ones_are_there():
    for module in (tj, tj.nn, tj.numpy):
        assert not hasattr(module, "no_such_name_anywhere")
        assert not hasattr(module, "__wrapped__")
    assert not hasattr(tape_of_a_sum(), "no_such_name")
    for name in habits.NAMES:
        assert not hasattr(tj, name), f"{name} exists: its answer is never given"


def test_what_only_looks_at_a_number_may_be_asked_of_a_tensor():
    x = leaf(2.0)
    assert float(x) == 2.0
    assert math.isfinite(x)
    assert math.isclose(x, 2.0)
    assert math.exp(x.item()) == math.exp(2.0)
    with tj.no_grad():
        assert math.sqrt(x) == math.sqrt(2.0)
    assert math.sqrt(x.detach()) == math.sqrt(2.0)


@pytest.mark.parametrize("order", [1, 2])
def test_check_grads_takes_tensors_as_well(order):
    tj.check_grads(lambda x, scale: (x * x).sum() * scale["by"], (leaf(), {"by": tj.tensor(2.0)}), order=order)


def test_a_shape_error_begins_with_the_users_lines():
    try:
        leaf() @ tj.tensor(np.ones((3, 4), np.float32))
    except tj.TapejaxError as error:
        shown = "".join(traceback.format_exception(error))
    assert shown.count("Traceback (most recent call last)") == 1  # not jax's own lines first
    assert "test_first_mistakes.py" in shown.splitlines()[1]
    assert "float32[2] float32[3,4]" in shown


def test_check_grads_prints_the_worst_element():
    @tj.custom_op
    def square(x):
        return x * x

    @square.defbackward
    def backward(ct, out, x):
        return (ct * 2 * x * jnp.array([1.0, 1.0, 1.0, 1.0, 1.01, 1.0, 3.0, 1.0]),)

    x = jnp.arange(1.0, 9.0)
    with pytest.raises(AssertionError) as caught:
        tj.check_grads(square, (x,), order=1, modes=["fwd"])
    assert "at [6]" in str(caught.value)
    assert "in 8" in caught.value.action


def test_the_command_line_ends_quietly_when_nobody_reads_on():
    command = [sys.executable, "-m", "tapejax", "coverage"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    process.stdout.close()
    complaint = process.stderr.read()
    process.stderr.close()
    assert process.wait(120) == 0
    assert complaint == ""


@pytest.mark.skipif("jax.default_backend() != 'cpu'", reason="the name of a CPU is looked for")
def test_devices_of_a_cpu_that_are_many_are_called_simulated(monkeypatch):
    from tapejax.verify import report, suite

    for describe in (report.device, suite.describe_device):
        assert "simulated" not in describe() or jax.device_count() > 1
    monkeypatch.setattr(jax, "device_count", lambda: 4)
    for describe in (report.device, suite.describe_device):
        assert describe() == "4 x cpu (cpu, simulated)"
