"""check_grads: derivatives of a function against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.errors import GradientCheckError
from tapejax.ground.callers import takes_apart
from tapejax.ground.where import user_line
from tapejax.ops.lift import is_tensor
from tapejax.transforms.forward_mode import jvp
from tapejax.transforms.recording import plain
from tapejax.transforms.reverse_mode import check_callable, flatten, is_inexact, no_gradient, vjp

_tree = jax.tree_util


@takes_apart
def check_grads(
    fun: Callable[..., Any],
    args: Sequence[Any],
    order: int,
    modes: Sequence[str] = ("fwd", "rev"),
    atol: float | None = None,
    rtol: float | None = None,
    eps: float | None = None,
) -> None:
    """Compare the derivatives of fun, up to an order, with finite differences along a random direction.

    As jax.test_util.check_grads, but of tapejax's derivatives. "fwd" compares jvp with the difference, "rev"
    the pullback of a random cotangent; each order checks the derivative of the one before. Costs a
    few calls per order and mode. Best in float64. Raises a GradientCheckError (an AssertionError).

    >>> import jax.numpy as jnp, tapejax as tj
    >>> tj.check_grads(lambda x: jnp.sin(x).sum(), (jnp.array([0.3, 0.7]),), order=2)
    """
    check_callable(fun)
    args = tuple(_tree.tree_map(lambda leaf: jnp.asarray(plain(leaf)), arg, is_leaf=is_tensor) for arg in args)
    smallest = min((jnp.finfo(leaf.dtype).eps for leaf in flatten(args)[0] if is_inexact(leaf)), default=1e-7)
    step = float(smallest) ** (1 / 3) if eps is None else eps
    tolerance = float(smallest) ** (1 / 3) * 10
    atol, rtol = (tolerance if atol is None else atol), (tolerance if rtol is None else rtol)
    _check(fun, args, order, tuple(modes), atol, rtol, step, np.random.default_rng(0), "")


@takes_apart
def _check(fun, args, order, modes, atol, rtol, eps, rng, path):
    if order < 1:
        return
    direction = _like(args, rng)
    moved = lambda sign: fun(*_tree.tree_map(lambda x, t: x + (sign * eps * t).astype(x.dtype) if is_inexact(x) else x, args, direction))  # fmt: skip
    difference = _tree.tree_map(lambda a, b: (plain(a) - plain(b)) / (2 * eps), moved(1), moved(-1))
    for mode in modes:
        if mode == "fwd":
            _, found = jvp(fun, args, direction)
            _compare(found, difference, atol, rtol, f"{path}fwd")
            along = lambda *xs: _moving(jvp(fun, xs, direction)[1])
        else:
            out, pullback = vjp(fun, *args)
            ct = _like(out, rng)
            found = sum(
                _dot(g, t) for g, t in zip(*(flatten(tree)[0] for tree in (pullback(ct), direction)), strict=True)
            )
            wanted = sum(_dot(c, d) for c, d in zip(flatten(ct)[0], flatten(difference)[0], strict=True))
            _compare(found, wanted, atol, rtol, f"{path}rev")
            along = lambda *xs, ct=ct: _moving(vjp(fun, *xs)[1](ct))
        _check(along, args, order - 1, modes, atol * 10, rtol * 10, eps, rng, f"{path}{mode} of ")


def _moving(tree: Any) -> list[Any]:
    return [leaf for leaf in flatten(tree)[0] if leaf.dtype != jax.dtypes.float0]


def _like(tree: Any, rng: np.random.Generator) -> Any:
    """A random tree of the same kind, of length about one; float0 for integers."""
    leaves, structure = flatten(tree)
    size = max(sum(np.size(plain(leaf)) for leaf in leaves), 1)

    def one(leaf):
        if not is_inexact(leaf):
            return no_gradient(leaf)
        leaf = plain(leaf)
        value = rng.normal(size=jnp.shape(leaf)) / size**0.5
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            value = value + 1j * rng.normal(size=jnp.shape(leaf)) / size**0.5
        return jnp.asarray(value, leaf.dtype)

    return _tree.tree_unflatten(structure, [one(leaf) for leaf in leaves])


def _dot(ct: Any, tangent: Any) -> Any:
    """What a cotangent makes of a tangent: in jax's convention without a conjugate, and real."""
    if ct.dtype == jax.dtypes.float0 or tangent.dtype == jax.dtypes.float0:
        return 0.0
    return jnp.real(jnp.sum(plain(ct) * plain(tangent)))


def _compare(found: Any, wanted: Any, atol: float, rtol: float, what: str) -> None:
    for ours, judge in zip(flatten(found)[0], flatten(wanted)[0], strict=True):
        ours, judge = np.asarray(plain(ours)), np.asarray(plain(judge))
        if ours.dtype != jax.dtypes.float0 and not np.allclose(ours, judge, rtol=rtol, atol=atol):
            off = np.abs(ours - judge)
            excess = np.where(
                np.isnan(off), np.inf, off - rtol * np.abs(judge)
            )  # what is farthest beyond the tolerance
            worst = np.unravel_index(int(np.argmax(excess)), off.shape)
            place = f" at [{', '.join(map(str, worst))}]" if worst else ""
            wrong = int(np.count_nonzero(~np.isclose(ours, judge, rtol=rtol, atol=atol)))
            raise GradientCheckError(
                f"the derivative ({what}) is off by {off[worst]:.3g} from the finite difference{place}",
                at=user_line(),
                action=f"found {ours[worst]:.6g}, difference {judge[worst]:.6g}{place}, the worst of {wrong} wrong in {off.size}",
                fix="look for a custom rule that is wrong, a kink within eps, or pass a larger tolerance",
            )
