"""A wrong rule as a few lines of Python that show it: the primitive as it was called, at the values it met."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives

from tapejax.program.program import Program

NAMES = "xyzuvwabcdefgh"
HOMES = (("lax", lax), ("lax.linalg", lax.linalg), ("primitives", primitives))
LARGEST = 64  # elements that are written out; more of them are drawn


def reproducer(program: Program, values: Sequence[Any]) -> str:
    """Lines that verify the one equation of a program; '' if it has several, or its parameters cannot be written down."""
    if len(program.eqns) != 1 or len(values) > len(NAMES):
        return ""
    [eqn] = program.eqns
    named = dict(zip(program.inputs, NAMES, strict=False))
    home = _home(eqn.primitive)
    operands = [named.get(slot) or literal(program.constants.get(slot)) for slot in eqn.inputs]
    params = [f"{name}={value!r}" for name, value in eqn.params.items()]
    call = f"{home}.bind({', '.join([*map(str, operands), *params])})"
    if not home or None in operands or not _works(call, named.values(), values):
        return ""
    lines = [
        "import jax.numpy as jnp",
        "from jax import lax",
        "from jax.extend.core import primitives",
        "import tapejax as tj",
    ]
    given = ", ".join(map(str, map(literal, values)))
    lines.append(f"print(tj.verify(lambda {', '.join(named.values())}: {call}, {given}))")
    return "\n".join(lines)


def _home(primitive: Any) -> str:
    for name, module in HOMES:
        for attribute in (f"{primitive.name}_p", f"{primitive.name.replace('-', '_')}_p"):
            if getattr(module, attribute, None) is primitive:
                return f"{name}.{attribute}"
    return ""


def _works(call: str, names: Any, values: Sequence[Any]) -> bool:
    try:
        function = eval(f"lambda {', '.join(names)}: {call}", {"lax": lax, "primitives": primitives, "jnp": jnp})
        jax.eval_shape(function, *values)
    except Exception:  # a parameter whose repr is no Python, a program inside
        return False
    return True


def literal(value: Any) -> str | None:
    """An array as Python; of many elements one like it, of random numbers. None: it cannot be written."""
    if value is None or jnp.issubdtype(jnp.result_type(value), jax.dtypes.prng_key):
        return None
    array = np.asarray(value)
    kind = jnp.result_type(value).name
    if array.size > LARGEST and jnp.issubdtype(kind, jnp.inexact):
        size = float(np.abs(array.astype(complex)).max(initial=1.0))
        return f"{size:.3g} * jnp.cos(jnp.arange({array.size}.0)).reshape({array.shape}).astype('{kind}')"
    text = repr(array.tolist()).replace("inf", "jnp.inf").replace("nan", "jnp.nan")
    return f"jnp.array({text}, '{kind}')"
