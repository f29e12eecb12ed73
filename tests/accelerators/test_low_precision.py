"""The small transformer of the example, computed in bfloat16 and float16 with float32 parameters, follows float32."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from tests.accelerators.subprocesses import ROOT

BAND = 0.05  # of losses that fall from 2.9 to below 2.4
UPDATES = 12


@pytest.fixture(scope="module")
def model():
    sys.path.insert(0, str(ROOT / "examples" / "09_many_processes"))
    try:
        import model

        return model
    finally:
        sys.path.pop(0)
        sys.modules.pop("model", None)


def batch_of(model, number):
    drawn = np.random.default_rng(number)
    first, pace = drawn.integers(0, model.WORDS, (16, 1)), drawn.integers(1, 4, (16, 1))
    words = (first + pace * np.arange(model.LENGTH + 1)) % model.WORDS
    kept = np.ones((16, model.LENGTH, model.WIDTH), "f")
    return words[:, :-1], np.eye(model.WORDS, dtype="f")[words[:, 1:]], kept


def in_dtype(model, dtype):
    def loss(p, words, targets, kept):
        p = {name: w.astype(dtype) for name, w in p.items()}
        return model.loss_of(p, words, targets.astype(dtype), kept.astype(dtype))

    return loss


def as_tensors(params):
    return {name: tj.tensor(w) for name, w in params.items()}


def descend(params, grads):
    return {name: params[name] - 0.3 * grads[name] for name in params}


def trained(model, dtype):
    step = jax.jit(tj.value_and_grad(in_dtype(model, dtype)))
    params, losses = {name: jnp.asarray(w) for name, w in model.start_values().items()}, []
    for number in range(UPDATES):
        loss, grads = step(params, *batch_of(model, number))
        assert loss.dtype == dtype
        assert {grad.dtype for grad in grads.values()} == {jnp.dtype("float32")}
        params = descend(params, grads)
        losses.append(float(loss))
    return losses


@pytest.fixture(scope="module")
def in_float32(model):
    losses = trained(model, jnp.float32)
    assert losses[-1] < losses[0] - 0.4
    return losses


@pytest.mark.slow
def test_bfloat16_follows_float32(model, in_float32):
    found = trained(model, jnp.bfloat16)
    assert max(abs(a - b) for a, b in zip(found, in_float32, strict=True)) < BAND


@pytest.mark.slow
def test_float16_recovers_from_an_overflow(model, in_float32):
    loss = in_dtype(model, jnp.float16)

    @jax.jit
    def step(params, scaling, *batch):
        grads = tj.grad(lambda p: scaling.scale(loss(p, *batch)))(params)
        return scaling.unscale(grads), tj.training.all_finite(grads), loss(as_tensors(params), *batch).value

    params = {name: jnp.asarray(w) for name, w in model.start_values().items()}
    scaling, losses, overflows = tj.training.LossScale.start(2.0**18), [], 0
    while len(losses) < UPDATES:
        grads, finite, value = step(params, scaling, *batch_of(model, len(losses)))
        scaling = scaling.adjust(finite)
        if finite:
            params = descend(params, grads)
            losses.append(float(value))
        else:
            overflows += 1
            assert overflows < 12
    assert overflows > 1
    assert max(abs(a - b) for a, b in zip(losses, in_float32, strict=True)) < BAND
