"""The cursor: the engine's backward, one action at a time, to the last bit; and back again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from tapejax.errors import ArgumentError, BackwardError, ConsumedTapeError, RequiresGradError, SeedError
from tests.some import one_in


def mlp():
    rng = np.random.default_rng(0)
    make = lambda *shape: tj.tensor(rng.normal(size=shape).astype(np.float32), requires_grad=True)
    x, w, v, b = make(4, 3), make(3, 5), make(5, 5), make(5)
    with tj.Tape() as tape:
        h = tj.numpy.tanh(x @ w + b)
        h = tj.numpy.tanh(h @ v + b) + h
        loss = (h * h).mean()
    return tape, loss


def scalar():
    x = tj.tensor(3.0, requires_grad=True)
    with tj.Tape() as tape:
        loss = x * x + x * tj.numpy.sin(x)
    return tape, loss


def loop():
    step = lambda carry, x: (carry * x + jnp.sin(carry), carry)
    scanned = tj.lift(lambda init, xs: jax.lax.scan(step, init, xs)[0])
    init, xs = tj.tensor(0.5, requires_grad=True), tj.tensor([0.3, -1.2, 0.7], requires_grad=True)
    with tj.Tape(detail="primitives") as tape:
        loss = scanned(init, xs) * init
    return tape, loss


def unknown_length():
    halve = tj.lift(lambda x: jax.lax.while_loop(lambda v: v > 1, lambda v: v * 0.6, x))
    x = tj.tensor(9.0, requires_grad=True)
    with tj.Tape() as tape:
        loss = halve(x) * x
    return tape, loss


def own_ops():
    @tj.custom_op(jit=False)
    def cube(x):
        return np.asarray(x) ** 3

    @cube.defbackward
    def cube_backward(ct, out, x):
        return (3 * x**2 * ct,)

    @tj.custom_op
    def twice(x):
        return 2 * x

    @twice.defbackward
    def twice_backward(ct, out, x):
        return (2 * ct,)

    x = tj.tensor([1.0, 2.0], requires_grad=True)
    with tj.Tape() as tape:
        loss = (cube(x) + twice(x)).sum()
    return tape, loss


def checkpointed():
    x, w = (tj.tensor(data, requires_grad=True) for data in ([0.3, -0.7], [1.5, 2.0]))

    def layer(h):
        return tj.numpy.tanh(h * w) + tj.numpy.sin(h)

    with tj.Tape() as tape:
        h = tj.checkpoint(layer, x)
        loss = (tj.checkpoint(layer, h) * w).sum()
    return tape, loss


def half_precision():
    x = tj.tensor(np.linspace(-1, 1, 33), dtype=jnp.bfloat16, requires_grad=True)
    with tj.Tape() as tape:
        loss = (x * x * x + tj.numpy.exp(x) * x).sum()
    return tape, loss


def many_small():
    x = tj.tensor(np.ones(3, np.float32), requires_grad=True)
    with tj.Tape() as tape:
        y = x
        for _ in range(50):  # more than a block holds
            y = y * 0.99 + x * 0.01
        loss = y.sum()
    return tape, loss


PROGRAMS = [mlp, scalar, loop, unknown_length, own_ops, checkpointed, half_precision, many_small]


def same(found, expected):
    assert {key.number for key in found} == {key.number for key in expected}
    for key, value in expected.items():
        got = found[key]
        assert got.dtype == value.dtype
        assert np.asarray(got).tobytes() == np.asarray(value).tobytes(), key


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_equal_to_backward_to_the_last_bit(program, monkeypatch):
    tape, loss = program()
    found = tape.cursor(loss).finish()
    monkeypatch.setattr(tj.fusion, "enabled", False)  # it goes back action by action
    same(found, tape.backward(loss, retain_tape=True))
    assert len(tape)  # it is all still there


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_every_way_to_a_place_shows_the_same(program):
    tape, loss = program()

    def picture(cursor):
        return cursor.index, {
            id.number: (np.asarray(s.value).tobytes(), [(t.index, np.asarray(t.value).tobytes()) for t in s.terms])
            for id, s in cursor.sums.items()
        }

    straight = tape.cursor(loss)
    pictures = [picture(straight)] + [picture(straight) for _ in straight]
    wandering = tape.cursor(loss)
    n = len(tape)
    for position in (n, 0, n // 2, n // 3, n - 1, 1, n):
        wandering.seek(position)
        assert picture(wandering) == pictures[position]
    for position in range(n - 1, -1, -1):
        wandering.back()
        assert picture(wandering) == pictures[position]
    assert wandering.index is None
    assert wandering.current is None


@pytest.mark.parametrize("program", one_in(2, PROGRAMS), ids=lambda p: p.__name__)
def test_terms_add_up_to_their_sum(program):
    tape, loss = program()
    cursor = tape.cursor(loss)
    cursor.finish()
    for entry in cursor.sums.values():
        total = entry.terms[0].value
        for term in entry.terms[1:]:
            assert np.asarray(term.before).tobytes() == np.asarray(total).tobytes()
            total = total + term.value
        assert np.asarray(total).tobytes() == np.asarray(entry.value).tobytes()


def test_what_a_step_shows():
    x = tj.tensor(3.0, requires_grad=True)
    with tj.Tape() as tape:
        square = x * x
        loss = square + x
    cursor = tape.cursor(loss)
    assert (cursor.position, cursor.index, cursor.action, cursor.incoming, cursor.outgoing) == (0, None, None, {}, ())
    assert [term.index for term in cursor.sums[loss.id].terms] == [None]
    first = cursor.step()
    assert cursor.action is tape[1] is first.action
    assert {id.number: float(v) for id, v in cursor.incoming.items()} == {loss.id.number: 1.0}
    assert [(term.id, float(term.value)) for term in cursor.outgoing] == [(square.id, 1.0), (x.id, 1.0)]
    assert not cursor.at_accumulation
    cursor.step()
    assert cursor.at_accumulation
    assert cursor.done
    assert [float(term.before) for term in cursor.outgoing] == [1.0, 4.0]
    assert [float(term.after) for term in cursor.outgoing] == [4.0, 7.0]
    assert [(term.index, float(term.value)) for term in cursor.sums[x.id].terms] == [(1, 1.0), (0, 3.0), (0, 3.0)]
    assert cursor.step() is None
    assert cursor.back().index == 1
    assert cursor.back() is None


def test_jump_by_place_on_the_tape():
    tape, loss = mlp()
    cursor = tape.cursor(loss)
    for index in (3, 7, 0, len(tape) - 1):
        assert cursor.jump(index).action is tape[index]
    assert cursor.jump(-1).action is tape[-1]
    for bad in (len(tape), -len(tape) - 1, 1.5, "0"):
        with pytest.raises(ArgumentError, match="there is no action"):
            cursor.jump(bad)
    assert cursor.index == len(tape) - 1
    with pytest.raises(ArgumentError, match="number of steps"):
        cursor.step(-1)
    with pytest.raises(ArgumentError, match="position"):
        cursor.seek(len(tape) + 1)


def test_next_accumulation_visits_each_of_them():
    tape, loss = mlp()
    expected = [step.index for step in tape.cursor(loss) if step.accumulates]
    cursor, found = tape.cursor(loss), []
    while (step := cursor.next_accumulation()) is not None:
        found.append(step.index)
    assert found == expected
    assert len(found) >= 3
    assert cursor.done


def test_roots_seeds_and_refusals():
    x = tj.tensor([1.0, 2.0], requires_grad=True)
    with tj.Tape() as tape:
        y, z = x * 3, x * x
    seed = jnp.array([1.0, 10.0])
    same(tape.cursor([y, z], [seed, None]).finish(), tape.backward([y, z], [seed, None], retain_tape=True))
    with pytest.raises(SeedError):
        tape.cursor(y, jnp.ones(3))
    with pytest.raises(RequiresGradError):
        tape.cursor(tj.tensor(1.0))
    cursor = tape.cursor(y, retain_tape=False)
    assert len(tape) == 0
    assert cursor.finish()[x].tolist() == [3.0, 3.0]
    with pytest.raises(ConsumedTapeError, match="cursor"):
        tape.cursor(y)


class Own(tj.TapeAction):
    """An action that says nothing about what it reads."""

    def __init__(self, source, target):
        self.source, self.target = source, target

    def backward(self, grads):
        found = grads.remove(self.target)
        if found is not None:
            grads.insert(self.source, 5 * found)
            grads.insert(self.source, [1.0, 1.0])


def test_actions_of_ones_own_that_remove():
    x, y = (tj.tensor(data, requires_grad=True) for data in ([1.0, 2.0], [5.0, 10.0]))
    with tj.Tape() as tape:
        tj.record(Own(x, y))
        loss = (y * y).sum()
    cursor = tape.cursor(loss)
    end = cursor.finish()
    same(end, tape.backward(loss, retain_tape=True))
    step = cursor.current
    assert [id.number for id in step.removed] == [y.id.number]
    assert [id.number for id in step.incoming] == [y.id.number]  # it was seen to read this
    assert y.id not in cursor.sums
    cursor.back()
    assert len(cursor.sums[y.id].terms) == 2
    cursor.step()
    assert y.id not in cursor.sums
    same(cursor.finish(), end)


class Declared(Own):
    def __init__(self, source, target):
        super().__init__(source, target)
        self.inputs, self.outputs = (source.id,), (target.id,)

    def backward(self, grads):
        grads.insert(self.source, 5 * grads[self.target])  # raises where there is none


def test_an_action_that_no_gradient_reaches_is_skipped():
    x, y, z = (tj.tensor(1.0, requires_grad=True) for _ in range(3))
    with tj.Tape() as tape:
        tj.record(Declared(x, y))
        unused = x * 7
        loss = z * z
    assert x not in tape.backward(loss, retain_tape=True)
    assert x not in tape.backward(loss, retain_tape=True, create_graph=True)
    assert [step.skipped for step in tape.cursor(loss)][-3:] == [False, True, True]
    assert unused.id not in tape.cursor(loss).finish()


class Fails(tj.TapeAction):
    def backward(self, grads):
        grads.insert(self.where, 1.0)
        raise ValueError("no")


def test_an_action_that_fails_leaves_the_cursor_where_it_was():
    x = tj.tensor(2.0, requires_grad=True)
    action = Fails()
    action.where = x
    with tj.Tape() as tape:
        y = x * x
        tj.record(action)
        loss = y * 3
    cursor = tape.cursor(loss)
    cursor.step()
    before = {id.number: float(s.value) for id, s in cursor.sums.items()}
    for _ in range(2):
        with pytest.raises(BackwardError, match="action 1, Fails: ValueError: no") as caught:
            cursor.finish()
        assert caught.value.failed is action
        assert {id.number: float(s.value) for id, s in cursor.sums.items()} == before
        assert cursor.index == 2


def test_nothing_runs_twice():
    class Counts(Declared):
        runs = 0

        def backward(self, grads):
            self.runs += 1
            super().backward(grads)

    x, y = (tj.tensor(1.0, requires_grad=True) for _ in range(2))
    action = Counts(x, y)
    with tj.Tape() as tape:
        tj.record(action)
        loss = y * 2
    cursor = tape.cursor(loss)
    cursor.finish()
    cursor.rewind()
    cursor.finish()
    assert action.runs == 1


def test_as_text():
    tape, loss = scalar()
    cursor = tape.cursor(loss)
    assert "seed" in str(cursor)
    while cursor.next_accumulation():
        assert "sum" in str(cursor)
        assert f"%{tape[0].inputs[0].number} = " in str(cursor)
    assert repr(cursor) == f"<cursor on {tape.label}: {len(tape)} of {len(tape)} actions>"


def test_under_jit():
    def steps(x):
        with tj.Tape() as tape:
            loss = tj.tensor(x, requires_grad=True) ** 3
        cursor = tape.cursor(loss)
        cursor.finish()
        assert "traced" in str(cursor)
        return cursor.outgoing[0].after

    assert float(jax.jit(steps)(2.0)) == pytest.approx(12.0)
