"""The engine: read the tape backwards, add up derivatives. Start here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.engine import higher_order
from tapejax.errors import (
    ArgumentError,
    BackwardError,
    ConsumedTapeError,
    HookError,
    ReplayError,
    RequiresGradError,
    SeedError,
    WantsTensorsError,
    WrongTapeError,
)
from tapejax.fusion.sealed import ONES
from tapejax.ground.where import user_line
from tapejax.hooks import passing
from tapejax.hooks.registry import live as hooks
from tapejax.native import native
from tapejax.plan.plan import OpAction, x64_for
from tapejax.tape import cuts
from tapejax.tape.action import Composite, Request, TapeAction, materialised
from tapejax.tape.modes import alarm, enable_grad
from tapejax.tape.tape import Tape, current_tape
from tapejax.tensor.gradients import Gradients
from tapejax.tensor.tensor import Tensor, array_of, make


def backward(
    root: Tensor | Sequence[Tensor],
    seed: Any = None,
    *,
    wrt: Tensor | Sequence[Tensor] | None = None,
    retain_tape: bool = False,
    create_graph: bool = False,
    tape: Tape | None = None,
) -> Gradients:
    """Gradients of root (or of several roots) with respect to everything it was computed from.

    1. A root that needs no gradient, or that another tape holds, is refused; the tape stays as it was.
    2. Each root starts with its seed, or with ones.
    3. The tape is taken, and its actions run in strict reverse order.
    4. A fresh Gradients is returned; what nobody holds has a gradient too, computed when somebody asks for it.
       `wrt` keeps only these, drops the rest as soon as it is used, and runs only what leads to them. `retain_tape=True` leaves the tape as it was.
       `create_graph=True` also records the pass at the end of the tape: the gradients are Tensors
       that can be differentiated again.
    5. An action that fails stops the pass with a BackwardError that has lost nothing.

    >>> import tapejax as tj
    >>> x = tj.tensor([1.0, 2.0], requires_grad=True)
    >>> h = x * x
    >>> grads = tj.backward(h.sum())
    >>> grads[x], grads[h]
    (Array([2., 4.], dtype=float32), Array([1., 1.], dtype=float32))
    """
    if native is not None and seed is None and not (retain_tape or create_graph):  # the same, if it has come before
        grads = native.backward(root, wrt, tape)
        if grads is not NotImplemented:
            return grads
    if tape is None:
        tape = current_tape()
    elif not isinstance(tape, Tape):
        raise ArgumentError(
            f"tape={tape!r} is not a Tape", fix="the one of `with Tape() as tape:`, or none for the current one"
        )
    leaves = None if wrt is None else _leaves(wrt)
    cut = look_for_cuts(root, leaves, tape) if cuts.log.last > tape.epoch.start else {}
    if (looks := alarm.get()) is not None:
        looks.before_backward(root, tape)
    if seed is None and type(root) is Tensor and not (cut or retain_tape or create_graph or hooks):
        made_by = root.held if root.slot is not None else getattr(root.identity, "made_by", None)
        found = made_by.step(root, leaves, tape) if isinstance(made_by, Composite) else None
        if found is not None:
            return found
    starts = start(root, seed, tape)
    grads = Gradients()
    for one, said, given in starts:
        if create_graph:
            given = said if isinstance(said, Tensor) else make(own(given), False)
        grads.add(one.number, given)
    wanted = None if leaves is None else {leaf.number for leaf in leaves}
    grads.requested = {"roots": [one.number for one, _, _ in starts], "wrt": wanted, "cut": cut}
    if create_graph:
        with tape, enable_grad():
            go_back(list(tape.actions), grads, wanted, step=higher_order.step)
        return grads
    entries = tape.entries() if retain_tape else tape.take_entries(by="backward()")
    unasked: list[Any] = []
    try:
        go_back(entries, grads, wanted, alone=not retain_tape, unasked=unasked if wanted is None else None)
    finally:
        grads.unasked = unasked
    for one, said, given in starts:
        if said is None and grads.ready.get(one.number) is given:
            grads.ready[one.number] = own(given)
    return grads


def go_back(
    entries: list[Any],
    grads: Gradients,
    wanted: set[int] | None = None,
    *,
    alone: bool = True,
    step: Callable[[TapeAction, Gradients], None] | None = None,
    since: int = 0,
    unasked: list[Any] | None = None,
) -> None:
    """Run actions from the last to the first. Each is let go as soon as it is done.

    One that is made of others goes back as a whole if it can; if not, these take its place.
    wanted: run only the actions that lead from these identities, and keep no other gradient.
    alone: nobody else holds the actions.
    step: what to do with an action, if not its own `backward` (see higher_order.py).
    since: of a pass that is part of another: hooks on what was made before are called there (see hooks/passing.py).
    unasked: takes gradients that may wait until somebody asks for one (see fusion/later.py); None: all are computed now.
    """
    hooked = passing.over(entries, grads, wanted, since) if hooks else None
    only = Only(wanted, entries)
    asked = Request(wanted, alone=alone, only_ops=only.ops, unasked=unasked if only.ops else None)
    one_by_one = (
        step is not None or hooked is not None or type(grads) is not Gradients
    )  # a cursor's own kind wants to see every insert
    while entries:
        entry = entries[-1]
        if isinstance(entry, Composite):
            gone = not one_by_one and entry.go_back(grads, asked)
            entries[-1:] = () if gone else only.before(entry.materialise)
            continue
        try:
            if not only.leads(entry):
                pass
            elif hooked is None:
                pull(entry, grads, step)
            else:
                hooked.pull(entry, len(entries) - 1, grads, lambda action, into: pull(action, into, step))
        except (ReplayError, HookError) as error:  # it names the action and the reason already
            hand_over(error, entry, materialised(entries), grads)
            raise
        except Exception as cause:
            raise failure(entry, materialised(entries), grads, cause) from cause
        entries.pop()
        if alone and step is None and isinstance(entry, TapeAction):
            entry.release()  # the root, which somebody may hold, leads to it still
        only.drop_after(entry, grads)
    if hooked is not None:
        hooked.finish(grads)
    only.drop_rest(grads)


class Only:
    """What `wrt` asks for: to run nothing that does not lead from it, and to keep nothing else. None: everything."""

    __slots__ = ("entries", "ops", "reached", "wanted")

    def __init__(self, wanted: set[int] | None, entries: list[Any]) -> None:
        self.wanted, self.entries = wanted, entries
        self.ops = all([isinstance(e, Composite) or type(e) is OpAction for e in entries])
        self.reached: set[int] | None = None

    def before(self, materialise: Callable[[], list[Any]]) -> list[Any]:
        """Look at what leads where while it is quickly told: before actions are written."""
        self._look()
        return materialise()

    def _look(self) -> None:
        if self.reached is None and self.wanted is not None:
            self.reached = reach(self.wanted, self.entries)

    def leads(self, action: TapeAction) -> bool:
        self._look()
        return self.reached is None or leads(action, self.reached)

    def drop_after(self, action: TapeAction, grads: Gradients) -> None:
        """Once an action has gone back, nobody reads the gradients of its outputs again."""
        if self.wanted is not None:
            for id in action.outputs or ():
                if id.number not in self.wanted and id not in (action.inputs or ()):
                    grads.sums.pop(id.number, None)

    def drop_rest(self, grads: Gradients) -> None:
        if self.wanted is not None:
            for number in [number for number in grads.sums if number not in self.wanted]:
                del grads.sums[number]


def pull(action: TapeAction, grads: Gradients, step: Callable[[TapeAction, Gradients], None] | None = None) -> None:
    """One action's backward. One that says what it made is skipped if no gradient has reached that."""
    if type(action) is not OpAction:  # which sees to it by itself
        outputs = action.outputs
        if outputs is not None and not any(id.number in grads.sums for id in outputs):
            return
    action.backward(grads) if step is None else step(action, grads)


def reach(wanted: set[int], entries: Sequence[Any]) -> set[int]:
    """The numbers of all that was computed from the wanted identities, and these."""
    reached = set(wanted)
    for entry in entries:
        if isinstance(entry, Composite):
            entry.spread(reached)
        elif entry.inputs is not None and leads(entry, reached):
            reached.update([id.number for id in entry.outputs or ()])
    return reached


def leads(action: TapeAction, reached: set[int]) -> bool:
    """Whether an action leads on from what was reached (or does not tell what it reads)."""
    inputs = action.inputs
    return inputs is None or any([id.number in reached for id in inputs]) or action.outputs is None


def failure(action: TapeAction, actions: list[TapeAction], grads: Gradients, cause: Exception) -> BackwardError:
    """What to raise when the last of these actions failed."""
    index = len(actions) - 1
    error = BackwardError(
        f"backward failed in action {index}, {action.name()}: {type(cause).__name__}: {cause}",
        at=action.line or None,
        action=repr(action),
        fix="the cause is chained below; error.gradients and error.actions hold what was done and what was left",
    )
    hand_over(error, action, actions, grads)
    return error


def hand_over(error: Any, action: TapeAction | None, actions: Sequence[TapeAction], grads: Gradients) -> None:
    """An error in backward has everything with it: what was done, and what was left."""
    error.gradients, error.actions, error.index, error.failed = grads, list(actions), len(actions) - 1, action


def look_for_cuts(root: Any, leaves: Sequence[Tensor] | None, tape: Tape) -> dict[int, str]:
    """See cuts.check; a root that is none is refused later."""
    roots = [one for one in (root if isinstance(root, (list, tuple)) else [root]) if isinstance(one, Tensor)]
    wanted = None if leaves is None else [leaf.number for leaf in leaves]
    return cuts.check(tape, roots, wanted)


def start(root: Tensor | Sequence[Tensor], seed: Any, tape: Tape) -> list[tuple[Tensor, Any, Any]]:
    """For each root: itself, its seed as it was given, and that seed as an array; all checked against the tape."""
    if seed is None and type(root) is Tensor:
        _check_root(root, tape)
        return [(root, None, ones_like(root))]
    roots, seeds = _pairs(root, seed)
    for one in roots:
        _check_root(one, tape)
    starts = []
    for one, said in zip(roots, seeds, strict=True):
        with x64_for(one.dtype):
            starts.append((one, said, _seed(one, said)))
    return starts


def _pairs(root: Any, seed: Any) -> tuple[list[Tensor], list[Any]]:
    several = isinstance(root, (list, tuple))
    roots = list(root) if several else [root]
    for one in roots:
        if not isinstance(one, Tensor):
            raise WantsTensorsError(
                f"backward needs a Tensor, not {type(one).__name__}",
                at=user_line(),
                fix="compute the root from tapejax.tensor(..., requires_grad=True) with tapejax functions; float(x) and x.item() leave the tape",
            )
    if not roots:
        raise ArgumentError("backward needs at least one root", at=user_line())
    seeds = list(seed) if several and isinstance(seed, (list, tuple)) else [seed] * len(roots)
    if several and seed is not None and not isinstance(seed, (list, tuple)):
        raise SeedError("several roots need a list of seeds", at=user_line(), fix="one seed (or None) per root")
    if len(seeds) != len(roots):
        raise SeedError(f"{len(seeds)} seeds for {len(roots)} roots", at=user_line(), fix="one seed (or None) per root")
    return roots, seeds


def _check_root(root: Tensor, tape: Tape) -> None:
    if not root.requires_grad:
        raise RequiresGradError(
            f"requires_grad is False for the root {root.id!r}: nothing was recorded for it",
            at=user_line(),
            fix="make an input with requires_grad=True, and compute the root outside of no_grad, detach and stop_gradient; "
            "a parameter that was updated is made one again: w = tapejax.tensor(w.value - step, requires_grad=True)",
        )
    epoch = root.epoch
    if epoch is None or epoch.current() is tape.epoch:
        return
    epoch = epoch.current()
    if epoch.consumed_by is not None:
        raise ConsumedTapeError(
            f"the root {root.id!r} was recorded on {epoch.label}, which was consumed by {epoch.consumed_by}",
            at=user_line(),
            action=repr(root.id.producer),
            fix="run the forward again, or keep the tape with backward(..., retain_tape=True)",
        )
    reads = tape.label if tape.label != epoch.label else f"another one, {tape.label} in another context"
    fix = "call that tape's own backward: tape.backward(root)"
    if epoch.ambient:
        fix = "call backward where the root was computed, or record with `with Tape() as tape:` and use tape.backward(root)"
    raise WrongTapeError(
        f"the root {root.id!r} was recorded on {epoch.label}, but backward reads {reads}",
        at=user_line(),
        action=repr(root.id.producer),
        fix=fix,
    )


def _leaves(wrt: Any) -> Sequence[Tensor]:
    if type(wrt) is Tensor:
        return (wrt,)
    if type(wrt) in (list, tuple) and _TENSOR.issuperset(map(type, wrt)):
        return wrt
    leaves = jax.tree_util.tree_leaves(wrt, is_leaf=lambda leaf: isinstance(leaf, Tensor))
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise WantsTensorsError(f"wrt takes Tensors, not {type(leaf).__name__}", at=user_line())
    return leaves


_TENSOR = frozenset([Tensor])


def _seed(root: Tensor, seed: Any) -> Any:
    if seed is None:
        return ones_like(root)
    try:
        given = seed.value if isinstance(seed, Tensor) else array_of(seed)
    except (TypeError, ValueError, OverflowError) as cause:
        raise SeedError(
            f"a {type(seed).__name__} is no seed: {cause}", fix="give numbers of the root's shape"
        ) from None
    if given.shape != root.shape or not _fits(given, root.dtype):
        raise SeedError(
            f"the seed is {given.dtype}{list(given.shape)}, the root {root.id!r} is {root.dtype}{list(root.shape)}",
            at=user_line(),
            fix="give a seed of the root's shape and dtype, or none for ones",
        )
    return given if given.dtype == root.dtype and not given.weak_type else given.astype(root.dtype)


def _fits(seed: Any, dtype: Any) -> bool:
    """Whether a seed has a dtype, or is so weakly typed that it takes it without losing anything."""
    narrows = lambda: jnp.iscomplexobj(seed) and not jnp.issubdtype(dtype, jnp.complexfloating)
    return seed.dtype == dtype or (seed.weak_type and not narrows())


def own(array: Any) -> Any:
    """A copy for the caller, who may donate it: what is used again is not handed out."""
    return array if isinstance(array, jax.core.Tracer) else jnp.array(array)


def ones_like(root: Tensor) -> Any:
    """Ones of the root's shape, dtype and sharding; made once, since arrays never change. Not to be handed out."""
    value = root.held
    if isinstance(value, jax.core.Tracer):
        return jnp.ones_like(value)
    # The sharding of a value that is yet to be computed will be seen to by the program that does it.
    pending = isinstance(value, Composite)
    key = root.kind if pending else (root.kind, root.value.sharding)
    found = ONES.get(key)
    if found is None:
        with jax.ensure_compile_time_eval(), x64_for(root.dtype):
            found = jax.device_put(np.ones(root.shape, root.dtype))  # on no mesh, whichever is set now
            found = ONES.keep(key, found if pending else jax.device_put(found, root.value.sharding))
    return found
