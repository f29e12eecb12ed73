"""The words that workloads are written in, and what they mean in jax.

Each contestant says each word with its own best function: where a library has a fused layer norm or
attention, that is what it is given. Operators are called through `operator`, which costs all of
them the same.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from benchmarks import character

EPSILON = 1e-5
OPERATORS = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "matmul": operator.matmul,
    "getitem": operator.getitem,
    "sum": operator.methodcaller("sum"),
    "mean": operator.methodcaller("mean"),
}
NAMES = (
    *OPERATORS, "tanh", "sigmoid", "relu", "gelu", "layer_norm", "attention", "reshape", "transpose",
    "conv", "max_pool", "image_mean", "scan", "character_loss",
)  # fmt: skip


def unsaid(*arguments: Any) -> Any:
    """A word that a contestant has not been taught; its workload says who has (`written_for`)."""
    raise NotImplementedError("this contestant has no such word")


OPTIONAL = {"character_loss": unsaid}


class Words(SimpleNamespace):
    """All of NAMES, as functions."""

    def __init__(self, **words: Callable[..., Any]):
        super().__init__(**(OPERATORS | OPTIONAL | words))
        missing = set(NAMES) - set(self.__dict__)
        assert not missing, f"words without a meaning: {sorted(missing)}"


def scan_by_loop(words: Callable[[], Words], unstack: Callable[..., Sequence[Any]], stack: Callable[..., Any]) -> Any:
    """`scan` for a library that has none of its own: a Python loop, the results stacked."""

    def scan(step, params, carry, inputs):
        results = []
        for row in zip(*[unstack(x) for x in inputs]):
            carry, result = step(words(), params, carry, row)
            results.append(result)
        return stack(results)

    return scan


def jax_words() -> Words:
    """The words as plain jax functions."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def layer_norm(x, scale, shift):
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
        return centred * lax.rsqrt(variance + EPSILON) * scale + shift

    def attention(q, k, v):
        weights = jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) * q.shape[-1] ** -0.5)
        return weights @ v

    def conv(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def max_pool(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def scan(step, params, carry, inputs):
        _, results = lax.scan(lambda carry, row: step(words, params, carry, row), carry, inputs)
        return results

    words = Words(
        sum=jnp.sum,
        mean=jnp.mean,
        tanh=jnp.tanh,
        sigmoid=jax.nn.sigmoid,
        relu=jax.nn.relu,
        gelu=jax.nn.gelu,
        layer_norm=layer_norm,
        attention=attention,
        reshape=jnp.reshape,
        transpose=jnp.transpose,
        conv=conv,
        max_pool=max_pool,
        image_mean=lambda x: jnp.mean(x, axis=(1, 2)),
        scan=scan,
        character_loss=lambda params, data: character.loss(jnp, params, *data),
    )
    return words


STATIC = {"getitem": 1, "reshape": 1, "transpose": 1, "scan": 0}  # the argument that is an option


def jitted_words(plain: Words) -> Words:
    """Each word by itself as one jitted call: what an eager library on jax cannot go below."""
    import jax

    return Words(**{name: jax.jit(getattr(plain, name), static_argnums=STATIC.get(name)) for name in NAMES})


def tape_words(plain: Words) -> Words:
    """The words over Tensors: tapejax's own functions, and `lift` for those that the plain words compose."""
    import tapejax as tj
    import tapejax.nn as tnn
    import tapejax.numpy as tnp

    lifted = {name: tj.lift(getattr(plain, name)) for name in ("layer_norm", "attention", "conv", "max_pool")}
    return Words(
        tanh=tnp.tanh,
        sigmoid=tnn.sigmoid,
        relu=tnn.relu,
        gelu=tnn.gelu,
        reshape=tnp.reshape,
        transpose=tnp.transpose,
        image_mean=lambda x: x.mean(axis=(1, 2)),
        scan=tj.lift(plain.scan, static_argnums=0),
        character_loss=lambda params, data: character.loss(tnp, params, *data),
        **lifted,
    )
