"""One call per function, as data: (arguments, the functions that are called with them).

Names in the arguments stand for the arrays below; float and complex ones are differentiated. `F` is the
namespace itself, for samples that are whole expressions; `f` has functions over Tensors, or over arrays
when jax is the judge.
"""

import numpy as np

_rng = np.random.default_rng(7)
_normal = lambda *shape: _rng.standard_normal(shape).round(3)
_matrix = _normal(3, 3) + 2 * np.eye(3)

ARRAYS = {
    "x": _normal(2, 3),
    "y": _normal(2, 3) + 0.01,
    "p": _rng.uniform(0.5, 2.0, (2, 3)).round(3),
    "q": _rng.uniform(0.6, 2.5, (2, 3)).round(3),
    "u": _rng.uniform(0.1, 0.9, (2, 3)).round(3),
    "g": _rng.uniform(1.2, 3.0, (2, 3)).round(3),
    "v": _normal(3),
    "w": _normal(3) + 0.3,
    "t": np.sort(_normal(5)).round(3),
    "r": _rng.uniform(0.5, 2.0, 5).round(3),
    "a": _matrix,
    "b": _normal(3, 2),
    "s": _matrix @ _matrix.T,
    "d": _normal(3, 3),
    "c": _normal(2, 2, 3),
    "l": _normal(2, 3, 6),
    "z": _normal(2, 3) + 1j * _normal(2, 3),
    "zs": _normal(4) + 1j * _normal(4),
    "e": np.array(0.7),
    "nan": np.array([[1.5, np.nan, -0.5], [np.nan, 2.0, 0.25]]),
    "n": np.array([[0, 2, 1], [1, 1, 0]]),
    "i": np.array([2, 0, 1]),
    "h": np.array([3, 5, 12]),
    "k": np.array([3, 200, 255], np.uint8),
    "m": np.array([[True, False, True], [False, True, True]]),
    "mv": np.array([True, False, True]),
}


class Functions:
    """Functions over Tensors or arrays, for samples that take one."""

    def __init__(self, numpy):
        self.half = lambda x: x * 0.5
        self.square = lambda x: x * x
        self.total = lambda x, axis: numpy.sum(x, axis, keepdims=True)
        self.grid = lambda i, j: i + 2 * j
        self.dot = lambda x, y: numpy.dot(x, numpy.sin(y))
        self.smooth = lambda x, y: numpy.sin(x) * y


NUMPY = [
    ("x", """
        abs absolute arctan arcsinh around asinh atan cbrt ceil conj conjugate cos cosh deg2rad degrees exp exp2 expm1 fabs fix
        floor frexp i0 imag iscomplex isfinite isinf isnan isneginf isposinf isreal modf nan_to_num negative positive rad2deg
        radians real rint round sign signbit sin sinc sinh spacing square tan tanh trunc angle copy ravel transpose array asarray
        zeros_like ones_like empty_like atleast_1d atleast_2d atleast_3d corrcoef cov flip fliplr flipud rot90 squeeze tril triu
        unstack logical_not sort argsort sort_complex max min amax amin argmax argmin mean median std var sum prod ptp all any
        count_nonzero cumsum cumprod nanargmax nanargmin average diff ediff1d gradient trace diagonal unwrap matrix_transpose
        histogram histogram_bin_edges histogramdd tril_indices_from triu_indices_from minmax"""),
    ("x, size=6", "unique unique_all unique_counts unique_inverse unique_values"),
    ("x, y, size=6", "setdiff1d"),
    ("x, y, size=12", "setxor1d union1d"),
    ("x, x, size=6", "intersect1d"),
    ("p", "log log10 log1p log2 sqrt reciprocal"),
    ("u", "acos arccos asin arcsin atanh arctanh"),
    ("g", "acosh arccosh"),
    ("x, y", """
        add subtract multiply divide true_divide arctan2 atan2 copysign equal not_equal greater greater_equal less less_equal
        heaviside hypot logaddexp logaddexp2 maximum minimum fmax fmin allclose isclose array_equal array_equiv append
        floor_divide mod remainder fmod divmod nextafter broadcast_arrays isin
        logical_and logical_or logical_xor vecdot inner"""),
    ("p, y", "power pow float_power"),
    ("x, 2", "power array_split vsplit top_k"),
    ("x, 3", "power histogram hsplit"),
    ("c, 3", "dsplit"),
    ("x, 3, 1", "split"),
    ("x, 0", "expand_dims"),
    ("x, 0, 1", "swapaxes moveaxis"),
    ("x, 1, 0", "rollaxis"),
    ("x, 1", "partition argpartition take repeat roll"),
    ("x, axis=1", "sum max argmax cumulative_sum cumulative_prod nancumsum nancumprod nanmedian nanprod nanstd nanvar"),
    ("nan, axis=1", "nansum nanmean nanmax nanmin"),
    ("x, (2, 2)", "tile"),
    ("x, (3, 2)", "reshape resize"),
    ("x, (2, 2, 3)", "broadcast_to"),
    ("x, (1, 0)", "permute_dims"),
    ("x, 'float32'", "astype"),
    ("x, 0.5", "full_like quantile nanquantile"),
    ("x, 40.0", "percentile nanpercentile"),
    ("x, -0.5, y", "clip"),
    ("x, ((1, 0), (0, 2)), constant_values=e", "pad"),
    ("[x, y]", "concatenate concat stack vstack hstack dstack column_stack lexsort block"),
    ("m, x, y", "where"),
    ("[m, x > 0], [x, y], e", "select"),
    ("n, [p, x, y]", "choose"),
    ("m, x, size=4", "extract"),
    ("mv, x, axis=1, size=2", "compress"),
    ("x, i, 1", "take"),
    ("x, n, 1", "take_along_axis"),
    ("x, n, y, 1, False", "put_along_axis"),
    ("x, i, v, inplace=False", "put"),
    ("x, m, v, inplace=False", "place"),
    ("d, e, inplace=False", "fill_diagonal"),
    ("d", "diag_indices_from"),
    ("x, 1, 1", "delete"),
    ("x, 1, v[:2], 1", "insert"),
    ("i, v, length=4", "bincount"),
    ("v", "diag diagflat vander poly trapezoid"),
    ("v, w", "convolve correlate cross dot kron outer vdot meshgrid polyadd polymul polysub"),
    ("i, i", "ix_"),
    ("x, v", "matvec dot"),
    ("v, x", "polyval"),
    ("v, b", "vecmat"),
    ("a, b", "matmul dot"),
    ("x, b, 1", "tensordot"),
    ("'ij,jk->ik', x, b", "einsum"),
    ("t, v", "searchsorted polydiv"),
    ("v, t", "digitize"),
    ("v, t, r", "interp"),
    ("t", "roots polyder polyint trim_zeros"),
    ("t, r, 2", "polyfit"),
    ("t, r", "trapezoid histogram2d"),
    ("e, 2.0, 4", "linspace logspace geomspace"),
    ("5, e", "kaiser"),
    ("(2, 3), e", "full"),
    ("z", "real imag abs conj angle exp sin square sort_complex"),
    ("z, y", "add multiply"),
    ("n", "bitwise_not bitwise_invert bitwise_count invert"),
    ("n, n", "bitwise_and bitwise_or bitwise_xor gcd lcm left_shift right_shift bitwise_left_shift bitwise_right_shift"),
    ("x, n", "ldexp"),
    ("k", "packbits unpackbits"),
    ("h, (4, 4)", "unravel_index"),
    ("f.half, 0, x", "apply_along_axis"),
    ("f.total, x, (0,)", "apply_over_axes"),
    ("x, [x < 0, x >= 0], [f.half, f.square]", "piecewise"),
    ("f.grid, (2, 3)", "fromfunction"),
    ("F.r_[v, 0.5, 1:3]", "r_"),
    ("F.c_[v, w]", "c_"),
    ("F.vectorize(f.dot, signature='(n),(n)->()')(x, v)", "vectorize"),
    ("F.frompyfunc(f.smooth, 2, 1)(x, y)", "frompyfunc"),
]  # fmt: skip

LINALG = [
    ("a", "det eigvals inv slogdet svdvals qr eig matrix_rank pinv cond"),
    ("s", "cholesky eigh eigvalsh"),
    ("x", "norm vector_norm matrix_norm matrix_transpose diagonal trace"),
    ("x, False", "svd"),
    ("a, b", "solve lstsq matmul"),
    ("a, 3", "matrix_power"),
    ("v, w", "cross outer vecdot"),
    ("[a, b, x]", "multi_dot"),
    ("x, y", "tensordot"),
    ("l", "tensorinv"),
    ("l, x", "tensorsolve"),
]

FFT = [
    ("z", "fft ifft fft2 ifft2 fftn ifftn irfft2 irfftn fftshift ifftshift"),
    ("zs", "hfft irfft"),
    ("x", "rfft rfftn rfft2 ihfft"),
    ("6, e", "fftfreq rfftfreq"),
]

NN = [
    ("x", """
        celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log_sigmoid log_softmax logmeanexp logsumexp
        mish relu relu6 selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid squareplus standardize swish
        tanh"""),
    ("x, 1.5", "celu elu leaky_relu squareplus"),
    ("x, axis=0", "softmax log_softmax logsumexp"),
    ("b", "glu"),
    ("p", "log1mexp"),
    ("i, 3", "one_hot"),
    ("c[:, :, None], c[:, :, None] + 1.0, c[:, :, None] * 2.0", "dot_product_attention"),
    ("c, c + 1.0, c[..., :1], c[..., 1:2]", "scaled_matmul"),
    ("c, c + 1.0, (((2,), (2,)), ((0,), (0,))), configs=None", "scaled_dot_general"),
]  # fmt: skip

SPECIAL = [
    ("p", """
        digamma erf erfc erfcx exp1 expi expit factorial gamma gammaln gammasgn i0 i0e i1 i1e loggamma ndtr log_ndtr entr spence
        sici fresnel dawsn log_softmax softmax logsumexp"""),
    ("u", "erfinv erfcinv logit ndtri"),
    ("p, q", "beta betaln gammainc gammaincc kl_div rel_entr xlog1py xlogy comb boxcox boxcox1p poch owens_t"),
    ("p, q, u", "hyp1f1"),
    ("2.0, 1.5, u", "betainc"),
    ("1.5, 0.5, 2.5, u * 0.5", "hyp2f1"),
    ("g, p", "zeta"),
    ("2, p", "expn"),
    ("1, p", "polygamma"),
    ("g, 2", "multigammaln"),
    ("z", "wofz"),
    ("v, v=2", "bessel_jn"),
    ("i[:1], i[2:], v[:1], w[:1], n_max=3", "sph_harm_y"),
]  # fmt: skip

SAMPLES = {
    "tapejax.numpy": NUMPY,
    "tapejax.numpy.linalg": LINALG,
    "tapejax.numpy.fft": FFT,
    "tapejax.nn": NN,
    "tapejax.scipy.special": SPECIAL,
}

# What jax itself cannot differentiate: values only.
NO_GRADIENT = frozenset(["eig", "nextafter", "spacing"])
# What runs on a GPU only.
NEEDS_GPU = frozenset(["scaled_dot_general", "scaled_matmul"])
# What looks at values on the way, and so does not run under jit.
EAGER = frozenset(["choose", "roots", "trim_zeros"])
# What computes in float32 inside, whatever it is given.
TOLERANCE = {"dot_product_attention": 1e-5}
