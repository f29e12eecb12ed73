"""jax.random over Tensors, and a generator for eager work that hands out the keys.

With a key as the first argument every function is jax's: the same numbers, and gradients to whatever
jax has them for (gamma, beta, dirichlet, t, ...; loc and scale by arithmetic). Without a key, one is
drawn from the generator of this context:

>>> import tapejax as tj
>>> tj.random.seed(0)
>>> a, b = tj.random.normal((2,)), tj.random.normal((2,))
>>> bool((a == b).any())
False
>>> tj.random.seed(0)
>>> bool((a == tj.random.normal((2,))).all())
True

Each thread and each asyncio task has a stream of its own, derived from the one it was started in (a
thread that inherits no context: from the main thread's), so none repeats the numbers of another.
Under jax.jit a drawn key would be a constant of the compiled program, so it is refused: pass one in.
"""

from __future__ import annotations

from typing import Any

import jax as _jax

from tapejax.ops.surface import mirror as _mirror
from tapejax.ops.surface.op import Op as _Op
from tapejax.tensor.generator import get_state, is_key, next_key, seed, set_state


def gumbel_softmax(*args: Any, temperature: Any = 1.0, axis: int = -1, hard: bool = False) -> Any:
    """gumbel_softmax(key, logits) or gumbel_softmax(logits): a categorical sample that a gradient flows through.

    softmax((logits + Gumbel noise) / temperature); with hard=True the nearest one-hot vector, and the
    softmax's gradient.

    >>> import tapejax as tj
    >>> logits = tj.tensor([0.0, 9.0], requires_grad=True)
    >>> tj.random.gumbel_softmax(logits, hard=True).sum().item()
    1.0
    """
    key, logits = args if is_key(args[0]) else (next_key(), *args)
    return _gumbel_softmax(key, logits, temperature, axis=axis, hard=hard)


def _relaxed(key, logits, temperature, *, axis, hard):
    noise = _jax.random.gumbel(key, logits.shape, logits.dtype)
    soft = _jax.nn.softmax((logits + noise) / temperature, axis)
    if not hard:
        return soft
    chosen = _jax.nn.one_hot(soft.argmax(axis), logits.shape[axis], dtype=soft.dtype, axis=axis)
    return soft + _jax.lax.stop_gradient(chosen - soft)


_gumbel_softmax = _Op(_relaxed, "gumbel_softmax", __name__, ("axis", "hard"))
__getattr__, __dir__, _names = _mirror(__name__, globals())
__all__ = [*_names, "get_state", "next_key", "seed", "set_state"]
