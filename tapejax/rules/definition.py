"""Rules of primitives that are differentiated through their definition in other primitives."""

import jax
from jax import lax
from jax.extend import core as jex_core

from tapejax.errors import RefusedPrimitive
from tapejax.ground import compat
from tapejax.program.tracing import trace
from tapejax.rules.registry import RuleCall


def by_definition(function, in_avals, active_in, tools) -> RuleCall:
    """The Step of a primitive whose results `function` computes from the same operands.

    The forward stays the primitive's own; the backward runs the function again, so only operands are kept.
    """
    definition, _ = trace(function, in_avals)
    reversed_ = tools.reverse(definition, active_in)

    def backward(saved, cts):
        outputs, extras = reversed_.forward(*saved)
        kept = [saved[i] for i in reversed_.saves_in] + [outputs[i] for i in reversed_.saves_out] + extras
        return reversed_.backward(kept, cts)

    return RuleCall(tuple(range(len(in_avals))), (), backward, foreign=reversed_.foreign)


def on_arrays(jaxpr, consts, ndim):
    """A jaxpr over scalars as a function that maps it over arrays of ndim axes."""
    open_jaxpr, own = compat.jaxpr_parts(jaxpr)
    function = jex_core.jaxpr_as_fun(jex_core.ClosedJaxpr(open_jaxpr, [*own, *consts]))
    for _ in range(ndim):
        function = jax.vmap(function)
    return function


def copies(initial, like):
    """A reduction's initial value in the shape, and over the devices, of an array."""
    return compat.as_typed(lax.broadcast(initial, like.shape), like)


def refuse_initial_values(eqn, active) -> None:
    """Raise if a reduction's initial values need a gradient."""
    if any(active):
        raise RefusedPrimitive(
            f"the initial value of `{eqn.name}` cannot be differentiated: XLA may use it any number of times",
            at=eqn.line,
            action=eqn,
            fix="start from the neutral element, and combine the result with your value afterwards",
        )
