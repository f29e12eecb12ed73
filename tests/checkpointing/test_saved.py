"""Hooks on what ops keep: called in pairs, and the gradients are the same."""

import gc

import jax
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tapejax import errors

X = np.random.default_rng(0).normal(size=(4, 4)).astype("float32")


def leaf(value=X):
    return tj.tensor(value, requires_grad=True)


def f(x, w):
    return (tnp.tanh(x @ w) * tnp.exp(x)).sum()


def test_hooks_are_called_for_what_is_kept():
    calls = []

    def pack(array):
        calls.append("pack")
        return ("packed", array)

    def unpack(handle):
        calls.append("unpack")
        assert handle[0] == "packed"
        return handle[1]

    x, w = leaf(), leaf(X + 1)
    with tj.saved_tensors_hooks(pack, unpack):
        y = f(x, w)
    packed = calls.count("pack")
    assert packed >= 5
    assert "unpack" not in calls
    ours = tj.backward(y)
    assert calls.count("unpack") == packed == calls.count("pack")
    plain = tj.backward(f(x, w))
    np.testing.assert_allclose(ours[x], plain[x], rtol=1e-5)
    np.testing.assert_allclose(ours[w], plain[w], rtol=1e-5)
    assert calls.count("pack") == packed  # outside, nothing is packed


def test_a_hook_may_change_what_is_read():
    x = leaf()
    with tj.saved_tensors_hooks(lambda a: a, lambda a: 2 * a):
        y = (x * x).sum()
    np.testing.assert_allclose(tj.backward(y)[x], 4 * X)


def test_hooks_nest_and_hold_for_derivatives_of_derivatives():
    names, x = [], leaf()
    outer = tj.saved_tensors_hooks(lambda a: names.append("outer") or a, lambda a: a)
    inner = tj.saved_tensors_hooks(lambda a: names.append("inner") or a, lambda a: a)
    with tj.Tape(), outer:
        with inner:
            y = tnp.sin(x)
        assert set(names) == {"inner"}
        z = (y * y).sum()
        assert "outer" in names
        gradient = tj.backward(z, create_graph=True)[x]
        second = tj.backward(gradient.sum())[x]
    np.testing.assert_allclose(second, 2 * np.cos(2 * X), rtol=1e-4, atol=1e-5)


def test_what_unpack_returns_is_checked():
    x = leaf()
    for wrong in (lambda a: a[:2], lambda a: np.asarray(a, "float64"), lambda a: None):
        with tj.saved_tensors_hooks(lambda a: a, wrong):
            y = (x * x).sum()
        with pytest.raises(errors.BackwardError, match="unpack returned"):
            tj.backward(y)
    with pytest.raises(errors.ArgumentError, match="hook"):
        tj.saved_tensors_hooks(1, 2)


@pytest.mark.parametrize("where", ["host", "disk"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kept_elsewhere(where, dtype, tmp_path):
    x, w = tj.tensor(X, dtype=dtype, requires_grad=True), tj.tensor(X + 1, dtype=dtype, requires_grad=True)
    plain = tj.backward(f(x, w))
    with tj.save_on_cpu() if where == "host" else tj.save_to_disk(tmp_path):
        y = f(x, w)
    if where == "disk":
        assert len(list(tmp_path.iterdir())) >= 2
    grads = tj.backward(y)
    np.testing.assert_allclose(np.float32(grads[x]), np.float32(plain[x]), rtol=0.02)
    assert grads[x].dtype == x.dtype
    assert grads[x].sharding == x.sharding
    del y
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_kept_elsewhere_is_not_alive_here():
    x = leaf(np.ones(10_000, "float32"))
    chain = lambda: tnp.exp(tnp.sin(tnp.exp(tnp.sin(tnp.exp(x))))).sum()
    live = lambda: sum(array.nbytes for array in jax.live_arrays())
    tj.backward(chain())
    gc.collect()
    before = live()
    with tj.save_on_cpu():
        y = chain()
    assert live() - before < 10_000
    tj.backward(y)


def test_the_inputs_of_a_checkpoint_are_kept_elsewhere_too(tmp_path):
    x, w = leaf(), leaf(X + 1)
    plain = tj.backward(f(x * 2.0, w))
    with tj.save_to_disk(tmp_path):
        y = tj.checkpoint(f, x * 2.0, w)
    assert len(list(tmp_path.iterdir())) == 1  # w is a leaf, and lives anyway
    grads = tj.backward(y)
    np.testing.assert_allclose(grads[x], plain[x], rtol=1e-5)


def test_a_folder_that_is_missing_or_emptied(tmp_path):
    with pytest.raises(errors.ArgumentError, match="not a folder"):
        tj.save_to_disk(tmp_path / "missing")
    x = leaf()
    with tj.save_to_disk(tmp_path):
        y = tnp.exp(x).sum()
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.raises(errors.BackwardError, match="cannot be read"):
        tj.backward(y)
