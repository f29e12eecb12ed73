"""Samples: loops."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import primitives as p

from tapejax.verify.samples.base import ALL, distinct, integers, normal, positive, sample

DOUBLE = ("float64",)


def rnn(h, w, xs, **options):
    """The new state is also the output: nothing needs to be kept besides."""

    def body(h, x):
        h = jnp.tanh(w @ h + x)
        return h, h

    return lax.scan(body, h, xs, **options)


def mixed(h, w, b, xs, **options):
    """An integer carry, work that no step changes, outputs of several kinds."""

    def body(carry, x):
        i, h = carry
        h = jnp.sin(jnp.exp(w) @ w @ h) * x[0] + i * b
        return (i + 1, h), (h.sum(), x * jnp.exp(h), i)

    return lax.scan(body, (0, h), xs, **options)


def lstm(h, c, w, u, b, xs):
    def body(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x @ w + h @ u + b, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return lax.scan(body, (h, c), xs)


def selective_ssm(a, x, dt, b, c):
    """A state space model whose step sizes and maps depend on the input."""

    def body(h, step):
        x, dt, b, c = step
        h = jnp.exp(dt[:, None] * a) * h + (dt * x)[:, None] * b
        return h, h @ c

    return lax.scan(body, jnp.zeros_like(a), (x, dt, b, c))


def nested(x, w):
    def outer(c, _):
        d, ys = lax.scan(lambda d, y: (jnp.cos(d * w) + y * c, d), c, jnp.stack([c, c * 2, w]))
        return d, ys.sum(0)

    return lax.scan(outer, x, None, length=3)


def two_carries(x, y, xs):
    """The second carry becomes active only in the second step, and the ys ignore the first."""

    def body(carry, z):
        a, b, n = carry
        return (a * z, b + lax.stop_gradient(a) * z, n), jnp.sin(b) + n

    return lax.scan(body, (x, jnp.zeros(()), y), xs)


def with_branches(x, w):
    def body(c, _):
        c = lax.cond(c[0] > 0, lambda c: jnp.sin(c) @ w, lambda c: c * w[0], c)
        return c, lax.switch(jnp.int32(3 * jnp.abs(c[1])), [jnp.sin, jnp.cos, jnp.tanh], c)

    return lax.scan(body, x, None, length=4)


def heun(y, w):
    """A fixed number of steps of an ODE solver."""
    slope = lambda y, t: jnp.tanh(y @ w) * jnp.cos(t)

    def step(i, y):
        k = slope(y, i * 0.1)
        return y + 0.05 * (k + slope(y + 0.1 * k, (i + 1) * 0.1))

    return lax.fori_loop(0, 5, step, y)


def unchanged(x, n):
    """A while whose only active carry is one that no step changes."""
    return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1], c[2] * 2), (0, jnp.sin(x), 1.0))[1:]


SAMPLES = {
    p.scan_p: [
        sample(rnn, normal(3), normal(3, 3), normal(5, 3), dtypes=ALL),
        # A batch much smaller than the width: weight gradients are products after the loop.
        sample(
            lstm, normal(1, 4), normal(1, 4), normal(5, 16), normal(4, 16), normal(16), normal(3, 1, 5),
            dtypes=DOUBLE,
        ),
        sample(selective_ssm, normal(3, 2), normal(4, 3), positive(4, 3), normal(4, 2), normal(4, 2), dtypes=DOUBLE),
        sample(lambda *a: rnn(*a, reverse=True), normal(3), normal(3, 3), normal(5, 3), dtypes=DOUBLE),
        sample(rnn, normal(2), normal(2, 2), normal(1, 2), dtypes=DOUBLE),
        sample(rnn, normal(2), normal(2, 2), normal(0, 2), dtypes=DOUBLE),
        sample(mixed, normal(3), normal(3, 3), normal(3), normal(4, 3), dtypes=DOUBLE),
        sample(
            lambda *a: rnn(*a, reverse=True, unroll=2)[1], normal(2), normal(2, 2), normal(3, 2), dtypes=DOUBLE,
        ),
        sample(lambda *a: mixed(*a)[1][0], normal(3), normal(3, 3), normal(3), normal(4, 3), dtypes=DOUBLE),
        sample(lambda *a: rnn(*a, unroll=True)[0], normal(3), normal(3, 3), normal(3, 3), dtypes=DOUBLE),
        sample(nested, normal(2), normal(2), dtypes=DOUBLE),
        sample(two_carries, normal(), normal(), normal(3), dtypes=DOUBLE, finite=False),  # stop_gradient
        sample(with_branches, normal(3), normal(3, 3), dtypes=DOUBLE),
        sample(heun, normal(3), normal(3, 3), dtypes=DOUBLE),
        sample(lambda xs: lax.map(lambda x: jnp.sin(x) * x, xs), normal(4, 2), dtypes=DOUBLE),
        sample(
            lambda x: lax.associative_scan(lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (x, jnp.sin(x))),
            normal(5, 2), dtypes=DOUBLE,
        ),
        sample(jnp.polyval, normal(4), normal(3), dtypes=DOUBLE),
        sample(lambda xs, i: jax.vmap(lambda x: lax.scan(lambda c, j: (c * x[j], c), x[0], i))(xs),
               distinct(2, 3), integers([2, 0, 1]), dtypes=DOUBLE),
    ],
    p.while_p: [
        sample(unchanged, normal(3), integers(4), dtypes=DOUBLE),
    ],
}  # fmt: skip
