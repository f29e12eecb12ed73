"""The contestants: each says how it runs a workload, or why it does not take part."""

from __future__ import annotations

import importlib

from benchmarks.contestants.base import Contestant

# In the order of the tables: ours, jax, then the peers. A module is imported by who needs it: libraries
# of this size in one process get in each other's way.
PLACES = {
    "tapejax": "tape:Tapejax",
    "tapejax, no wrt": "tape:TapejaxDefault",
    "tapejax in jax.jit": "tape:TapejaxCompiled",
    "bare jitted calls": "jax_itself:BareJittedCalls",
    "jax.jit": "jax_itself:JaxCompiled",
    "jax.value_and_grad": "jax_itself:JaxEager",
    "torch": "pytorch:Torch",
    "torch.compile": "pytorch:TorchCompiled",
    "HIPS autograd": "numpy_tapes:Autograd",
    "MyGrad": "numpy_tapes:MyGrad",
    "TensorFlow GradientTape": "tensorflow_tape:TensorFlow",
    "tinygrad": "tiny:Tinygrad",
}
FAMILIES = {
    "jax": ["tapejax", "tapejax, no wrt", "tapejax in jax.jit", "bare jitted calls", "jax.jit", "jax.value_and_grad"],
    "torch": ["torch", "torch.compile"],
    "numpy": ["HIPS autograd", "MyGrad"],
    "tensorflow": ["TensorFlow GradientTape"],
    "tinygrad": ["tinygrad"],
}
FAMILY = {name: family for family, names in FAMILIES.items() for name in names}


def load(name: str) -> Contestant:
    """The contestant, with its library imported; an exception says why it cannot be had."""
    module, _, kind = PLACES[name].partition(":")
    contestant = getattr(importlib.import_module(f"benchmarks.contestants.{module}"), kind)()
    assert contestant.name == name
    return contestant
