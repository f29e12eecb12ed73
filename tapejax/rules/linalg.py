"""Rules of matrix factorisations. Solves are in solves.py, the vocabulary in matrices.py."""

import jax
import jax.numpy as jnp
from jax import lax

from tapejax.errors import RefusedPrimitive
from tapejax.rules.matrices import (
    H,
    T,
    conjugate,
    diagonal,
    half_diagonal,
    inverse_differences,
    mm,
    on_diagonal,
    put_back,
)
from tapejax.rules.registry import RuleCall, refused, rule, structural

solve_triangular = lax.linalg.triangular_solve


@rule(lax.linalg.cholesky_p, saves="out")
def cholesky(ct, out, a):
    """out out^H = a, where out is lower triangular"""
    l = jnp.tril(out)
    inner_ct = half_diagonal(jnp.tril(mm(T(l), ct)))
    left = solve_triangular(l, inner_ct, left_side=True, lower=True, transpose_a=True)
    a_bar = conjugate(solve_triangular(l, left, left_side=False, lower=True, conjugate_a=True))
    # Only a's lower triangle is read; the upper one is taken to be its conjugate.
    return (conjugate(half_diagonal(jnp.tril(a_bar + H(a_bar)))),)


@rule(lax.linalg.lu_p, saves="out")
def lu(ct, out, a):
    """a[permutation] = l u, where out[0] has l below its diagonal and u from there on"""
    ct, (factors, _, permutation) = ct[0], out
    n = min(a.shape[-2:])
    square, square_ct = factors[..., :n, :n], ct[..., :n, :n]
    by_l = lambda x: solve_triangular(square, x, left_side=True, lower=True, transpose_a=True, unit_diagonal=True)
    by_u = lambda x: solve_triangular(square, x, left_side=False, transpose_a=True)
    # Rows below the square are a's rows divided by u, columns beside it a's columns divided by l.
    below_ct, beside_ct = by_u(ct[..., n:, :n]), by_l(ct[..., :n, n:])
    l_ct = jnp.tril(square_ct - mm(beside_ct, T(factors[..., :n, n:])), -1)
    u_ct = jnp.triu(square_ct - mm(T(factors[..., n:, :n]), below_ct))
    l, u = jnp.tril(square, -1), jnp.triu(square)
    inner_ct = jnp.tril(l_ct + mm(T(l), l_ct), -1) + jnp.triu(mm(u_ct, T(u)))
    square_ct = by_l(by_u(inner_ct))
    wide = lax.concatenate([square_ct, beside_ct], a.ndim - 1)  # an empty block unless a is wide or tall
    below_ct = lax.concatenate([below_ct, jnp.zeros_like(ct[..., n:, n:])], a.ndim - 1)
    return (put_back(lax.concatenate([wide, below_ct], a.ndim - 2), permutation, -2),)


@rule(lax.linalg.qr_p, saves="out")
def qr(ct, out, a, *, pivoting, full_matrices, use_magma):
    """a = q r, or a[:, permutation] = q r; r is upper triangular with a real diagonal"""
    (q, r, *permutation), (q_bar, r_bar) = out, (conjugate(ct[0]), conjugate(ct[1]))
    n = min(a.shape[-2:])
    q, more, q_bar, more_bar = q[..., :n], q[..., n:], q_bar[..., :n], q_bar[..., n:]
    r, beside, r_bar, beside_bar = r[..., :n, :n], r[..., :n, n:], r_bar[..., :n, :n], r_bar[..., :n, n:]
    if more.shape[-1]:
        q_bar = q_bar + completion_bar(q, more, more_bar)
    # The columns beside the square are q^H a there.
    q_bar = q_bar + mm(q, beside, H(beside_bar))
    inner = mm(H(q), q_bar) - mm(r_bar, H(r))
    upper = half_diagonal(jnp.triu(inner))
    a_bar = q_bar - mm(q, upper + H(upper))
    a_bar = solve_triangular(r, a_bar, left_side=False, transpose_a=True, conjugate_a=True)
    a_bar = lax.concatenate([a_bar, mm(q, beside_bar)], a.ndim - 1)
    return (conjugate(put_back(a_bar, permutation[0], -1) if pivoting else a_bar),)


def completion_bar(q, more, more_bar):
    """The cotangent of q through the columns that complete it to a unitary matrix.

    With q = [top; bottom], Householder reflections make `more` a function of q alone. Its change is
    dq z^H - (q + more z) (dbottom - z dtop)^H, where z = bottom (top - 1)^-1 (arXiv 2409.13374).
    """
    n = q.shape[-1]
    top, bottom = q[..., :n, :], q[..., n:, :]
    z = T(jnp.linalg.solve(T(top - jnp.eye(n, dtype=q.dtype)), T(bottom)))
    change = mm(H(more_bar), q + mm(more, z))
    return mm(more_bar, z) + lax.concatenate([mm(H(z), change), -change], q.ndim - 2)


# --- eigenvalues and singular values -----------------------------------------------------------


def eigh_refuses(a, *, subset_by_index, **_):
    if subset_by_index not in (None, (0, a.shape[-1])):
        return "the eigenvectors left out by subset_by_index are needed", "leave subset_by_index out, and slice"


@rule(lax.linalg.eigh_p, saves="out", zeros=False, refuses=eigh_refuses)
def eigh(ct, out, a, *, lower, sort_eigenvalues, subset_by_index, algorithm):
    """a v = v diag(w), out = v, w; a Hermitian, v unitary"""
    (v, w), (v_ct, w_ct) = out, ct
    # A cotangent that is not there must not meet the infinities of equal eigenvalues.
    inner = 0 if w_ct is None else on_diagonal(w_ct.astype(a.dtype))
    if v_ct is not None:
        inner = inner + inverse_differences(w).astype(a.dtype) * mm(H(v), conjugate(v_ct))
    return (conjugate(mm(v, inner, H(v))),)


def vectors_step(eqn, in_avals, out_avals, wider, backward):
    """The Step of a rule that reads vectors: if eqn only asks for values, the forward runs with the
    params `wider` and keeps the vectors."""
    n = len(out_avals)
    if wider == eqn.params:
        return RuleCall((), tuple(range(n)), backward)

    def forward(operands):
        results = eqn.primitive.bind(*operands, **wider)
        return results[:n], results[n:]

    _, extra_avals = jax.eval_shape(forward, [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in in_avals])
    return RuleCall((), tuple(range(n)), backward, forward, tuple(extra_avals))


@structural(lax.linalg.eig_p)
def eig(eqn, in_avals, out_avals, active_in, tools):
    """a vr = vr diag(w), a^H vl = vl conj(diag(w)); out = w and those of vl, vr that were asked for"""
    (a,), params = in_avals, eqn.params
    left, right = params["compute_left_eigenvectors"], params["compute_right_eigenvectors"]
    if (left or right) and not params["enable_eigvec_derivs"]:
        raise RefusedPrimitive(
            "this `eig` cannot be differentiated in reverse: its eigenvectors are smooth only under conditions on a",
            at=eqn.line,
            action=eqn,
            fix="jnp.linalg.eigvals for eigenvalues, lax.linalg.eig(..., enable_eigvec_derivs=True) to opt in",
        )

    def backward(saved, cts):
        w, vr = saved[0], saved[-1]
        conjugates = [None if ct is None else conjugate(ct) for ct in cts]
        a_bar = eigenvectors_bar(w, vr, conjugates[0], conjugates[-1] if right else None)
        if left:
            a_bar = a_bar + H(eigenvectors_bar(conjugate(w), saved[1], None, conjugates[1]))
        return (conjugate(a_bar) if jnp.iscomplexobj(a) else lax.real(a_bar),)

    # The gradient of eigenvalues does not depend on the vectors' phases, so it may be differentiated again.
    wider = params if right else params | {"compute_right_eigenvectors": True, "enable_eigvec_derivs": True}
    return vectors_step(eqn, in_avals, out_avals, wider, backward)


def eigenvectors_bar(w, v, w_bar, v_bar):
    """The cotangent of a in a v = v diag(w), each column of v of length one, its largest entry real."""
    inner = jnp.zeros_like(v) if w_bar is None else on_diagonal(w_bar)
    if v_bar is not None:
        largest = jnp.argmax(lax.abs(v), axis=-2, keepdims=True)
        is_largest = lax.broadcasted_iota(largest.dtype, v.shape, v.ndim - 2) == largest
        # What changes only a column's length and phase is undone by the normalisation.
        scale_bar = jnp.sum(conjugate(v) * v_bar, axis=-2, keepdims=True)
        pivot = jnp.sum(jnp.where(is_largest, lax.real(v), 0), axis=-2, keepdims=True)
        turn = jnp.where(is_largest, scale_bar.imag / pivot, 0)
        free_bar = v_bar - scale_bar.real * v - 1j * turn
        inner = inner + conjugate(inverse_differences(w)) * mm(H(v), free_bar)
    return jnp.linalg.solve(H(v), mm(inner, H(v)))


@structural(lax.linalg.svd_p)
def svd(eqn, in_avals, out_avals, active_in, tools):
    """a = u diag(s) vt; out = s, or s, u, vt"""
    (a,), params = in_avals, eqn.params
    rows, columns = a.shape[-2:]
    whole = params["subset_by_index"] in (None, (0, min(rows, columns)))
    if params["compute_uv"] and ((params["full_matrices"] and rows != columns) or not whole):
        raise RefusedPrimitive(
            "this `svd` cannot be differentiated in reverse: "
            + ("the vectors that complete u or vt are free" if whole else "the vectors left out are needed"),
            at=eqn.line,
            action=eqn,
            fix="full_matrices=False, without subset_by_index",
        )

    def backward(saved, cts):
        cts = [*cts, None, None][:3]
        return (svd_cotangent(*(None if ct is None else conjugate(ct) for ct in cts), *saved),)

    wider = params if params["compute_uv"] else params | {"compute_uv": True, "full_matrices": False}
    return vectors_step(eqn, in_avals, out_avals, wider, backward)


def svd_cotangent(s_bar, u_bar, vt_bar, s, u, vt):
    """The cotangent of u diag(s) vt. Columns of u and v whose singular values agree have none (infinite)."""
    dtype, v = u.dtype, H(vt)
    inverse_gaps = inverse_differences(s, of=lambda x, y: (x + y) * (x - y)).astype(dtype)
    row, column = s[..., None, :].astype(dtype), s[..., :, None].astype(dtype)
    inner = 0 if s_bar is None else on_diagonal(s_bar.astype(dtype))
    outside = 0
    if u_bar is not None:
        turns = mm(H(u), u_bar)
        inner = inner + hermitian(inverse_gaps * turns) * row
        if jnp.iscomplexobj(u):  # the phase that u and v share is u's
            inner = inner + diagonal(turns - H(turns)) / (2 * jnp.where(row == 0, 1, row))
        if u.shape[-2] > u.shape[-1]:
            outside = mm((u_bar - mm(u, turns)) / row, vt)
    if vt_bar is not None:
        v_bar = H(vt_bar)
        turns = mm(H(v), v_bar)
        inner = inner + column * hermitian(inverse_gaps * turns)
        if v.shape[-2] > v.shape[-1]:
            outside = outside + mm(u, H((v_bar - mm(v, turns)) / row))
    return conjugate(mm(u, inner, vt) + outside)


def hermitian(x):
    return x + H(x)


refused(
    [lax.linalg.hessenberg_p, lax.linalg.schur_p, lax.linalg.tridiagonal_p],
    "neither jax nor tapejax has a derivative of this reduction, which is unique only up to signs and order",
    fix="use eigh, eig or qr, or give the function around it a jax.custom_vjp",
)
refused(
    [lax.linalg.householder_product_p, lax.linalg.ormqr_p, "geqrf", "geqp3"],
    "neither jax nor tapejax has a derivative of products of Householder reflections",
    fix="use lax.linalg.qr, which returns the product itself",
)
refused(
    [lax.linalg.cholesky_update_p],
    "neither jax nor tapejax has a derivative of it",
    fix="take lax.linalg.cholesky of the updated matrix",
)
