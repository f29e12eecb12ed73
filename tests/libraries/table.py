"""Calls of public libraries with small inputs: (library, name) -> a function that makes (function, arguments).

Functions that take arrays are found by themselves: every public function of a module is tried with small arguments of several
kinds, and taken if one fits. Distributions are made from the constraints of their parameters. Layers, solvers and
whatever needs a hand are written out. A library that is not installed has no entries.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Made = tuple[Callable[..., Any], tuple[Any, ...]]
Make = Callable[[], Made]


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def positive(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).uniform(0.2, 0.8, shape))


def spd(n: int) -> jax.Array:
    a = np.random.default_rng(0).standard_normal((n, n))
    return jnp.asarray(a @ a.T + n * np.eye(n))


def installed(library: str) -> bool:
    return importlib.util.find_spec(library.partition(".")[0]) is not None


# --- functions, found by themselves --------------------------------------------------------------------------------------

MODULES = (
    "optax.losses", "optax.projections", "optax.tree_utils", "rlax", "jax.nn", "jax.scipy.special", "jraph", "e3nn_jax",
    "flax.linen.activation", "chex", "distrax",
)  # fmt: skip
SKIP = {  # they draw, sort out devices, print, or are wrappers of functions
    "jax.nn": {"dot_product_attention", "scaled_matmul", "get_scaled_dot_general_config", "scaled_dot_general"},
    "jax.scipy.special": {"bernoulli", "sph_harm", "sph_harm_y", "lpmn", "lpmn_values"},
}


def _kinds() -> list[Callable[[int], Any]]:
    """What an argument may be; the number makes them differ."""
    return [
        lambda i: positive(3, seed=i),
        lambda i: positive(3, 3, seed=i),
        lambda i: positive(seed=i),
        lambda i: jnp.array([0, 1, 2]),
        lambda i: 1,
    ]


def arguments_for(function: Callable[..., Any]) -> tuple[Any, ...] | None:
    """Small arguments that a function takes and makes something smooth and finite of; None if there are none."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not 1 <= len(needed) <= 5 or any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters):
        return None
    kinds = _kinds()
    same = [(kind,) * len(needed) for kind in kinds[:3]]
    mixed = itertools.product(kinds, repeat=len(needed)) if len(needed) <= 3 else []
    for chosen in itertools.islice(itertools.chain(same, mixed), 60):
        args = tuple(kind(i) for i, kind in enumerate(chosen))
        if not any(_is_float(arg) for arg in args):
            continue
        try:
            leaves = jax.tree_util.tree_leaves(jax.eval_shape(function, *args))
        except Exception:  # whatever a library says of what it does not take
            continue
        if any(hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves):
            return args
    return None


def _is_float(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.inexact)


def functions_of(module: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    namespace = importlib.import_module(module)
    for name in sorted(dir(namespace)):
        function = getattr(namespace, name)
        plain = callable(function) and not inspect.isclass(function) and not name.startswith("_")
        if plain and name not in SKIP.get(module, ()) and not name.startswith(("assert", "register", "fake", "set_")):
            yield name, function


def found(module: str) -> tuple[dict[str, Make], int]:
    """The functions of a module that take small arguments, and how many were looked at."""
    calls: dict[str, Make] = {}
    seen = 0
    for name, function in functions_of(module):
        seen += 1
        args = arguments_for(function)
        if args is not None:
            calls[name] = lambda function=function, args=args: (function, args)
    return calls, seen


# --- distributions, from the constraints of their parameters ---------------------------------------------------------------


def _numpyro_values() -> dict[str, Any]:
    return {
        "real": 0.3, "positive": 0.7, "nonnegative": 0.7, "unit_interval": 0.4, "real_vector": [0.3, -0.2, 0.5],
        "positive_vector": [0.7, 0.4, 0.9], "simplex": [0.2, 0.3, 0.5], "open_interval": 0.4, "circular": 0.3,
        "softplus_positive": 0.7, "softplus_lower_cholesky": [[0.9, 0.0], [0.2, 0.8]], "ordered_vector": [0.1, 0.4, 0.9],
        "lower_cholesky": [[0.9, 0.0], [0.2, 0.8]], "positive_definite": [[1.5, 0.2], [0.2, 1.0]],
    }  # fmt: skip


def of_numpyro() -> Iterator[tuple[str, Make]]:
    import numpyro.distributions as distributions

    values = _numpyro_values()
    for name in sorted(distributions.__all__):
        cls = getattr(distributions, name)
        constraints = getattr(cls, "arg_constraints", None)
        if not inspect.isclass(cls) or not isinstance(constraints, dict) or not constraints:
            continue
        needed = [
            p.name for p in inspect.signature(cls).parameters.values() if p.default is p.empty and p.name != "args"
        ]
        given = {}
        for key in needed:
            kind = str(constraints.get(key, "")).lower()
            match = next(
                (k for k in sorted(values, key=len, reverse=True) if k.replace("_", "") in kind.replace("_", "")), None
            )
            if match is None:
                break
            given[key] = jnp.asarray(values[match], float)
        else:
            if given:
                yield name, lambda cls=cls, given=given: _log_prob(cls, given)


def _log_prob(cls: Any, given: dict[str, Any]) -> Made:
    point = cls(**given).sample(jax.random.key(0))
    return lambda parameters: cls(**parameters).log_prob(point), (given,)


# --- what needs a hand -----------------------------------------------------------------------------------------------------

KEY = jax.random.key(0)
WRITTEN: dict[tuple[str, str], Make] = {}


def written(library: str, name: str = ""):
    def add(make: Callable[[], Made]) -> Callable[[], Made]:
        WRITTEN[library, name or make.__name__] = make
        return make

    return add


def each(library: str, names: str, make: Callable[[str], Made]) -> None:
    for name in names.split():
        WRITTEN[library, name] = lambda name=name: make(name)


def _jax_density(name: str) -> Made:
    distribution, _, function = name.partition(".")
    density = getattr(getattr(jax.scipy.stats, distribution), function)
    extra = {
        "beta": 2,
        "t": 1,
        "gamma": 1,
        "chi2": 1,
        "pareto": 1,
        "truncnorm": 2,
        "betabinom": 3,
        "vonmises": 1,
        "wrapcauchy": 1,
        "gennorm": 1,
    }
    args = [positive(3, seed=i) for i in range(extra.get(distribution, 0))]
    if distribution == "truncnorm":
        args = [-positive(3), positive(3) + 1.0]
    point = positive(3, seed=9) + (1.0 if distribution == "pareto" else 0.0)
    return density, (point, *args)


each(
    "jax.scipy.stats",
    "norm.logpdf norm.cdf norm.logcdf norm.ppf norm.sf beta.logpdf beta.cdf cauchy.logpdf cauchy.cdf cauchy.ppf expon.logpdf "
    "expon.cdf gamma.logpdf gamma.cdf gumbel_l.logpdf gumbel_r.logpdf gumbel_r.cdf laplace.logpdf laplace.cdf logistic.logpdf "
    "logistic.cdf logistic.ppf pareto.logpdf t.logpdf truncnorm.logpdf truncnorm.logcdf uniform.logpdf vonmises.logpdf "
    "wrapcauchy.logpdf gennorm.logpdf chi2.logpdf chi2.cdf",
    _jax_density,
)


def _jax_linalg(name: str) -> Made:
    function = getattr(jax.scipy.linalg, name)
    two = {"solve", "solve_triangular", "cho_solve", "solve_sylvester", "lu_solve"}
    if name == "solve_sylvester":
        return function, (spd(2), spd(2) + 1.0, normal(2, 2))
    if name == "cho_solve":
        return lambda a, b: function(jax.scipy.linalg.cho_factor(a), b), (spd(3), normal(3))
    if name == "lu_solve":
        return lambda a, b: function(jax.scipy.linalg.lu_factor(a), b), (spd(3), normal(3))
    if name in two:
        return function, (spd(3), normal(3))
    if name in ("toeplitz", "block_diag"):
        return function, (normal(3),)
    return function, (spd(3),)


each(
    "jax.scipy.linalg",
    "cholesky det eigh expm inv lu qr solve solve_triangular cho_solve lu_solve svd toeplitz block_diag sqrtm",
    lambda name: ((lambda a: jnp.real(jax.scipy.linalg.sqrtm(a))), (spd(2),)) if name == "sqrtm" else _jax_linalg(name),
)


def _equinox(name: str) -> Made:
    import equinox as eqx

    nn = eqx.nn
    made = {
        "Linear": lambda: (nn.Linear(3, 2, key=KEY), normal(3)),
        "MLP": lambda: (nn.MLP(3, 2, 4, 2, activation=jax.nn.tanh, key=KEY), normal(3)),
        "Conv1d": lambda: (nn.Conv1d(2, 3, 2, key=KEY), normal(2, 5)),
        "Conv2d": lambda: (nn.Conv2d(1, 2, 2, key=KEY), normal(1, 4, 4)),
        "ConvTranspose1d": lambda: (nn.ConvTranspose1d(2, 3, 2, key=KEY), normal(2, 4)),
        "GRUCell": lambda: (nn.GRUCell(3, 2, key=KEY), normal(3), normal(2, seed=1)),
        "LSTMCell": lambda: (nn.LSTMCell(3, 2, key=KEY), normal(3), (normal(2, seed=1), normal(2, seed=2))),
        "LayerNorm": lambda: (nn.LayerNorm(4), normal(4)),
        "RMSNorm": lambda: (nn.RMSNorm(4), normal(4)),
        "GroupNorm": lambda: (nn.GroupNorm(2, 4), normal(4, 3)),
        "MultiheadAttention": lambda: (
            nn.MultiheadAttention(2, 4, key=KEY),
            normal(3, 4),
            normal(3, 4, seed=1),
            normal(3, 4, seed=2),
        ),
        "RotaryPositionalEmbedding": lambda: (nn.RotaryPositionalEmbedding(4), normal(3, 4)),
        "PReLU": lambda: (nn.PReLU(), normal(4)),
        "AvgPool1d": lambda: (nn.AvgPool1d(2), normal(2, 5)),
        "MaxPool2d": lambda: (nn.MaxPool2d(2), normal(1, 4, 4)),
        "AdaptiveAvgPool1d": lambda: (nn.AdaptiveAvgPool1d(2), normal(2, 5)),
        "WeightNorm": lambda: (nn.WeightNorm(nn.Linear(3, 2, key=KEY)), normal(3)),
    }[name]()
    module = jax.tree_util.tree_map(lambda leaf: leaf.astype(float) if eqx.is_inexact_array(leaf) else leaf, made[0])
    weights, rest = eqx.partition(module, eqx.is_inexact_array)
    return lambda weights, *args: eqx.combine(weights, rest)(*args), (weights, *made[1:])


each(
    "equinox",
    "Linear MLP Conv1d Conv2d ConvTranspose1d GRUCell LSTMCell LayerNorm RMSNorm GroupNorm MultiheadAttention RotaryPositionalEmbedding PReLU AvgPool1d MaxPool2d AdaptiveAvgPool1d WeightNorm",
    _equinox,
)


def _flax(name: str) -> Made:
    from flax import linen as nn

    module, x = {
        "Dense": (nn.Dense(2), normal(3)), "DenseGeneral": (nn.DenseGeneral((2, 2)), normal(3)),
        "Conv": (nn.Conv(2, (2,)), normal(1, 4, 2)), "ConvTranspose": (nn.ConvTranspose(2, (2,)), normal(1, 4, 2)),
        "ConvLocal": (nn.ConvLocal(2, (2,)), normal(1, 4, 2)), "Einsum": (nn.Einsum((3, 2), "a,ab->b"), normal(3)),
        "LayerNorm": (nn.LayerNorm(), normal(2, 4)), "RMSNorm": (nn.RMSNorm(), normal(2, 4)),
        "GroupNorm": (nn.GroupNorm(2), normal(2, 4)), "InstanceNorm": (nn.InstanceNorm(), normal(1, 4, 2)),
        "BatchNorm": (nn.BatchNorm(use_running_average=True), normal(3, 4)), "PReLU": (nn.PReLU(), normal(4)),
        "SelfAttention": (nn.SelfAttention(2), normal(1, 3, 4)), "LSTM": (nn.RNN(nn.LSTMCell(2)), normal(1, 3, 2)),
        "GRU": (nn.RNN(nn.GRUCell(2)), normal(1, 3, 2)), "MGU": (nn.RNN(nn.MGUCell(2)), normal(1, 3, 2)),
        "WeightNorm": (nn.WeightNorm(nn.Dense(2)), normal(2, 3)),
    }[name]  # fmt: skip
    variables = jax.tree_util.tree_map(lambda leaf: leaf.astype(float), module.init(KEY, x))
    return lambda variables, x: module.apply(variables, x), (variables, x)


each(
    "flax",
    "Dense DenseGeneral Conv ConvTranspose ConvLocal Einsum LayerNorm RMSNorm GroupNorm InstanceNorm BatchNorm PReLU SelfAttention LSTM GRU MGU WeightNorm",
    _flax,
)


def _optax(name: str) -> Made:
    """The parameters after two steps, by where they began."""
    import optax

    make = getattr(optax, name)
    optimiser = make() if name in ("adadelta", "lion_") else make(0.1)

    def run(w, target):
        state = optimiser.init(w)
        for _ in range(2):
            grads = jax.tree_util.tree_map(lambda a, b: jnp.sin(a - b), w, target)
            updates, state = optimiser.update(grads, state, w)
            w = optax.apply_updates(w, updates)
        return w

    return run, (positive(3) + 1.0, positive(3, seed=1))


each(
    "optax",
    "adam adamw sgd rmsprop adagrad adadelta adamax amsgrad nadam radam yogi novograd lamb lars fromage adabelief noisy_sgd_",
    lambda name: _optax(name.rstrip("_") if name != "noisy_sgd_" else "sm3"),
)


def _distrax(name: str) -> Made:
    import distrax

    params, point = {
        "Normal": ((0.3, 0.7), 0.5), "Beta": ((0.7, 0.4), 0.5), "Gamma": ((0.7, 0.4), 0.5), "Gumbel": ((0.3, 0.7), 0.5),
        "Laplace": ((0.3, 0.7), 0.5), "Logistic": ((0.3, 0.7), 0.5), "Uniform": ((0.1, 0.9), 0.5),
        "VonMises": ((0.3, 0.7), 0.5), "Dirichlet": (([0.7, 0.4, 0.9],), [0.2, 0.3, 0.5]),
        "LogStddevNormal": ((0.3, -0.2), 0.5), "MultivariateNormalDiag": (([0.3, -0.2], [0.7, 0.4]), [0.1, 0.2]),
        "MultivariateNormalTri": (([0.3, -0.2], [[0.9, 0.0], [0.2, 0.8]]), [0.1, 0.2]),
        "MultivariateNormalFullCovariance": (([0.3, -0.2], [[1.5, 0.2], [0.2, 1.0]]), [0.1, 0.2]),
        "Categorical": (([0.3, -0.2, 0.5],), 1), "Bernoulli": ((0.3,), 1), "OneHotCategorical": (([0.3, -0.2],), [0, 1]),
        "Softmax": (([0.3, -0.2, 0.5],), 1), "ClippedNormal": None,
    }[name] or ((), None)  # fmt: skip
    cls = getattr(distrax, name)
    args = tuple(jnp.asarray(p, float) for p in params)
    return lambda *args: cls(*args).log_prob(jnp.asarray(point)), args


each(
    "distrax",
    "Normal Beta Gamma Gumbel Laplace Logistic Uniform VonMises Dirichlet LogStddevNormal MultivariateNormalDiag MultivariateNormalTri MultivariateNormalFullCovariance Categorical Bernoulli OneHotCategorical Softmax",
    _distrax,
)


@written("distrax")
def rational_quadratic_spline() -> Made:
    import distrax

    spline = lambda p, x: distrax.RationalQuadraticSpline(p, -2.0, 2.0).forward_and_log_det(x)
    return spline, (normal(3 * 3 + 1), jnp.array(0.4))


@written("distrax")
def masked_coupling() -> Made:
    import distrax

    def flow(w, x):
        layer = distrax.MaskedCoupling(
            jnp.array([True, False]), lambda x: jnp.tanh(x @ w), lambda p: distrax.ScalarAffine(p, jnp.exp(p))
        )
        return layer.forward_and_log_det(x)

    return flow, (normal(2, 2), normal(2, seed=1))


def _tfp(name: str) -> Made:
    from tensorflow_probability.substrates import jax as tfp

    params, point = {
        "Normal": ((0.3, 0.7), 0.5), "StudentT": ((3.0, 0.3, 0.7), 0.5), "Gamma": ((0.7, 0.4), 0.5), "Beta": ((0.7, 0.4), 0.5),
        "InverseGamma": ((0.7, 0.4), 0.5), "LogNormal": ((0.3, 0.7), 0.5), "Cauchy": ((0.3, 0.7), 0.5),
        "HalfNormal": ((0.7,), 0.5), "HalfCauchy": ((0.1, 0.7), 0.5), "Weibull": ((0.7, 0.4), 0.5), "Pareto": ((0.7, 0.4), 0.5),
        "Kumaraswamy": ((0.7, 0.4), 0.5), "Logistic": ((0.3, 0.7), 0.5), "Gumbel": ((0.3, 0.7), 0.5), "Moyal": ((0.3, 0.7), 0.5),
        "Poisson": ((0.7,), 2.0), "Geometric": ((0.3,), 2.0), "NegativeBinomial": ((3.0, 0.3), 2.0),
        "TruncatedNormal": ((0.3, 0.7, -1.0, 1.5), 0.5), "Triangular": ((0.1, 0.9, 0.4), 0.5), "JohnsonSU": ((0.3, 0.7, 0.2, 0.9), 0.5),
        "SinhArcsinh": ((0.3, 0.7), 0.5), "GeneralizedNormal": ((0.3, 0.7, 1.5), 0.5), "ExponentiallyModifiedGaussian": ((0.3, 0.7, 0.9), 0.5),
    }[name]  # fmt: skip
    cls = getattr(tfp.distributions, name)
    args = tuple(jnp.asarray(p, float) for p in params)
    return lambda *args: cls(*args).log_prob(jnp.asarray(point)), args


each(
    "tensorflow_probability",
    "Normal StudentT Gamma Beta InverseGamma LogNormal Cauchy HalfNormal HalfCauchy Weibull Pareto Kumaraswamy Logistic Gumbel Moyal Poisson Geometric NegativeBinomial TruncatedNormal Triangular JohnsonSU SinhArcsinh GeneralizedNormal ExponentiallyModifiedGaussian",
    _tfp,
)


def _haiku(name: str) -> Made:
    import haiku as hk

    make, x = {
        "Linear": (lambda: hk.Linear(2), normal(3)), "MLP": (lambda: hk.nets.MLP([3, 2], activation=jnp.tanh), normal(3)),
        "Conv1D": (lambda: hk.Conv1D(2, 2), normal(1, 4, 2)), "LayerNorm": (lambda: hk.LayerNorm(-1, True, True), normal(2, 4)),
        "GRU": (lambda: lambda x: hk.dynamic_unroll(hk.GRU(2), x, jnp.zeros(2, x.dtype)), normal(3, 2)),
        "MultiHeadAttention": (lambda: lambda x: hk.MultiHeadAttention(2, 2, w_init_scale=1.0)(x, x, x), normal(3, 4)),
        "Bias": (lambda: hk.Bias(), normal(1, 3)), "RMSNorm": (lambda: hk.RMSNorm(-1), normal(2, 4)),
    }[name]  # fmt: skip
    transformed = hk.without_apply_rng(hk.transform(lambda x: make()(x)))
    return transformed.apply, (transformed.init(KEY, x), x)


each("haiku", "Linear MLP Conv1D LayerNorm GRU MultiHeadAttention Bias RMSNorm", _haiku)


def _lineax(name: str) -> Made:
    import lineax as lx

    solver = getattr(lx, name)(
        **({"rtol": 1e-10, "atol": 1e-10} if name in ("CG", "GMRES", "BiCGStab", "NormalCG") else {})
    )
    tags = lx.positive_semidefinite_tag if name in ("Cholesky", "CG") else ()
    build = {
        "Triangular": lambda a: lx.MatrixLinearOperator(jnp.tril(a), lx.lower_triangular_tag),
        "Diagonal": lambda a: lx.DiagonalLinearOperator(jnp.diag(a)),
        "Tridiagonal": lambda a: lx.TridiagonalLinearOperator(jnp.diag(a), jnp.diag(a, -1), jnp.diag(a, 1)),
    }.get(name, lambda a: lx.MatrixLinearOperator(a, tags))
    return lambda a, b: lx.linear_solve(build((a + a.T) / 2), b, solver).value, (spd(3), normal(3))


each(
    "lineax",
    "AutoLinearSolver_ LU Cholesky QR SVD CG GMRES BiCGStab Triangular Diagonal Tridiagonal",
    lambda name: _lineax("LU" if name.endswith("_") else name),
)


def _diffrax(name: str) -> Made:
    import diffrax

    term = diffrax.ODETerm(lambda t, y, a: -a * y + jnp.sin(t))
    solver = getattr(diffrax, name)()
    run = lambda y, a: diffrax.diffeqsolve(term, solver, 0.0, 0.5, 0.1, y, a).ys
    return run, (positive(2), jnp.asarray(0.7))


each(
    "diffrax",
    "Euler Heun Midpoint Ralston Bosh3 Tsit5 Dopri5 SemiImplicitEuler_",
    lambda name: _diffrax(name.rstrip("_") if not name.endswith("_") else "Dopri8"),
)


def _optimistix(name: str) -> Made:
    import optimistix as optx

    if name in ("Newton", "Chord", "Dogleg"):
        solver = getattr(optx, name)(rtol=1e-10, atol=1e-10)
        return lambda a: optx.root_find(lambda y, a: y**3 + a * y - 1.0, solver, jnp.ones(2), a).value, (positive(2),)
    if name == "Bisection":
        solver = optx.Bisection(rtol=1e-12, atol=1e-12)
        options = {"lower": 0.0, "upper": 2.0}
        return (
            lambda a: (
                optx.root_find(lambda y, a: y**3 + a * y - 1.0, solver, jnp.asarray(0.5), a, options=options).value
            ),
            (positive(),),
        )
    if name == "FixedPointIteration":
        solver = optx.FixedPointIteration(rtol=1e-12, atol=1e-12)
        return lambda a: optx.fixed_point(lambda y, a: jnp.cos(a * y), solver, jnp.ones(2), a).value, (positive(2),)
    if name in ("LevenbergMarquardt", "GaussNewton"):
        solver = getattr(optx, name)(rtol=1e-12, atol=1e-12)
        return lambda a: optx.least_squares(lambda y, a: y**2 - a, solver, jnp.ones(2), a).value, (positive(2),)
    solver = getattr(optx, name)(rtol=1e-12, atol=1e-12)
    return lambda a: optx.minimise(lambda y, a: jnp.sum((y - a) ** 2 + (y * a) ** 4), solver, jnp.ones(2), a).value, (
        positive(2),
    )


each("optimistix", "Newton Chord Dogleg Bisection FixedPointIteration LevenbergMarquardt GaussNewton BFGS", _optimistix)


def _jaxopt(name: str) -> Made:
    import jaxopt

    loss = lambda w, a: jnp.sum((w - a) ** 2) + jnp.sum((w * a) ** 4)
    if name.startswith("projection"):
        project = getattr(jaxopt.projection, name)
        return {
            "projection_l2_ball": lambda: (lambda x: project(x, 0.5), (normal(3),)),
            "projection_simplex": lambda: (project, (normal(3),)),
            "projection_l1_ball": lambda: (lambda x: project(x, 0.5), (normal(3),)),
        }[name]()
    if name.startswith("prox"):
        return lambda x: getattr(jaxopt.prox, name)(x, 0.3), (normal(4),)
    solver = getattr(jaxopt, name)(loss, tol=1e-12, maxiter=200)
    return lambda a: solver.run(jnp.ones(3), a).params, (positive(3),)


each(
    "jaxopt",
    "GradientDescent LBFGS BFGS projection_l2_ball projection_simplex projection_l1_ball prox_lasso prox_ridge prox_elastic_net",
    lambda name: (
        ((lambda x: __import__("jaxopt").prox.prox_elastic_net(x, (0.3, 0.5))), (normal(4),))
        if name == "prox_elastic_net"
        else _jaxopt(name)
    ),
)


def _tinygp(name: str) -> Made:
    import tinygp

    make = {
        "ExpSquared": lambda s: tinygp.kernels.ExpSquared(s), "Matern32": lambda s: tinygp.kernels.Matern32(s),
        "Matern52": lambda s: tinygp.kernels.Matern52(s), "RationalQuadratic": lambda s: tinygp.kernels.RationalQuadratic(scale=s, alpha=1.3),
        "Exp": lambda s: tinygp.kernels.Exp(s), "quasisep": lambda s: tinygp.kernels.quasisep.Matern32(s),
        "SHO": lambda s: tinygp.kernels.quasisep.SHO(omega=s, quality=1.2), "Cosine": lambda s: tinygp.kernels.Cosine(s),
    }[name]  # fmt: skip
    x, y = jnp.linspace(0.0, 2.0, 4), normal(4)
    return lambda s, noise: tinygp.GaussianProcess(make(s), x, diag=noise).log_probability(y), (
        jnp.asarray(0.8),
        jnp.asarray(0.1),
    )


each("tinygp", "ExpSquared Matern32 Matern52 RationalQuadratic Exp quasisep SHO Cosine", _tinygp)


def _jaxlie(name: str) -> Made:
    import jaxlie

    group, _, what = name.partition(".")
    cls = getattr(jaxlie, group)
    v = 0.5 * normal(cls.tangent_dim)
    return {
        "exp": lambda: (lambda v: cls.exp(v).as_matrix(), (v,)), "log": lambda: (lambda v: (cls.exp(v) @ cls.exp(0.3 * v[::-1])).log(), (v,)),
        "apply": lambda: (lambda v, x: cls.exp(v).apply(x), (v, normal(cls.space_dim, seed=1))),
        "adjoint": lambda: (lambda v: cls.exp(v).adjoint(), (v,)),
    }[what]()  # fmt: skip


each("jaxlie", "SO2.exp SO3.exp SE2.exp SE3.exp SO3.log SE2.log SE3.log SO3.apply SE3.apply SE3.adjoint", _jaxlie)


@written("jraph")
def graph_convolution() -> Made:
    import jraph

    graph = jraph.GraphsTuple(
        nodes=normal(3, 2),
        edges=None,
        senders=jnp.array([0, 1, 2]),
        receivers=jnp.array([1, 2, 0]),
        n_node=jnp.array([3]),
        n_edge=jnp.array([3]),
        globals=None,
    )
    return lambda w, nodes: jraph.GraphConvolution(lambda n: jnp.tanh(n @ w))(graph._replace(nodes=nodes)).nodes, (
        normal(2, 2),
        normal(3, 2),
    )


@written("jraph")
def graph_network() -> Made:
    import jraph

    graph = jraph.GraphsTuple(
        nodes=normal(3, 2),
        edges=normal(3, 1),
        senders=jnp.array([0, 1, 2]),
        receivers=jnp.array([1, 2, 0]),
        n_node=jnp.array([3]),
        n_edge=jnp.array([3]),
        globals=normal(1, 1),
    )

    def run(w, nodes):
        net = jraph.GraphNetwork(
            update_edge_fn=lambda e, s, r, g: jnp.tanh(e * w + (s * r).sum(1, keepdims=True)),
            update_node_fn=lambda n, s, r, g: n * s,
            update_global_fn=lambda n, e, g: n.sum() + e.sum() + g,
        )
        out = net(graph._replace(nodes=nodes))
        return out.nodes, out.edges, out.globals

    return run, (jnp.asarray(0.7), normal(3, 2))


@written("blackjax")
def leapfrog() -> Made:
    from blackjax.mcmc import integrators, metrics

    def run(x, p, scale):
        logdensity = lambda x: -0.5 * jnp.sum(x**2 / scale) + jnp.sum(jnp.cos(x))
        metric = metrics.default_metric(jnp.ones(3))
        step = integrators.velocity_verlet(logdensity, metric.kinetic_energy)
        state = integrators.new_integrator_state(logdensity, x, p)
        state = step(step(state, 0.1), 0.1)
        return state.position, state.momentum

    return run, (normal(3), normal(3, seed=1), jnp.asarray(0.8))


@written("e3nn_jax")
def spherical_harmonics() -> Made:
    import e3nn_jax as e3nn

    return lambda x: e3nn.spherical_harmonics("0e + 1o + 2e", x, True).array, (normal(3),)


@written("e3nn_jax")
def tensor_product() -> Made:
    import e3nn_jax as e3nn

    return lambda x, y: e3nn.tensor_product(e3nn.IrrepsArray("0e + 1o", x), e3nn.IrrepsArray("1o", y)).array, (
        normal(4),
        normal(3),
    )


@written("e3nn_jax")
def norm_activation() -> Made:
    import e3nn_jax as e3nn

    return lambda x: e3nn.norm_activation(e3nn.IrrepsArray("1o + 1e", x), [jnp.tanh, jnp.tanh]).array, (normal(6),)


# --- all of it --------------------------------------------------------------------------------------------------------------


def libraries() -> list[str]:
    """What has entries, whether installed or not."""
    return sorted({*MODULES, *(library for library, _ in WRITTEN), "numpyro"})


def calls_of(library: str) -> tuple[dict[str, Make], int]:
    """The calls of a library by name, and how many functions were looked at."""
    calls, seen = found(library) if library in MODULES else ({}, 0)
    mine = {name: make for (of, name), make in WRITTEN.items() if of == library}
    if library == "numpyro":
        mine |= dict(of_numpyro())
    return calls | mine, seen + len(mine)
