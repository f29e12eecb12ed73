"""Arithmetic with plain numbers, for rules.

`2 * x` asks jax.numpy, which takes several times as long to trace as lax.mul; lax wants both
operands in one dtype.
"""

from __future__ import annotations

from typing import Any

from jax import lax


def number(value: Any, x: Any) -> Any:
    """A number in x's dtype."""
    return x.dtype.type(value)


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
