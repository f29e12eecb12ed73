"""verify(function, *args, order=1, against=('jax', 'primal', 'finite'), wrt=None, rtol=None, seeds=3, diagnose=True, intended=(), budget=30.0) -> Report

Who is wrong about a gradient: you, jax, tapejax, or nobody. `tapejax.verify(f, *args)` compares the tape's gradient of a
function with jax.vjp and with numbers; `report.verdict` is "right", "custom_rule", "jax", "tapejax", "convention" or
"undecided". `help(tapejax.verify.function.verify)` has every option; the modules here hold the rest.

>>> import jax.numpy as jnp, tapejax as tj
>>> tj.verify(jnp.tanh, 0.5).verdict
'right'
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inspect import Signature

    from tapejax.verify.report import Report


class _Callable(ModuleType):
    """A package that is also a function: `tapejax.verify` names both."""

    def __call__(self, *args: Any, **options: Any) -> "Report":
        from tapejax.verify.function import verify

        return verify(*args, **options)

    @property
    def __signature__(self) -> "Signature":
        import inspect

        from tapejax.verify.function import verify

        return inspect.signature(verify)


sys.modules[__name__].__class__ = _Callable
