"""Hooks where a backward goes step by step, and on a tape by index.

The judge is jax.grad of a program that has a custom derivative where the hook is: the identity, with the hook as its
backward.
"""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tapejax.errors import ArgumentError, HookError, NumericalInstabilityError, SlotError
from tapejax.hooks import EVERYTHING, after, after_accumulation, before, on_gradient, registry

X = np.array([0.3, -1.2, 2.0], np.float32)
W = np.array([1.5, 0.5, -0.7], np.float32)


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    gc.collect()
    assert not registry.everywhere


def hooked(function):
    """The identity, whose derivative is the hook."""
    identity = jax.custom_vjp(lambda x: x)
    identity.defvjp(lambda x: (x, None), lambda _, gradient: (function(gradient),))
    return identity


def clip(gradient):
    return jnp.clip(gradient, -0.8, 0.8)


def recorded():
    x, w = tj.tensor(X, requires_grad=True), tj.tensor(W, requires_grad=True)
    with tj.Tape() as tape:
        h = tnp.sin(x) * w
        loss = (h * h + 3 * h * x).sum()
    return tape, loss, h, x, w


def judge(on_h=lambda h: h, on_x=lambda x: x):
    def f(x, w):
        x = on_x(x)
        h = on_h(jnp.sin(x) * w)
        return (h * h + 3 * h * x).sum()

    return jax.grad(f, (0, 1))(X, W)


# --- the cursor --------------------------------------------------------------------------------------------


def test_a_cursor_calls_them_as_backward_does():
    tape, loss, h, x, w = recorded()
    order = []
    h.register_hook(clip)
    on_gradient(x, lambda g: (order.append("x"), 2 * g)[1])
    after_accumulation(x, lambda x, g: order.append(float(g[0])))
    found = tape.cursor(loss).finish()
    want = judge(hooked(clip), hooked(lambda g: 2 * g))
    np.testing.assert_allclose(found[x], want[0], rtol=1e-5)
    np.testing.assert_allclose(found[w], want[1], rtol=1e-5)
    assert order == ["x", float(found[x][0])]
    order.clear()
    whole = tj.backward(loss, tape=tape)
    np.testing.assert_array_equal(whole[x], found[x])
    np.testing.assert_array_equal(whole[h], found[h])


def test_back_and_forth_calls_none_twice_and_shows_the_same():
    tape, loss, h, x, _ = recorded()
    seen = []
    h.register_hook(lambda g: (seen.append("h"), clip(g))[1])
    x.register_hook(lambda g: (seen.append("x"), -g)[1])
    cursor = tape.cursor(loss)
    states = [dict(cursor.gradients.sums)]
    for _ in cursor:
        states.append(dict(cursor.gradients.sums))
    at_end = {id: len(one.terms) for id, one in cursor.sums.items()}
    for position in [*reversed(range(len(states))), *range(len(states))]:
        cursor.seek(position)
        now = cursor.gradients.sums
        assert now.keys() == states[position].keys()
        assert all(now[number] is states[position][number] for number in now)
        for one in cursor.sums.values():  # what is shown as terms adds up to what is there
            np.testing.assert_allclose(np.sum([term.value for term in one.terms], axis=0), one.value, rtol=1e-6)
    assert seen == ["h", "x"]
    assert {id: len(one.terms) for id, one in cursor.sums.items()} == at_end


def test_a_step_tells_what_was_replaced_and_what_the_action_found():
    tape, loss, h, _, _ = recorded()
    h.register_hook(clip)
    cursor = tape.cursor(loss)
    step = next(step for step in cursor if step.replaced)
    assert [term.id for term in step.replaced] == [h.id]
    np.testing.assert_array_equal(step.incoming[h.id], step.replaced[0].after)
    np.testing.assert_array_equal(clip(step.replaced[0].before), step.replaced[0].after)
    assert "  hook   " in str(cursor)


def test_before_and_after_an_action_at_a_cursor():
    tape, loss, _, x, _ = recorded()
    with before("sin", lambda action, cts: (10 * cts[0],)), after("sin", lambda action, gs, cts: (gs[0] + 1,)):
        cursor = tape.cursor(loss)
        found = cursor.finish()
        whole = tape.backward(loss, retain_tape=True)
    of_h = 2 * np.sin(X) * W + 3 * X
    np.testing.assert_allclose(found[x], 10 * of_h * W * np.cos(X) + 1 + 3 * np.sin(X) * W, rtol=1e-5)
    np.testing.assert_array_equal(found[x], whole[x])
    cursor.rewind()
    step = next(step for step in cursor if step.action.op == "Sin")
    np.testing.assert_allclose(next(iter(step.incoming.values())), 10 * of_h * W, rtol=1e-5)


def test_one_that_comes_or_goes_between_steps():
    tape, loss, h, x, _ = recorded()
    cursor = tape.cursor(loss)
    cursor.step()
    seen = []
    late = h.register_hook(lambda g: seen.append("h"))
    gone = x.register_hook(lambda g: seen.append("x"))
    cursor.step()
    gone.remove()
    cursor.finish()
    assert seen == ["h"]
    late.remove()


def test_a_hook_that_fails_leaves_the_cursor_where_it_was():
    tape, loss, h, x, _ = recorded()
    fails = h.register_hook(lambda g: 1 / 0)
    cursor = tape.cursor(loss)
    with pytest.raises(HookError, match="ZeroDivisionError") as caught:
        cursor.finish()
    assert caught.value.failed is cursor.actions[len(cursor) - 1 - cursor.position]
    assert h in caught.value.gradients
    fails.remove()
    np.testing.assert_allclose(cursor.finish()[x], judge()[0], rtol=1e-5)


def test_a_cursor_on_a_leaf_and_one_without_hooks():
    x = tj.tensor(2.0, requires_grad=True)
    x.register_hook(lambda g: g + 1)
    with tj.Tape() as tape:
        pass
    assert float(tape.cursor(x).finish()[x]) == 2.0
    with tj.Tape() as tape:
        y = x * 3
    assert float(tape.cursor(y, hooks=False).finish()[x]) == 3.0
    assert float(tape.cursor(y).finish()[x]) == 4.0


def test_looking_at_a_tape_calls_none(tmp_path):
    tape, loss, h, x, _ = recorded()
    called = []
    h.register_hook(called.append)
    tape.save_html(tmp_path / "a.html")
    tape.save_html(tmp_path / "b.html", root=loss)
    tj.explain(loss, x)
    assert not called
    tape.cursor(loss).save_html(tmp_path / "c.html")  # a cursor's page is its own pass
    assert len(called) == 1


# --- the tape by index -------------------------------------------------------------------------------------


def by_index(**options):
    """out = x * w, then out * x + out"""
    tape = tj.GradientTape(**options)
    x, w = tape.input((3,)), tape.input((3,))
    with tj.region("product"):
        h = tape.record_mul(x, X, w, W)
    y = tape.record_mul(h, X * W, x, X)
    return tape, x, w, h, tape.record_add(y, h)


def grads_of(tape):
    buffers = tape.buffers()
    tape.backward(np.ones(3, np.float32), buffers)
    return buffers


def judge_by_index(on_h=lambda h: h, on_x=lambda x: x):
    def f(x, w):
        x = on_x(x)
        h = on_h(x * w)
        return (h * x + h).sum()

    return jax.grad(f, (0, 1))(X, W)


def test_on_a_slot_the_total_once():
    tape, x, w, h, _ = by_index()
    seen = []
    tape.register_hook(h, lambda g: (seen.append(np.asarray(g)), clip(g))[1])
    tape.register_hook(x, lambda g: (seen.append(np.asarray(g)), 2 * g)[1])
    found = grads_of(tape)
    want = judge_by_index(hooked(clip), hooked(lambda g: 2 * g))
    np.testing.assert_allclose(found[x], want[0], rtol=1e-6)
    np.testing.assert_allclose(found[w], want[1], rtol=1e-6)
    np.testing.assert_allclose(seen[0], X + 1)
    assert len(seen) == 2
    np.testing.assert_allclose(found[h], clip(X + 1))


def test_records_by_op_by_region_and_everything():
    tape, x, w, h, _ = by_index()
    ops = []
    with before(EVERYTHING, lambda record, cts: ops.append(record.plan.name)):
        plain = grads_of(tape)
    assert ops == ["add", "mul", "mul"]
    np.testing.assert_allclose(plain[x], judge_by_index()[0], rtol=1e-6)
    with before(tj.region("product"), lambda record, cts: (clip(cts[0]),)):
        found = grads_of(tape)
    np.testing.assert_allclose(found[w], judge_by_index(hooked(clip))[1], rtol=1e-6)
    np.testing.assert_allclose(found[h], X + 1)  # replaced for this record alone
    with after("add", lambda record, gradients, cts: tuple(5 * g for g in gradients)):
        np.testing.assert_allclose(grads_of(tape)[h], 5 * (X + 1), rtol=1e-6)


def test_numbers_of_slots_are_not_those_of_tensors():
    """A region of Tensors, or a hook on a leaf, with the number of a slot means nothing here."""
    x = tj.tensor(X, requires_grad=True)
    called = []
    x.register_hook(called.append)
    with tj.region("tensors"):
        y = x * 2
    tape, *_ = by_index()
    while tape.num_tensors <= max(x.id.number, y.id.number):
        tape.input(())
    with before(tj.region("tensors"), lambda record, cts: called.append(record)):
        grads_of(tape)
    assert not called


def test_removed_wrong_and_failing():
    tape, x, _, h, _ = by_index()
    plain = grads_of(tape)
    handle = tape.register_hook(x, lambda g: 0 * g)
    assert not grads_of(tape)[x].any()
    handle.remove()
    np.testing.assert_array_equal(grads_of(tape)[x], plain[x])
    with pytest.raises(SlotError):
        tape.register_hook(99, clip)
    with pytest.raises(ArgumentError):
        tape.register_hook(x, 3)
    buffers = tape.buffers()
    with tape.register_hook(h, lambda g: g[0]), pytest.raises(HookError, match="slot 2") as caught:
        tape.backward(np.ones(3, np.float32), buffers)
    assert not any(buffer.any() for buffer in buffers)
    assert caught.value.index == 0
    assert caught.value.gradients.sums.keys() >= {h}


def test_a_nan_that_a_hook_masks_is_no_error():
    tape = tj.GradientTape()
    x, w = tape.input((3,)), tape.input((3,))
    bad = np.array([1, np.nan, 2], np.float32)
    tape.record_mul(x, X, w, bad)
    with pytest.raises(NumericalInstabilityError):
        grads_of(tape)
    with tape.register_hook(x, jnp.nan_to_num):
        np.testing.assert_array_equal(grads_of(tape)[x], [1, 0, 2])
    with tape.register_hook(x, lambda g: g / 0), pytest.raises(NumericalInstabilityError, match="hooks"):
        grads_of(tape)


def test_a_root_that_is_an_input_and_under_jit():
    tape = tj.GradientTape(check_finite=False)
    x = tape.input((3,))
    tape.register_hook(x, lambda g: 3 * g)
    buffers = tape.buffers()
    tape.backward(np.ones(3, np.float32), buffers, root=x)
    np.testing.assert_array_equal(buffers[x], [3, 3, 3])

    @jax.jit
    def product(a, b):
        tape = tj.GradientTape(check_finite=False)
        x, w = tape.input((3,)), tape.input((3,))
        out = tape.record_mul(x, a, w, b)
        tape.register_hook(out, clip)
        buffers = [jnp.zeros(3)] * 3
        tape.backward(2 * jnp.ones(3), buffers)
        return buffers[x]

    np.testing.assert_allclose(product(X, W), 0.8 * W, rtol=1e-6)
