"""Loops: `scan` goes back as a scan in the other direction; `while` has no known length to go back."""

from __future__ import annotations

from jax.extend.core import primitives as p

from tapejax.errors import UnknownLengthError
from tapejax.ground import compat
from tapejax.rules.registry import RuleCall, structural
from tapejax.rules.scanning import BackScan, Scan


def active_in_body(loop: Scan, active_in, tools) -> tuple[list[bool], tuple[bool, ...]]:
    """Which inputs and outputs of the body are active: a carry may become so in the loop."""
    wrt = list(active_in)
    while True:
        out = tools.active(loop.body, wrt)
        consts, carry, xs = loop.split_in(wrt)
        grown = [*consts, *(a or b for a, b in zip(carry, out[: loop.n_carry], strict=True)), *xs]
        if grown == wrt:
            return wrt, out
        wrt = grown


def scan_flow(eqn, active_in, tools):
    loop = Scan.of(eqn, tools)
    wrt, out = active_in_body(loop, active_in, tools)
    return [*loop.split_in(wrt)[1], *loop.split_out(out)[1]]


def wanted_in_body(loop: Scan, wrt, wanted, tools) -> list[bool]:
    """For which outputs of the body a cotangent may arrive at some step."""
    carry, ys = loop.split_out(wanted or [True] * len(loop.body.outputs))
    while True:
        reached = loop.split_in(tools.reached(loop.body, wrt, [*carry, *ys]))[1]
        grown = [a or b for a, b in zip(carry, reached, strict=True)]
        if grown == carry:
            return [*carry, *ys]
        carry = grown


@structural(p.scan_p, flow=scan_flow)
def scan(eqn, in_avals, out_avals, active_in, tools):
    """carry, ys = scan(body, consts, carry, xs)"""
    loop = Scan.of(eqn, tools)
    wrt, _ = active_in_body(loop, active_in, tools)
    wanted = wanted_in_body(loop, wrt, tools.wanted, tools)
    ys = loop.split_out(loop.body.outputs)[1]
    back = tools.reverse(loop.body, wrt, wanted=wanted, references={*loop.body.inputs, *ys})
    both = BackScan(loop, back)
    # A loop that gives nothing more than its results stays as it is, unless opening it makes it shorter to compile.
    inner, _ = compat.jaxpr_parts(eqn.params["jaxpr"])
    plain = not (both.extra_avals or both.before or back.augmented) and len(inner.eqns) == len(loop.body.eqns)
    forward = None if plain else both.forward
    return RuleCall(both.saves_in, both.saves_out, both.backward, forward, both.extra_avals, back.foreign)


def while_body(eqn, tools) -> tuple[Scan, int]:
    """The body of a while as a scan's without xs and ys; the condition's own operands come before."""
    body = tools.flatten(eqn.params["body_jaxpr"])
    return Scan(body, eqn.params["body_nconsts"], len(body.outputs), 0, False, 1), eqn.params["cond_nconsts"]


def while_flow(eqn, active_in, tools):
    loop, skip = while_body(eqn, tools)
    wrt, _ = active_in_body(loop, active_in[skip:], tools)
    return loop.split_in(wrt)[1]


@structural(p.while_p, flow=while_flow)
def while_loop(eqn, in_avals, out_avals, active_in, tools):
    """carry = body(consts, carry) while cond(consts, carry)"""
    loop, skip = while_body(eqn, tools)
    wrt, _ = active_in_body(loop, active_in[skip:], tools)
    wanted = wanted_in_body(loop, wrt, tools.wanted, tools)
    active = loop.split_in(wrt)[1]
    carry = loop.split_in(loop.body.inputs)[1]
    passes = [before == after for before, after in zip(carry, loop.body.outputs, strict=True)]
    if any(a and w and not same for a, w, same in zip(active, wanted, passes, strict=True)):
        raise UnknownLengthError(
            "a while loop of unknown length cannot be differentiated in reverse under a trace",
            at=eqn.line,
            action=eqn,
            fix="use lax.scan, or lax.fori_loop with a static length; or run it eagerly on concrete values, "
            "where tapejax differentiates it step by step",
        )
    # What is left are carries that no step changes.
    return RuleCall((), (), lambda saved, cts: [None] * (skip + loop.n_consts) + list(cts))
