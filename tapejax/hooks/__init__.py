"""Hooks: functions of yours that are called on the way forward and back. See docs/hooks.md."""

from tapejax.hooks.calls import Call, Kept, kept_by, watch
from tapejax.hooks.points import EVERYTHING, after, after_accumulation, before, forward, on_gradient
from tapejax.hooks.regions import region, regions_of
from tapejax.hooks.registry import Hook

__all__ = [
    "EVERYTHING",
    "Call",
    "Hook",
    "Kept",
    "after",
    "after_accumulation",
    "before",
    "forward",
    "kept_by",
    "on_gradient",
    "region",
    "regions_of",
    "watch",
]
