"""The catalogue in torch: a program's equations one by one, each by the torch function that does the same.

Each equation runs in a frame with the file and line of the user's own, so that torch's anomaly mode can name it. What has no
counterpart (custom rules, random numbers, some indexing) is not translated.
"""

from __future__ import annotations

import re
import warnings
from typing import Any

import jax
import numpy as np
import torch
from jax.extend import core

from tapejax.ground import compat
from tapejax.program.program import Eqn, Program, flatten
from tests.diagnose.catalogue import Case

KINDS = {"float32": torch.float32, "float16": torch.float16, "int32": torch.int32, "bool": torch.bool, "float64": torch.float64}  # fmt: skip


class NotTranslated(Exception):
    pass


def _kind(dtype: Any) -> Any:
    if (name := np.dtype(dtype).name) not in KINDS:
        raise NotTranslated
    return KINDS[name]


def _broadcast(x, *, shape, broadcast_dimensions, **_):
    full = [1] * len(shape)
    for size, dimension in zip(x.shape, broadcast_dimensions):
        full[dimension] = size
    return x.reshape(full).expand(tuple(int(n) for n in shape))


def _slice(x, *, start_indices, limit_indices, strides):
    strides = strides or [1] * len(start_indices)
    return x[tuple([slice(a, b, s) for a, b, s in zip(start_indices, limit_indices, strides)])]


def _squeeze(x, *, dimensions):
    return x.reshape([n for d, n in enumerate(x.shape) if d not in dimensions])


def _dot(x, y, *, dimension_numbers, **_):
    (left, right), (batch_x, batch_y) = dimension_numbers
    if batch_x or batch_y:
        raise NotTranslated
    return torch.tensordot(x, y, dims=([int(d) for d in left], [int(d) for d in right]))


def _select(which, *cases):
    if len(cases) != 2:
        raise NotTranslated
    return torch.where(which.bool(), cases[1], cases[0])


def _reduce(function):
    return lambda x, *, axes, **_: function(x, tuple(int(d) for d in axes)) if axes else x


def _sort(*operands, dimension, num_keys, **_):
    if len(operands) != 1:
        raise NotTranslated
    return torch.sort(operands[0], dim=dimension)[0]


def _iota(*, dtype, shape, dimension, **_):
    view = [1] * len(shape)
    view[dimension] = shape[dimension]
    return torch.arange(shape[dimension], dtype=_kind(dtype)).reshape(view).expand(tuple(shape))


def _cumsum(x, *, axis, reverse):
    return x.flip(axis).cumsum(axis).flip(axis) if reverse else x.cumsum(axis)


def _plain(function):
    return lambda *operands, **_: function(*operands)


def _minmax(function):
    return lambda x, y, **_: function(*torch.broadcast_tensors(x, y))


OPS = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.true_divide, "neg": torch.neg, "sqrt": torch.sqrt,
    "log": torch.log, "exp": torch.exp, "abs": torch.abs, "sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh, "pow": torch.pow,
    "rsqrt": torch.rsqrt, "log1p": torch.log1p, "acos": torch.acos, "asin": torch.asin, "acosh": torch.acosh,
    "atanh": torch.atanh, "atan2": torch.atan2, "erf_inv": torch.erfinv, "lgamma": torch.lgamma, "logistic": torch.sigmoid,
    "gt": torch.gt, "lt": torch.lt, "eq": torch.eq, "ne": torch.ne, "ge": torch.ge, "and": torch.logical_and,
    "or": torch.logical_or, "is_finite": torch.isfinite, "sign": torch.sign, "square": torch.square, "stop_gradient": torch.detach,
}  # fmt: skip
OPS = {name: _plain(function) for name, function in OPS.items()}
OPS |= {
    "integer_pow": lambda x, *, y: torch.pow(x, y), "cbrt": lambda x, **_: torch.pow(x, 1 / 3),
    "max": _minmax(torch.maximum), "min": _minmax(torch.minimum), "reduce_sum": _reduce(lambda x, d: x.sum(d)),
    "reduce_max": _reduce(lambda x, d: x.amax(d)), "reduce_min": _reduce(lambda x, d: x.amin(d)), "broadcast_in_dim": _broadcast,
    "convert_element_type": lambda x, *, new_dtype, **_: x.to(_kind(new_dtype)), "select_n": _select, "slice": _slice,
    "squeeze": _squeeze, "dot_general": _dot, "sort": _sort, "iota": _iota, "cumsum": _cumsum,
    "transpose": lambda x, *, permutation: x.permute(*permutation), "rev": lambda x, *, dimensions: x.flip(dimensions),
    "reshape": lambda x, *, new_sizes, **_: x.reshape(tuple(new_sizes)), "cholesky": lambda x, **_: torch.linalg.cholesky(x),
    "clamp": lambda low, x, high: torch.clamp(x, low, high), "copy": lambda x: x, "pvary": lambda x, **_: x,
}  # fmt: skip

# What torch calls the backward of what a primitive of ours does.
NAMES = {
    "select_n": "Where", "reduce_sum": "Sum", "integer_pow": "Pow", "square": "Pow", "cbrt": "Pow", "dot_general": "Mm",
    "convert_element_type": "ToCopy", "reduce_max": "Amax", "max": "Maximum", "min": "Minimum", "logistic": "Sigmoid",
    "erf_inv": "Erfinv", "cholesky": "LinalgCholeskyEx", "rsqrt": "Rsqrt", "cumsum": "Cumsum",
}  # fmt: skip


def _at(eqn: Eqn) -> Any:
    """A frame on the user's line, to call through."""
    found = re.match(r"(.+?):(\d+)", eqn.line)
    file, line = (found.group(1), int(found.group(2))) if found else ("<unknown>", 1)
    blank = "\n" * (line - 1)
    return eval(compile(f"{blank}lambda f, *a, **k: f(*a, **k)", file, "eval"))


def run(program: Program, inputs: list[Any]) -> list[Any]:
    env = {slot: _tensor(value, program.avals[slot]) for slot, value in program.constants.items()}
    env.update(zip(program.inputs, inputs, strict=True))
    for eqn in program.eqns:
        results = equation(eqn, [env[slot] for slot in eqn.inputs])
        env.update(zip(eqn.outputs, results, strict=True))
    return [env[slot] for slot in program.outputs]


def equation(eqn: Eqn, operands: list[Any]) -> list[Any]:
    name, params = eqn.name, eqn.params
    if name in OPS:
        return [_at(eqn)(OPS[name], *operands, **params)]
    if name == "scan":
        return scan(params, operands)
    if name == "while":
        n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
        cond, consts, carry = operands[:n_cond], operands[n_cond : n_cond + n_body], operands[n_cond + n_body :]
        test, body = flatten(params["cond_jaxpr"]), flatten(params["body_jaxpr"])
        while bool(run(test, [*cond, *carry])[0]):
            carry = run(body, [*consts, *carry])
        return carry
    if name == "cond":
        return run(flatten(params["branches"][int(operands[0])]), operands[1:])
    if name in ("remat2", "checkpoint"):
        return run(flatten(core.ClosedJaxpr(*compat.jaxpr_parts(params["jaxpr"]))), operands)
    raise NotTranslated(name)


def scan(params: dict[str, Any], operands: list[Any]) -> list[Any]:
    n_consts, n_carry = compat.scan_counts(params, len(operands))
    consts, carry, xs = operands[:n_consts], operands[n_consts : n_consts + n_carry], operands[n_consts + n_carry :]
    body = flatten(params["jaxpr"])
    order = range(params["length"])
    stacks: list[list[Any]] = []
    for i in reversed(order) if params["reverse"] else order:
        results = run(body, [*consts, *carry, *[x[i] for x in xs]])
        carry = results[:n_carry]
        stacks.append(results[n_carry:])
    if params["reverse"]:
        stacks.reverse()
    return [*carry, *[torch.stack(column) for column in zip(*stacks)]]


def _tensor(value: Any, aval: Any) -> Any:
    return torch.tensor(np.asarray(value), dtype=_kind(aval.dtype))


def by_torch(case: Case) -> Any:
    """What torch.autograd.detect_anomaly says of a program: None if nothing; NotTranslated if it has no counterpart."""
    has_aux = "has_aux" in case.options
    leaves, structure = jax.tree.flatten(case.args)
    flat = lambda *leaves: case.function(*jax.tree.unflatten(structure, leaves))
    program = flatten(jax.make_jaxpr((lambda *a: flat(*a)[0]) if has_aux else flat)(*leaves))
    inputs = [torch.tensor(np.asarray(leaf)) for leaf in leaves]
    for one in inputs:
        one.requires_grad_(one.is_floating_point())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with torch.autograd.set_detect_anomaly(True):
                out = run(program, inputs)[0]
                if out.requires_grad:
                    out.sum().backward()
        except KeyError as missing:
            raise NotTranslated(missing) from None
        except torch.linalg.LinAlgError:  # it says what and where by itself
            return {"op": True, "line": True}
        except RuntimeError as error:
            found = re.search(r"Function '(\w+?)Backward\d*' returned nan", str(error))
            if found is None:
                raise NotTranslated(error) from None
            text = "\n".join(str(one.message) for one in said)
            lines = re.findall(rf'File "{re.escape(case.file)}", line (\d+)', text)
            return {
                "op": found.group(1).lower() == NAMES.get(case.op, case.op).lower(),
                "line": bool(lines) and int(lines[-1]) == case.lineno,
            }
    return None
