"""debug_nonfinite: within it, every gradient that is taken is looked at, and a bad one is traced to its birth."""

from __future__ import annotations

import warnings
from contextvars import Token
from typing import Any

import jax
import jax.numpy as jnp

from tapejax.diagnose.elements import NAN, first, is_inexact, kind_of, mask, to_numpy
from tapejax.diagnose.nonfinite import find_nonfinite
from tapejax.diagnose.places import file_and_line
from tapejax.diagnose.report import Bad, Born, NonfiniteReport
from tapejax.errors import ArgumentError, NonfiniteError, NonfiniteWarning, TapejaxError
from tapejax.ground.where import user_line
from tapejax.ops.lift import is_tensor
from tapejax.tape.modes import alarm
from tapejax.tape.tape import Tape
from tapejax.transforms.recording import plain

_tree = jax.tree_util


class debug_nonfinite:
    """`with debug_nonfinite():` looks at every gradient taken within: by grad, value_and_grad and backward.

    on: "raise" a NonfiniteError with the report, "warn" with a NonfiniteWarning, or "collect" silently. `reports` has all.
    Under jit there is nothing to look at: call the function itself, or find_nonfinite.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> with tj.debug_nonfinite(on="collect") as found:
    ...     gradient = tj.grad(lambda x: jnp.sqrt(x).sum())(jnp.array([0.0, 1.0]))
    >>> [report.born.op for report in found.reports]
    ['sqrt']
    """

    def __init__(self, on: str = "raise") -> None:
        if on not in ("raise", "warn", "collect"):
            raise ArgumentError(f"unknown on={on!r}", fix='on="raise", on="warn" or on="collect"')
        self.on = on
        self.reports: list[NonfiniteReport] = []
        self._tokens: list[Token[Any]] = []

    def __enter__(self) -> debug_nonfinite:
        self._tokens.append(alarm.set(self))
        return self

    def __exit__(self, *exc_info: object) -> None:
        alarm.reset(self._tokens.pop())

    def tell(self, report: NonfiniteReport) -> None:
        self.reports.append(report)
        if self.on == "raise":
            error = NonfiniteError(str(report), at=user_line(), fix=report.fix)
            error.report = report
            raise error
        if self.on == "warn":
            warnings.warn(str(report), NonfiniteWarning, stacklevel=4)

    # -- told by grad and by backward ---------------------------------------------------------------------------

    def after_gradient(self, function: Any, args: Any, kwargs: Any, argnums: Any, has_aux: bool, found: Any) -> None:
        """A transform took a gradient; found: the value and the gradient."""
        if not _is_bad(found):
            return
        token = alarm.set(None)  # what is run here is not looked at again
        try:
            called = (lambda *args: function(*args, **kwargs)) if kwargs else function
            report = find_nonfinite(called, *args, wrt=argnums, has_aux=has_aux)
        finally:
            alarm.reset(token)
        if not report.ok:
            self.tell(report)

    def before_backward(self, root: Any, tape: Tape) -> None:
        """A tape is about to go back: the same pass, action by action."""
        token = alarm.set(None)
        try:
            report = _by_actions(root, tape)
        finally:
            alarm.reset(token)
        if report is not None:
            self.tell(report)


def _is_bad(tree: Any) -> bool:
    leaves = [plain(leaf) for leaf in _tree.tree_leaves(tree, is_leaf=is_tensor)]
    numbers = [leaf for leaf in leaves if is_inexact(leaf)]
    if any(isinstance(leaf, jax.core.Tracer) for leaf in numbers):
        return False
    return not all(bool(jnp.isfinite(leaf).all()) for leaf in numbers)


def _by_actions(root: Any, tape: Tape) -> NonfiniteReport | None:
    """The first action of a tape that sends on what is bad, although what arrives is good."""
    roots = list(root) if isinstance(root, (list, tuple)) else [root]
    if any(not is_tensor(one) or isinstance(one.value, jax.core.Tracer) for one in roots):
        return None
    try:
        cursor = tape.cursor(root, hooks=False)
    except TapejaxError:
        return None  # backward itself will say what is wrong
    for step in cursor:
        for term in step.outgoing:
            value = to_numpy(plain(term.value))
            kind = kind_of(value) if is_inexact(value) else None
            if kind is None or any(_has(ct, kind) for ct in step.incoming.values()):
                continue
            action = step.action
            index = first(mask(value, kind)) or ()
            file, lineno = file_and_line(action.line)
            cause = "cotangent" if _is_bad(list(step.incoming.values())) else "derivative"
            op = getattr(getattr(action, "plan", None), "name", None) or type(action).__name__
            born = Born(
                op, file, lineno, "", "", getattr(action, "steps", ()), index, "backward", cause, kind,
                str(value.dtype), (),
            )  # fmt: skip
            bad = Bad("gradient", f"TensorId({term.id.number})", kind, index, int(mask(value, kind).sum()), value.size)
            note = "by whole actions of the tape; find_nonfinite(f, ...) looks into them, and at values"
            return NonfiniteReport(tape.label, (bad,), born, notes=(note,))
    return None


def _has(value: Any, kind: str) -> bool:
    value = to_numpy(plain(value))
    return is_inexact(value) and (kind_of(value) == kind or (kind == NAN and bool(mask(value, NAN).any())))
