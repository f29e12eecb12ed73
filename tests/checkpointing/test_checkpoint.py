"""checkpoint: the gradients are those without it, to the last bit; what it keeps is its inputs."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tapejax import errors
from tapejax.checkpointing import CheckpointAction

X = np.random.default_rng(0).normal(size=(4, 3))
W = np.random.default_rng(1).normal(size=(3, 3))


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=[True, False], ids=["fused", "one by one"])
def fusion(request):
    before, tj.fusion.enabled = tj.fusion.enabled, request.param
    yield
    tj.fusion.enabled = before


def leaf(value):
    return tj.tensor(value, requires_grad=True)


def network(x, w):
    for _ in range(3):
        x = tnp.tanh(x @ w) + tnp.sin(x)
    return tj.nn.softmax(x) * x


def same(a, b):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


# --- what the ancestor documents, one test each --------------------------------------------------------


def test_one_action_is_recorded_and_the_function_runs_again_in_backward():
    runs = []

    def f(x):
        runs.append(tj.is_recording())
        return tnp.sin(x).sum()

    x = leaf(X)
    with tj.Tape() as tape:
        y = tj.checkpoint(f, x)
    assert [type(action) for action in tape] == [CheckpointAction]
    assert runs == [False]
    same(tape.backward(y)[x], np.cos(X))
    assert runs == [False, True]


def test_one_input():
    x = leaf(X)
    same(tj.backward(tj.checkpoint(tnp.exp, x))[x], tj.backward(tnp.exp(x))[x])


def test_many_inputs():
    x, w = leaf(X), leaf(W)
    given = []

    def of_a_list(inputs):
        given.append([type(inputs), *inputs])
        return network(*inputs)

    ours = tj.backward(tj.checkpoint_multi(of_a_list, (x, w)))
    assert [kind for kind, *_ in given] == [list, list], "the first run, and the one in backward"
    assert [tensor.id for tensor in given[1][1:]] == [x.id, w.id]
    plain = tj.backward(network(x, w))
    same(ours[x], plain[x])
    same(ours[w], plain[w])


def test_empty_inputs_are_an_error():
    for call in (lambda: tj.checkpoint_multi(lambda: 0, []), lambda: tj.checkpoint(lambda: 0)):
        with pytest.raises(errors.ArgumentError, match="at least one input"):
            call()


def test_random_numbers_are_replayed_and_the_stream_goes_on():
    def dropout(x):
        return (x * tj.random.bernoulli(0.5, x.shape)).sum()

    x = leaf(X)
    tj.random.seed(7)
    y = tj.checkpoint(dropout, x)
    between = tj.random.get_state()
    grads = tj.backward(y)
    assert tj.random.get_state() == between
    tj.random.seed(7)
    same(grads[x], tj.backward(dropout(x))[x])
    assert tj.random.get_state() == between


def test_the_input_keeps_its_identity():
    seen = []

    def f(x):
        seen.append(x.id)
        return x * x

    x = leaf(X)
    h = x + 1.0
    grads = tj.backward(tj.checkpoint(f, h))
    assert seen == [h.id, h.id]
    same(grads[h], 2 * (X + 1.0))
    same(grads[x], grads[h])


def test_the_recomputation_stops_at_the_inputs():
    pulled = []

    @tj.custom_op
    def before(x):
        return 2.0 * x

    @before.defbackward
    def _(ct, out, x):
        return (2.0 * ct,)

    class Watch(tj.TapeAction):
        def backward(self, grads):
            pulled.append(1)

    x = leaf(X)
    with tj.Tape() as tape:
        tj.record(Watch())
        y = tj.checkpoint(tnp.sin, before(x))
        tape.backward(y)
    assert pulled == [1]


def test_nested():
    x, w = leaf(X), leaf(W)
    inner = lambda x: tj.checkpoint(network, x, w)
    outer = lambda x: tj.checkpoint(lambda x: tnp.sin(inner(x)), x) * 2.0
    ours, plain = tj.backward(tj.checkpoint(outer, x)), tj.backward(tnp.sin(network(x, w)) * 2.0)
    same(ours[x], plain[x])
    same(ours[w], plain[w])


def test_an_error_in_the_recomputation_leaves_everything_as_it_was():
    runs = []

    def f(x):
        runs.append(tj.random.normal((2,)))
        if len(runs) == 2:
            raise ValueError("on purpose")
        return tnp.sin(x)

    x = leaf(X)
    h = x * 1.0
    y = tj.checkpoint(f, h)
    state, tape, numpys = tj.random.get_state(), tj.current_tape(), np.random.get_state()[2]
    with pytest.raises(errors.BackwardError, match="on purpose") as caught:
        tj.backward(y)
    assert "Checkpoint(" in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)
    assert [type(action).__name__ for action in caught.value.actions] == ["OpAction", "CheckpointAction"]
    assert tj.random.get_state() == state
    assert np.random.get_state()[2] == numpys
    assert tj.current_tape() is tape
    assert tj.is_recording()
    assert len(tape) == 0
    same(runs[0], runs[1])
    runs.pop()
    with tj.no_grad(), pytest.raises(ValueError, match="on purpose"):
        tj.checkpoint(f, x)
    assert tj.is_recording()


# --- equal to the last bit -------------------------------------------------------------------------------


def with_dropout(x, w):
    x = tnp.tanh(x @ w)
    x = tj.nn.layer_norm(x) * tj.random.bernoulli(0.7, x.shape)
    return (x @ w).sum() + (x * x).mean()


@pytest.mark.parametrize(("function", "verify"), [(network, "outputs"), (with_dropout, "all"), (with_dropout, False)])
def test_gradients_are_equal_bit_for_bit(function, verify, fusion):
    x, w = leaf(X), leaf(W)

    def loss(call):
        tj.random.seed(3)
        h = x * 0.5  # used inside and outside: sums must come in the same order
        return (call(function, h, w) * h.sum()).sum() + (h * h).sum() + w.sum()

    with tj.Tape() as tape:
        ours = tape.backward(loss(lambda f, *a: tj.checkpoint(f, *a, verify=verify)))
    tj.fusion.enabled = False  # a program of several ops may round differently
    with tj.Tape() as tape:
        plain = tape.backward(loss(lambda f, *a: f(*a)))
    same(ours[x], plain[x])
    same(ours[w], plain[w])


def test_closures_inputs_without_gradient_and_other_arguments():
    x, w, scale = leaf(X), leaf(W), tj.tensor(2.0)

    def f(tree, mode, *, power):
        y = tree["x"] @ w * tree["scale"]
        return {"y": tnp.sin(y) if mode == "sin" else y, "n": 3, "power": y**power}, None

    def loss(call):
        (out, none) = call(f, {"x": x, "scale": scale}, "sin", power=2)
        assert none is None
        assert out["n"] == 3
        return (out["y"] + out["power"]).sum()

    with tj.Tape() as tape:
        value = loss(tj.checkpoint)
        assert {id.number for id in tape[0].inputs} == {x.id.number, w.id.number}
        ours = tape.backward(value)
    plain = tj.backward(loss(lambda f, *a, **k: f(*a, **k)))
    same(ours[x], plain[x])
    same(ours[w], plain[w])
    assert scale not in ours


def test_results_that_are_inputs_or_come_twice():
    x, w = leaf(X), leaf(W)

    def f(x):
        y = tnp.sin(x)
        return x, y, y, w, tj.stop_gradient(y)

    a, y, again, b, stopped = tj.checkpoint(f, x)
    assert a is x
    assert b is w
    assert again.id == y.id
    assert not stopped.requires_grad
    grads = tj.backward((y * again + a).sum() + b.sum() + stopped.sum())
    np.testing.assert_allclose(grads[x], 2 * np.sin(X) * np.cos(X) + 1.0, rtol=1e-14)
    same(grads[w], np.ones_like(W))


def test_nothing_to_differentiate_leaves_nothing():
    with tj.Tape() as tape:
        y = tj.checkpoint(tnp.sin, tj.tensor(X))
        with tj.no_grad():
            z = tj.checkpoint(tnp.sin, leaf(X))
    assert len(tape) == 0
    assert not y.requires_grad
    assert not z.requires_grad
    same(y.value, jnp.sin(X))


def test_unused_and_wrt():
    x, w = leaf(X), leaf(W)
    with tj.Tape() as tape:
        y = tj.checkpoint(lambda x, w: tnp.sin(x), x, w)
        grads = tape.backward(y)
    assert x in grads
    assert w not in grads
    runs = []

    def f(x):
        runs.append(1)
        return tnp.sin(x).sum()

    with tj.Tape() as tape:
        y = tj.checkpoint(f, x) + w.sum()
        grads = tape.backward(y, wrt=w)
    assert len(runs) == 1
    assert x not in grads


def test_retained_tape_runs_again_each_time():
    x = leaf(X)
    with tj.Tape() as tape:
        y = tj.checkpoint(tnp.sin, x)
    first = tape.backward(y, retain_tape=True)[x]
    same(first, tape.backward(y)[x])


@pytest.mark.parametrize("policy", [None, "dots"])
def test_derivatives_of_derivatives(policy):
    x, w = leaf(X), leaf(W)
    f = lambda x: tnp.tanh(x @ w)
    g = lambda x: jnp.sum(jnp.tanh(x @ W))
    with tj.Tape():
        gradient = tj.backward(tj.checkpoint(f, x, policy=policy).sum(), create_graph=True)[x]
        second = tj.backward((gradient**2).sum())[x]
    first = jax.grad(g)
    twice = jax.grad(lambda x: (first(x) ** 2).sum())
    np.testing.assert_allclose(gradient.value, first(X), rtol=1e-10)
    np.testing.assert_allclose(second, twice(X), rtol=1e-10)


def test_a_gradient_inside_and_transforms_around():
    x, w = leaf(X), leaf(W)
    inner = lambda x: tj.grad(lambda x: (tnp.tanh(x @ w) ** 2).sum())(x)
    judge = lambda x, w: (jax.grad(lambda x: (jnp.tanh(x @ w) ** 2).sum())(x) ** 3).sum()
    grads = tj.backward((tj.checkpoint(inner, x) ** 3).sum())
    for tensor, want in zip((x, w), jax.grad(judge, (0, 1))(X, W), strict=True):
        np.testing.assert_allclose(grads[tensor], want, rtol=1e-10)
    f = lambda x: tj.checkpoint(lambda x: tnp.sin(x), x)
    g = jnp.sin
    np.testing.assert_allclose(tj.jacrev(f)(X[0]), jax.jacrev(g)(X[0]), rtol=1e-12)
    np.testing.assert_allclose(
        tj.hessian(lambda x: f(x).sum())(X[0]), jax.hessian(lambda x: g(x).sum())(X[0]), rtol=1e-12
    )
    np.testing.assert_allclose(tj.jvp(f, (X[0],), (X[1],))[1], jax.jvp(g, (X[0],), (X[1],))[1], rtol=1e-12)


def test_actions_and_custom_ops_of_ones_own_inside():
    x = leaf(X)

    @tj.custom_op
    def double(x):
        return 2.0 * x

    @double.defbackward
    def _(ct, out, x):
        return (2.0 * ct,)

    python = tj.custom_op(lambda x: np.asarray(x) ** 2, lambda ct, out, x: (2 * x * ct,), jit=False, name="square")

    class Extra(tj.TapeAction):  # says nothing about what it reads, and adds to a tensor from outside
        def backward(self, grads):
            grads.insert(x.id, np.ones_like(X))

    def f(h):
        tj.record(Extra())
        return double(python(h))

    h = x * 1.0
    grads = tj.backward(tj.checkpoint(f, h))
    same(grads[h], 4.0 * X)
    same(grads[x], 4.0 * X + 1.0)


def test_bad_arguments():
    x = leaf(X)
    with pytest.raises(errors.ArgumentError, match="takes a function"):
        tj.checkpoint(3, x)
    with pytest.raises(errors.ArgumentError, match="verify"):
        tj.checkpoint(tnp.sin, x, verify="maybe")
    with pytest.raises(errors.ArgumentError, match="policy"):
        tj.checkpoint(tnp.sin, x, policy="most")
    with pytest.raises(errors.ArgumentError, match="list of inputs"):
        tj.checkpoint_multi(tnp.sin, x)

    async def f(x):
        return x

    with pytest.raises(errors.ArgumentError, match="coroutine"):
        tj.checkpoint(f, x)


def test_the_first_run_keeps_nothing_but_its_inputs(fusion):
    def f(x):
        for _ in range(20):
            x = tnp.exp(tnp.sin(x))
        return x.sum()

    live = lambda: sum(array.nbytes for array in jax.live_arrays())
    x = leaf(np.ones(10_000))
    for _ in range(2):  # traced
        tj.backward(tj.checkpoint(f, x))
    gc.collect()
    before = live()
    y = tj.checkpoint(f, x)
    assert live() - before < 1000
    tj.backward(y)
    y = f(x)
    y.value
    assert live() - before > 20 * 10_000 * 8
    tj.backward(y)
    assert live() - before < 100_000  # what backward has read is let go of, though y is still there


def test_a_consumed_checkpoint_says_so():
    x = leaf(X)
    with tj.Tape() as tape:
        y = tj.checkpoint(tnp.sin, x)
        (action,) = tape.actions
        tape.backward(y)
    grads = tj.Gradients()
    grads.insert(y.id, jnp.ones_like(X))
    with pytest.raises(errors.ConsumedTapeError, match="let go"):
        action.backward(grads)
