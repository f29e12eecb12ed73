"""What is kept between forward and backward, in bytes, against what jax.vjp of the same function keeps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tapejax as tj
from tapejax.tape.packed import force
from tests.programs import Draw
from tests.programs.learning import block, block_params

BLOCKS, LENGTH, WIDTH = 12, 16, 8


def transformer(layers, x):
    for layer in layers:
        x = block(x, layer)
    return (x**2).mean()


def scanned(stacked, x):
    x, _ = lax.scan(lambda x, layer: (block(x, layer), None), x, stacked)
    return (x**2).mean()


def arguments():
    draw = Draw(5)
    single = lambda tree: jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), tree)
    return single([block_params(draw, WIDTH) for _ in range(BLOCKS)]), single(draw.normal(LENGTH, WIDTH))


def stacked_arguments():
    layers, x = arguments()
    return jax.tree.map(lambda *a: jnp.stack(a), *layers), x


def content(array):
    return array.shape, array.dtype.name, np.asarray(array).tobytes()


def nbytes(arrays, known):
    """Of distinct arrays that are not known. By contents: jit returns a copy of an input that it keeps."""
    known = set(map(content, known))
    return sum(a.nbytes for key, a in {content(a): a for a in arrays}.items() if key not in known)


def held_by_tape(function, args):
    tensors = jax.tree.map(lambda a: tj.tensor(a, requires_grad=True), args)
    with tj.Tape() as tape:
        loss = tj.lift(function)(*tensors)
    float(loss)
    kept = [force(value) for action in tape for value in action.kept]
    return nbytes(kept, [*jax.tree.leaves(args), loss.value])


def held_by_jax(function, args):
    loss, pullback = jax.jit(functools.partial(jax.vjp, function))(*args)
    return nbytes(jax.tree.leaves(pullback), [*jax.tree.leaves(args), loss])


@pytest.mark.parametrize(
    ("function", "make"), [pytest.param(transformer, arguments, marks=pytest.mark.slow), (scanned, stacked_arguments)]
)
def test_a_transformer_keeps_at_most_what_jax_keeps(function, make, record_property):
    args = make()
    ours, jaxs = held_by_tape(function, args), held_by_jax(function, args)
    record_property("bytes", f"{ours} of {jaxs}, ratio {ours / jaxs:.3f}")
    print(f"\n{function.__name__}: {ours} bytes kept by the tape, {jaxs} by jax.vjp, ratio {ours / jaxs:.3f}")
    assert 0 < ours <= jaxs
