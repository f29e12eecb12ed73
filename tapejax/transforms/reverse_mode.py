"""Reverse mode with jax's signatures: vjp, grad, value_and_grad, jacrev, elementwise_grad.

Arrays in, arrays out. Where a recorded Tensor goes in, as an argument or through a closure, what
depends on it comes out as a recorded Tensor: that is how they nest.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.engine.backward import own
from tapejax.errors import ArgumentError, DtypeError
from tapejax.ground.caches import cached
from tapejax.ground.where import user_line
from tapejax.ops.lift import is_tensor
from tapejax.tape.modes import alarm
from tapejax.tensor.tensor import Tensor, array_of
from tapejax.transforms.recording import Recording, gradient_for, kind_of, no_gradient, outward, record_call, start_of

_tree = jax.tree_util
Argnums = int | Sequence[int]


# --- vjp ------------------------------------------------------------------------------------------------


def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False, reduce_axes: Sequence[Any] = ()) -> Any:
    """(fun(*primals), pullback) as jax.vjp has it; with has_aux also what fun returned besides.

    The pullback takes cotangents in the structure of the output and returns a tuple with one gradient
    per primal. It may be called any number of times; each call is one pass over the tape.

    >>> import tapejax as tj
    >>> out, pullback = tj.vjp(lambda x, y: x * y, 2.0, 3.0)
    >>> pullback(1.0)
    (Array(3., dtype=float32, weak_type=True), Array(2., dtype=float32, weak_type=True))
    """
    check_callable(fun)
    given, structure = flatten(primals)
    for leaf in given:
        check_value(leaf)
    chosen = [position for position, leaf in enumerate(given) if is_inexact(leaf)]
    recording = record_call(fun, primals, {}, chosen)
    out, aux = split_aux(recording.result, has_aux)
    roots, out_structure = flatten(out)
    tensors = any(map(is_tensor, given))
    expected = [kind_of(root) for root in roots]

    def pullback(cts: Any) -> Any:
        cts = check_cotangents(cts, expected, out_structure)
        found = iter(recording.pull(roots, cts))
        leaves = [gradient_for(leaf, next(found)) if is_inexact(leaf) else no_gradient(leaf) for leaf in given]
        return _tree.tree_unflatten(structure, leaves)

    outputs = _tree.tree_unflatten(out_structure, [outward(root, recording, tensors) for root in roots])
    return (outputs, pullback, outward_tree(aux, recording, tensors)) if has_aux else (outputs, pullback)


def check_cotangents(cts: Any, expected: Sequence[Any], structure: Any) -> list[Any]:
    leaves, found = flatten(cts)
    if found != structure:
        raise ArgumentError(
            f"the cotangents have the structure {found}, the output has {structure}",
            at=user_line(),
            fix="give one cotangent per output, in the output's structure",
        )
    made = []
    for ct, aval in zip(leaves, expected, strict=True):
        if not jnp.issubdtype(aval.dtype, jnp.inexact):
            made.append(None)  # jax wants a float0 here; nothing goes back through integers
            continue
        kind = kind_of(ct)
        if kind.shape != aval.shape or kind.dtype != aval.dtype:
            raise ArgumentError(
                f"a cotangent is {kind.str_short()}, its output {aval.str_short()}",
                at=user_line(),
                fix="a cotangent has its output's shape and dtype",
            )
        made.append(ct if is_tensor(ct) else array_of(ct))
    return made


# --- grad -----------------------------------------------------------------------------------------------


def value_and_grad(
    fun: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Callable[..., tuple[Any, Any]]:
    """A function that returns (fun(...), its gradient), as jax.value_and_grad has it.

    fun may use Tensor operators, tapejax functions and Python control flow, or be any function that
    jax can trace (one written with jax.numpy is traced at each call, and compiled once). One pass
    forward, one back.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> tj.value_and_grad(lambda x: (x * x).sum())(jnp.array([1.0, 2.0]))
    (Array(5., dtype=float32), Array([2., 4.], dtype=float32))
    """
    check_callable(fun)
    argnums = check_argnums(argnums)

    @named_after(fun, "value_and_grad")
    def value_and_grad_of(*args, **kwargs):
        chosen = Chosen(args, kwargs, argnums)
        for leaf in chosen.leaves:
            check_input("grad", leaf, holomorphic, allow_int)
        recording = record_call(fun, args, kwargs, chosen.inexact)
        out, aux = split_aux(recording.result, has_aux)
        check_scalar(out)
        check_output("grad", out, holomorphic)
        if is_tensor(out) and out.requires_grad:
            start = start_of(out)
            cts = [own(ct) if ct is start else ct for ct in recording.pull([out], [start], once=True)]
        else:
            cts = [jnp.zeros_like(leaf.value) for leaf in recording.leaves]
        gradient = chosen.rebuild(cts)
        # Looked at only now: the forward may have run together with the backward, as one program.
        value = plain_value(outward(out, recording, chosen.tensors))
        if (looks := alarm.get()) is not None:
            looks.after_gradient(fun, args, kwargs, argnums, has_aux, (value, gradient))
        return ((value, outward_tree(aux, recording, chosen.tensors)), gradient) if has_aux else (value, gradient)

    return value_and_grad_of


def grad(
    fun: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Callable[..., Any]:
    """A function that returns the gradient of fun, as jax.grad has it; see value_and_grad.

    >>> import tapejax as tj
    >>> tj.grad(tj.grad(lambda x: x**3))(2.0)
    Array(12., dtype=float32, weak_type=True)
    """
    both = value_and_grad(fun, argnums, has_aux, holomorphic, allow_int, reduce_axes)

    @named_after(fun, "grad")
    def grad_of(*args, **kwargs):
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return grad_of


def elementwise_grad(fun: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """The derivative of a function that works element by element: the gradient of the sum of its output.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> tj.elementwise_grad(jnp.tanh)(jnp.array([0.0, 1.0]))
    Array([1.        , 0.41997433], dtype=float32)
    """
    check_callable(fun)
    argnums = check_argnums(argnums)

    @named_after(fun, "elementwise_grad")
    def elementwise_grad_of(*args, **kwargs):
        chosen = Chosen(args, kwargs, argnums)
        for leaf in chosen.leaves:
            check_input("elementwise_grad", leaf, False, False)
        recording = record_call(fun, args, kwargs, chosen.inexact)
        roots, _ = flatten(recording.result)
        cts = [jnp.ones(kind_of(root).shape, kind_of(root).dtype) if is_inexact(root) else None for root in roots]
        return chosen.rebuild(recording.pull(roots, cts, once=True))

    return elementwise_grad_of


# --- Jacobians --------------------------------------------------------------------------------------------


def jacrev(
    fun: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    """The Jacobian of fun, as jax.jacrev has it: one pass back for all rows at once, mapped over the outputs.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> tj.jacrev(lambda x: x * x)(jnp.array([1.0, 2.0]))
    Array([[2., 0.],
           [0., 4.]], dtype=float32)
    """
    check_callable(fun)
    argnums = check_argnums(argnums)

    @named_after(fun, "jacrev")
    def jacrev_of(*args, **kwargs):
        chosen = Chosen(args, kwargs, argnums)
        for leaf in chosen.leaves:
            check_input("jacrev", leaf, holomorphic, allow_int)
        recording = record_call(fun, args, kwargs, chosen.inexact)
        out, aux = split_aux(recording.result, has_aux)
        roots, structure = flatten(out)
        for root in roots:
            check_output("jacrev", root, holomorphic)
        kinds = [kind_of(root) for root in roots]
        lanes, basis = standard_basis(kinds)
        rows = recording.pull_many(roots, basis, lanes)
        # rows[j] has all outputs along its first axis: one block per output, shaped output + input.
        blocks, start = [], 0
        for kind in kinds:
            stop = start + kind.size
            cut = [row[start:stop].reshape((*kind.shape, *row.shape[1:])) for row in rows]
            blocks.append(chosen.rebuild(cut))
            start = stop
        jacobian = _tree.tree_unflatten(structure, blocks)
        return (jacobian, outward_tree(aux, recording, chosen.tensors)) if has_aux else jacobian

    return jacrev_of


jacobian = jacrev


def standard_basis(kinds: Sequence[Any]) -> tuple[int, list[Any]]:
    """(n, arrays): the n unit vectors of a space made of these shapes, along a leading axis."""
    total = sum(kind.size for kind in kinds)
    basis, start = [], 0
    for kind in kinds:
        eye = jnp.eye(total, kind.size, -start, dtype=kind.dtype)
        basis.append(eye.reshape((total, *kind.shape)))
        start += kind.size
    return total, basis


# --- arguments ----------------------------------------------------------------------------------------------


class Chosen:
    """The leaves of the arguments with respect to which a function is differentiated."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], argnums: int | tuple[int, ...]):
        several = argnums if isinstance(argnums, tuple) else (argnums,)
        parts = [flatten(arg) for arg in args]
        for number in several:
            if not -len(args) <= number < len(args):
                raise ArgumentError(
                    f"argnums={argnums} needs more positional arguments than the {len(args)} that were given",
                    at=user_line(),
                    fix="give the arguments to differentiate by position",
                )
        ends = list(itertools.accumulate(len(leaves) for leaves, _ in parts))
        positions = [range(end - len(leaves), end) for end, (leaves, _) in zip(ends, parts, strict=True)]
        wanted = args[argnums] if isinstance(argnums, int) else tuple(args[number] for number in several)
        self.leaves, self.structure = flatten(wanted)
        places = [position for number in several for position in positions[number]]
        self.inexact = [place for place, leaf in zip(places, self.leaves, strict=True) if is_inexact(leaf)]
        given = itertools.chain(*(leaves for leaves, _ in parts), flatten(kwargs)[0])
        self.tensors = any(map(is_tensor, given))

    def rebuild(self, cts: Sequence[Any]) -> Any:
        """Gradients in the structure of the chosen arguments."""
        found = iter(cts)
        leaves = [gradient_for(leaf, next(found)) if is_inexact(leaf) else no_gradient(leaf) for leaf in self.leaves]
        return _tree.tree_unflatten(self.structure, leaves)


def flatten(tree: Any) -> tuple[list[Any], Any]:
    return _tree.tree_flatten(tree, is_leaf=is_tensor)


@cached(64)
def _inexact(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def is_inexact(leaf: Any) -> bool:
    return _inexact(kind_of(leaf).dtype)


def outward_tree(tree: Any, recording: Recording, tensors: bool) -> Any:
    return _tree.tree_map(lambda leaf: outward(leaf, recording, tensors), tree, is_leaf=is_tensor)


def plain_value(value: Any) -> Any:
    return value if isinstance(value, (Tensor, jax.Array)) else jnp.asarray(value)


def split_aux(result: Any, has_aux: bool) -> tuple[Any, Any]:
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        raise ArgumentError(
            f"has_aux=True: the function should return (output, aux), not {type(result).__name__}", at=user_line()
        )
    return result


def named_after(fun: Callable[..., Any], prefix: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def name(wrapper):
        functools.update_wrapper(wrapper, fun, assigned=("__module__", "__doc__"), updated=())
        wrapper.__name__ = wrapper.__qualname__ = f"{prefix}_{getattr(fun, '__name__', 'function')}"
        return wrapper

    return name


def check_callable(fun: Any) -> None:
    if not callable(fun):
        raise ArgumentError(f"expected a function, not {type(fun).__name__}", at=user_line())


def check_argnums(argnums: Argnums) -> int | tuple[int, ...]:
    try:
        if isinstance(argnums, (list, tuple)):
            return tuple(operator.index(number) for number in argnums)
        return operator.index(argnums)
    except TypeError:
        raise ArgumentError(
            f"argnums={argnums!r}", fix="an integer, or several: positions of what to differentiate by"
        ) from None


def check_value(leaf: Any) -> None:
    if not isinstance(leaf, (Tensor, jax.Array)):
        try:
            jax.typeof(leaf)
        except TypeError:
            raise ArgumentError(
                f"a {type(leaf).__name__} among the arguments to differentiate is no number or array",
                at=user_line(),
                fix="keep it out of argnums, or split it off (equinox.partition, flax.nnx.split)",
            ) from None


def check_input(name: str, leaf: Any, holomorphic: bool, allow_int: bool) -> None:
    check_value(leaf)
    dtype = kind_of(leaf).dtype
    if _inexact(dtype) and not holomorphic:
        return
    if jnp.issubdtype(dtype, jax.dtypes.extended) or jnp.issubdtype(dtype, np.integer) or dtype == np.bool_:
        if not allow_int:
            raise DtypeError(
                f"{name} needs float or complex inputs, this is {dtype}",
                at=user_line(),
                fix="convert it to float, keep it out of argnums, or pass allow_int=True",
            )
    elif holomorphic and not jnp.issubdtype(dtype, np.complexfloating):
        raise DtypeError(f"{name} with holomorphic=True needs complex inputs, this is {dtype}", at=user_line())


def check_output(name: str, leaf: Any, holomorphic: bool) -> None:
    dtype = kind_of(leaf).dtype
    if holomorphic:
        if not jnp.issubdtype(dtype, np.complexfloating):
            raise DtypeError(f"{name} with holomorphic=True needs complex outputs, this is {dtype}", at=user_line())
    elif not jnp.issubdtype(dtype, np.floating):
        raise DtypeError(
            f"{name} needs real-valued outputs, this is {dtype}",
            at=user_line(),
            fix="for a holomorphic function pass holomorphic=True; otherwise use vjp",
        )


def check_scalar(out: Any) -> None:
    leaves, structure = flatten(out)
    if structure != _tree.tree_structure(0):
        raise ArgumentError(f"the gradient is that of a single number, not of {structure}", at=user_line())
    check_value(leaves[0])
    if kind_of(leaves[0]).shape:
        raise ArgumentError(
            f"the gradient is that of a single number, the output has shape {kind_of(leaves[0]).shape}",
            at=user_line(),
            fix="sum or average it, or use jacrev",
        )
