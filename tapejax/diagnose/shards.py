"""shard_map as a program of one device: the devices' shards side by side along new leading axes, one per axis of the mesh.

What a device computes is then an op over all of them, and a collective is a sum or a permutation along such an axis. So the walk
goes through it like through any other program; the element that it names begins with the device's place in the mesh.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tapejax.ground import compat
from tapejax.program.program import Eqn, Program, flatten

SAME = ("pvary", "pcast", "pbroadcast")  # what changes only what jax knows of a value
TAG = "tapejax_eqn_"


def without_shard_maps(program: Program) -> Program:
    """The program with every shard_map opened, where that is possible."""
    if not any(eqn.name == "shard_map" for eqn in program.eqns):
        return program
    avals, constants, eqns = list(program.avals), dict(program.constants), []
    known_as: dict[int, int] = {}
    for eqn in program.eqns:
        inputs = tuple([known_as.get(slot, slot) for slot in eqn.inputs])
        opened = _opened(eqn, [avals[slot] for slot in inputs]) if eqn.name == "shard_map" else None
        if opened is None:
            eqns.append(Eqn(eqn.primitive, eqn.params, inputs, eqn.outputs, eqn.sources, eqn.origin))
            continue
        inside, sources = opened
        slots = dict(zip(inside.inputs, inputs, strict=True))
        for slot, aval in enumerate(inside.avals):
            if slot not in slots:
                slots[slot] = len(avals)
                avals.append(aval)
        constants.update({slots[slot]: value for slot, value in inside.constants.items()})
        for one in inside.eqns:
            read, made = ([slots[slot] for slot in some] for some in (one.inputs, one.outputs))
            lines = (*sources.get(_tag(one), one.sources), *eqn.sources)
            eqns.append(Eqn(one.primitive, one.params, tuple(read), tuple(made), lines, one.origin))
        known_as.update(zip(eqn.outputs, [slots[slot] for slot in inside.outputs], strict=True))
    return Program(avals, program.inputs, constants, eqns, [known_as.get(slot, slot) for slot in program.outputs])


def _opened(eqn: Eqn, avals: Sequence[Any]) -> tuple[Program, dict[str, Any]] | None:
    """What it does, and by tag the sources of its equations. None if it cannot be said without devices."""
    params = eqn.params
    mesh, body = params["mesh"], flatten(params["jaxpr"])
    axes = [name for name in mesh.axis_names if name in params["newly_manual_axes"]]
    sizes = [mesh.shape[name] for name in axes]
    run: Any = lambda *values: _run(body, values)
    for name in reversed(axes):
        run = jax.vmap(run, axis_name=name, axis_size=mesh.shape[name])

    def whole(*operands):
        parts = [_split(x, spec, axes, sizes) for x, spec in zip(operands, params["in_specs"], strict=True)]
        return [_join(y, spec, axes) for y, spec in zip(run(*parts), params["out_specs"], strict=True)]

    plain = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    try:
        program = flatten(jax.make_jaxpr(whole)(*plain))
    except (NotImplementedError, ValueError, TypeError, KeyError, NameError):  # a collective that vmap does not know
        return None
    return program, {f"{TAG}{number}": one.sources for number, one in enumerate(body.eqns)}


def _run(body: Program, values: Sequence[Any]) -> list[Any]:
    env = dict(body.constants)
    env.update(zip(body.inputs, values, strict=True))
    for number, eqn in enumerate(body.eqns):
        operands = [env[slot] for slot in eqn.inputs]
        with jax.named_scope(f"{TAG}{number}"):
            if eqn.name in SAME:
                results = operands
            elif eqn.name == "psum_invariant":
                results = [lax.psum(x, eqn.params["axes"]) for x in operands]
            else:
                results = compat.equation_as_function(eqn.origin)(*operands)
        env.update(zip(eqn.outputs, results, strict=True))
    return [env[slot] for slot in body.outputs]


def _tag(eqn: Eqn) -> str:
    stack = "/".join(str(getattr(source, "name_stack", "")) for source in eqn.sources)
    found = re.search(rf"{TAG}\d+", stack)
    return found.group() if found else ""


def _names(part: Any) -> tuple[str, ...]:
    return () if part is None else part if isinstance(part, tuple) else (part,)


def _split(x: Any, spec: Any, axes: Sequence[str], sizes: Sequence[int]) -> Any:
    """An operand as its shards: one leading axis per axis of the mesh."""
    by_name = dict(zip(axes, sizes, strict=True))
    shape: list[int] = []
    places: dict[str, int] = {}
    parts = [*spec, *[None] * (x.ndim - len(spec))]
    for size, part in zip(x.shape, parts, strict=True):
        for name in _names(part):
            places[name] = len(shape)
            shape.append(by_name[name])
            size //= by_name[name]
        shape.append(size)
    x = jnp.reshape(x, shape)
    sharded = [name for name in axes if name in places]
    x = jnp.moveaxis(x, [places[name] for name in sharded], range(len(sharded)))
    for position, name in enumerate(axes):  # on the others, each device has all of it
        if name not in places:
            x = jnp.broadcast_to(
                jnp.expand_dims(x, position), (*x.shape[:position], by_name[name], *x.shape[position:])
            )
    return x


def _join(y: Any, spec: Any, axes: Sequence[str]) -> Any:
    """A result from its shards."""
    named = [name for part in spec for name in _names(part)]
    kept = [name for name in axes if name in named]
    y = y[tuple([slice(None) if name in named else 0 for name in axes])]  # the same on all devices along the others
    local = y.ndim - len(kept)
    order: list[int] = []
    shape: list[int] = []
    for dimension, part in enumerate([*spec, *[None] * (local - len(spec))]):
        front = [kept.index(name) for name in _names(part)]
        order += [*front, len(kept) + dimension]
        size = y.shape[len(kept) + dimension]
        for place in front:
            size *= y.shape[place]
        shape.append(size)
    return jnp.reshape(jnp.transpose(y, order), shape)
