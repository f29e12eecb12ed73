"""The wider sweep: calls of jax written as text, so that what is judged is what the reproducer shows.

Elementwise functions are called at the edges of their domains, at both sides of their branch cuts and far out; the others
with parameters that are not their defaults, and under `jax.vmap`. Elementwise functions and products run in every dtype that
they take, the others in float64 and complex128.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tapejax.rules.registry import name_of
from tapejax.verify.samples import FAMILIES, MANY_DEVICES
from tapejax.verify.samples.base import (
    ALL,
    Recipe,
    away_from_zero,
    distinct,
    exactly,
    integers,
    normal,
    positive,
    positive_definite,
    uniform,
    well_conditioned,
)

NAMES = "xyzuvwabcdefgh"
WIDE = ("float64", "complex128")
BY_DTYPE = ("mul", "dot_general", "conv_general_dilated", "reduce")  # whose rules depend on it


@dataclass(frozen=True)
class Call:
    """One expression of its arguments, which are named x, y, z.

    elementwise: every element is a case of its own. batch: the expression runs once per row of the arguments for
    which it is True, and must give the same under `jax.vmap`. composed: jax wrote it with other functions; both sets of rules
    follow what is written, so numbers judge it where they agree, too.
    """

    primitive: str
    code: str
    arguments: tuple[Recipe, ...]
    elementwise: bool = False
    batch: tuple[bool, ...] = ()
    dtypes: tuple[str, ...] = ALL
    composed: bool = False

    @property
    def names(self) -> str:
        return ", ".join(NAMES[: len(self.arguments)])

    @property
    def text(self) -> str:
        """The expression as it is called: under vmap if it is batched."""
        if not self.batch:
            return self.code
        axes = "" if all(self.batch) else f", ({', '.join('0' if b else 'None' for b in self.batch)})"
        return f"jax.vmap(lambda {self.names}: {self.code}{axes})({self.names})"

    def make(self, dtype: str) -> list[np.ndarray]:
        """Its arguments in a dtype, with few digits: they are printed."""
        rng = np.random.default_rng(len(self.code))
        return [self._argument(number, rng, np.dtype(_numpy(dtype))) for number in range(len(self.arguments))]

    def _argument(self, number: int, rng: np.random.Generator, dtype: np.dtype) -> np.ndarray:
        recipe = self.arguments[number]
        if self.batch and self.batch[number]:
            return np.stack([_rounded(recipe(rng, dtype)) for _ in range(2)])
        return _rounded(recipe(rng, dtype))


def _numpy(dtype: str) -> Any:
    """bfloat16 is drawn as float32: NumPy alone does not know it."""
    return np.float32 if dtype == "bfloat16" else dtype


def _rounded(values: np.ndarray) -> np.ndarray:
    if not np.issubdtype(values.dtype, np.inexact) or not np.isfinite(values).all():
        return values
    small = np.abs(values).max(initial=0.0) < 0.05
    return values if small else np.round(values, 2)


# --- elementwise: points -----------------------------------------------------------------------------------------------

REAL_POINTS = (-np.inf, -30.0, -2.5, -1.0, -0.5, -0.001, -0.0, 0.0, 0.001, 0.5, 1.0, 2.5, 30.0, np.inf)
COMPLEX_POINTS = (
    0.6 + 0.4j, -0.6 + 0.4j, -0.6 - 0.4j, 0.6 - 0.4j, 2.5 + 1.5j, -2.5 + 1.5j, -2.5 - 1.5j, 2.5 - 1.5j, 30 + 20j, -30 - 20j,
    complex(-2.5, 0.0), complex(-2.5, -0.0), complex(2.5, 0.0), complex(2.5, -0.0), complex(-0.5, 0.0), complex(-0.5, -0.0),
    complex(0.5, 0.0), complex(0.5, -0.0), complex(0.0, 2.5), complex(-0.0, 2.5), complex(0.0, -2.5), complex(0.0, 0.5),
    complex(-0.0, -0.5), 0j, 1 + 0j, -1 + 0j, 1j, -1j, 1e-3 + 1e-3j,
)  # fmt: skip
PAIRS = [(a, b) for a, b in itertools.product((-2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, 30.0, np.inf), repeat=2)]
COMPLEX_PAIRS = [
    (a, b) for a, b in itertools.product((0.6 + 0.4j, -0.6 + 0.4j, -0.6 - 0.4j, -2.5 + 0j, 0j, 1 + 0j, 2j), repeat=2)
]


def _points(real: Any, complex_: Any) -> Recipe:
    return lambda rng, dtype: np.asarray(complex_ if np.issubdtype(dtype, np.complexfloating) else real).astype(dtype)


def _first(pairs: Any) -> list[Any]:
    return [a for a, _ in pairs]


def _second(pairs: Any) -> list[Any]:
    return [b for _, b in pairs]


UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bessel_i0e", "bessel_i1e", "cbrt", "ceil", "conj", "cos",
    "cosh", "digamma", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "imag", "lgamma", "log", "log1p", "log2",
    "logistic", "neg", "one_minus_square", "real", "reciprocal", "rsqrt", "sign", "sin", "sinh", "sqrt", "square", "tan",
    "tanh",
)  # fmt: skip
BINARY = ("add", "atan2", "complex", "div", "igamma", "igammac", "max", "min", "mul", "nextafter", "pow", "rem", "sub")
WITH_PARAMETERS = [
    *(("integer_pow", f"lax.integer_pow(x, {n})") for n in (-3, -2, -1, 0, 1, 2, 3, 5)),
    *(("round", f"lax.round(x, lax.RoundingMethod.{way})") for way in ("AWAY_FROM_ZERO", "TO_NEAREST_EVEN")),
    ("reduce_precision", "lax.reduce_precision(x, 5, 10)"),
    ("convert_element_type", "lax.convert_element_type(x, 'complex128')"),
    ("convert_element_type", "lax.convert_element_type(x, 'float32')"),
    ("mul", "lax.mul(x, x)"),
    ("pow", "lax.pow(x, 2)"),
    ("pow", "lax.pow(x, -1)"),
    ("polygamma", "lax.polygamma(jnp.ones_like(x), x)"),
    ("zeta", "lax.zeta(x, jnp.full_like(x, 2.0))"),
    ("zeta", "lax.zeta(jnp.full_like(x, 3.0), x)"),
    ("regularized_incomplete_beta", "lax.betainc(jnp.full_like(x, 2.0), jnp.full_like(x, 3.0), x)"),
    ("igamma_grad_a", "lax.igamma_grad_a(jnp.full_like(x, 2.0), x)"),
    ("clamp", "lax.clamp(jnp.zeros_like(x), x, jnp.ones_like(x))"),
    ("select_n", "lax.select_n(x > 0, x, 2 * x)"),
]


def _elementwise() -> Iterator[Call]:
    points = _points(REAL_POINTS, COMPLEX_POINTS)
    for name in UNARY:
        yield Call(name, f"lax.{name}(x)", (points,), True)
    for name, code in WITH_PARAMETERS:
        yield Call(name, code, (points,), True)
    first, second = (_points(of(PAIRS), of(COMPLEX_PAIRS)) for of in (_first, _second))
    for name in BINARY:
        dtypes = WIDE[:1] if name.startswith("igamma") else ALL  # they compile for long
        yield Call(name, f"lax.{name}(x, y)", (first, second), True, dtypes=dtypes)


# --- with parameters that are not the defaults --------------------------------------------------------------------------

_add, _mul = "lambda a, b: a + b", "lambda a, b: a * b"
_WINDOW = "window_dimensions=(2,), window_strides=(1,), padding=((1, 0),)"
_CONV = "dimension_numbers=('NCH', 'OIH', 'NCH')"
_ROWS = "lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,))"
_ONTO = (
    "lax.ScatterDimensionNumbers(update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,))"
)
_OUT_OF_RANGE = integers([[1], [7], [-2], [1]])
_IN_RANGE = integers([[1], [0], [1]])
_half = lambda n, *batch: (lambda make: lambda rng, dtype: np.tril(make(rng, dtype)))(well_conditioned(n, *batch))


def _table() -> Iterator[tuple[str, str, tuple[Recipe, ...]]]:
    m23, m3, spd, square = normal(2, 3), normal(3), positive_definite(3), well_conditioned(3)
    # reductions
    for start, computation in itertools.product(
        ("0.0", "3.0"), ("lax.add", "lax.mul", "lax.max", "lax.min", _add, _mul)
    ):
        for rows in (3, 4):
            yield "reduce", f"lax.reduce(x, jnp.asarray({start}, x.dtype), {computation}, (0,))", (distinct(rows, 2),)
        yield (
            "reduce_window",
            f"lax.reduce_window(x, jnp.asarray({start}, x.dtype), {computation}, {_WINDOW})",
            (distinct(4),),
        )
    yield (
        "reduce",
        "lax.reduce((x, y), (jnp.asarray(1, x.dtype), jnp.asarray(2, x.dtype)), lambda a, b: (a[0] + b[0], a[1] * b[1]), (0,))",
        (normal(4), normal(4)),
    )
    for name in ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod"):
        yield name, f"lax.{name}(x, (0, 1))", (distinct(2, 3),)
        yield name, f"lax.{name}(x, ())", (distinct(2, 3),)
    for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"):
        for reverse in (False, True):
            yield name, f"lax.{name}(x, axis=0, reverse={reverse})", (distinct(4, 2),)
    yield "cumprod", "lax.cumprod(x, axis=0)", (exactly([1.5, 0.0, 2.0, 0.0, 3.0]),)
    yield "reduce_prod", "lax.reduce_prod(x, (0,))", (exactly([1.5, 0.0, 2.0]),)
    yield "reduce_prod", "lax.reduce_prod(x, (0,))", (exactly([1.5, 0.0, 2.0, 0.0]),)
    for name in ("reduce_max", "reduce_min"):
        yield name, f"lax.{name}(x, (0,))", (exactly([1.0, 2.0, 1.0, 2.0]),)
    for name in ("cummax", "cummin"):
        yield name, f"lax.{name}(x)", (exactly([1.0, 2.0, 1.0, 2.0, 2.0]),)
    yield "sort", "lax.sort(x, dimension=0)", (exactly([1.0, 2.0, 1.0, 2.0]),)
    yield "sort", "lax.sort((x, y), num_keys=1, is_stable=False)", (distinct(4), m3_of(4))
    yield "sort", "lax.sort((x, y), num_keys=2)", (exactly([1.0, 2.0, 1.0, 2.0]), distinct(4))
    yield "top_k", "lax.top_k(x, 2)[0]", (exactly([1.0, 2.0, 1.0, 2.0]),)
    yield "top_k", "lax.top_k(x, 2, axis=0)[0]", (distinct(4, 2),)
    yield "reduce_precision", "lax.reduce_precision(x, 8, 3)", (m3,)
    yield "logsumexp", "jax.nn.logsumexp(x)", (exactly([-np.inf, -np.inf]),)
    # choosing
    yield "select_n", "lax.select_n(x, y, z, u)", (integers([0, 2, 1]), m3, m3, m3)
    yield "select_n", "lax.select_n(x, y, z, u)", (integers([-5, 7, 1]), m3, m3, m3)
    yield "select_n", "lax.select_n(x, y, z)", (integers(True, bool), m3, m3)
    yield "clamp", "lax.clamp(x, y, z)", (exactly(-0.7), distinct(3), exactly(0.8))
    yield "clamp", "lax.clamp(x, y, z)", (exactly([-0.7] * 3), distinct(3), exactly([0.8] * 3))
    yield "clamp", "lax.clamp(x, y, z)", (exactly([0.5, 0.5]), exactly([0.2, 0.5]), exactly([0.1, 0.5]))
    # slices and indices
    for start in (0, 1, 5, -1, -7):
        yield "dynamic_slice", f"lax.dynamic_slice(x, ({start},), (2,))", (normal(4),)
        yield "dynamic_update_slice", f"lax.dynamic_update_slice(x, y, ({start},))", (normal(4), normal(2))
    yield "slice", "lax.slice(x, (1,), (6,), (2,))", (normal(7),)
    yield "pad", "lax.pad(x, y, ((1, -1, 2), (-1, 2, 0)))", (normal(2, 3), normal())
    yield "pad", "lax.pad(x, y, ((-2, -1, 1),))", (normal(4), normal())
    for mode in ("clip", "fill", "promise_in_bounds"):
        where = _IN_RANGE if mode == "promise_in_bounds" else _OUT_OF_RANGE
        yield "gather", f"lax.gather(x, y, {_ROWS}, (1,), mode='{mode}')", (normal(3), where)
        for name in ("scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max"):
            size = len(np.asarray(where(np.random.default_rng(), np.dtype("int32"))))
            yield (
                name.replace("_", "-"),
                f"lax.{name}(x, y, z, {_ONTO}, mode='{mode}')",
                (distinct(3), where, m3_of(size)),
            )
    for name in ("scatter_add", "scatter_mul"):
        text = f"lax.{name}(x, y, z, {_ONTO}, indices_are_sorted=True, unique_indices=True)"
        yield name.replace("_", "-"), text, (normal(3), integers([[0], [2]]), normal(2))
    yield "scatter", f"lax.scatter_apply(x, y, jnp.sin, {_ONTO})", (normal(3), integers([[0], [2]]))
    yield "gather", f"lax.gather(x, y, {_ROWS}, (1,), mode='fill', fill_value=7)", (normal(3), _OUT_OF_RANGE)
    yield "gather", "jnp.take(x, y, axis=0)", (normal(3, 2), integers([0, 2, 5, -1]))
    yield "scatter", "x.at[y].set(z)", (normal(3), integers([2, 0]), normal(2))
    # shapes
    yield "concatenate", "lax.concatenate([x, y], 1)", (m23, normal(2, 1))
    yield "reshape", "lax.reshape(x, (3, 2), (1, 0))", (m23,)
    yield "transpose", "lax.transpose(x, (1, 2, 0))", (normal(2, 3, 2),)
    yield "rev", "lax.rev(x, (0, 1))", (m23,)
    yield "broadcast_in_dim", "lax.broadcast_in_dim(x, (2, 3, 2), (1, 2))", (normal(3, 1),)
    yield "split", "lax.split(x, (1, 2), 0)", (m3,)
    yield "squeeze", "lax.squeeze(x, (0,))", (normal(1, 3),)
    yield "optimization_barrier", "lax.optimization_barrier((x, y))", (m3, m23)
    yield "copy", "jnp.copy(x)", (m3,)
    # products
    yield "dot_general", "lax.dot_general(x, y, (((1,), (1,)), ((0,), (0,))))", (normal(2, 3, 1), normal(2, 3, 2))
    for wide in ("float64", "float32", "complex128"):
        yield "dot_general", f"lax.dot(x, y, preferred_element_type='{wide}')", (m23, normal(3, 2))
        yield "mul", f"lax.mul(x, y, out_dtype='{wide}')", (m3, m3)
    yield "dot_general", "lax.dot(x, y, precision='highest')", (m23, normal(3, 2))
    yield "ragged_dot_general", "lax.ragged_dot(x, y, z)", (normal(4, 2), normal(2, 2, 3), integers([1, 3]))
    yield "ragged_dot_general", "lax.ragged_dot(x, y, z)", (normal(4, 2), normal(2, 2, 3), integers([1, 2]))
    for options in (
        "window_strides=(2,), padding=((1, 2),)", "window_strides=(1,), padding=((2, -1),), lhs_dilation=(2,)",
        "window_strides=(1,), padding='SAME', rhs_dilation=(2,)",
        "window_strides=(1,), padding='VALID', preferred_element_type='float64'",
    ):  # fmt: skip
        yield (
            "conv_general_dilated",
            f"lax.conv_general_dilated(x, y, {options}, {_CONV})",
            (normal(2, 2, 6), normal(4, 2, 2)),
        )
    yield (
        "conv_general_dilated",
        f"lax.conv_general_dilated(x, y, (1,), 'SAME', feature_group_count=2, {_CONV})",
        (normal(1, 2, 5), normal(4, 1, 2)),
    )
    yield (
        "conv_general_dilated",
        f"lax.conv_general_dilated(x, y, (1,), 'SAME', batch_group_count=2, {_CONV})",
        (normal(2, 2, 5), normal(4, 2, 2)),
    )
    # windows
    for kind in ("max", "min"):
        text = f"lax.reduce_window(x, {'-' if kind == 'max' else ''}jnp.inf, lax.{kind}, (2,), (2,), 'SAME', base_dilation=(1,), window_dilation=(2,))"
        yield f"reduce_window_{kind}", text, (distinct(5),)
    yield (
        "reduce_window_sum",
        "lax.reduce_window(x, 0.0, lax.add, (2,), (1,), 'VALID', base_dilation=(2,), window_dilation=(2,))",
        (m3_of(5),),
    )
    yield (
        "reduce_window_max",
        "lax.reduce_window(x, -jnp.inf, lax.max, (2,), (2,), 'VALID')",
        (exactly([1.0, 1.0, 0.5, 2.0]),),
    )
    # fft
    for kind, shape in (("FFT", (4,)), ("IFFT", (5,)), ("FFT", (2, 3))):
        yield "fft", f"lax.fft(x.astype('complex128'), lax.FftType.{kind}, {shape})", (normal(*shape),)
    for n in (4, 5):
        yield "fft", f"lax.fft(x, lax.FftType.RFFT, ({n},))", (normal(n),)
        yield "fft", f"lax.fft(x.astype('complex128'), lax.FftType.IRFFT, ({n},))", (normal(n // 2 + 1),)
    # linear algebra
    for symmetrize in (True, False):
        yield "cholesky", f"lax.linalg.cholesky(x, symmetrize_input={symmetrize})", (spd,)
        yield "cholesky", f"lax.linalg.cholesky(x, symmetrize_input={symmetrize})", (square,)
        for lower in (True, False):
            yield "eigh", f"lax.linalg.eigh(x, lower={lower}, symmetrize_input={symmetrize})[1]", (spd,)
    yield "cholesky", "lax.linalg.cholesky_p.bind(x)", (spd,)
    yield "cholesky", "jax.scipy.linalg.cho_factor(x)[0]", (spd,)
    yield "cholesky", "jax.scipy.linalg.cho_solve((x, True), y)", (_half(3), m3)
    yield "cholesky", "jnp.linalg.cholesky(x, upper=True)", (spd,)
    yield "eigh", "lax.linalg.eigh(x, subset_by_index=(1, 3))[1]", (spd,)
    yield "eigh", "lax.linalg.eigh(x, sort_eigenvalues=False)[1].sum()", (spd,)
    yield "eig", "lax.linalg.eig(x, compute_left_eigenvectors=False, compute_right_eigenvectors=False)[0]", (square,)
    yield "svd", "lax.linalg.svd(x, compute_uv=False)", (normal(3, 2),)
    yield "svd", "lax.linalg.svd(x, full_matrices=False)[1]", (normal(2, 3),)
    yield "svd", "lax.linalg.svd(x, full_matrices=True)[1]", (normal(2, 3),)
    yield "svd", "lax.linalg.svd(x, compute_uv=False, subset_by_index=(0, 1))", (normal(3, 2),)
    for full, pivoting in itertools.product((False, True), repeat=2):
        for shape in ((4, 2), (2, 4), (3, 3)):
            text = f"lax.linalg.qr(x, full_matrices={full}, pivoting={pivoting})[1]"
            yield "qr", text, (normal(*shape),)
    for shape in ((3, 3), (4, 2), (2, 4)):
        yield "lu", "lax.linalg.lu(x)[0]", (normal(*shape),)
    yield "lu", "jnp.linalg.det(x)", (square,)
    for left, lower, transpose, conjugate, unit in itertools.product((True, False), repeat=5):
        options = (
            f"left_side={left}, lower={lower}, transpose_a={transpose}, conjugate_a={conjugate}, unit_diagonal={unit}"
        )
        if [left, lower, transpose, conjugate, unit].count(True) in (1, 4):
            yield "triangular_solve", f"lax.linalg.triangular_solve(x, y, {options})", (square, normal(3, 3))
    yield (
        "tridiagonal_solve",
        "lax.linalg.tridiagonal_solve(x, y, z, u)",
        (exactly([0.0, 0.5, 0.3]), positive(3), exactly([0.4, 0.2, 0.0]), normal(3, 2)),
    )
    yield "householder_product", "lax.linalg.householder_product(x, y)", (normal(3, 2), uniform(0.2, 0.9, 2))
    yield "schur", "lax.linalg.schur(x)[0]", (spd,)
    yield "hessenberg", "lax.linalg.hessenberg(x)[0]", (square,)
    yield "tridiagonal", "lax.linalg.tridiagonal(x)[1]", (spd,)
    yield "symmetric_product", "lax.linalg.symmetric_product(x, y)", (normal(3, 2), spd)
    yield (
        "custom_linear_solve",
        "lax.custom_linear_solve(lambda v: x @ v, y, lambda f, b: jnp.linalg.solve(x, b), lambda f, b: jnp.linalg.solve(x.T, b))",
        (square, m3),
    )
    # programs inside
    for reverse, unroll in ((False, 1), (True, 2)):
        yield (
            "scan",
            f"lax.scan(lambda c, a: (jnp.sin(c) * a, c * a), x, y, reverse={reverse}, unroll={unroll})",
            (normal(), m3),
        )
    yield "cond", "lax.cond(x.sum().real > 0, jnp.sin, jnp.cos, x)", (positive(3),)
    yield "cond", "lax.switch(5, [jnp.sin, jnp.cos], x)", (m3,)
    yield "cond", "lax.switch(-5, [jnp.sin, jnp.cos], x)", (m3,)
    yield "while", "lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + i, x)", (m3,)
    yield "associative_scan", "lax.associative_scan(jnp.multiply, x, reverse=True)", (m3_of(5),)
    yield "checkpoint", "jax.checkpoint(jnp.sin)(x)", (m3,)
    # named axes
    for name in ("psum", "pmean", "pmax", "pmin"):
        yield name, f"jax.vmap(lambda a: lax.{name}(a, 'i') * a, axis_name='i')(x)", (distinct(3, 2),)
    yield (
        "all_gather",
        "jax.vmap(lambda a: lax.all_gather(a, 'i', axis=1, tiled=True), axis_name='i')(x)",
        (normal(2, 2, 3),),
    )
    yield "all_to_all", "jax.vmap(lambda a: lax.all_to_all(a, 'i', 0, 1), axis_name='i')(x)", (normal(2, 2, 3),)
    yield "ppermute", "jax.vmap(lambda a: lax.ppermute(a, 'i', [(0, 1), (1, 2)]), axis_name='i')(x)", (normal(3, 2),)
    yield "psum_scatter", "jax.vmap(lambda a: lax.psum_scatter(a, 'i'), axis_name='i')(x)", (normal(2, 2),)
    # special functions, away from the points above
    yield "regularized_incomplete_beta", "lax.betainc(x, y, z)", (positive(3), positive(3), uniform(0.1, 0.9, 3))
    yield "random_gamma_grad", "lax.random_gamma_grad(x, y)", (positive(3), positive(3))
    yield "random_gamma", "jax.random.gamma(jax.random.key(0), x)", (positive(3),)
    yield "erf_inv", "lax.erf_inv(x)", (uniform(-0.99, 0.99, 4),)
    yield "lgamma", "lax.lgamma(x)", (away_from_zero(5),)


# --- what jax wrote with other functions -----------------------------------------------------------------------------------

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


def _composed() -> Iterator[Call]:
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


def m3_of(size: int) -> Recipe:
    return normal(size)


def _of_samples() -> Iterator[Call]:
    for family, samples in FAMILIES.items():
        if jax.device_count() < MANY_DEVICES.get(family, 1):
            continue
        for primitive, entries in samples.items():
            for number, entry in enumerate(entries):
                names = ", ".join(NAMES[: len(entry.arguments)])
                code = f"sample({family!r}, {name_of(primitive)!r}, {number})({names})"
                complex_too = any(dtype.startswith("complex") for dtype in entry.dtypes)
                yield Call(name_of(primitive), code, entry.arguments, dtypes=WIDE if complex_too else WIDE[:1])


def sampled(family: str, primitive: str, number: int) -> Any:
    """The function of a rule's sample."""
    return next(s for p, s in FAMILIES[family].items() if name_of(p) == primitive)[number].function


def calls(*, samples: bool = True) -> list[Call]:
    """All calls; those with parameters also under vmap. Then what jax composed, and the rules' samples."""
    found = list(_elementwise())
    for primitive, code, arguments in _table():
        found.append(Call(primitive, code, arguments, dtypes=ALL if primitive in BY_DTYPE else WIDE))
        batched = WIDE if "linalg" in code else WIDE[:1]
        found.append(Call(primitive, code, arguments, batch=(True,) * len(arguments), dtypes=batched))
    found += [call for call in _composed() if _is_there(call)]
    return found + list(_of_samples()) if samples else found


def _is_there(call: Call) -> bool:
    """Whether the installed jax has the function."""
    found: Any = {"jax": jax, "jnp": jax.numpy}
    path = call.code.partition("(")[0].split(".")
    found = found[path[0]]
    for name in path[1:]:
        found = getattr(found, name, None)
    return found is not None
