"""More correct functions, gathered after the judges were finished by somebody who had not read them.

Each entry of CASES is a library and a function that returns (function, arguments), as in correct.py. The first run had two
false alarms, dm_pix: colours and quadax: romberg, where the tape gave no gradient.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.verify.correct import normal, positive, spd

CASES: dict[str, tuple[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]]] = {}
KNOWN: dict[str, str] = {}  # false alarms that are left, each with its cause


def case(library: str):
    def add(make):
        CASES[f"{library}: {make.__name__}"] = (library, make)
        return make

    return add


def of(module: str, name: str, make: Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]]]) -> None:
    library = module.partition(".")[0]
    CASES[f"{library}: {name}"] = (library, lambda: make(importlib.import_module(module)))


plain = partial(of, "jax")
special = partial(of, "jax.scipy.special")


def key(seed=0):
    return jax.random.key(seed)


# --- jax: segments, graphs, sparse code ---------------------------------------------------------------------------

SENDERS = np.array([0, 1, 2, 3, 0, 2])
RECEIVERS = np.array([1, 2, 3, 0, 2, 1])

plain("segment_min", lambda j: (lambda x: j.ops.segment_min(x, RECEIVERS, 4) ** 2, (normal(6),)))
plain(
    "segment mean",
    lambda j: (
        lambda x: j.ops.segment_sum(x, RECEIVERS, 4) / j.ops.segment_sum(jnp.ones((6, 1)), RECEIVERS, 4),
        (normal(6, 2),),
    ),
)
plain("weighted bincount", lambda j: (lambda w: jnp.sqrt(jnp.bincount(RECEIVERS, w, length=4)), (positive(6),)))
plain(
    "at.divide",
    lambda j: (lambda x, v: x.at[np.array([1, 3])].divide(v, unique_indices=True), (normal(5), positive(2))),
)
plain("at.get", lambda j: (lambda x: jnp.sinh(x.at[np.array([1, 1, 7])].get(mode="clip")), (normal(5),)))
plain("take with fill", lambda j: (lambda x: jnp.take(x, np.array([0, 9, 2]), mode="fill", fill_value=0), (normal(4),)))
plain("take_along_axis", lambda j: (lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1), 1) ** 3, (normal(3, 4),)))
plain(
    "dynamic_update_slice",
    lambda j: (
        lambda x, y, i: lax.dynamic_update_slice(x, jnp.sin(y), (i, 0)),
        (normal(4, 2), normal(2, 2, seed=1), 1),
    ),
)


@case("jax")
def edge_attention():
    def layer(h, w, a):
        z = h @ w
        score = jax.nn.leaky_relu(jnp.concatenate([z[SENDERS], z[RECEIVERS]], 1) @ a)
        score = jnp.exp(score - jax.ops.segment_max(score, RECEIVERS, 4)[RECEIVERS])
        score = score / jax.ops.segment_sum(score, RECEIVERS, 4)[RECEIVERS]
        return jax.ops.segment_sum(score[:, None] * z[SENDERS], RECEIVERS, 4)

    return layer, (normal(4, 3), normal(3, 2, seed=1), normal(4, seed=2))


@case("jax")
def pagerank():
    def rank(weights):
        matrix = jnp.zeros((4, 4)).at[RECEIVERS, SENDERS].add(jnp.exp(weights))
        matrix = 0.85 * matrix / matrix.sum(0) + 0.15 / 4
        return lax.fori_loop(0, 12, lambda _, r: matrix @ r, jnp.full(4, 0.25))

    return rank, (normal(6),)


@case("jax")
def soft_shortest_path():
    def distance(lengths):
        start = jnp.array([0.0, 9.0, 9.0, 9.0])

        def relax(d, _):
            through = jnp.exp(-3 * (d[SENDERS] + lengths))
            return -jnp.log(jnp.exp(-3 * d) + jax.ops.segment_sum(through, RECEIVERS, 4)) / 3, None

        return lax.scan(relax, start, None, 4)[0]

    return distance, (positive(6),)


@case("jax")
def heat_on_a_graph():
    def heat(weights, time):
        adjacency = jnp.zeros((4, 4)).at[SENDERS, RECEIVERS].add(weights)
        adjacency = adjacency + adjacency.T
        return jax.scipy.linalg.expm(-time * (jnp.diag(adjacency.sum(0)) - adjacency))

    return heat, (positive(6), jnp.float32(0.4))


@case("jax")
def sparse_rows_times_dense():
    from jax.experimental import sparse

    pattern = sparse.BCSR.fromdense(np.array([[1.0, 0, 2], [0, 3, 0], [4, 0, 5]], np.float32))

    def product(data, x):
        return sparse.BCSR((data, pattern.indices, pattern.indptr), shape=(3, 3)) @ x

    return product, (normal(5), normal(3, 2, seed=1))


@case("jax")
def sparse_reduction():
    from jax.experimental import sparse

    indices = np.stack([SENDERS, RECEIVERS], 1)

    def total(data):
        matrix = sparse.BCOO((data, indices), shape=(4, 4))
        return sparse.bcoo_reduce_sum(matrix, axes=[1]).todense() ** 2

    return total, (normal(6),)


@case("jax")
def sparsified_function():
    from jax.experimental import sparse

    indices = np.stack([SENDERS, RECEIVERS], 1)
    energy = sparse.sparsify(lambda m, v: v @ (m @ v))
    return lambda data, v: energy(sparse.BCOO((data, indices), shape=(4, 4)), v), (normal(6), normal(4, seed=1))


# --- jax: linear algebra ---------------------------------------------------------------------------------------

plain("r of qr", lambda j: (lambda a: jnp.linalg.qr(a)[1] ** 2, (normal(4, 3),)))
plain("q of qr", lambda j: (lambda a: jnp.linalg.qr(a)[0], (normal(4, 3),)))
plain("inverse", lambda j: (jnp.linalg.inv, (spd(3),)))
plain("pinv", lambda j: (jnp.linalg.pinv, (normal(4, 2),)))
plain("lstsq", lambda j: (lambda a, b: jnp.linalg.lstsq(a, b)[0], (normal(5, 2), normal(5, seed=1))))
plain("determinant", lambda j: (jnp.linalg.det, (normal(4, 4),)))
plain("triangular solve", lambda j: (partial(j.scipy.linalg.solve_triangular, lower=True), (spd(3), normal(3, 2))))
plain("nuclear norm", lambda j: (lambda a: jnp.linalg.norm(a, "nuc"), (normal(3, 4),)))
plain("eigenvalues of no symmetry", lambda j: (lambda a: jnp.abs(jnp.linalg.eigvals(a)) ** 2, (normal(3, 3),)))
plain("tensorsolve", lambda j: (jnp.linalg.tensorsolve, (normal(2, 2, 4), normal(2, 2, seed=1))))
plain(
    "toeplitz solve", lambda j: (lambda c, b: jnp.linalg.solve(j.scipy.linalg.toeplitz(c), b), (positive(4), normal(4)))
)
plain("lu", lambda j: (lambda a: j.scipy.linalg.lu(a, permute_l=True)[0], (normal(3, 3),)))
plain("bicgstab", lambda j: (lambda a, b: j.scipy.sparse.linalg.bicgstab(lambda v: a @ v, b)[0], (spd(3), normal(3))))
plain(
    "tridiagonal solve",
    lambda j: (
        lambda d, b: lax.linalg.tridiagonal_solve(
            jnp.array([0.0, 0.3, 0.2, 0.1]), d, jnp.array([0.1, 0.4, 0.2, 0.0]), b
        ),
        (positive(4) + 1, normal(4, 2)),
    ),
)


@case("jax")
def projector_of_a_subspace():
    def projector(a):
        vectors = jnp.linalg.eigh(a + a.T)[1][:, 2:]
        return vectors @ vectors.T

    return projector, (normal(4, 4),)


@case("jax")
def polar_factor():
    def orthogonal(a):
        u, _, v = jnp.linalg.svd(a, full_matrices=False)
        return u @ v

    return orthogonal, (normal(4, 3),)


@case("jax")
def hermitian_logdet():
    def logdet(a):
        return jnp.linalg.slogdet(a @ a.conj().T + 2 * jnp.eye(3))[1]

    return logdet, (lax.complex(normal(3, 3), normal(3, 3, seed=1)),)


@case("jax")
def gaussian_log_likelihood():
    def log_likelihood(y, mean, root):
        factor = jnp.linalg.cholesky(root @ root.T + jnp.eye(4))
        z = jax.scipy.linalg.solve_triangular(factor, y - mean, lower=True)
        return -z @ z / 2 - jnp.sum(jnp.log(jnp.diag(factor)))

    return log_likelihood, (normal(4), normal(4, seed=1), normal(4, 4, seed=2))


# --- jax: special functions --------------------------------------------------------------------------------------

special("digamma", lambda s: (s.digamma, (positive(4),)))
special("polygamma", lambda s: (lambda x: s.polygamma(1, x), (positive(4),)))
special("zeta", lambda s: (lambda q: s.zeta(jnp.float32(3), q), (positive(3),)))
special("bessel i0e and i1", lambda s: (lambda x: s.i0e(x) * s.i1(x), (normal(4),)))
special("log_ndtr in the tail", lambda s: (s.log_ndtr, (jnp.array([-9.0, -3.0, 0.5, 2.0]),)))
special("ndtri", lambda s: (s.ndtri, (positive(4) / 2,)))
special("betaln", lambda s: (s.betaln, (positive(3), positive(3, seed=1))))
special("expi", lambda s: (s.expi, (positive(3),)))
special("exp1", lambda s: (s.exp1, (positive(3),)))
special("spence", lambda s: (s.spence, (positive(3) / 2,)))
special("rel_entr", lambda s: (s.rel_entr, (positive(4), positive(4, seed=1))))
special("kl_div", lambda s: (s.kl_div, (positive(4), positive(4, seed=1))))
special("multigammaln", lambda s: (lambda a: s.multigammaln(a, 3), (positive(3) + 2,)))
special("hyp1f1", lambda s: (lambda x: s.hyp1f1(jnp.float32(1.5), jnp.float32(2.5), x), (normal(3),)))
special("gammaincc in its order", lambda s: (lambda a: s.gammaincc(a, jnp.float32(1.2)), (positive(3),)))


# --- jax: Fourier, signals, interpolation -------------------------------------------------------------------------

plain("spectrum of an image", lambda j: (lambda x: jnp.log1p(jnp.abs(jnp.fft.fft2(x)) ** 2), (normal(4, 3),)))
plain("complex fft", lambda j: (lambda z: jnp.fft.fft(z) * jnp.conj(z), (lax.complex(normal(5), normal(5, seed=1)),)))
plain("low pass", lambda j: (lambda x: jnp.fft.irfft(jnp.fft.rfft(x) / (1 + jnp.arange(5)), 8), (normal(8),)))
plain("fftconvolve", lambda j: (j.scipy.signal.fftconvolve, (normal(6), normal(3, seed=1))))
plain("correlate2d", lambda j: (partial(j.scipy.signal.correlate2d, mode="same"), (normal(4, 4), normal(3, 3, seed=1))))
plain("welch", lambda j: (lambda x: j.scipy.signal.welch(x, nperseg=8)[1], (normal(16),)))
plain("detrend", lambda j: (j.scipy.signal.detrend, (normal(8),)))
plain("stft", lambda j: (lambda x: jnp.abs(j.scipy.signal.stft(x, nperseg=4)[2]) ** 2, (normal(12),)))
plain(
    "regular grid",
    lambda j: (
        lambda values, at: j.scipy.interpolate.RegularGridInterpolator((jnp.arange(3.0), jnp.arange(4.0)), values)(at),
        (normal(3, 4), jnp.array([[0.3, 1.6], [1.2, 2.7]])),
    ),
)


@case("jax")
def poisson_by_sines():
    def solve(source):
        n = source.shape[0]
        wave = 2 * jnp.pi * jnp.fft.fftfreq(n)
        symbol = 1.0 + (wave[:, None] ** 2 + wave[None] ** 2)
        return jnp.fft.ifft2(jnp.fft.fft2(source) / symbol).real

    return solve, (normal(4, 4),)


@case("jax")
def hermite_interpolation():
    def curve(t, values, slopes):
        i = jnp.clip(jnp.floor(t).astype(int), 0, 2)
        s = t - i
        h = [2 * s**3 - 3 * s**2 + 1, s**3 - 2 * s**2 + s, -2 * s**3 + 3 * s**2, s**3 - s**2]
        return h[0] * values[i] + h[1] * slopes[i] + h[2] * values[i + 1] + h[3] * slopes[i + 1]

    return curve, (jnp.array([0.3, 1.6, 2.2]), normal(4), normal(4, seed=1))


@case("jax")
def barycentric_interpolation():
    def polynomial(t, values):
        nodes = jnp.cos(jnp.pi * jnp.arange(5) / 4)
        weights = jnp.array([0.5, -1, 1, -1, 0.5])
        terms = weights / (t[:, None] - nodes)
        return terms @ values / terms.sum(1)

    return polynomial, (jnp.array([0.3, -0.45]), normal(5))


# --- jax: scans, loops, custom rules, implicit differentiation ----------------------------------------------------

plain("cumlogsumexp", lambda j: (lax.cumlogsumexp, (normal(6),)))
plain("cumprod in reverse", lambda j: (lambda x: lax.cumprod(x, reverse=True), (normal(6),)))
plain(
    "associative scan of affine maps",
    lambda j: (
        lambda a, b: lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, b))[1],
        (normal(7), normal(7, seed=1)),
    ),
)


@case("jax")
def lorenz_by_runge_kutta():
    def last(state, parameters):
        def field(s):
            return jnp.stack(
                [
                    parameters[0] * (s[1] - s[0]),
                    s[0] * (parameters[1] - s[2]) - s[1],
                    s[0] * s[1] - parameters[2] * s[2],
                ]
            )

        def step(s, _):
            k1 = field(s)
            k2 = field(s + 0.01 * k1)
            k3 = field(s + 0.01 * k2)
            return s + 0.02 / 6 * (k1 + 2 * k2 + 2 * k3 + field(s + 0.02 * k3)), None

        return lax.scan(step, state, None, 10)[0]

    return last, (normal(3), jnp.array([10.0, 28.0, 2.7]))


@case("jax")
def nested_scans_with_remat():
    def deep(x, w):
        inner = jax.checkpoint(lambda c, v: (jnp.tanh(c * v + 0.1), c))
        return lax.scan(lambda c, row: (lax.scan(inner, c, row)[0], c.sum()), x, w)

    return deep, (normal(2), normal(3, 4, 2, seed=1))


@case("jax")
def kepler_by_a_while_loop():
    def iterate(mean, eccentricity):
        def improve(state):
            e, _, n = state
            change = (e - eccentricity * jnp.sin(e) - mean) / (1 - eccentricity * jnp.cos(e))
            return e - change, jnp.max(jnp.abs(change)), n + 1

        start = (mean, jnp.ones((), mean.dtype), 0)
        return lax.while_loop(lambda s: (s[1] > 1e-7) & (s[2] < 30), improve, start)[0]

    @jax.custom_jvp
    def anomaly(mean, eccentricity):
        return iterate(mean, eccentricity)

    @anomaly.defjvp
    def slope(primals, tangents):
        e = anomaly(*primals)
        across = 1 - primals[1] * jnp.cos(e)
        return e, (tangents[0] + jnp.sin(e) * tangents[1]) / across

    return anomaly, (positive(3), jnp.float32(0.3))


@case("jax")
def cube_root_by_newton():
    @jax.custom_vjp
    def root(x):
        return lax.while_loop(
            lambda s: (jnp.max(jnp.abs(s[0] ** 3 - x)) > 1e-6) & (s[1] < 40),
            lambda s: (s[0] - (s[0] ** 3 - x) / (3 * s[0] ** 2), s[1] + 1),
            (jnp.ones_like(x), 0),
        )[0]

    def forward(x):
        y = root(x)
        return y, y

    root.defvjp(forward, lambda y, ct: (ct / (3 * y**2),))
    return lambda x: jnp.sum(jnp.sin(root(x))), (positive(3),)


@case("jax")
def deep_equilibrium():
    def layer(z, w, x):
        return jnp.tanh(w @ z * 0.3 + x)

    @jax.custom_vjp
    def equilibrium(w, x):
        return lax.fori_loop(0, 60, lambda _, z: layer(z, w, x), x)

    def forward(w, x):
        z = equilibrium(w, x)
        return z, (z, w, x)

    def backward(kept, ct):
        z, w, x = kept
        _, through = jax.vjp(lambda z: layer(z, w, x), z)
        adjoint = lax.fori_loop(0, 60, lambda _, u: ct + through(u)[0], ct)
        return jax.vjp(lambda w, x: layer(z, w, x), w, x)[1](adjoint)

    equilibrium.defvjp(forward, backward)
    return equilibrium, (normal(3, 3), normal(3, seed=1))


@case("jax")
def custom_linear_solve_of_jacobi():
    def solve(a, b):
        def jacobi(matvec, b):
            return lax.fori_loop(0, 60, lambda _, x: x + (b - matvec(x)) / jnp.diag(a), jnp.zeros_like(b))

        return lax.custom_linear_solve(lambda x: a @ x, b, jacobi, transpose_solve=jacobi)

    return solve, (jnp.eye(3) * 4 + normal(3, 3) / 3, normal(3, seed=1))


@case("jax")
def root_of_a_system():
    def solve(p):
        def residual(x):
            return jnp.stack([x[0] ** 2 + x[1] - p[0], x[0] - x[1] ** 3 + p[1]])

        def newton(f, x):
            return lax.fori_loop(0, 12, lambda _, x: x - jnp.linalg.solve(jax.jacfwd(f)(x), f(x)), x)

        return lax.custom_root(
            residual, jnp.ones(2), newton, lambda g, y: jnp.linalg.solve(jax.jacfwd(g)(jnp.zeros_like(y)), y)
        )

    return solve, (jnp.array([2.2, 0.4]),)


@case("jax")
def ridge_weights_chosen_by_validation():
    def validation(log_penalty, x, y):
        w = jnp.linalg.solve(x[:6].T @ x[:6] + jnp.exp(log_penalty) * jnp.eye(3), x[:6].T @ y[:6])
        return jnp.mean((x[6:] @ w - y[6:]) ** 2)

    return validation, (jnp.float32(-0.5), normal(9, 3), normal(9, seed=1))


@case("jax")
def hessian_vector_product():
    def energy(x):
        return jnp.sum(jnp.cos(x) * jnp.roll(x, 1) ** 2)

    return lambda x, v: jax.jvp(jax.grad(energy), (x,), (v,))[1], (normal(4), normal(4, seed=1))


@case("jax")
def meta_learning_step():
    def loss(w, x, y):
        return jnp.mean((jnp.tanh(x @ w) - y) ** 2)

    def after(w, rate, x, y):
        return loss(w - rate * jax.grad(loss)(w, x[:3], y[:3]), x[3:], y[3:])

    return after, (normal(2), jnp.float32(0.2), normal(6, 2, seed=1), normal(6, seed=2))


# --- jax: random sampling -----------------------------------------------------------------------------------------

plain("student t sample", lambda j: (lambda df: j.random.t(key(), df, (3,)), (positive(3) + 2,)))
plain(
    "multivariate normal", lambda j: (lambda m, a: j.random.multivariate_normal(key(), m, a @ a.T), (normal(3), spd(3)))
)
plain("laplace sample", lambda j: (lambda m, s: m + s * j.random.laplace(key(), (4,)), (normal(4), positive(4))))
plain(
    "weibull sample", lambda j: (lambda s, c: j.random.weibull_min(key(), s, c, (3,)), (positive(3), positive(3) + 1))
)
plain("pareto sample", lambda j: (lambda b: j.random.pareto(key(), b), (positive(3) + 1,)))
plain("loggamma sample", lambda j: (lambda a: j.random.loggamma(key(), a), (positive(3),)))
plain("chi squared sample", lambda j: (lambda df: j.random.chisquare(key(), df), (positive(3) + 1,)))


@case("jax")
def kumaraswamy_sample():
    def sample(a, b):
        u = jax.random.uniform(key(), (4,), minval=0.05, maxval=0.95)
        return (1 - (1 - u) ** (1 / b)) ** (1 / a)

    return sample, (positive(4), positive(4, seed=1))


@case("jax")
def evidence_bound():
    def bound(mean, log_scale, x):
        z = mean + jnp.exp(log_scale) * jax.random.normal(key(1), (5, 3))
        fit = jnp.mean(jnp.sum(jax.scipy.stats.norm.logpdf(x, jnp.sin(z), 0.5), 1))
        return fit - jnp.sum(jnp.exp(2 * log_scale) + mean**2 - 1 - 2 * log_scale) / 2

    return bound, (normal(3), normal(3, seed=1) / 4, normal(3, seed=2))


# --- jax: shards, kernels, callbacks ------------------------------------------------------------------------------


def one_device():
    return jax.sharding.Mesh(np.array(jax.devices()[:1]), ("i",))


@case("jax")
def sharded_dot():
    from jax.sharding import PartitionSpec as P

    dot = jax.shard_map(
        lambda x, y: lax.psum(jnp.sum(jnp.sin(x) * y), "i"), mesh=one_device(), in_specs=(P("i"), P("i")), out_specs=P()
    )
    return dot, (normal(4), normal(4, seed=1))


@case("jax")
def sharded_ring():
    from jax.sharding import PartitionSpec as P

    def around(x):
        return jnp.tanh(x) * lax.ppermute(x, "i", [(0, 0)])

    return jax.shard_map(around, mesh=one_device(), in_specs=P("i"), out_specs=P("i")), (normal(4, 2),)


@case("jax")
def sharded_layer_with_gather():
    from jax.sharding import PartitionSpec as P

    def layer(x, w):
        return lax.psum_scatter(lax.all_gather(x, "i", tiled=True) @ w, "i", tiled=True)

    return jax.shard_map(layer, mesh=one_device(), in_specs=(P("i"), P()), out_specs=P("i")), (
        normal(4, 3),
        normal(3, 2, seed=1),
    )


@case("jax")
def pallas_matmul():
    from jax.experimental import pallas as pl

    def kernel(a, b, out):
        out[...] = a[...] @ b[...]

    def multiply(a, b):
        shape = jax.ShapeDtypeStruct((a.shape[0], b.shape[1]), a.dtype)
        return pl.pallas_call(
            kernel,
            shape,
            grid=(2,),
            in_specs=[
                pl.BlockSpec((a.shape[0] // 2, a.shape[1]), lambda i: (i, 0)),
                pl.BlockSpec(b.shape, lambda i: (0, 0)),
            ],
            out_specs=pl.BlockSpec((a.shape[0] // 2, b.shape[1]), lambda i: (i, 0)),
            interpret=True,
        )(a, b)

    matmul = jax.custom_vjp(multiply)
    matmul.defvjp(lambda a, b: (multiply(a, b), (a, b)), lambda kept, ct: (ct @ kept[1].T, kept[0].T @ ct))
    return matmul, (normal(4, 3), normal(3, 2, seed=1))


@case("jax")
def pallas_root_mean_square_norm():
    from jax.experimental import pallas as pl

    def kernel(x, scale, out):
        v = x[...]
        out[...] = v * lax.rsqrt(jnp.mean(v * v, -1, keepdims=True) + 1e-5) * scale[...]

    def run(x, scale):
        return pl.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x, scale)

    norm = jax.custom_vjp(run)

    def backward(kept, ct):
        x, scale = kept
        r = lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)
        g = ct * scale
        return g * r - x * r**3 * jnp.mean(g * x, -1, keepdims=True), jnp.sum(ct * x * r, 0)

    norm.defvjp(lambda x, scale: (run(x, scale), (x, scale)), backward)
    return norm, (normal(3, 4), positive(4))


@case("jax")
def host_function_with_a_jvp():
    def host(x):
        return jax.pure_callback(
            lambda v: np.arctan(np.asarray(v)), jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential"
        )

    function = jax.custom_jvp(host)
    function.defjvp(lambda primals, tangents: (function(*primals), tangents[0] / (1 + primals[0] ** 2)))
    return lambda x: function(x) * x, (normal(4),)


@case("jax")
def host_determinant():
    def host(a):
        return jax.pure_callback(
            lambda v: np.linalg.det(np.asarray(v)).astype(a.dtype),
            jax.ShapeDtypeStruct((), a.dtype),
            a,
            vmap_method="sequential",
        )

    determinant = jax.custom_vjp(host)

    def forward(a):
        out = host(a)
        return out, (a, out)

    determinant.defvjp(forward, lambda kept, ct: (ct * kept[1] * jnp.linalg.inv(kept[0]).T,))
    return determinant, (spd(3),)


# --- optax, equinox, flax, chex -----------------------------------------------------------------------------------

of("optax", "log_cosh", lambda o: (o.log_cosh, (normal(4), normal(4, seed=1))))
of("optax", "focal loss", lambda o: (o.sigmoid_focal_loss, (normal(4), jnp.array([0.1, 0.9, 0.8, 0.2]))))
of(
    "optax",
    "kl divergence",
    lambda o: (lambda x, y: o.kl_divergence(jax.nn.log_softmax(x), jax.nn.softmax(y)), (normal(5), normal(5, seed=1))),
)
of(
    "optax",
    "poly loss",
    lambda o: (lambda x: o.losses.poly_loss_cross_entropy(x, jax.nn.one_hot(np.array([1, 0]), 4)), (normal(2, 4),)),
)
of(
    "optax",
    "simplex projection",
    lambda o: (lambda x: o.projections.projection_simplex(x) ** 2, (jnp.array([0.3, 0.9, -1.0, 0.4]),)),
)
of("optax", "cosine schedule", lambda o: (lambda r: o.cosine_decay_schedule(1.0, 20)(7) * r**2, (positive(3),)))


def split_of_equinox(model, call):
    import equinox as eqx

    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    return lambda arrays, *inputs: call(eqx.combine(arrays, rest), *inputs), arrays


def of_equinox(name, make, call, *inputs):
    def made():
        import equinox as eqx

        function, arrays = split_of_equinox(make(eqx), call)
        return function, (arrays, *inputs)

    CASES[f"equinox: {name}"] = ("equinox", made)


of_equinox("perceptron", lambda e: e.nn.MLP(3, 2, 4, 2, jnp.tanh, key=key()), lambda m, x: m(x), normal(3))
of_equinox(
    "lstm cell",
    lambda e: e.nn.LSTMCell(3, 2, key=key()),
    lambda m, x, h, c: m(x, (h, c)),
    normal(3),
    normal(2),
    normal(2, seed=1),
)
of_equinox("rotary embedding", lambda e: e.nn.RotaryPositionalEmbedding(4), lambda m, x: m(x) ** 2, normal(3, 4))
of_equinox(
    "transposed convolution", lambda e: e.nn.ConvTranspose1d(2, 3, 3, 2, key=key()), lambda m, x: m(x), normal(2, 4)
)
of_equinox("weight norm", lambda e: e.nn.WeightNorm(e.nn.Linear(3, 2, key=key())), lambda m, x: m(x), normal(3))


def of_linen(name, make, *inputs):
    def made():
        import flax.linen as nn

        module = make(nn)
        return module.apply, (module.init(key(), *inputs), *inputs)

    CASES[f"flax: {name}"] = ("flax", made)


of_linen("chain", lambda nn: nn.Sequential([nn.Dense(4), nn.gelu, nn.Dense(2)]), normal(2, 3))
of_linen("group norm", lambda nn: nn.GroupNorm(2), normal(2, 3, 4))
of_linen("recurrent gru", lambda nn: nn.RNN(nn.GRUCell(3)), normal(2, 4, 2))
of_linen(
    "bidirectional lstm", lambda nn: nn.Bidirectional(nn.RNN(nn.LSTMCell(2)), nn.RNN(nn.LSTMCell(2))), normal(1, 3, 2)
)
of_linen("transposed convolution", lambda nn: nn.ConvTranspose(2, (3,), (2,)), normal(1, 4, 2))


@case("chex")
def dataclass_of_chex():
    import chex

    @chex.dataclass
    class Pendulum:
        angle: Any
        speed: Any

    def energy(p):
        chex.assert_equal_shape([p.angle, p.speed])
        return Pendulum(angle=p.speed * p.angle, speed=-jnp.sin(p.angle))

    return energy, (Pendulum(angle=normal(3), speed=normal(3, seed=1)),)


# --- lineax, optimistix, diffrax, jaxopt --------------------------------------------------------------------------


def of_lineax(name, operator, solver, *args):
    def made():
        import lineax as lx

        return lambda b, *rest: lx.linear_solve(operator(lx, *rest), b, solver(lx)).value, args

    CASES[f"lineax: {name}"] = ("lineax", made)


of_lineax(
    "tridiagonal",
    lambda lx, d, u: lx.TridiagonalLinearOperator(d, u, u / 2),
    lambda lx: lx.Tridiagonal(),
    normal(4),
    positive(4) + 2,
    normal(3, seed=1),
)
of_lineax("svd", lambda lx, a: lx.MatrixLinearOperator(a), lambda lx: lx.SVD(), normal(4), normal(4, 2, seed=1))
of_lineax("gmres", lambda lx, a: lx.MatrixLinearOperator(a), lambda lx: lx.GMRES(1e-6, 1e-6), normal(3), spd(3))
of_lineax("bicgstab", lambda lx, a: lx.MatrixLinearOperator(a), lambda lx: lx.BiCGStab(1e-6, 1e-6), normal(3), spd(3))
of_lineax(
    "cholesky",
    lambda lx, a: lx.MatrixLinearOperator(a @ a.T, lx.positive_semidefinite_tag),
    lambda lx: lx.Cholesky(),
    normal(3),
    spd(3),
)


@case("optimistix")
def newton_root():
    import optimistix as optx

    def root(a):
        return optx.root_find(lambda y, a: y**3 + a * y - 1, optx.Newton(1e-6, 1e-6), jnp.ones(3), a).value

    return root, (positive(3),)


@case("optimistix")
def fixed_point():
    import optimistix as optx

    def solve(a):
        return optx.fixed_point(lambda y, a: jnp.tanh(0.5 * y + a), optx.FixedPointIteration(1e-6, 1e-6), a, a).value

    return solve, (normal(3),)


@case("optimistix")
def minimum_by_bfgs():
    import optimistix as optx

    def minimum(a):
        return optx.minimise(
            lambda y, a: jnp.sum((y - a) ** 2 + 0.1 * y**4), optx.BFGS(1e-5, 1e-5), jnp.zeros(2), a
        ).value

    return minimum, (normal(2),)


@case("optimistix")
def levenberg_marquardt_fit():
    import optimistix as optx

    def fit(y):
        t = jnp.arange(5.0)
        residual = lambda p, y: p[0] * jnp.exp(-p[1] * t) - y
        return optx.least_squares(residual, optx.LevenbergMarquardt(1e-5, 1e-5), jnp.array([1.0, 0.5]), y).value

    return fit, (jnp.array([2.0, 1.3, 0.8, 0.45, 0.31]),)


@case("optimistix")
def bisected_root():
    import optimistix as optx

    def root(a):
        options = {"lower": 0.0, "upper": 4.0}
        return optx.root_find(lambda y, a: y**2 - a, optx.Bisection(1e-6, 1e-6), 1.0, a, options=options).value

    return root, (jnp.float32(2.3),)


def of_diffrax(name, solve, *args):
    def made():
        import diffrax

        return partial(solve, diffrax), args

    CASES[f"diffrax: {name}"] = ("diffrax", made)


of_diffrax(
    "oscillator by tsit5",
    lambda d, y, w: (
        d.diffeqsolve(
            d.ODETerm(lambda t, y, w: jnp.stack([y[1], -w * jnp.sin(y[0])])), d.Tsit5(), 0.0, 0.5, 0.1, y, w
        ).ys
    ),
    normal(2),
    jnp.float32(1.3),
)
of_diffrax(
    "implicit solver",
    lambda d, y, k: (
        d.diffeqsolve(
            d.ODETerm(lambda t, y, k: -k * y + jnp.cos(t)),
            d.ImplicitEuler(root_finder=d.VeryChord(1e-6, 1e-6)),
            0.0,
            0.3,
            0.1,
            y,
            k,
            max_steps=8,
        ).ys
    ),
    normal(2),
    positive(2) * 3,
)
of_diffrax(
    "stochastic",
    lambda d, y, s: (
        d.diffeqsolve(
            d.MultiTerm(
                d.ODETerm(lambda t, y, s: -y),
                d.ControlTerm(lambda t, y, s: s * jnp.ones(()), d.VirtualBrownianTree(0.0, 1.0, 1e-2, (), key())),
            ),
            d.Euler(),
            0.0,
            0.4,
            0.1,
            y,
            s,
            max_steps=8,
        ).ys
    ),
    jnp.float32(0.7),
    jnp.float32(0.3),
)
of_diffrax(
    "cubic path",
    lambda d, y: d.CubicInterpolation(jnp.arange(5.0), d.backward_hermite_coefficients(jnp.arange(5.0), y)).evaluate(
        2.3
    ),
    normal(5, 2),
)
of_diffrax(
    "saved on the way",
    lambda d, y: (
        d.diffeqsolve(
            d.ODETerm(lambda t, y, _: jnp.tanh(y) - t * y),
            d.Heun(),
            0.0,
            0.6,
            0.2,
            y,
            saveat=d.SaveAt(ts=jnp.array([0.1, 0.35, 0.6])),
            max_steps=8,
        ).ys
    ),
    normal(2),
)

of("jaxopt.projection", "ball", lambda p: (lambda x: p.projection_l2_ball(x, 1.0), (normal(4) * 2,)))
of(
    "jaxopt.projection",
    "transport polytope",
    lambda p: (
        lambda x: p.kl_projection_transport(x, (jnp.ones(2) / 2, jnp.ones(2) / 2), use_semi_dual=False),
        (normal(2, 2),),
    ),
)
of("jaxopt.loss", "multiclass logistic", lambda p: (lambda x: p.multiclass_logistic_loss(1, x), (normal(4),)))


@case("jaxopt")
def gradient_descent_differentiated():
    import jaxopt

    def solve(a):
        solver = jaxopt.GradientDescent(lambda w, a: jnp.sum((w - a) ** 2 + jnp.cosh(w)), maxiter=200, tol=1e-6)
        return solver.run(jnp.zeros(2), a).params

    return solve, (normal(2),)


@case("jaxopt")
def anderson():
    import jaxopt

    def solve(a):
        return (
            jaxopt.FixedPointIteration(lambda x, a: jnp.cos(x) * 0.5 + a, maxiter=60, tol=1e-6)
            .run(jnp.zeros(2), a)
            .params
        )

    return solve, (normal(2),)


# --- tinygp, numpyro, distrax, tensorflow_probability, blackjax ---------------------------------------------------


@case("tinygp")
def likelihood_of_matern():
    import tinygp

    def likelihood(scale, y):
        kernel = tinygp.kernels.Matern32(scale)
        return tinygp.GaussianProcess(kernel, jnp.arange(5.0) * 0.7, diag=0.1).log_probability(y)

    return likelihood, (jnp.float32(1.4), normal(5))


@case("tinygp")
def prediction_by_quasiseparable_kernel():
    import tinygp

    def predict(scale, y):
        kernel = tinygp.kernels.quasisep.Matern32(scale)
        gp = tinygp.GaussianProcess(kernel, jnp.arange(4.0) * 0.7, diag=0.1)
        return gp.condition(y).log_probability

    return predict, (jnp.float32(1.4), normal(4))


of(
    "numpyro.distributions",
    "student",
    lambda d: (lambda df, m, x: d.StudentT(df, m, 1.2).log_prob(x), (positive(3) + 2, normal(3), normal(3, seed=1))),
)
of(
    "numpyro.distributions",
    "negative binomial",
    lambda d: (
        lambda m, c: d.NegativeBinomial2(m, c).log_prob(jnp.array([0.0, 2.0, 5.0])),
        (positive(3), positive(3, seed=1)),
    ),
)
of(
    "numpyro.distributions",
    "wishart",
    lambda d: (lambda a: d.Wishart(5.0, scale_tril=jnp.linalg.cholesky(a)).log_prob(jnp.eye(3) * 2), (spd(3),)),
)
of(
    "numpyro.distributions",
    "low rank normal",
    lambda d: (
        lambda m, w, s: d.LowRankMultivariateNormal(m, w, s).log_prob(jnp.ones(4)),
        (normal(4), normal(4, 2, seed=1), positive(4)),
    ),
)
of(
    "numpyro.distributions",
    "von mises",
    lambda d: (lambda m, c: d.VonMises(m, c).log_prob(jnp.array([0.3, -1.0])), (normal(2), positive(2))),
)


of(
    "distrax",
    "beta",
    lambda d: (lambda a, b: d.Beta(a, b).log_prob(jnp.array([0.2, 0.7])), (positive(2), positive(2, seed=1))),
)
of("distrax", "entropy of categorical", lambda d: (lambda x: d.Categorical(logits=x).entropy(), (normal(2, 4),)))
of(
    "distrax",
    "squashed sample",
    lambda d: (
        lambda m, s: d.Transformed(d.Normal(m, s), d.Tanh()).sample_and_log_prob(seed=jax.random.PRNGKey(0)),
        (normal(3), positive(3)),
    ),
)
of(
    "distrax",
    "kl of gaussians",
    lambda d: (
        lambda m, s: d.MultivariateNormalDiag(m, s).kl_divergence(d.MultivariateNormalDiag(jnp.zeros(3), jnp.ones(3))),
        (normal(3), positive(3)),
    ),
)

TFP = "tensorflow_probability.substrates.jax"
of(
    TFP,
    "inverse gaussian",
    lambda t: (
        lambda m, c: t.distributions.InverseGaussian(m, c).log_prob(jnp.array([0.5, 1.5])),
        (positive(2), positive(2, seed=1)),
    ),
)
of(
    TFP,
    "mixture",
    lambda t: (
        lambda m: t.distributions.MixtureSameFamily(
            t.distributions.Categorical(logits=jnp.zeros(2)), t.distributions.Normal(m, 1.0)
        ).log_prob(jnp.array([0.3, -0.2])),
        (normal(2),),
    ),
)
of(TFP, "sinh arcsinh", lambda t: (lambda x, s: t.bijectors.SinhArcsinh(s).forward(x), (normal(3), normal(3, seed=1))))
of(TFP, "fill scale tril", lambda t: (lambda x: t.bijectors.FillScaleTriL().forward(x), (normal(6),)))
of(TFP, "bessel kve", lambda t: (lambda x: t.math.bessel_kve(jnp.float32(1.5), x), (positive(3),)))


@case("blackjax")
def velocity_verlet():
    from blackjax.mcmc import integrators, metrics

    def move(position, momentum):
        density = lambda q: -jnp.sum(jnp.cosh(q))
        energy = metrics.default_metric(jnp.ones(3)).kinetic_energy
        step = integrators.velocity_verlet(density, energy)
        state = integrators.IntegratorState(position, momentum, density(position), jax.grad(density)(position))
        after = step(state, 0.1)
        return after.position, after.momentum

    return move, (normal(3), normal(3, seed=1))


# --- rlax, jraph, haiku, e3nn_jax, ott, jax_md, brax, dm_pix, interpax, quadax, jaxlie ------------------------------

of(
    "rlax",
    "policy gradient",
    lambda r: (
        lambda x, a: r.policy_gradient_loss(x, np.array([0, 2, 1]), a, jnp.ones(3), use_stop_gradient=False),
        (normal(3, 4), normal(3, seed=1)),
    ),
)
of("rlax", "entropy", lambda r: (lambda x: r.entropy_loss(x, jnp.ones(3)), (normal(3, 4),)))
of(
    "rlax",
    "categorical td",
    lambda r: (
        lambda v, w: r.categorical_td_learning(
            jnp.arange(3.0), v, jnp.float32(0.4), jnp.float32(0.9), jnp.arange(3.0), w, stop_target_gradients=False
        ),
        (normal(3), normal(3, seed=1)),
    ),
)
of("rlax", "signed hyperbolic", lambda r: (r.signed_hyperbolic, (normal(4),)))
of(
    "rlax",
    "lambda returns",
    lambda r: (lambda x, v: r.lambda_returns(x, jnp.full(4, 0.9), v, 0.8), (normal(4), normal(4, seed=1))),
)


def small_graph(jraph, nodes, edges):
    return jraph.GraphsTuple(
        nodes, edges, jnp.asarray(RECEIVERS), jnp.asarray(SENDERS), jnp.zeros((1, 1)), jnp.array([4]), jnp.array([6])
    )


@case("jraph")
def graph_network():
    import jraph

    net = jraph.GraphNetwork(
        lambda e, s, r, g: jnp.tanh(e + s * r + g), lambda n, s, r, g: n * s - r, lambda n, e, g: n.sum() + e + g
    )

    def run(nodes, edges):
        out = net(small_graph(jraph, nodes, edges))
        return out.nodes, out.edges, out.globals

    return run, (normal(4, 1), normal(6, 1, seed=1))


@case("jraph")
def attention_network():
    import jraph

    def run(nodes, w):
        net = jraph.GAT(lambda n: n @ w, lambda s, r, e: jnp.sum(s * r, -1, keepdims=True), None)
        return net(small_graph(jraph, nodes, None)).nodes

    return run, (normal(4, 2), normal(2, 2, seed=1))


of("jraph", "segment variance", lambda j: (lambda x: j.segment_variance(x, jnp.asarray(RECEIVERS), 4), (normal(6),)))


def of_haiku(name, make, *inputs):
    def made():
        import haiku as hk

        net = hk.without_apply_rng(hk.transform(lambda *x: make(hk)(*x)))
        return net.apply, (net.init(jax.random.PRNGKey(0), *inputs), *inputs)

    CASES[f"haiku: {name}"] = ("haiku", made)


of_haiku("perceptron", lambda hk: hk.nets.MLP([4, 2], activation=jnp.tanh), normal(2, 3))
of_haiku("layer norm", lambda hk: hk.LayerNorm(-1, True, True), normal(2, 4))
of_haiku("depthwise convolution", lambda hk: hk.DepthwiseConv2D(1, 3), normal(1, 4, 4, 2))
of_haiku(
    "unrolled lstm",
    lambda hk: lambda x: hk.dynamic_unroll(hk.LSTM(2), x, hk.LSTM(2).initial_state(None))[0],
    normal(3, 2),
)
of_haiku(
    "attention",
    lambda hk: lambda x: hk.MultiHeadAttention(2, 2, w_init=hk.initializers.VarianceScaling())(x, x, x),
    normal(3, 4),
)

of(
    "e3nn_jax",
    "tensor product",
    lambda e: (
        lambda x, y: e.tensor_product(e.IrrepsArray("1o", x), e.IrrepsArray("1o", y)).array,
        (normal(3), normal(3, seed=1)),
    ),
)
of(
    "e3nn_jax",
    "wigner rotation",
    lambda e: (
        lambda a, b, c: e.Irrep("2e").D_from_angles(a, b, c),
        (jnp.float32(0.3), jnp.float32(1.1), jnp.float32(-0.4)),
    ),
)
of("e3nn_jax", "gate", lambda e: (lambda x: e.gate(e.IrrepsArray("2x0e + 1o", x)).array, (normal(5),)))
of(
    "e3nn_jax",
    "soft one hot",
    lambda e: (
        lambda x: e.soft_one_hot_linspace(x, start=0.0, end=2.0, number=4, basis="gaussian", cutoff=False),
        (positive(3),),
    ),
)


@case("ott")
def sinkhorn_divergence():
    from ott.geometry import pointcloud
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn

    def cost(x, y):
        geometry = pointcloud.PointCloud(x, y, epsilon=0.5)
        return sinkhorn.Sinkhorn(threshold=1e-5)(linear_problem.LinearProblem(geometry)).reg_ot_cost

    return cost, (normal(4, 2), normal(3, 2, seed=1))


of(
    "ott.geometry.costs",
    "bures",
    lambda c: (
        lambda x, y: c.Bures(2)(
            jnp.concatenate([x, jnp.array([2.0, 0.3, 0.3, 1.0])]),
            jnp.concatenate([y, jnp.array([1.0, -0.2, -0.2, 1.5])]),
        ),
        (normal(2), normal(2, seed=1)),
    ),
)


@case("jax_md")
def lennard_jones():
    from jax_md import energy, space

    displacement, _ = space.periodic(4.0)
    return energy.lennard_jones_pair(displacement), (jnp.array([[0.1, 0.2], [1.3, 0.1], [0.3, 1.4], [2.1, 2.2]]),)


@case("jax_md")
def morse():
    from jax_md import energy, space

    displacement, _ = space.free()
    return energy.morse_pair(displacement), (normal(4, 3),)


of(
    "brax.math",
    "rotation by a quaternion",
    lambda m: (lambda v, q: m.rotate(v, q / jnp.linalg.norm(q)), (normal(3), normal(4, seed=1))),
)
of(
    "brax.math",
    "angle of a quaternion",
    lambda m: (lambda q: m.quat_to_euler(q / jnp.linalg.norm(q)), (jnp.array([1.0, 0.2, -0.1, 0.3]),)),
)

of("dm_pix", "colours", lambda p: (lambda x: p.adjust_hue(x, 0.1), (positive(2, 2, 3) / 2,)))
of("dm_pix", "blur", lambda p: (lambda x: p.gaussian_blur(x, 1.0, 3), (positive(5, 5, 2),)))
of(
    "dm_pix",
    "structural similarity",
    lambda p: (lambda x, y: p.ssim(x, y), (positive(12, 12, 1) / 2, positive(12, 12, 1, seed=1) / 2)),
)

of(
    "interpax",
    "cubic spline",
    lambda i: (lambda t, y: i.interp1d(t, jnp.arange(6.0), y, method="cubic2"), (jnp.array([1.3, 3.6]), normal(6))),
)
of(
    "interpax",
    "akima",
    lambda i: (lambda y: i.interp1d(jnp.array([1.3, 3.6]), jnp.arange(6.0), y, method="akima"), (normal(6),)),
)
of(
    "interpax",
    "surface",
    lambda i: (
        lambda x, y, f: i.interp2d(x, y, jnp.arange(4.0), jnp.arange(4.0), f, method="cubic"),
        (jnp.array([1.3, 0.4]), jnp.array([2.2, 1.6]), normal(4, 4)),
    ),
)

of(
    "quadax",
    "romberg",
    lambda q: (
        lambda a: q.romberg(lambda x, a: jnp.sin(a * x), jnp.array([0.0, 1.0]), (a,), epsabs=1e-5, epsrel=1e-5)[0],
        (jnp.float32(1.7),),
    ),
)
of(
    "quadax",
    "adaptive",
    lambda q: (
        lambda a, b: q.quadgk(lambda x: jnp.exp(-a * x**2), jnp.stack([jnp.zeros(()), b]), epsabs=1e-5, epsrel=1e-5)[0],
        (jnp.float32(1.2), jnp.float32(1.1)),
    ),
)

of("jaxlie", "pose", lambda j: (lambda x, p: j.SE3.exp(x).apply(p), (normal(6), normal(3, seed=1))))
of(
    "jaxlie",
    "logarithm of a rotation",
    lambda j: (lambda x, y: (j.SO3.exp(x) @ j.SO3.exp(y)).log(), (normal(3) / 2, normal(3, seed=1) / 2)),
)
