"""Arithmetic with plain numbers, for rules.

`2 * x` asks jax.numpy, which takes several times as long to trace as lax.mul; lax wants both
operands in one dtype.
"""

from __future__ import annotations

from typing import Any

from jax import lax


def number(value: Any, x: Any) -> Any:
    """A number in x's dtype; one of Python's if x comes from such, so that the result still promotes like one."""
    if getattr(x, "weak_type", False):
        return _PYTHON[x.dtype.kind](value)
    return x.dtype.type(value)


_PYTHON = {"f": float, "c": complex, "i": int, "u": int, "b": bool}


def times(value: Any, x: Any) -> Any:
    return lax.mul(number(value, x), x)


def plus(value: Any, x: Any) -> Any:
    return lax.add(number(value, x), x)


def minus(value: Any, x: Any) -> Any:
    """value - x"""
    return lax.sub(number(value, x), x)


def over(value: Any, x: Any) -> Any:
    """value / x"""
    return lax.div(number(value, x), x)
