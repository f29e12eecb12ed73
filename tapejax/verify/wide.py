"""A program run in double precision, whatever precision it was written for.

Finite differences need digits: a float32 program is judged by the same program in float64, with the
casts inside it widened too. In complex128 the same run gives the complex step. Custom rules are opened
(only values count here), and what stop_gradient holds can be held fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex_core

from tapejax.ground import compat
from tapejax.ground.where import is_internal
from tapejax.program.program import CUSTOM, Eqn, Program, flatten

DTYPE_PARAMETERS = ("new_dtype", "dtype", "preferred_element_type")
_narrow: ContextVar[set[str] | None] = ContextVar("narrow", default=None)
_through: ContextVar[frozenset[str]] = ContextVar("through", default=frozenset())
_branches: ContextVar[set[tuple[int, int]] | None] = ContextVar("branches", default=None)
EVERYWHERE = "everywhere"


@contextmanager
def noting_narrow(found: set[str]) -> Iterator[None]:
    """While a wide run is traced: the names of the equations that would only run in their own narrow dtypes."""
    token = _narrow.set(found)
    try:
        yield
    finally:
        _narrow.reset(token)


@contextmanager
def seeing_through(*lines: str) -> Iterator[None]:
    """While a wide run is traced: stop_gradient at these lines (or EVERYWHERE) stops nothing."""
    token = _through.set(frozenset(lines))
    try:
        yield
    finally:
        _through.reset(token)


@contextmanager
def noting_branches(taken: set[tuple[int, int]]) -> Iterator[None]:
    """While a run is traced: it will put in which branches it takes, as (id of jax's equation, number)."""
    token = _branches.set(taken)
    try:
        yield
    finally:
        _branches.reset(token)


def _is_seen_through(eqn: Eqn) -> bool:
    lines = _through.get()
    return bool(lines) and (EVERYWHERE in lines or eqn.line in lines)


def wide_dtype(dtype: Any, real: Any = np.float64) -> Any:
    """The widest dtype of the same kind; `real` is what floats become, None to leave all as written."""
    if real is None:
        return dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return np.dtype(np.complex128)
    return np.dtype(real) if jnp.issubdtype(dtype, jnp.floating) else dtype


def widened(value: Any, real: Any = np.float64) -> Any:
    """A value in its widest dtype; integers, booleans and keys as they are."""
    dtype = jnp.result_type(value)
    wanted = wide_dtype(dtype, real)
    return value if dtype == wanted else jnp.asarray(value).astype(wanted)


def run_wide(program: Program, args: Sequence[Any], *, real: Any = np.float64, held: Sequence[Any] | None = None):
    """The outputs of a program at widened arguments, and what its stop_gradients held.

    held: the values that stop_gradients give instead of what reaches them, in order.
    """
    env: dict[int, Any] = {
        slot: jnp.asarray(value, wide_dtype(program.avals[slot].dtype, real)) if _is_number(value) else value
        for slot, value in program.constants.items()
    }
    env.update((slot, widened(arg, real)) for slot, arg in zip(program.inputs, args, strict=True))
    stopped = []
    stops = stopping(program)
    for eqn in program.eqns:
        values = [env[slot] for slot in eqn.inputs]
        if _is_seen_through(eqn) and eqn.name == "stop_gradient":
            results = values
        elif eqn in stops:
            kept = lax.stop_gradient(values[0]) if held is None else held[len(stopped)].astype(values[0].dtype)
            results = [kept]
            stopped.append(results[0])
        else:
            results = bind_wide(eqn, values, real)
        env.update(zip(eqn.outputs, (_wide_result(result, real) for result in results), strict=True))
    return [env[slot] for slot in program.outputs], stopped


def stopping(program: Program) -> list[Eqn]:
    """The stop_gradients that hold something back.

    Not those before the factors that a linear solve gets beside its matrix: its derivative goes by the matrix.
    """
    wanted = set(program.outputs)
    found = []
    for eqn in reversed(program.eqns):
        if wanted.isdisjoint(eqn.outputs):
            continue
        if eqn.name == "stop_gradient":
            found.append(eqn)
        inputs = eqn.inputs
        if eqn.name == "custom_linear_solve":
            lengths = eqn.params["const_lengths"]
            inputs = [*inputs[: lengths.matvec], *inputs[sum(lengths) :]]
        wanted.update(inputs)
    return found[::-1]


def _is_number(value: Any) -> bool:
    return not jnp.issubdtype(jnp.result_type(value), jax.dtypes.extended)


def _wide_result(value: Any, real: Any) -> Any:
    return widened(value, real) if _is_number(value) else value


def bind_wide(eqn: Eqn, values: Sequence[Any], real: Any) -> Sequence[Any]:
    """One equation on wide values."""
    special = SPECIAL.get(eqn.name)
    if special is not None:
        return special(eqn, list(values), real)
    if not compat.has_subjaxprs(eqn.params) and eqn.name not in AS_WRITTEN:
        try:
            with eqn.context:
                out = eqn.primitive.bind(*values, **_wide_parameters(eqn.params, real))
            return list(out) if eqn.primitive.multiple_results else [out]
        except (TypeError, ValueError, NotImplementedError):
            if real is np.complex128:
                raise
    return _as_written(eqn, values, real)


# Bits are read as numbers: only the written dtype makes sense.
AS_WRITTEN = {"bitcast_convert_type", "pure_callback", "io_callback", "reduce_precision"}


def _as_written(eqn: Eqn, values: Sequence[Any], real: Any) -> Sequence[Any]:
    """An equation that only runs in its own dtypes."""
    noted = _narrow.get()
    if noted is not None and real is not None and any(map(_loses_digits, eqn.origin.invars)):
        noted.add(eqn.name)
    narrow = [
        value.astype(var.aval.dtype) if _is_number(value) and jnp.result_type(value) != var.aval.dtype else value
        for value, var in zip(values, eqn.origin.invars, strict=True)
    ]
    return eqn.bind(narrow)


def _loses_digits(var: Any) -> bool:
    dtype = getattr(var.aval, "dtype", np.dtype(int))
    return jnp.issubdtype(dtype, jnp.inexact) and float(jnp.finfo(dtype).eps) > float(jnp.finfo(np.float64).eps)


def _wide_parameters(params: dict[str, Any], real: Any) -> dict[str, Any]:
    changed = dict(params)
    for name in DTYPE_PARAMETERS:
        if changed.get(name) is not None:
            changed[name] = wide_dtype(changed[name], real)
    if "precision" in changed and "preferred_element_type" in changed:
        changed["precision"] = None  # an algorithm may ask for narrow operands
    return changed


# --- equations with programs inside ----------------------------------------------------------------------


def _inside(jaxpr: Any, values: Sequence[Any], real: Any) -> list[Any]:
    return run_wide(flatten(jaxpr, ignore_custom_rules=True), values, real=real)[0]


def _closed(jaxpr: Any) -> Any:
    inner, consts = compat.jaxpr_parts(jaxpr)
    return jex_core.ClosedJaxpr(inner, consts)


def _call(eqn: Eqn, values: list[Any], real: Any) -> list[Any]:
    return _inside(_closed(eqn.params[CUSTOM.get(eqn.name, "jaxpr")]), values, real)


def _scan(eqn: Eqn, values: list[Any], real: Any) -> list[Any]:
    params = eqn.params
    n_consts, n_carry = compat.scan_counts(params, len(values))
    consts, carry, xs = values[:n_consts], values[n_consts : n_consts + n_carry], values[n_consts + n_carry :]

    def body(carry, xs):
        results = _inside(params["jaxpr"], [*consts, *carry, *xs], real)
        return results[:n_carry], results[n_carry:]

    carry, ys = lax.scan(body, carry, xs, length=params["length"], reverse=params["reverse"])
    return [*carry, *ys]


def _while(eqn: Eqn, values: list[Any], real: Any) -> list[Any]:
    params = eqn.params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    cond_consts, body_consts, carry = values[:n_cond], values[n_cond : n_cond + n_body], values[n_cond + n_body :]
    return lax.while_loop(
        lambda carry: _inside(params["cond_jaxpr"], [*cond_consts, *carry], real)[0],
        lambda carry: _inside(params["body_jaxpr"], [*body_consts, *carry], real),
        carry,
    )


def _cond(eqn: Eqn, values: list[Any], real: Any) -> list[Any]:
    taken = _branches.get()
    if taken is not None:
        jax.debug.callback(lambda number, key=id(eqn.origin): taken.add((key, int(number))), values[0])
    branches = [lambda *operands, branch=branch: _inside(branch, operands, real) for branch in eqn.params["branches"]]
    return lax.switch(values[0], branches, *values[1:])


def _scatter(eqn: Eqn, values: list[Any], real: Any) -> list[Any]:
    if real is None:
        return eqn.bind(values)
    operand, indices, updates = values
    params = eqn.params
    wide = SCATTERS[eqn.name](
        operand, indices, updates, params["dimension_numbers"], indices_are_sorted=params["indices_are_sorted"],
        unique_indices=params["unique_indices"], mode=params["mode"],
    )  # fmt: skip
    return [wide]


def _combined(jaxpr: Any, count: int, real: Any) -> Callable[..., Any]:
    """A reduction's program as a function of two (tuples of) values."""

    def combine(one, two):
        results = _inside(jaxpr, [one, two] if count == 1 else [*one, *two], real)
        return results[0] if count == 1 else tuple(results)

    return combine


def _reduce(eqn: Eqn, values: list[Any], real: Any) -> list[Any]:
    if real is None:
        return eqn.bind(values)
    count = len(values) // 2
    operands, starts = values[:count], values[count:]
    combine = _combined(eqn.params["jaxpr"], count, real)
    if count == 1:
        return [lax.reduce(operands[0], starts[0], combine, eqn.params["dimensions"])]
    return list(lax.reduce(tuple(operands), tuple(starts), combine, eqn.params["dimensions"]))


def _reduce_window(eqn: Eqn, values: list[Any], real: Any) -> list[Any]:
    if real is None:
        return eqn.bind(values)
    params, count = eqn.params, len(values) // 2
    combine = _combined(jex_core.ClosedJaxpr(params["jaxpr"], params["consts"]), count, real)
    one = lambda many: many[0] if count == 1 else tuple(many)
    found = lax.reduce_window(
        one(values[:count]), one(values[count:]), combine, params["window_dimensions"], params["window_strides"],
        params["padding"], params["base_dilation"], params["window_dilation"],
    )  # fmt: skip
    return [found] if count == 1 else list(found)


def _shard_map(eqn: Eqn, values: list[Any], real: Any) -> list[Any]:
    if real is None:
        return eqn.bind(values)
    params = eqn.params
    mapped = jax.shard_map(
        lambda *shards: tuple(_inside(jex_core.ClosedJaxpr(params["jaxpr"], ()), shards, real)),
        mesh=params["mesh"], in_specs=tuple(params["in_specs"]), out_specs=tuple(params["out_specs"]),
        check_vma=params["check_vma"], axis_names=set(params["newly_manual_axes"]),
    )  # fmt: skip
    return list(mapped(*values))


def _or_as_written(run: Callable[..., Any]) -> Callable[..., Any]:
    """Where the wide way is refused, the equation runs as it was written, and that is noted."""

    def attempt(eqn: Eqn, values: list[Any], real: Any) -> Sequence[Any]:
        try:
            return run(eqn, values, real)
        except (TypeError, ValueError, NotImplementedError, KeyError, AttributeError):
            if real is np.complex128:
                raise
            return _as_written(eqn, values, real)

    return attempt


def _linear_solve(eqn: Eqn, values: list[Any], real: Any) -> Sequence[Any]:
    if real is None and not is_by_user(eqn):
        return eqn.bind(values)  # as exact as the program itself, no more
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    before = lengths.matvec + lengths.vecmat
    matrix, factors, b = values[: lengths.matvec], values[before : before + lengths.solve], values[sum(lengths) :]
    x = _inside(jaxprs.solve, [*factors, *b], real)
    # The solution for this very matrix: an iterative solver stops when it is near enough, and where the equation is
    # checked by itself, the matrix moves while the factors stay.
    for _ in range(REFINEMENTS):
        rest = [part - done for part, done in zip(b, _inside(jaxprs.matvec, [*matrix, *x], real), strict=True)]
        step = _inside(jaxprs.solve, [*factors, *rest], real)
        x = [part + more for part, more in zip(x, step, strict=True)]
    return x


REFINEMENTS = 6


def is_by_user(eqn: Eqn) -> bool:
    """Whether a linear solve has a transpose of somebody's own, which only they answer for."""
    solve = eqn.params["jaxprs"].transpose_solve
    info = "" if solve is None else getattr(compat.jaxpr_parts(solve)[0].debug_info, "func_src_info", None) or ""
    return not is_internal(info.partition(" at ")[2])


SCATTERS = {
    "scatter-add": lax.scatter_add, "scatter-sub": getattr(lax, "scatter_sub", None), "scatter-mul": lax.scatter_mul,
    "scatter_add": lax.scatter_add, "scatter_sub": getattr(lax, "scatter_sub", None), "scatter_mul": lax.scatter_mul,
    "scatter_min": lax.scatter_min, "scatter_max": lax.scatter_max, "scatter": lax.scatter,
    "scatter-min": lax.scatter_min, "scatter-max": lax.scatter_max,
}  # fmt: skip
SPECIAL = {
    **dict.fromkeys((name for name, function in SCATTERS.items() if function is not None), _or_as_written(_scatter)),
    "reduce": _or_as_written(_reduce), "reduce_window": _or_as_written(_reduce_window), "shard_map": _or_as_written(_shard_map),
    "stop_gradient": lambda eqn, values, real: values if _is_seen_through(eqn) else [lax.stop_gradient(values[0])],
    "scan": _scan, "while": _while, "cond": _cond, "custom_linear_solve": _linear_solve,
    "remat2": _call, "checkpoint": _call, "custom_jvp_call": _call, "custom_vjp_call": _call,
}  # fmt: skip


# --- what a program contains -------------------------------------------------------------------------------


def equations(program: Program):
    """All equations, those inside loops and branches too: (jax's own equation, whether it is inside)."""
    for eqn in program.eqns:
        yield eqn.origin, False
        for jaxpr in jex_core.jaxprs_in_params(eqn.params):
            yield from ((inner, True) for inner in all_equations(jaxpr))


def all_equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr of jax's, and of those inside it."""
    for eqn in compat.jaxpr_parts(jaxpr)[0].eqns:
        yield eqn
        for inner in jex_core.jaxprs_in_params(eqn.params):
            yield from all_equations(inner)


def narrowest_float(program: Program) -> Any:
    """The float dtype with the fewest digits that a program computes in, and None if it has no floats."""
    dtypes = {program.avals[slot].dtype for slot in [*program.inputs, *program.outputs]}
    for eqn, _ in equations(program):
        dtypes.update(var.aval.dtype for var in eqn.outvars if hasattr(var.aval, "dtype"))
    floats = [dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.inexact)]
    return max(floats, key=lambda dtype: jnp.finfo(dtype).eps, default=None)


# The derivative of a sample is that of its distribution's quantile; how the sampler rejects and retries has another.
SAMPLERS = {"random_gamma"}


def has_samplers(program: Program) -> bool:
    return any(eqn.primitive.name in SAMPLERS for eqn, _ in equations(program))


# Real functions of these alone are analytic: the complex step holds for them.
ANALYTIC = {
    "acos", "acosh", "add", "add_any", "asin", "asinh", "atan", "atanh", "broadcast_in_dim", "concatenate", "copy", "cos",
    "cosh", "cumprod", "cumsum", "div", "dot_general", "dynamic_slice", "dynamic_update_slice", "exp", "exp2", "expand_dims", "expm1", "gather",
    "integer_pow", "iota", "log", "log1p", "logistic", "mul", "neg", "pad", "reduce_prod", "reduce_sum", "reshape", "rev", "rsqrt", "scatter", "scatter-add",
    "select_n", "sin", "sinh", "slice", "split", "sqrt", "square", "squeeze", "stop_gradient", "sub", "tan", "tanh", "transpose", "scan",
    "convert_element_type", "custom_jvp_call", "custom_vjp_call", "jit", "remat2", "checkpoint", "closed_call",
}  # fmt: skip


def is_analytic(program: Program) -> bool:
    """Whether floats only go through analytic primitives, from real inputs to real outputs."""
    if any(jnp.issubdtype(aval.dtype, jnp.complexfloating) for aval in program.avals):
        return False
    for eqn, inside in equations(program):
        if inside and eqn.primitive.name == "stop_gradient":
            return False  # it would let the step through
        floats = [v for v in [*eqn.invars, *eqn.outvars] if jnp.issubdtype(v.aval.dtype, jnp.floating)]
        if floats and eqn.primitive.name not in ANALYTIC:
            return False
        if eqn.primitive.name == "convert_element_type":
            kinds = {jnp.issubdtype(v.aval.dtype, jnp.floating) for v in eqn.invars}
            if True in kinds and not jnp.issubdtype(eqn.params["new_dtype"], jnp.floating):
                return False
    return True
