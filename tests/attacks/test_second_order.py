"""Derivatives of derivatives, each structure visited five times with other numbers, against jax.

A structure runs op by op at its first visits and as compiled programs later, so one visit tells nothing
about the others.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tests.attacks.alone import ALL as EVERYTHING
from tests.attacks.programs import JAX, LEAVES, TAPE, draw, values

VISITS, COUNT, QUICK = 5, 500 if EVERYTHING else 160, 10
ALL = tuple(range(len(LEAVES)))


def leaf(value):
    return tj.tensor(value, requires_grad=True)


def weighted(gradients, weights):
    """One number that depends on every gradient; None stands for zeros."""
    parts = [(g * w).sum() for g, w in zip(gradients, weights, strict=True) if g is not None]
    return sum(parts[1:], parts[0])


def squares(gradients):
    return weighted(gradients, gradients)


def found(grads, xs):
    return [grads.get(x) for x in xs]


# --- five ways to the second derivative: (first gradients, second gradients) -----------------------------------


def explicit(program, leaves, weights):
    xs = [leaf(x) for x in leaves]
    with tj.Tape() as tape:
        loss = program.run(TAPE, xs)
    with tape:
        first = found(tape.backward(loss, create_graph=True), xs)
        total = weighted(first, weights)
    return first, found(tape.backward(total), xs)


def ambient(program, leaves, weights):
    """With `wrt`, and with the weights as seeds of several roots."""
    xs = [leaf(x) for x in leaves]
    first = found(tj.backward(program.run(TAPE, xs), wrt=xs, create_graph=True), xs)
    there = [(g, w) for g, w in zip(first, weights, strict=True) if g is not None and g.requires_grad]
    second = tj.backward([g for g, _ in there], [w for _, w in there], wrt=xs)
    return first, found(second, xs)


def transforms(program, leaves, weights):
    gradient = tj.grad(lambda *xs: program.run(JAX, xs), ALL)
    return gradient(*leaves), tj.grad(lambda *xs: weighted(gradient(*xs), weights), ALL)(*leaves)


def checkpointed(program, leaves, weights):
    xs = [leaf(x) for x in leaves]
    with tj.Tape() as tape:
        loss = program.run(TAPE, xs, checkpoint=tj.checkpoint)
        first = found(tape.backward(loss, create_graph=True), xs)
        total = weighted(first, weights)
    return first, found(tape.backward(total), xs)


def penalty(program, leaves, weights):
    xs = [leaf(x) for x in leaves]
    with tj.Tape():
        loss = program.run(TAPE, xs)
        first = found(tj.backward(loss, create_graph=True), xs)
        second = found(tj.backward(loss + squares([g for g in first if g is not None])), xs)
    return first, second


WAYS = [explicit, ambient, transforms, checkpointed, penalty]


def judge(program, way):
    """The same in jax, compiled once for all visits."""
    gradient = jax.grad(lambda *xs: program.run(JAX, xs), ALL)
    weighed = lambda weights, *xs: weighted(gradient(*xs), weights)
    penalised = lambda weights, *xs: program.run(JAX, xs) + squares(gradient(*xs))
    outer = penalised if way is penalty else weighed
    of_leaves = tuple(1 + i for i in ALL)
    return jax.jit(lambda weights, *xs: (gradient(*xs), jax.grad(outer, of_leaves)(weights, *xs)))


def close(got, expected, rtol, what):
    """Alike up to `rtol` of the largest number; a missing gradient is one of zeros."""
    for i, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        theirs = np.asarray(theirs)
        ours = np.zeros(theirs.shape) if ours is None else np.asarray(getattr(ours, "value", ours))
        assert ours.shape == theirs.shape, f"{what}, leaf {i}: {ours.shape} instead of {theirs.shape}"
        scale = 1.0 + np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol * scale, err_msg=f"{what}, leaf {i}")


def check(seed, way, *, x64=True, visits=VISITS):
    program = draw(seed, length=2 + seed % 3)
    rng = np.random.default_rng([3, seed])
    with jax.enable_x64(True):
        expected = judge(program, way)
    for visit in range(1, visits + 1):
        leaves, weights = values(rng)
        with jax.enable_x64(True):
            firsts, seconds = expected(weights, *leaves)
        with jax.enable_x64(x64):
            dtype = np.float64 if x64 else np.float32
            ours = way(program, *([np.asarray(a, dtype) for a in arrays] for arrays in (leaves, weights)))
        rtol = 1e-8 if x64 else 2e-3
        where = f"program {seed} by {way.__name__}, visit {visit}\n{program}\n"
        close(ours[0], firsts, rtol, where + "first derivative")
        close(ours[1], seconds, rtol, where + "second derivative")


@pytest.mark.parametrize("seed", range(QUICK))
def test_second_derivatives(seed):
    check(seed, WAYS[seed % len(WAYS)])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(QUICK, COUNT))
def test_many_second_derivatives(seed):
    check(seed, WAYS[seed % len(WAYS)])


@pytest.mark.parametrize("seed", [pytest.param(s, marks=[pytest.mark.slow] * (s >= 1002)) for s in range(1000, 1040)])
def test_second_derivatives_in_float32(seed):
    check(seed, WAYS[seed % len(WAYS)], x64=False)


# --- the third ---------------------------------------------------------------------------------------------


def third_by_tape(program, leaves, weights):
    xs = [leaf(x) for x in leaves]
    with tj.Tape() as tape:
        total = program.run(TAPE, xs)
        for _ in range(2):
            gradients = found(tape.backward(total, create_graph=True), xs)
            total = weighted([g if g is None else tnp.tanh(g) for g in gradients], weights)
    return found(tape.backward(total), xs)


def third_by_transforms(program, leaves, weights, grad=tj.grad):
    def lowered(function):
        return lambda *xs: weighted([jnp.tanh(g) for g in grad(function, ALL)(*xs)], weights)

    return grad(lowered(lowered(lambda *xs: program.run(JAX, xs))), ALL)(*leaves)


@pytest.mark.parametrize("seed", [pytest.param(s, marks=[pytest.mark.slow] * (s >= 2002)) for s in range(2000, 2050)])
def test_third_derivatives(seed):
    program, way = draw(seed, length=2), [third_by_tape, third_by_transforms][seed % 2]
    rng = np.random.default_rng([4, seed])
    with jax.enable_x64(True):
        expected = jax.jit(lambda leaves, weights: third_by_transforms(program, leaves, weights, jax.grad))
        for visit in range(1, VISITS + 1):
            leaves, weights = values(rng)
            ours = way(program, leaves, weights)
            close(ours, expected(leaves, weights), 1e-8, f"program {seed}, visit {visit}\n{program}\nthird derivative")


# --- small ones whose answer is known -------------------------------------------------------------------------


def test_a_square_of_an_exponential_at_every_visit():
    x = leaf(0.3)
    seen = []
    for _ in range(6):
        with tj.Tape() as tape:
            z = tnp.exp(x)
            z = z * z
        with tape:
            g = tape.backward(z, create_graph=True)[x]
        seen.append(float(tape.backward(g)[x]))
    np.testing.assert_allclose(seen, 4 * np.exp(0.6), rtol=1e-5)


@pytest.mark.parametrize("order", [2, 3, 4])
def test_a_power_to_every_order_at_every_visit(order):
    expected = np.prod([5.0 - k for k in range(order)]) * 1.1 ** (5 - order)
    for visit in range(6):
        x = leaf(1.1)
        with tj.Tape() as tape:
            y = x * x * x * x * x
            for _ in range(order - 1):
                y = tape.backward(y, create_graph=True)[x]
        got = float(tape.backward(y)[x])
        assert got == pytest.approx(expected, rel=1e-5), f"visit {visit}"
