"""Forward mode of our own, by transposing twice: jvp, linearize, jacfwd, hessian, hvp.

A pullback is linear in its cotangents. Recorded and gone back over itself, it gives the map of
tangents: the transpose of the transpose. There is one set of rules, and no forward rule that could
disagree with its reverse one. The price is that of the way there: the function and its pullback are
recorded once (of the pullback only what the tangents need is computed), and what the reverse pass
keeps is kept, so memory grows with the length of the function, which jax's own forward mode avoids.
Under jax.jit the parts that no tangent needs are removed, and what runs is the tangent program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.errors import ArgumentError, DtypeError
from tapejax.ground.where import user_line
from tapejax.ops.lift import is_tensor
from tapejax.tensor.tensor import array_of, make
from tapejax.transforms.recording import Recording, kind_of, no_gradient, outward, record_call, zero_of
from tapejax.transforms.reverse_mode import (
    Argnums,
    Chosen,
    check_argnums,
    check_callable,
    check_input,
    check_value,
    flatten,
    grad,
    is_inexact,
    jacrev,
    named_after,
    outward_tree,
    split_aux,
    standard_basis,
    vjp,
)

_tree = jax.tree_util


class Linear:
    """The derivative of a recorded function: from tangents of its leaves to tangents of its roots."""

    def __init__(self, recording: Recording, roots: Sequence[Any]):
        self.roots = roots
        self.moving = [is_tensor(root) and root.requires_grad for root in roots]
        zeros = [zero_of(root) for root, moves in zip(roots, self.moving, strict=True) if moves]

        def pull(*cts):
            given = iter(cts)
            return recording.pull(roots, [next(given) if moves else None for moves in self.moving])

        self.transposed = record_call(pull, tuple(zeros), {}, range(len(zeros))) if zeros else None

    def push(self, tangents: Sequence[Any]) -> list[Any]:
        """Tangents of the roots; float0 for integers."""
        if self.transposed is None:
            return self._spread([], ())
        return self._spread(self.transposed.pull(self.transposed.result, tangents), ())

    def push_many(self, tangents: Sequence[Any], lanes: int) -> list[Any]:
        """`push` for tangents with a leading axis of this size."""
        if self.transposed is None:
            return self._spread([], (lanes,))
        return self._spread(self.transposed.pull_many(self.transposed.result, tangents, lanes), (lanes,))

    def _spread(self, found: Sequence[Any], lead: tuple[int, ...]) -> list[Any]:
        given = iter(found)

        def zeros(root):
            if is_inexact(root):
                return jnp.zeros((*lead, *kind_of(root).shape), kind_of(root).dtype)
            return np.broadcast_to(no_gradient(root), (*lead, *kind_of(root).shape))

        return [next(given) if moves else zeros(root) for root, moves in zip(self.roots, self.moving, strict=True)]


def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """(fun(*primals), the map of tangents there), as jax.linearize has it; with has_aux also aux.

    >>> import tapejax as tj
    >>> out, tangent = tj.linearize(lambda x: x * x, 3.0)
    >>> tangent(1.0), tangent(2.0)
    (Array(6., dtype=float32, weak_type=True), Array(12., dtype=float32, weak_type=True))
    """
    check_callable(fun)
    given, structure = flatten(primals)
    for leaf in given:
        check_value(leaf)
    chosen = [position for position, leaf in enumerate(given) if is_inexact(leaf)]
    recording = record_call(fun, primals, {}, chosen)
    out, aux = split_aux(recording.result, has_aux)
    roots, out_structure = flatten(out)
    linear = Linear(recording, roots)
    tensors = any(map(is_tensor, given))

    def tangent_map(*tangents: Any) -> Any:
        found, tangent_structure = flatten(tangents)
        if tangent_structure != structure:
            raise ArgumentError(
                f"the tangents have the structure {tangent_structure}, the primals have {structure}",
                at=user_line(),
                fix="give one tangent per primal, in the primals' structure",
            )
        made = [check_tangent(leaf, tangent) for leaf, tangent in zip(given, found, strict=True) if is_inexact(leaf)]
        pushed = linear.push(made)
        out_tensors = tensors or any(map(is_tensor, found))
        return _tree.tree_unflatten(out_structure, [tangent_out(t, out_tensors) for t in pushed])

    outputs = _tree.tree_unflatten(out_structure, [outward(root, recording, tensors) for root in roots])
    return (outputs, tangent_map, outward_tree(aux, recording, tensors)) if has_aux else (outputs, tangent_map)


def tangent_out(tangent: Any, tensors: bool) -> Any:
    if is_tensor(tangent):
        return tangent if tangent.requires_grad or tensors else tangent.value
    return make(tangent, False) if tensors and isinstance(tangent, jax.Array) else tangent


def check_tangent(primal: Any, tangent: Any) -> Any:
    check_value(tangent)
    kind, expected = kind_of(tangent), kind_of(primal)
    if kind.shape != expected.shape or kind.dtype != expected.dtype:
        raise ArgumentError(
            f"a tangent is {kind.str_short()}, its primal {expected.str_short()}",
            at=user_line(),
            fix="a tangent has its primal's shape and dtype",
        )
    return tangent if is_tensor(tangent) else array_of(tangent)


def jvp(fun: Callable[..., Any], primals: Any, tangents: Any, has_aux: bool = False) -> Any:
    """(fun(*primals), its derivative along tangents), as jax.jvp has it; with has_aux also aux.

    >>> import tapejax as tj
    >>> tj.jvp(lambda x, y: x * y, (2.0, 3.0), (1.0, 0.0))
    (Array(6., dtype=float32, weak_type=True), Array(3., dtype=float32, weak_type=True))
    """
    if not isinstance(primals, (list, tuple)) or not isinstance(tangents, (list, tuple)):
        raise ArgumentError(
            f"jvp takes tuples of primals and tangents, not {type(primals).__name__} and {type(tangents).__name__}",
            at=user_line(),
            fix="jvp(f, (x,), (t,))",
        )
    # An integer has no tangent but float0, which is refused here rather than ignored.
    for primal, tangent in zip(flatten(tuple(primals))[0], flatten(tuple(tangents))[0]):
        if not is_inexact(primal) and kind_of(tangent).dtype != jax.dtypes.float0:
            raise DtypeError(
                f"the tangent of a {kind_of(primal).dtype} primal is {kind_of(tangent).dtype}",
                at=user_line(),
                fix="numpy.zeros(shape, jax.dtypes.float0), as jax.jvp wants it",
            )
    out, tangent_map, *aux = linearize(fun, *primals, has_aux=has_aux)
    return (out, tangent_map(*tangents), *aux)


def jacfwd(
    fun: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """The Jacobian of fun, as jax.jacfwd has it: all columns at once, mapped over the inputs.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> tj.jacfwd(lambda x: x * x)(jnp.array([1.0, 2.0]))
    Array([[2., 0.],
           [0., 4.]], dtype=float32)
    """
    check_callable(fun)
    argnums = check_argnums(argnums)

    @named_after(fun, "jacfwd")
    def jacfwd_of(*args, **kwargs):
        chosen = Chosen(args, kwargs, argnums)
        for leaf in chosen.leaves:
            _check_forward_input(leaf, holomorphic)
        recording = record_call(fun, args, kwargs, chosen.inexact)
        out, aux = split_aux(recording.result, has_aux)
        roots, structure = flatten(out)
        kinds = [kind_of(leaf) for leaf in chosen.leaves]
        lanes, basis = standard_basis(kinds)
        columns = Linear(recording, roots).push_many(basis, lanes)
        # columns[i] has all inputs along its first axis: one block per input, shaped output + input.
        blocks = [
            chosen.rebuild(_cut(column, kind_of(root), kinds)) for column, root in zip(columns, roots, strict=True)
        ]
        jacobian = _tree.tree_unflatten(structure, blocks)
        return (jacobian, outward_tree(aux, recording, chosen.tensors)) if has_aux else jacobian

    return jacfwd_of


def _cut(column: Any, root: Any, kinds: Sequence[Any]) -> list[Any]:
    parts, start = [], 0
    n = len(root.shape)
    for kind in kinds:
        part = column[start : start + kind.size]
        if isinstance(part, (jax.Array,)) or is_tensor(part):
            part = part.transpose(*range(1, n + 1), 0) if n else part
        parts.append(part.reshape((*root.shape, *kind.shape)))
        start += kind.size
    return parts


def _check_forward_input(leaf: Any, holomorphic: bool) -> None:
    check_input("jacfwd", leaf, holomorphic, False)
    if not holomorphic and not jnp.issubdtype(kind_of(leaf).dtype, jnp.floating):
        raise DtypeError(
            f"jacfwd needs real-valued inputs, this is {kind_of(leaf).dtype}",
            at=user_line(),
            fix="for a holomorphic function pass holomorphic=True; otherwise use jvp",
        )


def hessian(
    fun: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """The matrix of second derivatives, as jax.hessian has it: jacfwd(jacrev(fun)).

    >>> import jax.numpy as jnp, tapejax as tj
    >>> tj.hessian(lambda x: (x**3).sum())(jnp.array([1.0, 2.0]))
    Array([[ 6.,  0.],
           [ 0., 12.]], dtype=float32)
    """
    return jacfwd(jacrev(fun, argnums, has_aux, holomorphic), argnums, has_aux, holomorphic)


def hvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """The Hessian of fun (a scalar function of one argument, any pytree) times a vector.

    One gradient, and one pass back over it: a Hessian is its own transpose. The Hessian is never made.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> tj.hvp(lambda x: (x**3).sum(), (jnp.array([1.0, 2.0]),), (jnp.array([1.0, 1.0]),))
    Array([ 6., 12.], dtype=float32)
    """
    (primal,), (tangent,) = primals, tangents
    _, pullback = vjp(grad(fun), primal)
    (product,) = pullback(tangent)
    return product
