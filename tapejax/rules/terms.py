"""Terms: what formulas are written in. They read like mathematics, and cost what lax costs.

Operators of Terms are lax's own functions: one primitive each, operands of one dtype, no promotion. A plain
number takes the dtype of the other operand. (`2 * x` on arrays asks jax.numpy, which takes several times as
long to trace.)

Terms wait. `ct / y` is computed when its value is asked for, and once. The transform asks only for cotangents
that are wanted, so a formula writes one per operand and never looks who wants it; what is not wanted may read
what was not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

_NONE: dict[str, Any] = {}


class Term:
    """A value, or a function of Terms that has not been called yet."""

    __slots__ = ("_arguments", "_function", "_options", "_value")
    __array_ufunc__ = None  # NumPy's numbers leave operators to us

    def __init__(self, function: Callable[..., Any] | None, arguments: Any, options: Any = _NONE, value: Any = None):
        self._function, self._arguments, self._options, self._value = function, arguments, options, value

    @property
    def value(self) -> Any:
        function = self._function
        if function is not None:
            values = [argument.value if type(argument) is Term else argument for argument in self._arguments]
            self._value = function(*values, **self._options)
            self._function = self._arguments = None
        return self._value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.ndim

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    def astype(self, dtype: Any) -> Term:
        return Term(jax.lax.convert_element_type, (self, dtype))

    def __neg__(self) -> Term:
        return Term(jax.lax.neg, (self,))

    def __invert__(self) -> Term:
        return Term(jax.lax.bitwise_not, (self,))

    def __bool__(self) -> bool:
        raise TypeError("a Term has no truth value: choose between Terms with lax.select")


def term(value: Any) -> Term:
    """The Term of an array, or of an aval where the array was not kept."""
    return Term(None, (), _NONE, value)


def value_of(argument: Any) -> Any:
    return argument.value if type(argument) is Term else argument


def later(function: Callable[..., Any]) -> Callable[..., Term]:
    """The function over Terms: its call is a Term."""
    return lambda *arguments, **options: Term(function, arguments, options)


def number(value: Any, x: Any) -> Any:
    """A number in x's dtype; one of Python's if x comes from such, so that the result still promotes like one."""
    if getattr(x, "weak_type", False):
        return _PYTHON[x.dtype.kind](value)
    return x.dtype.type(value)


_PYTHON = {"f": float, "c": complex, "i": int, "u": int, "b": bool}
_NUMBERS = frozenset(_PYTHON.values()) - {bool}


def _operator(function: Callable[..., Any]) -> tuple[Callable[..., Term], Callable[..., Term]]:
    """`x <op> y` and its reflection, for a Term x."""
    with_number = lambda x, y: function(x, number(y, x))
    number_with = lambda y, x: function(number(y, x), x)
    straight = lambda x, y: Term(with_number if type(y) in _NUMBERS else function, (x, y))
    reflected = lambda x, y: Term(number_with if type(y) in _NUMBERS else function, (y, x))
    return straight, reflected


OPERATORS = {
    "add": jax.lax.add, "sub": jax.lax.sub, "mul": jax.lax.mul, "truediv": jax.lax.div,
    "and": jax.lax.bitwise_and, "or": jax.lax.bitwise_or,
    "eq": jax.lax.eq, "ne": jax.lax.ne, "lt": jax.lax.lt, "le": jax.lax.le, "gt": jax.lax.gt, "ge": jax.lax.ge,
}  # fmt: skip
for _name, _function in OPERATORS.items():
    _straight, _reflected = _operator(_function)
    setattr(Term, f"__{_name}__", _straight)
    if hasattr(int, f"__r{_name}__"):  # Python turns comparisons round by itself
        setattr(Term, f"__r{_name}__", _reflected)


class _Lax:
    """jax.lax over Terms: its functions wait. What is no function (primitives, enumerations) is jax.lax's own."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(jax.lax, name)
        if callable(found) and not isinstance(found, type):
            found = later(found)
        setattr(self, name, found)
        return found


lax: Any = _Lax()
