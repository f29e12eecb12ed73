"""Deferred and fused execution: nobody can tell, except by the clock."""

import contextlib
import copy
import gc
import queue
import re
import sys
import threading
import time
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from tapejax.fusion import block, fused, sealed
from tapejax.fusion import layout as structures
from tapejax.fusion.layout import layouts
from tapejax.fusion.short import UNHELD_LATER
from tapejax.native import native

tanh = tj.lift(jnp.tanh)


@pytest.fixture(autouse=True)
def fresh():
    """Nothing is compiled: a structure is compiled as a whole the first time it comes."""
    tj.clear_plans()


def whole_steps():
    """The programs of forward and backward together that are compiled."""
    backwards = [backward for layout in layouts.values() for backward in layout.backwards.values()]
    both = {id(both): both for backward in backwards for both in backward._both.values()}
    return [one for one in both.values() if one.together.reason]


def leaf(value):
    return tj.tensor(value, requires_grad=True)


def params(seed=0):
    rng = np.random.default_rng(seed)
    return [leaf(rng.standard_normal((3, 3)).astype("f")) for _ in range(3)]


def forward(x, ws):
    h = x
    for w in ws:
        h = tanh(h @ w) + h
    return (h * h).sum()


def expected(x, ws):
    def f(x, ws):
        h = x
        for w in ws:
            h = jnp.tanh(h @ w) + h
        return (h * h).sum()

    return jax.value_and_grad(f, argnums=(0, 1))(x.value, [w.value for w in ws])


@pytest.mark.parametrize("looked_at", [False, True])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("only", [False, True])
def test_every_pass_gives_the_same(looked_at, retain, only):
    x, ws = leaf(np.ones((2, 3), "f")), params()
    value, (dx, dws) = expected(x, ws)
    sizes = set()
    for _ in range(4):
        loss = forward(x, ws)
        if looked_at:
            float(loss)
        grads = tj.backward(loss, wrt=ws if only else None, retain_tape=retain)
        sizes.add(len(grads))
        np.testing.assert_allclose(loss.value, value, rtol=1e-5)
        for w, dw in zip(ws, dws, strict=True):
            np.testing.assert_allclose(grads[w], dw, rtol=1e-4, atol=1e-5)
        if not only:
            np.testing.assert_allclose(grads[x], dx, rtol=1e-4, atol=1e-5)
        if retain:
            again = tj.backward(loss)
            np.testing.assert_allclose(again[ws[0]], grads[ws[0]], rtol=1e-5)
    assert sizes == ({3} if only else {3 * 3 + 2 + 4})


def test_a_step_is_one_program_from_the_first_time_on():
    x, ws = leaf(np.ones((2, 3), "f")), params()
    for _ in range(3):
        tj.backward(forward(x, ws), wrt=ws)
        assert len(whole_steps()) == 1
    assert not any(plan.forward.compiled.is_compiled or plan.backward.compiled.is_compiled for plan in tj.plans("tanh"))


def test_values_that_are_still_held_come_out_of_the_fused_program():
    x, ws = leaf(np.ones((2, 3), "f")), params()
    for _ in range(4):
        h = tanh(x @ ws[0])
        loss = (h * h).sum()
        tj.backward(loss, wrt=ws)
        np.testing.assert_allclose(h.value, np.tanh(x.numpy() @ ws[0].numpy()), rtol=1e-5)


def test_shape_error_comes_at_its_own_line():
    x = leaf(np.ones((2, 3), "f"))
    with pytest.raises(TypeError, match=r"incompatible|contracting"):
        x @ x


def test_however_what_is_held_varies_there_are_few_programs():
    x, ws = leaf(np.ones((2, 3), "f")), params()
    tj.backward(forward(x, ws), wrt=ws)
    (layout,) = layouts.values()
    (backward,) = layout.backwards.values()
    subsets = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2), (3,), (0, 3)]
    both = {id(backward.both(held)) for held in subsets}
    ahead = {id(fused.forward_of(layout, held, layout.order)) for held in subsets}
    assert len(both | {id(one) for one in whole_steps()}) == len(ahead) + 1 == structures.MAX_CHOICES + 1


def test_nothing_runs_before_it_is_looked_at_and_dead_results_never():
    x = leaf(2.0)
    y = x * 3.0
    dead = y * 5.0
    pending = tj.current_tape().block
    assert y.held is dead.held is pending
    assert len(pending.calls) == 2
    del dead
    assert list(pending.seal().held()) == [0]
    assert float(y) == 6.0
    assert pending.sealed.state is sealed.RAN
    assert [action.numbers for action in pending.materialise()] == [(y.id.number,)]


def test_detached_tensor_shares_the_value_but_not_the_gradient():
    x = leaf(3.0)
    for _ in range(3):
        y = x * 2.0
        z = y * y.detach()
        grads = tj.backward(z)
        assert grads[x] == 2.0 * 6.0
        assert grads[y] == 6.0


def test_same_tensor_used_many_times_accumulates():
    x = leaf(1.5)
    for _ in range(3):
        y = x * x
        for _ in range(5):
            y = y + x
        assert tj.backward(y)[x] == 2 * 1.5 + 5


def test_more_ops_than_a_block_holds():
    x = leaf(1.0)
    for _ in range(3):
        y = x
        for _ in range(3 * block.LIMIT + 7):
            y = y * 1.001
        grads = tj.backward(y, wrt=x)
        np.testing.assert_allclose(grads[x], 1.001 ** (3 * block.LIMIT + 7), rtol=1e-4)
        assert len(grads) == 1


def test_root_used_further_and_several_roots():
    x = leaf(2.0)
    for _ in range(3):
        a = x * x
        b = a * 3.0
        grads = tj.backward([a, b])
        assert grads[a] == 1.0 + 3.0
        assert grads[x] == 4.0 * 2 * 2.0


def test_user_action_between_ops():
    class Double(tj.TapeAction):
        def __init__(self, at):
            self.at = at

        def backward(self, grads):
            grads.insert(self.at, grads[self.at])

    x = leaf(2.0)
    for _ in range(3):
        y = x * x
        tj.record(Double(y.id))
        z = y * 3.0
        w = z * 1.0
        assert tj.backward(w)[x] == 2 * 3 * 2 * 2.0


def test_settings_are_those_of_the_call():
    x = leaf(np.full((64, 64), 1 / 3, "f"))
    with jax.default_matmul_precision("bfloat16"):
        y = x @ x
    with jax.enable_x64(True):
        z = tj.tensor(np.ones(3)) * 2.0
    assert y.dtype == jnp.float32
    assert z.dtype == jnp.float64
    assert z.value.dtype == jnp.float64
    np.testing.assert_allclose(y.value, (x.value @ x.value), rtol=1e-2)


def test_value_looked_at_inside_a_trace_does_not_leak_a_tracer():
    x = leaf(2.0)
    y = x * 3.0

    @jax.jit
    def f(a):
        return a + y.value

    assert f(1.0) == 7.0
    assert not isinstance(y.value, jax.core.Tracer)
    assert tj.backward(y)[x] == 3.0


def test_value_looked_at_by_another_thread():
    x = leaf(np.ones(4, "f"))
    wrong = []

    def look(t, value):
        if float(t.value[0]) != value:
            wrong.append((t, value))

    for i in range(50):
        y = x * float(i)
        threads = [threading.Thread(target=look, args=(y, float(i))) for _ in range(4)]
        for thread in threads:
            thread.start()
        z = y + 1.0
        for thread in threads:
            thread.join()
        assert float(z.value[0]) == i + 1.0
    assert not wrong


def test_switched_off():
    x = leaf(2.0)
    tj.fusion.enabled = False
    try:
        y = x * x
        assert isinstance(y.held, jax.Array)
        assert tj.backward(y + x)[x] == 5.0
    finally:
        tj.fusion.enabled = True


def test_memory_is_let_go():
    x, ws = leaf(np.ones((2, 3), "f")), params()
    for _ in range(4):
        tj.backward(forward(x, ws), wrt=ws)
    gc.collect()
    before = len(jax.live_arrays())
    for _ in range(10):
        tj.backward(forward(x, ws), wrt=ws)
    gc.collect()
    assert len(jax.live_arrays()) <= before + 1


def test_cache_of_programs_is_bounded():
    x = leaf(1.0)
    for n in range(30):
        y = x
        for _ in range(n + 2):
            y = y * 2.0
        tj.backward(y)
    assert len(layouts) <= structures.MAX_LAYOUTS


def test_failing_action_is_named_when_the_tape_is_hot():
    from tapejax import errors

    @tj.custom_op(jit=False)
    def broken(x):
        return x * 2

    broken.defbackward(lambda ct, out, x: 1 / 0)
    x = leaf(1.0)
    for _ in range(3):
        y = x * 3.0
        z = broken(y * 2.0)
        w = z * 2.0
        with pytest.raises(errors.BackwardError, match="Broken") as caught:
            tj.backward(w)
        assert caught.value.index == 2
        assert len(caught.value.actions) == 3
        assert caught.value.gradients[z] == 2.0


# --- other people's actions, late calls, failures ------------------------------------------------------


class Tenfold(tj.TapeAction):
    """The derivative of y = 10 x, where y is a leaf that was made by hand."""

    def __init__(self, x, y):
        self.inputs, self.outputs = (x.id,), (y.id,)

    def backward(self, grads):
        grads.insert(self.inputs[0], grads[self.outputs[0]] * 10)


def test_wrt_through_an_action_that_makes_a_leaf():
    x = leaf(2.0)
    for _ in range(4):
        y = leaf(x.value * 10)
        tj.record(Tenfold(x, y))
        z = y * 3.0
        grads = tj.backward(z * 2.0, wrt=x)
        assert grads[x] == 60.0
        assert len(grads) == 1


class Double(tj.TapeAction):
    """Changes the gradient of one tensor on its way; says so, or not."""

    def __init__(self, at, told):
        self.at = at
        if told:
            self.inputs = self.outputs = (at,)

    def backward(self, grads):
        grads.insert(self.at, grads[self.at])


@pytest.mark.parametrize("told", [False, True])
def test_wrt_with_a_users_action_in_the_middle_of_a_block(told):
    x = leaf(2.0)
    for _ in range(4):
        y = x * x
        y = y * 1.0
        tj.record(Double(y.id, told))
        z = y * 3.0
        assert tj.backward(z * 1.0, wrt=x)[x] == 2 * 3 * 2 * 2.0


def test_wrt_with_an_op_that_runs_at_once_in_the_middle_of_a_block():
    seen = []
    noisy = tj.lift(lambda v: (jax.debug.callback(seen.append, v), v * 1.0)[1], name="noisy")
    x = leaf(2.0)
    for _ in range(4):
        y = x * x
        y = y * 1.0
        z = y * 3.0 + noisy(x)
        assert tj.backward(z * 1.0, wrt=x)[x] == 13.0


@pytest.mark.parametrize("recorded", [False, True])
def test_what_a_function_closes_over_is_read_when_its_plan_is_made(recorded):
    box = [2.0]
    scale = tj.lift(lambda v: v * box[0])
    y = scale(tj.tensor(1.0, requires_grad=recorded))
    box[0] = 3.0
    assert float(y) == 2.0


def test_a_function_may_use_tensors_that_are_pending():
    x = tj.tensor(1.0)
    box = [x * 2.0]
    scale = tj.lift(lambda v: v * (box[0] * 1.0).value)
    y = scale(x)
    box[0] = x * 3.0
    assert float(y) == 2.0


def test_failing_op_is_named_when_the_tape_is_hot():
    from tapejax import errors

    x = leaf(-1.0)
    for _ in range(3):
        with jax.debug_nans(True):
            root = tj.lift(jnp.sqrt)(x * 2.0) * 2.0
            with pytest.raises(errors.BackwardError, match="FloatingPointError"):
                tj.backward(root)
            assert tj.backward(x * 3.0 * 2.0)[x] == 6.0


@pytest.mark.skipif(native is not None, reason="no other thread comes in between there")
@pytest.mark.parametrize("recorded", [False, True])
def test_call_that_comes_while_another_thread_runs_the_block(monkeypatch, recorded):
    """The owner had looked whether the block takes more just before it was sealed."""
    x = tj.tensor(2.0, requires_grad=recorded)
    y = x * 3.0
    sealed, lift = threading.Event(), sys.modules["tapejax.ops.lift"]
    run_forward, next_number = fused.Forward.run, lift.next_number

    def slow(*args):
        sealed.set()
        time.sleep(0.05)  # the call is noted meanwhile
        return run_forward(*args)

    def interrupted():
        if not sealed.is_set():  # in the middle of noting the call
            other.start()
            assert sealed.wait(5)
        return next_number()

    other = threading.Thread(target=lambda: y.value)
    monkeypatch.setattr(fused.Forward, "run", slow)
    monkeypatch.setattr(lift, "next_number", interrupted)
    late = y * 5.0
    monkeypatch.undo()
    other.join()
    assert float(y) == 6.0
    assert float(late) == 30.0
    if recorded:
        assert tj.backward(late * 1.0)[x] == 15.0


def test_gradients_have_the_width_of_the_forward():
    x = leaf(np.float32(2.0))
    for _ in range(4):
        with jax.enable_x64(True):
            y = (x * x) * np.float64(1 / 3)
            y = y * 1.0
        grads = tj.backward(y)
        assert grads[y].dtype == jnp.float64
        assert grads[x].dtype == jnp.float32
        np.testing.assert_allclose(grads[x], 4 / 3, rtol=1e-6)


def test_action_of_a_consumed_tape_says_so():
    from tapejax import errors

    x = leaf(2.0)
    for _ in range(3):  # one by one, and as one program
        y = x * x
        z = y * y
        actions = tj.current_tape().actions
        tj.backward(z)
        grads = tj.Gradients()
        grads.insert(z.id, 1.0)
        with pytest.raises(errors.ConsumedTapeError, match="let go"):
            actions[1].backward(grads)


# --- actions are written late ------------------------------------------------------------------------------


def shown(tape):
    """The tape as text, with its numbers counted from the first."""
    numbers = {}
    count = lambda match: f"%{numbers.setdefault(match[0], len(numbers))}"
    return re.sub(r"%\d+", count, "\n".join(map(repr, tape)))


def model(x, ws):
    mask = (x > 0).astype(jnp.float32)  # recorded calls read what is not recorded
    h = tanh(x @ ws[0]) * mask.mean()
    return (h * h.detach()).sum()


@pytest.mark.parametrize("when", ["before", "looked at", "one by one"])
def test_a_tape_reads_the_same_whenever_it_is_written(when):
    x, ws = leaf(np.ones((2, 3), "f")), params()
    with tj.Tape() as tape:
        loss = model(x, ws)
        if when == "looked at":
            float(loss)
        elif when == "one by one":
            assert shown(tape)
            loss.value
    tj.fusion.enabled = False
    try:
        with tj.Tape() as at_once:
            model(x, ws)
    finally:
        tj.fusion.enabled = True
    assert shown(tape) == shown(at_once)
    assert [action.line.partition(":")[0] for action in tape] == [__file__] * len(at_once)
    assert [action.line for action in tape] == [action.line for action in at_once]


def test_who_made_a_result_can_be_asked_after_it_went_back_as_one_program():
    x, ws = leaf(np.ones((2, 3), "f")), params()
    for _ in range(4):
        h = tanh(x @ ws[0])
        loss = (h * h).sum()
        tj.backward(loss, wrt=ws)
        assert [loss.id.producer.op, h.id.producer.op] == ["Sum", "Tanh"]
        (product,) = loss.id.producer.inputs
        assert product.producer.inputs == [h.id, h.id]
        assert h.id.producer.inputs[0].producer.inputs == [x.id, ws[0].id]
        assert not loss.is_leaf
        with pytest.raises(tj.errors.ConsumedTapeError):
            tj.backward(loss)


@pytest.mark.parametrize("looked_at", [False, True])
@pytest.mark.parametrize("only", [False, True])
@pytest.mark.parametrize("written", [False, True])
def test_every_pass_over_an_explicit_tape_gives_the_same(looked_at, only, written):
    x, ws = leaf(np.ones((2, 3), "f")), params()
    _, (dx, dws) = expected(x, ws)
    for _ in range(4):
        with tj.Tape() as tape:
            loss = forward(x, ws)
        if looked_at:
            float(loss)
        if written:
            assert len(tape) == 3 * 3 + 2
        grads = tape.backward(loss, wrt=ws if only else None)
        assert len(grads) == (3 if only else 3 * 3 + 2 + 4)
        for w, dw in zip(ws, dws, strict=True):
            np.testing.assert_allclose(grads[w], dw, rtol=1e-4, atol=1e-5)
        if not only:
            np.testing.assert_allclose(grads[x], dx, rtol=1e-4, atol=1e-5)
        assert len(tape) == 0


def test_pending_tensors_under_other_names():
    x = leaf(3.0)
    for _ in range(3):
        y = x * 2.0
        again, copied = copy.deepcopy(y), copy.copy(y)
        with tj.no_grad():
            other = jax.tree.map(lambda value: value, y)  # no gradient is meant to flow from it to y
        assert again.id == copied.id == y.id != other.id
        grads = tj.backward(again * copied * other, wrt=[x, y, other])
        assert (grads[y], grads[other], grads[x]) == (72.0, 36.0, 144.0)  # 2 y z, y * y, and x has y's part only
        assert float(other) == float(y) == 6.0


def test_gradient_of_a_result_that_is_wanted():
    x = leaf(2.0)
    for _ in range(4):
        y = x * 3.0
        z = y * y
        grads = tj.backward(z * 2.0, wrt=[y])
        assert len(grads) == 1
        assert grads[y] == 24.0


def test_one_call_alone_is_compiled_with_its_backward():
    x = leaf(np.arange(3, dtype="f"))
    for _ in range(3):
        y = x * x
        grads = tj.backward(y, np.ones(3, "f"), wrt=x)
        np.testing.assert_array_equal(grads[x], [0.0, 2.0, 4.0])
        np.testing.assert_array_equal(y.value, [0.0, 1.0, 4.0])
        assert len(whole_steps()) == 1


def test_seed_that_is_not_ones_is_not_taken_for_ones():
    x = leaf(2.0)
    for seed in [None, None, 3.0, None, 3.0, 5.0, None]:
        y = x * x
        y = y * 1.0
        assert tj.backward(y, seed)[x] == 4.0 * (1.0 if seed is None else seed)


def test_what_is_kept_for_a_block_goes_with_its_backward():
    x = leaf(np.ones((64, 64), "f"))
    once = x.sum()
    float(once)
    tj.backward(once)  # the seed of a scalar root is made once, and stays
    for _ in range(4):
        with tj.Tape() as tape:
            h = tanh(x @ x)
            loss = (h * h).sum()
            float(loss)  # the block runs by itself, and keeps what backward reads
            del h
        gc.collect()
        kept = len(jax.live_arrays())
        grads = tape.backward(loss, wrt=x)
        gc.collect()
        assert len(jax.live_arrays()) <= kept  # one gradient more, at least one array fewer
        assert grads[x].shape == (64, 64)
        assert loss.id.producer.kept is None


def test_transforms_of_eager_functions_run_as_one_program_too():
    x, ws = leaf(np.ones((2, 3), "f")), params()
    _, (_, dws) = expected(x, ws)
    values = [w.value for w in ws]
    for _ in range(3):
        _, found = tj.value_and_grad(lambda ws: forward(x.detach(), ws))(values)
        for got, want in zip(found, dws, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert len(whole_steps()) == 1


def test_a_function_that_only_looks_at_recorded_tensors_has_plain_gradients():
    x = leaf(3.0)

    def looks(y):
        with tj.no_grad():
            scale = x * 2.0
        return y * scale

    for _ in range(3):
        assert isinstance(tj.grad(looks)(5.0), jax.Array)
        assert isinstance(tj.grad(lambda y: y * x * x)(5.0), tj.Tensor)  # this one can be differentiated by x


@pytest.mark.parametrize("looked_at", [False, True])
def test_what_is_compiled_already_is_used(looked_at):
    """Where each call has its own program, a structure that comes a few times is not compiled as a whole."""
    x, ws = leaf(np.ones((2, 3), "f")), params()
    with tj.Tape() as tape:
        loss = forward(x, ws)
    tape.cursor(loss).finish()  # action by action
    _, (_, dws) = expected(x, ws)
    for _ in range(3):
        with tj.Tape() as tape:
            loss = forward(x, ws)
        if looked_at:
            float(loss)
        grads = tape.backward(loss, wrt=ws)
        for w, dw in zip(ws, dws, strict=True):
            np.testing.assert_allclose(grads[w], dw, rtol=1e-4, atol=1e-5)
    assert whole_steps() == []
    assert not any(b.together.reason for layout in layouts.values() for b in layout.backwards.values())


# --- a training step, the quick way -----------------------------------------------------------------------------------


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("looked_at", [False, True])
@pytest.mark.parametrize("asked", ["some", "twice", "a result", "the root", "one that is not used", "none"])
def test_every_step_of_a_loop_gives_the_same(asked, looked_at, explicit):
    x, ws, idle = leaf(np.ones((2, 3), "f")), params(), leaf(1.0)
    seen = []
    for _ in range(5):
        with tj.Tape() if explicit else contextlib.nullcontext():
            h = tanh(x @ ws[0]) + x
            loss = (tanh(h @ ws[1]) * h).sum()
            wrt = {
                "some": [ws[1], x], "twice": [x, x], "a result": [h, ws[0]], "the root": [loss, x],
                "one that is not used": [idle, ws[0]], "none": [],
            }[asked]  # fmt: skip
            if looked_at:
                float(loss)
            grads = tj.backward(loss, wrt=wrt)
        seen.append((float(loss), [None if grads.get(one) is None else np.asarray(grads[one]) for one in wrt]))
        assert len(grads) == len({one.number for one in wrt} - {idle.number})
        assert not grads.has_intermediates

    def of(x, w0, w1, shift):
        h = jnp.tanh(x @ w0) + x + shift
        return (jnp.tanh(h @ w1) * h).sum()

    values = [x.value, ws[0].value, ws[1].value, jnp.zeros_like(x.value)]
    value, (dx, dw0, dw1, dh) = jax.value_and_grad(of, (0, 1, 2, 3))(*values)
    judge = {
        "some": [dw1, dx], "twice": [dx, dx], "a result": [dh, dw0], "the root": [np.float32(1), dx],
        "one that is not used": [None, dw0], "none": [],
    }[asked]  # fmt: skip
    for loss, found in seen:
        np.testing.assert_allclose(loss, value, rtol=1e-6)
        for ours, theirs in zip(found, judge, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("looked_at", [False, True])
def test_every_step_that_asks_for_everything_gives_the_same(looked_at, explicit):
    x, ws = leaf(np.ones((2, 3), "f")), params()

    def of(x, w0, w1, shift):
        h = jnp.tanh(x @ w0) + x + shift
        return (jnp.tanh(h @ w1) * h).sum()

    dx, dw0, dw1, dh = jax.grad(of, (0, 1, 2, 3))(*[one.value for one in (x, *ws[:2])], jnp.zeros_like(x.value))
    for visit in range(5):
        with tj.Tape() if explicit else contextlib.nullcontext():
            h = tanh(x @ ws[0]) + x
            loss = (tanh(h @ ws[1]) * h).sum()
            if looked_at:
                float(loss)
            grads = tj.backward(loss)
        for one, judge in ((x, dx), (ws[0], dw0), (ws[1], dw1), (h, dh), (loss, np.float32(1))):
            np.testing.assert_allclose(grads[one], judge, rtol=2e-6, atol=1e-6)
        assert len(grads) == 10  # three leaves, and what seven ops made
        assert next(iter(grads)) == loss.id
        assert grads.has_intermediates
        if explicit or not looked_at:  # otherwise h is held too, and each action has kept its own part
            steps = [key for layout in layouts.values() for key in layout.steps if key[1] is UNHELD_LATER]
            assert bool(steps) == (visit > 0)  # the short way
        with pytest.raises(tj.errors.MissingGradientError, match="no recorded op leads from it"):
            grads[ws[2] if len(ws) > 2 else leaf(1.0)]
        grads[loss].delete()  # it is the caller's own


def test_a_block_takes_no_more_calls_than_its_limit(monkeypatch):
    monkeypatch.setattr(block, "LIMIT", 3)
    x = leaf(2.0)
    with tj.Tape() as tape:
        made = [x * 1.5]
        for _ in range(6):
            made.append(made[-1] * 1.5)
        assert [len(entry.seal().number) for entry in tape.entries()] == [3, 3, 1]
        assert len(tape) == 7
        np.testing.assert_allclose(tape.backward(made[-1])[x], 1.5**7)


@pytest.mark.parametrize("shape", [lambda x, w: x, lambda x, w: {"x": x, "rest": [w]}, lambda x, w: (x, (w, x))])
def test_a_step_may_ask_for_one_tensor_or_for_a_tree(shape):
    x, ws = leaf(np.ones((2, 3), "f")), params()
    _, (dx, dws) = expected(x, ws)
    for _ in range(4):
        grads = tj.backward(forward(x, ws), wrt=shape(x, ws[1]))
        np.testing.assert_allclose(grads[x], dx, rtol=1e-5)
        if ws[1] in grads:
            np.testing.assert_allclose(grads[ws[1]], dws[1], rtol=1e-5, atol=1e-5)
    assert any(layout.steps for layout in layouts.values())


@pytest.mark.parametrize("looked_at", [False, True])
def test_a_quick_step_consumes_the_tape_and_says_where(looked_at):
    x, ws = leaf(np.ones((2, 3), "f")), params()
    for _ in range(4):
        loss = forward(x, ws)
        if looked_at:
            float(loss)
        tj.backward(loss, wrt=[x])
    assert layouts[next(reversed(layouts))].steps  # it went the quick way
    with pytest.raises(tj.errors.ConsumedTapeError, match=r"consumed by backward\(\) at .*test_block.py"):
        tj.backward(loss, wrt=[x])
    with pytest.raises(tj.errors.MissingGradientError, match="asked for others only"):
        tj.backward(forward(x, ws), wrt=[x])[ws[0]]


def test_a_quick_step_leaves_what_is_not_its_own_alone():
    x, ws = leaf(np.ones((2, 3), "f")), params()
    for _ in range(4):
        before = (x * x).sum()
        float(before)  # a block of its own, which is still wanted
        loss = forward(x, ws) + before
        _, (dx, _) = expected(x, ws)
        np.testing.assert_allclose(tj.backward(loss, wrt=[x])[x], dx + 2 * x.value, rtol=1e-5)


def test_a_failing_program_of_a_quick_step_goes_the_long_way(monkeypatch):
    x, ws = leaf(np.ones((2, 3), "f")), params()
    for _ in range(4):
        tj.backward(forward(x, ws), wrt=[x])
    (both,) = whole_steps()

    def fails(*_):
        raise MemoryError("planted")

    monkeypatch.setattr(both, "program", fails)
    _, (dx, _) = expected(x, ws)
    for _ in range(3):
        np.testing.assert_allclose(tj.backward(forward(x, ws), wrt=[x])[x], dx, rtol=1e-5)
    assert len(both.together.failures) == 1  # it was not tried again
    assert isinstance(both.together.failures[0], MemoryError)


def test_a_failing_backward_of_a_quick_step_goes_the_long_way(monkeypatch):
    x, ws = leaf(np.ones((2, 3), "f")), params()

    def step():
        loss = forward(x, ws)
        float(loss)
        return tj.backward(loss, wrt=[x])[x]

    for _ in range(3):
        step()
    (backward,) = {b for layout in layouts.values() for b in layout.backwards.values() if b.together.reason}
    assert any(key[2] is None for layout in layouts.values() for key in layout.steps)

    def fails(*_):
        raise MemoryError("planted")

    monkeypatch.setattr(backward, "program", fails)
    _, (dx, _) = expected(x, ws)
    for _ in range(3):
        np.testing.assert_allclose(step(), dx, rtol=1e-5)
    assert len(backward.together.failures) == 1  # it was not tried again


def test_an_interrupt_before_the_root_has_its_value(monkeypatch):
    x, ws = leaf(np.ones((2, 3), "f")), params()
    for _ in range(3):
        loss = forward(x, ws)
        float(loss)
        tj.backward(loss, wrt=[x])
    value, (dx, _) = expected(x, ws)
    loss = forward(x, ws)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sealed.Sealed, "hand_to", interrupted)
        with pytest.raises(KeyboardInterrupt):
            float(loss)
    np.testing.assert_allclose(tj.backward(loss, wrt=[x])[x], dx, rtol=1e-5)
    np.testing.assert_allclose(float(loss), value, rtol=1e-5)


def test_what_is_deleted_before_a_quick_step_is_named():
    x, ws = leaf(np.ones((2, 3), "f")), params()
    for _ in range(3):
        loss = forward(x, ws)
        float(loss)
        tj.backward(loss, wrt=[x])
    loss = forward(x, ws)
    float(loss)
    ws[0].value.delete()
    with pytest.raises(tj.errors.BackwardError, match="deleted"):
        tj.backward(loss, wrt=[x])


def test_what_an_ambient_block_keeps_goes_at_once_with_its_result():
    x = leaf(np.ones((2, 3), "f"))
    (tanh(x) * x).sum().value  # plans are made now: that ends a block
    gc.collect()
    gc.disable()
    try:
        loss = (tanh(x) * x).sum()
        float(loss)  # it runs
        sealed = loss.id.made_by.sealed
        kept = [weakref.ref(value) for value in sealed.now.kept[: sealed.now.forward.n_kept]]
        del sealed
        assert kept
        assert all(value() is not None for value in kept)
        del loss
        assert all(value() is None for value in kept)
    finally:
        gc.enable()


def test_of_two_results_each_keeps_its_own_part_of_an_ambient_block():
    x, y = leaf(np.ones((2, 3), "f")), leaf(np.ones((2, 3), "f"))
    one, other = (tanh(x) * x).sum(), (tanh(y) * y).sum()
    float(one)
    assert len(tj.current_tape()) == 6
    del other
    assert len(tj.current_tape()) == 3
    assert set(tj.backward(one).keys()) >= {x.id, one.id}


def test_actions_of_an_ambient_block_that_ran_can_be_looked_at_and_run_back():
    x = leaf(np.ones((2, 3), "f"))
    for _ in range(3):
        loss = (tanh(x) * x).sum()
        float(loss)
        assert [action.op for action in tj.current_tape()] == ["Tanh", "Multiply", "Sum"]
        assert loss.id.producer.op == "Sum"
        judge = jax.grad(lambda x: (jnp.tanh(x) * x).sum())(x.value)
        np.testing.assert_allclose(tj.backward(loss, retain_tape=True)[x], judge, rtol=1e-6)
        np.testing.assert_allclose(tj.backward(loss, wrt=[x])[x], judge, rtol=1e-6)


@pytest.mark.slow
def test_threads_look_at_values_while_the_owner_notes_more():
    x = leaf(np.linspace(-1, 1, 8).astype("f"))
    failures, seen = [], queue.Queue()

    def owner():
        rng = np.random.default_rng(0)
        try:
            for _ in range(300):
                h, value, slope = x, x.numpy(), 1.0
                for _ in range(rng.integers(2, 12)):
                    h = tanh(h * 1.1) + x
                    value, slope = np.tanh(1.1 * value) + x.numpy(), (1 - np.tanh(1.1 * value) ** 2) * 1.1 * slope + 1
                    if rng.random() < 0.5:
                        seen.put((h, value))
                grads = tj.backward((h * h).sum(), wrt=[x])
                np.testing.assert_allclose(grads[x], 2 * value * slope, rtol=1e-3, atol=1e-4)
        except Exception as failure:
            failures.append(failure)
        for _ in lookers:
            seen.put(None)

    def looker():
        try:
            while (item := seen.get()) is not None:
                np.testing.assert_allclose(item[0].value, item[1], rtol=1e-4)
                assert item[0].id.producer is not None
        except Exception as failure:
            failures.append(failure)

    lookers = [threading.Thread(target=looker) for _ in range(2)]
    threads = [threading.Thread(target=owner), *lookers]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures, failures[0]
