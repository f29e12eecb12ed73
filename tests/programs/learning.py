"""What people train: networks, recurrent and attention layers."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from tests.programs import Draw, program

draw = Draw(1)


def layer_norm(x, scale, bias):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-6) * scale + bias


def attention(x, p, heads):
    t, d = x.shape
    q, k, v = (jnp.moveaxis((x @ p[n]).reshape(t, heads, d // heads), 1, 0) for n in ("q", "k", "v"))
    scores = jnp.einsum("hqd,hkd->hqk", q, k) / jnp.sqrt(d // heads)
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -jnp.inf)
    mixed = jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores), v)
    return jnp.moveaxis(mixed, 0, 1).reshape(t, d) @ p["o"]


def block(x, p, heads=2):
    x = x + attention(layer_norm(x, p["s1"], p["b1"]), p, heads)
    return x + jax.nn.gelu(layer_norm(x, p["s2"], p["b2"]) @ p["w1"] + p["c1"]) @ p["w2"] + p["c2"]


def block_params(draw, d):
    square = {n: draw.normal(d, d) / d**0.5 for n in ("q", "k", "v", "o")}
    norms = {n: draw.normal(d) for n in ("s1", "b1", "s2", "b2", "c2")}
    return square | norms | {"w1": draw.normal(d, 2 * d) / 2, "c1": draw.normal(2 * d), "w2": draw.normal(2 * d, d) / 2}


@program(block_params(draw, 4), draw.normal(2, 3, 4), draw.normal(4, 5), draw.ints(2, 3, high=5), jit=True)
def transformer_block(p, x, head, labels):
    logits = jax.vmap(lambda row: block(row, p))(x) @ head
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
    return -picked.mean()


# jax computes the softmax of this one in float32, whatever the operands.
@program(draw.normal(2, 3, 2, 4), draw.normal(2, 3, 2, 4), draw.normal(2, 3, 2, 4), rtol=1e-6)
def dot_product_attention(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


@program(
    draw.normal(2, 8, 8, 2),
    draw.normal(3, 3, 2, 4),
    draw.normal(4),
    draw.normal(4),
    draw.normal(3, 3, 2, 4),
    draw.normal(16, 3),
)
def conv_net(x, k1, scale, shift, k2, out):
    conv = functools.partial(lax.conv_general_dilated, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    h = conv(x, k1, (1, 1), "SAME")
    mean, var = h.mean((0, 1, 2)), h.var((0, 1, 2))
    h = jax.nn.relu((h - mean) / jnp.sqrt(var + 1e-5) * scale + shift)
    h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    h = jax.nn.silu(conv(h, k2, (1, 1), "SAME", feature_group_count=2))
    h = lax.reduce_window(h, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    return jax.nn.logsumexp(h.reshape(2, -1) @ out, axis=-1)


@program(
    draw.normal(5, 2, 3),
    draw.normal(3, 16),
    draw.normal(4, 16),
    draw.normal(16),
    draw.normal(2, 4),
    draw.normal(2, 4),
    small=True,
    jit=True,
)
def lstm(xs, w, u, b, h, c):
    def step(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x @ w + h @ u + b, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return lax.scan(step, (h, c), xs)


@program(draw.normal(5, 3), draw.normal(3, 12), draw.normal(4, 12), draw.normal(12), draw.normal(4))
def gru(xs, w, u, b, h):
    def step(h, x):
        xi, hi = jnp.split(x @ w + b, 3), jnp.split(h @ u, 3)
        r, z = jax.nn.sigmoid(xi[0] + hi[0]), jax.nn.sigmoid(xi[1] + hi[1])
        h = (1 - z) * jnp.tanh(xi[2] + r * hi[2]) + z * h
        return h, h.sum()

    return lax.scan(step, h, xs, reverse=True, unroll=2)


@program(draw.normal(6, 3), draw.normal(3, 3), draw.normal(3, 2), draw.normal(3, 2), draw.positive(3, 2))
def selective_scan(x, w_step, w_b, w_c, a):
    step = jax.nn.softplus(x @ w_step)[..., None]
    decay = jnp.exp(-step * a)
    drive = step * (x @ w_b)[:, None, :] * x[..., None]
    _, h = lax.associative_scan(lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1]), (decay, drive))
    return jnp.einsum("tdn,tn->td", h, x @ w_c)


@program(draw.normal(5, 3), draw.normal(3, 4), draw.normal(8, 4), draw.ints(7, high=5), draw.ints(7, high=5), jit=True)
def graph_net(nodes, w, m, senders, receivers):
    h = jnp.tanh(nodes @ w)
    messages = jax.nn.relu(jnp.concatenate([h[senders], h[receivers]], -1) @ m)
    summed = jax.ops.segment_sum(messages, receivers, 5)
    largest = jax.ops.segment_max(messages, receivers, 5)
    largest = jnp.where(jnp.isfinite(largest), largest, 0.0)
    scores = jax.ops.segment_sum(jnp.exp(messages), senders, 5) + jax.ops.segment_min(messages, senders, 8)[:5].clip(
        -2, 2
    )
    return jnp.concatenate([h, summed, largest, scores], -1)


@program(draw.normal(3, 4), draw.normal(2, 3), draw.normal(3, 4), draw.normal(3))
def checkpointed(w, x, v, b):
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable

    @functools.partial(jax.checkpoint, policy=policy)
    def one(x):
        return jnp.tanh(x @ w) @ v.T + b

    @jax.checkpoint
    def two(x):
        return jnp.sin(one(x)) * one(x * 2)

    def body(x, _):
        return jax.checkpoint(one, policy=jax.checkpoint_policies.nothing_saveable)(x), two(x).sum()

    return lax.scan(body, x, None, length=3)


@jax.custom_vjp
def clipped(x, limit):
    return x * 1.0


clipped.defvjp(
    lambda x, limit: (x * 1.0, limit), lambda limit, ct: (jnp.clip(ct, -limit, limit), jnp.zeros_like(limit))
)


@jax.custom_jvp
def soft(x, beta):
    return jnp.log1p(jnp.exp(beta * x)) / beta


@soft.defjvp
def _soft_jvp(primals, tangents):
    (x, beta), (dx, dbeta) = primals, tangents
    return soft(x, beta), jax.nn.sigmoid(beta * x) * dx + 0.5 * jnp.cos(x) * dbeta


@program(draw.normal(4, 3), draw.normal(3), draw.positive(), small=True, jit=True)
def custom_rules_inside(xs, h, beta):
    def step(h, x):
        h = clipped(h * x, 0.3) + soft(h, beta)
        return h, clipped(h, beta)

    return jax.vmap(lambda xs, h: lax.scan(step, h, xs), in_axes=(1, 0))(xs, h)
