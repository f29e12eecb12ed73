"""Random numbers: with keys they are jax's; from the generator no thread or task repeats another's."""

import asyncio
import contextvars
import pickle
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.random as trandom
from tapejax import errors
from tests import by_jax

KEY = jax.random.key(4)


@pytest.fixture(autouse=True)
def seeded():
    trandom.seed(0)


# Functions with parameters that a gradient flows to: parameters.
REPARAMETRISED = {
    "gamma": (1.7,), "beta": (1.5, 2.5), "dirichlet": ([1.5, 2.0, 0.7],), "t": (3.0,), "lognormal": (0.5,), "rayleigh": (1.5,),
    "pareto": (2.0,), "wald": (1.5,), "weibull_min": (1.5, 2.0), "truncated_normal": (-1.0, 1.5), "triangular": (0.0, 0.5, 1.0),
    "multivariate_normal": ([0.0, 1.0], [[2.0, 0.3], [0.3, 1.0]]), "double_sided_maxwell": (0.5, 1.5),
}  # fmt: skip


# gamma stands for the first three, the others for each other
SLOW = {"beta", "dirichlet", "t", "rayleigh", "pareto", "weibull_min", "triangular", "double_sided_maxwell"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in REPARAMETRISED]
)
def test_gradients_through_parameters(name):
    with jax.enable_x64(True):
        given = [jnp.asarray(p, "float64") for p in REPARAMETRISED[name]]
        tensors = [tj.tensor(p, requires_grad=True) for p in given]
        out = getattr(trandom, name)(KEY, *tensors)
        ct = np.arange(1.0, 1.0 + out.size).reshape(out.shape)
        draw = lambda *p: getattr(jax.random, name)(KEY, *p)
        value, wanted = by_jax.vjp(draw, *given, ct=lambda value: jnp.asarray(ct))
        grads = tj.backward(out, ct)
        np.testing.assert_allclose(out.value, value, rtol=1e-12)
        for tensor, want in zip(tensors, wanted, strict=True):
            found = grads.get(tensor)
            np.testing.assert_allclose(np.zeros(want.shape) if found is None else found, want, rtol=1e-7, atol=1e-12)


def test_location_and_scale_by_arithmetic():
    loc, scale = tj.tensor(1.0, requires_grad=True), tj.tensor(2.0, requires_grad=True)
    noise = trandom.normal(KEY, (3,))
    grads = tj.backward(loc + scale * noise)
    assert np.isclose(grads[loc], 3.0)
    assert np.isclose(grads[scale], noise.sum(), rtol=1e-6)
    low = tj.tensor(1.0, requires_grad=True)
    want = jax.grad(lambda low: jax.random.uniform(KEY, (3,), minval=low, maxval=2.0).sum())(1.0)
    assert np.isclose(tj.backward(trandom.uniform(KEY, (3,), minval=low, maxval=2.0))[low], want, rtol=1e-6)


def test_a_relaxed_category_has_a_gradient():
    logits = tj.tensor([0.1, 0.7, -0.4], requires_grad=True)
    assert trandom.categorical(KEY, logits).dtype == jnp.int32
    hard = trandom.gumbel_softmax(KEY, logits, temperature=0.5, hard=True)
    soft = lambda l: jax.nn.softmax((l + jax.random.gumbel(KEY, (3,))) / 0.5)
    assert sorted(np.asarray(hard.value).round(6)) == [0, 0, 1]
    ct = jnp.array([1.0, 2.0, 3.0])
    want = jax.grad(lambda l: soft(l) @ ct)(logits.value)
    assert np.allclose(tj.backward(hard, ct)[logits], want, rtol=1e-5)
    assert trandom.gumbel_softmax(logits).shape == (3,)


def test_with_a_key_it_is_jaxs():
    for name, args in {
        "normal": ((2, 3),),
        "randint": ((4,), 0, 9),
        "permutation": (5,),
        "choice": (5, (2,)),
        "split": (3,),
    }.items():
        found, want = getattr(trandom, name)(KEY, *args), getattr(jax.random, name)(KEY, *args)
        assert isinstance(found, jax.Array)
        assert bool((found == want).all())
    assert np.array_equal(trandom.normal(jax.random.PRNGKey(1), 3), jax.random.normal(jax.random.PRNGKey(1), 3))
    assert np.array_equal(trandom.normal(key=KEY, shape=(2,)), jax.random.normal(KEY, (2,)))


def test_seed_repeats_and_draws_differ():
    first = [trandom.normal((3,)), trandom.uniform(shape=(3,)), trandom.normal(3)]
    trandom.seed(0)
    again = [trandom.normal((3,)), trandom.uniform(shape=(3,)), trandom.normal(3)]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], first[2])
    assert trandom.split(4).shape == (4,)
    assert trandom.randint((5,), 0, 3).max() < 3


def test_state_can_be_kept_in_a_file():
    trandom.normal()
    state = pickle.loads(pickle.dumps(trandom.get_state()))
    first = trandom.normal((2,))
    trandom.set_state(state)
    assert np.array_equal(trandom.normal((2,)), first)
    with pytest.raises(errors.RandomStateError, match="get_state"):
        trandom.set_state("something")
    with pytest.raises(errors.ArgumentError, match="integer"):
        trandom.seed("0")


def numbers(n=3):
    return [float(trandom.uniform()) for _ in range(n)]


def in_threads(run, n=4):
    found = [None] * n

    def work(i):
        found[i] = run()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
        thread.join()
    return found


def test_threads_do_not_repeat_each_other():
    drawn = [*in_threads(numbers), numbers()]
    assert len({number for part in drawn for number in part}) == 15
    trandom.seed(0)
    assert in_threads(numbers) == drawn[:-1]  # started in the same order: the same streams


def test_a_thread_with_a_copied_context_has_a_stream_of_its_own():
    here = numbers()
    copies = [contextvars.copy_context() for _ in range(2)]
    drawn = [in_threads(lambda copy=copy: copy.run(numbers), 1)[0] for copy in copies]
    assert len({*here, *numbers(), *drawn[0], *drawn[1]}) == 12


def test_tasks_do_not_repeat_each_other():
    async def work():
        first = numbers(2)
        await asyncio.sleep(0)
        return first + numbers(2)

    async def main():
        return [numbers(2), *await asyncio.gather(*(work() for _ in range(3))), await asyncio.to_thread(numbers, 2)]

    drawn = [*asyncio.run(main()), numbers(2)]
    everything = [number for part in drawn for number in part]
    assert len(set(everything)) == len(everything) == 18


def test_under_jit_a_drawn_key_is_refused():
    with pytest.raises(errors.RandomStateError, match="next_key"):
        jax.jit(lambda: trandom.normal((2,)))()
    assert jax.jit(lambda key: trandom.normal(key, (2,)))(trandom.next_key()).shape == (2,)
