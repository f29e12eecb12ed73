"""trace: from a Python function to its program, in a third of the time that jax.make_jaxpr takes.

make_jaxpr does what jit does: it names arguments and results for error messages, keeps what it found in
caches, and makes a jaxpr, of which we would make a program. Here the function is called with values that
write its equations straight into a program. What needs more than that (effects, references, a mesh) is left
to make_jaxpr, and so is what a traced value cannot do: jax's messages are the ones that people know. Whatever else
the function raises comes out: it is not called again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.extend import source_info_util

from tapejax.ground import compat
from tapejax.program import program
from tapejax.program.program import CALLS, CUSTOM, Growing, Program

_tree = jax.tree_util


class Unfit(Exception):
    """This is for make_jaxpr."""


_OF_JAX = (Unfit, jax.errors.JAXTypeError, jax.errors.JAXIndexError, jax.errors.UnexpectedTracerError)


class Value(jax.core.Tracer):
    """What a function is called with: a slot of the program that grows."""

    __slots__ = ("slot",)

    def __init__(self, trace: Writer, slot: int):
        super().__init__(trace, trace.growing.avals[slot])
        self.slot = slot

    @property
    def writer(self) -> Any:
        """Who writes the program."""
        return self._trace


class Writer(jax.core.Trace):
    """Writes each primitive that is bound into a program."""

    def __init__(self, growing: Growing) -> None:
        super().__init__()
        self.requires_low = False  # primitives stay as they are
        self.growing = growing

    def __getattr__(self, name: str) -> Any:
        if name.startswith("process_"):  # a kind of call that only make_jaxpr knows
            raise Unfit
        raise AttributeError(name)

    def new(self, aval: Any) -> Value:
        if type(aval) is not jax.core.ShapedArray or not compat.is_plain(aval):
            raise Unfit
        return Value(self, self.growing.slot_for(aval))

    def slot_of(self, value: Any) -> int:
        if type(value) is Value and value.writer is self:
            return value.slot
        return self.growing.constant(value, jax.typeof(value))

    def stage_value(self, value: Any) -> Value:
        return Value(self, self.slot_of(value))

    def process_primitive(self, primitive: Any, operands: Sequence[Any], params: dict[str, Any], /) -> Any:
        growing, slots = self.growing, [self.slot_of(operand) for operand in operands]
        avals = [growing.avals[slot] for slot in slots]
        out, effects = primitive.abstract_eval(*avals, **params)
        if effects:
            raise Unfit
        outs = out if primitive.multiple_results else [out]
        variables = [list(map(jex_core.Var, side)) for side in (avals, outs)]
        source = source_info_util.current()
        eqn = jex_core.new_jaxpr_eqn(*variables, primitive, params, jex_core.no_effects, source)
        made = [Value(self, slot) for slot in growing.add(eqn, slots)]
        return made if primitive.multiple_results else made[0]

    def process_call(self, primitive, function, operands, params, /) -> Any:
        raise Unfit

    def process_custom_jvp_call(self, primitive, function, jvp, operands, /, **params) -> list[Value]:
        return self.by_jax(primitive, operands, subfuns=(function, jvp), **params)

    def process_custom_vjp_call(self, primitive, function, forward, backward, operands, /, **params) -> list[Value]:
        return self.by_jax(primitive, operands, subfuns=(function, forward, backward), **params)

    def by_jax(self, primitive: Any, operands: Sequence[Any], **params: Any) -> list[Value]:
        """A call of a function with a custom rule: only jax can make its equation."""
        slots = [self.slot_of(operand) for operand in operands]
        call = jax.make_jaxpr(lambda *values: primitive.bind(*values, **params))
        inner, consts = compat.jaxpr_parts(call(*[self.growing.avals[slot] for slot in slots]))
        if inner.effects:
            raise Unfit
        here = (source_info_util.current(),)  # the equation's own ends at this file
        return [Value(self, slot) for slot in self.growing.walk(inner, consts, slots, here)]


compat.STAGED.add(Value)


def trace(
    f: Callable[..., Any], args: Sequence[Any], *, ignore_custom_rules: bool = False, growing: Growing | None = None
) -> tuple[Program, Any]:
    """The program of f at arguments like these, and the pytree structure of what f returns.

    ignore_custom_rules: open custom_jvp and custom_vjp too, so that the primal code is what counts.
    growing: what the program is written into, if something is to be noted on the way.
    """
    try:
        return _written(f, args, growing or Growing(CALLS | CUSTOM if ignore_custom_rules else CALLS))
    except _OF_JAX:
        pass
    # Not within the handler: what jax raises here is not to be shown as raised while handling another error.
    return program.trace(f, args, ignore_custom_rules=ignore_custom_rules)


def _written(f: Callable[..., Any], args: Sequence[Any], growing: Growing) -> tuple[Program, Any]:
    if not jax.sharding.get_abstract_mesh().empty:
        raise Unfit
    writer = Writer(growing)
    leaves, structure = _tree.tree_flatten(args)
    inputs = [writer.new(leaf if isinstance(leaf, jax.core.ShapedArray) else jax.typeof(leaf)) for leaf in leaves]
    try:
        with jex_core.set_current_trace(writer), compat.no_names_yet():
            results, structure = _tree.tree_flatten(f(*_tree.tree_unflatten(structure, inputs)))
    finally:
        writer.invalidate()  # a value that is used later is an error
    if not all([isinstance(result, jax.Array) for result in results]):
        raise Unfit
    found = growing.program([value.slot for value in inputs], [writer.slot_of(result) for result in results])
    if any([type(value) is Value and value.writer is writer for value in found.constants.values()]):
        raise Unfit  # a custom rule closes over it
    return found, structure
