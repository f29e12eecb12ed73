"""Rules of linear systems: solves with the matrix given, and the user's own solver."""

import jax.numpy as jnp
from jax import lax
from jax.extend.core.primitives import linear_solve_p

from tapejax.errors import RefusedPrimitive
from tapejax.program import program as programs
from tapejax.rules.matrices import T, conjugate, mm
from tapejax.rules.registry import RuleCall, rule, structural, zeros_like


@rule(lax.linalg.triangular_solve_p, saves=("out a", "a"))
def triangular_solve(ct, out, a, b, *, left_side, lower, transpose_a, conjugate_a, unit_diagonal):
    """op(a) out = b, or out op(a) = b; op takes a triangle of a, then its transpose or conjugate"""
    options = {"left_side": left_side, "lower": lower, "conjugate_a": conjugate_a, "unit_diagonal": unit_diagonal}
    b_ct = lax.linalg.triangular_solve_p.bind(a, ct, transpose_a=not transpose_a, **options)
    op_ct = -mm(b_ct, T(out)) if left_side else -mm(T(out), b_ct)
    a_ct = T(op_ct) if transpose_a else op_ct
    a_ct = conjugate(a_ct) if conjugate_a else a_ct
    a_ct = jnp.tril(a_ct, -unit_diagonal) if lower else jnp.triu(a_ct, +unit_diagonal)
    return a_ct, b_ct


@rule(lax.linalg.tridiagonal_solve_p, saves=("out dl d du", "out dl d du", "out dl d du", "dl d du"))
def tridiagonal_solve(ct, out, dl, d, du, b, *, perturb_singular):
    """dl[i] out[i-1] + d[i] out[i] + du[i] out[i+1] = b[i], where dl[0] and du[-1] do not count"""
    axis = d.ndim - 1

    def shifted(x, by):
        """x[i - by] along the equations, zero where there is none."""
        edges = [(by, -by, 0) if d == axis else (0, 0, 0) for d in range(x.ndim)]
        return lax.pad(x, jnp.zeros((), x.dtype), edges)

    solve = lax.linalg.tridiagonal_solve_p.bind
    b_ct = solve(shifted(du, 1), d, shifted(dl, -1), ct, perturb_singular=perturb_singular)
    band_ct = lambda by: -lax.reduce_sum(b_ct * shifted(out, by), (axis + 1,))
    return band_ct(1), band_ct(0), band_ct(-1), b_ct


def transposed(four):
    """What the primitive holds for matvec, vecmat, solve and transpose_solve, for the transposed system."""
    return four._replace(matvec=four.vecmat, vecmat=four.matvec, solve=four.transpose_solve, transpose_solve=four.solve)


@structural(linear_solve_p)
def custom_linear_solve(eqn, in_avals, out_avals, active_in, tools):
    """matvec(out) = b, by the user's solve; going back is one more solve, with the transpose"""
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    if jaxprs.transpose_solve is None:
        raise RefusedPrimitive(
            "this `custom_linear_solve` cannot be differentiated in reverse: it has no transpose_solve",
            at=eqn.line,
            action=eqn,
            fix="give transpose_solve to lax.custom_linear_solve, or symmetric=True",
        )
    n_consts, n_matvec = sum(lengths), lengths.matvec
    n_b = len(in_avals) - n_consts  # what follows the solution among the results is the solver's own report
    matvec = programs.flatten(jaxprs.matvec, ignore_custom_rules=tools.options.ignore_custom_rules)
    applied = tools.reverse(matvec, [*active_in[:n_matvec], *[False] * n_b])

    def backward(saved, cts):
        consts, solution = list(saved[:n_consts]), list(saved[n_consts:])
        cts = [zeros_like(aval) if ct is None else ct for ct, aval in zip(cts[:n_b], out_avals, strict=False)]
        rest = iter(consts)
        groups = transposed(type(lengths)(*([next(rest) for _ in range(length)] for length in lengths)))
        operands = [value for group in groups for value in group]
        found = linear_solve_p.bind(*operands, *cts, const_lengths=transposed(lengths), jaxprs=transposed(jaxprs))
        b_cts = found[:n_b]
        # matvec(c, out) = b: a change of c acts as one of b with the opposite sign.
        arguments = [*consts[:n_matvec], *solution]
        products, extras = applied.forward(*arguments)
        kept = [arguments[i] for i in applied.saves_in] + [products[i] for i in applied.saves_out] + list(extras)
        c_cts = applied.backward(kept, [-ct for ct in b_cts])[:n_matvec]
        return [*c_cts, *[None] * (n_consts - n_matvec), *b_cts]

    return RuleCall(tuple(range(n_consts)), tuple(range(n_b)), backward)
