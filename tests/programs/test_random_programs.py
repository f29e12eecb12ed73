"""Random programs, op by op on a tape, against jax.grad of the same program.

A program is a list of instructions over a growing pool of tensors. Each may also do what stresses
deferred and fused execution: look at a value, from this thread or another, drop it, use it detached
or under a second name, compute it without recording, put somebody's own action in between.
"""

import threading
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tapejax as tj
from tapejax.fusion import block
from tapejax.verify.check import compare

LEAVES = [(), (3,), (2, 3), (3, 1), (1, 3), (3, 3), (0, 3)]


def pair(x):
    return {"top": jnp.tanh(x), "rest": (x.sum(axis=0) if x.ndim else x * 2, jnp.argmax(x) if x.size else 0)}


UNARY = {
    "neg": lambda x: -x,
    "square": lambda x: x**2,
    "tanh": jnp.tanh,
    "sin": jnp.sin,
    "exp": lambda x: jnp.exp(-(x**2)),
    "sum": lambda x: x.sum(),
    "rows": lambda x: x.sum(axis=-1, keepdims=True) if x.ndim else x,
    "max": lambda x: x.max(axis=0) if x.ndim and x.shape[0] else x,
    "sort": lambda x: jnp.sort(x, axis=-1) if x.ndim else x,
    "cumsum": lambda x: jnp.cumsum(x, axis=0) if x.ndim else x,
    "softmax": lambda x: jax.nn.softmax(x) if x.ndim and x.size else x,
    "first": lambda x: x[0] if x.ndim and x.shape[0] else x,
    "tail": lambda x: x[..., 1:] if x.ndim else x,
    "turn": lambda x: x.T,
    "pick": lambda x: x[jnp.array([0, 0, -1])] if x.ndim and x.shape[0] else x,
    "flat": lambda x: x.reshape(-1),
    "write": lambda x: x.at[0].set(2.0) if x.ndim and x.shape[0] else x,
}
BINARY = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / (1 + y * y),
    "matmul": lambda x, y: x @ y,
    "where": lambda x, y: jnp.where(x > y, x, y * 2),
    "maximum": jnp.maximum,
    "join": lambda x, y: jnp.concatenate([x, y]),
    "outer": lambda x, y: jnp.tanh(x.sum()) * y,
}
OPERATORS = {"neg", "add", "sub", "mul", "square", "turn", "flat"}  # what the same text does with Tensors
FUNCTIONS = UNARY | BINARY
NAMES = [*UNARY, *BINARY, "pair"]
LIFTED = {name: tj.lift(function, name=name) for name, function in FUNCTIONS.items()}
LIFTED["pair"] = tj.lift(pair)
HOWS = ["plain"] * 6 + ["look", "thread", "dead", "detach", "alias", "no_grad", "action", "action"]


@dataclass
class Instruction:
    name: str
    first: int
    second: int
    how: str


@dataclass
class Program:
    instructions: list[Instruction]
    roots: list[int]
    wrt: list[int] | None
    retain: bool


programs = st.builds(
    Program,
    st.lists(
        st.builds(Instruction, st.sampled_from(NAMES), st.integers(0, 99), st.integers(0, 99), st.sampled_from(HOWS)),
        min_size=3,
        max_size=25,
    ),
    st.lists(st.integers(0, 99), min_size=1, max_size=3),
    st.none() | st.lists(st.integers(0, 6) | st.integers(0, 99), min_size=1, max_size=4),
    st.booleans(),
)


def fits(name, x, y):
    if name == "matmul" and (x.ndim == 0 or y.ndim == 0):
        return False
    try:
        jax.eval_shape(FUNCTIONS[name], *(jax.ShapeDtypeStruct(v.shape, v.dtype) for v in (x, y)))
    except (TypeError, ValueError):
        return False
    return True


class Marker(tj.TapeAction):
    """Somebody's own action: doubles the gradient of one tensor."""

    def __init__(self, id):
        self.id = id

    def backward(self, grads):
        if self.id in grads:
            grads.insert(self.id, grads.get(self.id))


@jax.custom_vjp
def doubled(x):
    return x


doubled.defvjp(lambda x: (x, None), lambda _, ct: (2 * ct,))


class OnTape:
    """Instructions over Tensors."""

    stop = staticmethod(lambda x: x.detach())

    def one(self, name, *operands):
        if name in OPERATORS:
            return FUNCTIONS[name](*operands)
        return LIFTED[name](*operands)

    def made(self, result, how):
        if how == "look":
            result.numpy()
        if how == "thread":
            worker = threading.Thread(target=lambda: result.value.block_until_ready())
            worker.start()
            worker.join()
        if how == "action":
            tj.record(Marker(result.id))
        return result.alias() if how == "alias" else result

    def quiet(self, name, *operands):
        with tj.no_grad():
            return jax.tree.map(lambda t: t, self.one(name, *operands), is_leaf=lambda t: isinstance(t, tj.Tensor))


class OnArrays:
    """The same for jax; every result has a number added to it, whose gradient is the result's."""

    stop = staticmethod(jax.lax.stop_gradient)

    def __init__(self, nudges=None):
        self.nudges, self.shapes = nudges, []

    def one(self, name, *operands):
        return pair(*operands) if name == "pair" else FUNCTIONS[name](*operands)

    def made(self, result, how):
        if jnp.issubdtype(result.dtype, jnp.inexact):
            nudge = None if self.nudges is None else self.nudges[len(self.shapes)]
            self.shapes.append(result.shape)
            result = result if nudge is None else result + nudge
        return doubled(result) if how == "action" else result

    def quiet(self, name, *operands):
        return jax.tree.map(jax.lax.stop_gradient, self.one(name, *operands))


def execute(program, leaves, on):
    pool = list(leaves)
    for step in program.instructions:
        name, x, y = step.name, pool[step.first % len(pool)], pool[step.second % len(pool)]
        if name in BINARY and not fits(name, x, y):
            name = "sin"
        if step.how == "detach":
            x = on.stop(x)
        operands = (x, y) if name in BINARY else (x,)
        result = (on.quiet if step.how == "no_grad" else on.one)(name, *operands)
        if name == "pair":
            made = [on.made(result["top"], step.how), on.made(result["rest"][0], "plain")]
        else:
            made = [on.made(result, step.how)]
        if step.how != "dead":
            pool += made
    return pool


def numbers(seed, shapes):
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.standard_normal(shape)) for shape in shapes]


def judged(program, leaves):
    """(pool, gradients of the leaves, of the results), all float64."""
    shapes = OnArrays()
    count = len(leaves)
    length = len(execute(program, leaves, shapes))
    roots = sorted({count + root % (length - count) for root in program.roots}) if length > count else [length - 1]

    def loss(leaves, nudges):
        pool = execute(program, leaves, OnArrays(nudges))
        return sum((pool[r] * w).sum() for r, w in zip(roots, numbers(9, [pool[r].shape for r in roots]))), pool

    zeros = [jnp.zeros(shape) for shape in shapes.shapes]
    (_, pool), (of_leaves, of_results) = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(leaves, zeros)
    return pool, roots, of_leaves, of_results


def check(program, leaves):
    pool, roots, of_leaves, of_results = judged(program, leaves)
    # The results in the pool, in the order of their nudges; dead ones have a nudge but no place.
    alive, nudge = [], 0
    for step in program.instructions:
        n = 2 if step.name == "pair" else 1
        if step.how != "dead":
            alive += range(nudge, nudge + n)
        nudge += n
    expected = [*of_leaves, *(of_results[i] for i in alive)]

    for _ in range(3):
        tensors = [tj.tensor(x, requires_grad=True) for x in leaves]
        with tj.Tape() as tape:
            found = execute(program, tensors, OnTape())
        wrt = None if program.wrt is None else [found[i % len(found)] for i in program.wrt]
        seeds = numbers(9, [pool[r].shape for r in roots])
        pairs = [(found[r], seed) for r, seed in zip(roots, seeds, strict=True) if found[r].requires_grad]
        if not pairs:
            return
        asked = [root for root, _ in pairs], [seed for _, seed in pairs]
        for again in range(2 if program.retain else 1):
            grads = tape.backward(*asked, wrt=wrt, retain_tape=program.retain and not again)
            for place, tensor in enumerate(found):
                if not tensor.requires_grad or (wrt is not None and not any(tensor.id == w.id for w in wrt)):
                    assert wrt is None or tensor not in grads or any(tensor.id == w.id for w in wrt)
                    continue
                got = grads.get(tensor, jnp.zeros(tensor.shape))
                outcome = compare([got], [expected[place]], 1e-9, f"gradient of %{place}")
                assert outcome.ok, outcome.message
        outcome = compare([t.value for t in found], pool, 1e-9, "value")
        assert outcome.ok, outcome.message


@settings(max_examples=4, deadline=None, derandomize=True, print_blob=True)
@given(programs)
def test_any_program(program):
    with jax.enable_x64(True):
        check(program, numbers(3, LEAVES))


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True, print_blob=True)
@given(programs)
def test_many_programs(program):
    with jax.enable_x64(True):
        check(program, numbers(3, LEAVES))


@pytest.mark.slow
@settings(max_examples=6, deadline=None, derandomize=True)
@given(programs, st.integers(2, 5))
def test_any_program_in_small_blocks(program, limit):
    with jax.enable_x64(True), pytest.MonkeyPatch.context() as patch:
        patch.setattr(block, "LIMIT", limit)
        check(program, numbers(3, LEAVES))


@pytest.mark.slow
@settings(max_examples=6, deadline=None, derandomize=True)
@given(programs)
def test_any_program_without_fusion(program):
    with jax.enable_x64(True), pytest.MonkeyPatch.context() as patch:
        patch.setattr(tj.fusion, "enabled", False)
        check(replace(program), numbers(3, LEAVES))
