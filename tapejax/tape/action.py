"""Actions: what a tape records, and what names a tensor in them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tapejax.errors import ArgumentError

if TYPE_CHECKING:
    from tapejax.tape.tape import Epoch, Tape
    from tapejax.tensor.gradients import Gradients
    from tapejax.tensor.tensor import Tensor

numbers = itertools.count(1)
next_number: Callable[[], int] = numbers.__next__
_sequence = itertools.count(1)
next_sequence: Callable[[], int] = _sequence.__next__


class TensorId:
    """The identity of a tensor: what gradients are filed under.

    Clones and views that must keep their identity share it. It knows the action that produced the
    tensor, and so keeps alive exactly the part of an ambient tape that a live tensor can reach.

    >>> import tapejax as tj
    >>> x = tj.tensor([1.0, 2.0], requires_grad=True)
    >>> (x + 0).id == x.id, x[:].id.producer.op
    (False, 'Getitem')
    """

    __slots__ = ("__weakref__", "hooks", "made_by", "number")
    hooks: list[Any]  # of a leaf that has some: see hooks/registry.py

    def __init__(self, number: int | None = None, producer: TapeAction | Composite | None = None):
        self.number: int = next_number() if number is None else number
        self.made_by = producer

    @property
    def producer(self) -> TapeAction | None:
        """The action that made it; None for a leaf."""
        found = self.made_by
        if isinstance(found, Composite):
            found = self.made_by = found.action_of(self.number)
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorId) and other.number == self.number

    def __hash__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"TensorId({self.number})"

    def __reduce__(self):
        # A number means nothing in another process: what is loaded is a new identity.
        return (TensorId, ())


class TapeAction:
    """One entry of the tape: the contract between what ran forward and the engine.

    Subclass it and implement `backward` and `name` to record an action of your own. If `inputs` and
    `outputs` are given (tuples of TensorId), the engine skips the action when none of its outputs
    has a gradient, and `wrt` can prune it; otherwise its `backward` is always called.

    >>> import tapejax as tj
    >>> class Twice(tj.TapeAction):
    ...     def __init__(self, source, target):
    ...         self.inputs, self.outputs = (source.id,), (target.id,)
    ...     def backward(self, grads):
    ...         grads.insert(self.inputs[0], 2 * grads[self.outputs[0]])
    >>> x = tj.tensor(3.0, requires_grad=True)
    >>> y = tj.tensor(6.0, requires_grad=True)
    >>> tj.record(Twice(x, y))
    >>> tj.backward(y)[x]
    Array(2., dtype=float32)
    """

    __slots__ = ()

    inputs: Sequence[TensorId] | None = None
    outputs: Sequence[TensorId] | None = None
    line: str = ""

    def backward(self, grads: Gradients) -> None:
        """Read the gradients of the outputs, add those of the inputs: `grads.insert(id, value)`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement backward(grads)")

    def release(self) -> None:
        """Let go of what backward reads: it has run, and the tape is consumed."""

    def name(self) -> str:
        """A readable name, e.g. `Add(TensorId(1), TensorId(2))`."""
        inputs = self.inputs
        return type(self).__name__ if inputs is None else f"{type(self).__name__}({', '.join(map(repr, inputs))})"

    def __repr__(self) -> str:
        return self.name()


def check_action(action: Any) -> None:
    """Refuse what cannot be run backward."""
    if isinstance(action, type) and issubclass(action, TapeAction):
        name = action.__name__
        raise ArgumentError(f"{name} is a class, not a TapeAction", fix=f"record an instance of it: {name}(...)")
    if isinstance(action, type) or not callable(getattr(action, "backward", None)):
        raise ArgumentError(
            f"a {type(action).__name__} is not a TapeAction",
            fix="subclass tapejax.TapeAction and implement backward(grads) and name()",
        )


class Request:
    """What a backward was asked for.

    wanted: the numbers of the identities whose gradients are wanted; None for all.
    alone: nobody needs the actions again. only_ops: none of them is somebody's own, which may read any gradient.
    unasked: takes gradients that may wait until somebody asks for one, as in Gradients; None: all are computed now.
    """

    __slots__ = ("alone", "only_ops", "unasked", "wanted")

    def __init__(
        self,
        wanted: set[int] | None = None,
        *,
        alone: bool = False,
        only_ops: bool = False,
        unasked: list[Any] | None = None,
    ):
        self.wanted, self.alone, self.only_ops, self.unasked = wanted, alone, only_ops, unasked


class Composite(TapeAction):
    """An action made of others, which are written when somebody looks at them: see block.py."""

    __slots__ = ()
    epoch: Epoch

    def go_back(self, grads: Gradients, asked: Request) -> bool:
        """Its backward as a whole. False, and nothing has happened, if its actions are to go back one by one."""
        return False

    def step(self, root: Any, wrt: Sequence[Any] | None, tape: Tape) -> Gradients | None:
        """The whole of a training step that starts at one of its results; None if it has to go the usual way.

        wrt: None for everything.
        """
        return None

    def backward(self, grads: Gradients) -> None:
        if not self.go_back(grads, Request()):
            for action in reversed(self.materialise()):
                action.backward(grads)

    def flush(self) -> None:
        """Compute the values of its tensors."""
        raise NotImplementedError

    def materialise(self) -> list[Any]:
        """Its actions, in order; those that are still wanted, if the tape holds its actions weakly."""
        raise NotImplementedError

    def reads(self) -> list[int]:
        """The numbers of the tensors from outside that its actions read, as far as these need a gradient."""
        raise NotImplementedError

    def spread(self, reached: set[int]) -> None:
        """Add the numbers of what its actions make of tensors whose numbers are there."""
        raise NotImplementedError

    def settle(self, tensor: Tensor) -> None:
        """Give a result the value that `flush` did not hand to it, or raise why there is none."""
        raise NotImplementedError

    def action_of(self, number: int) -> Any:
        """The action that made what has this number."""
        raise NotImplementedError

    def is_over(self) -> bool:
        """Whether it will never have an action again."""
        raise NotImplementedError


def materialised(entries: Iterable[Any]) -> list[Any]:
    """Entries of a log as actions: what is pending is written out."""
    found: list[Any] = []
    for entry in entries:
        if isinstance(entry, Composite):
            found += entry.materialise()
        else:
            found.append(entry)
    return found
