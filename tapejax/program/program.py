"""A jaxpr as a flat list of steps over numbered slots.

jaxprs nest (`jit`, `closed_call`) and share inner objects, so the same variable can stand for
several values. Here calls are opened, every value has a slot of its own, literals are constants,
and what nobody reads is gone. Everything after this works on small integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend import core as jex_core

from tapejax.ground import compat
from tapejax.program import discharge


class Eqn:
    """One primitive applied to slots."""

    __slots__ = ("_source", "has_context", "inputs", "located", "origin", "outputs", "params", "primitive", "sources")

    def __init__(self, primitive, params, inputs, outputs, sources, origin):
        self.primitive = primitive
        self.params = params
        self.inputs: tuple[int, ...] = inputs
        self.outputs: tuple[int, ...] = outputs
        self.sources = sources  # its own, then those of the calls it was opened from, inside out
        self.origin = origin  # jax's own equation; needed to reach custom rules
        self.has_context = compat.has_context(origin)
        self._source: Any = None
        self.located = True  # whether its own line is the one to show, and not that of the call

    @property
    def name(self) -> str:
        return self.primitive.name

    @property
    def line(self) -> str:
        """`file:line` of the user's code; inside jax's own jitted functions, of the call to them."""
        return next(filter(None, map(compat.source_line, self.sources)), "")

    @property
    def has_effects(self) -> bool:
        return bool(self.origin.effects)

    @property
    def is_structural(self) -> bool:
        """Whether there is more to it than its primitive and parameters: programs inside, effects, a mesh."""
        return self.has_effects or compat.has_subjaxprs(self.params) or self.has_context

    @property
    def context(self) -> AbstractContextManager[Any]:
        """The mesh and the place to compute on that were set where the equation was traced."""
        return compat.equation_context(self.origin) if self.has_context else compat.NO_CONTEXT

    @property
    def made_here(self) -> AbstractContextManager[Any]:
        """What is traced inside has its line and its names."""
        if not self.located:
            return compat.NO_CONTEXT
        if self._source is None:
            self._source = compat.source_of(self.sources)
        return compat.made_at(self._source)

    def bind(self, values: Sequence[Any]) -> list[Any]:
        """Run the primitive on values; always a list of results."""
        with self.made_here, self.context:
            return compat.bind(self.primitive, self.params, values)

    def __repr__(self) -> str:
        show = lambda slots: " ".join(f"%{slot}" for slot in slots)
        return f"{show(self.outputs)} = {self.name} {show(self.inputs)}"


class Program:
    """Slots with their avals; which are inputs, constants, outputs; the equations in order.

    Slots are 0..n-1 in a program that comes from a jaxpr. The equations of a fused block are calls of plans: see
    fusion/layout.py.
    """

    __slots__ = ("avals", "constants", "eqns", "inputs", "outputs")

    def __init__(self, avals, inputs, constants, eqns, outputs):
        self.avals: Any = avals
        self.inputs: Sequence[int] = inputs
        self.constants: dict[int, Any] = constants
        self.eqns: list[Any] = eqns
        self.outputs: Sequence[int] = outputs

    @property
    def in_avals(self) -> tuple[Any, ...]:
        return tuple(self.avals[slot] for slot in self.inputs)

    @property
    def out_avals(self) -> tuple[Any, ...]:
        return tuple(self.avals[slot] for slot in self.outputs)

    def run(self, *args: Any) -> list[Any]:
        env = self.environment(args)
        return [env[slot] for slot in self.outputs]

    def environment(self, args: Sequence[Any]) -> dict[int, Any]:
        """Every value that there is after it ran, by slot."""
        env = dict(self.constants)
        env.update(zip(self.inputs, args, strict=True))
        run_eqns(self.eqns, env)
        return env

    def __repr__(self) -> str:
        head = f"program({', '.join(f'%{s}:{self.avals[s].str_short()}' for s in self.inputs)})"
        body = [f"  {eqn!r}" for eqn in self.eqns]
        return "\n".join([head, *body, f"  return {' '.join(f'%{s}' for s in self.outputs)}"])


def run_eqns(eqns: Iterable[Any], env: dict[int, Any]) -> None:
    for eqn in eqns:
        env.update(zip(eqn.outputs, eqn.bind([env[slot] for slot in eqn.inputs]), strict=True))


# Primitives that only call a jaxpr: opened while flattening. Value: the parameter with the jaxpr.
CALLS = {"jit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "call": "call_jaxpr",
         "eval_jaxpr": "jaxpr", "core_closed_call": "call_jaxpr"}  # fmt: skip
FOLDED = (lax.convert_element_type_p, lax.broadcast_in_dim_p)  # nothing to do where nothing changes
CUSTOM = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}


def trace(f: Callable[..., Any], args: Sequence[Any], **options: Any) -> tuple[Program, Any]:
    """The program of f at arguments like these, and the pytree structure of what f returns."""
    jaxpr, out_shape = jax.make_jaxpr(f, return_shape=True)(*args)
    return flatten(jaxpr, **options), jax.tree_util.tree_structure(out_shape)


def flatten(jaxpr: Any, *, ignore_custom_rules: bool = False, opens: dict[str, str] = CALLS) -> Program:
    """The flat program of a closed jaxpr.

    ignore_custom_rules: open custom_jvp and custom_vjp too, so that the primal code is what counts.
    """
    if discharge.has_references(jaxpr):
        jaxpr = discharge.pure(jaxpr)
    growing = Growing(opens | CUSTOM if ignore_custom_rules else opens)
    inner, consts = compat.jaxpr_parts(jaxpr)
    inputs = [growing.slot_for(var.aval) for var in inner.invars]
    return growing.program(inputs, growing.walk(inner, consts, inputs))


class Growing:
    """A program to which equations are added, calls opened.

    opens: the primitives to open. Value: the parameter with the jaxpr.
    """

    def __init__(self, opens: dict[str, str] = CALLS):
        self.opens = opens
        self.avals: list[Any] = []
        self.constants: dict[int, Any] = {}
        self.eqns: list[Eqn] = []

    def slot_for(self, aval: Any) -> int:
        self.avals.append(aval)
        return len(self.avals) - 1

    def constant(self, value: Any, aval: Any) -> int:
        slot = self.slot_for(aval)
        # Of jax's literals only a bool has no dtype, which rules read.
        self.constants[slot] = np.bool_(value) if type(value) is bool else value
        return slot

    def add(self, eqn: Any, inputs: Sequence[int], calls: tuple[Any, ...] = ()) -> Sequence[int]:
        """Add an equation of jax's that reads these slots; the slots of its results."""
        sources, inner = (eqn.source_info, *calls), None
        if eqn.primitive.name in self.opens and compat.is_own(eqn.primitive):
            inner = eqn.params.get(self.opens[eqn.primitive.name])
            if inner is None:
                inner = eqn.params.get("call_jaxpr")  # eval_jaxpr in 0.12
        if inner is not None:
            return self.walk(*compat.jaxpr_parts(inner), inputs, sources)
        if eqn.primitive in FOLDED:  # which jax sees to only where it makes the jaxpr
            aval = eqn.outvars[0].aval
            if self.avals[inputs[0]] == aval:
                return inputs
            number = as_number(self.constants.get(inputs[0]), aval)
            if number is not None:
                return [self.constant(number, aval)]
        outputs = tuple(self.slot_for(var.aval) for var in eqn.outvars)
        self.eqns.append(Eqn(eqn.primitive, eqn.params, tuple(inputs), outputs, sources, eqn))
        return outputs

    def walk(
        self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[int], calls: tuple[Any, ...] = ()
    ) -> list[int]:
        """Add the equations of an open jaxpr; the slots of its results."""
        scope: dict[Any, int] = dict(zip(jaxpr.invars, arguments, strict=True))
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            scope[var] = self.constant(value, var.aval)

        def read(atom) -> int:
            if isinstance(atom, jex_core.Literal):
                return self.constant(atom.val, atom.aval)
            return scope[atom]

        for eqn in jaxpr.eqns:
            scope.update(zip(eqn.outvars, self.add(eqn, [read(atom) for atom in eqn.invars], calls), strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def program(self, inputs: list[int], outputs: list[int]) -> Program:
        eqns = live(self.eqns, outputs)
        used = {slot for eqn in eqns for slot in eqn.inputs} | set(outputs)
        constants = {slot: value for slot, value in self.constants.items() if slot in used}
        return Program(self.avals, inputs, constants, eqns, outputs)


def as_number(value: Any, aval: Any) -> Any:
    """A number as one of another dtype; None if it is none."""
    if value is None or isinstance(value, jax.Array) or np.shape(value) or aval.shape:
        return None
    number = np.asarray(value)
    if number.dtype.kind == "c" and aval.dtype.kind != "c":
        number = number.real
    with np.errstate(over="ignore"):  # 1e9 in float16 is infinite, there as here
        number = number.astype(aval.dtype)
    number = number.item() if aval.weak_type else number
    return number if jax.typeof(number) == aval else None


def bytes_of_all(avals: Iterable[Any]) -> int:
    """What values of these kinds take together."""
    return sum([aval.size * getattr(aval.dtype, "itemsize", 8) for aval in avals])


def live(eqns: Sequence[Any], outputs: Iterable[int]) -> list[Any]:
    """The eqns that outputs depend on, and those with effects, in order."""
    wanted = set(outputs)
    kept = []
    for eqn in reversed(eqns):
        if eqn.has_effects or not wanted.isdisjoint(eqn.outputs):
            wanted.update(eqn.inputs)
            kept.append(eqn)
    kept.reverse()
    return kept
