"""Random smooth programs, written once over a namespace: tapejax's, jax's or numpy's.

A program is a list of instructions over a growing pool of values. Drawing one runs it over numpy, which
costs no compilation, and leaves out whatever does not fit or grows out of bounds.
"""

import types
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import tapejax as tj
import tapejax.numpy as tnp

LEAVES = [(), (3,), (3, 3)]
MASK = np.array([True, False, True])


def _numpy_softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


TAPE = types.SimpleNamespace(np=tnp, softmax=tj.nn.softmax)
JAX = types.SimpleNamespace(np=jnp, softmax=jax.nn.softmax)
NUMPY = types.SimpleNamespace(np=np, softmax=_numpy_softmax)


def needs(*dims):
    """Mark a function: its operands must have at least so many dimensions."""

    def mark(function):
        function.dims = dims
        return function

    return mark


UNARY = {
    "tanh": lambda n, x: n.np.tanh(x),
    "sin": lambda n, x: n.np.sin(x),
    "exp": lambda n, x: n.np.exp(0.5 * x),
    "log": lambda n, x: n.np.log(1.5 + x * x),
    "sqrt": lambda n, x: n.np.sqrt(1.0 + x * x),
    "cube": lambda n, x: x**3,
    "power": lambda n, x: (1.0 + x * x) ** 0.7,
    "neg": lambda n, x: 0.3 - x,
    "sum": lambda n, x: x.sum(),
    "mean": needs(1)(lambda n, x: x.mean(axis=0)),
    "rows": needs(1)(lambda n, x: x.sum(axis=-1, keepdims=True)),
    "max": needs(1)(lambda n, x: n.np.max(x, axis=-1)),
    "prod": needs(1)(lambda n, x: n.np.prod(x, axis=-1)),
    "cumsum": needs(1)(lambda n, x: n.np.cumsum(x, axis=-1)),
    "softmax": needs(1)(lambda n, x: n.softmax(x)),
    "first": needs(1)(lambda n, x: x[0]),
    "tail": needs(1)(lambda n, x: x[..., 1:]),
    "pick": needs(1)(lambda n, x: x[np.array([0, -1, 0])]),
    "turn": needs(2)(lambda n, x: x.T),
    "flat": needs(2)(lambda n, x: x.reshape(-1)),
    "stack": lambda n, x: n.np.stack([x, x * x]),
}
BINARY = {
    "add": lambda n, x, y: x + y,
    "sub": lambda n, x, y: x - y,
    "mul": lambda n, x, y: x * y,
    "div": lambda n, x, y: x / (1.0 + y * y),
    "where": lambda n, x, y: n.np.where(x > y, x * x, y * 0.5),
    "masked": lambda n, x, y: n.np.where(MASK, x, y),
    "maximum": lambda n, x, y: n.np.maximum(x, y + 0.01),
    "matmul": needs(1, 1)(lambda n, x, y: x @ y),
    "join": needs(1, 1)(lambda n, x, y: n.np.concatenate([x, y])),
    "hypot": lambda n, x, y: n.np.sqrt(x * x + y * y + 1.0),
}
FUNCTIONS = UNARY | BINARY
NAMES = [*UNARY, *BINARY, *BINARY]  # either kind as often as the other


@dataclass(frozen=True)
class Instruction:
    name: str
    operands: tuple[int, ...]

    def run(self, n, pool):
        return FUNCTIONS[self.name](n, *(pool[i] for i in self.operands))


@dataclass(frozen=True)
class Program:
    instructions: tuple[Instruction, ...]
    roots: tuple[int, ...]
    part: tuple[int, int]  # these instructions may be put into a checkpoint

    def __str__(self):
        lines = [f"%{i + len(LEAVES)} = {s.name} {s.operands}" for i, s in enumerate(self.instructions)]
        return "\n".join([*lines, f"roots {self.roots}, part {self.part}"])

    def run(self, n, leaves, checkpoint=None):
        """The loss. With `checkpoint`, some instructions are one call of it."""
        pool, (start, stop) = list(leaves), self.part
        inner = self.instructions[start:stop]
        if checkpoint is None or not inner:
            pool = run(n, self.instructions, pool)
        else:
            pool = run(n, self.instructions[:start], pool)
            pool += checkpoint(lambda *pool: run(n, inner, list(pool))[len(pool) :], *pool)
            pool = run(n, self.instructions[stop:], pool)
        parts = [(pool[root] * pool[root] + n.np.sin(pool[root])).mean() for root in self.roots]
        return sum(parts[1:], parts[0])


def run(n, instructions, pool):
    for instruction in instructions:
        pool.append(instruction.run(n, pool))
    return pool


def values(rng, scale=0.7):
    """Numbers for the leaves, and one weight for each."""
    return [[np.asarray(scale * rng.standard_normal(shape)) for shape in LEAVES] for _ in range(2)]


def fits(name, operands):
    """Whether they have dimensions enough, and no ties where a maximum would have to choose."""
    dims = getattr(FUNCTIONS[name], "dims", (0,) * len(operands))
    if not all(x.ndim >= d for x, d in zip(operands, dims, strict=True)):
        return False
    if name == "max":
        return np.diff(np.sort(operands[0], axis=-1), axis=-1).min(initial=1.0) > 1e-3
    if name == "maximum":
        try:
            return np.abs(operands[0] - operands[1] - 0.01).min() > 1e-3
        except ValueError:
            return False
    return True


def draw(seed, length):
    """A program whose values stay small, and whose last result is a root. Short ones compile soon."""
    rng = np.random.default_rng([2, seed])
    pool, instructions = values(rng)[0], []
    while len(instructions) < length:
        name = NAMES[rng.integers(len(NAMES))]
        fresh = int(rng.integers(max(0, len(pool) - 3), len(pool)))  # one operand is new: programs grow deep
        operands = (fresh, int(rng.integers(len(pool))))[: 2 if name in BINARY else 1]
        operands = operands[::-1] if rng.random() < 0.5 else operands
        if not fits(name, [pool[i] for i in operands]):
            continue
        try:
            result = np.asarray(FUNCTIONS[name](NUMPY, *(pool[i] for i in operands)))
        except ValueError:
            continue
        if result.size == 0 or result.size > 30 or not np.abs(result).max() < 20:
            continue
        pool.append(result)
        instructions.append(Instruction(name, operands))
    last = len(pool) - 1
    others = {int(i) for i in rng.integers(0, last, size=rng.integers(0, 2))}
    start = int(rng.integers(0, length - 1))
    return Program(tuple(instructions), (*sorted(others), last), (start, start + int(rng.integers(1, 4))))
