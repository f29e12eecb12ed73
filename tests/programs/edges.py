"""Small programs at the edges: nothing in them, one of them, ties, infinities, constants, odd carries."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.programs import Draw, program

draw = Draw(4)
inner = jax.jit(lambda a, b: jnp.sin(a) * b)


@program(draw.normal(0, 3), draw.normal(3, 2), draw.normal(2))
def empty(x, y, h):
    looped = lax.scan(lambda h, row: (h * 2.0, h * row[:2]), h, x)
    return x.sum(0), x @ y, jnp.concatenate([x, x * 2]), jnp.sort(x), jax.nn.softmax(x, axis=1), x.prod(), looped


@program(draw.normal(1, 1), draw.normal())
def single(x, s):
    return x.max(1), x.prod(0), jnp.squeeze(x), x.var(0), jnp.sort(x, 0), jnp.linalg.svd(x)[1], jnp.cumprod(x, 1), s * x


@program(
    {"x": draw.normal(3), "none": None}, draw.normal(3), draw.normal(2), draw.ints(3, high=3), small=True, jit=True
)
def inputs_and_outputs(tree, y, unused, i):
    x = tree["x"]
    same = inner(inner(x, y), inner(y, x))
    return {
        "in": x,
        "again": (x, None, x),
        "constant": (jnp.ones(2), 2.0, jnp.arange(3)),
        "picked": x[i] * i,
        "same": same,
    }


@program(np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.0, 1.0, 1.0, 0.0]))
def ties_and_kinks(x, y):
    return (
        jnp.abs(x), jax.nn.relu(x), jnp.maximum(x, y), jnp.minimum(x, y), jnp.clip(x, 0, 1), x.max(), x.min(), jnp.sort(x), lax.top_k(x, 2)[0],
        jnp.linalg.norm(x), jnp.sqrt(x * x), x**0, x**1, x**y, jnp.sinc(x), jnp.cumprod(x), x.prod(), jnp.median(x), lax.cummax(x), lax.pow(x, 3),
    )  # fmt: skip


@program(np.array([0.0, np.nan, np.inf, -np.inf, 1.0, -0.0]))
def not_finite(x):
    return (
        jnp.sqrt(x), jnp.log(x), x / x, jnp.where(x > 0, jnp.sqrt(x), 0.0), jnp.maximum(x, 0.0), jnp.exp(x), x.max(), jnp.sort(x), jnp.logaddexp(x, x),
        jax.nn.softmax(x), jnp.hypot(x, x), jnp.arctan2(x, x * 0),
    )  # fmt: skip


@program(draw.normal(5), draw.normal(2))
def out_of_bounds_and_twice(x, v):
    i = jnp.array([0, 0])
    return (
        lax.dynamic_slice(x, (3,), (3,)), lax.dynamic_update_slice(x, v, (4,)), x.at[10].set(1.0), x.at[10].add(x[0]), x[jnp.array([7, -1])],
        x.at[i].set(v), x.at[i].max(v), x.at[jnp.array([9])].get(mode="fill", fill_value=3.0),
    )  # fmt: skip


@program(draw.normal(5), draw.normal(), small=True, jit=True)
def odd_loops(x, w):
    integers = lax.scan(lambda c, a: ((c[0] + 1, c[1] * a, c[2]), (c[0] * a, c[0])), (0, 1.0, x[0]), x)
    passed = lax.scan(lambda c, a: ((c[1], c[0] * w, c[2]), (a, c[2])), (x[0], x[1], w), x, reverse=True)
    never = lax.scan(lambda h, _: (jnp.tanh(h * w), h), x, None, length=0)
    branch = lambda c, a: lax.cond(
        a > 0, lambda c: lax.scan(lambda d, b: (d * b + w, d), c, x[:2]), lambda c: (c, x[:2]), c
    )
    return (
        integers,
        passed,
        never,
        lax.scan(branch, w, x, unroll=2),
        lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1]), (0, 1.0))[1] * x,
    )


@program(draw.normal(3))
def derivatives_inside(x):
    g = lambda v: (jnp.sin(v) ** 2).sum()
    return (
        jax.hessian(g)(x),
        jax.jacrev(jnp.tanh)(x),
        jax.jvp(jnp.exp, (x,), (x,))[1],
        jax.linearize(jnp.sin, x)[1](x),
        jax.grad(g)(x),
    )


# Accuracy of the derivative of a gamma sample is what jax computes it to.
@program(draw.normal(3), rtol=1e-6, slow=True)
def samples(x):
    key, r = jax.random.key(1), jax.random
    positive = jnp.abs(x) + 1
    drawn = r.gamma(key, positive) + r.dirichlet(key, positive) + r.t(key, positive) + r.beta(key, positive, 2.0)
    return (
        drawn
        + r.normal(key, (3,)) * x
        + r.loggamma(key, positive)
        + r.truncated_normal(key, -positive, 1.0)
        + r.bernoulli(key, 0.5, (3,)) * x
    )
