"""Samples for the rules of rules/collective.py: programs under shard_map on whatever devices there are.

With four devices the mesh is 2 x 2; with one device the collectives are trivial, the plumbing is not.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import primitives as p
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from tapejax.verify.samples.base import normal, sample

BOTH = ("float64", "complex128")
ONE = ("float64",)


def mesh():
    """The axes a and b over the first four devices, or over one."""
    n = 2 if len(jax.devices()) >= 4 else 1
    return jax.make_mesh((n, n), ("a", "b"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[: n * n])


def mapped(body, in_specs, out_specs, **options):
    @functools.wraps(body)
    def function(*args):
        return jax.shard_map(body, mesh=mesh(), in_specs=in_specs, out_specs=out_specs, **options)(*args)

    return function


def both(body, in_specs, out_specs, *arguments, dtypes=ONE, **options):
    """The same program with and without checked types."""
    return [
        sample(mapped(body, in_specs, out_specs, check_vma=check), *arguments, dtypes=dtypes, **options)
        for check in (True, False)
    ]


def one(function, *arguments, dtypes=ONE, **options):
    return sample(function, *arguments, dtypes=dtypes, **options)


def typed(body, in_specs, out_specs, *arguments, **options):
    """A program that only makes sense with checked types."""
    return [sample(mapped(body, in_specs, out_specs), *arguments, dtypes=BOTH, **options)]


def ring_attention_step(q, k, v):
    """Keys and values travel around the ring; the softmax is taken over all of them."""
    n = lax.axis_size("a")
    scores, values = [], []
    for _ in range(n):
        scores.append(q @ k.T)
        values.append(v)
        k, v = (lax.ppermute(t, "a", [(i, (i + 1) % n) for i in range(n)]) for t in (k, v))
    return jax.nn.softmax(jnp.concatenate(scores, 1)) @ jnp.concatenate(values)


def data_parallel_loss(w, x, y):
    return lax.pmean(jnp.mean((jnp.tanh(x @ w) - y) ** 2), ("a", "b"))


def tensor_parallel(x, up, down):
    """A two-layer network with its hidden units spread over devices."""
    return lax.psum(jnp.tanh(x @ up) @ down, "b")


def looped(x, w):
    step = lambda h, w: (jnp.tanh(h + lax.psum(h * w, "a")), h)
    h = lax.pcast(x, "b", to="varying") if lax.axis_size("b") > 1 else x
    return lax.psum(lax.scan(step, h, w)[0], "b")


def to_first(x):
    """The last device's x on the first one, zeros elsewhere."""
    return lax.ppermute(x, "a", [(lax.axis_size("a") - 1, 0)])


def around(x):
    return lax.pshuffle(x, "a", range(lax.axis_size("a"))[::-1])


def as_parts(w):
    return lax.pcast(lax.pcast(jnp.sin(w), "a", to="reduced"), "a", to="varying")


def gathered_parts(x):
    whole = lax.all_gather(jnp.sin(x), "a", tiled=True, to="reduced")
    return lax.pcast(whole, "a", to="varying")[:2] * x


X, Y, BOTH_AXES = P("a"), P(None, "b"), P(("a", "b"))
unchecked = functools.partial(mapped, check_vma=False)

SAMPLES = {
    "shard_map": [
        *both(lambda x, w: jnp.tanh(x @ w), (X, Y), P("a", "b"), normal(4, 3), normal(3, 4)),
        *both(data_parallel_loss, (P(), BOTH_AXES, BOTH_AXES), P(), normal(3), normal(8, 3), normal(8)),
        *both(tensor_parallel, (X, Y, P("b")), X, normal(4, 3), normal(3, 4), normal(4, 2)),
        *both(ring_attention_step, (X, X, X), X, normal(4, 3), normal(4, 3), normal(4, 3)),
        *both(lambda x: (jnp.sum(jnp.sin(x)) * x, 2.0 * x), X, (X, X), normal(4, 2)),
        # A result that is the same on all devices, put side by side.
        *both(lambda x, w: (jnp.exp(w)[None], jnp.exp(w) * x), (X, P()), (X, X), normal(4), normal()),
        *both(lambda x, w: jnp.sin(x) * w, (P(), P()), P(), normal(3), normal()),
        # Only one of the mesh's axes is manual; programs inside the program.
        one(mapped(lambda x, w: lax.psum(jnp.sin(x) * w, "a"), (X, P()), P(), axis_names={"a"}), normal(4), normal()),
        one(mapped(lambda x: jax.nn.relu(x) * jax.nn.logsumexp(x), X, X), normal(4, 2), finite=False),
        one(unchecked(looped, (X, P(None, ("a", "b"))), X), normal(4, 2), normal(3, 8, 2)),
        one(mapped(looped, (X, P(None, ("a", "b"))), X), normal(4, 2), normal(3, 8, 2)),
    ],
    p.psum_p: [
        one(unchecked(lambda x: lax.psum(jnp.sin(x), "a") * x, X, X), normal(4, 2)),
        one(unchecked(lambda x: lax.psum(jnp.sin(x), ("a", "b")), P(("b", "a")), P()), normal(4), dtypes=BOTH),
    ],
    "psum_invariant": typed(lambda x: lax.psum(jnp.sin(x), ("a", "b")) * x, BOTH_AXES, BOTH_AXES, normal(4, 2)),
    "pvary": typed(lambda x, w: jnp.sin(w) * x, (X, P()), X, normal(4), normal()),
    p.all_gather_p: [
        *both(lambda x: lax.all_gather(jnp.sin(x), "a"), X, P(None, "a"), normal(4, 2), dtypes=BOTH),
        *both(lambda x: lax.all_gather(jnp.sin(x), ("a", "b"), axis=1, tiled=True), BOTH_AXES, BOTH_AXES, normal(4, 2)),
    ],
    "all_gather_invariant": [
        *typed(lambda x: lax.all_gather(jnp.sin(x), "a", to="invarying"), X, P(), normal(4, 2)),
        *typed(lambda x: lax.all_gather(jnp.sin(x), "a", axis=1, tiled=True, to="invarying"), X, P(), normal(4, 2)),
    ],
    "reduce_scatter": [
        *both(lambda x: lax.psum_scatter(jnp.sin(x), "a"), P(None, "a"), X, normal(2, 4)),
        *both(lambda x: lax.psum_scatter(jnp.sin(x), "a", scatter_dimension=1, tiled=True), X, X, normal(4, 2)),
    ],
    p.all_to_all_p: both(lambda x: lax.all_to_all(jnp.sin(x), "a", 1, 0, tiled=True), X, X, normal(4, 2), dtypes=BOTH),
    p.ppermute_p: [
        *both(lambda x: to_first(jnp.sin(x)), X, X, normal(4, 2)),
        *both(lambda x: around(jnp.sin(x)), X, X, normal(4), dtypes=BOTH),
    ],
    # Values whose sum over devices is not taken yet, and those whose cotangent is one.
    "preduced": typed(lambda x, w: as_parts(w) * x, (X, P()), X, normal(4), normal()),
}
# A program that has one of these has its transpose in its backward, and the second derivative goes through that.
SAMPLES |= dict.fromkeys(
    ("reduced_vary_cast", "reduced_vary_cast_p", "vary_unreduced_cast", "vary_unreduced_cast_p", "unreduced_psum"),
    SAMPLES["preduced"],
)
SAMPLES |= dict.fromkeys(("all_gather_reduced", "unreduced_reduce_scatter"), typed(gathered_parts, X, X, normal(4, 2)))
