"""Gradients of what nobody holds: computed when somebody asks, and then as if they had been computed at once."""

# ruff: noqa: B023  # functions that are called at once

import copy
import gc
import pickle
import sys
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tapejax.errors import BackwardError, DeletedError, MissingGradientError
from tapejax.fusion.later import Later
from tapejax.plan import policy

VISITS = 4  # the second one goes the short way, a later one in C


def leaf(value, dtype="f"):
    return tj.tensor(np.asarray(value, dtype), requires_grad=True)


def data(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("f")


X, W = data(16, 4), data(4, 4, seed=1)


def chain(x, w, names):
    """A loss; names: gets the results on the way, by which they can be named when they are gone."""
    h = x
    for _ in range(3):
        h = tnp.tanh(h @ w + x)
        names.append(tj.TensorId(h.number))
    first, second = tnp.split(h, 2)
    names += [tj.TensorId(first.number), tj.TensorId(second.number)]
    return (first * second).sum()


def judge():
    """The gradients of x, of w, and of what `chain` names, by jax."""

    def of(x, w, shifts):
        h = x
        for shift in shifts[:3]:
            h = jnp.tanh(h @ w + x) + shift
        first, second = jnp.split(h, 2)
        return ((first + shifts[3]) * (second + shifts[4])).sum()

    zeros = [*[jnp.zeros((16, 4))] * 3, *[jnp.zeros((8, 4))] * 2]
    dx, dw, shifts = jax.grad(of, (0, 1, 2))(jnp.asarray(X), jnp.asarray(W), zeros)
    return dx, dw, shifts


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def step(looked_at=False, **how):
    x, w, names = leaf(X), leaf(W), []
    loss = chain(x, w, names)
    if looked_at:
        float(loss)
    return x, w, names, loss, tj.backward(loss, **how)


@pytest.mark.parametrize("looked_at", [False, True])
def test_they_are_what_jax_finds(looked_at):
    dx, dw, on_the_way = judge()
    for _ in range(VISITS):
        x, w, names, loss, grads = step(looked_at)
        assert [type(one) for _, one in grads.unasked] == [Later]
        close(grads[x], dx)
        close(grads[w], dw)
        assert len(grads.ready) == 3, "only what can be named was computed"
        assert all(name in grads for name in names)
        for name, expected in zip(names, on_the_way, strict=True):
            close(grads[name], expected)
        assert float(grads[loss]) == 1.0


@pytest.mark.parametrize("looked_at", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_all_of_them_are_as_one_by_one(looked_at, asked):
    """Their number, their order, their values."""
    found = {}
    for fused in (True, False):
        for _ in range(VISITS):
            with tj.fusion(fused):
                x, _, names, _, grads = step(looked_at)
            size = len(grads)
            assert bool(grads.unasked) == fused
            if asked:
                close(grads[names[1]], grads.get(names[1]))
            items = [(id.number - x.number, np.asarray(value)) for id, value in grads.items()]
            assert not grads.unasked
            assert len(grads) == len(items) == size
            found.setdefault(fused, []).append(items)
    for items in found[True]:
        for (number, value), (expected_number, expected) in zip(items, found[False][0], strict=True):
            assert number == expected_number
            close(value, expected)


def test_what_is_held_is_computed_at_once():
    for _ in range(VISITS):
        x, w = leaf(X), leaf(W)
        h = tnp.tanh(x @ w)
        loss = (tnp.sin(h) * h).sum()
        grads = tj.backward(loss)
        assert {id.number for id in map(tj.TensorId, grads.ready)} == {x.number, w.number, h.number, loss.number}
        close(grads[h], jnp.cos(h.value) * h.value + jnp.sin(h.value))


OPS = ("sin", "cos", "tanh", "arctan", "arcsinh", "square", "expm1", "sinh", "negative", "exp2", "degrees", "radians")


def test_many_blocks(monkeypatch):
    """Each a program of its own, since compiling several would cost much."""
    monkeypatch.setattr(policy, "START", 1e5)
    tj.clear_plans()
    for _ in range(VISITS):
        x, names = leaf(data(8)), []
        h = x
        for at in range(500):
            h = getattr(tnp, OPS[at % 12])(h) * 0.3
            names.append(tj.TensorId(h.number))
        grads = tj.backward(h)
        assert len(grads) == 1001
        assert len(grads.ready) < 20

        def rest(value, since):
            for at in range(since, 500):
                value = getattr(jnp, OPS[at % 12])(value) * 0.3
            return value.sum()

        for since in (490, 480, 470):
            value = x.value
            for at in range(since):
                value = getattr(jnp, OPS[at % 12])(value) * 0.3
            close(grads[names[since - 1]], jax.grad(rest)(value, since))
        assert len(grads.ready) < 20
        each = {id.number: grads[id] for id in grads}
        assert list(each) == sorted(each, reverse=True)
        assert list(each)[-1] == x.number
        for id, gradient in grads.items():
            assert gradient is each[id.number]


def test_what_takes_more_memory_to_keep_is_computed_at_once():
    """Keeping a large weight alive for a few small gradients would not pay."""
    for _ in range(VISITS):
        x, w = leaf(data(1, 64)), leaf(data(64, 64))
        grads = tj.backward(tnp.tanh(x @ w).sum())
        assert not grads.unasked
        assert len(grads) == 5


def test_they_hold_no_more_than_they_need():
    for looked_at in (False, True):
        for _ in range(VISITS):
            x, w, names, _, grads = step(looked_at)
            alive = weakref.ref(x.value)
            del x
            gc.collect()
            assert alive() is not None
            assert grads[names[0]] is not None  # computed: what they are computed from is let go
            del w
            gc.collect()
            assert alive() is None
            assert grads[names[1]] is not None


@pytest.mark.parametrize("how", ["copy", "deepcopy", "pickle", "map", "repr", "insert", "remove", "threads"])
def test_whatever_is_done_with_the_map(how):
    dx, dw, on_the_way = judge()
    for _ in range(VISITS):
        x, w, names, _, grads = step()
        size, factor = len(grads), 1.0
        if how == "map":
            grads, factor = grads.map(lambda gradient: 2 * gradient), 2.0
        elif how == "repr":
            assert f"of {size} tensors" in repr(grads)
        elif how == "insert":
            grads.insert(names[0], on_the_way[0])
            close(grads[names[0]], 2 * on_the_way[0])
            grads.insert(names[0], -on_the_way[0])
        elif how == "remove":
            close(grads.remove(x), dx)
            assert x not in grads
            assert len(grads) == size - 1
            close(grads.remove(names[2]), on_the_way[2])
            assert names[2] not in grads
            assert len(grads) == size - 2
            assert grads.remove(names[2], "gone") == "gone"
            order = [id.number for id in grads]
            assert order[0] == max(order), "the root is still the first"
            grads.insert(x, dx)
            grads.insert(names[2], on_the_way[2])
        elif how == "threads":
            seen = []
            threads = [threading.Thread(target=lambda: seen.append(grads[names[0]])) for _ in range(4)]
            [thread.start() for thread in threads]
            [thread.join(60) for thread in threads]
            assert len(seen) == 4
            [close(one, on_the_way[0]) for one in seen]
        else:
            again = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda g: pickle.loads(pickle.dumps(g))}[
                how
            ](grads)
            assert len(again) == size
            grads = again
        for name, expected in zip([x, w, *names], [dx, dw, *on_the_way], strict=True):
            close(grads[name], factor * expected)


def test_jax_settings_are_those_of_the_ops():
    _, _, on_the_way = judge()
    for _ in range(VISITS):
        *_, names, _, grads = step()
        with jax.enable_x64(True), jax.default_matmul_precision("bfloat16"), tj.no_grad():
            asked = grads[names[0]]
        assert asked.dtype == "float32"
        close(asked, on_the_way[0])


def test_asked_within_a_trace():
    for _ in range(VISITS):
        *_, names, _, grads = step()
        found = jax.jit(lambda v: v * grads[names[0]])(jnp.ones(()))
        close(found, judge()[2][0])
        assert isinstance(grads[names[0]], jax.Array)
        assert not isinstance(grads[names[0]], jax.core.Tracer)


def test_what_it_needs_is_gone():
    for looked_at in (False, True):
        for _ in range(VISITS):
            x, w, names, _, grads = step(looked_at)
            x.value.delete()
            for ask in (lambda: grads[names[0]], lambda: grads.items(), lambda: grads.get(names[1])):
                with pytest.raises(DeletedError, match="ask for it before"):
                    ask()
            close(grads[w], judge()[1])
            assert "and 12 that can no longer be computed" in repr(grads)
            assert names[0] in grads
            assert len(grads) == 15


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_gradient_that_it_starts_from_is_gone(monkeypatch, blocks):
    monkeypatch.setattr(policy, "START", 1e5)
    tj.clear_plans()
    for _ in range(VISITS):
        x, seed = leaf(data(8)), jnp.float32(2)
        h = tnp.sin(x)
        name = tj.TensorId(h.number)
        for at in range(130 * blocks - 125):
            h = getattr(tnp, OPS[at % 12])(h) * 0.3
        loss = h.sum()
        del h
        grads = tj.backward(loss, seed)
        size = len(grads)
        if blocks == 1:
            seed.delete()
        else:
            (between,) = grads.unasked[-1][1].origin.cts  # the gradient of what one block made and another one read
            assert any(between is one for one in grads.ready.values())
            between.delete()
        with pytest.raises(DeletedError):
            grads[name]
        assert "can no longer be computed" in repr(grads)
        assert len(grads) == len(list(grads)) == size


def test_what_does_not_lead_to_it_is_not_needed():
    """An input that the block has for something else may be gone, and is not kept."""
    for _ in range(VISITS):
        with tj.Tape():
            x, other = leaf(data(8)), leaf(data(8))
            aside = tnp.tanh(other * other)
            h = tnp.sin(x)
            name = tj.TensorId(h.number)
            loss = (tnp.sin(h) * 1.5).sum()
            del h
            grads = tj.backward(loss)
        assert aside.shape == (8,)
        alive = weakref.ref(other.value)
        del aside, other
        gc.collect()
        assert alive() is None
        close(grads[name], 1.5 * jnp.cos(jnp.sin(x.value)))


def test_an_input_that_no_call_reads():
    """A call that could not be deferred after all: one of its operands is being traced."""
    x, y, other = leaf(data(8)), leaf(data(8, seed=1)), tj.tensor(data(8))

    def of(traced):
        h = tnp.sin(y)
        other * tj.tensor(traced)
        loss = (tnp.sin(h) * x).sum()
        del h
        return tj.backward(loss)[x]

    for _ in range(VISITS):
        expected = jnp.sin(jnp.sin(y.value))
        close(jax.jit(of)(jnp.ones(8)), expected)
        close(jax.vmap(of, out_axes=None)(jnp.ones((2, 8))), expected)


def test_what_is_kept_besides_counts(monkeypatch):
    """A large parameter read in two blocks: its gradient so far would be kept for a few small ones."""
    monkeypatch.setattr(policy, "START", 1e5)
    tj.clear_plans()
    first = tj.lift(lambda table: table[0])
    for _ in range(VISITS):
        table = leaf(np.ones((1000, 8)))
        h = first(table)
        for at in range(200):
            h = tnp.sin(h) * 0.5
            if at == 190:
                h = h + first(table)
        loss = h.sum()
        del h
        grads = tj.backward(loss)
        kept = [
            value for _, one in grads.unasked for value in (*one.origin.values, *one.origin.cts) if value is not None
        ]
        assert sum(value.nbytes for value in kept if value is not table.value) < 10_000
        assert len(grads) == 403 + 2


def test_threads_that_ask_at_once():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(30):
            x = leaf(data(8))
            h = tnp.sin(x)
            name = tj.TensorId(h.number)
            loss = (tnp.sin(h) * 1.5).sum()
            del h
            grads = tj.backward(loss, 2.0)
            expected, found = 3.0 * jnp.cos(jnp.sin(x.value)), []
            together = threading.Barrier(8)

            def ask():
                together.wait(60)
                found.append(np.asarray(grads[name]))

            threads = [threading.Thread(target=ask) for _ in range(8)]
            [thread.start() for thread in threads]
            [thread.join(60) for thread in threads]
            assert len(found) == 8
            [close(one, expected) for one in found]
    finally:
        sys.setswitchinterval(interval)


def test_another_thread_asks_for_all_meanwhile(monkeypatch):
    waiting = tj.Gradients._waiting

    def meanwhile(grads, number):
        len(grads.sums)  # computes them
        return waiting(grads, number)

    monkeypatch.setattr(tj.Gradients, "_waiting", meanwhile)
    for ask in (lambda grads, name: grads[name], lambda grads, name: grads.get(name)):
        *_, names, _, grads = step()
        close(ask(grads, names[0]), judge()[2][0])
    *_, names, _, grads = step()
    assert names[0] in grads


def test_what_is_there_needs_nothing_else():
    """With what the others are computed from gone: all that does not ask for them works."""
    for _ in range(VISITS):
        x, w, names, loss, grads = step()
        dx, other = jnp.array(grads[x]), leaf([1.0])
        order = [id.number for id in grads]
        w.value.delete()
        grads.insert(x, dx)
        close(grads[x], 2 * dx)
        grads.insert(other, [3.0])
        assert grads.remove(tj.TensorId(), "none") == "none"
        again = copy.copy(grads)
        assert [id.number for id in again] == [*order, other.number]
        assert names[0] in again
        close(again[loss], 1.0)
        again.remove(x)
        close(grads[x], 2 * dx)
        with pytest.raises(DeletedError):
            grads.insert(names[0], judge()[2][0])


def test_one_that_is_not_there_is_still_missing():
    x, *_, grads = step()
    other = leaf([1.0])
    assert other not in grads
    assert grads.get(other, "none") == "none"
    with pytest.raises(MissingGradientError):
        grads[other]
    assert "it has one, float32[16, 4]" in grads.explain(x)


@pytest.mark.parametrize("reason", ["retain_tape", "own action", "hook", "debug_nans"])
def test_everything_is_computed_at_once(reason):
    """Where somebody may look at any gradient on the way, or at the tape once more."""

    class Own(tj.TapeAction):
        inputs = outputs = ()

        def backward(self, grads):
            pass

    for _ in range(VISITS):
        x, w, names = leaf(X), leaf(W), []
        if reason == "own action":
            tj.record(Own())
        if reason == "hook":
            x.register_hook(lambda gradient: gradient)
        with jax.debug_nans(reason == "debug_nans"):
            loss = chain(x, w, names)
            grads = tj.backward(loss, retain_tape=reason == "retain_tape")
        tj.take()
        assert not grads.unasked
        for name, expected in zip(names, judge()[2], strict=True):
            close(grads[name], expected)


def test_a_failed_backward_has_them_too():
    class Broken(tj.TapeAction):
        def __init__(self, tensor):
            self.inputs = self.outputs = (tensor.id,)

        def backward(self, grads):
            raise ZeroDivisionError

    x, w = leaf(X), leaf(W)
    h = tnp.tanh(x @ w)
    tj.record(Broken(h))
    with pytest.raises(BackwardError) as caught:
        tj.backward((h * h).sum())
    assert len(caught.value.gradients) == 3
    close(caught.value.gradients[h], 2 * h.value)


def test_a_program_that_was_let_go():
    *_, names, _, grads = step()
    tj.clear_plans()
    close(grads[names[0]], judge()[2][0])


def test_complex_numbers_and_several_roots():
    z0 = (data(6) + 1j * data(6, seed=2)).astype("complex64")
    for _ in range(VISITS):
        z = leaf(z0, "complex64")
        square = z * z
        name = tj.TensorId(square.number)
        one, other = (square * 2).sum(), (square * z).sum()
        del square
        grads = tj.backward([one, other], [1.0, 2.0])
        expected = jax.vjp(lambda s: ((s * 2).sum(), (s * z0).sum()), z0 * z0)[1]((jnp.complex64(1), jnp.complex64(2)))[
            0
        ]
        close(grads[name], expected)
