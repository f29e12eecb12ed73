"""Correct functions of many kinds: no checker may raise a false alarm on any of them.

Each entry: name -> (function, arguments). The first NEAR of each kind run by default, the rest in the slow run.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

rng = np.random.default_rng(7)
F32, BF16, F16 = jnp.float32, jnp.bfloat16, jnp.float16


def normal(*shape, dtype=F32, seed=0):
    return jnp.asarray(np.asarray(np.random.default_rng(seed).standard_normal(shape), dtype))


def positive(*shape, dtype=F32, seed=0):
    return jnp.asarray(np.asarray(np.random.default_rng(seed).uniform(0.5, 2.0, shape), dtype))


def unit(*shape, dtype=F32, seed=0):
    return jnp.asarray(np.asarray(np.random.default_rng(seed).uniform(-0.9, 0.9, shape), dtype))


def spd(n, cond=10.0, dtype=F32, seed=0):
    """A symmetric matrix with eigenvalues from 1 to 1/cond."""
    q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, n)))
    return jnp.asarray(np.asarray(q @ np.diag(np.geomspace(1.0, 1.0 / cond, n)) @ q.T, dtype))


def hilbert(n, dtype=F32):
    return jnp.asarray(np.asarray(1.0 / (np.arange(n)[:, None] + np.arange(n) + 1), dtype))


Z = jnp.zeros
TIES = jnp.array([1.0, 1.0, 0.5, 1.0])
ZEROS = jnp.array([0.0, -1.0, 2.0, 0.0])

ELEMENTWISE = {
    f"jnp.{name}": (getattr(jnp, name), (normal(5),))
    for name in ("sin", "cos", "tan", "tanh", "sinh", "cosh", "exp", "expm1", "arctan", "arcsinh", "square", "sinc", "exp2")
} | {
    f"jnp.{name}": (getattr(jnp, name), (positive(5),)) for name in ("log", "log1p", "log2", "log10", "sqrt", "cbrt", "reciprocal", "i0", "arccosh")
    if name != "arccosh"
} | {
    f"jnp.{name}": (getattr(jnp, name), (unit(5),)) for name in ("arcsin", "arccos", "arctanh")
} | {
    f"scipy.{name}": (getattr(jax.scipy.special, name), (positive(4),)) for name in ("erf", "erfc", "gammaln", "digamma", "expit", "ndtr", "log_ndtr", "i0e", "i1e")
} | {
    f"nn.{name}": (getattr(jax.nn, name), (normal(6),))
    for name in ("relu", "gelu", "silu", "elu", "selu", "softplus", "sigmoid", "log_sigmoid", "softmax", "log_softmax", "hard_tanh", "leaky_relu", "celu", "soft_sign", "mish", "squareplus")
}  # fmt: skip

KINKS = {
    "abs at zero": (jnp.abs, (ZEROS,)),
    "relu at zero": (jax.nn.relu, (ZEROS,)),
    "relu of all zeros": (lambda x: jnp.sum(jax.nn.relu(x) * 2), (Z((3, 4)),)),
    "max with ties": (jnp.max, (TIES,)),
    "min with ties": (jnp.min, (-TIES,)),
    "maximum of equals": (jnp.maximum, (TIES, jnp.ones(4))),
    "sort with ties": (lambda x: jnp.sort(x) * jnp.arange(4.0), (TIES,)),
    "median": (jnp.median, (normal(7),)),
    "median of even": (jnp.median, (normal(6),)),
    "clip at its bounds": (lambda x: jnp.clip(x, 0.0, 1.0), (jnp.array([0.0, 0.5, 1.0, 2.0]),)),
    "leaky relu at zero": (jax.nn.leaky_relu, (ZEROS,)),
    "hard tanh at one": (jax.nn.hard_tanh, (jnp.array([1.0, -1.0, 0.3]),)),
    "relu6 at six": (jax.nn.relu6, (jnp.array([6.0, 0.0, 3.0]),)),
    "norm l1 at zero": (lambda x: jnp.sum(jnp.abs(x)), (ZEROS,)),
    "norm inf with ties": (lambda x: jnp.max(jnp.abs(x)), (jnp.array([1.0, -1.0, 0.2]),)),
    "huber at its bend": (lambda x: jnp.where(jnp.abs(x) < 1, x * x / 2, jnp.abs(x) - 0.5), (jnp.array([1.0, 0.5, -2.0]),)),
    "hinge": (lambda x, y: jnp.maximum(0.0, 1 - x * y).sum(), (jnp.array([1.0, -0.5]), jnp.array([1.0, 1.0]))),
    "max pool with ties": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2,), (2,), "VALID"), (jnp.array([1.0, 1.0, 2.0, 0.0]),)),
    "cummax": (lambda x: lax.cummax(x), (jnp.array([0.3, 0.3, 1.0, 0.5]),)),
    "top k": (lambda x: lax.top_k(x, 2)[0], (normal(6),)),
    "sqrt of square": (lambda x: jnp.sqrt(x * x + 1e-12), (jnp.array([1e-3, 1.0]),)),
    "where": (lambda x: jnp.where(x > 0, x**2, -x), (jnp.array([0.5, -0.5, 2.0]),)),
    "sign times": (lambda x: jnp.sign(x) * x, (jnp.array([0.5, -0.5]),)),
    "floor": (lambda x: x - jnp.floor(x), (jnp.array([0.3, 1.7]),)),
    "floor at whole numbers": (lambda x: x - jnp.floor(x), (jnp.array([1.0, 2.5]),)),
    "round": (lambda x: x * jnp.round(x), (jnp.array([1.2, 2.7]),)),
    "sqrt at zero": (jnp.sqrt, (jnp.array([0.0, 1.0]),)),
    "two relu layers": (lambda x, w: jax.nn.relu(jax.nn.relu(x @ w) @ w.T).sum(), (normal(5, 4), normal(4, 3, seed=1))),
    "remainder": (lambda x: jnp.mod(x, 1.0), (jnp.array([0.3, 1.7]),)),
    "prod with a zero": (jnp.prod, (jnp.array([2.0, 0.0, 3.0]),)),
    "prod with two zeros": (jnp.prod, (jnp.array([0.0, 0.0, 3.0]),)),
}  # fmt: skip

LINALG = {
    "inverse": (jnp.linalg.inv, (spd(4),)),
    "inverse, ill-conditioned": (lambda a: jnp.linalg.inv(a).sum(), (spd(4, 1e4),)),
    "inverse of Hilbert": (lambda a: jnp.linalg.inv(a).sum(), (hilbert(5),)),
    "solve": (jnp.linalg.solve, (spd(4), normal(4))),
    "solve, ill-conditioned": (lambda a, b: jnp.linalg.solve(a, b).sum(), (spd(4, 1e5), normal(4))),
    "solve Hilbert": (jnp.linalg.solve, (hilbert(4), normal(4))),
    "determinant": (jnp.linalg.det, (spd(3),)),
    "determinant, nearly singular": (jnp.linalg.det, (spd(3, 1e6),)),
    "slogdet": (lambda a: jnp.linalg.slogdet(a)[1], (spd(4, 1e3),)),
    "cholesky": (lambda a: jnp.linalg.cholesky(a @ a.T + jnp.eye(3)), (normal(3, 3),)),
    "cholesky, ill-conditioned": (lambda a: jnp.linalg.cholesky((a + a.T) / 2).sum(), (spd(4, 1e4),)),
    "eigh": (lambda a: jnp.linalg.eigh((a + a.T) / 2)[0], (spd(4),)),
    "eigh, close eigenvalues": (lambda a: (jnp.linalg.eigh((a + a.T) / 2)[0] ** 2).sum(), (spd(3, 1.001),)),
    "svd": (lambda a: jnp.linalg.svd(a, compute_uv=False), (normal(3, 4),)),
    "nuclear norm": (lambda a: jnp.linalg.norm(a, "nuc"), (normal(3, 3),)),
    "qr": (lambda a: jnp.linalg.qr(a)[1], (normal(3, 3),)),
    "pinv": (jnp.linalg.pinv, (normal(4, 2),)),
    "matrix power": (lambda a: jnp.linalg.matrix_power(a, 3), (normal(3, 3),)),
    "expm": (jax.scipy.linalg.expm, (normal(3, 3) * 0.3,)),
    "triangular solve": (lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True), (jnp.tril(spd(3)) + jnp.eye(3), normal(3))),
    "least squares": (lambda a, b: jnp.linalg.lstsq(a, b)[0], (normal(5, 2), normal(5))),
    "trace of inverse": (lambda a: jnp.trace(jnp.linalg.inv(a)), (spd(3, 1e2),)),
    "norm": (jnp.linalg.norm, (normal(4),)),
    "conjugate gradient": (lambda a, b: jax.scipy.sparse.linalg.cg(lambda v: a @ v + 2 * v, b, maxiter=8)[0], (spd(3), normal(3))),
    "inverse in float64": (lambda a: jnp.linalg.inv(a).sum(), (np.asarray(hilbert(6), np.float64),)),
}  # fmt: skip

NARROW = {
    "bf16 softmax": (lambda x: jax.nn.softmax(x), (normal(6, dtype=BF16),)),
    "bf16 matmul": (lambda x, y: (x @ y).sum(), (normal(4, 5, dtype=BF16), normal(5, 3, dtype=BF16, seed=1))),
    "bf16 layer norm": (lambda x: (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-2), (normal(3, 8, dtype=BF16),)),
    "bf16 mlp": (lambda x, w: jnp.tanh(jnp.tanh(x @ w) @ w).sum(), (normal(2, 4, dtype=BF16), normal(4, 4, dtype=BF16, seed=1))),
    "bf16 sum of squares": (lambda x: jnp.sum(x * x), (normal(50, dtype=BF16),)),
    "bf16 logsumexp": (jax.nn.logsumexp, (normal(7, dtype=BF16),)),
    "bf16 gelu": (jax.nn.gelu, (normal(6, dtype=BF16),)),
    "bf16 relu at zero": (jax.nn.relu, (ZEROS.astype(BF16),)),
    "bf16 inside float32": (lambda x: jnp.sum(jnp.tanh(x.astype(BF16)).astype(F32) * x), (normal(5),)),
    "bf16 exp of large": (lambda x: jnp.exp(x * 3), (normal(5, dtype=BF16),)),
    "bf16 division": (lambda x, y: x / y, (normal(5, dtype=BF16), positive(5, dtype=BF16))),
    "bf16 scan": (lambda x: lax.scan(lambda c, v: (c * 0.5 + v, c), jnp.zeros((), BF16), x)[0], (normal(6, dtype=BF16),)),
    "f16 softmax": (lambda x: jax.nn.softmax(x), (normal(6, dtype=F16),)),
    "f16 matmul": (lambda x: x @ x.T, (normal(3, 3, dtype=F16),)),
    "f16 norm": (lambda x: jnp.sqrt(jnp.sum(x * x)), (normal(5, dtype=F16),)),
    "f16 tanh": (jnp.tanh, (normal(5, dtype=F16),)),
    "f32 cancellation": (lambda x: jnp.sum((1000.0 + x) - 1000.0), (normal(5),)),
    "f32 variance of large numbers": (lambda x: jnp.var(x + 100.0), (normal(8),)),
    "f32 sum of many": (lambda x: jnp.sum(x), (normal(2000),)),
    "f32 tiny numbers": (lambda x: jnp.log(x).sum(), (positive(4) * 1e-20,)),
    "f32 huge numbers": (lambda x: jnp.log(x).sum(), (positive(4) * 1e20,)),
    "f32 mixed sizes": (lambda x: jnp.sum(x**2), (jnp.array([1e-6, 1.0, 1e6]),)),
}  # fmt: skip


def mlp(params, x):
    for w, b in params:
        x = jnp.tanh(x @ w + b)
    return x.sum()


def attention(q, k, v):
    return jax.nn.softmax(q @ k.T / jnp.sqrt(q.shape[-1])) @ v


def rnn(w, xs):
    return lax.scan(lambda h, x: (jnp.tanh(w @ h + x),) * 2, jnp.zeros(3), xs)[1].sum()


def newton(x):
    return lax.fori_loop(0, 5, lambda _, y: (y + x / y) / 2, x)


@jax.custom_jvp
def safe_norm(x):
    return jnp.sqrt(jnp.sum(x * x))


@safe_norm.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    n = safe_norm(x)
    return n, jnp.sum(x * t) / n


@jax.custom_vjp
def clipped_log(x):
    return jnp.log(jnp.maximum(x, 1e-3))


clipped_log.defvjp(lambda x: (clipped_log(x), x), lambda x, ct: (jnp.where(x > 1e-3, ct / x, 0.0),))

PROGRAMS = {
    "mlp": (mlp, ([(normal(3, 4), normal(4)), (normal(4, 2, seed=1), normal(2))], normal(5, 3))),
    "attention": (attention, (normal(3, 4), normal(3, 4, seed=1), normal(3, 2, seed=2))),
    "rnn": (rnn, (normal(3, 3) * 0.5, normal(4, 3, seed=1))),
    "fori loop": (newton, (positive(3),)),
    "cond": (lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), (normal(3),)),
    "switch": (lambda x: lax.switch(1, [jnp.sin, jnp.exp, jnp.cos], x), (normal(3),)),
    "vmap": (jax.vmap(lambda x: jnp.sin(x).sum()), (normal(3, 4),)),
    "jit inside": (jax.jit(lambda x: jnp.exp(jnp.sin(x))), (normal(3),)),
    "checkpoint": (jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum()), (normal(3),)),
    "stop gradient": (lambda x: jnp.sum(x * lax.stop_gradient(x)), (normal(3),)),
    "straight through value": (lambda x: x + lax.stop_gradient(jnp.sin(x) - x), (normal(3),)),
    "stop gradient in a scan": (lambda x: lax.scan(lambda c, v: (c + v * lax.stop_gradient(c), v), jnp.float32(1), x)[0], (normal(4),)),
    "custom jvp": (safe_norm, (normal(4),)),
    "custom vjp": (lambda x: clipped_log(x).sum(), (positive(4),)),
    "logsumexp of large": (jax.nn.logsumexp, (jnp.array([100.0, 101.0, 99.0]),)),
    "cross entropy": (lambda x: -jax.nn.log_softmax(x)[jnp.arange(3), jnp.array([0, 2, 1])].mean(), (normal(3, 4),)),
    "convolution": (lambda x, w: lax.conv(x, w, (1, 1), "SAME"), (normal(1, 2, 4, 4), normal(3, 2, 3, 3, seed=1))),
    "einsum": (lambda a, b: jnp.einsum("ij,kj->ik", a, b), (normal(2, 3), normal(4, 3, seed=1))),
    "indexing": (lambda x: x[jnp.array([0, 0, 2])] ** 2, (normal(4),)),
    "scatter": (lambda x, v: x.at[jnp.array([0, 2])].add(v).sum() ** 2, (normal(4), normal(2, seed=1))),
    "dynamic slice": (lambda x: lax.dynamic_slice(x, (1,), (2,)) ** 2, (normal(4),)),
    "fft": (lambda x: jnp.abs(jnp.fft.fft(x)) ** 2, (normal(4),)),
    "complex": (lambda z: jnp.real(z * jnp.conj(z) * jnp.exp(z)), (jnp.asarray([0.3 + 0.2j, -0.5 + 1j], jnp.complex64),)),
    "complex in, complex out": (lambda z: z * z * jnp.conj(z), (jnp.asarray([0.3 + 0.2j, 1 - 0.5j], jnp.complex64),)),
    "concatenate": (lambda x, y: jnp.concatenate([x, y]) ** 2, (normal(3), normal(2, seed=1))),
    "cumulative sum": (jnp.cumsum, (normal(5),)),
    "cumulative product": (jnp.cumprod, (normal(4),)),
    "interpolation": (lambda x: jnp.interp(x, jnp.arange(4.0), jnp.array([0.0, 1.0, 0.5, 2.0])), (jnp.array([0.5, 1.7]),)),
    "polynomial": (lambda c: jnp.polyval(c, 2.0), (normal(4),)),
    "scalar": (lambda x: x**3, (2.0,)),
    "power": (lambda x, y: x**y, (positive(3), positive(3, seed=1))),
    "integer argument": (lambda x, n: x * n, (normal(3), jnp.arange(3))),
    "several outputs": (lambda x: (jnp.sin(x), {"a": jnp.cos(x).sum(), "n": jnp.argmax(x)}), (normal(3),)),
    "constant output": (lambda x: (x * 0.0).sum() + 3.0, (normal(3),)),
    "does not depend": (lambda x, y: jnp.sum(x), (normal(3), normal(3))),
    "empty": (lambda x: jnp.sum(x) + 0.0, (Z((0,)),)),
    "long chain": (lambda x: lax.fori_loop(0, 30, lambda _, v: jnp.sin(v) + 0.1, x), (normal(2),)),
    "odeint step": (lambda y: y + 0.1 * (-y + 0.05 * (-y)), (normal(3),)),
    "gaussian": (lambda x, m, s: jax.scipy.stats.norm.logpdf(x, m, s).sum(), (normal(3), normal(), positive())),
    "gamma": (lambda a: jax.scipy.stats.gamma.logpdf(2.0, a), (positive(3),)),
    "beta function": (jax.scipy.special.betaln, (positive(3), positive(3, seed=1))),
    "group norm": (lambda x: (x - x.mean()) / jnp.sqrt(x.var() + 1e-5), (normal(2, 3),)),
    "dropout by mask": (lambda x: jnp.where(jnp.array([True, False, True]), x, 0.0) * 1.5, (normal(3),)),
    "one hot": (lambda x: jax.nn.one_hot(jnp.array([0, 2]), 3) @ x, (normal(3),)),
    "roll and flip": (lambda x: jnp.roll(x, 1) * jnp.flip(x), (normal(4),)),
    "outer": (jnp.outer, (normal(3), normal(2, seed=1))),
    "kron": (jnp.kron, (normal(2, 2), normal(2, 2, seed=1))),
    "tril": (lambda x: jnp.tril(x) @ jnp.triu(x), (normal(3, 3),)),
    "pad": (lambda x: jnp.pad(x, 1) ** 2, (normal(3),)),
    "hypot": (jnp.hypot, (normal(3), normal(3, seed=1))),
    "arctan2": (jnp.arctan2, (normal(3), normal(3, seed=1))),
    "logaddexp": (jnp.logaddexp, (normal(3), normal(3, seed=1))),
    "mean and std": (lambda x: x.mean() / x.std(), (normal(6),)),
    "cosine similarity": (lambda a, b: a @ b / jnp.linalg.norm(a) / jnp.linalg.norm(b), (normal(4), normal(4, seed=1))),
    "bessel": (jax.scipy.special.i1, (normal(3),)),
    "lerp": (lambda a, b, t: a + t * (b - a), (normal(3), normal(3, seed=1), positive())),
    "energy": (lambda x: jnp.sum(1.0 / (1.0 + ((x[:, None] - x[None]) ** 2).sum(-1))), (normal(4, 2),)),
    "map": (lambda x: lax.map(jnp.sin, x), (normal(4),)),
    "associative scan": (lambda x: lax.associative_scan(jnp.multiply, x), (normal(4),)),
    "while loop of fixed length": (lambda x: lax.fori_loop(0, 3, lambda i, v: v * x, jnp.ones(3)), (normal(3),)),
    "swap axes": (lambda x: jnp.swapaxes(x, 0, 1) @ x, (normal(3, 2),)),
    "take along axis": (lambda x: jnp.take_along_axis(x, jnp.array([[1], [0]]), 1), (normal(2, 3),)),
    "segment sum": (lambda x: jax.ops.segment_sum(x, jnp.array([0, 0, 1]), 2) ** 2, (normal(3),)),
    "convolve": (jnp.convolve, (normal(5), normal(3, seed=1))),
    "diag": (lambda x: jnp.diag(x) @ jnp.diag(x), (normal(3),)),
    "reshape": (lambda x: x.reshape(2, 3) @ x.reshape(3, 2), (normal(6),)),
    "expand": (lambda x: x[:, None] * x[None], (normal(3),)),
    "relu squared": (lambda x: jax.nn.relu(x) ** 2, (ZEROS,)),
    "swish with a weight": (lambda x, b: x * jax.nn.sigmoid(b * x), (normal(4), positive())),
    "mixture of gaussians": (lambda m: jax.nn.logsumexp(-((1.0 - m) ** 2)), (normal(3),)),
    "rotation": (lambda t: jnp.array([[jnp.cos(t), -jnp.sin(t)], [jnp.sin(t), jnp.cos(t)]]) @ jnp.ones(2), (positive(),)),
    "quadratic form": (lambda x, a: x @ a @ x, (normal(3), normal(3, 3, seed=1))),
    "entropy": (lambda x: -jnp.sum(jax.nn.softmax(x) * jax.nn.log_softmax(x)), (normal(4),)),
    "log det of a sum": (lambda x: jnp.linalg.slogdet(jnp.eye(3) + x @ x.T)[1], (normal(3, 2),)),
}  # fmt: skip

KINDS = {"elementwise": ELEMENTWISE, "kinks": KINKS, "linalg": LINALG, "narrow": NARROW, "programs": PROGRAMS}
NEAR = {"elementwise": 1, "kinks": 3, "linalg": 1, "narrow": 1, "programs": 2}
