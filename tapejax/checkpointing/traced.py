"""checkpoint by jax's own primitive: within a trace, with a policy, and for functions written for arrays.

The function is traced once, and recorded as one action whose program says what to keep and what to
compute again (the rule of `remat`). Within jax.jit, vmap, grad and scan it stays that primitive, so
that XLA and jax.grad see the checkpoint as well. A program has no state: there is nothing to verify.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.errors import ArgumentError
from tapejax.ground.where import user_line
from tapejax.ops.lift import as_tensor, is_data, is_tensor
from tapejax.ops.surface import functions
from tapejax.tensor import generator
from tapejax.tensor.tensor import Tracer
from tapejax.transforms.recording import called, plain

_tree = jax.tree_util

_POLICIES = {
    "everything": jax.checkpoint_policies.everything_saveable,
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def policy_of(policy: Any) -> Callable[..., Any] | None:
    """A policy of jax's kind from its short name, or from a list of the names to keep (checkpoint_name)."""
    if policy is None or callable(policy):
        return policy
    if isinstance(policy, str) and policy in _POLICIES:
        return _POLICIES[policy]
    if isinstance(policy, (list, tuple, set, frozenset)) and all(isinstance(name, str) for name in policy):
        return jax.checkpoint_policies.save_only_these_names(*policy)
    raise ArgumentError(
        f"unknown policy {policy!r}",
        at=user_line(),
        fix=f"one of jax.checkpoint_policies, one of {', '.join(map(repr, _POLICIES))}, or a list of checkpoint names",
    )


def checkpoint_traced(function: Callable[..., Any], leaves: Sequence[Any], structure: Any, policy: Any) -> Any:
    """The call as one op: its program is the function's, wrapped by jax.checkpoint."""
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, (jax.Array, np.ndarray)) or is_tensor(leaf)]
    over_tensors = any(map(is_tensor, leaves))
    start = generator.place()
    eager = not isinstance(jnp.zeros(()), Tracer)
    found: Any = None
    rest: list[Any] = []

    def whole(bindings: Any, values: Sequence[Any], tensors: bool = over_tensors) -> Any:
        generator.rewind(start)  # traced a second time, it draws the same

        def body(*values: Any) -> list[Any]:
            nonlocal found, rest
            filled = [plain(leaf) for leaf in leaves]
            for place, value in zip(places, values, strict=True):
                filled[place] = value
            args, kwargs = _tree.tree_unflatten(structure, filled)
            with generator.traced_for_one_call() if eager else nullcontext():
                results = functions.Body(function, bindings, tensors)(*args, **kwargs)
            results, found = _tree.tree_flatten(results)
            rest = [None if is_data(leaf) else leaf for leaf in results]
            return [leaf for leaf in results if is_data(leaf)]

        return jax.checkpoint(body, policy=policy)(*values)

    operands = [leaves[i] if is_tensor(leaves[i]) else as_tensor(leaves[i]) for i in places]
    name = f"checkpoint_{getattr(function, '__name__', 'function').strip('<>')}"
    over_arrays = lambda bindings, values: whole(bindings, values, False)
    recorded = called(
        function,
        lambda: functions.record_function(name, whole, operands),
        lambda: functions.record_function(name, over_arrays, operands),
    )
    arrays = iter(recorded)
    made = [next(arrays) if leaf is None else leaf for leaf in rest]
    if not over_tensors:
        made = [leaf.value if is_tensor(leaf) and not leaf.requires_grad else leaf for leaf in made]
    return _tree.tree_unflatten(found, made)
