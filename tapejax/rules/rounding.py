"""Steps that are not quite constant: the sign of a complex number turns with it."""

from jax import lax
from jax.extend.core import primitives as p

from tapejax.rules.registry import RuleCall, rule, structural


def turns(eqn, active_in, tools):
    """Real signs are steps: nothing flows. Complex ones turn."""
    return [eqn.origin.outvars[0].aval.dtype.kind == "c"]


@structural(p.sign_p, cheap=True, flow=turns)
def sign(eqn, in_avals, out_avals, active_in, tools):
    """out = x / |x|"""

    def backward(saved, cts):
        x, out = saved
        # Only the part of a change that turns x changes its sign. Zero has no direction: zero, as jax has it.
        turn = lax.imag(cts[0] * out) / lax.select(x == 0, lax.full_like(lax.real(x), 1), lax.abs(x))
        return (lax.complex(lax.full_like(turn, 0), turn) * lax.conj(out),)

    return RuleCall((0,), (0,), backward)


@rule(p.nextafter_p, cheap=True)
def nextafter(ct, out, x, y):
    """out = the number next to x in the direction of y"""
    return ct, None
