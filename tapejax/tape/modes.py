"""no_grad and enable_grad: whether the current tape records."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

from tapejax.errors import ArgumentError
from tapejax.ground.where import user_frame
from tapejax.tape import cuts
from tapejax.tape.action import next_number
from tapejax.tape.scope import Entered, Entry, Scope, enter

F = TypeVar("F", bound=Callable[..., Any])

alarm: ContextVar[Any] = ContextVar("alarm", default=None)  # who looks at gradients: see diagnose/alarm.py


class _GradMode(Entered):
    """Switch recording off or on: a context manager, and a decorator for functions and generators."""

    __slots__ = ("_blocks", "_entries")
    enabled: bool

    def __init__(self, function: Any = None) -> None:
        name = type(self).__name__
        if function is not None:
            raise ArgumentError(f"{name} takes no argument", fix=f"`@{name}()` or `with {name}():`, with parentheses")
        self._entries: list[Entry] = []
        self._blocks: list[list[Any]] = []

    def __enter__(self) -> None:
        if not self.enabled:  # logged for whoever asks why a gradient is missing
            self._blocks.append([next_number(), 0, user_frame(2)])
            cuts.blocks_without_grad.append(self._blocks[-1])
        enter(self)

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        if self._blocks:
            self._blocks.pop()[1] = next_number()

    def within(self, outer: Scope) -> Scope:
        return Scope(outer.tape, self.enabled, (outer.thread, outer.task), outer.bindings, outer.execution)

    def __call__(self, function: F) -> F:
        mode = type(self)
        if not callable(function):
            raise ArgumentError(f"@{mode.__name__}() wraps a function, not {type(function).__name__}")
        if inspect.isasyncgenfunction(function):
            raise ArgumentError(
                f"@{mode.__name__} cannot wrap the async generator {function.__name__}",
                fix=f"use `with {mode.__name__}():` around its single steps",
            )
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def steps(*args, **kwargs):
                # Entered anew for every step: between the steps the caller's own mode holds.
                generator = function(*args, **kwargs)
                resume = functools.partial(next, generator)
                while True:
                    try:
                        with mode():
                            item = resume()
                    except StopIteration as stop:
                        return stop.value
                    try:
                        sent = yield item
                        resume = functools.partial(generator.send, sent)
                    except GeneratorExit:
                        with mode():
                            generator.close()
                        raise
                    except BaseException as error:
                        resume = functools.partial(generator.throw, error)

            return steps  # type: ignore[return-value]
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args, **kwargs):
                with mode():
                    return await function(*args, **kwargs)

            return awaited  # type: ignore[return-value]

        @functools.wraps(function)
        def called(*args, **kwargs):
            with mode():
                return function(*args, **kwargs)

        return called  # type: ignore[return-value]


class no_grad(_GradMode):
    """Nothing is recorded inside. Also a decorator. Inherited by tasks and threads started inside.

    >>> import tapejax as tj
    >>> x = tj.tensor(2.0, requires_grad=True)
    >>> with tj.no_grad():
    ...     y = x * x
    >>> y.requires_grad
    False
    """

    __slots__ = ()
    enabled = False


class enable_grad(_GradMode):
    """Record again inside a no_grad. Also a decorator.

    >>> import tapejax as tj
    >>> x = tj.tensor(2.0, requires_grad=True)
    >>> with tj.no_grad(), tj.enable_grad():
    ...     y = x * x
    >>> y.requires_grad
    True
    """

    __slots__ = ()
    enabled = True
