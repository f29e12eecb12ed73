"""Hooks on the way forward and back: order, replacement, removal, errors, jit, create_graph, checkpoint."""

import contextvars
import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import tapejax as tj
import tapejax.numpy as tnp
from tapejax.errors import ArgumentError, BackwardError, ConsumedTapeError, HookError, RequiresGradError
from tapejax.hooks import EVERYTHING, after, after_accumulation, before, calls, forward, on_gradient, registry

X = np.array([0.3, -1.2, 2.0], np.float32)


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    gc.collect()
    assert not registry.everywhere
    assert not calls.attending
    assert tj.fusion.everywhere


def leaf(value=X):
    return tj.tensor(value, requires_grad=True)


# --- on a Tensor -------------------------------------------------------------------------------------------


def test_it_sees_the_total_once_and_changes_nothing():
    x, seen = leaf(), []
    h = tnp.sin(x)
    h.register_hook(lambda g: seen.append(np.asarray(g)))
    grads = tj.backward((h * h + 3 * h).sum())
    np.testing.assert_allclose(seen, [2 * np.sin(X) + 3], rtol=1e-6)
    np.testing.assert_allclose(grads[x], (2 * np.sin(X) + 3) * np.cos(X), rtol=1e-5)


def test_on_a_leaf_the_total_of_all_its_uses():
    x, seen = leaf(), []
    on_gradient(x, lambda g: seen.append(np.asarray(g)))
    grads = tj.backward((x * x + tnp.exp(x)).sum(), wrt=x)
    np.testing.assert_allclose(seen, [2 * X + np.exp(X)], rtol=1e-6)
    np.testing.assert_allclose(grads[x], seen[0])


def test_what_it_returns_goes_on():
    x = leaf()
    h = x * x
    h.register_hook(lambda g: jnp.zeros_like(g).at[0].set(5.0))
    np.testing.assert_allclose(tj.backward(h.sum())[x], [5 * 2 * X[0], 0, 0], rtol=1e-6)


def test_hooks_run_in_the_order_they_came_each_on_what_the_one_before_made():
    x, order = leaf(), []
    h = x * 2
    for number in (3, 5):
        h.register_hook(lambda g, number=number: (order.append((number, float(g[0]))), g * number)[1])
    tj.backward(h.sum())
    assert order == [(3, 1.0), (5, 3.0)]


def test_results_later_on_the_tape_come_first():
    x, order = leaf(), []
    a = x * 2
    b = tnp.sin(a)
    for name, one in (("x", x), ("a", a), ("b", b)):
        one.register_hook(lambda g, name=name: order.append(name))
    tj.backward(b.sum())
    assert order == ["b", "a", "x"]


def test_a_leaf_is_told_as_soon_as_nothing_more_is_added():
    x, w, order = leaf(), leaf(), []
    h = x * 2  # the only one that reads x
    y = tnp.sin(h) * w
    on_gradient(w, lambda g: order.append("w"))
    on_gradient(x, lambda g: order.append("x"))
    h.register_hook(lambda g: order.append("h"))
    tj.backward(y.sum())
    assert order == ["w", "h", "x"]


def test_registered_after_the_op_that_used_it_it_is_called_all_the_same():
    x = leaf()
    y = (x * x).sum()
    x.register_hook(lambda g: 10 * g)
    np.testing.assert_allclose(tj.backward(y)[x], 20 * X)


def test_a_root_that_is_a_leaf():
    x = leaf(2.0)
    x.register_hook(lambda g: g + 1)
    assert float(tj.backward(x)[x]) == 2.0


def test_several_roots():
    x = leaf(2.0)
    y, z = x * x, x * 3
    y.register_hook(lambda g: 10 * g)
    assert float(tj.backward([y, z])[x]) == 10 * 4 + 3


def test_forked_tapes_and_threads():
    x, seen = leaf(), []
    with tj.Tape() as tape:
        child = tape.fork()
        with child:
            h = x * 2
            h.register_hook(lambda g: 100 * g)
        tape.merge([child])
        y = h.sum()
    np.testing.assert_allclose(tape.backward(y)[x], np.full(3, 200.0))

    def step():
        a = leaf(1.0)
        a.register_hook(seen.append)
        tj.backward(a * a)

    threads = [threading.Thread(target=step) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4


def test_an_error_in_a_forward_hook_names_it_too():
    x = leaf()
    with forward("multiply", complains), pytest.raises(HookError, match="`complains`, forward of multiply"):
        x * x


def test_watch_sees_inside_loops_checkpoints_and_jit():
    x = leaf()

    @tj.lift
    def rolled(x):
        return jax.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1].sum()

    with tj.watch(detail="primitives") as calls:
        y = rolled(x)
    assert [(call.op, call.steps) for call in calls if call.op == "mul"] == [("mul", (("while", i),)) for i in (0, 1)]
    np.testing.assert_allclose(tj.backward(y)[x], np.full(3, 4.0))
    with tj.watch() as calls:
        tj.checkpoint(lambda a: tnp.cos(a).sum(), x)
    assert [call.op for call in calls] == ["cos", "sum"]


def test_too_late_is_refused():
    x = leaf()
    h = x * x
    tj.backward(h.sum())
    with pytest.raises(ConsumedTapeError, match="too late for a hook"):
        h.register_hook(print)


def test_where_no_gradient_comes_it_is_refused():
    with pytest.raises(RequiresGradError, match="never be called"):
        tj.tensor(1.0).register_hook(print)
    with pytest.raises(ArgumentError):
        on_gradient(jnp.ones(2), print)
    with pytest.raises(ArgumentError, match="a hook is a function"):
        leaf().register_hook(3)


def test_removed_it_is_not_called_and_a_with_block_removes():
    x, seen = leaf(), []
    handle = x.register_hook(lambda g: seen.append(1))
    handle.remove()
    handle.remove()
    with x.register_hook(lambda g: seen.append(2)):
        tj.backward((x * x).sum())
    tj.backward((x * x).sum())
    assert seen == [2]


def test_a_hook_on_a_leaf_stays_for_every_step_one_on_a_result_goes_with_it():
    x, seen = leaf(), []
    with on_gradient(x, lambda g: seen.append("x")):
        for _ in range(3):
            h = x * x
            h.register_hook(lambda g: seen.append("h"))
            tj.backward(h.sum(), wrt=x)
    assert seen == ["h", "x"] * 3


def test_it_keeps_nothing_alive():

    def step():
        x = leaf()
        x.register_hook(lambda g: x)
        h = x * x
        h.register_hook(lambda g: h)
        tj.backward(h.sum())
        return weakref.ref(x), weakref.ref(h)

    held, also = step()
    gc.collect()
    assert [held(), also()] == [None, None]
    assert not registry.live


def test_without_hooks_the_fused_program_is_the_way_back():
    x = leaf()
    with x.register_hook(lambda g: None):
        assert registry.live
        hooked = tj.backward(tnp.sin(x * x).sum(), wrt=x)[x]
    assert not registry.live
    np.testing.assert_allclose(tj.backward(tnp.sin(x * x).sum(), wrt=x)[x], hooked, rtol=1e-6)


def test_with_wrt_only_what_is_on_the_way_is_told():
    x, w, seen = leaf(), leaf(), []
    w.register_hook(lambda g: seen.append("w"))
    h = x * w
    h.register_hook(lambda g: seen.append("h"))
    tj.backward(h.sum(), wrt=x)
    assert seen == ["h"]


def test_a_kept_tape_tells_at_every_pass():
    x, seen = leaf(), []
    with tj.Tape() as tape:
        h = x * x
        y = h.sum()
    h.register_hook(lambda g: seen.append(float(g[0])))
    tape.backward(y, retain_tape=True)
    tape.backward(y, seed=2.0)
    assert seen == [1.0, 2.0]


# --- after accumulation --------------------------------------------------------------------------------------


def test_after_accumulation_comes_last_with_the_tensor():
    x, order = leaf(), []
    after_accumulation(x, lambda tensor, g: order.append((tensor is x, float(g[0]))))
    x.register_hook(lambda g: order.append("hook") or g * 2)
    grads = tj.backward((x * 3).sum())
    assert order == ["hook", (True, 6.0)]
    assert float(grads[x][0]) == 6.0
    with pytest.raises(ArgumentError, match="no leaf"):
        after_accumulation(x * 2, print)


def test_an_optimiser_step_within_backward():
    """Each parameter is updated as soon as its gradient is there."""
    w, updated = leaf(), {}
    after_accumulation(w, lambda w, g: updated.update(w=w.value - 0.1 * g))
    tj.backward((w * w).sum())
    np.testing.assert_allclose(updated["w"], X - 0.1 * 2 * X, rtol=1e-6)


# --- before and after an action --------------------------------------------------------------------------------


def test_before_an_action_its_cotangents_may_be_replaced_for_it_alone():
    x = leaf()
    h = tnp.sin(x)
    before(h, lambda action, cts: (cts[0] * 2,))
    grads = tj.backward(h.sum())
    np.testing.assert_allclose(grads[x], 2 * np.cos(X), rtol=1e-6)
    np.testing.assert_allclose(grads[h], np.ones(3))


def test_after_an_action_one_gradient_per_input():
    x, seen = leaf(), []
    with tj.Tape() as tape:
        y = x * x
        z = (y * tj.tensor(X)).sum()
    after(tape[0], lambda action, gs, cts: seen.append([np.asarray(g) for g in gs]) or [gs[0], gs[1] * 0])
    after(tape[1], lambda action, gs, cts: seen.append([g is None for g in gs]))
    grads = tape.backward(z)
    assert seen[0] == [False, True]
    np.testing.assert_allclose(seen[1], [X * X, X * X], rtol=1e-6)
    np.testing.assert_allclose(grads[x], X * X, rtol=1e-6)


def test_by_op_and_everything():
    x, ops, everything = leaf(), [], []
    with (
        before("sin", lambda action, cts: ops.append(action.op)),
        before(tnp.cos, lambda action, cts: ops.append(action.op)),
        after(EVERYTHING, lambda action, gs, cts: everything.append(action.op)),
    ):
        tj.backward((tnp.sin(x) + tnp.cos(x)).sum())
    assert ops == ["Cos", "Sin"]
    assert everything == ["Sum", "Add", "Cos", "Sin"]


def test_the_order_of_all_kinds():
    x, order = leaf(), []
    h = tnp.sin(x)
    note = lambda name: lambda *_: order.append(name)
    after(h, note("after"))
    before(h, note("before"))
    h.register_hook(note("tensor"))
    after_accumulation(x, note("accumulated"))
    x.register_hook(note("leaf"))
    tj.backward(h.sum())
    assert order == ["tensor", "before", "after", "leaf", "accumulated"]


# --- forward ---------------------------------------------------------------------------------------------------


def test_forward_sees_the_call_and_may_replace_its_results():
    x, seen = leaf(), []
    with forward("sin", lambda call: seen.append(call) or call.outputs[0] * 2):
        y = tnp.sin(x).sum()
    (call,) = seen
    assert (call.op, call.regions, call.steps) == ("sin", (), ())
    assert call.line.rpartition(":")[0] == __file__
    np.testing.assert_allclose(call.outputs[0].value, np.sin(X), rtol=1e-6)
    np.testing.assert_allclose(tj.backward(y)[x], 2 * np.cos(X), rtol=1e-6)
    with pytest.raises(ArgumentError, match="has run already"):
        forward(call.action, print)


def test_forward_of_ops_without_gradient_too():
    seen = []
    with forward(EVERYTHING, lambda call: seen.append((call.op, call.action is None))):
        x = tj.tensor(X)
        tnp.where(x > 0, x, 0.0)
    assert seen == [("greater", True), ("where", True)]


# --- regions and names -----------------------------------------------------------------------------------------


def test_everything_in_a_region():
    x, seen, told = leaf(), [], []
    with forward(tj.region("block3"), lambda call: told.append(call.op)), tj.Tape() as tape:
        h = tnp.sin(x)
        with tj.region("block3"):
            h = tnp.exp(h) * 2
        y = h.sum()
    before(tj.region("block3"), lambda action, cts: seen.append(action.op)).remove()
    with before(tj.region("block3"), lambda action, cts: seen.append(action.op)):
        tape.backward(y)
    assert (seen, told) == (["Multiply", "Exp"], ["exp", "multiply"])


def test_regions_of_a_nested_tape_and_of_another_thread():
    x, found = leaf(), {}

    def elsewhere():
        with tj.Tape() as tape:
            leaf() * 2
        found["thread"] = tj.regions_of(tape[0])

    with tj.region("outer"):
        with tj.Tape() as tape, tj.region("inner"):
            x * x
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert tj.regions_of(tape[0]) == ("outer", "inner")
    assert found["thread"] == ()


@tj.lift
def block(x):
    with tj.region("inside"):
        h = checkpoint_name(jnp.sin(x), "hidden")
    return jnp.cos(h).sum()


def test_inside_a_lifted_function_by_name_and_by_region():
    x, seen, ops = leaf(), [], []
    plain = tj.backward(block(x))[x]
    with (
        on_gradient("hidden", lambda g: seen.append(np.asarray(g)) or 2 * g),
        before(tj.region("inside"), lambda action, cts: ops.append(action.op)),
    ):
        grads = tj.backward(block(x))
    np.testing.assert_allclose(seen, [-np.sin(np.sin(X))], rtol=1e-6)
    np.testing.assert_allclose(grads[x], 2 * plain, rtol=1e-6)
    assert ops == ["Name", "Sin"]


def test_by_name_inside_the_steps_of_a_scan():
    @tj.lift
    def rolled(x):
        with tj.region("loop"):
            return jax.lax.scan(lambda c, _: (checkpoint_name(jnp.sin(c), "step"), None), x, None, length=4)[0].sum()

    x, seen, ops = leaf(), [], set()
    plain = tj.backward(rolled(x))[x]
    with (
        on_gradient("step", lambda g: seen.append(float(g[0]))),
        after(tj.region("loop"), lambda action, gs, cts: ops.add((action.op, action.steps))),
    ):
        grads = tj.backward(rolled(x))
    np.testing.assert_allclose(grads[x], plain, rtol=1e-6)
    states = [X[0]]
    for _ in range(4):
        states.append(np.sin(states[-1]))
    expected = [1.0]
    for state in states[3:0:-1]:
        expected.append(expected[-1] * np.cos(state))
    np.testing.assert_allclose(seen, expected, rtol=1e-5)
    assert ("Sin", (("scan", 2),)) in ops


def test_a_name_given_on_the_tape():
    x, seen = leaf(), []
    with on_gradient("h", lambda g: seen.append(np.asarray(g))):
        y = (tj.checkpoint_name(tnp.sin(x), "h") * 3).sum()
        tj.backward(y)
    np.testing.assert_allclose(seen, [np.full(3, 3.0)])


# --- errors, context --------------------------------------------------------------------------------------------


def complains(gradient):
    raise ValueError("no")


def test_an_error_names_the_hook_and_loses_nothing():
    x = leaf()
    h = x * x
    h.register_hook(complains)
    with pytest.raises(HookError, match=r"the hook `complains`, gradient of TensorId.*ValueError: no") as caught:
        tj.backward(tnp.sin(h).sum())
    error = caught.value
    assert isinstance(error, BackwardError)
    assert isinstance(error.__cause__, ValueError)
    assert error.at.rpartition(":")[0] == __file__
    assert [action.op for action in error.actions] == ["Multiply"]
    assert error.gradients[h].shape == (3,)


@pytest.mark.parametrize("wrong", [jnp.ones(2), jnp.ones(3, jnp.int32), "text"], ids=["shape", "dtype", "kind"])
def test_what_is_no_gradient_is_refused(wrong):
    x = leaf()
    x.register_hook(lambda g: wrong)
    with pytest.raises(HookError, match="returned"):
        tj.backward((x * x).sum())


def test_too_many_gradients_are_refused():
    x = leaf()
    y = (x * x).sum()
    before(y, lambda action, cts: (cts[0], cts[0]))
    with pytest.raises(HookError, match="returned 2 gradients in place of 1"):
        tj.backward(y)


def test_the_callers_context_is_there():
    variable = contextvars.ContextVar("variable", default="none")
    x, seen = leaf(), []
    x.register_hook(lambda g: seen.append(variable.get()))
    variable.set("mine")
    tj.backward((x * x).sum())
    assert seen == ["mine"]


# --- with the rest ------------------------------------------------------------------------------------------------


def test_under_jit():
    def step(x):
        x = tj.tensor(x, requires_grad=True)
        h = x * x
        h.register_hook(lambda g: jnp.clip(g, -0.5, 0.5))
        return tj.backward(tnp.sin(h).sum())[x]

    expected = np.clip(np.cos(X**2), -0.5, 0.5) * 2 * X
    np.testing.assert_allclose(jax.jit(step)(X), expected, rtol=1e-5)
    np.testing.assert_allclose(step(X), expected, rtol=1e-5)


def test_in_the_transforms():
    def loss(x):
        h = x * x
        h.register_hook(lambda g: 3 * g)
        return tnp.sin(h).sum()

    expected = 3 * np.cos(X**2) * 2 * X
    np.testing.assert_allclose(tj.grad(loss)(jnp.asarray(X)), expected, rtol=1e-5)
    np.testing.assert_allclose(tj.jit(tj.grad(loss))(jnp.asarray(X)), expected, rtol=1e-5)


def test_with_create_graph_what_it_returns_is_differentiated_again():
    x = leaf(1.5)
    with tj.Tape() as tape:
        h = x * x
        y = h * h
        with h.register_hook(lambda g: g * g):
            first = tape.backward(y, create_graph=True)[x]
        second = tape.backward(first)[x]
    value = 1.5  # dy/dh = 2 x^2; squared 4 x^4; times 2x: 8 x^5
    np.testing.assert_allclose(first.value, 8 * value**5, rtol=1e-6)
    np.testing.assert_allclose(second, 40 * value**4, rtol=1e-6)


def test_inside_and_around_a_checkpoint():
    x, w, inside, outside = leaf(), leaf(), [], []

    def block(x):
        h = tnp.sin(x)
        h.register_hook(lambda g: inside.append(np.asarray(g)) or 2 * g)
        return h * w

    w.register_hook(lambda g: outside.append(np.asarray(g)))
    y = (tj.checkpoint(block, x) * w).sum()
    grads = tj.backward(y)
    np.testing.assert_allclose(inside, [X * X], rtol=1e-6)
    np.testing.assert_allclose(outside, [2 * X * np.sin(X)], rtol=1e-6)
    np.testing.assert_allclose(grads[x], 2 * X * X * np.cos(X), rtol=1e-5)


# --- examples ----------------------------------------------------------------------------------------------------


def test_clipping():
    x = leaf()
    x.register_hook(lambda g: jnp.clip(g, -1.0, 1.0))
    np.testing.assert_allclose(tj.backward((x * x).sum())[x], np.clip(2 * X, -1, 1))


def test_logging_of_norms_by_region():
    x, norms = leaf(), {}

    def note(action, gradients, cotangents):
        (name,) = tj.regions_of(action)
        norms.setdefault(name, []).append(float(jnp.linalg.norm(cotangents[0])))

    h = x
    for number in range(3):
        with tj.region(f"layer{number}"):
            h = tnp.tanh(h)
    with (
        after(tj.region("layer0"), note),
        after(tj.region("layer1"), note),
        after(tj.region("layer2"), note),
    ):
        tj.backward(h.sum())
    assert list(norms) == ["layer2", "layer1", "layer0"]
    assert norms["layer2"][0] > norms["layer1"][0] > norms["layer0"][0]


def test_masking_of_nan():
    x = leaf([4.0, 0.0])
    root = tnp.sqrt(x)
    y = tnp.where(x > 0, root, 0.0).sum()
    x.register_hook(lambda g: jnp.where(jnp.isfinite(g), g, 0.0))
    np.testing.assert_allclose(tj.backward(y)[x], [0.25, 0.0])


# --- saved values ------------------------------------------------------------------------------------------------


def test_pack_is_told_which_action_and_operand():
    x, told = leaf(), []

    def pack(value, saved):
        told.append((saved.op, saved.operand, saved.line.rpartition(":")[0]))
        return np.asarray(value)

    with tj.saved_tensors_hooks(pack, jnp.asarray):
        y = (tnp.exp(x) / tj.tensor(X)).sum()
        z = tj.checkpoint(lambda h: tnp.sin(h).sum(), x * 2)
    grads = tj.backward([y, z])
    assert ("exp", "out", __file__) in told
    assert ("true_divide", "x2", __file__) in told
    assert ("checkpoint <lambda>", "input[0]", __file__) in told
    np.testing.assert_allclose(grads[x], np.exp(X) / X + 2 * np.cos(2 * X), rtol=1e-5)
