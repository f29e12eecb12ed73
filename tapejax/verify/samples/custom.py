"""Samples: custom."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import linear_call
from jax.extend.core import primitives as p

from tapejax.verify.samples.base import (
    REAL,
    distinct,
    exactly,
    integers,
    normal,
    positive,
    sample,
    well_conditioned,
)

DOUBLE = ("float64",)

# Rules that are deliberately not the derivative, so that it shows whether they are called.


@jax.custom_jvp
def tripled(x):
    return jnp.sin(x)


@tripled.defjvp
def tripled_jvp(primals, tangents):
    return tripled(primals[0]), 3 * tangents[0] * jnp.cos(primals[0])


@jax.custom_jvp
def polar(x, y, n):
    """Two results, and an operand that is an integer."""
    return jnp.hypot(x, y) * n, jnp.arctan2(y, x)


@polar.defjvp
def polar_jvp(primals, tangents):
    (x, y, n), (dx, dy, _) = primals, tangents
    r = jnp.hypot(x, y)
    return polar(x, y, n), (n * (x * dx + y * dy) / r, (x * dy - y * dx) / r**2)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def applied(f, x):
    return f(x) ** 2


@applied.defjvp
def applied_jvp(f, primals, tangents):
    (x,), (t,) = primals, tangents
    y, slope = jax.jvp(f, (x,), (t,))
    return y**2, 2 * y * slope


@jax.custom_jvp
def sparse(x, y):
    return x * y


@partial(sparse.defjvp, symbolic_zeros=True)
def sparse_jvp(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    found = 0 if isinstance(dx, jax.custom_derivatives.SymbolicZero) else 5 * dx * y
    return x * y, found + (0 if isinstance(dy, jax.custom_derivatives.SymbolicZero) else 7 * dy * x)


@jax.custom_vjp
def clipped(tree, limit):
    """A pytree in, a pytree out; no cotangent for the limit."""
    return {"a": jnp.sin(tree["a"]), "b": tree["a"] @ tree["b"]}


def clipped_fwd(tree, limit):
    return clipped(tree, limit), (tree, limit)


def clipped_bwd(kept, cts):
    tree, limit = kept
    return {"a": jnp.clip(cts["a"] * jnp.cos(tree["a"]), -limit, limit), "b": 2 * jnp.outer(tree["a"], cts["b"])}, None


clipped.defvjp(clipped_fwd, clipped_bwd)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def scaled(x, factor):
    return x


scaled.defvjp(lambda x, factor: (x, None), lambda factor, _, ct: (ct * factor,))


def root(x, a):
    """y with a y + y**3 / 10 = x"""
    f = lambda y: a @ y + 0.1 * y**3 - x

    def newton(f, y):
        step = lambda y, _: (y - jnp.linalg.solve(jax.jacobian(f)(y), f(y)), None)
        return lax.scan(step, y, None, length=8)[0]

    return lax.custom_root(f, jnp.zeros_like(x), newton, lambda g, y: jnp.linalg.solve(jax.jacobian(g)(y), y))


def in_a_loop(x, y):
    def body(c, _):
        c = tripled(c) + scaled(c, 0.5) * jax.nn.softplus(y)
        return c, applied(jnp.sin, c)

    return lax.scan(body, x, None, length=3)


def nested(x):
    return applied(lambda y: tripled(y) * clipped({"a": y, "b": jnp.ones((3, 2))}, 0.1)["a"], x)


SAMPLES = {
    p.custom_jvp_call_p: [
        sample(jax.nn.relu, exactly([-1.0, 0.0, 2.0]), dtypes=REAL, finite=False),
        sample(jax.nn.logsumexp, normal(2, 3), dtypes=DOUBLE),
        sample(jax.nn.softplus, normal(3), dtypes=REAL),
        sample(jnp.logaddexp, normal(3), normal(2, 1), dtypes=("float64", "complex128")),
        sample(jnp.sinc, exactly([-0.5, 0.0, 0.3]), dtypes=DOUBLE),
        sample(tripled, normal(3), dtypes=DOUBLE, finite=False),
        sample(polar, positive(3), positive(3), integers(2), dtypes=DOUBLE),
        sample(lambda x: polar(x, 2.0, 3)[1], positive(3), dtypes=DOUBLE),
        sample(lambda x: applied(jnp.tanh, x), normal(3), dtypes=DOUBLE),
        sample(sparse, normal(3), normal(3), dtypes=DOUBLE, finite=False),
        sample(lambda x: sparse(x, jnp.arange(3.0)), normal(3), dtypes=DOUBLE, finite=False),
        # jax 0.10 forgets a custom_jvp in a scan at second order (0.12 does not): the tests unroll it.
        sample(in_a_loop, normal(3), normal(3), dtypes=DOUBLE, finite=False, orders=1),
        sample(jax.vmap(in_a_loop, (0, None)), normal(2, 3), normal(3), dtypes=DOUBLE, finite=False, orders=1),
        sample(lambda x: applied(lambda y: lax.scan(lambda c, z: (c * z, c), 1.0, y)[1], x), distinct(3), dtypes=DOUBLE),
    ],
    p.custom_vjp_call_p: [
        sample(
            lambda a, b: clipped({"a": a, "b": b}, 0.3), normal(3), normal(3, 2), dtypes=("float64", "float32"),
            finite=False,
        ),
        sample(lambda a, b: clipped({"a": a, "b": b}, 0.3)["b"], normal(3), normal(3, 2), dtypes=DOUBLE, finite=False),
        sample(lambda x: jnp.sin(scaled(x, 3.0)), normal(3), dtypes=DOUBLE, finite=False),
        sample(nested, normal(3), dtypes=DOUBLE, finite=False),
    ],
    "call_hi_primitive": [
        sample(root, normal(3), well_conditioned(3), dtypes=DOUBLE),
        sample(
            lambda x: lax.custom_root(lambda y: y**2 - x, x, lambda f, z: jnp.sqrt(x), lambda g, y: y / g(1.0)),
            positive(), dtypes=DOUBLE,
        ),
    ],
    "linear_call": [
        sample(
            lambda x, y: linear_call(lambda r, v: v * r, lambda r, ct: 5 * ct * r, jnp.cos(lax.stop_gradient(y)), x),
            normal(3), normal(3), dtypes=DOUBLE, finite=False,
        ),
    ],
}  # fmt: skip
