"""jit and vmap of functions over Tensors.

`jit` compiles a whole step (forward, backward, update) to one XLA program. It means what the function
means eagerly: a result is recorded, as one action, where the function itself would have returned a
recorded Tensor; a step that does its own backward and returns new parameters leaves nothing on the tape.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from tapejax.calculus.reverse import is_inexact
from tapejax.errors import ArgumentError, ClosureError
from tapejax.ground.caches import Table
from tapejax.ground.callers import takes_apart
from tapejax.ground.compat import Settings
from tapejax.ground.where import user_line
from tapejax.ops.lift import Lifted, is_data, is_tensor, lift, static_arguments
from tapejax.ops.surface import functions
from tapejax.plan.plan import OpAction
from tapejax.tape.action import next_number
from tapejax.tape.scope import Scope, current_scope, restore, set_scope
from tapejax.tape.tape import Tape
from tapejax.tensor.gradients import Gradients
from tapejax.tensor.tensor import Tensor, array_of, make
from tapejax.transforms.recording import called, plain
from tapejax.transforms.reverse_mode import check_callable, flatten

_tree = jax.tree_util
MAX_SIGNATURES = 256
_WANTS_STATIC = (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError)


FRESH, RECORDED = -1, -2  # what a leaf of a result is, if not the input leaf of that number


_UNSEEN = object()


class _Marks:
    """For each leaf of a result, where it comes from: travels through jax.jit as structure."""

    __slots__ = ("marks",)

    def __init__(self, marks: tuple[int, ...]):
        self.marks = marks


_tree.register_pytree_node(_Marks, lambda node: ((), node.marks), lambda marks, _: _Marks(marks))


class Jitted:
    """See `jit`."""

    def __init__(self, function: Callable[..., Any], static_argnums: set[int], static_argnames: set[str], options: Any):
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self.op: Lifted = lift(function, static_argnums=tuple(static_argnums), static_argnames=tuple(static_argnames))
        functools.update_wrapper(self, function)
        isolated = functools.wraps(function)(lambda *args, **kwargs: self._isolated(*args, **kwargs))
        numbers, names = tuple(sorted(self.op.static_argnums)), tuple(sorted(self.op.static_argnames))
        self.compiled = jax.jit(isolated, static_argnums=numbers, static_argnames=names, **options)
        self._recorders = Table(MAX_SIGNATURES)  # None where nothing is to be recorded
        self._donates = any([given not in ((), None) for name, given in options.items() if name.startswith("donate")])
        self._over_arrays: Any = None

    @takes_apart
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, structure = flatten((args, kwargs))
        if any([isinstance(leaf, np.ndarray) for leaf in leaves]):  # jax would read them later: see tensor.array_of
            leaves = [np.array(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
            args, kwargs = _tree.tree_unflatten(structure, leaves)
        if current_scope().enabled and any(is_tensor(leaf) and leaf.requires_grad for leaf in leaves):
            key = self._key(args, kwargs)
            recorder = self._recorders.get(key, _UNSEEN)
            if recorder is _UNSEEN:
                recorder = self._recorders.keep(key, self._traced(args, kwargs))
            if recorder is not None:
                return recorder(leaves)
        block = current_scope().tape.block
        if self._donates and block is not None:
            block.flush()  # ops that were called before read what is donated now
        out, found = self.compiled(*args, **kwargs)
        return _returned(*flatten(out), found.marks, leaves)

    @takes_apart
    def _traced(self, args: Any, kwargs: dict[str, Any]) -> Recorder | None:
        """The function at this signature as an op, if it makes something to record. jax keeps what it traced, too."""
        traced = self.compiled.trace(*args, **kwargs)
        out, found = traced.out_info
        return Recorder(self, args, kwargs, traced.jaxpr, out, found.marks) if RECORDED in found.marks else None

    @takes_apart
    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """As jax.jit's own `lower`: the program for these arguments, to be looked at and compiled."""
        return Lowered(self.compiled.lower(*args, **kwargs), self)

    @property
    def over_arrays(self) -> Any:
        """A jax.jit of the function whose Tensors are given as arrays, and returned as such: for jax.export.

        >>> import jax, jax.export, jax.numpy as jnp, tapejax as tj
        >>> step = tj.jit(lambda w, x: ((x @ w) ** 2).mean())
        >>> jax.export.export(step.over_arrays)(jnp.ones(2), jnp.ones((3, 2))).call(jnp.ones(2), jnp.ones((3, 2)))
        Array(4., dtype=float32)
        """
        if self._over_arrays is None:
            numbers, names = tuple(sorted(self.op.static_argnums)), tuple(sorted(self.op.static_argnames))
            plainly = functools.wraps(self.function)(lambda *args, **kwargs: self._plainly(args, kwargs))
            self._over_arrays = jax.jit(plainly, static_argnums=numbers, static_argnames=names)
        return self._over_arrays

    def _plainly(self, args: Any, kwargs: dict[str, Any]) -> Any:
        leaves, structure = flatten((args, kwargs))
        static = self.op.static_leaves(args, kwargs)
        tensors = [
            make(leaf, is_inexact(jax.typeof(leaf)))
            if not is_static and is_data(leaf) and not is_tensor(leaf)
            else leaf
            for leaf, is_static in zip(leaves, static, strict=True)
        ]
        args, kwargs = _tree.tree_unflatten(structure, tensors)
        out, _ = self._isolated(*args, **kwargs)
        results, structure = flatten(out)
        return _tree.tree_unflatten(structure, [plain(leaf) for leaf in results])

    def clear_cache(self) -> None:
        """Forget what was compiled."""
        self.compiled.clear_cache()
        self._recorders.clear()

    def _key(self, args: Any, kwargs: dict[str, Any]) -> Any:
        leaves, structure = flatten((args, kwargs))
        static = self.op.static_leaves(args, kwargs)
        kind = lambda leaf, static: (
            leaf.kind if is_tensor(leaf) else leaf if static or not is_data(leaf) else jax.typeof(leaf)
        )
        return structure, tuple(map(kind, leaves, static)), tuple(static), Settings.now()

    def _isolated(self, *args: Any, **kwargs: Any) -> tuple[Any, _Marks]:
        """The function on a tape of its own (what is recorded within a trace must not leave it)."""
        outer = current_scope()
        start = next_number()
        tape = Tape(detail=outer.tape.detail, label=f"the tape of {self.name}")
        set_scope(Scope(tape, outer.enabled, (outer.thread, outer.task)))
        try:
            out = self._call(args, kwargs)
        except _WANTS_STATIC as error:
            fix = f"an argument that decides what {self.name} does (a flag, a size) is static: static_argnames="
            error.add_note(f"  fix     {fix}")
            raise
        finally:
            restore(outer)
        if any(isinstance(leaf, Gradients) for leaf in flatten(out)[0]):
            raise ArgumentError(
                f"{self.name} returns Gradients, whose tensors exist in the compiled program only",
                fix="return grads.tree(params): the gradients in the structure of the parameters",
            )
        given = {leaf.id.number: i for i, leaf in enumerate(flatten((args, kwargs))[0]) if is_tensor(leaf)}
        marks = tuple([_mark(leaf, given, tape) for leaf in flatten(out)[0]])
        if RECORDED in marks:
            self._check_closure(tape, given, start)
        return out, _Marks(marks)

    def _call(self, args: Any, kwargs: dict[str, Any]) -> Any:
        given, _ = flatten((args, kwargs))
        if not any(map(is_tensor, given)):
            return self.function(*args, **kwargs)
        over_tensors = functools.partial(self.function, *args, **kwargs)
        over_arrays = functools.partial(self.op, *args, **kwargs)  # one op, so that its results are Tensors
        return called(self.function, over_tensors, over_arrays)

    def _check_closure(self, tape: Tape, given: dict[int, int], start: int) -> None:
        for action in tape.actions:
            inputs = action.differentiable_inputs() if type(action) is OpAction else action.inputs or ()
            for id in inputs:
                if id.number < start and id.number not in given:
                    raise ClosureError(
                        f"{self.name} closes over the recorded {id!r}, which would be a constant in the compiled program",
                        at=action.line or user_line(),
                        action=repr(action),
                        fix="pass it as an argument, or leave the tape with .value or .detach()",
                    )

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<jitted {self.name}>"


class Stage:
    """A stage of jax.jit, with all it has."""

    __slots__ = ("jitted", "stage")

    def __init__(self, stage: Any, jitted: Jitted):
        self.stage, self.jitted = stage, jitted

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stage, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {self.jitted.name}>"


class Lowered(Stage):
    """What jax.jit lowered a function over Tensors to; `compile` gives what can be called."""

    __slots__ = ()

    def compile(self, *args: Any, **kwargs: Any) -> Compiled:
        return Compiled(self.stage.compile(*args, **kwargs), self.jitted)


class Compiled(Stage):
    """A compiled function over Tensors. It takes what it was lowered for, and leaves nothing on the tape."""

    __slots__ = ()

    @takes_apart
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves, _ = flatten((args, kwargs))
        if current_scope().enabled and any(
            is_tensor(leaf) and leaf.requires_grad and not leaf.is_leaf for leaf in leaves
        ):
            raise ArgumentError(
                f"the compiled {self.jitted.name} was given a recorded Tensor, and records nothing",
                at=user_line(),
                fix=f"call {self.jitted.name} itself, or give x.detach()",
            )
        out, found = self.stage(*args, **kwargs)
        results, structure = flatten(out)
        kept = [leaf.detach() if mark == RECORDED else leaf for leaf, mark in zip(results, found.marks, strict=True)]
        return _returned(kept, structure, found.marks, leaves)


def _mark(leaf: Any, given: dict[int, int], tape: Tape) -> int:
    if not (is_tensor(leaf) and leaf.requires_grad):
        return FRESH
    if leaf.id.number in given:
        return given[leaf.id.number]
    epoch = getattr(leaf.id.producer, "epoch", None)
    return RECORDED if epoch is not None and epoch.current() is tape.epoch else FRESH


def _returned(results: list[Any], structure: Any, marks: tuple[int, ...], given: list[Any]) -> Any:
    """Results with identities: what the function handed through is still what it was."""
    leaves = [
        leaf.known_as(given[mark].id, leaf.kind) if mark >= 0 and is_tensor(given[mark]) else leaf
        for leaf, mark in zip(results, marks, strict=True)
    ]
    return _tree.tree_unflatten(structure, leaves)


class Recorder:
    """A jitted function at one signature, as an op that is recorded. It was traced already."""

    def __init__(self, jitted: Jitted, args: Any, kwargs: dict[str, Any], jaxpr: Any, out: Any, marks: tuple[int, ...]):
        leaves, _ = flatten((args, kwargs))
        static = jitted.op.static_leaves(args, kwargs)
        self.places = [i for i, leaf in enumerate(leaves) if is_tensor(leaf) or (is_data(leaf) and not static[i])]
        results, self.out_structure = flatten(out)
        self.out_kinds = [leaf.kind if is_tensor(leaf) else None for leaf in results]
        self.marks = marks
        self.run = jaxpr_as_fun(jaxpr)
        flat = functools.wraps(jitted.function)(lambda *values: self._flat(*values))
        self.op: Lifted = lift(flat, name=jitted.name)

    def _flat(self, *values: Any) -> list[Any]:
        kept = lambda leaf, mark: leaf if mark == RECORDED else jax.lax.stop_gradient(leaf)
        return list(map(kept, self.run(*values), self.marks))

    def __call__(self, leaves: list[Any]) -> Any:
        results = self.op(*[leaves[place] for place in self.places])
        made = [
            leaf if mark == RECORDED else leaf.value if kind is None else make(leaf.value, kind.requires_grad)
            for leaf, mark, kind in zip(results, self.marks, self.out_kinds, strict=True)
        ]
        return _returned(made, self.out_structure, self.marks, leaves)


def jit(
    fun: Callable[..., Any] | None = None,
    /,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    **options: Any,
) -> Any:
    """Compile a function over Tensors, arrays and pytrees of them to one XLA program.

    A whole training step may go in: forward, backward, update. Where the function would return recorded
    Tensors, the call is one differentiable action on the tape. As with jax.jit the function is traced
    once per signature, so what it closes over and what it prints belong to the trace. Other options
    are jax.jit's. Donated arguments are not used again by a call that is recorded.

    >>> import tapejax as tj
    >>> @tj.jit
    ... def step(w, x):
    ...     loss = ((x * w) ** 2).sum()
    ...     return loss, w.value - 0.125 * tj.backward(loss, wrt=w)[w]
    >>> loss, w = step(tj.tensor(1.0, requires_grad=True), 2.0)
    >>> loss.item(), w
    (4.0, Array(0., dtype=float32))
    """
    if fun is None:
        return functools.partial(
            jit, static_argnums=static_argnums, static_argnames=static_argnames,
            donate_argnums=donate_argnums, donate_argnames=donate_argnames, **options,
        )  # fmt: skip
    check_callable(fun)
    numbers, names = static_arguments(static_argnums, static_argnames)
    return Jitted(fun, numbers, names, options | {"donate_argnums": donate_argnums, "donate_argnames": donate_argnames})


def vmap(fun: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0, **options: Any) -> Callable[..., Any]:
    """jax.vmap for functions over Tensors: mapped over an axis, recorded as one action.

    Recorded Tensors that fun closes over get their gradients too. Per-sample gradients are
    `vmap(grad(loss), in_axes=(None, 0))`.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> x = tj.tensor([1.0, 2.0, 3.0], requires_grad=True)
    >>> y = tj.vmap(lambda x: x * x)(x)
    >>> tj.backward(y)[x]
    Array([2., 4., 6.], dtype=float32)
    """
    check_callable(fun)

    @functools.wraps(fun)
    def mapped(*args, **kwargs):
        leaves, structure = flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, (Tensor, jax.Array, np.ndarray))]
        over_tensors = any(map(is_tensor, leaves))

        def whole(bindings: Any, values: Sequence[Any], tensors: bool = over_tensors) -> Any:
            filled = list(leaves)
            for place, value in zip(places, values, strict=True):
                filled[place] = value
            full_args, full_kwargs = _tree.tree_unflatten(structure, filled)
            body = functions.Body(fun, bindings, tensors)
            return jax.vmap(body, in_axes, out_axes, **options)(*full_args, **full_kwargs)

        if not over_tensors and not functions.reads_recorded(whole, [leaves[i] for i in places]):
            return jax.vmap(fun, in_axes, out_axes, **options)(*args, **kwargs)
        operands = [leaves[i] if is_tensor(leaves[i]) else make(array_of(leaves[i]), False) for i in places]
        name = f"vmap_{getattr(fun, '__name__', 'function')}"
        over_arrays = lambda bindings, values: whole(bindings, values, False)
        return called(
            fun,
            lambda: functions.record_function(name, whole, operands),
            lambda: functions.record_function(name, over_arrays, operands),
        )

    return mapped
