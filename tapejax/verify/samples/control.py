"""Samples: control."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.custom_batching import custom_vmap
from jax.extend.core import primitives as p

from tapejax.verify.samples.base import ALL, integers, normal, sample

DOUBLE = ("float64",)


def either(which, x, y):
    return lax.cond(which > 0, lambda x, y: jnp.sin(x) * jnp.exp(y), lambda x, y: x * x * 2, x, y)


def several(which, x, y):
    """Branches that keep different things, and an operand that only some of them read."""
    branches = [
        lambda x, y: (x, y),
        lambda x, y: (jnp.sin(x) @ jnp.ones((3, 3), x.dtype), y * 2),
        lambda x, y: (jnp.exp(y @ jnp.ones((3, 3), x.dtype)) * x, jnp.floor(x)),
    ]
    return lax.switch(which, branches, x, y)


def layers(x, w):
    return jnp.sin(checkpoint_name(jnp.tanh(jnp.sin(x) @ w), "inner") @ w)


def checkpointed(policy=None, **options):
    return jax.checkpoint(layers, policy=policy, **options)


@custom_vmap
def mapped(x):
    return jnp.sin(x) * x


@mapped.def_vmap
def mapped_rule(axis_size, in_batched, x):
    return mapped(x), in_batched[0]


policies = jax.checkpoint_policies
SAMPLES = {
    p.cond_p: [
        sample(either, integers(1), normal(3), normal(3), dtypes=ALL),
        sample(either, integers(0), normal(3), normal(3), dtypes=DOUBLE),
        *(sample(several, integers(i), normal(3), normal(3), dtypes=DOUBLE) for i in range(3)),
        sample(lambda *a: several(*a)[1], integers(1), normal(3), normal(3), dtypes=DOUBLE),
        sample(lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.sin), normal(3), dtypes=DOUBLE),
        sample(jax.vmap(either), integers([0, 1, 1]), normal(3, 2), normal(3, 2), dtypes=DOUBLE),
        sample(jax.vmap(either, (None, 0, 0)), integers(1), normal(3, 2), normal(3, 2), dtypes=DOUBLE),
    ],
    p.remat_p: [
        sample(checkpointed(), normal(3, 3), normal(3, 3), dtypes=("float64", "float32", "complex128")),
        sample(checkpointed(policies.dots_saveable), normal(3, 3), normal(3, 3), dtypes=DOUBLE),
        sample(checkpointed(policies.everything_saveable, prevent_cse=False), normal(3, 3), normal(3, 3), dtypes=DOUBLE),
        sample(checkpointed(policies.save_only_these_names("inner")), normal(3, 3), normal(3, 3), dtypes=DOUBLE),
        sample(
            lambda x, w: lax.scan(lambda c, _: (checkpointed()(c, w), c[0]), x, None, length=3),
            normal(3, 3), normal(3, 3), dtypes=DOUBLE,
        ),
        sample(
            jax.checkpoint(lambda x, w: lax.scan(lambda c, y: (jnp.sin(c @ w) + y, c), x[0], x)),
            normal(4, 3), normal(3, 3), dtypes=DOUBLE,
        ),
    ],
    # jax itself has no reverse mode for these two: finite differences judge.
    "composite": [sample(lax.composite(layers, "tapejax.layers"), normal(3, 3), normal(3, 3), dtypes=DOUBLE, orders=0)],
    "custom_vmap_call": [sample(mapped, normal(3), dtypes=DOUBLE, orders=0)],
}  # fmt: skip
