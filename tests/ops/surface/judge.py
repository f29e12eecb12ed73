"""Values and gradients of a sample, by the tape and by jax; many samples are compiled together."""

import functools
import importlib
import re

import jax
import jax.numpy as jnp
import numpy as np

import tapejax as tj
from tapejax.ops.surface.tables import MODULES
from tests.ops.surface.samples import ARRAYS, NO_GRADIENT, Functions

is_tensor = lambda leaf: isinstance(leaf, tj.Tensor)
is_inexact = lambda value: jnp.issubdtype(value.dtype, jnp.inexact)


def names_in(arguments):
    words = re.findall(r"[A-Za-z_]\w*(?!\w*\s*=[^=])", re.sub(r"'[^']*'|f\.\w+|F\.\w+", "", arguments))
    return [word for word in dict.fromkeys(words) if word in ARRAYS]


def evaluate(module, name, arguments, arrays, numpy):
    scope = {"F": importlib.import_module(module), "f": Functions(numpy), **arrays}
    return eval(arguments if arguments.startswith("F.") else f"F.{name}({arguments})", scope)


def cotangent(value):
    """A cotangent for an output: some numbers, the same ones for the same shape."""
    rng = np.random.default_rng(value.size)
    draw = rng.standard_normal(value.shape)
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        draw = draw + 1j * rng.standard_normal(value.shape)
    return jnp.asarray(draw, value.dtype)


def by_jax(module, name, arguments, arrays, wrt):
    def call(*values):
        found = evaluate(MODULES[module], name, arguments, arrays | dict(zip(wrt, values, strict=True)), jnp)
        leaves = jax.tree_util.tree_leaves(found)
        return [leaf for leaf in leaves if is_inexact(leaf)], leaves

    values = [arrays[word] for word in wrt]
    if not wrt:
        return call()[1], []
    inexact, pull, leaves = jax.vjp(call, *values, has_aux=True)
    return leaves, list(pull([cotangent(leaf) for leaf in inexact]))


def by_tape(module, name, arguments, arrays, wrt):
    tensors = {word: tj.tensor(value, requires_grad=word in wrt) for word, value in arrays.items()}
    with tj.Tape() as tape:
        found = evaluate(module, name, arguments, tensors, tj.numpy)
    leaves = jax.tree_util.tree_leaves(found, is_leaf=is_tensor)
    roots = [leaf for leaf in leaves if is_tensor(leaf) and leaf.requires_grad]
    grads = tape.backward(roots, [cotangent(root) for root in roots]) if roots else tj.Gradients()
    zeros = [jnp.zeros_like(tensors[word].value) for word in wrt]
    return (
        [leaf.value if is_tensor(leaf) else leaf for leaf in leaves],
        [grads.get(tensors[word], zero) for word, zero in zip(wrt, zeros, strict=True)],
    )


def both(sample, arrays, *, gradient=True):
    """((values, gradients) by the tape, by jax), after a check that their types agree."""
    module, name, arguments = sample
    words = names_in(arguments)
    arrays = {word: arrays[word] for word in words}
    wrt = [word for word in words if gradient and is_inexact(arrays[word])]
    ours, judge = by_tape(module, name, arguments, arrays, wrt), by_jax(module, name, arguments, arrays, wrt)
    kinds = lambda values: [(jax.typeof(value).str_short(), jax.typeof(value).weak_type) for value in values]
    assert kinds(ours[0]) == kinds(judge[0])
    return ours, judge


def compare(found, tolerance=1e-7):
    """tolerance: relative, of gradients; values are held to a hundredth of it."""
    (values, grads), (judge_values, judge_grads) = found
    for ours, judge in zip(values, judge_values, strict=True):
        np.testing.assert_allclose(ours, judge, rtol=tolerance / 100, atol=tolerance / 1e5)
    for ours, judge in zip(grads, judge_grads, strict=True):
        np.testing.assert_allclose(ours, judge, rtol=tolerance, atol=tolerance / 1e3)


@functools.cache
def together(samples):
    """The results of many samples from one compiled program; an exception where a sample failed."""
    failures = {}

    def everything(arrays):
        results = {}
        for sample in samples:
            try:
                results[str(sample)] = both(sample, arrays, gradient=sample[1] not in NO_GRADIENT)
            except Exception as error:
                failures[str(sample)] = error
        return results

    with jax.enable_x64(True):
        arrays = {word: jnp.asarray(value) for word, value in ARRAYS.items()}
        return jax.jit(everything)(arrays) | failures
