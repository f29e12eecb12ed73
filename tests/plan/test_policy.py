"""When calls are compiled together: by what it costs, on recorded visits, never worse than twice the best in hindsight."""

import itertools

import jax
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tapejax.plan.policy import CALL, START, Part, Together


class Program:
    """Stands for a compiled program: the policy asks only whether it is there."""

    def __init__(self):
        self.is_compiled = False


def parts(*sizes):
    return [Part(size, Program()) for size in sizes]


class Payer:
    """Follows the policy over visits and adds up what it costs: compiling, and what is lost by single calls."""

    def __init__(self):
        self.paid = 0.0

    def visit(self, stretch):
        known = stretch.reason
        if stretch.pays():
            self.paid += 0 if known else stretch.cost
            return
        self.paid += stretch.loss
        for part in dict.fromkeys(stretch.parts):
            if not part.compiled.is_compiled:
                self.paid += START + part.size
                part.compiled.is_compiled = True


def test_all_new_is_compiled_together_at_once():
    assert Together(parts(1, 2, 3), 0).pays()


def test_all_compiled_runs_one_by_one_until_that_has_cost_as_much():
    some = parts(1, 2, 3)
    for part in some:
        part.compiled.is_compiled = True
    stretch = Together(some, 0)
    visits = next(n for n in itertools.count() if stretch.pays())
    assert visits == pytest.approx(stretch.cost / (3 * CALL), abs=1.5)


@pytest.mark.parametrize("n_visits", [1, 2, 10, 300, 5000])
@pytest.mark.parametrize("sizes", [(1,) * 2, (1,) * 20, (5, 1, 9), (40, 40)])
@pytest.mark.parametrize("compiled", [0.0, 0.5, 1.0])
def test_one_structure_costs_at_most_twice_the_best(n_visits, sizes, compiled):
    some = parts(*sizes)
    for part in some[: round(compiled * len(some))]:
        part.compiled.is_compiled = True
    apart = sum(START + part.size for part in some if not part.compiled.is_compiled)
    stretch = Together(some, 0)
    best = min(stretch.cost, apart + n_visits * stretch.loss)
    payer = Payer()
    for _ in range(n_visits):
        payer.visit(stretch)
    assert payer.paid <= 2 * best + stretch.loss + 1e-9


@pytest.mark.parametrize("size", [1, 3, 10])
@pytest.mark.parametrize("length", [2, 8, 30])
def test_ever_new_combinations_of_the_same_calls_end_up_with_single_programs(size, length):
    """Each structure comes once. In hindsight it is best to compile each call by itself."""
    some, payer = parts(*[size] * length), Payer()
    for _ in range(200):
        payer.visit(Together(some, 0))
    best = sum(START + part.size for part in some) + 200 * length * CALL
    assert all(part.compiled.is_compiled for part in some)
    assert payer.paid <= 3 * best


def test_each_new_structure_once_costs_no_more_than_compiling_it():
    payer, best = Payer(), 0.0
    for n in range(1, 30):
        stretch = Together(parts(*[n % 5 + 1] * (n + 1)), 0)
        best += stretch.cost
        payer.visit(stretch)
    assert payer.paid == pytest.approx(best)


def test_a_program_that_failed_is_not_tried_at_each_visit():
    some = parts(1, 2, 3)
    stretch = Together(some, 0)
    assert stretch.pays()
    with pytest.raises(ZeroDivisionError):
        stretch.run(lambda: 1 / 0)
    assert stretch.why == "it raised ZeroDivisionError; its calls run one by one"
    for part in some:  # they ran one by one
        part.compiled.is_compiled = True
    assert not any(stretch.pays() for _ in range(50))
    visits = next(n for n in itertools.count() if stretch.pays())
    assert visits > 100


def compiled_programs():
    return [plan for plan in tj.plans() if plan.forward.compiled.is_compiled]


@pytest.mark.parametrize("looked_at", [False, True])
def test_a_first_step_compiles_no_single_call(looked_at):
    tj.clear_plans()
    x = tj.tensor(np.linspace(-1, 1, 5).astype("f"), requires_grad=True)
    for _ in range(3):
        loss = (tnp.tanh(x) * x + 0.5).sum()
        if looked_at:
            float(loss)
        found = tj.backward(loss, wrt=x)[x]
        expected = jax.grad(lambda x: (jax.numpy.tanh(x) * x + 0.5).sum())(x.value)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert compiled_programs() == []
