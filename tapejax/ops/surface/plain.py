"""What cannot be recorded as it is: by value with a reason, sized by values, made from arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tapejax.errors import LostGradientError
from tapejax.ground.where import user_line
from tapejax.ops.lift import is_tensor
from tapejax.ops.surface.op import Op, find
from tapejax.tape.scope import current_scope
from tapejax.tensor.tensor import make

_tree = jax.tree_util


def has_tensor(tree: Any) -> bool:
    return any(map(is_tensor, _tree.tree_leaves(tree, is_leaf=is_tensor)))


def values_of(tree: Any) -> Any:
    """The tree with arrays in place of its Tensors."""
    return _tree.tree_map(lambda leaf: leaf.value if is_tensor(leaf) else leaf, tree, is_leaf=is_tensor)


def recorded(tree: Any) -> list[Any]:
    if not current_scope().enabled:
        return []
    return [t for t in _tree.tree_leaves(tree, is_leaf=is_tensor) if is_tensor(t) and t.requires_grad]


class Plain:
    """A jax function that is called on values; `reason` says why it is not recorded."""

    def __init__(self, function: Callable[..., Any], name: str, module: str, reason: str):
        self.function, self.reason = function, reason
        functools.update_wrapper(self, function)
        self.__name__, self.__qualname__, self.__module__ = name, name, module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not has_tensor((args, kwargs)):
            return self.function(*args, **kwargs)
        plain_args, plain_kwargs = values_of((args, kwargs))
        results = self.function(*plain_args, **plain_kwargs)
        lost = recorded((args, kwargs))
        is_array = lambda leaf: isinstance(leaf, jax.Array)
        leaves = [leaf for leaf in _tree.tree_leaves(results) if is_array(leaf)]
        if lost and any(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves):
            raise LostGradientError(
                f"{self.__module__}.{self.__name__} is not recorded ({self.reason}), "
                "and a recorded Tensor was about to lose its gradient there",
                at=user_line(),
                action=f"{lost[0].id!r}: {lost[0].aval.str_short()}",
                fix="give it x.detach() if no gradient is wanted",
            )
        return _tree.tree_map(lambda leaf: make(leaf, False) if is_array(leaf) else leaf, results)

    def __reduce__(self):
        return find, (self.__module__, self.__name__)

    def __repr__(self) -> str:
        return f"<{self.__module__}.{self.__name__}, not recorded: {self.reason}>"


class Sized(Op):
    """A function whose result's size depends on values: the size is read off them, then it is an option."""

    def __init__(self, function: Callable[..., Any], name: str, module: str, size: str, **roles: Any):
        super().__init__(function, name, module, **roles)
        self.size = size

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get(self.size) is None and has_tensor((args, kwargs)):
            plain_args, plain_kwargs = values_of((args, kwargs))
            found = self.function(*plain_args, **plain_kwargs)
            first, *_ = _tree.tree_leaves(found)
            size = first.shape[kwargs.get("axis") or 0]
            if size == 0:  # nothing there, and so nothing to differentiate
                return _tree.tree_map(lambda leaf: make(leaf, False), found)
            kwargs = {**kwargs, self.size: size}
        return super().__call__(*args, **kwargs)


class Made:
    """What a maker returned: called with the maker's arguments and its own, as one op."""

    def __init__(self, maker: Maker, args: Any, kwargs: dict[str, Any], method: str = "__call__"):
        self.maker, self.args, self.kwargs = maker, args, kwargs
        make_again = maker.function
        path = method.split(".")

        def whole(maker_args, maker_kwargs, *args, **kwargs):
            made = functools.reduce(getattr, path, make_again(*maker_args, **maker_kwargs))
            return made(*args, **kwargs)

        name = maker.__name__ if method == "__call__" else f"{maker.__name__}.{method}"
        self.op = Op(whole, name, maker.__module__, maker.options, ("maker_args", "maker_kwargs"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.op(self.args, self.kwargs, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:  # the methods of a ufunc
        if name.startswith("_"):
            raise AttributeError(name)
        return Made(self.maker, self.args, self.kwargs, name)


class Maker:
    """A function that returns a function, over Tensors."""

    def __init__(self, function: Callable[..., Any], name: str, module: str, options: tuple[str, ...]):
        self.function, self.options = function, options
        functools.update_wrapper(self, function)
        self.__name__, self.__qualname__, self.__module__ = name, name, module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves = _tree.tree_leaves((args, kwargs), is_leaf=is_tensor)
        if any(callable(leaf) and not isinstance(leaf, type) for leaf in leaves) or any(map(is_tensor, leaves)):
            return Made(self, args, kwargs)
        return self.function(*args, **kwargs)

    def __reduce__(self):
        return find, (self.__module__, self.__name__)


def class_of(function: type, name: str, module: str, methods: str) -> type:
    """A class of jax's that computes in its methods: its arguments are kept, and each method is one op."""

    def __init__(self, *args, **kwargs):
        function(*values_of(args), **values_of(kwargs))  # what is wrong with the arguments is told now
        self._args, self._kwargs = args, kwargs

    def method(method_name):
        original = getattr(function, method_name)

        def whole(maker_args, maker_kwargs, *args, **kwargs):
            return getattr(function(*maker_args, **maker_kwargs), method_name)(*args, **kwargs)

        op = Op(whole, f"{name}.{method_name}", module, ("shape",), ("maker_args", "maker_kwargs"))

        @functools.wraps(original)
        def call(self, *args, **kwargs):
            return op(self._args, self._kwargs, *args, **kwargs)

        return call

    return type(
        name,
        (),
        {"__init__": __init__, "__doc__": function.__doc__, "__module__": module, "__wrapped__": function}
        | {method_name: method(method_name) for method_name in methods.split()},
    )
