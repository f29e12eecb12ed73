"""Programs with mutable references, rewritten to pure ones before they are differentiated.

A reference (`jax.new_ref`) becomes a cell that holds its current value while the jaxpr is traced
once more: reading is indexing, writing is an update of the value. Loops and branches that touch a
reference carry its value in and out. A reference from outside is read at the start and written at
the end, so that its effect stays and the derivative flows through every write and read in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core as jex_core
from jax.extend import source_info_util

from tapejax.errors import RefusedPrimitive
from tapejax.ground import compat

# Calls that are opened when they touch references. Value: the parameter with the jaxpr.
CALLS = {"jit": "jaxpr", "closed_call": "call_jaxpr", "core_closed_call": "call_jaxpr", "eval_jaxpr": "call_jaxpr",
         "remat2": "jaxpr"}  # fmt: skip


class Cell:
    """The current value of one reference."""

    __slots__ = ("value", "written")

    def __init__(self, value: Any):
        self.value = value
        self.written = False

    def write(self, value: Any) -> None:
        self.value, self.written = value, True


def is_reference(aval: Any) -> bool:
    return isinstance(aval, jax.ref.AbstractRef)


def name_of(eqn: Any) -> str:
    """The name of a primitive of jax's own; one of somebody else's may have any name, and is not known here."""
    return eqn.primitive.name if compat.is_own(eqn.primitive) else ""


def has_references(jaxpr: Any) -> bool:
    """Whether equations of this jaxpr, or of calls in it, make or touch references."""
    inner, _ = compat.jaxpr_parts(jaxpr)
    if not inner.effects:
        return False
    for eqn in inner.eqns:
        if any(is_reference(v.aval) for v in [*eqn.invars, *eqn.outvars]):
            return True
        name = CALLS.get(name_of(eqn))
        if name in eqn.params and eqn.effects and has_references(eqn.params[name]):
            return True
    return False


def pure(jaxpr: Any) -> Any:
    """The same closed jaxpr without references, except for those from outside."""
    inner, consts = compat.jaxpr_parts(jaxpr)

    def function(*args):
        outside: list[tuple[Any, Cell]] = []

        def cell_or_value(value, var):
            if not is_reference(var.aval):
                return value
            cell = next((cell for ref, cell in outside if ref is value), None)
            if cell is None:
                cell = Cell(value[...])
                outside.append((value, cell))
            return cell

        results = run_discharged(
            inner,
            [cell_or_value(value, var) for value, var in zip(consts, inner.constvars, strict=True)],
            [cell_or_value(value, var) for value, var in zip(args, inner.invars, strict=True)],
        )
        for reference, cell in outside:
            if cell.written:
                reference[...] = cell.value
        return results

    return jax.make_jaxpr(function)(*[var.aval for var in inner.invars])


def run_discharged(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Evaluate an open jaxpr where references are cells."""
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))
    read = lambda atom: atom.val if isinstance(atom, jex_core.Literal) else env[atom]
    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        # The user's lines stay with the equations.
        with source_info_util.user_context(eqn.source_info.traceback), compat.equation_context(eqn):
            results = apply(eqn, operands)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def apply(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
    name = name_of(eqn)
    if name in REFERENCES:
        return REFERENCES[name](eqn, *operands)
    touches = any(isinstance(operand, Cell) for operand in operands)
    if name in CALLS and (touches or eqn.effects):
        inner, consts = compat.jaxpr_parts(eqn.params[CALLS[name]])
        return run_discharged(inner, consts, operands)
    if touches:
        if name not in CONTROL:
            raise RefusedPrimitive(
                f"`{eqn.primitive.name}` cannot be differentiated while a reference goes into it",
                at=compat.source_line(eqn.source_info),
                fix="pass ref[...] into it, and write what it returns into the reference",
            )
        return CONTROL[name](eqn, operands)
    if compat.has_subjaxprs(eqn.params):
        return compat.equation_as_function(eqn)(*operands)
    results = eqn.primitive.bind(*operands, **eqn.params)
    return results if eqn.primitive.multiple_results else [results]


# --- reading and writing -----------------------------------------------------------------------------


def index_of(eqn: Any, leaves: Sequence[Any]) -> tuple[Any, ...] | None:
    """The indices of a read or write, one per axis: scalars, arrays, or slices. None for all of it."""
    transforms = jax.tree_util.tree_unflatten(eqn.params["tree"], leaves)
    if not transforms:
        return None
    if len(transforms) > 1 or not hasattr(transforms[0], "indices"):
        raise RefusedPrimitive(
            f"`{eqn.primitive.name}` through a view of a reference cannot be differentiated",
            at=compat.source_line(eqn.source_info),
            fix="index the reference itself, ref[...], and reshape or slice what it returns",
        )
    return tuple(transforms[0].indices)


def is_slice(index: Any) -> bool:
    return hasattr(index, "stride")


def window(indices: Sequence[Any]) -> tuple[list[Any], list[int], list[int]] | None:
    """(starts, sizes, axes to drop), if the indices are one block: scalars and slices without strides."""
    if not all(index.stride == 1 if is_slice(index) else jnp.ndim(index) == 0 for index in indices):
        return None
    starts = [index.start if is_slice(index) else index for index in indices]
    sizes = [index.size if is_slice(index) else 1 for index in indices]
    return starts, sizes, [axis for axis, index in enumerate(indices) if not is_slice(index)]


def positions(indices: Sequence[Any]) -> tuple[Any, ...]:
    """An array of positions per axis, broadcast against each other as NumPy orders the result's axes.

    The axes of index arrays stand where the arrays stand if they are neighbours, and first otherwise.
    """
    at = [axis for axis, index in enumerate(indices) if not is_slice(index)]
    arrays = iter(jnp.broadcast_arrays(*[indices[axis] for axis in at]))
    rank = max((jnp.ndim(indices[axis]) for axis in at), default=0)
    n_slices = len(indices) - len(at)
    neighbours = at == list(range(at[0], at[-1] + 1)) if at else True
    before = (at[0] if at else 0) if neighbours else 0  # slices whose axes come before those of the arrays
    found, passed = [], 0
    for index in indices:
        if is_slice(index):
            place = passed if passed < before else passed + rank
            along = index.start + index.stride * jnp.arange(index.size)
            found.append(
                lax.broadcast_in_dim(along, [index.size if d == place else 1 for d in range(n_slices + rank)], [place])
            )
            passed += 1
        else:
            array = next(arrays)
            found.append(array.reshape(*[1] * before, *array.shape, *[1] * (n_slices - before)))
    return tuple(found)


def read(value: Any, indices: Sequence[Any] | None) -> Any:
    if indices is None:
        return value
    block = window(indices)
    if block is None:
        return value[positions(indices)]
    starts, sizes, drop = block
    return lax.squeeze(lax.dynamic_slice(value, starts, sizes), drop)


def written(value: Any, indices: Sequence[Any] | None, new: Any) -> Any:
    if indices is None:
        return new
    block = window(indices)
    if block is None:
        return value.at[positions(indices)].set(new)
    starts, sizes, _ = block
    return lax.dynamic_update_slice(value, lax.reshape(new, sizes), starts)


def new_ref(eqn, value):
    return [Cell(value)]


def empty_ref(eqn):
    return [Cell(jnp.zeros(eqn.params["ty"].shape, eqn.params["ty"].dtype))]


def get(eqn, cell, *leaves):
    return [read(cell.value, index_of(eqn, leaves))]


def swap(eqn, cell, new, *leaves):
    indices = index_of(eqn, leaves)
    before = read(cell.value, indices)
    cell.write(written(cell.value, indices, new))
    return [before]


def addupdate(eqn, cell, more, *leaves):
    indices = index_of(eqn, leaves)
    if indices is not None and window(indices) is None:
        cell.write(cell.value.at[positions(indices)].add(more))
    else:
        cell.write(written(cell.value, indices, read(cell.value, indices) + more))
    return []


def freeze(eqn, cell):
    return [cell.value]


def free_ref(eqn, cell):
    return []


REFERENCES: dict[str, Callable[..., list[Any]]] = {
    "new_ref": new_ref, "empty_ref": empty_ref, "get": get, "swap": swap, "addupdate": addupdate, "freeze": freeze,
    "free_ref": free_ref,
}  # fmt: skip


# --- loops and branches --------------------------------------------------------------------------------


class Cells:
    """The references among some operands, as values that can be carried into a trace and out again."""

    def __init__(self, operands: Sequence[Any]):
        self.operands = operands
        self.cells = list({id(o): o for o in operands if isinstance(o, Cell)}.values())
        self.values = [cell.value for cell in self.cells]

    def inside(self, values: Sequence[Any]) -> tuple[list[Any], list[Cell]]:
        """The operands with cells of the trace in place of those outside, and these cells."""
        fresh = [Cell(value) for value in values]
        new = {id(cell): mine for cell, mine in zip(self.cells, fresh, strict=True)}
        return [new.get(id(o), o) for o in self.operands], fresh

    def store(self, values: Sequence[Any]) -> None:
        for cell, value in zip(self.cells, values, strict=True):
            cell.write(value)


def values_of(cells: Sequence[Cell]) -> list[Any]:
    return [cell.value for cell in cells]


def through_scan(eqn, operands):
    n_consts, n_carry = compat.scan_counts(eqn.params, len(operands))
    inner, consts = compat.jaxpr_parts(eqn.params["jaxpr"])
    outside = Cells(operands[:n_consts])
    carry, xs = operands[n_consts : n_consts + n_carry], operands[n_consts + n_carry :]

    def body(state, xs):
        carry, values = state
        fixed, cells = outside.inside(values)
        results = run_discharged(inner, consts, [*fixed, *carry, *xs])
        return (results[:n_carry], values_of(cells)), results[n_carry:]

    options = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
    (carry, values), ys = lax.scan(body, (list(carry), outside.values), list(xs), **options)
    outside.store(values)
    return [*carry, *ys]


def through_cond(eqn, operands):
    index, *rest = operands
    outside = Cells(rest)

    def branch(jaxpr):
        inner, consts = compat.jaxpr_parts(jaxpr)

        def function(values):
            operands, cells = outside.inside(values)
            return run_discharged(inner, consts, operands), values_of(cells)

        return function

    results, values = lax.switch(index, [branch(jaxpr) for jaxpr in eqn.params["branches"]], outside.values)
    outside.store(values)
    return results


def through_while(eqn, operands):
    params = eqn.params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    outside = Cells(operands[: n_cond + n_body])

    def of(jaxpr, chosen):
        inner, consts = compat.jaxpr_parts(jaxpr)

        def function(state):
            carry, values = state
            fixed, cells = outside.inside(values)
            return run_discharged(inner, consts, [*fixed[chosen], *carry]), values_of(cells)

        return function

    condition = of(params["cond_jaxpr"], slice(0, n_cond))
    body = of(params["body_jaxpr"], slice(n_cond, None))
    start = (list(operands[n_cond + n_body :]), outside.values)
    carry, values = lax.while_loop(lambda state: condition(state)[0][0], body, start)
    outside.store(values)
    return carry


CONTROL: dict[str, Callable[..., Sequence[Any]]] = {
    "scan": through_scan, "cond": through_cond, "while": through_while,
}  # fmt: skip
