"""Whole namespaces of jax.numpy, jax.scipy, jax.nn and jax.lax, many functions to a program."""

import jax
import jax.numpy as jnp
import jax.scipy.special as sp
import jax.scipy.stats as st
from jax import lax

from tests.programs import Draw, program

draw = Draw(3)


@program(draw.normal(4, 4), draw.definite(4), draw.normal(4, 3), draw.normal(4))
def linalg(a, s, b, v):
    l = jnp.linalg
    q, r = l.qr(b)
    lu, _, _ = lax.linalg.lu(a)
    return (
        l.det(a), l.inv(a), l.solve(a, b), l.slogdet(a), l.norm(a), l.norm(b, axis=0), l.norm(v, ord=3), l.norm(a, ord="nuc"),
        l.norm(a, ord=2), l.norm(a, ord=1), l.norm(a, ord=jnp.inf), l.matrix_power(a, 3), l.matrix_power(a, -2), l.multi_dot([a, s, b]),
        q, r, l.cholesky(s), l.eigvalsh(s), l.lstsq(b, v)[0], l.pinv(b), l.cond(s), l.vander(v) if hasattr(l, "vander") else v, lu,
        l.outer(v, v), l.cross(b[0], b[1]), l.tensorinv(a.reshape(2, 2, 4), ind=2), l.trace(a), l.vecdot(a, s), l.svdvals(b),
        jax.scipy.linalg.expm(a * 0.3), jax.scipy.linalg.block_diag(a, b), jax.scipy.linalg.toeplitz(v), jax.scipy.linalg.cho_solve(
            jax.scipy.linalg.cho_factor((s + s.T) / 2), v), jax.scipy.linalg.lu_solve(jax.scipy.linalg.lu_factor(a), v),
        jnp.kron(a, b), jnp.tensordot(a, s, 2), jnp.einsum("ij,jk,k->i", a, s, v),
    )  # fmt: skip


@program(draw.complex(3, 3), draw.complex(3), draw.normal(3, 3))
def complex_linalg(a, v, r):
    h = a @ a.conj().T + 3 * jnp.eye(3)
    w, u = jnp.linalg.eigh(h)
    e = jnp.linalg.eigvals(r)
    return (
        jnp.linalg.solve(a, v), jnp.linalg.det(a), jnp.linalg.inv(a), w, (u * jnp.exp(-w)) @ u.conj().T, jnp.linalg.cholesky(h),
        jnp.abs(e).sum(), jnp.angle(a), jnp.exp(1j * r) * v, jnp.sqrt(a), jnp.log(a), a**2.5, jnp.abs(a) ** 2, jnp.vdot(v, v),
        jnp.real(a) * jnp.imag(a), lax.complex(r, jnp.sin(r)), jnp.tanh(a), jnp.linalg.norm(v), jnp.sinc(r), jnp.linalg.qr(a)[1],
    )  # fmt: skip


@program(draw.unit(4), 1.2 + draw.positive(4), draw.positive(4))
def special(u, a, b):
    return (
        sp.gammaln(a), sp.digamma(a), sp.polygamma(1, a), sp.erf(u), sp.erfc(u), sp.erfinv(u), sp.logit(u), sp.expit(u), sp.ndtri(u),
        sp.ndtr(u), sp.log_ndtr(u), sp.betainc(2.0, 1.5, u), sp.betaln(a, b), sp.gammainc(a, b), sp.gammaincc(a, b), sp.i0(u), sp.i0e(u),
        sp.i1(u), sp.i1e(u), sp.xlogy(u, a), sp.xlog1py(u, a), sp.entr(u), sp.kl_div(u, b), sp.rel_entr(u, b), sp.logsumexp(u), sp.zeta(a, b),
        sp.multigammaln(a + 2, 2), sp.gamma(a), sp.poch(a, b), sp.expi(u), sp.exp1(u), sp.expn(2, u), sp.hyp1f1(a, b, u), sp.spence(u),
        sp.beta(a, b), sp.softmax(u), sp.log_softmax(u), sp.logsumexp(u, b=b), sp.factorial(a), sp.gammasgn(a),
    )  # fmt: skip


@program(draw.unit(4), draw.normal(4), 1.5 + draw.positive(4), draw.positive(4), draw.ints(4, high=4) + 1)
def densities(u, x, a, b, k):
    p = u / u.sum()
    return (
        st.norm.logpdf(x, u, a), st.norm.logcdf(x), st.norm.ppf(u), st.norm.logsf(x), st.beta.logpdf(u, a, b), st.beta.cdf(u, 2.0, 1.5),
        st.cauchy.logpdf(x, u, a), st.chi2.logpdf(b, a), st.chi2.cdf(b, a), st.dirichlet.logpdf(p, a), st.expon.logpdf(b),
        st.gamma.logpdf(b, a), st.gamma.cdf(b, a), st.laplace.logpdf(x, u, a), st.laplace.cdf(x), st.logistic.logpdf(x), st.logistic.cdf(x),
        st.pareto.logpdf(a + 1, b), st.t.logpdf(x, a), st.truncnorm.logpdf(u, -a, a), st.uniform.logpdf(u, -a, 4.0), st.vonmises.logpdf(x, b),
        st.wrapcauchy.logpdf(b, u), st.poisson.logpmf(k, a), st.bernoulli.logpmf(k % 2, u), st.binom.logpmf(k, 6, u), st.nbinom.logpmf(k, a, u),
        st.geom.logpmf(k, u), st.betabinom.logpmf(k, 6, a, b), st.multinomial.logpmf(k, k.sum(), p), st.gennorm.logpdf(x, a),
        st.multivariate_normal.logpdf(x, u, jnp.diag(a)), st.gaussian_kde(x).logpdf(u), st.gumbel_r.logpdf(x), st.skewnorm.logpdf(x, a)
        if hasattr(st, "skewnorm") else x,
    )  # fmt: skip


@program(draw.normal(3, 4), draw.positive(3, 4), draw.normal(4))
def elementwise(x, p, v):
    return (
        jnp.arcsinh(x), jnp.arccosh(1 + p), jnp.arctanh(jnp.tanh(x)), jnp.arctan2(x, p), jnp.hypot(x, p), jnp.logaddexp(x, v), jnp.logaddexp2(x, v),
        jnp.exp2(x), jnp.log2(p), jnp.log10(p), jnp.log1p(p), jnp.expm1(x), jnp.cbrt(x), jnp.power(p, v), jnp.float_power(p, x), p**-1.5, x**3,
        jnp.sinc(x), jnp.deg2rad(x), jnp.nan_to_num(x / (x - x[0, 0])), jnp.heaviside(x, p), jnp.copysign(p, x), jnp.fmod(x, p), jnp.mod(x, p),
        jnp.remainder(x, v), jnp.floor_divide(x, p) * p, jnp.abs(x), jnp.sign(x) * p, jnp.square(x), jnp.reciprocal(p), jnp.maximum(x, v),
        jnp.minimum(x, v), jnp.clip(x, -0.5, v), jnp.where(x > 0, x, p), jnp.select([x > 1, x > 0], [x, p], x * p), jnp.fmax(x, p), jnp.ldexp(x, 2),
        jnp.frexp(x)[0], jnp.modf(x)[0], jnp.round(x, 1) + x, jnp.piecewise(x, [x < 0, x >= 0], [jnp.sin, jnp.cos]),
        jnp.unwrap(x * 3), jnp.i0(x), lax.rsqrt(p), lax.integer_pow(x, -2), lax.clamp(-1.0, x, 1.0), lax.erf_inv(jnp.tanh(x)), jnp.polyval(v, x),
    )  # fmt: skip


@program(draw.normal(3, 4), draw.normal(2, 3, 4), draw.normal(5))
def reductions(x, y, v):
    return (
        x.sum(), y.mean((0, 2)), y.var(1), y.std(0, ddof=1), y.prod(1), y.max((0, 1)), y.min(-1), jnp.cumsum(y, 1), jnp.cumprod(y, 2),
        jnp.average(y, 1, weights=jnp.abs(x[:, 0])), jnp.nanmean(x), jnp.nanvar(y, 0), jnp.nanmax(x), jnp.corrcoef(x), jnp.cov(x), jnp.trapezoid(v),
        jnp.diff(y, axis=1), jnp.ediff1d(v), jnp.gradient(x), jnp.convolve(v, v), jnp.correlate(v, v[:3]), jnp.ptp(y, 1), jnp.trace(y, axis1=1, axis2=2),
        lax.reduce(x, 0.0, lax.add, (1,)), lax.reduce_and(x > 0, (0,)), jnp.amax(x, where=x > 0, initial=-1.0), jnp.cumulative_sum(v),
        jnp.histogram(v, bins=3, weights=v)[0], jnp.bincount(jnp.arange(5) % 2, v, length=2), jnp.logaddexp.reduce(v), jnp.multiply.accumulate(v),
        jnp.count_nonzero(x) * v, jnp.argmax(x, 1) * x[:, 0], jnp.nanprod(x), jnp.nancumsum(x), jnp.linalg.matrix_norm(x), lax.cumprod(x, reverse=True),
    )  # fmt: skip


@program(draw.normal(3, 4), draw.normal(2, 3, 4), draw.normal(4), draw.ints(3, high=4))
def shapes_and_indices(x, y, v, i):
    return (
        jnp.concatenate([x, x * 2], 1), jnp.stack([x, x]), jnp.tile(x, (2, 1)), jnp.repeat(x, 2, 0), jnp.roll(x, 1, 1), jnp.rot90(x), jnp.flip(y, 2),
        jnp.pad(x, 1, mode="reflect"), jnp.pad(x, ((1, 0), (0, 2)), constant_values=v[0]), jnp.pad(x, 1, mode="wrap"), jnp.pad(x, 2, mode="edge"),
        jnp.pad(x, 1, mode="mean"), jnp.pad(x, 1, mode="linear_ramp", end_values=2.0), x[i, i], x[:, ::-2], x[1:, None, ..., 0], y[:, i, i], y[..., i[0]],
        x.at[0].set(v), x.at[i].add(v), x.at[:, 1].mul(v[:3]), x.at[i, i].max(v[:3]), x.at[1, i].min(v[:3]), x.at[0].divide(jnp.exp(v)),
        jnp.take(x, i, axis=1), jnp.take_along_axis(x, i[:, None], 1), jnp.put_along_axis(x, i[:, None], 2.0, 1, inplace=False),
        jnp.diag(v), jnp.diagonal(x), jnp.tril(x), jnp.triu(x, 1), jnp.vander(v), jnp.outer(v, v), jnp.split(x, 2, 1), jnp.array_split(v, 3),
        jnp.broadcast_to(v, (2, 3, 4)), jnp.moveaxis(y, 0, 2), jnp.einsum("ijk->kj", y), jnp.squeeze(x[:, :1]), jnp.meshgrid(v, v), jnp.block([[x], [x]]),
        jnp.insert(v, 1, 2.0), jnp.delete(v, 1), jnp.append(v, v), jnp.apply_along_axis(jnp.cumsum, 1, x), jnp.choose(i % 2, [x[:, 0], x[:, 1]], mode="clip"),
        jnp.compress(jnp.array([True, False, True]), x, axis=0, size=2), jnp.extract(jnp.array([1, 0, 1, 1]), v, size=3), jnp.fill_diagonal(x, v[0], inplace=False),
        lax.dynamic_update_slice(x, v[None, :2], (i[0], 1)), lax.dynamic_slice(x, (i[0], i[1]), (2, 2)), jnp.resize(v, (3, 2)), lax.rev(x, (0,)),
        lax.expand_dims(x, (1,)), lax.pad(x, 0.0, ((1, -1, 1), (-1, 2, 0))), jnp.lexsort((v,)), x[x.argmax(0) % 3], jnp.unstack(x),
    )  # fmt: skip


@program(draw.normal(3, 4), draw.normal(3, 4))
def activations(x, y):
    n = jax.nn
    return [
        f(x)
        for f in (
            n.relu, n.relu6, n.sigmoid, n.softplus, n.soft_sign, n.silu, n.log_sigmoid, n.leaky_relu, n.hard_sigmoid, n.hard_silu, n.hard_tanh, n.elu,
            n.celu, n.selu, n.gelu, lambda v: n.gelu(v, approximate=False), n.glu, n.squareplus, n.mish, n.softmax, n.log_softmax, n.logsumexp,
            n.standardize, n.identity, n.sparse_plus, n.sparse_sigmoid, lambda v: n.softmax(v, where=y > -1), lambda v: n.logmeanexp(v)
            if hasattr(n, "logmeanexp") else v, lambda v: n.one_hot(jnp.array([1, 2]), 3) * v[0, 0],
        )
    ]  # fmt: skip


@program(
    draw.normal(2, 5, 3), draw.normal(3, 3, 4), draw.normal(2, 6, 6, 2), draw.normal(2, 2, 2, 3), draw.normal(4, 6)
)
def convolutions(x, k, image, w, m):
    conv = lax.conv_general_dilated
    pool = lambda f, init: lax.reduce_window(
        image, init, f, (1, 3, 2, 1), (1, 2, 1, 1), ((0, 0), (1, 0), (0, 1), (0, 0))
    )
    return (
        conv(x, k, (2,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")),
        conv(image, w, (1, 1), [(1, 0), (0, 1)], lhs_dilation=(2, 1), rhs_dilation=(1, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")),
        lax.conv_transpose(image, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        pool(lax.max, -jnp.inf), pool(lax.min, jnp.inf), pool(lax.add, 0.0), jax.scipy.signal.convolve(m, m[:2, :2], mode="same"),
        jax.scipy.signal.convolve2d(m, m[:2, :3]), lax.conv_general_dilated_patches(image, (2, 2), (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        jax.scipy.signal.detrend(m), jax.scipy.signal.stft(m[0], nperseg=4)[2], jax.scipy.fft.dct(m), jax.scipy.fft.idct(m, norm="ortho"),
        lax.ragged_dot(m, jnp.stack([m.T, m.T * 2]), jnp.array([1, 3])), lax.dot_general(m, m, (((1,), (1,)), ((), ()))),
    )  # fmt: skip
