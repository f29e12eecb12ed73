"""A disagreement as a few lines of Python that show it, and as numbers in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from tapejax.verify.disagreements.call import NAMES
from tapejax.verify.disagreements.judge import GRADIENT, VALUE, Disagreement


def reproducer(found: Disagreement) -> str:
    """Five lines that print jax's number; without tapejax, unless the function is a sample of its own."""
    call = found.call
    literals = [literal(value, found.dtype) for value in found.arguments]
    given = f"args = {', '.join(literals)}" + ("," if len(literals) == 1 else "")
    at = "".join(f"[{i}]" if len(found.index) == 1 else "" for i in found.index) or (
        f"[{', '.join(map(str, found.index))}]" if found.index else ""
    )
    if found.what == GRADIENT:
        function, last = f"loss = lambda {call.names}: {found.loss}", f"jax.grad(loss, {found.position})(*args){at}"
    elif found.what == VALUE:
        floats = [i for i, v in enumerate(found.arguments) if np.issubdtype(np.asarray(v).dtype, np.inexact)]
        by = floats[0] if len(floats) == 1 else tuple(floats)
        function, last = f"loss = lambda {call.names}: {found.loss}", f"jax.value_and_grad(loss, {by})(*args)[0]"
    else:
        function = f"f = lambda {call.names}: {call.text}"
        last = f"jax.tree.leaves(f(*args))[{found.position}]{at}"
    lines = ["import jax, jax.numpy as jnp", "from jax import lax"]
    if "sample(" in call.code:
        lines.append("from tapejax.verify.disagreements.calls import sampled as sample")
    lines += ['jax.config.update("jax_enable_x64", True)', given, function, f"print({last})  # {number(found.jax)}"]
    return "\n".join(lines)


def literal(value: Any, dtype: str) -> str:
    array = np.asarray(value)
    kind = dtype if np.issubdtype(array.dtype, np.inexact) else array.dtype.name
    return f"jnp.array({_written(array.tolist())}, {kind!r})"


def _written(value: Any) -> str:
    """Numbers with few digits, and signs of zeros."""
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, complex):
        return f"complex({_written(value.real)}, {_written(value.imag)})"
    if isinstance(value, float):
        return (
            repr(float(f"{value:.7g}"))
            if np.isfinite(value)
            else repr(value).replace("inf", "jnp.inf").replace("nan", "jnp.nan")
        )
    return repr(value)


def title(found: Disagreement) -> str:
    """What a report upstream would be called."""
    call = found.call.text
    if found.what == GRADIENT:
        which = f" by {NAMES[found.position]}" if len(found.arguments) > 1 else ""
        return f"gradient of {call}{which}"
    if found.what == VALUE:
        return f"value that jax.vjp returns for {call}"
    return f"value of {call}"


def point(found: Disagreement) -> str:
    """Where it was seen, if its arguments are single numbers."""
    if any(np.asarray(value).ndim for value in found.arguments):
        return ""
    named = zip(NAMES, found.arguments, strict=False)
    return ", ".join(f"{name} = {_written(np.asarray(value).item()).replace('jnp.', '')}" for name, value in named)


def number(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, complex):
        return f"{complex(float(f'{value.real:.6g}'), float(f'{value.imag:.6g}'))}".strip("()")
    return f"{float(value):.6g}"
