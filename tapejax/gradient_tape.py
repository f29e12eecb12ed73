"""GradientTape: a tape by index, for those who keep the data themselves.

A slot is a number that stands for an array: an input, or the result of a record. The caller computes the
forward in any way he likes and hands each record the data that its backward will read; `backward` adds
the gradient of every slot to the caller's own buffers.

There is no calculus here. A record is the same OpAction, with the same plan made from the same rules,
that a lifted function leaves on a Tape; only the bookkeeping by slot is added.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.calculus.reverse import Options
from tapejax.engine.backward import hand_over
from tapejax.errors import (
    ArgumentError,
    ConcreteValueError,
    DtypeError,
    GradientMismatchError,
    HookError,
    NumericalInstabilityError,
    SeedError,
    SlotError,
    TapeError,
    TapejaxError,
)
from tapejax.ground.accumulation import added
from tapejax.ground.caches import cached
from tapejax.ground.compat import X64
from tapejax.ground.where import user_frame, user_line
from tapejax.hooks import registry
from tapejax.hooks.passing import Hooked
from tapejax.hooks.regions import open_regions
from tapejax.hooks.registry import AFTER, BEFORE, GRADIENT, Hook
from tapejax.nn import layers
from tapejax.ops.lift import MAX_PLANS_PER_FUNCTION, Lifted, lift
from tapejax.plan.plan import OpAction, Plan, x64_for
from tapejax.tape.action import TensorId
from tapejax.tape.tape import Epoch
from tapejax.tensor.gradients import Gradients
from tapejax.tensor.tensor import Tracer, array_of

_CONSTANT = -1  # the slot of an operand that gets no gradient
_is_finite = jax.jit(lambda x: jnp.all(jnp.isfinite(x)))


class Operand(NamedTuple):
    """What a record reads: a slot (None for a constant), its data if given, and what to call it in errors."""

    name: str
    slot: int | None
    data: Any


class GradientTape:
    """A tape of records over numbered slots, with the data that the backward reads given by the caller.

    `input` allocates a slot, each `record_*` returns the slot of its result. In place of a slot, None
    makes an operand a constant; data that the backward does not read may be None. `backward` leaves
    the tape as it is, and may run again.

    check_finite: raise NumericalInstabilityError if a gradient holds NaN or Inf, and write nothing.
    Under jax.jit numbers cannot be looked at: there it must be False.

    >>> import numpy as np, tapejax as tj
    >>> tape = tj.GradientTape()
    >>> x, w = tape.input((3,)), tape.input((3,))
    >>> x_data, w_data = np.float32([1, 2, 3]), np.float32([4, 5, 6])
    >>> y = tape.record_mul(x, x_data, w, w_data)
    >>> z = tape.record_add(y, x)
    >>> print(tape)
    <gradient tape: 4 slots, 2 records>
       0  %2 = mul %0 %1
       1  %3 = add %2 %0
    >>> buffers = tape.buffers()
    >>> tape.backward(np.ones(3, np.float32), buffers)
    >>> buffers[x], buffers[w]
    (array([5., 6., 7.], dtype=float32), array([1., 2., 3.], dtype=float32))
    """

    def __init__(self, *, check_finite: bool = True):
        self.check_finite = check_finite
        self._slots: list[jax.ShapeDtypeStruct] = []
        self._records: list[OpAction] = []
        self._epoch = Epoch("a gradient tape")
        self._hooks: dict[int, list[Hook]] = {}  # by slot
        self._regions: dict[int, tuple[str, ...]] = {}  # by the slot of a result

    def __enter__(self) -> Any:
        """Refused: this tape does not watch what runs. `Tape` does."""
        raise ArgumentError(
            "tapejax.GradientTape is a tape of numbered slots: it does not record what runs in a block",
            at=user_line(),
            fix="with tapejax.Tape() as tape: loss = ...; then tape.backward(loss)[x]",
        )

    def __exit__(self, *exc_info: object) -> None:
        """There is nothing to leave: see `__enter__`."""

    # -- slots ----------------------------------------------------------------------------------

    def input(self, shape: int | Sequence[int], dtype: Any = None) -> int:
        """A new slot for an array of this shape; dtype defaults to jax's float."""
        sizes = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        if not all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in sizes):
            raise ArgumentError(
                f"{shape!r} is not a shape", at=user_line(), fix="give a tuple of sizes, () for a number"
            )
        try:
            kind = jnp.dtype(dtype if dtype is not None else jnp.result_type(float))
        except TypeError:
            raise DtypeError(f"{dtype!r} is not a dtype", at=user_line()) from None
        if not jnp.issubdtype(kind, jnp.inexact):
            raise DtypeError(
                f"a slot of {kind} has no gradient", at=user_line(), fix="give integers as constants, not slots"
            )
        return self._new(tuple(map(int, sizes)), kind)

    def _new(self, shape: tuple[int, ...], dtype: Any) -> int:
        self._slots.append(jax.ShapeDtypeStruct(shape, dtype))
        return len(self._slots) - 1

    @property
    def num_tensors(self) -> int:
        """The number of slots, and of the buffers that `backward` wants."""
        return len(self._slots)

    def shape(self, slot: int) -> tuple[int, ...]:
        """The shape of a slot."""
        return self._slots[self._index(slot, "the slot")].shape

    def buffers(self) -> list[np.ndarray]:
        """Zeros for every slot: NumPy arrays of its shape and dtype."""
        return [np.zeros(slot.shape, slot.dtype) for slot in self._slots]

    # -- records --------------------------------------------------------------------------------

    def record_add(self, a: int | None, b: int | None, a_data: Any = None, b_data: Any = None) -> int:
        """out = a + b, broadcast. Its backward reads no data; a constant operand gives its data for the shape."""
        return self._record("add", jnp.add, Operand("a", a, a_data), Operand("b", b, b_data))

    def record_mul(self, a: int | None, a_data: Any, b: int | None, b_data: Any) -> int:
        """out = a * b, broadcast."""
        return self._record("mul", jnp.multiply, Operand("a", a, a_data), Operand("b", b, b_data))

    def record_matmul(self, a: int | None, a_mat: Any, b: int | None, b_mat: Any) -> int:
        """out = a @ b: matrices, vectors or stacks of them, as in jnp.matmul."""
        return self._record("matmul", jnp.matmul, Operand("a", a, a_mat), Operand("b", b, b_mat))

    def record_silu(self, input: int, input_data: Any) -> int:
        """out = input * sigmoid(input)"""
        return self._record("silu", jax.nn.silu, Operand("input", input, input_data))

    def record_layer_norm(
        self,
        input: int | None,
        input_data: Any,
        scale: int | None = None,
        scale_data: Any = None,
        bias: int | None = None,
        *,
        axis: int | tuple[int, ...] = -1,
        epsilon: float = 1e-5,
        approximation: str | None = None,
    ) -> int:
        """out = (input - mean) / sigma * scale + bias, along axis, with exact gradients for all three.

        approximation="mean-only" leaves out how sigma depends on the input, and takes the scale out of the
        mean: dx = scale / sigma * (dy - mean(dy)). That is a wrong gradient, commonly by a third or more; it is
        here to reproduce engines that have it. The gradients of scale and bias are exact in either case.
        """
        if approximation not in (None, "mean-only"):
            raise ArgumentError(
                f"unknown approximation {approximation!r}",
                at=user_line(),
                fix='leave it out for the exact gradient, or give approximation="mean-only"',
            )
        axis = tuple(axis) if isinstance(axis, (list, tuple)) else axis
        operands = [Operand("input", input, input_data)]
        for operand in (Operand("scale", scale, scale_data), Operand("bias", bias, None)):
            if operand.slot is not None or operand.data is not None:
                operands.append(operand)
        names = tuple(operand.name for operand in operands)
        norm = _layer_norm(names, axis, float(epsilon), approximation is not None)
        name = "layer_norm" if approximation is None else "layer_norm_mean_only"
        return self._record(name, norm, *operands)

    def record_ssm_scan(
        self,
        input: int | None,
        input_data: Any,
        a: int | None,
        a_data: Any,
        b: int | None,
        b_data: Any,
        h0: int | None = None,
        h0_data: Any = None,
        *,
        axis: int = 0,
        reverse: bool = False,
        parallel: bool = True,
    ) -> int:
        """out_t = a_t out_{t-1} + b_t input_t along axis, from h0 or from zero: `tapejax.nn.ssm_scan`.

        a, b and the input are broadcast against each other, so an a without the time axis is constant. What the
        backward reads of the states is computed when it is recorded, by an associative scan unless not parallel.
        """
        operands = [Operand("a", a, a_data), Operand("b", b, b_data), Operand("input", input, input_data)]
        if h0 is not None or h0_data is not None:
            operands.append(Operand("h0", h0, h0_data))
        return self._record("ssm_scan", _ssm_scan(operator.index(axis), bool(reverse), bool(parallel)), *operands)

    def _record(self, name: str, function: Callable[..., Any], *operands: Operand) -> int:
        """Check everything, then allocate the result's slot."""
        kinds, values, wrt = [], [], []
        for operand in operands:
            kind, value = self._operand(name, operand)
            kinds.append(kind)
            values.append(value)
            wrt.append(operand.slot is not None)
        if not any(wrt):
            raise ArgumentError(
                f"record_{name}: every operand is a constant", at=user_line(), fix="there is nothing to record"
            )
        try:
            plan = _plan(name, function, tuple((k.shape, k.dtype) for k in kinds), tuple(wrt))
        except (TypeError, ValueError) as cause:
            if isinstance(cause, TapejaxError):
                raise
            shown = ", ".join(f"{o.name} {_show(kind)}" for o, kind in zip(operands, kinds, strict=True))
            raise ArgumentError(f"record_{name}: the operands do not fit ({shown}): {cause}", at=user_line()) from cause
        kept = _kept(plan, name, operands, values)
        inputs = [TensorId(_CONSTANT if o.slot is None else o.slot) for o in operands]
        out = plan.out_kinds[0].aval
        slot = self._new(out.shape, out.dtype)
        self._records.append(OpAction(plan, inputs, (slot,), kept, user_frame(3), self._epoch))
        if regions := open_regions():
            self._regions[slot] = regions
        return slot

    def _operand(self, name: str, operand: Operand) -> tuple[Any, Any]:
        """(shape and dtype, value or None) of an operand."""
        called = f"record_{name}: {operand.name}"
        value = None if operand.data is None else _as_array(operand.data, f"{called}'s data")
        if operand.slot is None:
            if value is None:
                raise ArgumentError(
                    f"{called} is a constant and needs data", at=user_line(), fix="give a slot, or data"
                )
            return value, value
        kind = self._slots[self._index(operand.slot, called)]
        if value is not None and (value.shape != kind.shape or value.dtype != kind.dtype):
            raise ArgumentError(
                f"{called}'s data is {_show(value)}, slot {operand.slot} is {_show(kind)}",
                at=user_line(),
                fix="give the values of that slot, or the slot of these values",
            )
        return kind, value

    def _index(self, slot: Any, called: str) -> int:
        if isinstance(slot, (bool, np.bool_)) or not hasattr(slot, "__index__"):
            raise ArgumentError(f"{called} is a slot's number, not {type(slot).__name__}", at=user_line())
        number = operator.index(slot)
        if not 0 <= number < len(self._slots):
            there = f"slots 0 to {len(self._slots) - 1}" if self._slots else "no slots yet"
            raise SlotError(
                f"{called}: there is no slot {number}; this tape has {there}",
                at=user_line(),
                fix="use what input() and record_*() returned",
            )
        return number

    # -- hooks ----------------------------------------------------------------------------------

    def register_hook(self, slot: int, function: Callable[[Any], Any]) -> Hook:
        """Call function(gradient) when the gradient of a slot is complete, before it goes on or is added to its buffer.

        What it returns takes its place. The handle takes it off again. Hooks on records, by op, region or
        `tapejax.hooks.EVERYTHING`, are those of any tape: `tapejax.hooks.before` and `after`.

        >>> import numpy as np, tapejax as tj
        >>> tape = tj.GradientTape()
        >>> x = tape.input((2,))
        >>> y = tape.record_mul(x, np.float32([3, -4]), x, np.float32([3, -4]))
        >>> handle = tape.register_hook(x, lambda gradient: gradient.clip(-7, 7))
        >>> buffers = tape.buffers()
        >>> tape.backward(np.ones(2, np.float32), buffers)
        >>> buffers[x]
        array([ 6., -7.], dtype=float32)
        """
        number = self._index(slot, "the slot")
        return Hook(GRADIENT, function, f"slot {number}").keep(self._hooks.setdefault(number, []))

    def _hooked(self) -> Hooked | None:
        """What is hooked about a backward that begins now. The numbers here are slots, not those of Tensors."""
        slots = {slot: list(hooks) for slot, hooks in self._hooks.items() if hooks}
        everywhere = [hook for hook in registry.everywhere if hook.kind in (BEFORE, AFTER)]
        if not (slots or everywhere):
            return None
        made = {record.numbers[0] for record in self._records}
        results = {(GRADIENT, slot): hooks for slot, hooks in slots.items() if slot in made}
        inputs = {slot: hooks for slot, hooks in slots.items() if slot not in made}
        return Hooked(list(self._records), results, inputs, everywhere, _Regions(self._regions))

    # -- backward -------------------------------------------------------------------------------

    def backward(self, loss_grad: Any, tensors: Any, *, root: int | None = None) -> None:
        """Add the gradient of every slot to its buffer, starting with loss_grad at root.

        root: by default the last record's result. tensors: one buffer per slot, in order. NumPy buffers are
        added to in place; jax arrays, which cannot change, are replaced in the list. What they hold is
        kept and added to, never read as a gradient. Nothing is written unless everything is right.
        """
        root = self._root(root)
        seed = self._seed(loss_grad, root)
        _check_buffers(tensors, self._slots)
        told = _Finite(self)
        told.watch("loss_grad", None, root, seed)
        grads = Gradients()
        grads.add(root, seed)
        hooked = self._hooked() if registry.live else None
        if hooked is None:
            for record in reversed(self._records):  # the whole of reverse mode: strict reverse order, adding up
                if record.numbers[0] in grads.sums:
                    record.backward(grads)
                    for id in record.differentiable_inputs():
                        told.watch(record.plan.name, record, id.number, grads.sums[id.number])
        else:
            self._backward_with(hooked, grads, told)
        told.check()
        sums = {number: _sum(tensors[number], gradient) for number, gradient in grads.sums.items()}
        for number, total in sums.items():
            told.watch("the sum with what its buffer holds", None, number, total)
        told.check()
        for number, total in sums.items():
            if isinstance(tensors[number], np.ndarray):
                tensors[number][...] = total
            else:
                tensors[number] = total

    def _backward_with(self, hooked: Hooked, grads: Gradients, told: _Finite) -> None:
        """The same, with hooks. A slot that has one is looked at when its hooks have been told."""
        left = list(self._records)
        try:
            for index in reversed(range(len(self._records))):
                left, record = self._records[: index + 1], self._records[index]
                if record.numbers[0] not in grads.sums:
                    continue
                hooked.pull(record, index, grads, lambda action, into: action.backward(into))
                for id in record.differentiable_inputs():
                    if not self._hooks.get(id.number):
                        told.watch(record.plan.name, record, id.number, grads.sums[id.number])
            hooked.finish(grads)
        except HookError as error:
            hand_over(error, left[-1] if left else None, left, grads)
            raise
        for slot in self._hooks:
            if slot in grads.sums:
                told.watch("the hooks on it", None, slot, grads.sums[slot])

    def _root(self, root: int | None) -> int:
        if root is not None:
            return self._index(root, "root")
        if not self._records:
            raise TapeError(
                "nothing was recorded: backward has nowhere to start", at=user_line(), fix="record an op first"
            )
        return self._records[-1].numbers[0]

    def _seed(self, loss_grad: Any, root: int) -> Any:
        kind = self._slots[root]
        with x64_for(kind.dtype):
            seed = _as_array(loss_grad, "loss_grad")
            if seed.shape != kind.shape or (seed.dtype != kind.dtype and not seed.weak_type):
                raise SeedError(
                    f"loss_grad is {_show(seed)}, slot {root} is {_show(kind)}",
                    at=user_line(),
                    fix="give a gradient of the root's own shape and dtype, or say which slot is the root",
                )
            return seed.astype(kind.dtype)

    # -- showing --------------------------------------------------------------------------------

    def __repr__(self) -> str:
        slots, records = len(self._slots), len(self._records)
        return f"<gradient tape: {slots} slot{'s' * (slots != 1)}, {records} record{'s' * (records != 1)}>"

    def __str__(self) -> str:
        return "\n".join([repr(self), *(f"{index:>4}  {_line(record)}" for index, record in enumerate(self._records))])


class _Regions:
    """The regions of records, which have no numbers that regions know."""

    def __init__(self, names: dict[int, tuple[str, ...]]):
        self.names = names

    def of(self, record: OpAction) -> tuple[str, ...]:
        return self.names.get(record.numbers[0], ())


# --- plans -----------------------------------------------------------------------------------------


@cached(256)
def _op(name: str, function: Any) -> Lifted:
    return lift(function, name=name)


def _plan(name: str, function: Any, kinds: tuple[Any, ...], wrt: tuple[bool, ...]) -> Plan:
    """Kept where a lifted function keeps its own, so that `tapejax.plans` and `clear_plans` know of it."""
    plans, key = _op(name, function).plans, (kinds, wrt, X64.value)
    plan = plans.get(key)
    if plan is None:
        while len(plans) >= MAX_PLANS_PER_FUNCTION:
            plans.popitem(last=False)
        examples = [jax.ShapeDtypeStruct(*kind) for kind in kinds]
        plan = plans[key] = Plan(name, function, examples, wrt, Options())
    return plan


@cached(256)
def _layer_norm(names: tuple[str, ...], axis: Any, epsilon: float, mean_only: bool) -> Callable[..., Any]:
    norm = _mean_only_layer_norm if mean_only else layers.layer_norm
    return lambda x, *rest: norm(x, **dict(zip(names[1:], rest, strict=True)), axis=axis, epsilon=epsilon)


@cached(256)
def _ssm_scan(axis: int, reverse: bool, parallel: bool) -> Callable[..., Any]:
    return functools.partial(layers.ssm_scan, axis=axis, reverse=reverse, parallel=parallel)


def _mean_only_layer_norm(x, scale=1.0, bias=0.0, *, axis, epsilon):
    """A function with layer_norm's value, whose exact gradient is the shortcut's."""
    exact = layers.layer_norm(x, axis=axis, epsilon=epsilon)
    sigma = jnp.sqrt(jnp.var(x, axis, keepdims=True) + epsilon)
    scaled = x * lax.stop_gradient(scale / sigma)
    centred = scaled - jnp.mean(scaled, axis, keepdims=True)
    return lax.stop_gradient(exact) * scale + bias + (centred - lax.stop_gradient(centred))


def _kept(plan: Plan, name: str, operands: Sequence[Operand], values: list[Any]) -> tuple[Any, ...]:
    """What the plan's backward reads. The forward is run only if that is not among the data."""
    reversed_ = plan.reversed
    if reversed_ is None:
        return ()
    inputs = reversed_.program.inputs
    made = [*reversed_.extras, *(reversed_.program.outputs[i] for i in reversed_.saves_out)]
    read = {inputs[i] for i in reversed_.saves_in}
    read.update(slot for eqn in reversed_.leading_to(made) for slot in eqn.inputs)
    filled = []
    for slot, operand, value, aval in zip(inputs, operands, values, plan.examples, strict=True):
        if value is None and slot in read:
            raise ArgumentError(
                f"record_{name}: the backward reads the data of {operand.name} (slot {operand.slot}), which is None",
                at=user_line(),
                fix="give the values that the forward had",
            )
        filled.append(np.zeros(aval.shape, aval.dtype) if value is None and made else value)
    results: Any = [None] * plan.n_results
    if made:
        results = plan.forward(*filled)
        results = (results,) if plan.single else results
    return plan.keep((*filled, *results))


def _line(record: OpAction) -> str:
    operands = ["constant" if id.number == _CONSTANT else f"%{id.number}" for id in record.inputs]
    return f"%{record.numbers[0]} = {record.plan.name} {' '.join(operands)}"


# --- arrays and buffers ----------------------------------------------------------------------------


def _show(kind: Any) -> str:
    return f"{kind.dtype}{list(kind.shape)}"


def _as_array(data: Any, called: str) -> Any:
    """Numbers as an array of jax's, a copy if the caller could change them later."""
    try:
        return array_of(data)
    except (TypeError, ValueError) as cause:
        raise ArgumentError(f"{called} is not an array: {cause}", at=user_line()) from cause


def _check_buffers(tensors: Any, slots: Sequence[Any]) -> None:
    where = user_line()
    if not isinstance(tensors, (list, tuple)):
        raise ArgumentError(
            f"the buffers are a list with one array per slot, not {type(tensors).__name__}",
            at=where,
            fix="tape.buffers() gives one",
        )
    if len(tensors) != len(slots):
        raise ArgumentError(
            f"{len(tensors)} buffers for {len(slots)} slots", at=where, fix="tape.num_tensors says how many to give"
        )
    seen: dict[int, int] = {}
    for number, (buffer, slot) in enumerate(zip(tensors, slots, strict=True)):
        called = f"the buffer of slot {number}"
        if not isinstance(buffer, (np.ndarray, jax.Array)):
            raise ArgumentError(f"{called} is a {type(buffer).__name__}, not an array", at=where)
        if buffer.shape != slot.shape or not _holds(buffer.dtype, slot.dtype):
            raise GradientMismatchError(
                f"{called} is {_show(buffer)}, its gradient is {_show(slot)}",
                at=where,
                fix="give a buffer of the slot's shape, and of its dtype or a wider one",
            )
        if isinstance(buffer, np.ndarray):
            if not buffer.flags.writeable:
                raise ArgumentError(f"{called} is read-only", at=where, fix="give it a copy")
            if id(buffer) in seen:
                raise ArgumentError(f"slots {seen[id(buffer)]} and {number} share one buffer", at=where)
            seen[id(buffer)] = number
        elif isinstance(tensors, tuple):
            raise ArgumentError(
                f"{called} is a jax array in a tuple, and can be neither changed nor replaced",
                at=where,
                fix="give a list, or NumPy buffers",
            )


def _holds(wide: Any, narrow: Any) -> bool:
    """Whether a buffer of one dtype holds numbers of another without loss."""
    return jnp.issubdtype(wide, jnp.inexact) and np.can_cast(narrow, wide, "safe")


def _sum(buffer: Any, gradient: Any) -> Any:
    if isinstance(buffer, np.ndarray):
        if isinstance(gradient, Tracer):
            raise ConcreteValueError(
                "a NumPy buffer cannot take a gradient that is being traced",
                at=user_line(),
                fix="give a list of jax arrays, which are replaced in it",
            )
        return added(buffer, np.asarray(gradient).astype(buffer.dtype))
    with x64_for(buffer.dtype):
        return added(buffer, gradient.astype(buffer.dtype))


class _Finite:
    """Watches gradients go by, and tells of the first that holds NaN or Inf.

    One small jitted reduction for each; their answers are waited for only in `check`.
    """

    def __init__(self, tape: GradientTape):
        self.tape, self.seen = tape, []

    def watch(self, op: str, record: OpAction | None, slot: int, gradient: Any) -> None:
        if not self.tape.check_finite:
            return
        if isinstance(gradient, Tracer):
            raise ConcreteValueError(
                "whether a gradient is finite cannot be looked at while it is being traced",
                at=user_line(),
                fix="under jax.jit use GradientTape(check_finite=False)",
            )
        if isinstance(gradient, np.ndarray):
            finite = np.isfinite(gradient).all()
        else:
            with x64_for(gradient.dtype):
                finite = _is_finite(gradient)
        self.seen.append((finite, op, record, slot, gradient))

    def check(self) -> None:
        for finite, op, record, slot, gradient in self.seen:
            if not finite:
                raise self._error(op, record, slot, np.asarray(gradient))
        self.seen.clear()

    def _error(self, op: str, record: OpAction | None, slot: int, gradient: Any) -> NumericalInstabilityError:
        bad = ~np.isfinite(gradient)
        count, first = int(bad.sum()), tuple(int(i) for i in np.argwhere(bad)[0])
        made = {one.numbers[0] for one in self.tape._records}
        role = "the incoming gradient" if op == "loss_grad" else "the gradient"
        kind = "intermediate" if slot in made else "input"
        error = NumericalInstabilityError(
            f"{role} of slot {slot} ({kind}), from {op}, holds {count} NaN or Inf among {gradient.size}, "
            f"first {gradient[first]} at {list(first)}; nothing was written",
            at=record.line if record is not None else user_line(),
            action=_line(record) if record is not None else None,
            fix="look at the data that was given to this record; GradientTape(check_finite=False) lets them pass",
        )
        error.op, error.slot, error.count, error.first_index = op, slot, count, first
        return error
