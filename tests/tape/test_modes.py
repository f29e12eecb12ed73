"""no_grad, enable_grad and tapes whose blocks are left in another order than they were entered, or elsewhere."""

import asyncio
import gc
import itertools
import threading

import pytest

import tapejax as tj
from tapejax import errors


def suspended(block):
    """A generator that waits inside a `with` block."""
    with block:
        yield
    yield


def entered(*blocks):
    generators = [suspended(block) for block in blocks]
    for generator in generators:
        next(generator)
    return generators


BLOCKS = {
    "no_grad": tj.no_grad, "enable_grad": tj.enable_grad, "Tape": tj.Tape,
    "hooks": lambda: tj.saved_tensors_hooks(lambda a: a, lambda a: a),
}  # fmt: skip


def effect(blocks, tape, recording):
    """(tape, whether it records) inside of these blocks, by definition."""
    for block in blocks:
        tape = block if isinstance(block, tj.Tape) else tape
        recording = getattr(block, "enabled", recording)
    return tape, recording


def state():
    return tj.current_tape(), tj.is_recording()


@pytest.mark.parametrize("names", list(itertools.product(BLOCKS, repeat=3)))
def test_each_block_takes_back_its_own_effect_only(names):
    before = state()
    for order in itertools.permutations(range(3)):
        blocks = [BLOCKS[name]() for name in names]
        generators = entered(*blocks)
        inside = dict(enumerate(blocks))
        for one in order:
            assert state() == effect(inside.values(), *before)
            next(generators[one])
            del inside[one]
        assert state() == before


def test_interleaved_generators_leave_the_thread_recording():
    first, second = entered(tj.no_grad(), tj.no_grad())
    first.close()
    assert not tj.is_recording()
    second.close()
    assert tj.is_recording()


@pytest.mark.parametrize("make", BLOCKS.values(), ids=BLOCKS)
def test_instance_may_be_entered_again(make):
    before, block = state(), make()
    for _ in range(2):
        with block:
            inside = state()
            with block:
                assert state() == inside
            assert state() == inside
        assert state() == before


def test_same_instance_in_two_generators():
    before, block = state(), tj.no_grad()
    first, second = entered(block, block)
    first.close()
    assert not tj.is_recording()
    second.close()
    assert state() == before


def test_generator_that_is_collected():
    before = state()
    first, second = entered(tj.no_grad(), tj.Tape())
    loop = [first]
    loop.append(loop)
    del first, loop
    gc.collect()
    assert tj.is_recording()
    assert tj.current_tape() is not before[0]
    del second
    assert state() == before


def test_generator_that_is_closed_inside_a_transform():
    before = state()
    (outside,) = entered(tj.no_grad())

    def f(x):
        outside.close()
        return x * x

    assert tj.grad(f)(3.0) == 6.0
    assert state() == before


def test_generator_that_is_left_waiting_by_a_transform():
    before, waiting = state(), []

    def f(x):
        waiting.extend(entered(tj.Tape()))
        return x * x

    tj.vjp(f, 3.0)
    waiting[0].close()
    assert state() == before


def test_generator_that_is_closed_by_another_thread():
    before = state()
    (generator,) = entered(tj.no_grad())
    seen = []

    def close():
        generator.close()
        seen.append(tj.is_recording())

    thread = threading.Thread(target=close)
    thread.start()
    thread.join()
    assert seen == [True]
    assert state() == before


def test_instance_that_two_threads_share():
    block, turn = tj.no_grad(), threading.Barrier(2)
    seen = []

    def work():
        with block:
            turn.wait()
            seen.append(tj.is_recording())
            turn.wait()
        seen.append(tj.is_recording())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [False, False, True, True]


def test_instance_that_two_tasks_share():
    block = tj.no_grad()

    async def work(wait):
        with block:
            await asyncio.sleep(wait)
            inside = tj.is_recording()
        return inside, tj.is_recording()

    async def main():
        return await asyncio.gather(work(0.01), work(0.02))

    assert asyncio.run(main()) == [(False, True), (False, True)]


@pytest.mark.parametrize("make", BLOCKS.values(), ids=BLOCKS)
def test_leaving_what_was_not_entered(make):
    before, block = state(), make()
    with pytest.raises(errors.TapeError, match="had not been entered") as caught:
        block.__exit__(None, None, None)
    assert __file__ in caught.value.at
    assert state() == before


def test_what_was_recorded_is_where_it_belongs():
    x = tj.tensor(2.0, requires_grad=True)
    one, two = tj.Tape(), tj.Tape()
    first, second = entered(one, two)
    a = x * 3
    first.close()
    b = x * 5
    second.close()
    c = x * 7
    assert (len(one), len(two)) == (0, 2)
    assert [two.backward([a, b])[x], tj.backward(c)[x]] == [8.0, 7.0]
