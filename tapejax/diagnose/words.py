"""The numbers that met where something bad was born, in words; and what to write instead."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from tapejax.diagnose import elements
from tapejax.diagnose.births import FORWARD, Birth
from tapejax.diagnose.elements import INF, NAN
from tapejax.diagnose.places import assigned_name, call_arguments, division, place_of
from tapejax.program.program import Eqn

SIGNS = {"add": "+", "add_any": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "rem": "%"}

# The local derivative, by primitive and operand, in terms of x, y, out.
SLOPES = {
    ("sqrt", 0): "1/(2*{out})", ("rsqrt", 0): "-{out}**3/2", ("cbrt", 0): "1/(3*{out}**2)", ("log", 0): "1/{x}",
    ("log1p", 0): "1/(1 + {x})", ("log2", 0): "1/({x}*log(2))", ("exp", 0): "{out}", ("exp2", 0): "{out}*log(2)",
    ("expm1", 0): "exp({x})", ("div", 0): "1/{y}", ("div", 1): "-{out}/{y}", ("mul", 0): "{y}", ("mul", 1): "{x}",
    ("pow", 0): "{y}*{x}**({y} - 1)", ("pow", 1): "log({x})*{out}", ("asin", 0): "1/sqrt(1 - {x}**2)",
    ("acos", 0): "-1/sqrt(1 - {x}**2)", ("atanh", 0): "1/(1 - {x}**2)", ("acosh", 0): "1/sqrt({x}**2 - 1)",
    ("tan", 0): "1 + {out}**2", ("tanh", 0): "1 - {out}**2", ("logistic", 0): "{out}*(1 - {out})", ("square", 0): "2*{x}",
    ("atan2", 0): "{y}/({x}**2 + {y}**2)", ("atan2", 1): "-{x}/({x}**2 + {y}**2)", ("cosh", 0): "sinh({x})",
    ("sinh", 0): "cosh({x})", ("erf_inv", 0): "sqrt(pi)/2*exp({out}**2)",
}  # fmt: skip

CALLED = {
    "sqrt": ("sqrt",), "rsqrt": ("rsqrt",), "cbrt": ("cbrt",), "log": ("log", "log10"), "log1p": ("log1p",),
    "log2": ("log2",), "exp": ("exp",), "exp2": ("exp2",), "expm1": ("expm1",), "asin": ("arcsin", "asin"),
    "acos": ("arccos", "acos"), "atanh": ("arctanh", "atanh"), "acosh": ("arccosh", "acosh"), "pow": ("power", "pow"),
    "div": ("divide", "true_divide", "div"), "erf_inv": ("erfinv", "erf_inv"), "atan2": ("arctan2", "atan2"),
    "tan": ("tan",), "cosh": ("cosh",), "sinh": ("sinh",), "lgamma": ("gammaln", "lgamma"), "digamma": ("digamma",),
}  # fmt: skip
POLES = {
    "div": lambda x, y=1: y == 0, "log": lambda x: x == 0, "log2": lambda x: x == 0, "log1p": lambda x: x == -1,
    "rsqrt": lambda x: x == 0, "pow": lambda x, y=0: x == 0, "integer_pow": lambda x: x == 0, "atanh": lambda x: abs(x) == 1,
    "erf_inv": lambda x: abs(x) == 1, "lgamma": lambda x: x <= 0 and x == np.floor(x), "digamma": lambda x: True,
}  # fmt: skip


def number(x: Any) -> str:
    """A number as people write it."""
    if x is None:
        return "?"
    if np.iscomplexobj(x):
        return str(complex(x))
    if not jnp.issubdtype(np.asarray(x).dtype, jnp.floating):
        return str(x)
    x = float(x)
    text = f"{x:.6g}"
    return text if any(c in text for c in ".en") else text + ".0"


def name_of(birth: Birth, slot: int, default: str, inputs: dict[int, str]) -> str:
    """What the user calls a value: an argument's name, or that of the variable it was assigned to."""
    run = birth.run
    if run is None:
        return default
    if slot in run.probe.program.inputs:
        return inputs.get(slot, default)
    maker = run.probe.producer.get(slot)
    if maker is None:
        return default
    place = place_of(maker.sources)
    found = assigned_name(place.source)
    if not found:
        return default
    onwards = [place_of(reader.sources) for reader in run.probe.readers.get(slot, ())]
    return found if all((p.file, p.lineno) != (place.file, place.lineno) for p in onwards) else default


def met(birth: Birth, inputs: dict[int, str]) -> list[str]:
    """The numbers that met, each a short phrase."""
    if birth.op == "add_any" and birth.direction != FORWARD:
        shown = [number(value[birth.index]) for value in birth.operands if value.shape][:3]
        shown = shown or [number(value) for value in birth.operands][:3]
        return [f"{' + '.join(shown)} = {number(birth.value)}"] if shown else []
    if birth.direction == FORWARD or birth.number is None:
        return _met_forward(birth)
    words = [f"arrives {number(birth.arrives)}"] if birth.arrives is not None else []
    names = {"x": "x", "y": "y", "out": "out"}
    for name, value, slot in birth.kept:
        called = name_of(birth, slot, name, inputs)
        names[name] = called
        for position, letter in enumerate("xy"[: len(birth.eqn.inputs)] if birth.eqn is not None else ""):
            if birth.eqn is not None and birth.eqn.inputs[position] == slot:
                names[letter] = called
        words.append(f"kept {called} = {number(value)}")
    if birth.slope is not None:
        formula = SLOPES.get((birth.op, birth.at), "").format(**names)
        words.append(f"slope {formula} = {number(birth.slope)}" if formula else f"slope {number(birth.slope)}")
        if birth.arrives is not None:
            words.append(f"{_bare(birth.arrives)}*{_bare(birth.slope)} = {number(birth.value)}")
    return words


def _bare(x: Any) -> str:
    return number(x).removesuffix(".0")


def _met_forward(birth: Birth) -> list[str]:
    if birth.cause in ("input", "constant"):
        return [f"{birth.cause} holds {number(birth.value)}"]
    eqn = birth.eqn
    if eqn is None:
        return []
    result = number(birth.value)
    if eqn.name in elements.ELEMENTWISE:
        operands = [value[birth.index] if np.ndim(value) else value for value in birth.operands]
        texts = [number(operand) for operand in operands]
        if eqn.name in SIGNS and len(texts) == 2:
            said = f"{texts[0]} {SIGNS[eqn.name]} {texts[1]}"
        elif eqn.name == "integer_pow":
            said = f"{texts[0]} ** {eqn.params['y']}"
        else:
            said = f"{eqn.name}({', '.join(texts)})"
        if birth.kind == INF and birth.cause == "value" and not _is_pole(eqn, operands):
            limit = float(jnp.finfo(birth.dtype).max)
            return [f"{said} > {limit:.6g} in {birth.dtype}"]
        return [f"{said} = {result}"]
    if eqn.name == "triangular_solve" and birth.cause == "value" and _has_zero_pivot(birth):
        return [f"divides by the 0.0 on the diagonal of its matrix = {result}"]
    if birth.kind == INF:
        return [f"{eqn.name} > {float(jnp.finfo(birth.dtype).max):.6g} in {birth.dtype}"]
    if birth.cause == "infinities":
        return [f"{eqn.name} of infinities = {result}"]
    return [f"{eqn.name} = {result}"]


def _has_zero_pivot(birth: Birth) -> bool:
    matrix = np.asarray(birth.operands[0])
    return bool((np.diagonal(matrix, axis1=-2, axis2=-1) == 0).any())


def _is_pole(eqn: Eqn, operands: list[Any]) -> bool:
    test = POLES.get(eqn.name)
    return test is not None and bool(test(*operands[:2]))


def hidden_by(birth: Birth) -> Eqn | None:
    """The `where` that drops the value of what was born going back, but not its slope."""
    run, eqn = birth.run, birth.eqn
    if run is None or eqn is None or birth.number is None or birth.kind != NAN:
        return None
    if birth.arrives is None or birth.arrives != 0:
        return None
    pending, seen = list(eqn.outputs), set()
    while pending:
        slot = pending.pop(0)
        for reader in run.probe.readers.get(slot, ()):
            if id(reader) in seen:
                continue
            seen.add(id(reader))
            if reader.name == "select_n":
                return reader
            pending.extend(reader.outputs)
    return None


def fix(birth: Birth, hidden: Eqn | None) -> str:
    """What to write on that line instead."""
    source = birth.place.source
    arguments = call_arguments(source, CALLED.get(birth.op, ()))
    x = arguments[0] if arguments else "x"
    call = f"jnp.{CALLED[birth.op][0]}" if birth.op in CALLED else birth.op
    narrow = birth.dtype in ("float16", "bfloat16")
    sides = division(source)
    if birth.cause == "input":
        return "the argument holds it already: look at the data, e.g. with jnp.isfinite"
    if birth.cause == "constant" and birth.kind == NAN:
        return "another number in place of the NaN on this line, or a mask that keeps it from the result"
    if birth.cause == "constant":
        return "a large finite number in place of the infinity, e.g. jnp.finfo(x.dtype).min"
    if birth.op == "triangular_solve" and birth.direction == FORWARD and birth.cause == "value":
        return "the matrix is singular: a small number on its diagonal (a + 1e-6 * jnp.eye(n)), or jnp.linalg.pinv"
    if birth.op == "cholesky":
        return "the matrix is not positive definite: a small number on its diagonal (a + 1e-6 * jnp.eye(n))"
    if birth.op in ("eigh", "svd", "eig") and birth.direction != FORWARD:
        return "equal eigenvalues have no derivative of their vectors: a loss of the values only, or a small spread of them"
    if birth.op == "gather" and birth.kind == NAN:
        return "an index is out of range: jnp.take(..., mode='clip'), or indices within the table"
    if birth.op == "add_any":
        return "a smaller scale: its cotangents overflow when they are added up"
    domain = {"sqrt": f"{x} > 0", "log": f"{x} > 0", "log2": f"{x} > 0", "rsqrt": f"{x} > 0", "log1p": f"{x} > -1",
              "asin": f"jnp.abs({x}) < 1", "acos": f"jnp.abs({x}) < 1", "atanh": f"jnp.abs({x}) < 1",
              "cbrt": f"{x} != 0", "acosh": f"{x} > 1", "erf_inv": f"jnp.abs({x}) < 1"}  # fmt: skip
    safe = {"acosh": "2.0", "log1p": "0.0", "asin": "0.0", "acos": "0.0", "atanh": "0.0", "erf_inv": "0.0"}
    if hidden is not None:
        if birth.op in domain:
            return f"{call}(jnp.where({domain[birth.op]}, {x}, {safe.get(birth.op, '1.0')})) inside the where"
        if birth.op == "div":
            top, bottom = sides or ("x", "y")
            return f"{top} / jnp.where({bottom} != 0, {bottom}, 1.0) inside the where"
        return "a second where, around the argument, so that the branch that is dropped gets a harmless number"
    if "norm(" in source and birth.op in ("sqrt", "div", "pow"):
        return "a norm that is safe at zero: optax.safe_norm(x, 1e-12), or sqrt of a sum with an epsilon inside"
    if birth.op in ("exp", "exp2", "expm1", "cosh", "sinh") and birth.direction == FORWARD:
        wide = "float32 here (x.astype(jnp.float32)), or " if narrow else ""
        return f"{wide}subtract the maximum before the exponential: jax.nn.softmax, jax.nn.logsumexp"
    if birth.cause == "infinities":
        if birth.op == "sub":
            return "a large finite number in place of infinities that meet, or a where that keeps them apart"
        if birth.op == "mul":
            return "a where in place of the product with a mask; jax.scipy.special.xlogy for x * log(x)"
        if birth.op == "div":
            return "subtract the maximum before the exponential: jax.nn.softmax, jax.nn.logsumexp"
        return "keep the infinities from meeting: a where before this line"
    if narrow and birth.kind == INF:
        return "float32 here: x.astype(jnp.float32) before this line"
    if birth.op == "sqrt":
        if birth.direction == FORWARD:
            return f"jnp.sqrt(jnp.maximum({x}, 0.0))"
        return f"an epsilon inside the root: jnp.sqrt({x} + 1e-12)"
    if birth.op in ("log", "log2"):
        return f"{call}(jnp.maximum({x}, 1e-30)), or an epsilon inside: {call}({x} + 1e-12)"
    if birth.op in ("div", "rsqrt"):
        top, bottom = sides or ("x", "y")
        return f"a double where: jnp.where({bottom} != 0, {top} / jnp.where({bottom} != 0, {bottom}, 1.0), 0.0)"
    if birth.op in domain:
        return f"keep the argument inside its domain: {call}(jnp.clip({x}, -1 + 1e-6, 1 - 1e-6))" if "abs" in domain[
            birth.op
        ] else f"a double where: {call}(jnp.where({domain[birth.op]}, {x}, {safe.get(birth.op, '1.0')}))"  # fmt: skip
    if birth.op in ("pow", "integer_pow"):
        return "a double where around the base: jnp.where(x > 0, x, 1.0) ** y"
    if birth.cause == "kept":
        return "a where around the argument, so that this line gets no infinity to keep"
    if birth.kind == INF:
        return "a smaller scale: normalise, clip by norm (tapejax.clip_by_norm), or a wider dtype"
    return "a where around the argument, so that this line gets a number it is defined for"
