"""Where values lie: the shardings that gradients are given, so that each lies where its own value does.

A program that computes gradients leaves it to the compiler where they end up, and that is often everywhere. So
it is told, by the shardings of the values from which it goes back. On one device there is nothing to tell.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax

from tapejax import compat

Shardings = tuple[Any, ...] | None


@functools.cache
def several_devices() -> bool:
    return jax.device_count() > 1


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


def pick(shardings: Shardings, places: Sequence[int]) -> Shardings:
    """Those at these places, or None at a place below 0; None if there is nothing to say."""
    if shardings is None:
        return None
    found = tuple([shardings[place] if place >= 0 else None for place in places])
    return found if any(found) else None
