"""Branches, recomputation, and calls that are only labels around a program."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax.extend.core import primitives as p

from tapejax.errors import ArgumentError
from tapejax.ground import compat
from tapejax.program.program import run_eqns
from tapejax.rules.registry import RuleCall, constant, refused, structural, zeros_like


def cond_flow(eqn, active_in, tools):
    found = [tools.active(tools.flatten(branch), active_in[1:]) for branch in eqn.params["branches"]]
    return [any(flags) for flags in zip(*found, strict=True)]


def choose(platforms, index, branches, operands):
    """lax.switch; or, for branches that belong to platforms, lax.platform_dependent."""
    if platforms is None:
        return lax.switch(index, branches, *operands)
    default = None
    named = {}
    for names, branch in zip(platforms, branches, strict=True):
        if names is None:
            default = branch
        else:
            named.update(dict.fromkeys(names, branch))
    return lax.platform_dependent(*operands, default=default, **named)


@structural(p.cond_p, flow=cond_flow)
def cond(eqn, in_avals, out_avals, active_in, tools):
    """results = branches[index](operands)"""
    platforms = eqn.params.get("branches_platforms")
    branches = [tools.flatten(branch) for branch in eqn.params["branches"]]
    backs = [tools.reverse(branch, active_in[1:], wanted=tools.wanted or None) for branch in branches]
    saves_in = (0, *sorted({i + 1 for back in backs for i in back.saves_in}))
    saves_out = tuple(sorted({i for back in backs for i in back.saves_out}))
    pool, places = pooled([back.extra_avals for back in backs])

    def forward(operands):
        def branch(back, where):
            def run(*values):
                results, extras = back.forward(*values)
                mine = dict(zip(where, extras, strict=True))
                return results, [
                    mine[i] if i in mine else compat.as_typed(zeros_like(aval), aval) for i, aval in enumerate(pool)
                ]

            return run

        chosen = [branch(*pair) for pair in zip(backs, places, strict=True)]
        return choose(platforms, operands[0], chosen, operands[1:])

    def backward(saved, cts):
        n_in, n_out = len(saves_in), len(saves_out)
        operands = dict(zip(saves_in, saved[:n_in], strict=True))
        results = dict(zip(saves_out, saved[n_in : n_in + n_out], strict=True))
        extras = saved[n_in + n_out :]

        def pull(back, where):
            kept = [operands[i + 1] for i in back.saves_in] + [results[i] for i in back.saves_out]
            return back.backward([*kept, *(extras[i] for i in where)], cts)

        # An operand has a cotangent if it has one in some branch; the others give zeros.
        pulls = [lambda pair=pair: pull(*pair) for pair in zip(backs, places, strict=True)]
        found = [jax.eval_shape(branch) for branch in pulls]
        avals = [next((ct for ct in each if ct is not None), None) for each in zip(*found, strict=True)]

        def filled(branch):
            each = [zeros_like(aval) if ct is None else ct for ct, aval in zip(branch(), avals) if aval is not None]
            return each

        in_cts = iter(choose(platforms, operands[0], [lambda b=b: filled(b) for b in pulls], ()))
        return [None, *(None if aval is None else next(in_cts) for aval in avals)]

    foreign = tuple(name for back in backs for name in back.foreign)
    return RuleCall(saves_in, saves_out, backward, forward, pool, foreign)


def pooled(groups) -> tuple[tuple[Any, ...], list[list[int]]]:
    """One list of avals that has room for each group in turn, and the places of each group in it."""
    pool: list[Any] = []
    places = []
    for group in groups:
        taken: list[int] = []
        for aval in group:
            key = (aval.shape, aval.dtype)
            free = (i for i, other in enumerate(pool) if i not in taken and (other.shape, other.dtype) == key)
            place = next(free, len(pool))
            if place == len(pool):
                pool.append(aval)
            taken.append(place)
        places.append(taken)
    return tuple(pool), places


@structural(p.remat_p)
def remat(eqn, in_avals, out_avals, active_in, tools):
    """results = f(operands), where f runs again in the backward instead of keeping its values"""
    body = tools.flatten(eqn.params["jaxpr"])
    back = tools.reverse(body, active_in, wanted=tools.wanted or None)
    targets = set(back.kept_slots)
    at_hand, offloaded = saveable(body, eqn.params["policy"])
    again = back.leading_to(targets, at_hand)
    read = (targets | {slot for eqn in again for slot in eqn.inputs}) - set(body.constants)
    saves_in = tuple(i for i, slot in enumerate(body.inputs) if slot in read)
    results = {slot: i for i, slot in enumerate(body.outputs) if slot not in body.inputs}
    saved_slots = sorted(at_hand & read - set(body.inputs))
    saves_out = tuple(results[slot] for slot in saved_slots if slot in results and slot not in offloaded)
    extras = [slot for slot in saved_slots if slot not in results or slot in offloaded]
    slots = [*(body.inputs[i] for i in saves_in), *(body.outputs[i] for i in saves_out), *extras]

    def forward(operands):
        env = body.constants | dict(zip(body.inputs, operands, strict=True))
        run_eqns(body.eqns, env)
        return [env[slot] for slot in body.outputs], [put(env[slot], slot, HOST) for slot in extras]

    def put(value, slot, memory):
        return jax.device_put(value, memory) if slot in offloaded else value

    def backward(saved, cts):
        saved = [put(value, slot, DEVICE) for value, slot in zip(saved, slots, strict=True)]
        if eqn.params["prevent_cse"]:
            # Or XLA would see that the forward has it all already, and keep it.
            saved, cts = lax.optimization_barrier((list(saved), list(cts)))
        env = body.constants | dict(zip(slots, saved, strict=True))
        back.run(again, env)
        return back.backward([env[slot] for slot in back.kept_slots], cts)

    aval_of = lambda slot: body.avals[slot].update(memory_space=HOST) if slot in offloaded else body.avals[slot]
    return RuleCall(saves_in, saves_out, backward, forward, tuple(map(aval_of, extras)), back.foreign)


DEVICE, HOST = jax.memory.Space.Device, jax.memory.Space.Host


def saveable(body, policy) -> tuple[set[int], set[int]]:
    """The slots that a checkpoint policy allows to be kept, and those among them that are kept in host memory."""
    slots: set[int] = set()
    offloaded: set[int] = set()
    for eqn in body.eqns if policy is not None else ():
        answer = policy(eqn.primitive, *(body.avals[slot] for slot in eqn.inputs), **eqn.params)
        where = compat.offloads_to(answer)
        if where is not None and where != ("device", "pinned_host"):
            raise ArgumentError(
                f"a checkpoint policy offloads from {where[0]!r} to {where[1]!r}",
                at=eqn.line,
                fix='offload_src="device", offload_dst="pinned_host"',
            )
        if where is not None or compat.is_saveable(answer):
            slots.update(eqn.outputs)
        if where is not None:
            offloaded.update(eqn.outputs)
    return slots, offloaded


def inlined(jaxpr, active_in, tools) -> RuleCall:
    """The Step of a call whose derivative is that of the program inside."""
    body = tools.flatten(jaxpr)
    back = tools.reverse(body, active_in, wanted=tools.wanted or None)
    forward = lambda operands: back.forward(*operands)
    return RuleCall(back.saves_in, back.saves_out, back.backward, forward, back.extra_avals, back.foreign)


@structural("composite")
def composite(eqn, in_avals, out_avals, active_in, tools):
    """results = f(operands), where a compiler may know a better f by its name"""
    return inlined(compat.composite_jaxpr(eqn.params), active_in, tools)


@structural("custom_vmap_call")
def custom_vmap_call(eqn, in_avals, out_avals, active_in, tools):
    """results = f(operands), where the user wrote how f is mapped over a batch"""
    return inlined(eqn.params["call"], active_in, tools)


constant(["platform_index"], "the platform that runs the program")
constant(["debug_callback", "debug_print", "inspect_sharding"], "only looks at its operands", cheap=False)
refused(
    ["pure_callback", "io_callback"],
    "it calls Python code that has no derivative here",
    fix="wrap the call in jax.custom_vjp, with a backward that you write",
)
refused(
    ["custom_lin"],
    "it stands for a custom_vjp inside jax's own linearisation",
    fix="differentiate the function itself, not jax.linearize of it",
)
