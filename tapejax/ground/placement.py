"""Where values lie: the shardings that gradients are given, so that each lies where its own value does.

A program that computes gradients leaves it to the compiler where they end up, and that is often everywhere. So
it is told, by the shardings of the values from which it goes back. On one device there is nothing to tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tapejax.ground import compat
from tapejax.ground.caches import cached

Shardings = tuple[Any, ...] | None


@cached(1)
def several_devices() -> bool:
    return jax.device_count() > 1


@cached(1)
def bounds_programs_in_flight() -> bool:
    """Whether too many programs at once may block each other: XLA's collectives between the devices of one processor do.

    Measured with plain jax, 8 virtual CPU devices and one thread: of 3,000 programs with an all-reduce that nobody waits
    for, one is stuck for ever, with 7 of 8 devices there. With a wait after every 16 none is.
    """
    return several_devices() and jax.default_backend() == "cpu"


def shardings_of(values: Sequence[Any]) -> Shardings:
    """For each value its sharding, or None where there is nothing to say; None if that is so for all.

    There is nothing to say of a value on one device, and of one whose type says how it is sharded already.
    """
    if not several_devices():
        return None
    found = tuple([_sharding(value) for value in values])
    return found if any(found) else None


def _sharding(value: Any) -> Any:
    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer) or not value.committed:
        return None
    if value.sharding.num_devices == 1 or compat.explicit_sharding(jax.typeof(value)) is not None:
        return None
    return value.sharding


def devices_of(value: Any) -> Any:
    """The devices to which a value is bound; None if it is bound to none, or is being traced."""
    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer) or not value.committed:
        return None
    return value.sharding.device_set


def are_apart(values: Sequence[Any]) -> bool:
    """Whether values are bound to different devices, so that no program takes them all."""
    if not several_devices():
        return False
    return len({frozenset(devices) for value in values if (devices := devices_of(value)) is not None}) > 1


def bytes_of(value: Any) -> int:
    """What an array takes in the memory of one device."""
    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
        return value.nbytes
    return math.prod(value.sharding.shard_shape(value.shape)) * value.dtype.itemsize


def is_gone(value: Any) -> bool:
    """Whether the buffer of an array was donated or deleted."""
    return isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer) and value.is_deleted()


def is_here(value: Any) -> bool:
    """Whether this process can read all of an array."""
    return not isinstance(value, jax.Array) or value.is_fully_addressable or value.is_fully_replicated


def local_part(value: Any) -> tuple[np.ndarray, str]:
    """An array as far as this process has it, and which part of it that is: empty for all of it.

    The part is the smallest block that holds all shards of this process, or the first of them if they fill no block.
    """
    if is_here(value):
        return np.asarray(value), ""
    shards = {tuple(_bounds(shard.index, value.shape)): shard.data for shard in value.addressable_shards}
    block = [(min(starts), max(stops)) for starts, stops in (zip(*axis) for axis in zip(*shards))]
    sizes = [stop - start for start, stop in block]
    if sum([part.size for part in shards.values()]) < np.prod(sizes):
        place, only = next(iter(shards.items()))
        block, shards, sizes = list(place), {place: only}, list(only.shape)
    found = np.empty(sizes, value.dtype)
    for place, part in shards.items():
        inside = [slice(start - first, stop - first) for (start, stop), (first, _) in zip(place, block)]
        found[tuple(inside)] = np.asarray(part)
    bounds = ", ".join([f"{start}:{stop}" for start, stop in block])
    return found, f"only [{bounds}] of {value.shape} is in this process"


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> list[tuple[int, int]]:
    return [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]


def pick(shardings: Shardings, places: Sequence[int]) -> Shardings:
    """Those at these places, or None at a place below 0; None if there is nothing to say."""
    if shardings is None:
        return None
    found = tuple([shardings[place] if place >= 0 else None for place in places])
    return found if any(found) else None
