"""Correct functions that are hard on a judge: solvers, callbacks, kernels, sharding, graphs, sampling, zero gradients.

Each entry of CASES is a library and a function that returns (function, arguments). verify must stay silent on all of them;
those whose library is not installed are skipped. None was used to choose a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

CASES: dict[str, tuple[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]]] = {}


def normal(*shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.asarray(np.random.default_rng(seed).standard_normal(shape), dtype))


def positive(*shape, seed=0):
    return jnp.asarray(np.asarray(np.random.default_rng(seed).uniform(0.5, 1.5, shape), jnp.float32))


def spd(n, seed=0):
    a = np.random.default_rng(seed).standard_normal((n, n))
    return jnp.asarray(np.asarray(a @ a.T + n * np.eye(n), jnp.float32))


def case(library: str):
    def add(make):
        CASES[f"{library}: {make.__name__}"] = (library, make)
        return make

    return add


def simple(library: str, name: str, function: Callable[..., Any], *args: Any) -> None:
    CASES[f"{library}: {name}"] = (library, lambda: (function, args))


# --- jax: indices, reductions, zeros ---------------------------------------------------------------------------

INDEX = jnp.array([0, 2, 0, 1])
simple("jax", "segment_sum", lambda x: jax.ops.segment_sum(x, INDEX, 3), normal(4))
simple("jax", "segment_sum to a loss", lambda x: jnp.sum(jnp.sin(jax.ops.segment_sum(x, INDEX, 3))), normal(4, 2))
simple("jax", "segment_max", lambda x: jax.ops.segment_max(x, INDEX, 3), normal(4))
simple("jax", "segment_prod", lambda x: jax.ops.segment_prod(x, INDEX, 3), positive(4))
simple("jax", "zeros.at.add", lambda x: jnp.zeros(3).at[INDEX].add(x) ** 2, normal(4))
simple("jax", "at.mul", lambda x, v: x.at[jnp.array([0, 2])].mul(v), normal(4), normal(2, seed=1))
simple("jax", "at.max", lambda x, v: x.at[jnp.array([0, 2])].max(v), normal(4), normal(2, seed=1))
simple("jax", "at.set", lambda x, v: x.at[jnp.array([0, 2])].set(v) ** 2, normal(4), normal(2, seed=1))
simple("jax", "reduce by a product", lambda x: lax.reduce(x, jnp.float32(1), lambda a, b: a * b, (0,)), positive(4))
simple("jax", "reduce by max", lambda x: lax.reduce(x, -jnp.inf, lax.max, (0,)), normal(4, 3))
simple("jax", "reduce_window add", lambda x: lax.reduce_window(x, 0.0, lax.add, (2,), (1,), "VALID") ** 2, normal(5))
simple(
    "jax",
    "average pool",
    lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 2), (1, 2, 2), "SAME") / 4,
    normal(2, 4, 4),
)
simple("jax", "softmax shift", lambda x, b: jax.nn.softmax(x + b)[0], normal(5), jnp.float32(0.3))
simple(
    "jax",
    "logits shifted by a bias",
    lambda x, b: jnp.sum(jax.nn.softmax(x + b) * jnp.arange(5.0)),
    normal(3, 5),
    normal(),
)
simple(
    "jax",
    "bias before a normalisation",
    lambda x, b: jnp.sum(jax.nn.standardize(x + b) ** 3),
    normal(4, 6),
    normal(seed=1),
)
simple("jax", "mean of centred", lambda x: jnp.sum((x - x.mean()) * 1.0), normal(7))
simple("jax", "sum of softmax", lambda x: jnp.sum(jax.nn.softmax(x)), normal(7))
simple("jax", "cosine similarity with itself", lambda x: x @ x / jnp.linalg.norm(x) ** 2, normal(5))


@case("jax")
def attention_key_bias():
    def loss(x, wq, wk, bk):
        q, k = x @ wq, x @ wk + bk
        return jnp.sum((jax.nn.softmax(q @ k.T / 2.0) @ x) ** 2)

    return loss, (normal(5, 4), normal(4, 4, seed=1), normal(4, 4, seed=2), jnp.zeros(4))


@case("jax")
def transformer_block():
    def norm(x, s, b):
        return jax.nn.standardize(x) * s + b

    def loss(p, x):
        h = norm(x, p["s1"], p["b1"])
        q, k, v = (h @ p[n] + p["b" + n] for n in "qkv")
        x = x + jax.nn.softmax(q @ k.T / jnp.sqrt(8.0)) @ v @ p["o"]
        h = norm(x, p["s2"], p["b2"])
        x = x + jax.nn.gelu(h @ p["up"]) @ p["down"]
        return -jnp.mean(jax.nn.log_softmax(x)[jnp.arange(6), jnp.arange(6)])

    p = {n: normal(8, 8, seed=i) * 0.3 for i, n in enumerate("qkvo")}
    p |= {f"b{n}": jnp.zeros(8) for n in "qkv"} | {
        "s1": jnp.ones(8),
        "s2": jnp.ones(8),
        "b1": jnp.zeros(8),
        "b2": jnp.zeros(8),
    }
    p |= {"up": normal(8, 16, seed=7) * 0.3, "down": normal(16, 8, seed=8) * 0.3}
    return loss, (p, normal(6, 8, seed=9))


# --- jax: what cannot be widened ---------------------------------------------------------------------------------


@case("jax")
def pure_callback():
    @jax.custom_vjp
    def sine(x):
        return jax.pure_callback(
            lambda v: np.sin(v), jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential"
        )

    sine.defvjp(lambda x: (sine(x), x), lambda x, ct: (ct * jnp.cos(x),))
    return lambda x: jnp.sum(sine(x) ** 2), (normal(4),)


@case("jax")
def pallas():
    from jax.experimental import pallas as pl

    def kernel(x_ref, y_ref, o_ref):
        o_ref[...] = jnp.tanh(x_ref[...]) * y_ref[...]

    def run(x, y):
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x, y)

    f = jax.custom_vjp(run)
    f.defvjp(
        lambda x, y: (run(x, y), (x, y)), lambda r, ct: (ct * r[1] * (1 - jnp.tanh(r[0]) ** 2), ct * jnp.tanh(r[0]))
    )
    return lambda x, y: jnp.sum(jnp.sin(f(x, y))), (normal(8), normal(8, seed=1))


@case("jax")
def shard_map():
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    f = jax.shard_map(lambda x, w: lax.psum(jnp.tanh(x @ w), "d"), mesh=mesh, in_specs=(P("d"), P()), out_specs=P())
    return lambda x, w: jnp.sum(f(x, w) ** 2), (normal(4, 3), normal(3, 2, seed=1))


@case("jax")
def reduce_precision():
    return lambda x: jnp.sum(lax.reduce_precision(jnp.sin(x), 8, 23) * x), (normal(4),)


# --- jax: solvers -------------------------------------------------------------------------------------------------

simple("jax", "linear solve", jnp.linalg.solve, spd(3), normal(3))
simple(
    "jax",
    "cho_solve",
    lambda a, b: jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor((a + a.T) / 2), b),
    spd(3),
    normal(3),
)
simple("jax", "cg", lambda a, b: jax.scipy.sparse.linalg.cg(lambda v: a @ v, b)[0], spd(3), normal(3))
simple("jax", "gmres", lambda a, b: jax.scipy.sparse.linalg.gmres(lambda v: a @ v, b)[0], spd(3), normal(3))
simple("jax", "cholesky of a product", lambda a: jnp.sum(jnp.linalg.cholesky(a @ a.T + jnp.eye(3)) ** 2), normal(3, 3))
simple("jax", "eigh values", lambda a: jnp.linalg.eigh((a + a.T) / 2)[0], spd(3))
simple("jax", "svd", lambda a: jnp.linalg.svd(a, compute_uv=False), normal(3, 4))
simple("jax", "logdet", lambda a: jnp.linalg.slogdet(a)[1], spd(4))


@case("jax")
def custom_root():
    def root(a):
        def newton(f, x):
            return lax.fori_loop(0, 30, lambda _, v: v - f(v) / (3 * v**2), x)

        return lax.custom_root(lambda x: x**3 - a, jnp.float32(1.0), newton, lambda g, y: y / g(1.0))

    return root, (jnp.float32(2.0),)


@case("jax")
def fixed_point_by_implicit_differentiation():
    @jax.custom_vjp
    def fixed(w, x):
        def more(state):
            z, old, n = state
            return (jnp.max(jnp.abs(z - old)) > 1e-6) & (n < 200)

        def step(state):
            z, _, n = state
            return jnp.tanh(w @ z + x), z, n + 1

        return lax.while_loop(more, step, (x, x + 1, 0))[0]

    def forward(w, x):
        z = fixed(w, x)
        return z, (w, x, z)

    def backward(kept, ct):
        w, x, z = kept
        slope = 1 - jnp.tanh(w @ z + x) ** 2
        u = jnp.linalg.solve(jnp.eye(3) - (slope[:, None] * w).T, ct) * slope
        return jnp.outer(u, z), u

    fixed.defvjp(forward, backward)
    return lambda w, x: jnp.sum(fixed(w, x) ** 2), (normal(3, 3) * 0.2, normal(3, seed=1))


@case("jax")
def minimum_by_implicit_differentiation():
    @jax.custom_vjp
    def ridge(a, b):
        return lax.fori_loop(0, 400, lambda _, w: w - 0.1 * (a.T @ (a @ w - b) + w), jnp.zeros(2))

    def backward(kept, ct):
        a, b, w = kept
        u = jnp.linalg.solve(a.T @ a + jnp.eye(2), ct)
        return jnp.outer(b - a @ w, u) - jnp.outer(a @ u, w), a @ u

    ridge.defvjp(lambda a, b: ((w := ridge(a, b)), (a, b, w)), backward)
    return lambda a, b: jnp.sum(ridge(a, b) ** 2), (normal(4, 2), normal(4, seed=1))


@case("jax")
def odeint():
    from jax.experimental.ode import odeint

    f = lambda y, t, a: -a * y + jnp.sin(t)
    return lambda y0, a: odeint(f, y0, jnp.array([0.0, 0.5, 1.0]), a), (normal(2), positive())


@case("jax")
def bfgs():
    from jax.scipy.optimize import minimize

    @jax.custom_vjp
    def solve(a):
        return minimize(lambda x: jnp.sum((x - a) ** 2 + 0.1 * x**4), jnp.zeros(2), method="BFGS").x

    def backward(kept, ct):
        x = kept
        return (2 * ct / (2 + 1.2 * x**2),)

    solve.defvjp(lambda a: ((x := solve(a)), x), backward)
    return lambda a: jnp.sum(jnp.sin(solve(a))), (normal(2),)


# --- jax: sampling, loops, branches, precision -------------------------------------------------------------------------

KEY = jax.random.key(0)
simple(
    "jax",
    "reparametrised normal",
    lambda m, s: jnp.sum((m + s * jax.random.normal(KEY, (5,))) ** 2),
    normal(),
    positive(),
)
simple("jax", "gamma sample", lambda a: jax.random.gamma(KEY, a), positive(4))
simple("jax", "beta sample", lambda a, b: jax.random.beta(KEY, a, b), positive(3), positive(3, seed=1))
simple("jax", "dirichlet sample", lambda a: jax.random.dirichlet(KEY, a), positive(3))
simple("jax", "gumbel softmax", lambda x: jax.nn.softmax((x + jax.random.gumbel(KEY, (4,))) / 0.5), normal(4))
simple("jax", "dropout", lambda x: jnp.where(jax.random.bernoulli(KEY, 0.7, (6,)), x / 0.7, 0.0).sum(), normal(6))
simple("jax", "truncated normal", lambda m: m * jax.random.truncated_normal(KEY, -1.0, 1.0, (3,)), normal())
simple(
    "jax",
    "scan with carried key",
    lambda x: lax.scan(lambda c, k: (c * 0.9 + jax.random.normal(k) * x, c), x, jax.random.split(KEY, 4))[0],
    normal(),
)
simple("jax", "vmapped cond", jax.vmap(lambda x: lax.cond(x > 0, jnp.sin, jnp.cos, x)), normal(5))
simple("jax", "switch", lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, jnp.tanh], x), 1, normal(3))
simple(
    "jax",
    "scan over layers",
    lambda w, x: lax.scan(lambda h, m: (jnp.tanh(h @ m), None), x, w)[0].sum(),
    normal(3, 4, 4) * 0.5,
    normal(2, 4, seed=1),
)
simple(
    "jax",
    "checkpointed scan",
    lambda x: lax.scan(jax.checkpoint(lambda c, v: (jnp.sin(c + v), c)), jnp.float32(0), x)[0],
    normal(5),
)
simple("jax", "logsumexp with -inf", lambda x: jax.nn.logsumexp(jnp.where(jnp.arange(5) < 3, x, -jnp.inf)), normal(5))
simple(
    "jax",
    "masked attention",
    lambda q, k: jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((4, 4))) > 0, q @ k.T, -jnp.inf)),
    normal(4, 3),
    normal(4, 3, seed=1),
)
simple("jax", "erf_inv", jax.scipy.special.erfinv, normal(4) * 0.3)
simple("jax", "betainc", lambda x: jax.scipy.special.betainc(2.0, 3.0, x), positive(3) * 0.5)
simple("jax", "gammainc", lambda x: jax.scipy.special.gammainc(2.0, x), positive(3))
simple("jax", "top_k", lambda x: lax.top_k(x, 3)[0] ** 2, normal(7))
simple("jax", "sort", lambda x: jnp.sort(x) * jnp.arange(6.0), normal(6))
simple("jax", "fft", lambda x: jnp.abs(jnp.fft.rfft(x)) ** 2, normal(6))
simple(
    "jax", "convolution", lambda x, w: lax.conv(x, w, (1, 1), "SAME"), normal(1, 2, 5, 5), normal(3, 2, 3, 3, seed=1)
)
simple(
    "jax",
    "max pool",
    lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2), (1, 2, 2), "VALID") ** 2,
    normal(2, 4, 4),
)
simple(
    "jax",
    "complex product",
    lambda z, w: z * jnp.conj(w) + z**2,
    jnp.array([0.3 + 0.2j, 1 - 0.5j], jnp.complex64),
    jnp.array([1.0 + 1j, 0.2j], jnp.complex64),
)
simple(
    "jax",
    "map_coordinates",
    lambda x, c: jax.scipy.ndimage.map_coordinates(x, [c], order=1),
    normal(6),
    jnp.array([0.4, 2.3, 3.7]),
)
simple("jax", "resize", lambda x: jax.image.resize(x, (6, 6), "bilinear"), normal(3, 3))
simple(
    "jax",
    "matmul in bfloat16",
    lambda a, b: jnp.sum(jnp.matmul(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)).astype(jnp.float32) ** 2),
    normal(4, 5),
    normal(5, 3, seed=1),
)
simple("jax", "float16 layer norm", lambda x: jax.nn.standardize(x), normal(3, 8, dtype=jnp.float16))
simple(
    "jax",
    "sparse matvec",
    lambda d, v: jnp.zeros(3).at[jnp.array([0, 0, 2])].add(d * v[jnp.array([1, 2, 0])]),
    normal(3),
    normal(3, seed=1),
)
simple(
    "jax",
    "dot_product_attention",
    lambda q, k, v: jax.nn.dot_product_attention(q, k, v),
    normal(1, 4, 2, 3),
    normal(1, 4, 2, 3, seed=1),
    normal(1, 4, 2, 3, seed=2),
)
simple("jax", "ragged_dot", lambda a, b: lax.ragged_dot(a, b, jnp.array([2, 2])), normal(4, 3), normal(2, 3, 2, seed=1))
simple("jax", "polyfit", lambda y: jnp.polyfit(jnp.arange(5.0), y, 2), normal(5))
simple("jax", "quantile", lambda x: jnp.quantile(x, 0.3), normal(7))
simple("jax", "interp", lambda x, y: jnp.interp(x, jnp.arange(4.0), y), jnp.array([0.5, 1.7, 2.2]), normal(4))


@case("jax")
def cannot_be_traced():
    return lambda x: float(x[0] > 0) * jnp.sum(x**2) if not isinstance(x[0], jax.core.Tracer) else jnp.sum(x**2), (
        positive(3),
    )


@case("jax")
def bcoo():
    from jax.experimental import sparse

    indices = jnp.array([[0, 1], [1, 0], [2, 2]])
    return lambda d, v: sparse.BCOO((d, indices), shape=(3, 3)) @ v, (normal(3), normal(3, seed=1))


# --- optax ---------------------------------------------------------------------------------------------------------


def of_optax(name, make):
    def build():
        import optax

        return make(optax)

    build.__name__ = name
    case("optax")(build)


LABELS = jnp.array([0, 2, 1])
of_optax(
    "softmax cross entropy",
    lambda o: (lambda x: o.softmax_cross_entropy_with_integer_labels(x, LABELS).mean(), (normal(3, 4),)),
)
of_optax("huber", lambda o: (lambda x: o.huber_loss(x, jnp.zeros(5)).sum(), (normal(5),)))
of_optax("focal", lambda o: (lambda x: o.sigmoid_focal_loss(x, jnp.array([0.0, 1.0, 1.0])).sum(), (normal(3),)))
of_optax(
    "ctc",
    lambda o: (
        lambda x: o.ctc_loss(x, jnp.zeros((1, 6)), jnp.array([[1, 2, 1]]), jnp.zeros((1, 3))).sum(),
        (normal(1, 6, 4),),
    ),
)
of_optax("kl", lambda o: (lambda x: o.kl_divergence(jax.nn.log_softmax(x), jnp.full(4, 0.25)), (normal(4),)))
of_optax("ntxent", lambda o: (lambda x: o.ntxent(x, jnp.array([0, 1, 0, 1])), (normal(4, 3),)))
of_optax(
    "cosine distance", lambda o: (lambda x, y: o.cosine_distance(x, y).sum(), (normal(3, 4), normal(3, 4, seed=1)))
)
of_optax("projection simplex", lambda o: (lambda x: o.projections.projection_simplex(x) ** 2, (normal(4),)))


@case("optax")
def adam_step():
    import optax

    def after(w, x):
        opt = optax.adam(0.1)
        grad = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)
        updates, _ = opt.update(grad, opt.init(w), w)
        return jnp.sum(jnp.sin(x @ optax.apply_updates(w, updates)))

    return after, (normal(3), normal(4, 3, seed=1))


@case("optax")
def clipped_sgd_step():
    import optax

    def after(w, x):
        opt = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1, momentum=0.9))
        grad = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)
        updates, _ = opt.update(grad, opt.init(w), w)
        return jnp.sum(jnp.sin(x @ optax.apply_updates(w, updates)))

    return after, (normal(3), normal(4, 3, seed=1))


# --- equinox and flax ------------------------------------------------------------------------------------------------


def of_equinox(name, make):
    def build():
        import equinox

        return make(equinox.nn)

    build.__name__ = name
    case("equinox")(build)


of_equinox("linear", lambda n: (n.Linear(3, 2, key=KEY), (normal(3),)))
of_equinox("mlp", lambda n: (n.MLP(3, 2, 4, 2, key=KEY), (normal(3),)))
of_equinox("layer norm", lambda n: (n.LayerNorm(5), (normal(5),)))
of_equinox("group norm", lambda n: (n.GroupNorm(2, 4), (normal(4, 3),)))
of_equinox("rms norm", lambda n: (n.RMSNorm(5), (normal(5),)))
of_equinox("conv", lambda n: (n.Conv2d(1, 2, 3, key=KEY), (normal(1, 5, 5),)))
of_equinox("conv transpose", lambda n: (n.ConvTranspose1d(2, 2, 3, key=KEY), (normal(2, 5),)))
of_equinox("gru", lambda n: (n.GRUCell(3, 4, key=KEY), (normal(3), normal(4, seed=1))))
of_equinox("lstm", lambda n: (n.LSTMCell(3, 4, key=KEY), (normal(3), (normal(4, seed=1), normal(4, seed=2)))))
of_equinox(
    "attention",
    lambda n: (
        n.MultiheadAttention(2, 4, use_key_bias=True, key=KEY),
        (normal(3, 4), normal(3, 4, seed=1), normal(3, 4, seed=2)),
    ),
)
of_equinox("max pool", lambda n: (n.MaxPool2d(2, 2), (normal(1, 4, 4),)))
of_equinox("adaptive pool", lambda n: (n.AdaptiveAvgPool1d(3), (normal(2, 7),)))
of_equinox("embedding", lambda n: (lambda w: n.Embedding(weight=w)(jnp.array(2)), (normal(4, 3),)))
of_equinox("prelu", lambda n: (n.PReLU(0.2), (normal(5),)))


def of_flax(name, make):
    def build():
        import flax.linen

        return make(flax.linen)

    build.__name__ = name
    case("flax")(build)


def module(make, *inputs):
    def build(nn):
        m = make(nn)
        p = m.init(KEY, *inputs)
        return lambda p, *x: m.apply(p, *x), (p, *inputs)

    return build


of_flax("dense", module(lambda n: n.Dense(3), normal(2, 4)))
of_flax("layer norm", module(lambda n: n.Sequential([n.Dense(4), n.LayerNorm()]), normal(2, 4)))
of_flax("conv", module(lambda n: n.Conv(3, (3,)), normal(1, 6, 2)))
of_flax("self attention", module(lambda n: n.MultiHeadDotProductAttention(2), normal(1, 3, 4)))
of_flax("lstm", module(lambda n: n.RNN(n.LSTMCell(3)), normal(1, 4, 2)))
of_flax("weight norm", module(lambda n: n.WeightNorm(n.Dense(3)), normal(2, 4)))


# --- others, by name ---------------------------------------------------------------------------------------------------


@case("lineax")
def linear_solve():
    import lineax as lx

    return lambda a, b: lx.linear_solve(lx.MatrixLinearOperator(a), b).value, (spd(3), normal(3))


@case("lineax")
def lu():
    import lineax as lx

    return lambda a, b: lx.linear_solve(lx.MatrixLinearOperator(a), b, lx.LU()).value, (spd(3), normal(3))


@case("lineax")
def cg_of_lineax():
    import lineax as lx

    def solve(a, b):
        operator = lx.MatrixLinearOperator((a + a.T) / 2, lx.positive_semidefinite_tag)
        return lx.linear_solve(operator, b, lx.CG(rtol=1e-6, atol=1e-6)).value

    return solve, (spd(3), normal(3))


@case("lineax")
def qr_of_lineax():
    import lineax as lx

    return lambda a, b: lx.linear_solve(lx.MatrixLinearOperator(a), b, lx.QR()).value, (normal(5, 3), normal(5, seed=1))


@case("diffrax")
def ode():
    import diffrax as dfx

    def solve(y0, a):
        term = dfx.ODETerm(lambda t, y, a: -a * y + jnp.sin(t))
        return dfx.diffeqsolve(term, dfx.Tsit5(), 0.0, 1.0, 0.1, y0, a, max_steps=64).ys

    return solve, (normal(2), positive())


@case("diffrax")
def adaptive_ode():
    import diffrax as dfx

    def solve(y0, a):
        term = dfx.ODETerm(lambda t, y, a: -a * y + jnp.sin(t))
        control = dfx.PIDController(rtol=1e-4, atol=1e-6)
        return dfx.diffeqsolve(term, dfx.Tsit5(), 0.0, 1.0, 0.1, y0, a, stepsize_controller=control, max_steps=64).ys

    return solve, (normal(2), positive())


@case("optimistix")
def root():
    import optimistix as optx

    return (
        lambda a: (
            optx.root_find(lambda x, a: x**3 + x - a, optx.Newton(rtol=1e-6, atol=1e-6), jnp.float32(1.0), a).value
        ),
        (positive(),),
    )


@case("optimistix")
def least_squares():
    import optimistix as optx

    def fit(y):
        t = jnp.arange(4.0)
        residual = lambda p, y: p[0] * jnp.exp(-p[1] * t) - y
        return optx.least_squares(
            residual, optx.LevenbergMarquardt(rtol=1e-6, atol=1e-6), jnp.array([1.0, 0.5]), y
        ).value

    return fit, (jnp.array([1.1, 0.7, 0.4, 0.3]),)


@case("distrax")
def normal_log_prob():
    import distrax

    return lambda m, s, x: distrax.Normal(m, s).log_prob(x), (normal(3), positive(3), normal(3, seed=1))


@case("distrax")
def spline():
    import distrax

    def density(p, x):
        return distrax.RationalQuadraticSpline(p, range_min=-3.0, range_max=3.0).forward(x)

    return density, (normal(3, 13), normal(3, seed=1))


@case("distrax")
def mixture():
    import distrax

    def density(w, m, x):
        parts = distrax.Normal(m, jnp.ones(3))
        return distrax.MixtureSameFamily(distrax.Categorical(logits=w), parts).log_prob(x)

    return density, (normal(3), normal(3, seed=1), normal(seed=2))


@case("rlax")
def td_lambda():
    import rlax

    return lambda v, r: rlax.td_lambda(v[:-1], r, jnp.full(4, 0.9), v[1:], 0.8) ** 2, (normal(5), normal(4, seed=1))


@case("rlax")
def vtrace():
    import rlax

    return lambda v, r: rlax.vtrace(v[:-1], v[1:], r, jnp.full(4, 0.9), jnp.ones(4), 0.9) ** 2, (
        normal(5),
        normal(4, seed=1),
    )


@case("jraph")
def graph_convolution():
    import jraph

    graph = jraph.GraphsTuple(
        nodes=None, edges=None, senders=jnp.array([0, 1, 2]), receivers=jnp.array([1, 2, 0]), n_node=jnp.array([3]),
        n_edge=jnp.array([3]), globals=None,
    )  # fmt: skip
    layer = jraph.GraphConvolution(jnp.tanh, add_self_edges=True)
    return lambda x: layer(graph._replace(nodes=x)).nodes, (normal(3, 2),)


@case("jraph")
def segment_softmax():
    import jraph

    return lambda x: jraph.segment_softmax(x, jnp.array([0, 0, 1, 1, 1]), 2) ** 2, (normal(5),)


@case("numpyro")
def gamma_poisson():
    import numpyro.distributions as dist

    return lambda a, b: dist.GammaPoisson(a, b).log_prob(3), (positive(3), positive(3, seed=1))


@case("numpyro")
def stick_breaking():
    from numpyro.distributions import transforms

    return transforms.StickBreakingTransform(), (normal(3),)


@case("numpyro")
def lkj():
    import numpyro.distributions as dist

    transform = dist.transforms.CorrCholeskyTransform()
    return lambda x: dist.LKJCholesky(3, 1.5).log_prob(transform(x)), (normal(3),)


@case("tinygp")
def gaussian_process():
    import tinygp

    def likelihood(s, y):
        kernel = tinygp.kernels.ExpSquared(scale=s)
        return tinygp.GaussianProcess(kernel, jnp.arange(4.0), diag=0.1).log_probability(y)

    return likelihood, (positive(), normal(4))


@case("jaxopt")
def projection():
    from jaxopt import projection

    return lambda x: projection.projection_simplex(x) ** 2, (normal(4),)


@case("jaxopt")
def ridge_regression():
    import jaxopt

    def objective(w, l2, x, y):
        return jnp.mean((x @ w - y) ** 2) + l2 * jnp.sum(w**2)

    x, y = normal(6, 2), normal(6, seed=1)
    solver = jaxopt.GradientDescent(fun=objective, maxiter=300, tol=1e-5, implicit_diff=True)
    return lambda l2: solver.run(jnp.zeros(2), l2, x, y).params, (positive(),)


@case("haiku")
def gru_of_haiku():
    import haiku as hk

    f = hk.without_apply_rng(hk.transform(lambda x: hk.dynamic_unroll(hk.GRU(3), x, jnp.zeros((1, 3)))[0]))
    p = f.init(KEY, normal(4, 1, 2))
    return f.apply, (p, normal(4, 1, 2))


@case("blackjax")
def leapfrog():
    import blackjax.mcmc.integrators as integrators

    logdensity = lambda x: -0.5 * jnp.sum(x**2) - 0.1 * jnp.sum(x**4)

    def after(x, p):
        step = integrators.velocity_verlet(logdensity, lambda p, position=None: 0.5 * jnp.sum(p**2))
        state = integrators.IntegratorState(x, p, logdensity(x), jax.grad(logdensity)(x))
        for _ in range(3):
            state = step(state, 0.1)
        return state.position

    return after, (normal(3), normal(3, seed=1))


@case("jaxlie")
def rotation():
    import jaxlie

    return lambda w, v: jaxlie.SO3.exp(w) @ v, (normal(3), normal(3, seed=1))


@case("e3nn_jax")
def spherical_harmonics():
    import e3nn_jax as e3nn

    return lambda x: e3nn.spherical_harmonics("1o + 2e", x, True).array, (normal(3),)


# --- gathered when the judge was finished: it was not changed for any of these --------------------------------------------


@case("jax")
def neural_ode_by_euler():
    f = lambda w, y: lax.fori_loop(0, 10, lambda _, y: y + 0.1 * jnp.tanh(w @ y), y)
    return f, (normal(3, 3), normal(3, seed=1))


@case("jax")
def hidden_markov_model():
    def likelihood(start, move, emit):
        step = lambda a, e: (jax.nn.logsumexp(a[:, None] + jax.nn.log_softmax(move), axis=0) + e, None)
        return jax.nn.logsumexp(lax.scan(step, jax.nn.log_softmax(start), emit)[0])

    return likelihood, (normal(3), normal(3, 3, seed=1), normal(5, 3, seed=2))


@case("jax")
def kalman_filter():
    def likelihood(a, q, ys):
        def step(state, y):
            m, p = a * state[0], a * a * state[1] + q**2
            s = p + 1.0
            return (m + p / s * (y - m), p - p * p / s), -0.5 * ((y - m) ** 2 / s + jnp.log(s))

        return lax.scan(step, (jnp.float32(0), jnp.float32(1)), ys)[1].sum()

    return likelihood, (positive(), positive(seed=1), normal(6))


@case("jax")
def sinkhorn():
    def cost(c):
        k = jnp.exp(-c)
        step = lambda _, u: 1 / (k @ (1 / (k.T @ u)))
        u = lax.fori_loop(0, 20, step, jnp.ones(3))
        return jnp.sum(u[:, None] * k * (1 / (k.T @ u)) * c)

    return cost, (positive(3, 3),)


@case("jax")
def message_passing():
    senders, receivers = jnp.array([0, 1, 2, 2]), jnp.array([1, 2, 0, 1])

    def layer(w, x):
        messages = jnp.tanh(x[senders] @ w)
        return jax.nn.relu(jax.ops.segment_sum(messages, receivers, 3) / 2) + x

    return layer, (normal(2, 2), normal(3, 2, seed=1))


@case("jax")
def mixture_of_experts():
    def f(g, w, x):
        top, which = lax.top_k(jax.nn.softmax(x @ g), 1)
        return top * jnp.einsum("bi,bij->bj", x, w[which[:, 0]])

    return f, (normal(3, 4), normal(4, 3, 2, seed=1), normal(5, 3, seed=2))


@case("jax")
def quantised_lookup_with_stop():
    def loss(x, book):
        near = book[jnp.argmin(jnp.sum((x[:, None] - book) ** 2, -1), axis=1)]
        return jnp.mean((lax.stop_gradient(x) - near) ** 2) + 0.25 * jnp.mean((x - lax.stop_gradient(near)) ** 2)

    return loss, (normal(4, 2), normal(3, 2, seed=1))


@case("jax")
def sharded_matmul():
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((1,), ("m",), axis_types=(jax.sharding.AxisType.Auto,))
    f = jax.shard_map(lambda a, b: lax.psum(a @ b, "m"), mesh=mesh, in_specs=(P(None, "m"), P("m")), out_specs=P())
    return lambda a, b: jnp.sum(jnp.tanh(f(a, b))), (normal(2, 4), normal(4, 3, seed=1))


@case("jax")
def pallas_softmax():
    from jax.experimental import pallas as pl

    def kernel(x_ref, o_ref):
        e = jnp.exp(x_ref[...] - jnp.max(x_ref[...], axis=-1, keepdims=True))
        o_ref[...] = e / jnp.sum(e, axis=-1, keepdims=True)

    run = lambda x: pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)
    f = jax.custom_vjp(run)
    f.defvjp(lambda x: ((y := run(x)), y), lambda y, ct: (y * (ct - jnp.sum(ct * y, -1, keepdims=True)),))
    return lambda x: jnp.sum(f(x) ** 2), (normal(4, 8),)


@case("jax")
def host_solver():
    solve = lambda a, b: jax.pure_callback(
        np.linalg.solve, jax.ShapeDtypeStruct(b.shape, b.dtype), a, b, vmap_method="sequential"
    )
    f = jax.custom_vjp(solve)

    def backward(kept, ct):
        a, x = kept
        u = solve(a.T, ct)
        return -jnp.outer(u, x), u

    f.defvjp(lambda a, b: ((x := solve(a, b)), (a, x)), backward)
    return lambda a, b: jnp.sum(f(a, b) ** 2), (spd(3), normal(3))


simple(
    "jax",
    "weight decay of zeros",
    lambda w, x: jnp.sum(jnp.tanh(x @ w)) + 0.1 * jnp.sum(w**2),
    jnp.zeros((3, 2)),
    normal(4, 3),
)
simple(
    "jax",
    "batch normalisation with a bias",
    lambda x, w, b: jnp.sum(jnp.tanh(jax.nn.standardize(x @ w + b, axis=0))),
    normal(6, 3),
    normal(3, 2, seed=1),
    jnp.zeros(2),
)
simple(
    "jax",
    "contrastive loss",
    lambda a, b: (
        -jnp.mean(
            jnp.diag(
                jax.nn.log_softmax(
                    (a / jnp.linalg.norm(a, axis=1, keepdims=True))
                    @ (b / jnp.linalg.norm(b, axis=1, keepdims=True)).T
                    / 0.1
                )
            )
        )
    ),
    normal(4, 3),
    normal(4, 3, seed=1),
)
simple("jax", "spectral norm", lambda a: jnp.linalg.norm(a, 2), normal(4, 3))
simple("jax", "Mahalanobis distance", lambda a, x: x @ jnp.linalg.solve(a, x), spd(3), normal(3))
simple(
    "jax", "log of a determinant by cholesky", lambda a: 2 * jnp.sum(jnp.log(jnp.diag(jnp.linalg.cholesky(a)))), spd(3)
)
simple("jax", "matrix exponential", lambda a: jax.scipy.linalg.expm(a).sum(), normal(3, 3) * 0.3)
simple(
    "jax",
    "bessel and friends",
    lambda x: (
        jax.scipy.special.i0e(x) + jax.scipy.special.erfcx(x)
        if hasattr(jax.scipy.special, "erfcx")
        else jax.scipy.special.i0e(x)
    ),
    positive(3),
)
simple("jax", "student t", lambda x, df: jax.scipy.stats.t.logpdf(x, df), normal(3), positive(3) + 2)
simple("jax", "large and small", lambda x: jnp.sum(jnp.log1p(jnp.exp(x * 30))), normal(5))
simple("jax", "long sum in bfloat16", lambda x: jnp.sum(x.astype(jnp.bfloat16) ** 2).astype(jnp.float32), normal(64))
simple(
    "jax",
    "inverse fft of a product",
    lambda x, k: jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(k)),
    normal(8),
    normal(8, seed=1),
)
of_optax("polyak", lambda o: (lambda w: o.incremental_update(w, jnp.sin(w), 0.1).sum(), (normal(4),)))
of_optax("global norm", lambda o: (lambda w: o.tree.norm({"a": w, "b": w**2}), (normal(4),)))
of_equinox("conv 1d", lambda n: (n.Conv1d(2, 3, 3, key=KEY), (normal(2, 6),)))
of_equinox("spectral pool", lambda n: (n.AvgPool2d(2, 2), (normal(1, 4, 4),)))
of_flax("group norm of linen", module(lambda n: n.Sequential([n.Dense(4), n.GroupNorm(2)]), normal(2, 3)))
of_flax("gru of linen", module(lambda n: n.RNN(n.GRUCell(3)), normal(1, 4, 2)))
