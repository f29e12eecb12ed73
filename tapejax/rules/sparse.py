"""Primitives of jax.experimental.sparse: a dense cotangent is read at the stored places, a sparse one spread out.

`todense` and `extract` (reading a dense array at the stored places) are each other's transpose, and
so are the two products: sparse times dense, and dense times dense where only some places are wanted.
Places outside the array are padding: they read zero and write nothing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.rules.registry import refused, rule


def _sparse():
    """jax.experimental.sparse, imported only where its primitives appear."""
    from jax.experimental import sparse

    return sparse


def spread(data, indices, shape):
    """The dense array of a BCOO's parts."""
    return _sparse().BCOO((data, indices), shape=tuple(shape)).todense()


def values_at(dense, indices, data):
    """The dense array's values at a BCOO's places, in the shape of its data."""
    matrix = _sparse().BCOO((jnp.zeros(data.shape, dense.dtype), indices), shape=dense.shape)
    return _sparse().bcoo_extract(matrix, dense, assume_unique=True).data


# --- BCOO: batched coordinates -----------------------------------------------------------------------


@rule("bcoo_todense", saves="indices")
def bcoo_todense(ct, out, data, indices, *, spinfo):
    """out = the dense array"""
    return values_at(ct, indices, data), None


@rule("bcoo_extract", saves="indices")
def bcoo_extract(ct, out, indices, x, *, assume_unique):
    """out = x at the places of indices"""
    if not assume_unique:
        # Of places that are there twice only the first has the value.
        keep = values_at(jnp.ones(x.shape, ct.dtype), *_first_of_each(indices, x.shape, ct))
        ct = ct * keep
    return None, spread(ct, indices, x.shape)


def _first_of_each(indices, shape, data):
    """indices with all but the first of equal places moved outside, and data for their shape."""

    def unbatched(indices):
        same = (indices[:, None] == indices[None]).all(-1)
        again = jnp.tril(same, -1).any(1)
        return jnp.where(again[:, None], jnp.array(shape[-indices.shape[-1] :], indices.dtype), indices)

    for _ in range(indices.ndim - 2):
        unbatched = jax.vmap(unbatched)
    return unbatched(indices), data


@rule("bcoo_fromdense", saves="out.1")
def bcoo_fromdense(cts, outs, x, *, nse, n_batch, n_dense, index_dtype):
    """outs = the values that are not zero, and their places"""
    return (spread(cts[0], outs[1], x.shape),)


@rule("bcoo_transpose")
def bcoo_transpose(cts, outs, data, indices, *, permutation, spinfo):
    """outs = the data and places of the transposed array"""
    n_batch, n_sparse = indices.ndim - 2, indices.shape[-1]
    batch = list(permutation[:n_batch])
    dense = [axis - n_sparse + 1 for axis in permutation[n_batch + n_sparse :]]
    order = [*batch, n_batch, *dense]
    return lax.transpose(cts[0], [order.index(axis) for axis in range(len(order))]), None


@rule("bcoo_sort_indices", saves="indices")
def bcoo_sort_indices(cts, outs, data, indices, *, spinfo):
    """outs = the data and places in order"""
    back = lambda ct, indices: jnp.zeros_like(ct).at[_order(indices)].set(ct)
    return _over_batch(back, indices)(cts[0], indices), None


@rule("bcoo_sum_duplicates", saves="indices")
def bcoo_sum_duplicates(cts, outs, data, indices, *, spinfo, nse):
    """outs = the data and places in order, with the data of equal places added"""
    n_batch, n_sparse = indices.ndim - 2, indices.shape[-1]
    bounds = jnp.array(spinfo.shape[n_batch : n_batch + n_sparse], indices.dtype)

    def back(ct, indices):
        indices = jnp.where((indices < bounds).all(1, keepdims=True), indices, bounds)  # all padding is one place
        order = _order(indices)
        places = indices[order]
        new = (places[1:] != places[:-1]).any(1)
        group = jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(new)]) if len(indices) else jnp.zeros(0, int)
        values = ct.at[group].get(mode="fill", fill_value=0)
        return jnp.zeros((len(indices), *ct.shape[1:]), ct.dtype).at[order].set(values)

    return _over_batch(back, indices)(cts[0], indices), None


def _order(indices):
    """The places in lexicographic order, equal ones as they come."""
    return jnp.lexsort(indices.T[::-1]) if indices.shape[1] else jnp.arange(len(indices))


def _over_batch(function, indices):
    for _ in range(indices.ndim - 2):
        function = jax.vmap(function)
    return function


# --- products ----------------------------------------------------------------------------------------


def product(data, indices, shape, y, dimension_numbers):
    """dot_general of a sparse and a dense array; jax's sparse one where it knows how."""
    if _plain(indices, shape, dimension_numbers):
        x = _sparse().BCOO((data, indices), shape=tuple(shape))
        return _sparse().bcoo_dot_general(x, y, dimension_numbers=dimension_numbers)
    return lax.dot_general(spread(data, indices, shape), y, dimension_numbers)


def sampled(x, y, indices, data, axes, shape, dimension_numbers):
    """dot_general of dense arrays at the places of indices; axes[i] is the axis that the product's axis i becomes."""
    if _plain(indices, shape, dimension_numbers):
        places = jnp.asarray(indices)[:, np.array(axes, int)]
        return _sparse().bcoo_dot_general_sampled(x, y, places, dimension_numbers=dimension_numbers)
    dense = lax.dot_general(x, y, dimension_numbers)
    return values_at(lax.transpose(dense, [axes.index(axis) for axis in range(len(axes))]), indices, data)


def _plain(indices, shape, dimension_numbers):
    """No batch axes, and every axis is sparse."""
    return indices.ndim == 2 and indices.shape[1] == len(shape) and not dimension_numbers[1][0]


def _others(ndim, *taken):
    return [axis for axis in range(ndim) if not any(axis in axes for axes in taken)]


def _matching(mine, theirs):
    """My contracted axes in the order of theirs."""
    return [mine[i] for i in sorted(range(len(theirs)), key=lambda i: theirs[i])]


def _put(x, axes):
    """x with its axis i moved to axes[i]."""
    return lax.transpose(x, [axes.index(axis) for axis in range(len(axes))])


@rule("bcoo_dot_general", saves=("indices y", "", "data indices"))
def bcoo_dot_general(ct, out, data, indices, y, *, dimension_numbers, preferred_element_type, lhs_spinfo):
    """out = sparse x times dense y"""
    shape = lhs_spinfo.shape
    (x_sum, y_sum), (x_batch, y_batch) = dimension_numbers
    x_free, y_free = _others(len(shape), x_sum, x_batch), _others(y.ndim, y_sum, y_batch)
    n = len(x_batch)
    rows, columns = range(n, n + len(x_free)), range(n + len(x_free), ct.ndim)
    ct = lax.convert_element_type(ct, data.dtype)
    batch = lambda axes: (tuple(range(n)), tuple(axes))
    x_axes = [*x_batch, *x_free, *_matching(x_sum, y_sum)]
    data_ct = sampled(ct, y, indices, data, x_axes, shape, ((tuple(columns), tuple(y_free)), batch(y_batch)))
    y_axes = [*y_batch, *_matching(y_sum, x_sum), *y_free]
    back = ((tuple(x_free), tuple(rows)), (tuple(x_batch), tuple(range(n))))
    y_ct = _put(product(data, indices, shape, ct, back), y_axes)
    return data_ct, None, lax.convert_element_type(y_ct, y.dtype)


@rule("bcoo_dot_general_sampled", saves=("y indices", "x indices", ""))
def bcoo_dot_general_sampled(ct, out, x, y, indices, *, dimension_numbers):
    """out = x times y at the places of indices"""
    (x_sum, y_sum), (x_batch, y_batch) = dimension_numbers
    x_free, y_free = _others(x.ndim, x_sum, x_batch), _others(y.ndim, y_sum, y_batch)
    n = len(x_batch)
    shape = [*(x.shape[d] for d in [*x_batch, *x_free]), *(y.shape[d] for d in y_free)]
    rows, columns = range(n, n + len(x_free)), range(n + len(x_free), len(shape))
    times = lambda other, mine, free, batch: product(
        ct, indices, shape, other, ((tuple(mine), tuple(free)), (tuple(range(n)), tuple(batch)))
    )
    x_ct = _put(times(y, columns, y_free, y_batch), [*x_batch, *x_free, *_matching(x_sum, y_sum)])
    y_ct = _put(times(x, rows, x_free, x_batch), [*y_batch, *y_free, *_matching(y_sum, x_sum)])
    return x_ct, y_ct, None


refused(
    ["bcoo_spdot_general"],
    "jax has no derivative of a product of two sparse arrays",
    fix="make one of the two dense: x @ y.todense()",
)


# --- BCSR: rows one after the other. Its places are those of a BCOO. ------------------------------------


def _bcsr_places(indices, indptr, shape):
    n_batch = indices.ndim - 1
    data = jnp.zeros((*indices.shape, *shape[n_batch + 2 :]))
    return _sparse().BCSR((data, indices, indptr), shape=tuple(shape)).to_bcoo().indices


@rule("bcsr_todense", saves="indices indptr")
def bcsr_todense(ct, out, data, indices, indptr, *, spinfo):
    """out = the dense array"""
    return values_at(ct, _bcsr_places(indices, indptr, out.shape), data), None, None


@rule("bcsr_extract", saves="indices indptr")
def bcsr_extract(ct, out, indices, indptr, x):
    """out = x at the places of indices"""
    return None, None, spread(ct, _bcsr_places(indices, indptr, x.shape), x.shape)


@rule("bcsr_fromdense", saves="out.1 out.2")
def bcsr_fromdense(cts, outs, x, *, nse, n_batch, n_dense, index_dtype):
    """outs = the values that are not zero, their columns, and where each row starts"""
    return (spread(cts[0], _bcsr_places(outs[1], outs[2], x.shape), x.shape),)


@rule("bcsr_dot_general", saves=("indices indptr y", "", "", "data indices indptr"))
def bcsr_dot_general(ct, out, data, indices, indptr, y, *, dimension_numbers, preferred_element_type, lhs_spinfo):
    """out = sparse x times dense y"""
    places = _bcsr_places(indices, indptr, lhs_spinfo.shape)
    data_ct, _, y_ct = bcoo_dot_general(
        ct, out, data, places, y, dimension_numbers=dimension_numbers,
        preferred_element_type=preferred_element_type, lhs_spinfo=lhs_spinfo,
    )  # fmt: skip
    return data_ct, None, None, y_ct


# --- COO and CSR: matrices as rows and columns ---------------------------------------------------------


def rows_of(indptr, n):
    """The row of each of n stored values; padding is in the row after the last."""
    return jnp.searchsorted(indptr, jnp.arange(n), side="right", method="compare_all").astype(indptr.dtype) - 1


def at(x, *places):
    return x.at[places].get(mode="fill", fill_value=0)


def onto(shape, values, *places):
    return jnp.zeros(shape, values.dtype).at[places].add(values, mode="drop")


def matrix_product(ct, data, row, column, y, transpose):
    """Cotangents of the data and of y in `A @ y` (or `A.T @ y`), y a vector or a matrix."""
    row, column = (column, row) if transpose else (row, column)
    pulled = at(ct, row)
    weighted = pulled * data.reshape(-1, *[1] * (y.ndim - 1))
    return (pulled * at(y, column)).reshape(len(data), -1).sum(1), onto(y.shape, weighted, column)


def _coo_product(ct, out, data, row, column, y, *, spinfo, transpose):
    """out = A @ y, or A.T @ y"""
    data_ct, y_ct = matrix_product(ct, data, row, column, y, transpose)
    return data_ct, None, None, y_ct


def _csr_product(ct, out, data, indices, indptr, y, *, shape, transpose):
    """out = A @ y, or A.T @ y"""
    data_ct, y_ct = matrix_product(ct, data, rows_of(indptr, len(data)), indices, y, transpose)
    return data_ct, None, None, y_ct


for name in ("matvec", "matmat"):
    rule(f"coo_{name}", saves="data row column y")(_coo_product)
    rule(f"csr_{name}", saves="data indices indptr y")(_csr_product)


@rule("coo_todense", saves="row column")
def coo_todense(ct, out, data, row, column, *, spinfo):
    """out = the dense matrix"""
    return at(ct, row, column), None, None


@rule("csr_todense", saves="indices indptr")
def csr_todense(ct, out, data, indices, indptr, *, shape):
    """out = the dense matrix"""
    return at(ct, rows_of(indptr, data.shape[0]), indices), None, None


@rule("coo_fromdense", saves="out")
def coo_fromdense(cts, outs, x, *, nse, index_dtype):
    """outs = the values that are not zero, their rows and columns"""
    # Padding has the value zero and the place of the first element, which is not its own.
    return (onto(x.shape, jnp.where(outs[0] == 0, 0, cts[0]), outs[1], outs[2]),)


@rule("csr_fromdense", saves="out.1 out.2")
def csr_fromdense(cts, outs, x, *, nse, index_dtype):
    """outs = the values that are not zero, their columns, and where each row starts"""
    return (onto(x.shape, cts[0], rows_of(outs[2], nse), outs[1]),)


@rule("todense", saves="leaves")
def todense(ct, out, *leaves, tree):
    """out = the dense array of any of these formats"""
    sparse = _sparse()
    matrix = jax.tree_util.tree_unflatten(tree, leaves)
    data = leaves[0]
    if isinstance(matrix, sparse.BCOO):
        data_ct = values_at(ct, matrix.indices, data)
    elif isinstance(matrix, sparse.BCSR):
        data_ct = values_at(ct, _bcsr_places(matrix.indices, matrix.indptr, matrix.shape), data)
    elif isinstance(matrix, sparse.CSR):
        data_ct = at(ct, rows_of(matrix.indptr, len(data)), matrix.indices)
    elif isinstance(matrix, sparse.COO):
        data_ct = at(ct, matrix.row, matrix.col)
    else:
        return (ct,)  # a dense array is itself
    return data_ct, *[None] * (len(leaves) - 1)


@rule("spsolve", saves="data indices indptr out")
def spsolve(ct, out, data, indices, indptr, b, *, tol, reorder):
    """out = A^-1 b, A in CSR"""
    from jax.experimental.sparse import linalg

    data, indices, indptr = map(jnp.asarray, (data, indices, indptr))
    row = rows_of(indptr, len(data))
    order = jnp.lexsort((row, indices))  # A.T in CSR: its rows are the columns of A
    starts = jnp.searchsorted(indices[order], jnp.arange(len(indptr)), method="compare_all").astype(indptr.dtype)
    b_ct = linalg.spsolve(data[order], row[order], starts, ct, tol=tol, reorder=reorder)
    return -b_ct[row] * out[indices], None, None, b_ct
