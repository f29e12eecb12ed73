"""Every exception tapejax raises, worded in one place.

Each message has the same four parts: what happened, where (the user's line), which action or
argument, and what to do about it. Each class is also a subclass of the builtin people expect, so
`except ValueError` keeps working for those who do not know tapejax.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tapejax.ground import habits
from tapejax.ground.where import user_line

if TYPE_CHECKING:
    from tapejax.tape.action import TapeAction
    from tapejax.tensor.gradients import Gradients


class TapejaxError(Exception):
    """The base of all errors raised by tapejax.

    Keeps the four parts of its message as attributes: `what`, `at`, `action`, `fix`.

    >>> import tapejax as tj
    >>> try:
    ...     tj.backward(tj.tensor(1.0))
    ... except tj.TapejaxError as error:
    ...     print(error.fix)
    make an input with requires_grad=True, and compute the root outside of no_grad, detach and stop_gradient; a parameter that was updated is made one again: w = tapejax.tensor(w.value - step, requires_grad=True)
    """

    def __init__(
        self,
        what: str,
        *,
        at: str | None = None,
        action: object | None = None,
        fix: str | None = None,
    ) -> None:
        # As text: an error must not keep a program alive, and must be able to leave the process.
        action = None if action is None else str(action)
        at = at or user_line()  # not every equation knows where it came from
        self.what, self.at, self.action, self.fix = what, at, action, fix
        lines = [what]
        for label, part in (("at", at), ("action", action), ("fix", fix)):
            if part:
                lines.append(f"  {label:<7} {part}")
        super().__init__("\n".join(lines))

    def __reduce__(self):
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls, args, state):
    error = cls.__new__(cls, *args)
    Exception.__init__(error, *args)
    error.__dict__.update(state)
    return error


def explain(error: Exception, action: str, *, of_jax: bool) -> None:
    """An error that was raised while an op was planned also says which op, on which line, and a known way out.

    of_jax: the op is a function of jax, so that a plain error of it becomes one of ours. What a function of the
    user's raises stays what it is.
    """
    if hasattr(error, "what") or any(note.startswith("  at ") for note in getattr(error, "__notes__", ())):
        return
    kinds = {TypeError: ArgumentError, ValueError: ArgumentError, NameError: ArgumentError, IndexError: IndexingError}
    kind = kinds.get(type(error))
    if of_jax and kind is not None:
        raise kind(str(error), action=action, fix=habits.of_message(str(error))) from None  # the user's lines first
    error.add_note(f"  at      {user_line()}\n  action  {action}")


# --- the tape and the engine -------------------------------------------------------------------


class RequiresGradError(TapejaxError, ValueError):
    """backward was asked for a root that nothing was recorded for."""


class TapeError(TapejaxError, RuntimeError):
    """An operation on a tape that its state does not allow."""


class ConsumedTapeError(TapeError):
    """The root was made on a tape that has been taken already."""


class WrongTapeError(TapeError):
    """The root was made on a tape that is not the current one."""


class SeedError(TapejaxError, ValueError):
    """A seed whose shape, dtype or number does not fit its root."""


class BackwardError(TapejaxError, RuntimeError):
    """An action failed during backward.

    `gradients` holds what had been accumulated, `actions` the actions that had not run (the failing
    one last), `index` the place of the failing one on the tape, `failed` the action itself.
    The original exception is the `__cause__`. In another process (pickled) the identities and the
    compiled ops mean nothing: there `actions` and `failed` are names, and `gradients` is None.
    """

    gradients: Gradients | None
    actions: Sequence[TapeAction | str]
    index: int
    failed: TapeAction | str

    def __reduce__(self):
        names = {"gradients": None, "actions": [str(action) for action in self.actions], "failed": str(self.failed)}
        return _rebuild, (type(self), self.args, self.__dict__ | names)


class CutGradientError(TapejaxError, RuntimeError):
    """A gradient would lack a part: a parameter was taken apart, by a function that does not record, on the way."""


class SlotError(TapejaxError, IndexError):
    """A slot's number that the gradient tape has not given out."""


class NumericalInstabilityError(TapejaxError, FloatingPointError):
    """A gradient holds NaN or Inf.

    `op` made it, for the slot `slot`; `count` elements are bad, the first of them at `first_index`.
    """

    op: str
    slot: int
    count: int
    first_index: tuple[int, ...]


class NonfiniteError(TapejaxError, FloatingPointError):
    """A gradient holds NaN or infinities, within debug_nonfinite. `report` says where it was born."""

    report: object = None


class NonfiniteWarning(UserWarning):
    """A gradient holds NaN or infinities."""


# --- values ------------------------------------------------------------------------------------


class GradientMismatchError(TapejaxError, ValueError):
    """A gradient whose shape or dtype differs from what is already there."""


class GradientCheckError(TapejaxError, AssertionError):
    """A derivative differs from the finite difference."""


class VerificationError(TapejaxError, AssertionError):
    """A gradient, an action or a custom rule disagrees with its judges.

    The message is the whole report; `report` is the object.
    """

    report: object = None


class MissingGradientError(TapejaxError, KeyError):
    """No gradient for this tensor; the message gives the reason."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return self.args[0]


class TensorConversionError(TapejaxError, TypeError):
    """A Tensor was given to something that would drop it from the tape, or data cannot become one."""


class WantsArraysError(TapejaxError):
    """A Tensor came where only an array will do: the base of refusals that are raised where jax takes a Tensor.

    A transform that meets one calls its function over arrays. Nothing else makes it do so.
    """


class GivenToJaxError(WantsArraysError, TensorConversionError):
    """A Tensor was given to a function of jax, or of a library over jax, that takes arrays."""


class ImmutableTensorError(TapejaxError, TypeError):
    """An attempt to change a Tensor in place."""


class UnknownAttributeError(TapejaxError, AttributeError):
    """A name that tensors of another library have; the message gives what to write here."""


class ArrayAttributeError(WantsArraysError, UnknownAttributeError):
    """A name that jax arrays have, and Tensors do not."""


class IndexingError(TapejaxError, IndexError):
    """An index that does not fit its Tensor: a number out of range, a mask of another shape, too many of them."""


class ConcreteValueError(TapejaxError, TypeError):
    """A concrete number was needed from a Tensor that holds a tracer."""


class TracedInLibraryError(WantsArraysError, ConcreteValueError):
    """A library asked a Tensor for a concrete number that is being traced: it may know jax's tracers, and not Tensors."""


class DtypeError(TapejaxError, TypeError):
    """A dtype that cannot be differentiated was given where a gradient is needed."""


class ArgumentError(TapejaxError, TypeError, ValueError):
    """An argument of the wrong kind."""


class WantsTensorsError(ArgumentError):
    """An array came where only a Tensor will do: the root of a backward, or what it is with respect to."""


class DevicesError(TapejaxError, ValueError):
    """The operands of an op are on different devices."""


class NotHereError(TapejaxError, RuntimeError):
    """A whole value was asked for, of which other processes hold a part."""


class DeletedError(TapejaxError, RuntimeError):
    """A value was looked at, or used by an op, whose buffer was donated or deleted."""

    @classmethod
    def of(cls, what: str, at: str | None, action: object = None) -> DeletedError:
        return cls(
            f"{what} was donated to a jitted function, or deleted: it is gone",
            at=at,
            action=action,
            fix="use what that function returned, leave the argument out of donate_argnums, or give it a copy",
        )


class ClosureError(TapejaxError, RuntimeError):
    """A function given to lax.scan and the like reads recorded Tensors in a way that cannot be followed."""


class LostGradientError(WantsArraysError, TypeError):
    """A function that is not recorded was given a recorded Tensor, and its result would have lost the gradient."""


class RandomStateError(TapejaxError, RuntimeError):
    """The random generator was used where its state cannot be kept."""


# --- the calculus ------------------------------------------------------------------------------


class RuleError(TapejaxError):
    """The base of what can be wrong about a derivative rule."""


class MissingRule(RuleError, NotImplementedError):
    """A primitive has no reverse rule."""


class RefusedPrimitive(RuleError, NotImplementedError):
    """A primitive that cannot be differentiated in reverse, with the reason and the way out."""


class RuleSignatureError(RuleError, TypeError):
    """A rule does not fit its primitive: unknown parameter, wrong number or shape of cotangents."""


class UnknownLengthError(RuleError, ValueError):
    """A while loop of unknown length cannot be differentiated in reverse under a trace."""


# --- checkpoints -------------------------------------------------------------------------------


class ReplayError(BackwardError):
    """A checkpointed function did something else when it ran again: its gradient would have been wrong."""

    gradients = None
    actions = ()
    index = -1
    failed = ""


class HookError(BackwardError):
    """A hook raised, or returned what cannot take the place of what it was given; the message names it."""

    gradients = None
    actions = ()
    index = -1
    failed = ""


class SavedTensorError(TapejaxError, RuntimeError):
    """A saved-tensor hook gave back something else than what it was given."""
