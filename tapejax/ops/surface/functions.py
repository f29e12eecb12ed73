"""Functions of functions: lax.scan, cond, while_loop, jnp.vectorize, ... take functions over Tensors.

The whole call is traced to one program and recorded as one action. Inside, the user's functions get
Tensors around jax's tracers and nothing is recorded. A recorded Tensor that such a function closes
over would be a constant to jax and lose its gradient: it is noticed when an op reads it, and the call
is traced again with that Tensor as an operand. So a call costs one or two traces, but it is compiled
only once: programs are found again by their structure, not by the identity of a Python function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core

from tapejax.calculus.reverse import Options
from tapejax.errors import ClosureError
from tapejax.ground import compat
from tapejax.ground.caches import table
from tapejax.ground.compat import X64
from tapejax.ground.where import user_line
from tapejax.ops.lift import Lifted, as_tensor, is_data, is_tensor
from tapejax.program.program import Eqn, Program, trace
from tapejax.tape.action import next_number
from tapejax.tape.scope import Scope, current_scope, restore, set_scope
from tapejax.tensor.tensor import Tensor, Tracer, make, refusal_of, with_id

_tree = jax.tree_util


def is_function(leaf: Any) -> bool:
    return callable(leaf) and not isinstance(leaf, type)


class Bindings:
    """The recorded Tensors that a body reads from outside: those found, and the values that stand for them."""

    __slots__ = ("closed", "found", "start", "values")

    def __init__(self, values: dict[int, Any] | None = None):
        self.found: dict[int, Tensor] = {}
        self.values = {} if values is None else values
        self.closed = values is not None  # every Tensor from outside should be known by now
        self.start = next_number()

    def resolve(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What an op reads: Tensors from outside with the values that stand for them here."""
        return [self.resolve_one(t) if t.kind.requires_grad and t.number < self.start else t for t in tensors]

    def resolve_one(self, tensor: Tensor) -> Tensor:
        number = tensor.number
        if number in self.values:
            return with_id(self.values[number], tensor.id, tensor.kind)
        if self.closed:
            raise ClosureError(
                "a function given to a function of functions read another recorded Tensor the second time it was traced",
                at=user_line(),
                action=f"{tensor.id!r}: {tensor.aval.str_short()}",
                fix="pass the Tensor as an operand (for scan: in the carry), or make the function read the same ones every time",
            )
        self.found[number] = tensor
        return tensor


class Body:
    """A user's function over Tensors as a function over jax values."""

    def __init__(self, function: Callable[..., Any], bindings: Bindings, tensors: bool):
        self.function, self.bindings, self.tensors = function, bindings, tensors
        self.__name__ = getattr(function, "__name__", "function")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outer = current_scope()
        set_scope(Scope(outer.tape, False, (outer.thread, outer.task), self.bindings))
        try:
            if self.tensors:
                args, kwargs = wrapped((args, kwargs))
            return self.unwrapped(self.function(*args, **kwargs))
        except Exception as error:  # here, before jax shortens the traceback
            refusal = refusal_of(error)
            if refusal is None or refusal is error:
                raise
            raise refusal from error
        finally:
            restore(outer)

    def unwrapped(self, tree: Any) -> Any:
        def plain(leaf):
            if is_tensor(leaf):
                (leaf,) = self.bindings.resolve([leaf])
                return leaf.value
            return leaf

        return _tree.tree_map(plain, tree, is_leaf=is_tensor)


def wrapped(tree: Any) -> Any:
    """Floats as Tensors, and jax's own functions (those that custom_root and the like hand out) over Tensors.

    Integers, booleans and random keys have no gradient and stay jax values: they can index jax arrays too.
    """

    def over_tensors(leaf):
        if isinstance(leaf, (jax.Array, np.ndarray)):
            return make(leaf, False) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf
        if is_function(leaf):
            plain = lambda tree: _tree.tree_map(lambda t: t.value if is_tensor(t) else t, tree, is_leaf=is_tensor)
            return lambda *args, **kwargs: wrapped(leaf(*plain(args), **plain(kwargs)))
        return leaf

    return _tree.tree_map(over_tensors, tree, is_leaf=lambda leaf: isinstance(leaf, (Tensor, _tree.Partial)))


def is_jax(function: Any) -> bool:
    return (getattr(function, "__module__", None) or "").split(".")[0] in ("jax", "jaxlib", "numpy")


def call(op: Any, args: Any, kwargs: dict[str, Any], scope: Any) -> Any:
    """Call op.function, a jax function that takes functions."""
    leaves, structure = _tree.tree_flatten((args, kwargs), is_leaf=is_tensor)
    # jax knows some functions by identity (lax.add in lax.reduce), so its own go in as they are.
    leaves = [leaf.function if isinstance(leaf, Lifted) else leaf for leaf in leaves]
    bodies = [i for i, leaf in enumerate(leaves) if is_function(leaf) and not is_jax(leaf)]
    places = [
        i
        for i, (leaf, static) in enumerate(zip(leaves, op.static_leaves(args, kwargs), strict=True))
        if is_tensor(leaf) or (is_data(leaf) and not static)
    ]
    over_tensors = any(map(is_tensor, leaves))

    def whole(bindings: Bindings, values: Sequence[Any]) -> Any:
        filled = list(leaves)
        for i in bodies:
            filled[i] = Body(leaves[i], bindings, over_tensors)
        for i, value in zip(places, values, strict=True):
            filled[i] = value
        full_args, full_kwargs = _tree.tree_unflatten(structure, filled)
        return op.function(*full_args, **full_kwargs)

    if not over_tensors:
        # Plain values: jax's own call, unless a function closes over a recorded Tensor.
        values = [leaves[i] for i in places]
        try:
            found = bool(bodies) and reads_recorded(whole, values)
        except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):  # not traceable: jax gets the values
            return whole(Bindings({}), values)
        if not found:
            args, kwargs = _tree.tree_unflatten(structure, leaves)
            return op.function(*args, **kwargs)
        over_tensors = True
    operands = [leaves[i] if is_tensor(leaves[i]) else as_tensor(leaves[i]) for i in places]
    return record_function(op.name, whole, operands)


def reads_recorded(whole: Callable[..., Any], values: Sequence[Any]) -> bool:
    """Whether a function given as an argument reads a recorded Tensor from outside."""
    bindings = Bindings()
    jax.eval_shape(lambda *values: whole(bindings, values), *values)
    return bool(bindings.found)


def record_function(name: str, whole: Callable[..., Any], operands: list[Tensor]) -> Any:
    """Trace the call to a program and run that as one op on its operands and the Tensors it closes over."""
    values = [tensor.value for tensor in operands]
    bindings = Bindings()
    program, structure = trace(lambda *values: whole(bindings, values), values)
    if bindings.found:
        captured, numbers, n = list(bindings.found.values()), list(bindings.found), len(operands)

        def explicit(*values):
            return whole(Bindings(dict(zip(numbers, values[n:], strict=True))), values[:n])

        operands = [*operands, *captured]
        program, structure = trace(explicit, [*values, *(tensor.value for tensor in captured)])
    arrays = [slot for slot, value in program.constants.items() if isinstance(value, (jax.Array, np.ndarray))]
    operands = operands + [as_tensor(program.constants[slot]) for slot in arrays]
    rest = {slot: value for slot, value in program.constants.items() if slot not in set(arrays)}
    program = Program(program.avals, [*program.inputs, *arrays], rest, program.eqns, program.outputs)
    op = known(name, program, structure)
    results = op(*operands) if operands else op.function()
    return _tree.tree_unflatten(structure, results)


# --- programs are found again by their structure ------------------------------------------------------

MAX_PROGRAMS = 1024
_known = table("functions of functions", MAX_PROGRAMS)


def known(name: str, program: Program, structure: Any) -> Lifted:
    """The op that runs this program: an old one if there is one of the same structure."""
    sketch = (name, structure, X64.value, len(program.eqns), program.in_avals, program.out_avals)
    candidates = _known.keep(sketch, [])
    for old, op in candidates:
        if same_program(old, program):
            _known.move_to_end(sketch)
            return op
    op = Lifted(program.run, name, set(), set(), Options())
    candidates.append((program, op))
    del candidates[:-16]
    return op


def same_program(a: Program, b: Program) -> bool:
    return (
        a.inputs == b.inputs
        and a.outputs == b.outputs
        and a.constants.keys() == b.constants.keys()
        and all(map(same_eqn, a.eqns, b.eqns))
        and all(same(value, b.constants[slot]) for slot, value in a.constants.items())
    )


def same_eqn(a: Eqn, b: Eqn) -> bool:
    return (
        a.primitive is b.primitive
        and a.inputs == b.inputs
        and a.outputs == b.outputs
        and a.params.keys() == b.params.keys()
        and all(same(value, b.params[name]) for name, value in a.params.items())
    )


def same(a: Any, b: Any) -> bool:
    """Whether two parameters are alike; when in doubt, not."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (jex_core.Jaxpr, jex_core.ClosedJaxpr)):
        return same_jaxpr(a, b)
    if isinstance(a, Tracer) or isinstance(b, Tracer):
        return False
    if isinstance(a, (np.ndarray, np.generic, jax.Array)):
        return a.dtype == b.dtype and a.shape == b.shape and np.asarray(a).tobytes() == np.asarray(b).tobytes()
    try:
        return bool(a == b)
    except Exception:
        return False


def same_jaxpr(a: Any, b: Any) -> bool:
    (a, a_consts), (b, b_consts) = compat.jaxpr_parts(a), compat.jaxpr_parts(b)
    if len(a.eqns) != len(b.eqns) or len(a_consts) != len(b_consts) or not all(map(same, a_consts, b_consts)):
        return False
    names: dict[Any, Any] = {}

    def bind(xs, ys) -> bool:
        names.update(zip(xs, ys))
        return len(xs) == len(ys) and all(x.aval == y.aval for x, y in zip(xs, ys))

    def read(xs, ys) -> bool:
        literal = lambda atom: isinstance(atom, jex_core.Literal)
        return len(xs) == len(ys) and all(
            literal(y) and same(x.val, y.val) and x.aval == y.aval if literal(x) else names.get(x) is y
            for x, y in zip(xs, ys)
        )

    if not (bind(a.invars, b.invars) and bind(a.constvars, b.constvars)):
        return False
    for x, y in zip(a.eqns, b.eqns):
        alike = (
            x.primitive is y.primitive
            and x.params.keys() == y.params.keys()
            and read(x.invars, y.invars)
            and all(same(value, y.params[name]) for name, value in x.params.items())
            and bind(x.outvars, y.outvars)
        )
        if not alike:
            return False
    return read(a.outvars, b.outvars)
