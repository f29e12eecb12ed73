# ruff: noqa: C420, SIM905  (words in a string read better than quoted ones)
"""What the surface is made from: data about jax's functions, nothing else.

A parameter is an operand unless it is named here. Strings, dtypes, devices and the like are options by
what they are; only numbers, and tuples of them, need to be told apart.
"""

from __future__ import annotations

# Each namespace of tapejax, and jax's of which it has every name.
MODULES = {
    "tapejax.numpy": "jax.numpy",
    "tapejax.numpy.linalg": "jax.numpy.linalg",
    "tapejax.numpy.fft": "jax.numpy.fft",
    "tapejax.nn": "jax.nn",
    "tapejax.nn.initializers": "jax.nn.initializers",
    "tapejax.lax": "jax.lax",
    "tapejax.lax.linalg": "jax.lax.linalg",
    "tapejax.random": "jax.random",
    "tapejax.scipy": "jax.scipy",
    "tapejax.scipy.cluster": "jax.scipy.cluster",
    "tapejax.scipy.cluster.vq": "jax.scipy.cluster.vq",
    "tapejax.scipy.fft": "jax.scipy.fft",
    "tapejax.scipy.integrate": "jax.scipy.integrate",
    "tapejax.scipy.interpolate": "jax.scipy.interpolate",
    "tapejax.scipy.linalg": "jax.scipy.linalg",
    "tapejax.scipy.ndimage": "jax.scipy.ndimage",
    "tapejax.scipy.optimize": "jax.scipy.optimize",
    "tapejax.scipy.signal": "jax.scipy.signal",
    "tapejax.scipy.sparse": "jax.scipy.sparse",
    "tapejax.scipy.sparse.linalg": "jax.scipy.sparse.linalg",
    "tapejax.scipy.spatial": "jax.scipy.spatial",
    "tapejax.scipy.spatial.transform": "jax.scipy.spatial.transform",
    "tapejax.scipy.special": "jax.scipy.special",
    "tapejax.scipy.stats": "jax.scipy.stats",
} | {
    f"tapejax.scipy.stats.{name}": f"jax.scipy.stats.{name}"
    for name in (
        "bernoulli beta betabinom binom cauchy chi2 dirichlet expon gamma gennorm geom gumbel_l gumbel_r laplace logistic "
        "multinomial multivariate_normal nbinom norm pareto poisson t truncnorm uniform vonmises wrapcauchy"
    ).split()
}  # fmt: skip

# Parameters that are options wherever they appear ...
OPTIONS = frozenset(
    """
    axis axes axis1 axis2 axisa axisb axisc axis_name axis_index_groups shape new_shape sizes new_sizes size dtype out_dtype
    new_dtype index_dtype preferred_element_type keepdims ddof correction out order mode method norm ord indexing sparse
    precision out_sharding device accuracy deg equal_nan endpoint num retstep repeats total_repeat_length reps pad_width
    stat_length decimals offset N M k kth n s m p_norm UPLO upper lower symmetrize_input hermitian full_matrices compute_uv
    subset_by_index return_index return_inverse return_counts return_indices return_sign returned assume_unique
    assume_unique_indices invert sorted stable descending inplace wrap copy ndmin ndim edge_order unroll rowvar bias fweights
    density cov full increasing strip_zeros trim_leading_zeros include_initial promote_integers overwrite_input right bitorder
    minlength length num_classes approximate is_causal local_window_size return_residual indices_or_sections
    dimension_numbers window_strides window_dimensions window_dilation base_dilation padding padding_config lhs_dilation
    rhs_dilation feature_group_count batch_group_count strides stride start_dimension stop_dimension dimension dimensions
    broadcast_dimensions rank permutation perm slice_sizes slice_size limit_indices limit_index unique_indices
    indices_are_sorted allow_negative_indices wrap_negative_indices num_keys is_stable reverse source destination
    tiled split_axis concat_axis scatter_dimension filter_shape transpose_kernel use_consistent_padding
    fft_type fft_lengths exponent_bits mantissa_bits reduction_dimension recall_target reduction_input_size_override
    aggregate_to_topk permutation_size pivoting left_side transpose_a conjugate_a unit_diagonal
    compute_left_eigenvectors compute_right_eigenvectors enable_eigvec_derivs sort_eigenvalues compute_schur_vectors
    sort_eig_vals is_hermitian max_iterations dynamic_shape symmetrize_output left transpose use_magma
    overwrite_a overwrite_b overwrite_c overwrite_data check_finite eigvals_only turbo type eigvals select select_range
    upper_triangular max_squarings compute_expm calc_q permute_l trans debug lwork side blocksize disp repetition exact
    series_order diff_n n_max n_iter nperseg noverlap nfft return_onesided input_onesided boundary padded time_axis freq_axis
    scaling average detrend bp maxiter restart solve_method batch_size has_aux symmetric nan_policy replace independent impl
    in_axis out_axis batch_axis column_axis version perturb_singular sharding shardings
    casting optimize configs implementation group_offset _dot_general _split_transpose prevent_mlir_dce update_shape
    output to rounding_method algorithm operand_shape in_shape window_shape lhs_shape rhs_shape filter_dilation new_dims
    seq_lengths dims iters
    """.split()
)

# ... and the exceptions, by function: what is an operand there after all, and what is an option only there.
OPERANDS = {
    "tapejax.numpy": {
        "where": "size", "einsum": "out", "insert": "values", "interp": "left right", "cov": "fweights m", "tril": "m", "triu": "m",
        "flip": "m", "fliplr": "m", "flipud": "m", "rot90": "m", "polyint": "k", "round": "", "power": "",
    },
    "tapejax.numpy.linalg": {"matrix_rank": "M"},
    "tapejax.lax": {
        "cond": "operand", "switch": "operand", "ragged_dot": "group_offset", "ragged_dot_general": "group_offset",
        "polygamma": "m", "ragged_all_to_all": "output", "optimization_barrier": "operand",
    },
    "tapejax.random": {"binomial": "n", "multinomial": "n", "truncated_normal": "lower upper", "multivariate_normal": "cov",
                       "triangular": "left right mode"},
    "tapejax.scipy.special": {"polygamma": "n", "factorial": "n", "comb": "N k", "sph_harm_y": "n m",
                              "poch": "m", "zeta": ""},
    "tapejax.scipy.linalg": {"leslie": "s", "lu_solve": ""},
    "tapejax.scipy.sparse.linalg": {"bicgstab": "M", "cg": "M", "gmres": "M"},
    "tapejax.scipy.cluster.vq": {},
}  # fmt: skip
for _name in MODULES:
    if _name.startswith("tapejax.scipy.stats."):  # distributions: every parameter is a parameter of the distribution
        OPERANDS[_name] = {"*": "k n N M m p s a b shape loc scale order length mode mean cov"}

ONLY_OPTIONS = {
    "tapejax.numpy": {
        "arange": "start stop step", "delete": "obj", "insert": "obj", "rollaxis": "start", "broadcast_shapes": "shapes",
        "array_split": "indices_or_sections", "nan_to_num": "copy", "unpackbits": "count", "kaiser": "M", "vander": "N",
        "top_k": "k", "indices": "dimensions", "unwrap": "", "packbits": "axis", "gradient": "edge_order", "polyfit": "rcond",
    },
    "tapejax.numpy.linalg": {"cond": "p", "tensorinv": "ind"},
    "tapejax.lax": {"slice": "start_indices", "slice_in_dim": "start_index", "index_in_dim": "index", "integer_pow": "y",
                    "pbroadcast": "source", "associative_scan": "reverse", "fori_loop": "", "collapse": "",
                    "platform_dependent": "", "composite": "name"},
    "tapejax.lax.linalg": {"symmetric_product": "alpha beta", "qdwh": "eps"},
    "tapejax.random": {"ball": "d p", "generalized_normal": "p", "split": "num", "orthogonal": "n m", "choice": ""},
    "tapejax.scipy.special": {"multigammaln": "d", "bessel_jn": "v", "bernoulli": "n"},
    "tapejax.scipy.linalg": {"polar": "eps", "solve": "assume_a", "dft": "scale", "solve_sylvester": "tol",
                             "eigh_tridiagonal": "tol"},
    "tapejax.scipy.optimize": {"minimize": "tol options"},
}  # fmt: skip

# Where a Python number is an option, so that jax does what it does for a number, and an array an operand.
NUMBER_OPTIONS = {
    "tapejax.numpy": {
        "power": "x2", "pow": "x2", "float_power": "y", "histogram": "bins", "histogram2d": "bins", "histogramdd": "bins",
        "histogram_bin_edges": "bins", "trace": "offset", "eye": "k", "linspace": "num", "polyder": "m",
        "take": "indices", "roll": "shift",
    },
    "tapejax.lax": {"pow": "y", "fori_loop": "lower upper", "shape_as_value": "shape"},
    "tapejax.random": {"choice": "a", "permutation": "x"},
    "tapejax.scipy.linalg": {"cho_solve": "c_and_lower"},
    "tapejax.scipy.special": {"factorial": "", "sph_harm_y": ""},
}  # fmt: skip

# What is not recorded, and why. These work on arrays and on Tensors by their values, and refuse a recorded
# Tensor only where the result would have lost its gradient.
ABOUT = "tells about types and shapes, not about values"
FILE = "reads or writes a file or a buffer"
TEXT = "makes text"
INTEGERS = "gives integers, and how many depends on the values"
CHECKS = "gives integers, and checks values on the way"
SETTING = "changes or reads a setting"
NO_OPERAND = "takes numbers that decide a shape, and no array"
TOKEN = "works with tokens, not with numbers"
KEYS = "works with random keys, which have no gradient"

PLAIN = {
    "tapejax.numpy": {
        **dict.fromkeys(
            "broadcast_shapes can_cast dtype iscomplexobj isdtype isrealobj isscalar issubdtype iterable ndim shape size "
            "promote_types result_type einsum_path".split(), ABOUT),
        **dict.fromkeys("load save savez fromfile frombuffer from_dlpack fromiter fromstring".split(), FILE),
        **dict.fromkeys("array_repr array_str".split(), TEXT),
        **dict.fromkeys("nonzero argwhere flatnonzero mask_indices".split(), INTEGERS),
        **dict.fromkeys(["ravel_multi_index"], CHECKS),
        **dict.fromkeys("get_printoptions set_printoptions printoptions".split(), SETTING),
        **dict.fromkeys(
            "arange bartlett blackman hamming hanning diag_indices tri tril_indices triu_indices identity indices zeros ones "
            "empty eye".split(), NO_OPERAND),
    },
    "tapejax.numpy.fft": {},
    "tapejax.nn": {"get_scaled_dot_general_config": SETTING},
    "tapejax.lax": {
        **dict.fromkeys(
            "broadcast_shapes dtype conv_dimension_numbers conv_general_permutations conv_general_shape_tuple conv_shape_tuple "
            "conv_transpose_shape_tuple padtype_to_pads reduce_window_shape_tuple axis_size axis_index".split(), ABOUT),
        **dict.fromkeys("after_all create_token psend precv dce_sink".split(), TOKEN),
        **dict.fromkeys("broadcasted_iota empty iota shape_as_value".split(), NO_OPERAND),
    },
    "tapejax.random": dict.fromkeys("PRNGKey key key_data key_dtype key_impl wrap_key_data clone fold_in".split(), KEYS),
    "tapejax.scipy.linalg": dict.fromkeys("dft hadamard helmert hilbert invhilbert invpascal pascal".split(), NO_OPERAND),
    "tapejax.scipy.special": {"bernoulli": NO_OPERAND},
}  # fmt: skip

# The size of the result depends on the values: it is read off them first, then given as this option.
SIZED = {
    "tapejax.numpy": {
        **dict.fromkeys("compress extract setdiff1d setxor1d union1d unique unique_all unique_counts unique_inverse "
                        "unique_values intersect1d".split(), "size"),
        "bincount": "length",
    },
}  # fmt: skip

# What returns a function, or an object with methods: made anew from its arguments at every call of the result.
MAKERS = {
    "tapejax.numpy": {"vectorize": (), "frompyfunc": ()},
    "tapejax.lax": {"composite": ()},
    "tapejax.nn.initializers": {
        name: ("shape", "dtype", "out_sharding")
        for name in (
            "constant delta_orthogonal glorot_normal glorot_uniform he_normal he_uniform kaiming_normal kaiming_uniform "
            "lecun_normal lecun_uniform normal orthogonal truncated_normal uniform variance_scaling xavier_normal xavier_uniform"
        ).split()
    },
}  # fmt: skip
CLASSES = {
    "tapejax.scipy.stats": {"gaussian_kde": (
        "evaluate integrate_gaussian integrate_box_1d integrate_kde resample pdf logpdf __call__")},
    "tapejax.scipy.interpolate": {"RegularGridInterpolator": "__call__"},
}  # fmt: skip


def words(table: dict[str, dict[str, str]], module: str, name: str) -> frozenset[str]:
    entry = table.get(module, {})
    return frozenset((entry.get(name, "") + " " + entry.get("*", "")).split())


def options_of(module: str, name: str) -> frozenset[str]:
    """The parameters of a function that are options."""
    numbers = words(NUMBER_OPTIONS, module, name)
    return (OPTIONS - words(OPERANDS, module, name) - numbers) | words(ONLY_OPTIONS, module, name)
