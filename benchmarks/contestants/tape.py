"""tapejax: eager on the ambient tape, and under one jit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import tapejax as tj
from benchmarks.contestants.base import Entry
from benchmarks.contestants.jax_itself import Jax, is_scalar, wait
from benchmarks.words import jax_words, tape_words
from benchmarks.workloads import Workload
from tapejax.plan.executables import shelf
from tapejax.transforms import reverse_mode as transforms


class Tapejax(Jax):
    name = "tapejax"

    def __init__(self) -> None:
        super().__init__()
        self.words = tape_words(self.words)

    def prepare(self, workload: Workload) -> Entry:
        words, run = self.words, workload.run
        given, data = self.arguments(workload)
        params = [tj.tensor(param, requires_grad=True) for param in given]
        data = [tj.tensor(x) for x in data]

        def forward():
            return run(words, params, data).block_until_ready()

        def gradient():
            out = run(words, params, data)
            grads = self.backward(out, params)
            return wait((out.value, [grads[param] for param in params]))

        return Entry(gradient, forward)

    def backward(self, out: tj.Tensor, params: list[tj.Tensor]) -> tj.Gradients:
        return tj.backward(out, wrt=params)

    settles = True

    def unsettled(self, call: Callable[[], Any]) -> bool:
        return unsettled(call)


class TapejaxDefault(Tapejax):
    """As it is called without a thought: gradients of everything that the result was computed from."""

    name = "tapejax, no wrt"

    def backward(self, out: tj.Tensor, params: list[tj.Tensor]) -> tj.Gradients:
        return tj.backward(out)


def unsettled(call: Callable[[], Any]) -> bool:
    """Whether a call compiled a program, or ran by one that was compiled quickly and will be compiled well."""
    before = shelf.there()
    last, known = max((one.last_use for one in before), default=0), set(map(id, before))
    call()
    return any(id(one) not in known or (one.is_quick and one.last_use > last) for one in shelf.there())


class TapejaxCompiled(Tapejax):
    name = "tapejax in jax.jit"
    compiled = True
    settles = False

    def fresh(self, workload: Workload) -> Callable[..., Any]:
        """The step as a function that jax has not seen."""
        words, run = self.words, workload.run
        if is_scalar(workload, jax_words()):
            return transforms.value_and_grad(lambda params, data: run(words, params, data))

        def seeded(params, data):
            out, pull = transforms.vjp(lambda params: run(words, params, data), params)
            return out, pull(jnp.ones_like(out))[0]

        return seeded

    def prepare(self, workload: Workload) -> Entry:
        step = jax.jit(self.fresh(workload))
        params, data = self.arguments(workload)
        return Entry(lambda: wait(step(params, data)))
