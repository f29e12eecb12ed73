"""jax: the floor of bare jitted calls, value_and_grad as it is, and under one jit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.contestants.base import Contestant, Entry
from benchmarks.environment import as_it_comes
from benchmarks.words import jax_words, jitted_words
from benchmarks.workloads import Workload

wait = jax.block_until_ready


def is_scalar(workload: Workload, words: Any) -> bool:
    params, data = [tuple(jnp.asarray(x) for x in xs) for xs in (workload.params, workload.data)]
    return jax.eval_shape(lambda p, d: workload.run(words, p, d), params, data).shape == ()


def value_and_grad(workload: Workload, words: Any) -> Callable[[Any, Any], Any]:
    """A fresh (params, data) -> (result, gradients), by jax; a matrix is seeded with ones."""
    if is_scalar(workload, words):
        return jax.value_and_grad(lambda params, data: workload.run(words, params, data))

    def seeded(params, data):
        out, pull = jax.vjp(lambda params: workload.run(words, params, data), params)
        return out, pull(jnp.ones_like(out))[0]

    return seeded


class Jax(Contestant):
    def __init__(self) -> None:
        # One thread: by default jax hands a program for the CPU to a second one, and waits for it.
        jax.config.update("jax_cpu_enable_async_dispatch", as_it_comes())
        self.words = jax_words()

    def arguments(self, workload: Workload) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        params, data = self.arrays(workload)
        return tuple(map(jnp.asarray, params)), tuple(map(jnp.asarray, data))


class BareJittedCalls(Jax):
    name = "bare jitted calls"

    def prepare(self, workload: Workload) -> Entry:
        words = jitted_words(self.words)
        params, data = self.arguments(workload)
        return Entry(None, forward=lambda: wait(workload.run(words, params, data)))


class JaxEager(Jax):
    name = "jax.value_and_grad"

    def prepare(self, workload: Workload) -> Entry:
        step = value_and_grad(workload, self.words)
        params, data = self.arguments(workload)
        return Entry(lambda: wait(step(params, data)))


class JaxCompiled(Jax):
    name = "jax.jit"
    compiled = True

    def fresh(self, workload: Workload) -> Callable[..., Any]:
        """The step as a function that jax has not seen."""
        return value_and_grad(workload, self.words)

    def prepare(self, workload: Workload) -> Entry:
        step = jax.jit(self.fresh(workload))
        params, data = self.arguments(workload)
        return Entry(lambda: wait(step(params, data)))
