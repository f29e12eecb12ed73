"""Random programs: gradients that wait are those that would have been computed at once."""

import random

import jax
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp

UNARY = ("sin", "cos", "tanh", "square", "negative", "arctan")


def program(seed):
    """A root, and what is held besides: a few ops, of what came before. The same seed makes the same program."""
    choose, numbers = random.Random(seed), np.random.default_rng(seed)
    leaves = [tj.tensor(0.3 * numbers.standard_normal((4, 4)), requires_grad=needs) for needs in (True, True, False)]
    made, held = list(leaves), choose.choice(("nothing", "nothing", "some", "all"))
    kept = []
    for _ in range(choose.choice((12, 40, 150))):
        a, b = choose.choice(made[-4:]), choose.choice(made[-6:] + leaves)
        kind = choose.randrange(7)
        if kind < 2:
            result = getattr(tnp, choose.choice(UNARY))(0.5 * a)
        elif kind == 2:
            result = a * b
        elif kind == 3:
            result = 0.3 * (a @ b)
        elif kind == 4:
            left, right = tnp.split(a, 2, axis=1)
            result = tnp.concatenate([right, left], axis=1) + b
        elif kind == 5:
            result = a[np.array([2, 0, 1, 3])] + b
        else:
            result = a.detach() * b
        made.append(result)
        if held == "all" or (held == "some" and choose.random() < 0.2):
            kept.append(result)
        if choose.random() < 0.01:
            np.asarray(result.value)  # looked at on the way
    root = (made[-1] * made[-1]).sum() + made[0].sum()
    if choose.random() < 0.3:
        float(root)
    return root, [leaves, kept], choose.choice((None, None, 2.0))


def gradients(seed, ask):
    """All of them, each with its rank by age; and whether some waited."""
    root, held, given = program(seed)
    del held[1:]  # some were held until here: they are there at once if the block ran before
    grads = tj.backward(root, given)
    ready, size = len(grads.ready), len(grads)
    if ask:
        for id in random.Random(seed + ask).sample(list(grads), min(3, size)):
            grads[id]
    age = {number: rank for rank, number in enumerate(sorted(id.number for id in grads))}
    found = [(age[id.number], np.asarray(value)) for id, value in grads.items()]
    assert len(found) == size
    return found, ready < size


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 15))
def test_random_programs(first):
    waited = 0
    for seed in range(first, first + 15):
        with jax.enable_x64(True):
            with tj.fusion(False):
                expected, _ = gradients(seed, 0)
            tj.clear_plans()  # otherwise ops that have programs of their own go on one by one
            for visit in range(4):
                found, some_wait = gradients(seed, visit)
                waited += some_wait
                assert [place for place, _ in found] == [place for place, _ in expected], seed
                for (place, one), (_, other) in zip(found, expected, strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9, err_msg=f"seed {seed}, {place}")
    assert waited > 10
