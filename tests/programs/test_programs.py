"""Real programs through `lift`, eager, fused, under jit and opened into primitives, against jax.vjp."""

from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from tapejax.verify.check import compare
from tests.programs import PROGRAMS, edges, learning, numerics, zoo  # noqa: F401  (each registers its programs)

if find_spec("optax") and find_spec("equinox"):
    from tests.programs import packages  # noqa: F401

is_tensor = lambda leaf: isinstance(leaf, tj.Tensor)
inexact = lambda x: jnp.issubdtype(jnp.result_type(x), jnp.inexact)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def cotangents(leaves):
    rng = np.random.default_rng(7)

    def one(x):
        ct = rng.standard_normal(jnp.shape(x))
        if jnp.iscomplexobj(x):
            ct = ct + 1j * rng.standard_normal(jnp.shape(x))
        return jnp.asarray(ct, jnp.result_type(x))

    return [one(x) for x in leaves if inexact(x)]


def judge(function, arguments):
    """(results, gradients) by jax, one compiled call."""
    leaves, structure = jax.tree.flatten(arguments)

    def run(leaves):
        chosen = [x for x in leaves if inexact(x)]

        def of_chosen(*values):
            given = iter(values)
            filled = [next(given) if inexact(x) else x for x in leaves]
            results = jax.tree.leaves(function(*jax.tree.unflatten(structure, filled)))
            return [r for r in results if inexact(r)], results

        _, pullback, results = jax.vjp(of_chosen, *chosen, has_aux=True)
        return results, list(pullback(cotangents(results)))

    return jax.jit(run)(leaves)


def ours(function, leaves, structure, tape=None):
    """(results, gradients) by a tape, on whatever the leaves are: arrays or tracers."""
    tensors = [tj.tensor(x, requires_grad=True) if inexact(x) else x for x in leaves]
    with tape or tj.Tape() as tape:
        results = jax.tree.leaves(function(*jax.tree.unflatten(structure, tensors)), is_leaf=is_tensor)
    seeds = iter(cotangents(results))
    pairs = [(r, next(seeds)) for r in results if inexact(r)]
    roots = [(r, seed) for r, seed in pairs if r.requires_grad]
    grads = tape.backward([r for r, _ in roots], [seed for _, seed in roots])
    values = [r.value for r in results]
    return values, [grads.get(t, jnp.zeros_like(x)) for t, x in zip(tensors, leaves, strict=True) if is_tensor(t)]


def same(found, expected, rtol, how):
    for what, got, want in zip(("value", "gradient"), found, expected, strict=True):
        outcome = compare(got, want, rtol, f"{what} {how}")
        assert outcome.ok, outcome.message


# What is quick, with something of every kind; the others run with the slow tests.
QUICK = {
    "checkpointed", "custom_rules_inside", "dot_product_attention", "eigh_loss", "empty", "fft_filter", "implicit_root",
    "loops_and_nested_jit", "not_finite", "single", "ties_and_kinks",
}  # fmt: skip


def marks(name):
    return [] if name in QUICK else [pytest.mark.slow]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in PROGRAMS])
def test_gradients_are_those_of_jax(name):
    case = PROGRAMS[name]
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, case.arguments))
    expected = judge(case.function, case.arguments)
    lifted = tj.lift(case.function)
    same(ours(lifted, leaves, structure), expected, case.rtol, "eager")
    if case.jit:
        same(jax.jit(lambda leaves: ours(lifted, leaves, structure))(leaves), expected, case.rtol, "under jit")
    if case.small:
        opened = ours(lifted, leaves, structure, tj.Tape(detail="primitives"))
        same(opened, expected, case.rtol, "primitive by primitive")
