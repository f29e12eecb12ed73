"""Functions that jax wrote with others: in jax.numpy, jax.nn and jax.scipy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from tapejax.verify.disagreements.call import WIDE, Call
from tapejax.verify.samples.base import exactly, positive_definite

# Without exp1, expi and expn: outside of its domain the loop of expn does not end, and under vmap all points are outside of some.
SPECIAL = (
    "digamma", "entr", "erfcx", "expit", "gamma", "gammaln", "i0", "i0e", "i1", "i1e", "log_ndtr",
    "log_softmax", "logit", "logsumexp", "ndtr", "ndtri", "softmax", "spence",
)  # fmt: skip
SPECIAL_OF_TWO = ("beta", "betaln", "kl_div", "poch", "rel_entr", "xlog1py", "xlogy")
NN = (
    "celu", "elu", "gelu", "glu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "identity", "leaky_relu", "log_sigmoid", "log_softmax",
    "logsumexp", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "soft_sign", "softmax", "softplus", "sparse_plus", "sparse_sigmoid", "squareplus",
    "standardize",
)  # fmt: skip
NUMPY = (
    "absolute", "angle", "arccosh", "arcsinh", "arctanh", "cbrt", "cumprod", "cumsum", "deg2rad", "diff", "exp2", "expm1", "fabs", "i0", "log10",
    "log1p", "log2", "max", "mean", "median", "min", "nan_to_num", "nanmax", "nanmean", "nanprod", "nanstd", "nansum", "nanvar", "prod", "ptp",
    "reciprocal", "sign", "sinc", "sort", "sqrt", "square", "std", "trapezoid", "unwrap", "var",
)  # fmt: skip
NUMPY_OF_TWO = (
    "arctan2", "convolve", "copysign", "correlate", "cross", "divide", "float_power", "fmax", "fmin", "fmod", "hypot", "inner", "interp",
    "kron", "logaddexp", "logaddexp2", "maximum", "mod", "outer", "polyval", "power", "remainder",
)  # fmt: skip
# Inside the domain, beside its edges, and where one formula takes over from another.
COMPOSED_POINTS = (
    0.05,
    0.3,
    0.5,
    0.9,
    1.0,
    1.05,
    1.137,
    1.5,
    1.6,
    2.0,
    2.6,
    5.0,
    9.0,
    30.0,
    0.0,
    -0.3,
    -1.0,
    -1.7,
    -6.0,
)


def composed() -> Iterator[Call]:
    """Those that the installed jax has."""
    yield from filter(_is_there, _every())


def _every() -> Iterator[Call]:
    points, fewer = exactly(COMPOSED_POINTS), exactly(COMPOSED_POINTS[1::2])
    three, four, zeros = exactly([0.4, 1.3, 2.2]), exactly([1.7, 0.6, 0.9]), exactly([0.0, 1.0, 0.0])
    square, spd = exactly([[2.0, 0.3, 0.1], [0.4, 3.0, 0.2], [0.5, 0.6, 2.5]]), positive_definite(3)
    of_one = [f"jax.scipy.special.{name}(x)" for name in SPECIAL] + [f"jax.nn.{name}(x)" for name in NN]
    of_one += [f"jnp.{name}(x)" for name in NUMPY]
    for text in of_one:
        name = text.partition("(")[0].rpartition(".")[2]
        each = name not in OF_ALL
        yield Call(name, text, (points if each else three,), each, dtypes=WIDE[:1], composed=True)
    for text in [f"jax.scipy.special.{name}(x, y)" for name in SPECIAL_OF_TWO] + [
        f"jnp.{name}(x, y)" for name in NUMPY_OF_TWO
    ]:
        name = text.partition("(")[0].rpartition(".")[2]
        for first, second in ((three, four), (zeros, four), (three, zeros)):
            if name != "interp":
                yield Call(name, text, (first, second), dtypes=WIDE[:1], composed=True)
    for name, text, arguments in (
        ("fresnel", "jax.scipy.special.fresnel(x)[0]", (three,)),
        ("fresnel", "jax.scipy.special.fresnel(x)[1]", (three,)),
        ("sici", "jax.scipy.special.sici(x)[0]", (three,)),
        ("sici", "jax.scipy.special.sici(x)[1]", (three,)),
        ("interp", "jnp.interp(x, jnp.array([0.0, 1.0, 3.0]), y)", (three, four)),
        ("logsumexp", "jax.scipy.special.logsumexp(x, b=y)", (three, four)),
        ("logsumexp", "jax.scipy.special.logsumexp(x, b=y)", (three, zeros)),
        ("logsumexp", "jax.nn.logsumexp(x, where=jnp.array([True, False, True]))", (three,)),
        ("softmax", "jax.nn.softmax(x, where=jnp.array([True, False, True]))", (three,)),
        ("multigammaln", "jax.scipy.special.multigammaln(x, 2)", (three,)),
        ("hyp1f1", "jax.scipy.special.hyp1f1(1.5, 2.5, x)", (three,)),
        ("norm", "jnp.linalg.norm(x)", (three,)),
        ("norm", "jnp.linalg.norm(x, 3)", (zeros,)),
        ("norm", "jnp.linalg.norm(x, 4)", (exactly([0.0, 0.0, 1.0]),)),
        ("norm", "jnp.linalg.norm(x, 'nuc')", (square,)),
        ("det", "jnp.linalg.det(x)", (square,)),
        ("det", "jnp.linalg.det(x)", (exactly([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]]),)),
        ("det", "jnp.linalg.det(x)", (exactly([[1.0, 2.0], [2.0, 4.0]]),)),
        ("slogdet", "jnp.linalg.slogdet(x)[1]", (square,)),
        ("inv", "jnp.linalg.inv(x)", (square,)),
        ("pinv", "jnp.linalg.pinv(x)", (exactly([[1.0, 2.0], [0.5, 1.5], [2.0, 0.3]]),)),
        ("solve", "jnp.linalg.solve(x, y)", (square, three)),
        ("lstsq", "jnp.linalg.lstsq(x, y)[0]", (square, three)),
        ("matrix_power", "jnp.linalg.matrix_power(x, -2)", (square,)),
        ("cond", "jnp.linalg.cond(x)", (square,)),
        ("expm", "jax.scipy.linalg.expm(x)", (square,)),
        ("sqrtm", "jnp.real(jax.scipy.linalg.sqrtm(x))", (square,)),
        ("eigh", "jnp.linalg.eigvalsh(x)", (spd,)),
        ("quantile", "jnp.quantile(x, 0.3)", (three,)),
        ("cov", "jnp.cov(x)", (square,)),
        ("corrcoef", "jnp.corrcoef(x)", (square,)),
        ("average", "jnp.average(x, weights=y)", (three, four)),
        ("prod", "jnp.prod(x)", (zeros,)),
        ("cumprod", "jnp.cumprod(x)", (zeros,)),
        ("var", "jnp.var(x)", (exactly([1.0, 1.0, 1.0]),)),
    ):  # fmt: skip
        yield Call(name, text, arguments, dtypes=WIDE[:1], composed=True)
    for family in (
        "norm",
        "logistic",
        "cauchy",
        "laplace",
        "t",
        "gumbel_r",
        "gamma",
        "beta",
        "chi2",
        "expon",
        "pareto",
        "uniform",
        "gennorm",
    ):
        more = {
            "t": ", 3.0",
            "gamma": ", 2.5",
            "beta": ", 2.0, 3.0",
            "chi2": ", 3.0",
            "pareto": ", 2.0",
            "gennorm": ", 1.5",
        }.get(family, "")
        for what in ("logpdf", "logcdf", "cdf", "sf"):
            if hasattr(getattr(jax.scipy.stats, family, None), what):
                yield Call(
                    family, f"jax.scipy.stats.{family}.{what}(x{more})", (fewer,), True, dtypes=WIDE[:1], composed=True
                )


OF_ALL = {
    "cumprod", "cumsum", "diff", "glu", "log_softmax", "logsumexp", "max", "mean", "median", "min", "nanmax", "nanmean", "nanprod", "nanstd", "nansum",
    "nanvar", "prod", "ptp", "softmax", "sort", "standardize", "std", "trapezoid", "unwrap", "var",
}  # fmt: skip


def _is_there(call: Call) -> bool:
    """Whether the installed jax has the function."""
    found: Any = {"jax": jax, "jnp": jax.numpy}
    path = call.code.partition("(")[0].split(".")
    found = found[path[0]]
    for name in path[1:]:
        found = getattr(found, name, None)
    return found is not None
