"""A namespace of tapejax from a namespace of jax; each name is made when it is first asked for."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, NewType

import jax.numpy as jnp

from tapejax.errors import UnknownAttributeError
from tapejax.ground import habits
from tapejax.ground.where import user_line
from tapejax.ops.straight import straight
from tapejax.ops.surface.byhand import BY_HAND
from tapejax.ops.surface.op import KeyedOp, Op, UfuncOp, parameters_of
from tapejax.ops.surface.plain import Maker, Plain, Sized, class_of
from tapejax.ops.surface.tables import CLASSES, MAKERS, MODULES, NUMBER_OPTIONS, PLAIN, SIZED, options_of, words

_lock = threading.RLock()


def public_names(module: str) -> list[str]:
    """The public names of a namespace of jax that are not modules."""
    original = importlib.import_module(MODULES[module])
    return [
        name
        for name in dir(original)
        if not name.startswith("_") and not isinstance(_get(original, name), (types.ModuleType, _Missing))
    ]


class _Missing:
    pass


def _get(original: Any, name: str) -> Any:
    try:
        return getattr(original, name)
    except AttributeError:  # a deprecated name that jax lists and refuses
        return _Missing()


def is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, (type, NewType)) and hasattr(value, "__name__")


def made(module: str, name: str) -> Any:
    """The name of tapejax's namespace, from jax's object of that name."""
    original = getattr(importlib.import_module(MODULES[module]), name)
    by_hand = BY_HAND.get(module, {}).get(name)
    if by_hand is not None:
        found = by_hand(original)
        return named(found, original, name, module) if isinstance(found, types.FunctionType) else found
    if name in CLASSES.get(module, {}):
        return class_of(original, name, module, CLASSES[module][name])
    if name in PLAIN.get(module, {}):
        return original if isinstance(original, type) else Plain(original, name, module, PLAIN[module][name])
    if not is_function(original):
        return original  # a constant, a dtype, a class
    if name in MAKERS.get(module, {}):
        return Maker(original, name, module, MAKERS[module][name])
    roles = {"options": options_of(module, name), "number_options": words(NUMBER_OPTIONS, module, name)}
    if name in SIZED.get(module, {}):
        return Sized(original, name, module, SIZED[module][name], **roles)
    kind = Op
    if isinstance(original, jnp.ufunc):
        return UfuncOp(original, name, module, **roles)
    if module == "tapejax.random" and [parameter.name for parameter in parameters_of(original)][:1] == ["key"]:
        kind = KeyedOp
    return kind(straight(original), name, module, **roles)


def named(function: Any, original: Any, name: str, module: str) -> Any:
    functools.update_wrapper(function, original)
    function.__name__, function.__qualname__, function.__module__ = name, name, module
    return function


def mirror(module: str, own: dict[str, Any]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """(__getattr__, __dir__, __all__) of a namespace; `own` is its globals(), whose names come first."""
    names = [name for name in public_names(module) if name not in own]
    inside = [full.removeprefix(module + ".") for full in MODULES if full.startswith(module + ".")]
    modules = [name for name in inside if "." not in name]
    extra = [
        name for name, value in own.items() if not name.startswith("_") and getattr(value, "__module__", None) == module
    ]

    def __getattr__(name: str) -> Any:
        with _lock:
            if name in own:
                return own[name]
            if name in modules:
                return importlib.import_module(f"{module}.{name}")
            if name not in names:
                fix = None if name.startswith("_") else habits.of_name(name, {})
                if fix is not None:
                    raise UnknownAttributeError(f"module {module!r} has no attribute {name!r}", at=user_line(), fix=fix)
                raise AttributeError(f"module {module!r} has no attribute {name!r}")
            own[name] = made(module, name)
            return own[name]

    def __dir__() -> list[str]:
        return sorted({*names, *modules, *own})

    return __getattr__, __dir__, sorted({*names, *modules, *extra})


def submodule(module: str) -> types.ModuleType:
    """A namespace that has no file of its own, as a module that can be imported."""
    found = sys.modules.get(module)
    if found is None:
        found = types.ModuleType(module, f"{MODULES[module]} over Tensors.")
        vars(found)["__getattr__"], vars(found)["__dir__"], vars(found)["__all__"] = mirror(module, vars(found))
        if any(full.startswith(module + ".") for full in MODULES):
            vars(found)["__path__"] = []
        sys.modules[module] = found
        parent, _, name = module.rpartition(".")
        setattr(sys.modules[parent], name, found)
    return found
