"""The examples run, and what they learn is what the same loop learns with jax's own gradients."""

import importlib.util
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import tapejax as tj

FOLDER = Path(__file__).parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("[0-9]*.py"))


def load(stem):
    spec = importlib.util.spec_from_file_location(stem, FOLDER / f"{stem}.py")
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the other packages, when they are imported
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_short(path):
    assert len(path.read_text().splitlines()) <= 80


@pytest.mark.slow
def test_maml_equals_jax():
    maml = load("01_maml")
    p, tasks = maml.start(jax.random.key(0), width=4), maml.sine_tasks(jax.random.key(1), n=2, size=4)
    with jax.enable_x64(True):
        p, tasks = jax.tree.map(lambda leaf: leaf.astype("float64"), (p, tasks))
        ours = jax.jit(tj.value_and_grad(maml.meta_loss))(p, tasks)
        judge = jax.value_and_grad(lambda p: maml.meta_loss(p, tasks, jax.grad))(p)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), ours, judge)
    losses = maml.main(20)
    assert losses[-1] < losses[3]


def test_gradient_penalty_equals_jax():
    penalty = load("02_gradient_penalty")
    p, batch = penalty.start(jax.random.key(0), width=4), penalty.data(jax.random.key(1), n=4)
    with jax.enable_x64(True):
        p, batch = jax.tree.map(lambda leaf: leaf.astype("float64"), (p, batch))
        tensors = {name: tj.tensor(value, requires_grad=True) for name, value in p.items()}
        with tj.Tape():
            loss = penalty.critic_loss(tensors, *batch)
            grads = tj.backward(loss)
        value, judge = jax.jit(jax.value_and_grad(penalty.judge))(p, *batch)
    np.testing.assert_allclose(loss.value, value, rtol=1e-10)
    for name, tensor in tensors.items():
        np.testing.assert_allclose(grads[tensor], judge[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("stem", ["03_equinox", "04_flax_nnx"])
@pytest.mark.parametrize("jit", [pytest.param(lambda f: f, marks=pytest.mark.slow), tj.jit, pytest.param(jax.jit, marks=pytest.mark.slow)], ids=["eager", "tapejax.jit", "jax.jit"])  # fmt: skip
def test_training_equals_jax(stem, jit):
    pytest.importorskip(stem[3:].split("_")[0])
    example = load(stem)
    ours = example.train(tj.value_and_grad, jit)
    judge = example.train(jax.value_and_grad, jax.jit)
    np.testing.assert_allclose(ours, judge, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_one_decorator_changes_nothing_but_speed():
    eager, compiled = load("05_optax_step").main()
    np.testing.assert_allclose(eager, compiled, rtol=1e-5)
    assert eager[-1] < 0.1 * eager[0]


@pytest.mark.slow
@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jax.jit"])
def test_state_space_step_equals_jax(jit):
    example = load("07_selective_state_space")
    values = example.start(jax.random.key(0), width=4, inner=4, state=2, blocks=1)
    tokens, symbols = example.data(jax.random.key(1), batch=2, length=8)
    example.updates_of = lambda gradients, state: (gradients, state)  # a step then adds the gradients

    def loss(values):
        x = example.tnn.embedding(values["embed"], tokens)
        for one in values["blocks"]:
            x = example.block(one, x)
        logits = example.tnn.rms_norm(x[:, -example.ASKED :], values["norm"]) @ values["head"]
        return example.tnn.cross_entropy(logits, symbols)

    moved, _, value, _ = jit(example.step)(values, None, tokens, symbols)
    judge, gradients = jax.jit(jax.value_and_grad(loss))(values)
    np.testing.assert_allclose(value, judge, rtol=1e-5)
    jax.tree.map(
        lambda new, old, g: np.testing.assert_allclose(new - old, g, rtol=1e-3, atol=1e-5), moved, values, gradients
    )


@pytest.mark.slow
def test_selective_copying_asks_for_the_symbols_in_order():
    example = load("07_selective_state_space")
    tokens, symbols = example.data(jax.random.key(0), batch=5, length=20)
    for row, asked in zip(np.asarray(tokens), np.asarray(symbols), strict=True):
        assert row[row < example.SYMBOLS].tolist() == asked.tolist()
        assert (row[-example.ASKED :] == example.MARK).all()


@pytest.mark.slow
def test_wrong_rules_are_named():
    reports = load("08_verify_custom_rule").main()
    assert reports["exact"].ok
    assert reports["shortcut"].first_wrong.worst.input == "argument 0"
    assert reports["forgotten_sum"].first_wrong.worst.input == "argument 1"


@pytest.mark.slow
def test_a_long_recurrence_equals_jax():
    example = load("06_checkpoint")
    losses, p = example.train(steps=400, rounds=3)
    xs, ys = example.data(jax.random.key(0), 400)

    def judge(p):
        _, error = example.advance.function(p, (jax.numpy.zeros(8), 0.0), xs, ys)
        return error / len(xs)

    judged, wanted = example.start(), []
    for _ in range(3):
        value, gradient = jax.jit(jax.value_and_grad(judge))(judged)
        judged = jax.tree.map(lambda leaf, g: leaf - 0.3 * g, judged, gradient)
        wanted.append(float(value))
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), p, judged)
    assert losses[-1] < losses[0]
