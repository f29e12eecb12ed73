"""The tape as a log, and its scopes: threads, tasks, copied contexts, generators, forks."""

import asyncio
import contextvars
import gc
import threading
import tracemalloc

import numpy as np
import pytest

import tapejax as tj
from tapejax import errors
from tapejax.fusion import block


class Note(tj.TapeAction):
    def __init__(self, text):
        self.text = text

    def backward(self, grads):
        pass

    def name(self):
        return f"Note({self.text})"


def leaf(value=2.0):
    return tj.tensor(value, requires_grad=True)


def in_thread(function, **options):
    result = []
    thread = threading.Thread(target=lambda: result.append(function()), **options)
    thread.start()
    thread.join()
    return result[0]


# --- the log -----------------------------------------------------------------------------------------


def test_record_two_and_take_two_in_order_and_take_empties():
    tj.record(Note("a"))
    tj.record(Note("b"))
    assert [action.name() for action in tj.take()] == ["Note(a)", "Note(b)"]
    assert tj.take() == []


def test_log_has_length_iteration_and_indexing():
    with tj.Tape() as tape:
        for text in "abc":
            tj.record(Note(text))
    assert len(tape) == 3
    assert [action.text for action in tape] == list("abc")
    assert tape[0].text == "a"
    assert tape[-1].text == "c"
    assert [action.text for action in tape[1:]] == ["b", "c"]
    assert [action.text for action in tape.actions] == list("abc")
    assert tape
    assert "Note(b)" in str(tape)


def test_action_reads_like_a_line_of_a_program():
    x, y = leaf(), leaf()
    with tj.Tape() as tape:
        z = x + y
    assert tape[0].name() == f"Add({x.id!r}, {y.id!r})"
    assert repr(tape[0]) == f"%{z.id.number} = add %{x.id.number} %{y.id.number}"
    assert tape[0].line.startswith(__file__)


def test_push_refuses_what_is_no_action():
    with pytest.raises(TypeError, match="not a TapeAction"):
        tj.record("add")


@pytest.mark.parametrize(
    "record", [tj.record, lambda action: tj.Tape().push(action), tj.no_grad()(lambda a: tj.record(a))]
)
def test_class_in_place_of_an_action_is_refused_at_once(record):
    with pytest.raises(errors.ArgumentError, match="Note is a class") as caught:
        record(Note)
    assert caught.value.fix == "record an instance of it: Note(...)"
    assert __file__ in caught.value.at
    assert tj.take() == []


def test_unknown_detail():
    with pytest.raises(ValueError, match="detail"):
        tj.Tape(detail="everything")


# --- scopes ---------------------------------------------------------------------------------------------


def test_scopes_nest_and_the_inner_one_records():
    x = leaf()
    with tj.Tape() as outer:
        y = x * x
        with tj.Tape() as inner:
            z = y * y
        w = y + y
    assert [len(outer), len(inner)] == [2, 1]
    assert inner.backward(z)[y] == 2 * 4.0
    assert outer.backward(w)[x] == 2 * 2 * 2.0


def test_exception_inside_a_scope_restores_the_outer_one():
    before = tj.current_tape()
    with pytest.raises(ZeroDivisionError), tj.Tape():
        1 / 0
    assert tj.current_tape() is before


def test_second_thread_starts_blank_and_does_not_disturb_the_first():
    x = leaf()
    y = x * x

    def other():
        blank = len(tj.current_tape())
        z = tj.tensor(3.0, requires_grad=True)
        w = z * z
        recorded = len(tj.current_tape())
        return blank, recorded, float(tj.backward(w)[z])

    assert in_thread(other) == (0, 1, 6.0)
    assert len(tj.current_tape()) == 1
    assert tj.backward(y)[x] == 4.0


def test_thread_that_inherits_its_parents_context_starts_blank():
    x = leaf()
    with tj.Tape() as tape:
        y = x * x
        context = contextvars.copy_context()
        assert in_thread(lambda: context.run(lambda: len(tj.current_tape()))) == 0
        in_thread(lambda: context.run(lambda: x * x))
        assert len(tape) == 1
    assert tape.backward(y)[x] == 4.0


def test_context_of_a_thread_that_ended_is_not_trusted():
    """The next thread may get the same ident."""
    x = leaf()
    kept = []

    def first():
        kept.append(x * x)
        return contextvars.copy_context()

    context = in_thread(first)
    assert in_thread(lambda: context.run(lambda: len(tj.current_tape()))) == 0


def test_new_task_starts_blank_and_to_thread_too():
    x = leaf()

    async def child():
        return len(tj.current_tape())

    async def main():
        y = x * x
        counts = [len(tj.current_tape())]
        counts.append(await asyncio.create_task(child()))
        counts.append(await asyncio.to_thread(lambda: len(tj.current_tape())))
        counts.append(await child())  # the same task
        counts.append(len(tj.current_tape()))
        assert y is not None
        return counts

    outer = x * x
    assert asyncio.run(main()) == [1, 0, 0, 1, 1]
    assert len(tj.current_tape()) == 1
    assert tj.backward(outer)[x] == 4.0


def test_tape_opened_before_a_task_does_not_record_the_task():
    x = leaf()

    async def main():
        with tj.Tape() as tape:
            await asyncio.create_task(asyncio.sleep(0))

            async def work():
                return x * x

            await asyncio.gather(work(), work())
            assert len(tape) == 0
            x + x
            assert len(tape) == 1

    asyncio.run(main())


def test_tape_in_use_by_another_thread_is_refused():
    with tj.Tape() as tape:

        def enter():
            with pytest.raises(errors.TapeError, match="another thread"), tape:
                pass
            return True

        assert in_thread(enter)


# --- no_grad ---------------------------------------------------------------------------------------------


def test_no_grad_and_enable_grad():
    x = leaf()
    with tj.no_grad():
        assert not tj.is_recording()
        y = x * x
        with tj.enable_grad():
            z = x * x
    assert tj.is_recording()
    assert [y.requires_grad, z.requires_grad] == [False, True]
    assert tj.backward(z)[x] == 4.0


def test_no_grad_is_left_by_an_exception():
    with pytest.raises(ZeroDivisionError), tj.no_grad():
        1 / 0
    assert tj.is_recording()


def test_no_grad_is_inherited_by_tasks_and_copied_contexts():
    async def main():
        async def child():
            return tj.is_recording()

        with tj.no_grad():
            return await asyncio.create_task(child()), await asyncio.to_thread(tj.is_recording)

    assert asyncio.run(main()) == (False, False)
    with tj.no_grad():
        context = contextvars.copy_context()
    assert in_thread(lambda: context.run(tj.is_recording)) is False
    assert in_thread(tj.is_recording) is True


def test_no_grad_decorates_functions_and_coroutines():
    x = leaf()

    @tj.no_grad()
    def f():
        return x * x

    @tj.no_grad()
    async def g():
        await asyncio.sleep(0)
        return x * x

    assert not f().requires_grad
    assert not asyncio.run(g()).requires_grad


def test_no_grad_never_leaks_out_of_a_generator():
    seen = []

    @tj.no_grad()
    def steps():
        seen.append(tj.is_recording())
        got = yield 1
        seen.append((got, tj.is_recording()))
        try:
            yield 2
        except KeyError:
            seen.append(("thrown", tj.is_recording()))
        yield 3
        return "done"

    generator = steps()
    assert next(generator) == 1
    assert tj.is_recording()
    assert generator.send("hello") == 2
    assert tj.is_recording()
    assert generator.throw(KeyError()) == 3
    assert tj.is_recording()
    with pytest.raises(StopIteration) as stop:
        next(generator)
    assert stop.value.value == "done"
    assert seen == [False, ("hello", False), ("thrown", False)]


def test_record_within_no_grad_does_nothing():
    with tj.no_grad():
        tj.record(Note("a"))
    assert tj.take() == []


# --- forks --------------------------------------------------------------------------------------------------


def test_fork_and_merge_in_the_order_of_the_forks():
    x = leaf(3.0)
    with tj.Tape() as tape:
        h = x * x
        children = [tape.fork() for _ in range(4)]
        results = [None] * 4

        def work(number):
            with children[number]:
                results[number] = h * float(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in (3, 1, 0, 2)]
        for thread in threads:
            thread.start()
            thread.join()
        tape.merge(reversed(children))
        total = results[0] + results[1] + results[2] + results[3]
    assert [action.numbers[0] for action in tape[1:5]] == [r.id.number for r in results]
    assert tape.backward(total)[x] == (0 + 1 + 2 + 3) * 2 * 3.0


def test_children_that_read_each_other_are_merged_as_they_ran():
    x = leaf(3.0)
    with tj.Tape() as tape:
        first, second = tape.fork(), tape.fork()
        with second:
            a = x * x
        with first:
            b = a * 2.0
        with second:
            c = b * a
        tape.merge([first, second])
    assert [action.numbers[0] for action in tape] == [t.id.number for t in (a, b, c)]
    assert tape.backward(c)[x] == 4 * 2 * 3.0**3


def test_merge_refuses_strangers():
    tape = tj.Tape()
    with pytest.raises(errors.TapeError, match="not forked"):
        tape.merge([tj.Tape()])
    child = tape.fork()
    with child, pytest.raises(errors.TapeError, match="still recording"):
        tape.merge([child])


# --- many at once ----------------------------------------------------------------------------------------------


def step(number, i):
    x = tj.tensor(float(number + i % 7), requires_grad=True)
    y = x * x + x
    if i % 3 == 0:
        x * 2.0  # not used
    length = len(tj.current_tape())
    gradient = float(tj.backward(y)[x])
    return length == 2 and gradient == 2.0 * (number + i % 7) + 1.0 and len(tj.current_tape()) == 0


STEPS = pytest.mark.parametrize("steps", [20, pytest.param(200, marks=pytest.mark.slow)])


@STEPS
def test_64_threads_of_many_steps_each(steps):
    right = [0] * 64

    def work(number):
        for i in range(steps):
            right[number] += step(number, i)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [steps] * 64


@STEPS
def test_64_tasks_of_many_steps_each(steps):
    async def work(number):
        right = 0
        for i in range(steps):
            x = tj.tensor(float(number + i % 7), requires_grad=True)
            y = x * x
            await asyncio.sleep(0)  # others record meanwhile
            z = y + x
            own = len(tj.current_tape()) == 2
            right += own and float(tj.backward(z)[x]) == 2.0 * (number + i % 7) + 1.0
        return right

    async def main():
        return await asyncio.gather(*(work(number) for number in range(64)))

    assert asyncio.run(main()) == [steps] * 64


# --- the ambient tape does not grow ---------------------------------------------------------------------------------


def test_ambient_tape_lets_go_of_what_no_tensor_can_reach():
    x = leaf(np.ones(4, "f"))
    for _ in range(3000):
        y = (x * x).sum()
    # What the pending block has noted stays until it runs; the rest is gone.
    assert 2 <= len(tj.current_tape()) <= 2 + block.LIMIT
    assert len(tj.current_tape().logged) < 1600
    assert np.array_equal(tj.backward(y)[x], [2.0] * 4)


@pytest.mark.parametrize("before", [0, 1])
def test_forward_passes_with_no_backward_do_not_grow_memory(before):
    x = leaf(np.ones(4, "f"))
    for _ in range(before):  # where a block ends: after a sum, or between a product and its sum
        x * x

    def loop(n):
        for _ in range(n):
            (x * x).sum()

    loop(3000)
    gc.collect()
    tracemalloc.start()
    start = tracemalloc.get_traced_memory()[0]
    loop(3000)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - start
    tracemalloc.stop()
    assert grown < 100_000  # 6,000 actions and tensors would be more than 2,000,000


def test_reachable_part_is_kept():
    x = leaf()
    y = x * x
    for _ in range(2000):
        x * 2.0
    z = y * y
    z.value  # the block runs, and lets go
    assert [action.op for action in tj.current_tape()] == ["Multiply", "Multiply"]
    assert tj.backward(z)[x] == 4 * 2.0**3
