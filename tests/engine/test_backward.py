"""backward: its five rules, and the ancestors' behaviours."""

import asyncio
import contextvars
import gc
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from tapejax import errors


class PassThrough(tj.TapeAction):
    """The ancestors' test action: hands the gradient of its output to its input."""

    def __init__(self, source, target):
        self.source, self.target = source, target

    def backward(self, grads):
        gradient = grads.get(self.target)
        if gradient is not None:
            grads.insert(self.source, gradient)

    def name(self):
        return f"PassThrough({self.source!r})"


class Fails(tj.TapeAction):
    def __init__(self, after):
        self.after = after

    @property
    def inputs(self):
        return (self.after.id,)

    @property
    def outputs(self):
        return (self.after.id,)

    def backward(self, grads):
        raise ArithmeticError("on purpose")


def leaf(value, **options):
    return tj.tensor(value, requires_grad=True, **options)


# --- rule 1: what is refused -----------------------------------------------------------------------


def test_backward_refuses_a_root_that_needs_no_gradient_and_leaves_the_tape():
    x = leaf(2.0)
    kept = x * x
    with pytest.raises(ValueError, match=r"(?i)requires_grad is false") as caught:
        tj.backward(tj.tensor(1.0))
    assert isinstance(caught.value, errors.RequiresGradError)
    assert __file__ in str(caught.value)
    assert len(tj.current_tape()) == 1
    assert tj.backward(kept)[x] == 4.0


def test_second_backward_says_that_the_tape_was_consumed():
    x = leaf(2.0)
    y = x * x
    tj.backward(y)
    with pytest.raises(errors.ConsumedTapeError, match="consumed by backward") as caught:
        tj.backward(y)
    assert __file__ in str(caught.value)


def test_root_of_another_tape_is_named():
    x = leaf(2.0)
    with tj.Tape(label="the first tape") as tape:
        y = x * x
    with pytest.raises(errors.WrongTapeError, match="recorded on the first tape, but backward reads the ambient tape"):
        tj.backward(y)
    assert len(tape) == 1
    assert tape.backward(y)[x] == 4.0


def test_ambient_tapes_are_told_apart_by_their_threads_and_tasks():
    x, made = leaf(2.0), []
    thread = threading.Thread(target=lambda: made.append(x * x), name="the worker")
    thread.start()
    thread.join()
    with pytest.raises(
        errors.WrongTapeError, match=r"ambient tape of thread 'the worker', but .* of thread 'MainThread'"
    ) as caught:
        tj.backward(made[0])
    assert "with Tape() as tape" in caught.value.fix

    async def main():
        await asyncio.create_task(ops(), name="the other task")
        tj.backward(made[1])

    async def ops():
        made.append(x * x)

    with pytest.raises(errors.WrongTapeError, match=r"ambient tape of task 'the other task', but .* of task 'Task-"):
        asyncio.run(main())

    contextvars.Context().run(lambda: made.append(x * x))
    with pytest.raises(
        errors.WrongTapeError, match=r"of thread 'MainThread', but backward reads another one, .* in another context"
    ):
        tj.backward(made[2])


@pytest.mark.parametrize(
    "seed", [np.ones(3, "f"), np.ones((2, 2), "f"), np.ones(2, np.float16), np.ones(2, np.complex64)]
)
def test_seed_that_does_not_fit_is_refused_and_the_tape_stays(seed):
    x = leaf([1.0, 2.0])
    y = x * x
    with pytest.raises(errors.SeedError):
        tj.backward(y, seed)
    assert len(tj.current_tape()) == 1


@pytest.mark.parametrize("root", [1.0, jnp.ones(2), None, "loss", []])
def test_root_that_is_no_tensor_is_refused(root):
    with pytest.raises(TypeError, match="backward needs"):
        tj.backward(root)


def test_leaf_as_root_is_fine():
    x = leaf([1.0, 2.0])
    assert np.array_equal(tj.backward(x)[x], [1.0, 1.0])


# --- rule 2: seeds -----------------------------------------------------------------------------------


def test_seed_is_one_and_passes_through_a_user_written_action():
    x, y = leaf(3.0), leaf(5.0)
    tj.record(PassThrough(x.id, y.id))
    grads = tj.backward(y)
    assert grads.get(x.id) == 1.0
    assert grads.get(y.id) == 1.0


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.complex64])
def test_seed_has_the_shape_and_dtype_of_the_root(dtype):
    x = tj.tensor(np.ones((2, 3)), dtype=dtype, requires_grad=True)
    y = x * x
    seed = tj.backward(y)[y]
    assert seed.shape == (2, 3)
    assert seed.dtype == dtype
    assert (seed == 1).all()


def test_float64_seed():
    with jax.enable_x64(True):
        x = tj.tensor(np.ones(3), requires_grad=True)
        grads = tj.backward(x * 3.0)
        assert grads[x].dtype == jnp.float64


def test_given_seed_scales_the_result():
    x = leaf([1.0, 2.0, 3.0])
    grads = tj.backward(x * x, [1.0, 10.0, 100.0])
    assert np.array_equal(grads[x], [2.0, 40.0, 600.0])


def test_several_roots_with_several_seeds_in_one_pass():
    x = leaf([1.0, 2.0])
    a, b = x * 2.0, x * x
    grads = tj.backward([a, b], [None, [1.0, 0.5]])
    assert np.array_equal(grads[x], [2.0 + 2.0, 2.0 + 2.0])
    assert len(tj.current_tape()) == 0


@pytest.mark.parametrize("seeds", [[None], [None, None, None], 1.0])
def test_wrong_number_of_seeds(seeds):
    x = leaf(1.0)
    a, b = x * 2.0, x * x
    with pytest.raises(errors.SeedError):
        tj.backward([a, b], seeds)
    assert len(tj.current_tape()) == 2


# --- rule 3: order -------------------------------------------------------------------------------------


def test_actions_run_in_strict_reverse_order():
    seen = []

    class Spy(tj.TapeAction):
        def __init__(self, number):
            self.number = number

        def backward(self, grads):
            seen.append(self.number)

        def name(self):
            return f"Spy({self.number})"

    for number in range(5):
        tj.record(Spy(number))
    tj.backward(leaf(1.0))
    assert seen == [4, 3, 2, 1, 0]


def test_unused_recorded_op_does_not_break_backward():
    x, unused = leaf(2.0), leaf(7.0)
    y = x * x
    dead = unused * unused
    grads = tj.backward(y)
    assert grads[x] == 4.0
    assert unused not in grads
    assert dead not in grads


def test_tape_is_consumed():
    x = leaf(2.0)
    tj.backward(x * x)
    assert len(tj.current_tape()) == 0


# --- rule 4: what is returned -----------------------------------------------------------------------------


def test_intermediates_have_gradients_too():
    x = leaf(3.0)
    y = x * x
    z = y * 2.0
    grads = tj.backward(z)
    assert [float(grads[t]) for t in (z, y, x)] == [1.0, 2.0, 12.0]


def test_shared_tensor_accumulates():
    x = leaf(3.0)
    y = x * x + x * 2.0 + x
    assert tj.backward(y)[x] == 2 * 3.0 + 2.0 + 1.0


def test_retain_tape_leaves_the_tape_as_it_was():
    x = leaf(3.0)
    y = x * x
    before = tj.current_tape().actions
    first = tj.backward(y, retain_tape=True)
    assert tj.current_tape().actions == before
    assert tj.backward(y)[x] == first[x]


def test_wrt_keeps_only_those():
    x, w = leaf(3.0), leaf(4.0)
    h = x * w
    y = h * h
    grads = tj.backward(y, wrt=[w])
    assert len(grads) == 1
    assert grads[w] == 2 * 12.0 * 3.0
    with pytest.raises(errors.MissingGradientError, match="others only"):
        grads[x]


def test_wrt_runs_only_what_leads_there(monkeypatch):
    ran = []
    monkeypatch.setattr(tj.fusion, "enabled", False)  # action by action
    original = tj.lift(jnp.sin)
    x, w = leaf(1.0), leaf(2.0)
    with tj.Tape() as tape:
        a = original(x)
        b = original(w)
        c = a * b
    action_type = type(tape[0])
    backward = action_type.backward
    monkeypatch.setattr(action_type, "backward", lambda self, grads: (ran.append(self.op), backward(self, grads))[1])
    tape.backward(c, wrt=w)
    assert ran == ["Multiply", "Sin"]


def test_wrt_frees_gradients_as_soon_as_they_are_used():
    x = leaf(np.ones(10, "f"))
    alive = []

    class Count(tj.TapeAction):
        def __init__(self, at):
            self.inputs = self.outputs = (at.id,)

        def backward(self, grads):
            alive.append(len(grads))

    with tj.Tape() as tape:
        y = x
        for _ in range(20):
            y = y * 1.5
            tape.push(Count(y))
    tape.backward(y, wrt=x)
    assert max(alive) == 1


# --- rule 5: failure loses nothing ----------------------------------------------------------------------------


def test_failing_action_names_itself_and_keeps_everything():
    x = leaf(2.0)
    y = x * x
    tj.record(Fails(y))
    z = y * 3.0
    with pytest.raises(errors.BackwardError) as caught:
        tj.backward(z)
    error = caught.value
    assert isinstance(error, RuntimeError)
    assert isinstance(error.__cause__, ArithmeticError)
    assert "Fails" in str(error)
    assert error.index == 1
    assert isinstance(error.failed, Fails)
    assert [action.name().split("(")[0] for action in error.actions] == ["Multiply", "Fails"]
    assert error.gradients[y] == 3.0
    assert x not in error.gradients
    assert len(tj.current_tape()) == 0
    again = x * x  # the next step works
    assert tj.backward(again)[x] == 4.0


def test_failing_op_names_the_line_of_its_forward():
    @tj.custom_op(jit=False)
    def broken(x):
        return x * 2

    @broken.defbackward
    def _(ct, out, x):
        raise ZeroDivisionError("in the rule")

    x = leaf(1.0)
    y = broken(x)  # this line
    with pytest.raises(errors.BackwardError, match="ZeroDivisionError") as caught:
        tj.backward(y)
    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# this line"))
    assert f"{__file__}:{line}" in str(caught.value)
    assert "Broken(TensorId(" in str(caught.value)


def test_failure_with_retained_tape_keeps_the_tape():
    x = leaf(2.0)
    with tj.Tape() as tape:
        y = x * x
        tape.push(Fails(y))
        with pytest.raises(errors.BackwardError):
            tj.backward(y, retain_tape=True)
        assert len(tape) == 2


# --- scale ---------------------------------------------------------------------------------------------------


def test_long_chain_needs_no_recursion():
    x = leaf(1.0)
    with tj.Tape() as tape:
        y = x
        for _ in range(20_000):
            y = -y
    assert tape.backward(y)[x] == 1.0
    del tape, y
    gc.collect()


def test_missing_gradient_is_an_answer_with_a_reason():
    x, other = leaf(1.0), leaf(1.0)
    grads = tj.backward(x * 2.0)
    assert grads.get(other) is None
    with pytest.raises(KeyError, match="no recorded op leads from it"):
        grads[other]
    assert "requires_grad is False" in grads.explain(x.detach())
    assert "integers" in grads.explain(tj.tensor(3))
    assert "it has one" in grads.explain(x)
