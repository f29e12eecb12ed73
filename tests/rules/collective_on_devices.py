"""Checks that need several devices; prints one JSON object {check: message, empty if it holds}.

Run by test_collective.py, for all samples or the first of each primitive, with --xla_force_host_platform_device_count=4: the number of devices is
fixed once per process, so the other tests keep theirs.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from tapejax.rules.registry import TABLE, Rule, name_of
from tapejax.verify.check import Outcome, check_finite, check_sample, compare, our_vjp
from tapejax.verify.samples.base import normal
from tapejax.verify.samples.collective import SAMPLES, mapped, one

rng = np.random.default_rng(0)


PART = sys.argv[1]  # "all" of the samples, or the "first" of each primitive


def on_samples():
    """Every sample; the second derivative once per primitive, and of the programs with and without checked types."""
    seen = set()
    for primitive, samples in SAMPLES.items():
        for number, sample in enumerate(samples):
            if id(sample) in seen or (PART == "first" and number > 0):
                continue
            seen.add(id(sample))
            name = f"{name_of(primitive)}-{number}"
            for dtype in sample.dtypes:
                yield f"{name}-{dtype}", lambda s=sample, d=dtype: check_sample(s, d)
            if number in (0, 2, 3):
                yield f"{name}-second", lambda s=sample: check_sample(s, "float64", order=2)
            if number == 2 and sample.finite:
                yield f"{name}-finite", lambda s=sample: check_finite(s)


def nested(x):
    """A shard_map over b inside one over a."""
    inside = lambda x: jnp.sin(x) * lax.psum(jnp.cos(x), "b")
    return jax.shard_map(inside, in_specs=P(None, "b"), out_specs=P(None, "b"), axis_names={"b"})(x)


def on_nested_shard_maps():
    """jax.grad cannot lower these (its residuals name the outer axis a second time): finite differences judge."""
    sample = one(mapped(nested, P("a"), P("a"), axis_names={"a"}), normal(4, 4))
    yield "nested-finite", lambda: check_finite(sample)


# --- arrays whose type says how they are sharded -------------------------------------------------


def sharded(mesh, spec, *shape):
    return jax.device_put(jnp.asarray(rng.standard_normal(shape)), jax.NamedSharding(mesh, spec))


def explicit_gradient(function, *args):
    """Our cotangents have the values of jax's, and its shardings."""
    out = function(*args)
    ct = jax.device_put(jnp.asarray(rng.standard_normal(out.shape)), out.sharding)
    expected = jax.jit(lambda args, ct: jax.vjp(function, *args)[1](ct))(args, ct)
    ours = lambda args, ct: our_vjp(function, args, [True] * len(args))[1]([ct])
    found = jax.jit(ours)(args, ct)
    outcome = compare(found, expected, 1e-10, "gradient")
    if outcome.ok:
        outcome = compare(ours(args, ct), expected, 1e-10, "gradient, not jitted")
    if outcome.ok and [jax.typeof(a) for a in found] != [jax.typeof(a) for a in expected]:
        outcome.ok, outcome.message = False, f"types {[jax.typeof(a) for a in found]}, expected {expected}"
    return outcome


def on_explicit_meshes():
    mesh = jax.make_mesh((2, 2), ("a", "b"))  # axes are explicit unless told otherwise
    x, w = sharded(mesh, P("a"), 4, 2), sharded(mesh, P(None, "b"), 2, 4)
    bias, table, scale = sharded(mesh, P(), 4), sharded(mesh, P(), 4, 2), sharded(mesh, P(), 1, 2)
    product = lambda x, w: jnp.tanh(x @ w)
    specs = {"in_specs": (P("a"), P(None, "b")), "out_specs": P("a", "b")}
    doubled = jax.sharding.auto_axes(lambda x: jnp.sin(x) * x.sum(), out_sharding=P("a"))
    programs = {
        "dense layer": (lambda x, w, b: jnp.tanh(x @ w + b), x, w, bias),
        "broadcast": (lambda x, s: x * s, x, scale),
        "softmax": (lambda x: jax.nn.softmax(x, axis=0), x),
        "mean": (lambda x: jnp.mean(x**2), x),
        "unused part": (lambda x: jnp.split(x, 2, 1)[0] * 2.0, x),
        "reshard": (lambda x: jax.sharding.reshard(jnp.sin(x), P(None, "a")), x),
        "lookup": (lambda t: t.at[jnp.array([0, 1])].get(out_sharding=P(None)) * 2.0, table),
        "slice": (lambda x: x[:2] * 2.0, table),
        "auto axes": (lambda x: doubled(x) * x, x),
        "shard_map": (lambda x, w: jnp.sin(jax.shard_map(product, **specs)(x, w)), x, w),
        "shard_map unchecked": (lambda x, w: jax.shard_map(product, **specs, check_vma=False)(x, w), x, w),
    }
    for name, (function, *args) in list(programs.items())[:: 1 if PART == "all" else 2]:

        def check(function=function, args=args):
            with jax.set_mesh(mesh):
                return explicit_gradient(function, *args)

        yield f"explicit: {name}", check


# --- wrong rules are caught --------------------------------------------------------------------------

MUTANTS = {
    "psum": lambda ct, out, x, **_: (ct,),
    "psum_invariant": lambda ct, out, x, *, axes: (2.0 * lax.pcast(ct, axes, to="varying"),),
    "pvary": lambda ct, out, x, *, axes: (lax.psum(ct, axes) / 2,),
    "ppermute": lambda ct, out, x, *, axis_name, perm: (lax.ppermute(ct, axis_name, perm),),
    "all_gather_invariant": lambda ct, out, x, **_: (lax.pcast(jnp.zeros(x.shape, x.dtype), "a", to="varying"),),
    "reduce_scatter": lambda ct, out, x, *, axis_name, scatter_dimension, tiled, **_: (
        lax.all_gather(lax.axis_index("a") * ct, axis_name, axis=scatter_dimension, tiled=tiled),
    ),
    "all_gather": lambda ct, out, x, *, axis_name, all_gather_dimension, tiled, **_: (
        -lax.psum_scatter(ct, axis_name, scatter_dimension=all_gather_dimension, tiled=tiled),
    ),
    "all_to_all": lambda ct, out, x, *, axis_name, split_axis, concat_axis, tiled, **_: (
        lax.all_to_all(jnp.flip(ct, 0), axis_name, concat_axis, split_axis, tiled=tiled),
    ),
}


def on_mutants():
    for key in list(TABLE):
        if name_of(key) in MUTANTS:

            def check(key=key):
                right = TABLE[key]
                TABLE[key] = Rule(name_of(key), MUTANTS[name_of(key)], "", cheap=False, zeros=True, family="")
                try:
                    noticed = any(not check_sample(sample, "float64").ok for sample in SAMPLES[key])
                finally:
                    TABLE[key] = right
                return Outcome(noticed, 0.0, "a wrong rule was not noticed")

            yield f"mutant: {name_of(key)}", check


def main():
    messages, worst = {}, 0.0
    with jax.enable_x64(True):
        for checks in (on_samples, on_nested_shard_maps, on_explicit_meshes, on_mutants):
            for name, check in checks():
                try:
                    outcome = check()
                    messages[name] = "" if outcome.ok else outcome.message
                    if outcome.ok and "finite" not in name and "mutant" not in name:
                        worst = max(worst, outcome.error)
                except Exception as error:
                    messages[name] = f"{type(error).__name__}: {error}"
    json.dump({"devices": len(jax.devices()), "worst": worst, "messages": messages}, sys.stdout)


if __name__ == "__main__":
    main()
