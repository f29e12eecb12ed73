"""The judge. `tapejax.verify(f, *args)` checks a function's gradient; the modules here hold the rest.

>>> import jax.numpy as jnp, tapejax as tj
>>> tj.verify(jnp.tanh, 0.5).ok
True
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tapejax.verify.report import Report


class _Callable(ModuleType):
    """A package that is also a function: `tapejax.verify` names both."""

    def __call__(self, *args: Any, **options: Any) -> "Report":
        from tapejax.verify.function import verify

        return verify(*args, **options)


sys.modules[__name__].__class__ = _Callable
