"""fusion: a setting for everybody, and blocks that hold for one task or thread."""

import asyncio
import threading

import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from tapejax import errors
from tapejax.tape.action import Composite


def is_deferred():
    """Whether an op that is called now waits to be run."""
    return isinstance((tj.tensor([1.0, 2.0], requires_grad=True) * 2).held, Composite)


def test_a_block_holds_inside_only():
    assert is_deferred()
    with tj.fusion(False):
        assert not tj.fusion.enabled
        assert not is_deferred()
        with tj.fusion(True):
            assert is_deferred()
        assert not is_deferred()
    assert tj.fusion.enabled
    assert is_deferred()


def test_the_setting_for_everybody_holds_where_no_block_does():
    try:
        tj.fusion.enabled = False
        assert not is_deferred()
        with tj.fusion(True):
            assert is_deferred()
        assert not is_deferred()
    finally:
        tj.fusion.enabled = True
    assert is_deferred()


def test_an_exception_leaves_the_block():
    with pytest.raises(ZeroDivisionError), tj.fusion(False):
        raise ZeroDivisionError
    assert is_deferred()


def test_another_thread_is_not_concerned():
    found = []
    with tj.fusion(False):
        thread = threading.Thread(target=lambda: found.append(is_deferred()))
        thread.start()
        thread.join()
        assert not is_deferred()
    assert found == [True]


def test_tasks_have_their_own():
    async def off(inside, leave):
        with tj.fusion(False):
            child = asyncio.create_task(asyncio.to_thread(is_deferred))  # the context is copied to it
            inside.set()
            await leave.wait()
            return is_deferred(), await child

    async def on(inside, leave):
        await inside.wait()
        found = is_deferred()
        leave.set()
        return found

    async def both():
        inside, leave = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(off(inside, leave), on(inside, leave))

    assert asyncio.run(both()) == [(False, False), True]
    assert is_deferred()


def test_blocks_may_be_left_in_any_order():
    first, second = tj.fusion(False), tj.fusion(True)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert is_deferred()
    with tj.fusion(False):
        second.__exit__(None, None, None)
        assert not is_deferred()
    assert is_deferred()
    assert tj.fusion.everywhere, "and no op asks any further"


def test_it_decorates_a_function():
    @tj.fusion(False)
    def inside():
        return is_deferred()

    assert [inside(), inside(), is_deferred()] == [False, False, True]


def test_what_was_deferred_before_is_read_inside():
    x = tj.tensor(jnp.arange(1.0, 4.0), requires_grad=True)
    y = x * x
    with tj.fusion(False):
        z = (y * x).sum()
    np.testing.assert_allclose(tj.backward(z)[x], 3 * np.arange(1.0, 4.0) ** 2)


def test_a_wrong_setting_is_refused():
    with pytest.raises(errors.ArgumentError, match="fusion"), tj.fusion("off"):
        pass
