"""explain: one cut gradient per cause, with the line that cuts it. The line is the one marked `# here`."""

import inspect

import jax.numpy as jnp
import pytest

import tapejax as tj
from tests.diagnose.cut_gradients import CASES


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
    assert not marked or found.file == inspect.getsourcefile(function)
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
