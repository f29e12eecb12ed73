"""Programs that are compiled quickly first: which, for how many visits, and that every visit is right."""

import json
import math
import os
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tapejax.ground import compat
from tapejax.plan import tiers
from tapejax.plan.executables import shelf
from tapejax.plan.policy import Part
from tapejax.plan.tiers import BEGIN, Tiers, moved
from tapejax.program.tracing import trace

quickly = pytest.mark.skipif(not compat.quick_compilation(), reason="only on a CPU, in one process")


@pytest.fixture
def soon(monkeypatch):
    """A byte costs so much that a program is compiled well at its fifth visit."""
    tj.clear_plans()
    monkeypatch.setattr(tiers.Tiers, "__init__", lambda self, cost, parts: set_both(self, 4.0, 1.0))
    monkeypatch.setattr(compat, "compilation_cache", lambda: None)
    yield
    tj.clear_plans()


def set_both(self, cost, loss):
    self.cost, self.loss = cost, loss


def step(x, w):
    loss = (tnp.tanh(x @ w) * x).sum()
    grads = tj.backward(loss, wrt=(x, w))
    return loss.value, grads[x], grads[w]


def judge(x, w):
    value, gradients = jax.value_and_grad(lambda x, w: (jnp.tanh(x @ w) * x).sum(), (0, 1))(x, w)
    return value, *gradients


def data():
    rng = np.random.default_rng(3)
    return rng.standard_normal((3, 3)).astype("f"), rng.standard_normal((3, 3)).astype("f")


def both():
    """The one fused program there is."""
    (found,) = [one for one in shelf.there() if one.name == "forward_and_backward"]
    return found


@quickly
def test_quick_then_well_and_right_at_every_visit(soon):
    x, w = data()
    expected = judge(x, w)
    seen = []
    for _ in range(7):
        got = step(tj.tensor(x, requires_grad=True), tj.tensor(w, requires_grad=True))
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-5, atol=1e-6)
        seen.append(both().is_quick)
    assert seen == [True] * 4 + [False] * 3


@quickly
def test_the_same_visits_run_the_same_programs(soon):
    """Bit for bit: what is compiled when is counted, and does not depend on how long anything took."""
    x, w = data()
    runs = []
    for _ in range(2):
        tj.clear_plans()
        runs.append([step(tj.tensor(x, requires_grad=True), tj.tensor(w, requires_grad=True)) for _ in range(6)])
    for one, other in zip(*runs, strict=True):
        for a, b in zip(one, other, strict=True):
            assert np.array_equal(np.asarray(a), np.asarray(b))


@quickly
def test_the_better_one_is_made_aside(soon):
    x, w = data()
    for visit in range(4):
        step(tj.tensor(x, requires_grad=True), tj.tensor(w, requires_grad=True))
        thread = both().jitted.aside
        assert (thread is not None) == (visit >= 4 * BEGIN)
    assert isinstance(thread, threading.Thread)
    thread.join(60)
    assert not thread.is_alive()


@quickly
def test_the_better_one_has_run_once_before_it_takes_over(soon, monkeypatch):
    """In its thread: the first run of a program takes longer than the others. What it is given may be gone by then."""
    ran, call = [], jax.stages.Compiled.__call__
    monkeypatch.setattr(
        jax.stages.Compiled, "__call__", lambda *args: ran.append(threading.current_thread()) or call(*args)
    )
    x, w = map(jnp.asarray, data())
    expected = judge(x, w)
    for _ in range(3):
        step(tj.tensor(x, requires_grad=True), tj.tensor(w, requires_grad=True))
    aside = both().jitted.aside
    x.delete()
    aside.join(60)
    assert ran == [aside]
    x, w = data()
    for _ in range(3):
        for one, other in zip(
            step(tj.tensor(x, requires_grad=True), tj.tensor(w, requires_grad=True)), expected, strict=True
        ):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-5, atol=1e-6)
    assert not both().is_quick


@quickly
@pytest.mark.parametrize(("method", "visit"), [("start", 2), ("join", 4)])
def test_an_interrupt_leaves_it_as_it_was(soon, monkeypatch, method, visit):
    """While the thread is started, or waited for."""
    x, w = data()
    expected = judge(x, w)
    call = lambda: step(tj.tensor(x, requires_grad=True), tj.tensor(w, requires_grad=True))
    for _ in range(visit):
        call()

    def interrupted(self, *_):
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "is_alive", lambda self: self._started.is_set())  # not done in no time
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, method, interrupted)
        with pytest.raises(KeyboardInterrupt):
            call()
    tj.take()
    assert both().is_quick
    for _ in range(4):
        for one, other in zip(call(), expected, strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-5, atol=1e-6)
    assert not both().is_quick


def test_what_a_program_moves():
    a, b = jax.ShapeDtypeStruct((10, 20), "float32"), jax.ShapeDtypeStruct((20, 30), "float32")
    at = lambda function, *avals: moved(trace(function, avals)[0])
    assert at(jnp.sin, a) == 2 * 800
    assert at(lambda x: x.sum(), a) == 800 + 4
    assert at(jnp.matmul, a, b) == 800 + 2400 + 1200 + 1200 * 20 / tiers.REUSE
    assert 2 * 800 <= at(jax.nn.relu, a) < 20 * 800  # a custom derivative: what is inside counts
    assert math.isinf(at(lambda x: jax.lax.scan(lambda c, r: (c + r, r), x[0], x)[0], a))
    assert math.isinf(at(lambda x: jnp.sort(x), a))


@quickly
def test_a_loop_and_much_work_are_compiled_well_at_once():
    ready = lambda quick, well: None
    few = Tiers(100.0, [Part(4, None, 1e3)])
    assert isinstance(few.jit(jnp.sin, ready), tiers.Quick)
    assert not isinstance(Tiers(100.0, [Part(4, None, math.inf)]).jit(jnp.sin, ready), tiers.Quick)
    assert not isinstance(Tiers(100.0, [Part(4, None, 1e12)]).jit(jnp.sin, ready), tiers.Quick)


@quickly
def test_what_an_earlier_process_compiled_well_is_used_at_once(soon, monkeypatch, tmp_path):
    x, w = data()
    call = lambda: step(tj.tensor(x, requires_grad=True), tj.tensor(w, requires_grad=True))
    expected = judge(x, w)

    def marks_after(visits, folder, seconds):
        """How many marks there are then; whether the last visit was quick."""
        monkeypatch.setattr(compat, "compilation_cache", lambda: (str(folder), seconds))
        tj.clear_plans()
        for _ in range(visits):
            for one, other in zip(call(), expected, strict=True):
                np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-5, atol=1e-6)
        return len(list(tmp_path.iterdir())), both().is_quick

    assert marks_after(2, tmp_path, 0.0) == (0, True)  # not compiled well yet
    assert marks_after(5, tmp_path, 1e6) == (0, False)  # jax does not keep what took less than a million seconds
    assert marks_after(5, tmp_path / "missing", 0.0) == (0, False)  # nobody can write there
    assert marks_after(5, tmp_path, 0.0) == (1, False)
    assert marks_after(1, tmp_path, 0.0) == (1, False)  # at its first visit
    x = x[:2]  # another program
    expected = judge(x, w)
    assert marks_after(1, tmp_path, 0.0) == (1, True)


def test_the_folder_of_jaxs_cache():
    settings = "jax_compilation_cache_dir", "jax_enable_compilation_cache", "jax_persistent_cache_min_compile_time_secs"
    before = [getattr(jax.config, name) for name in settings]
    cases = [
        ("some/folder", True, 2.0, ("some/folder", 2.0)),
        ("some/folder", False, 2.0, None),
        ("gs://bucket/folder", True, 2.0, None),
        (None, True, 2.0, None),
    ]
    try:
        for *values, expected in cases:
            for name, value in zip(settings, values, strict=True):
                jax.config.update(name, value)
            assert compat.compilation_cache() == expected
    finally:
        for name, value in zip(settings, before, strict=True):
            jax.config.update(name, value)


TRAINING = """
import jax, tapejax as tj, tapejax.numpy as tnp
from tapejax.plan import tiers
tiers.EQUATION = 1.0  # it has lost enough after few steps
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
w = tj.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
for _ in range({steps}):
    loss = (tnp.tanh(w @ w) * w).sum()
    grads = tj.backward(loss, wrt=w)
(program,) = [program for program in tj.programs() if program.name == "forward_and_backward"]
print(program.quick, len(hits) > 0, grads[w].tolist())
"""


@pytest.mark.slow
@quickly
def test_a_second_process_starts_where_the_first_one_ended(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environment |= {"JAX_PLATFORMS": "cpu", "TAPEJAX_QUICK_COMPILATION": "1"}

    def run(steps):
        command = [sys.executable, "-c", TRAINING.format(steps=steps)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert not done.returncode, done.stderr
        return done.stdout.split(maxsplit=2)

    quick, _, begun = run(1)
    assert quick == "True"
    quick, _, trained = run(60)
    assert quick == "False"
    quick, hit, again = run(1)
    assert (quick, hit, again) == ("False", "True", trained)
    np.testing.assert_allclose(json.loads(begun), json.loads(again), rtol=1e-5)


PROGRAM = """
import tapejax as tj, tapejax.numpy as tnp
x = tj.tensor([1.0, 2.0], requires_grad=True)
tj.backward(tnp.tanh(x * x).sum(), wrt=x)
print([program.quick for program in tj.programs() if program.name == "forward_and_backward"])
"""


@pytest.mark.parametrize("setting", ["0", pytest.param("1", marks=pytest.mark.slow)])
@quickly
def test_it_can_be_turned_off(setting):
    environment = os.environ | {"TAPEJAX_QUICK_COMPILATION": setting}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == str([setting == "1"]), done.stderr


@quickly
def test_a_program_that_computes_nothing_is_never_compiled_again():
    run = tiers.Tiers(20.0, []).jit(lambda x: x, lambda quick, well: pytest.fail("it loses nothing"))
    for _ in range(3):
        np.testing.assert_array_equal(run(jnp.ones(2)), [1.0, 1.0])
    assert run.aside is None
