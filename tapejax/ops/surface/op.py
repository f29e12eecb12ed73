"""Op: a jax function as an op over Tensors, with jax's own name, signature and docstring."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from tapejax.calculus.reverse import Options
from tapejax.errors import ArgumentError
from tapejax.ground.compat import X64
from tapejax.ground.where import user_line
from tapejax.ops.lift import NUMBERS, Lifted, apply_plan, as_tensor, is_data, is_tensor
from tapejax.ops.surface import functions
from tapejax.tensor.generator import is_key, next_key
from tapejax.tensor.tensor import Tensor

_tree = jax.tree_util
Parameter = inspect.Parameter

OPERAND, NUMBER_IS_OPTION, OPTION = 0, 1, 2
SIMPLE = frozenset([*NUMBERS, str, type(None), np.ndarray])  # what has no Tensor and no function inside


class Op(Lifted):
    """A lifted jax function that knows which of its parameters are options.

    options: names of parameters whose values are part of the plan (axis, shape, dtype, ...).
    number_options: names of parameters where a Python number is an option, and an array an operand.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        module: str,
        options: Iterable[str] = (),
        number_options: Iterable[str] = (),
    ):
        self.roles: dict[str, int] = dict.fromkeys(number_options, NUMBER_IS_OPTION) | dict.fromkeys(options, OPTION)
        self.positions: list[int] = []
        for parameter in parameters_of(function):
            if parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
                self.positions.append(self.roles.get(parameter.name, OPERAND))
        super().__init__(function, name, set(), set(), Options())
        self.__name__, self.__module__, self.__qualname__ = name, module, name

    def _general(self, args: Any, kwargs: dict[str, Any], scope: Any, also: Any = None) -> Any:
        tensors = False
        for arg in (*args, *kwargs.values()) if kwargs else args:
            if type(arg) is Tensor:
                tensors = True
            elif type(arg) not in SIMPLE and not isinstance(arg, jax.Array):
                for leaf in _tree.tree_leaves(arg, is_leaf=is_tensor):
                    if isinstance(leaf, Tensor):
                        tensors = True
                    elif functions.is_function(leaf):
                        return functions.call(self, args, kwargs, scope)
        if not tensors:
            return self.function(*args, **kwargs)
        operands: list[Tensor] = []
        key: list[Any] = [scope.enabled, X64.value, len(args)]
        roles, n = self.positions, len(self.positions)
        for position, arg in enumerate(args):
            self._read(arg, roles[position] if position < n else OPERAND, operands, key)
        for name in sorted(kwargs):
            key.append(name)
            self._read(kwargs[name], self.roles.get(name, OPERAND), operands, key)
        found = tuple(key)
        plan = self.plans.get(found)
        if plan is None:
            args, kwargs = self._concrete_options(args, kwargs)
            plan = self._plan(args, kwargs, operands, found, scope)
        self._file(plan, also, args, operands)
        return apply_plan(plan, operands, scope)

    def _read(self, arg: Any, role: int, operands: list[Tensor], key: list[Any]) -> None:
        """Sort an argument: its operands, and what of it belongs to the key."""
        if type(arg) is Tensor and role != OPTION:
            operands.append(arg)
            key.append(arg.kind)
        elif role == OPTION or arg is None:
            key.append(frozen(arg, self.name))
        elif type(arg) in NUMBERS or isinstance(arg, (jax.Array, np.ndarray, np.generic)):
            self._read_leaf(arg, role, operands, key)
        else:
            leaves, structure = _tree.tree_flatten(arg, is_leaf=is_tensor)
            key.append(structure)
            for leaf in leaves:
                self._read_leaf(leaf, role, operands, key)

    def _read_leaf(self, leaf: Any, role: int, operands: list[Tensor], key: list[Any]) -> None:
        if not isinstance(leaf, Tensor):
            if not is_data(leaf) or (role == NUMBER_IS_OPTION and type(leaf) in NUMBERS):
                key.append(frozen(leaf, self.name))
                return
            leaf = as_tensor(leaf)
        operands.append(leaf)
        key.append(leaf.kind)

    def role_of(self, place: int | str) -> int:
        """The role of a position or keyword."""
        if isinstance(place, str):
            return self.roles.get(place, OPERAND)
        return self.positions[place] if place < len(self.positions) else OPERAND

    def static_leaves(self, args: Any, kwargs: dict[str, Any]) -> list[bool]:
        marks: list[bool] = []
        for place, arg in [*enumerate(args), *((name, kwargs[name]) for name in sorted(kwargs))]:
            role = self.role_of(place)
            for leaf in _tree.tree_leaves(arg, is_leaf=is_tensor):
                marks.append(role == OPTION or (role == NUMBER_IS_OPTION and type(leaf) in NUMBERS))
        return marks

    def _concrete_options(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Tensors given as options, as plain numbers."""
        plain = lambda place, arg: (
            _tree.tree_map(lambda leaf: number(leaf, self.name), arg, is_leaf=is_tensor)
            if self.role_of(place) == OPTION
            else arg
        )
        return (
            tuple(plain(i, arg) for i, arg in enumerate(args)),
            {name: plain(name, arg) for name, arg in kwargs.items()},
        )

    def _full_name(self) -> str:
        return f"{self.__module__}.{self.__name__}"

    def __reduce__(self):
        return find, (self.__module__, self.__name__)

    def __repr__(self) -> str:
        return f"<{self.__module__}.{self.__name__} over Tensors, {len(self.plans)} plans>"


class UfuncOp(Op):
    """A jnp.ufunc: its methods are ops too."""

    def __getattr__(self, name: str) -> Any:
        if name in ("reduce", "accumulate", "at", "outer", "reduceat"):
            method = getattr(self.function, name)
            options = ("axis", "dtype", "keepdims", "inplace")
            op = Op(method, f"{self.__name__}.{name}", self.__module__, options)
            self.__dict__[name] = op
            return op
        if name in ("nin", "nout", "nargs", "identity"):
            return getattr(self.function, name)
        raise AttributeError(f"{self.__name__} has no attribute {name!r}")


class KeyedOp(Op):
    """A function of jax.random: where no key is given, this context's generator gives one."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if "key" in kwargs or (args and is_key(args[0])):
            return super().__call__(*args, **kwargs)
        return super().__call__(next_key(), *args, **kwargs)


def find(module: str, name: str) -> Any:
    """The op of that name (for pickle)."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def number(leaf: Any, name: str) -> Any:
    """An option given as a Tensor: its value, which must be known and not part of what is differentiated."""
    if not isinstance(leaf, Tensor):
        return leaf
    if leaf.requires_grad:
        raise ArgumentError(
            f"an option of {name} is a recorded Tensor, and no gradient flows through options",
            at=user_line(),
            action=f"{leaf.id!r}: {leaf.aval.str_short()}",
            fix="pass a plain number, or .detach() it if that is meant",
        )
    return np.asarray(leaf.concrete(f"an option of {name}"))[()]


def frozen(option: Any, name: str) -> Any:
    """An option as part of a plan's key; 1, 1.0 and True differ."""
    kind = type(option)
    if isinstance(option, Tensor):
        option = number(option, name)
        kind = type(option)
    if option is None or kind is str or kind is int:
        return kind, option
    if kind is float or kind is complex:
        return kind, repr(option)  # 0.0 and -0.0 differ, a NaN is itself
    if kind in (tuple, list):
        return kind, *[frozen(part, name) for part in option]
    if kind is slice:
        return kind, option.start, option.stop, option.step
    if isinstance(option, (np.ndarray, np.generic, jax.Array)) and not isinstance(option, jax.core.Tracer):
        array = np.asarray(option)
        return kind, array.shape, array.dtype, array.tobytes()
    try:
        hash(option)
    except TypeError:
        raise ArgumentError(
            f"a {kind.__name__} given to {name} is neither numbers nor hashable",
            at=user_line(),
            fix="pass arrays, numbers or hashable options",
        ) from None
    return kind, option
