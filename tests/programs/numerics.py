"""What people compute: likelihoods, filters, solvers, decompositions, dynamic programmes."""

import jax
import jax.numpy as jnp
import jax.scipy as jsp
from jax import lax
from jax.experimental.ode import odeint

from tests.programs import Draw, program

draw = Draw(2)


@program(draw.normal(5, 2), draw.normal(5), draw.positive(), draw.positive(2), draw.positive(), small=True, jit=True)
def gaussian_process(x, y, amplitude, scales, noise):
    d = (x[:, None] - x[None]) / scales
    k = amplitude * jnp.exp(-0.5 * (d**2).sum(-1)) + noise * jnp.eye(5)
    chol = jnp.linalg.cholesky(k)
    white = jsp.linalg.solve_triangular(chol, y, lower=True)
    other = y @ jsp.linalg.cho_solve((chol, True), y)
    return -0.5 * white @ white - jnp.log(jnp.diag(chol)).sum() - 0.1 * other


def field(y, t, a):
    return jnp.stack([y[1], -a[0] * jnp.sin(y[0]) - a[1] * y[1] + jnp.cos(t)])


@program(draw.normal(2), draw.positive(2), small=True, jit=True)
def runge_kutta(y, a):
    def step(y, t):
        h = 0.1
        k1 = field(y, t, a)
        k2 = field(y + h / 2 * k1, t + h / 2, a)
        k3 = field(y + h / 2 * k2, t + h / 2, a)
        k4 = field(y + h * k3, t + h, a)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y, y

    return lax.scan(step, y, jnp.arange(6) * 0.1)


@program(draw.normal(2), draw.positive(2))
def leapfrog_by_fori(y, a):
    def step(i, state):
        q, p = state
        p = p - 0.05 * a[0] * jnp.sin(q) * (i + 1)
        return q + 0.1 * p, p - 0.05 * a[1] * jnp.sin(q)

    return lax.fori_loop(0, 5, step, (y[0], y[1]))


@program(draw.normal(2), draw.positive(2))
def adaptive_ode(y, a):
    return odeint(field, y, jnp.array([0.0, 0.3, 0.7]), a, rtol=1e-6, atol=1e-6)


@program(draw.definite(4), draw.normal(4, 2))
def eigh_loss(a, b):
    w, v = jnp.linalg.eigh(a)
    return (v * jnp.exp(-w / 4)) @ (v.T @ b), w


@program(draw.normal(5, 3), draw.normal(3, 3, 4))
def svd_loss(a, batch):
    u, s, vt = jnp.linalg.svd(a, full_matrices=False)
    s2 = jnp.linalg.svd(batch, compute_uv=False)
    return (u * jnp.log1p(s)) @ vt, s2, jnp.linalg.norm(batch, ord="nuc", axis=(1, 2)), jnp.linalg.pinv(a)


@program(draw.normal(3, 16), draw.complex(9), draw.complex(2, 6), jit=True)
def fft_filter(signal, response, z):
    out = jnp.fft.irfft(jnp.fft.rfft(signal) * response, n=16)
    return out, jnp.fft.fft2(z) * jnp.conj(z), jnp.abs(jnp.fft.ifft(z * z)), jnp.fft.fftshift(jnp.fft.hfft(z))


@program(draw.normal(6, 2), draw.normal(3), draw.normal(3, 2), draw.normal(3, 2), small=True)
def mixture(x, weights, means, scales):
    logp = jsp.stats.norm.logpdf(x[:, None], means, jnp.exp(scales)).sum(-1) + jax.nn.log_softmax(weights)
    return jax.nn.logsumexp(logp, -1).sum()


@program(
    draw.normal(5, 1), draw.normal(2, 2) / 2, draw.normal(1, 2), draw.definite(2), draw.definite(1), draw.normal(2)
)
def kalman(ys, a, c, q, r, m):
    def step(carry, y):
        m, p = carry
        m, p = a @ m, a @ p @ a.T + q
        s = c @ p @ c.T + r
        gain = jnp.linalg.solve(s, c @ p).T
        error = y - c @ m
        ll = -0.5 * (error @ jnp.linalg.solve(s, error) + jnp.linalg.slogdet(s)[1])
        return (m + gain @ error, p - gain @ s @ gain.T), ll

    (m, p), lls = lax.scan(step, (m, jnp.eye(2)), ys)
    return lls.sum(), m, p


@program(draw.normal(4, 3), draw.normal(3, 3), draw.normal(3), draw.normal(2, 2), draw.normal(2, 2))
def normalizing_flow(x, w, b, w1, w2):
    x, logdet = x @ w + b, jnp.linalg.slogdet(w)[1] + jnp.log(jnp.abs(jnp.linalg.det(w)))
    one, two = x[:, :1], x[:, 1:]
    shift, log_scale = jnp.split(jnp.tanh(jnp.repeat(one, 2, 1) @ w1) @ w2, 2, 1)
    two = two * jnp.exp(log_scale) + shift
    jacobian = jax.vmap(jax.jacfwd(lambda v: jnp.tanh(w @ v)))(x)
    return jsp.stats.norm.logpdf(jnp.concatenate([one, two], 1)).sum(-1) + log_scale.sum(-1) + logdet, jacobian


@program(draw.normal(4, 2), draw.normal(5, 2))
def soft_dtw(a, b):
    cost = ((a[:, None] - b[None]) ** 2).sum(-1)

    def row(previous, costs):
        def cell(left, inputs):
            up, corner, c = inputs
            value = c - jax.nn.logsumexp(-jnp.stack([up, left, corner]))
            return value, value

        _, new = lax.scan(cell, 1e3, (previous[1:], previous[:-1], costs))
        return jnp.concatenate([jnp.array([1e3]), new]), None

    start = jnp.concatenate([jnp.zeros(1), jnp.full(5, 1e3)])
    return lax.scan(row, start, cost)[0][-1]


def newton_root(a):
    return lax.custom_root(
        lambda x: x**3 + x - a, jnp.ones_like(a),
        lambda f, x: lax.fori_loop(0, 20, lambda _, x: x - f(x) / (3 * x**2 + 1), x),
        lambda g, y: y / g(1.0),
    )  # fmt: skip


@program(draw.positive(3), jit=True)
def implicit_root(a):
    return jax.vmap(newton_root)(a)


@program(draw.definite(4), draw.normal(4))
def iterative_solve(a, b):
    x, _ = jsp.sparse.linalg.cg(lambda v: a @ v, b, tol=1e-14, maxiter=50)
    y, _ = jsp.sparse.linalg.bicgstab(lambda v: a @ v, b, tol=1e-14, maxiter=50)
    return x, y


@program(draw.normal(4), draw.normal(5), draw.normal(5))
def interpolation(x, xp, fp):
    xp = jnp.cumsum(jnp.abs(xp) + 0.1) - 1.5
    return jnp.interp(x, xp, fp), jnp.interp(x * 0.3, xp, fp, left=0.5, right=1.0), jnp.interp(x, xp, fp, period=2.0)


@program(draw.normal(2, 6, 5))
def resizing(image):
    shapes = [((2, 9, 7), "bilinear"), ((2, 3, 3), "lanczos3"), ((2, 4, 8), "cubic"), ((2, 12, 5), "nearest")]
    resized = [jax.image.resize(image, shape, method) for shape, method in shapes]
    coordinates = jnp.stack(jnp.meshgrid(jnp.linspace(0.2, 4.3, 3), jnp.linspace(0.1, 3.2, 4), indexing="ij"))
    return resized, jsp.ndimage.map_coordinates(image[0], list(coordinates), order=1, mode="reflect")


@program(draw.normal(4, 7))
def order_statistics(x):
    top, _ = lax.top_k(x, 3)
    keys, values = lax.sort((x, jnp.cos(x)), num_keys=1)
    return (
        jnp.sort(x) * jnp.arange(7.0), top, jnp.median(x, 1), jnp.percentile(x, 30.0, axis=1), jnp.quantile(x, 0.7),
        keys, values, jnp.sort(x, axis=0, descending=True), jnp.max(x, 1), jnp.partition(x, 3), jnp.ptp(x), jnp.nanmedian(x),
    )  # fmt: skip


@program(draw.normal(3, 4, 5), draw.normal(5, 4), draw.ints(3, high=5), small=True)
def vmap_of_all_kinds(x, y, i):
    inner = jax.vmap(lambda a, b: jnp.dot(a, jnp.tanh(b)), in_axes=(1, None))
    outer = jax.vmap(inner, in_axes=(0, 1), out_axes=1)
    picked = jax.vmap(lambda a, k: lax.dynamic_index_in_dim(a, k, 1, keepdims=False))(x, i)
    branches = jax.vmap(lambda k, a: lax.switch(k % 3, [jnp.sin, jnp.cos, lambda v: v**2], a))(i, x[:, 0])
    vectorized = jnp.vectorize(lambda a, b: a @ b, signature="(n),(n)->()")(x, y.T)
    written = jax.vmap(lambda a, k, v: a.at[:, k].set(v), in_axes=(0, 0, None))(x, i, y[0])
    return outer(x, y.T[:, :3]), picked, branches, vectorized, written


@program(draw.normal(3, 4), draw.normal(4))
def loops_and_nested_jit(x, w):
    f = jax.jit(lambda a: jnp.sin(a) * w)
    g = jax.jit(lambda a: f(a) + f(f(a)) + jax.jit(lambda: w.sum())())
    mapped = lax.map(lambda row: g(row) @ w, x)
    batched = lax.map(lambda row: f(row).sum(), x, batch_size=2)
    windows = lax.reduce_window(x, 0.0, lax.add, (2, 2), (1, 1), "SAME")
    flat, back = jax.flatten_util.ravel_pytree({"a": x, "b": w})
    return mapped, batched, windows, back(flat * jnp.cos(flat)), lax.cummax(x, axis=1), lax.cumlogsumexp(x, axis=0)
