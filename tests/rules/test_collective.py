import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tapejax as tj
from tapejax.errors import RefusedPrimitive
from tapejax.rules.registry import TABLE
from tapejax.verify.check import our_vjp
from tapejax.verify.samples.collective import SAMPLES
from tests.rules.harness import rules_without_samples

# XLA on CPU cannot run these; their rules alone are tested below.
ALONE = ["pbroadcast", "pbroadcast_dynamic", "ragged_all_to_all"]


def verdict(part):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "error", "-m", "tests.rules.collective_on_devices", part]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("part", "least"), [("first", 40), pytest.param("all", 80, marks=pytest.mark.slow)])
def test_on_four_devices(part, least):
    found = verdict(part)
    assert found["devices"] == 4
    assert len(found["messages"]) > least
    assert {name: message for name, message in found["messages"].items() if message} == {}


def test_every_rule_has_a_sample():
    assert rules_without_samples("collective", SAMPLES) == ALONE


# --- under vmap a collective can be differentiated first and mapped afterwards -----------------------


def inside_vmap(function):
    """Our gradient of a function of one member of a mapped axis `i`, taken inside the vmap."""
    return jax.vmap(lambda x, ct: our_vjp(function, [x], [True])[1]([ct])[0], axis_name="i")


X = np.random.default_rng(3).standard_normal((4, 4, 2)).astype("float32")
MAPPED = {
    "psum": lambda x: lax.psum(jnp.sin(x), "i") * x,
    "pmean": lambda x: lax.pmean(jnp.sin(x), "i") * x,
    "all_gather": lambda x: lax.all_gather(jnp.sin(x), "i", axis=1),
    "psum_scatter": lambda x: lax.psum_scatter(jnp.sin(x), "i"),
    "all_to_all": lambda x: lax.all_to_all(jnp.sin(x), "i", 0, 0),
    "all_to_all, tiled": lambda x: lax.all_to_all(jnp.sin(x), "i", 0, 1, tiled=True),
    "all_to_all, another axis": lambda x: lax.all_to_all(jnp.sin(x), "i", 0, 1),
    "ppermute": lambda x: lax.ppermute(jnp.sin(x), "i", [(0, 2), (2, 1), (1, 3), (3, 0)]),
}


@pytest.mark.parametrize("function", MAPPED.values(), ids=MAPPED)
def test_collectives_under_vmap(function):
    """The judge maps first: jax's own rule raises for an all_to_all onto another axis."""
    out, pullback = jax.vjp(jax.vmap(function, axis_name="i"), jnp.asarray(X))
    ct = jnp.asarray(np.random.default_rng(0).standard_normal(out.shape), out.dtype)
    np.testing.assert_allclose(inside_vmap(function)(X, ct), pullback(ct)[0], rtol=1e-5, atol=1e-6)


BOTH = jax.vmap(jax.vmap(lambda x: lax.psum(x * x, ("i", "j")) * x, axis_name="j"), axis_name="i")
MAPPED_FIRST = {name: jax.vmap(function, axis_name="i") for name, function in MAPPED.items()} | {
    "psum of numbers": jax.vmap(lambda x: lax.psum(x.sum(), "i"), axis_name="i"),
    "psum over two axes": BOTH,
    "psum over the outer axis": jax.vmap(jax.vmap(lambda x: lax.psum(x * x, "i") * x, axis_name="j"), axis_name="i"),
    "psum, one result": jax.vmap(lambda x: lax.psum(x * x, "i"), axis_name="i", out_axes=None),
    "batch norm": jax.vmap(lambda x: (x - lax.pmean(x, "i")) / jnp.sqrt(lax.pmean(x**2, "i") + 1), axis_name="i"),
}


@pytest.mark.parametrize("function", MAPPED_FIRST.values(), ids=MAPPED_FIRST)
def test_collectives_of_a_mapped_function_that_is_lifted(function):
    out, pullback = jax.vjp(function, jnp.asarray(X))
    ct = jnp.asarray(np.random.default_rng(0).standard_normal(out.shape), out.dtype)
    x = tj.tensor(X, requires_grad=True)
    np.testing.assert_allclose(tj.backward(tj.lift(function)(x), ct)[x], pullback(ct)[0], rtol=1e-5, atol=1e-6)


MORE = MAPPED_FIRST | {
    "psum, second axis": jax.vmap(lambda x: lax.psum(jnp.sin(x), "i") * x, axis_name="i", in_axes=1, out_axes=2),
    "psum of a tuple": jax.vmap(lambda x: lax.psum((jnp.sin(x), x**2), "i")[0] * x, axis_name="i"),
    "psum of a number": jax.vmap(lambda x: lax.psum(1, "i") * jnp.sin(x), axis_name="i"),
    "psum of what is not mapped": lambda x: jax.vmap(
        lambda x, w: lax.psum(jnp.sin(w), "i") * x, axis_name="i", in_axes=(0, None)
    )(x, x[0]),
    "psum in a loop": jax.vmap(
        lambda x: lax.scan(lambda c, r: (c + lax.psum(jnp.sin(r * c), "i"), c), x[0], x), axis_name="i"
    ),
    "psum run again": jax.vmap(jax.checkpoint(lambda x: lax.psum(jnp.sin(x), "i") ** 2), axis_name="i"),
    "softmax over the axis": jax.vmap(
        lambda x: (lambda e: e / lax.psum(e, "i"))(jnp.exp(x - lax.pmax(lax.stop_gradient(x), "i"))), axis_name="i"
    ),
    "pshuffle": jax.vmap(lambda x: lax.pshuffle(jnp.sin(x), "i", [2, 1, 0, 3]) ** 2, axis_name="i"),
    "pswapaxes": jax.vmap(lambda x: lax.pswapaxes(jnp.sin(x), "i", 0) ** 2, axis_name="i"),
}


QUICK = ("batch norm", "psum, second axis", "ppermute")
SECOND = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in MORE]


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_of_mapped_collectives(name):
    def slope(vjp):
        def squares(x):
            out, pull = vjp(lambda x: jax.tree.leaves(MORE[name](x))[0], x)
            return (pull(jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))[0] ** 2).sum()

        return squares

    with jax.enable_x64(True):
        x = jnp.asarray(X, "float64")
        value, expected = jax.value_and_grad(slope(jax.vjp))(x)
        found = jax.jit(tj.value_and_grad(tj.lift(slope(tj.vjp))))(x)
        np.testing.assert_allclose(found[0], value, rtol=1e-10)
        np.testing.assert_allclose(found[1], expected, rtol=1e-9, atol=1e-12)


# --- what neither XLA on CPU nor vmap can run: the rule alone -----------------------------------------


@pytest.mark.parametrize("name", ["pbroadcast", "pbroadcast_dynamic"])
def test_pbroadcast(name):
    """The source gets the sum of everyone's cotangents."""
    rule = lookup_name(name)
    if name == "pbroadcast":
        back = lambda ct: rule(ct, ct, ct, axis_name="i", source=1)[0]
    else:
        back = lambda ct: rule(ct, ct, ct, jnp.int32(1), axis_name="i")[0]
    expected = np.zeros_like(X)
    expected[1] = X.sum(0)
    np.testing.assert_allclose(jax.vmap(back, axis_name="i")(X), expected, rtol=1e-5)


def lookup_name(name):
    (entry,) = [entry for entry in TABLE.values() if entry.name == name]
    return entry.function


def exchange(x, output, starts, sizes, places, received, *, axis_name, axis_index_groups=None):
    """What lax.ragged_all_to_all does, from all_gather."""
    me = lax.axis_index(axis_name)
    everyone = [lax.all_gather(v, axis_name) for v in (x, starts, sizes, places)]
    for x, starts, sizes, places in zip(*everyone, strict=True):
        row = jnp.arange(output.shape[0]) - places[me]
        here = (row >= 0) & (row < sizes[me])
        sent = jnp.take(x, jnp.clip(row + starts[me], 0, len(x) - 1), axis=0)
        output = jnp.where(here[:, None], sent, output)
    return output


@pytest.mark.parametrize("sizes", [[[1, 2], [1, 1]], [[0, 2], [1, 0]]], ids=["full", "with empty messages"])
def test_ragged_all_to_all(sizes, monkeypatch):
    """Every message's cotangent goes back to its sender; rows that were written over give none."""
    monkeypatch.setattr(lax, "ragged_all_to_all", exchange)
    sizes = np.array(sizes, np.int32)  # sizes[i, j]: rows that i sends to j
    starts = np.cumsum(sizes, 1, dtype=np.int32) - sizes
    places = (np.cumsum(sizes, 0, dtype=np.int32) - sizes) + 1  # row 0 of the output stays
    plan = (starts, sizes, places, np.ascontiguousarray(sizes.T))
    x, output, ct = X[:2, :3], X[2:], X[:2]
    judge = lambda x, output: jax.vmap(lambda *a: exchange(*a, axis_name="i"), axis_name="i")(x, output, *plan)
    expected = jax.vjp(judge, x, output)[1](ct)

    rule = lookup_name("ragged_all_to_all")
    back = lambda ct, x, output, *plan: rule(ct, ct, x, output, *plan, axis_name="i", axis_index_groups=None)[:2]
    found = jax.vmap(back, axis_name="i")(ct, x, output, *plan)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)


@pytest.mark.parametrize("collective", [lax.pmax, lax.pmin])
def test_a_maximum_over_devices_is_refused(collective):
    def gradient(x):
        return our_vjp(lambda x: collective(x, "i"), [x], [True])[1]([x])

    with pytest.raises(RefusedPrimitive, match="all_gather"):
        jax.vmap(gradient, axis_name="i")(jnp.ones(2))
