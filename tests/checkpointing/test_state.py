"""Both runs see the same settings, on their own thread and on threads and tasks that the function starts."""

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tapejax import errors

X = np.linspace(0.1, 1.0, 4).astype("float32").reshape(2, 2)


@pytest.fixture
def x():
    return tj.tensor(X, requires_grad=True)


def look():
    return {
        "x64": jax.enable_x64.value,
        "precision": jax.default_matmul_precision.value,
        "device": jax.default_device.value,
        "promotion": str(jax.numpy_dtype_promotion.value),
    }


def on_a_thread(function):
    found = []
    worker = threading.Thread(target=lambda: found.append(function()))
    worker.start()
    worker.join()
    return found[0]


def test_settings_are_those_of_the_first_run(x):
    seen = []

    def f(x):
        seen.append((look(), tj.is_recording() or tj.current_tape().forgets))
        return (x @ x) * 2.0

    device = jax.devices()[0]
    with jax.enable_x64(True), jax.default_matmul_precision("highest"), jax.default_device(device):
        y = tj.checkpoint(f, x)
    before = look()
    with jax.default_matmul_precision("float32"):
        tj.backward(y)
    assert seen[0] == seen[1]
    assert seen[0][0] != before
    assert look() == before


def test_settings_are_put_back_when_it_raises(x):
    runs = []

    def f(x):
        runs.append(1)
        if len(runs) == 2:
            raise KeyError("on purpose")
        return x * 2.0

    with jax.enable_x64(True):
        y = tj.checkpoint(f, x)
    before = look()
    with pytest.raises(errors.BackwardError, match="on purpose"):
        tj.backward(y)
    assert look() == before


@pytest.fixture
def changed_everywhere():
    """Change a setting for the whole process between two runs; it is put back at the end."""
    before = jax.config.jax_default_matmul_precision
    yield lambda: jax.config.update("jax_default_matmul_precision", "highest")
    jax.config.update("jax_default_matmul_precision", before)


def test_threads_of_the_function_see_the_settings_of_the_first_run(x, changed_everywhere):
    seen = []

    def f(x):
        with ThreadPoolExecutor(1) as pool:
            seen.append((on_a_thread(look), pool.submit(look).result()))
        return x * 2.0

    y = tj.checkpoint(f, x)
    changed_everywhere()
    tj.backward(y)
    assert seen[0] == seen[1]
    assert seen[0][0]["precision"] is None
    assert on_a_thread(look)["precision"] == "highest"


def test_no_grad_in_threads_and_tasks_of_the_function(x):
    seen = []

    def f(x):
        with tj.no_grad():
            context = contextvars.copy_context()
        plain = on_a_thread(tj.is_recording)
        copied = on_a_thread(lambda: context.run(tj.is_recording))

        async def task():
            return tj.is_recording()

        async def main():
            with tj.no_grad():
                return await asyncio.create_task(task()), await asyncio.to_thread(tj.is_recording)

        seen.append((plain, copied, asyncio.run(main()), asyncio.run(task())))
        return x * 2.0

    tj.backward(tj.checkpoint(f, x))
    assert seen[0] == seen[1] == (True, False, (False, False), True)


def test_threads_and_tasks_of_the_function_draw_the_same(x):
    seen = []

    def f(x):
        async def task():
            return tj.random.normal((2,))

        drawn = [on_a_thread(lambda: tj.random.normal((2,))), asyncio.run(task()), tj.random.normal((2,))]
        seen.append([np.asarray(values) for values in drawn])
        return x * seen[-1][0] * seen[-1][1] * seen[-1][2]

    tj.random.seed(0)
    y = tj.checkpoint(f, x)
    state = tj.random.get_state()
    later = on_a_thread(lambda: np.asarray(tj.random.normal((2,))))
    grads = tj.backward(y)
    np.testing.assert_array_equal(seen[0], seen[1])
    np.testing.assert_allclose(grads[x], np.broadcast_to(np.prod(seen[0], 0), (2, 2)), rtol=1e-6)
    assert tj.random.get_state() == state
    again = on_a_thread(lambda: np.asarray(tj.random.normal((2,))))
    assert not any(np.array_equal(again, other) for other in [later, *seen[0]])  # nobody's numbers come twice


def test_work_of_forked_tapes_is_recorded_in_both_runs(x):
    w = tj.tensor(2 * X, requires_grad=True)

    def f(x):
        tape = tj.current_tape()
        children = [tape.fork(), tape.fork()]

        def work(child, function):
            with child:
                return function(x) * w

        found = [on_a_thread(lambda c=c, g=g: work(c, g)) for c, g in zip(children, (tnp.sin, tnp.exp), strict=True)]
        tape.merge(children)
        return found[0] * found[1]

    ours, plain = tj.backward(tj.checkpoint(f, x)), tj.backward(tnp.sin(x) * w * (tnp.exp(x) * w))
    np.testing.assert_allclose(ours[x], plain[x], rtol=1e-5)
    np.testing.assert_allclose(ours[w], plain[w], rtol=1e-5)


def test_backward_on_another_thread(x):
    with tj.Tape() as tape:
        y = tj.checkpoint(lambda x: tnp.sin(x) * tj.random.normal((2,)), x)
    grads = on_a_thread(lambda: tape.backward(y))
    np.testing.assert_allclose(grads[x], np.cos(X) * (y.value / np.sin(X)), rtol=1e-4)
