"""custom_op: an op of your own, forward and backward, recorded under its own name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tapejax.errors import ArgumentError, GradientMismatchError
from tapejax.ground.where import line_of, user_frame, user_line
from tapejax.hooks import calls
from tapejax.ops.lift import Lifted, as_tensor, lift
from tapejax.plan.plan import camel
from tapejax.tape.action import TapeAction, TensorId, next_sequence
from tapejax.tape.scope import current_scope
from tapejax.tensor.gradients import Gradients
from tapejax.tensor.tensor import Kind, Tensor, Tracer, array_of, make, with_id


class CustomOp:
    """See `custom_op`."""

    def __init__(self, forward: Callable[..., Any], name: str, jit: bool):
        self.forward = forward
        self.name = name
        self.jit = jit
        self._backward: Callable[..., Any] | None = None
        self._lifted: Lifted | None = None
        functools.update_wrapper(self, forward)

    def defbackward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """Give the derivative: backward(ct, out, *operands, **options) -> one cotangent per operand."""
        self._backward = backward
        if self.jit:
            self._lifted = lift(_as_custom_vjp(self.forward, backward), name=self.name, static_argnames="options")
        return backward

    def __call__(self, *operands: Any, **options: Any) -> Any:
        if self._backward is None:
            raise ArgumentError(
                f"{self.name} has no backward yet",
                at=user_line(),
                fix=f"@{self.name}.defbackward above a function (ct, out, *operands) -> one cotangent per operand",
            )
        if self._lifted is not None:
            return self._lifted(*operands, options=tuple(sorted(options.items())))
        return self._in_python(operands, options)

    def _in_python(self, operands: tuple[Any, ...], options: dict[str, Any]) -> Any:
        tensors = [operand if isinstance(operand, Tensor) else as_tensor(operand) for operand in operands]
        values = [tensor.value for tensor in tensors]
        if any(isinstance(value, Tracer) for value in values):
            raise ArgumentError(
                f"{self.name} runs in Python (jit=False) and cannot be traced by jit, vmap or grad",
                at=user_line(),
                fix="write it with jax.numpy and drop jit=False, or call it outside of the traced function",
            )
        results = self.forward(*values, **options)
        several = isinstance(results, (tuple, list))
        outputs = [array_of(result) for result in (results if several else [results])]
        scope = current_scope()
        if scope.tape.observer is not None:
            scope.tape.observer(self, tensors, outputs, user_frame())
        if not (scope.enabled and any(tensor.requires_grad for tensor in tensors)):
            made, action = [make(output, False) for output in outputs], None
        else:
            action = PythonAction(self, tensors, outputs, options, several)
            scope.tape.append(action)
            made = []
            for output, id in zip(outputs, action.outputs, strict=True):
                needs = bool(jnp.issubdtype(output.dtype, jnp.inexact))
                made.append(
                    with_id(output, TensorId(id.number, action if needs else None), Kind.of(output.aval, needs))
                )
            action.epoch = scope.tape.epoch
        made = tuple(made) if several else made[0]
        return calls.ran(self.name, tensors, made, action, user_frame()) if calls.attending else made

    def __repr__(self) -> str:
        return f"<custom op {self.name}>"


_VALUES = inspect.Signature([inspect.Parameter("values", inspect.Parameter.VAR_POSITIONAL)])


def _as_custom_vjp(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """The pair as one jax.custom_vjp: honoured by the tape, by jax.grad, under jit and vmap alike."""

    def call(*operands, options=()):
        chosen = dict(options)

        def op(*values):
            return forward(*values, **chosen)

        # It goes by forward's name, file and line; by its own signature, since the options are given already.
        functools.update_wrapper(op, forward)
        vars(op)["__signature__"] = _VALUES
        op = jax.custom_vjp(op)

        def keep(*values):
            out = forward(*values, **chosen)
            return out, (out, values)

        def pull(kept, ct):
            out, values = kept
            cts = backward(ct, out, *values, **chosen)
            return _one_per_operand(cts, values, backward)

        op.defvjp(keep, pull)
        return op(*operands)

    call.__name__ = getattr(forward, "__name__", "op")
    return call


def _one_per_operand(cts: Any, values: Any, backward: Callable[..., Any]) -> tuple[Any, ...]:
    cts = tuple(cts) if isinstance(cts, (tuple, list)) else (cts,)
    if len(cts) != len(values):
        raise GradientMismatchError(
            f"{getattr(backward, '__name__', 'backward')} returned {len(cts)} cotangents for {len(values)} operands",
            fix="return one cotangent per operand, None for none",
        )
    for position, (ct, value) in enumerate(zip(cts, values, strict=True)):
        if ct is not None and jnp.shape(ct) != jnp.shape(value):
            raise GradientMismatchError(
                f"the cotangent of operand {position} has shape {jnp.shape(ct)}, the operand {jnp.shape(value)}",
                fix="sum over the axes along which the operand was broadcast",
            )
    return cts


class PythonAction(TapeAction):
    """A custom op that ran as plain Python."""

    __slots__ = ("__weakref__", "custom", "epoch", "inputs", "kept", "options", "outputs", "sequence", "several", "wanted", "where")  # fmt: skip
    reachable = True

    def __init__(self, custom, tensors, outputs, options, several):
        self.custom = custom
        self.inputs = tuple(tensor.id for tensor in tensors)
        self.wanted = tuple(tensor.requires_grad for tensor in tensors)
        self.outputs = tuple(TensorId() for _ in outputs)
        self.kept = (outputs, [tensor.value for tensor in tensors])
        self.options, self.several = options, several
        self.where, self.sequence = user_frame(), next_sequence()

    @property
    def op(self) -> str:
        return camel(self.custom.name)

    @property
    def line(self) -> str:
        return line_of(self.where)

    def name(self) -> str:
        return f"{self.op}({', '.join(map(repr, self.inputs))})"

    def __repr__(self) -> str:
        show = lambda ids: " ".join(f"%{id.number}" for id in ids)
        return f"{show(self.outputs)} = {self.custom.name} {show(self.inputs)}"

    def backward(self, grads: Gradients) -> None:
        cts = [grads.get(id) for id in self.outputs]
        if all(ct is None for ct in cts):
            return
        if any(isinstance(ct, Tensor) for ct in cts):
            raise ArgumentError(
                f"{self.custom.name} runs in Python (jit=False): its backward cannot be recorded",
                at=self.line,
                fix="write it with jax.numpy and drop jit=False, or do without create_graph=True",
            )
        outputs, values = self.kept
        filled = [jnp.zeros_like(out) if ct is None else ct for ct, out in zip(cts, outputs, strict=True)]
        ct, out = (tuple(filled), tuple(outputs)) if self.several else (filled[0], outputs[0])
        found = _one_per_operand(self.custom._backward(ct, out, *values, **self.options), values, self.custom._backward)
        for id, wanted, ct, value in zip(self.inputs, self.wanted, found, values, strict=True):
            if wanted:
                grads.insert(id, jnp.zeros_like(value) if ct is None else array_of(ct, value.dtype))


def custom_op(
    forward: Callable[..., Any] | None = None,
    backward: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    jit: bool = True,
) -> Any:
    """An op with a derivative of your own: one action, shown by its own name.

    forward takes arrays and returns an array or a tuple of them; keyword arguments are options.
    backward(ct, out, *operands, **options) returns one cotangent per operand, None for none: the
    grammar of the library's own rules. Both are jitted, and the op works under jax.grad, jit and
    vmap too; jit=False runs them as plain Python, for code that jax cannot trace.

    >>> import tapejax as tj
    >>> @tj.custom_op
    ... def cube(x):
    ...     return x**3
    >>> @cube.defbackward
    ... def _(ct, out, x):
    ...     return (3 * x**2 * ct,)
    >>> x = tj.tensor(2.0, requires_grad=True)
    >>> with tj.Tape() as tape:
    ...     y = cube(x)
    >>> tape[0].op, tape.backward(y)[x]
    ('Cube', Array(12., dtype=float32))
    """
    if forward is None:
        return functools.partial(custom_op, backward=backward, name=name, jit=jit)
    if not callable(forward):
        raise ArgumentError(f"custom_op takes a function, not {type(forward).__name__}", at=user_line())
    if isinstance(forward, type):  # as torch.autograd.Function has it
        raise ArgumentError(
            f"custom_op takes a function, not the class {forward.__name__}",
            at=user_line(),
            fix="custom_op(forward, backward) with forward(x) and backward(ct, out, x): there is no context object",
        )
    op = CustomOp(forward, name or getattr(forward, "__name__", "op"), jit)
    if backward is not None:
        op.defbackward(backward)
    return op
