"""Tensor: an immutable value with an identity. Operators and methods are added by `operators`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from sys import _getframe
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.errors import (
    ArgumentError,
    ArrayAttributeError,
    ConcreteValueError,
    DeletedError,
    DtypeError,
    GivenToJaxError,
    ImmutableTensorError,
    IndexingError,
    NotHereError,
    TensorConversionError,
    TracedInLibraryError,
    UnknownAttributeError,
    WantsArraysError,
)
from tapejax.ground import callers, compat, habits, plain_math
from tapejax.ground.placement import is_gone, is_here, local_part
from tapejax.ground.where import is_own, user_line
from tapejax.tape import cuts
from tapejax.tape.above import above
from tapejax.tape.action import Composite, TensorId, next_number
from tapejax.tape.scope import current_scope

if TYPE_CHECKING:
    from tapejax.hooks import Hook
    from tapejax.tensor.gradients import Gradients

Tracer = jax.core.Tracer
SHARED = -1


class Kind:
    """What a plan needs to know of a tensor: its aval, and whether it needs a gradient.

    Interned, so that a plan is found by identity.
    """

    __slots__ = ("__weakref__", "aval", "requires_grad")
    _interned: ClassVar[WeakValueDictionary[tuple[Any, bool], Kind]] = WeakValueDictionary()  # those in use

    def __init__(self, aval: Any, requires_grad: bool):
        self.aval = aval
        self.requires_grad = bool(requires_grad)

    @classmethod
    def of(cls, aval: Any, requires_grad: bool) -> Kind:
        kind = cls._interned.get((aval, requires_grad))
        if kind is None:
            kind = cls._interned.setdefault((aval, requires_grad), cls(aval, requires_grad))
        return kind

    def __repr__(self) -> str:
        return f"{self.aval.str_short()}{', requires_grad' * self.requires_grad}"


class _Hint(type):
    """jax names the type of an argument it does not take; where it asks for this one's name, we can say what to do."""

    def __repr__(cls) -> str:
        caller = callers.of_refusal()
        if caller is not None:
            raise _given(caller)
        return f"<class 'tapejax.{cls.__name__}'>"


class Tensor(metaclass=_Hint):
    """An array on the tape: `value`, `id`, `requires_grad`. Never changed, never holds a gradient.

    Make one with `tapejax.tensor`. What an op returns for Tensors are Tensors.

    >>> import tapejax as tj
    >>> x = tj.tensor([1.0, 2.0], requires_grad=True)
    >>> y = (x * x).sum()
    >>> y.value, y.shape, y.requires_grad, y.is_leaf
    (Array(5., dtype=float32), (), True, False)
    """

    __slots__ = ("__weakref__", "held", "identity", "kind", "slot")
    __array_priority__ = 1000
    __hash__ = object.__hash__  # type: ignore[assignment]  # `==` compares elements

    # For the layers above; people use `value`, `id` and `aval`. What an op returns is pending at first: `held` is the
    # block that has the call, `slot` the place there, and `identity` only its number. A tensor that shares the value
    # of a pending one holds that one, and has SHARED as its slot. What is not pending holds its value and has no slot.
    held: Any
    slot: int | None
    identity: TensorId | int
    kind: Kind

    def __init__(self, *args: Any, **kwargs: Any):
        raise ArgumentError(
            "Tensor is not called directly", at=user_line(), fix="tapejax.tensor(data, requires_grad=True)"
        )

    @property
    def value(self) -> Any:
        """The jax.Array (or tracer) itself; using it records nothing."""
        if self.kind.requires_grad:
            frame = _getframe(1)
            code = frame.f_code
            if not is_own(code.co_filename):
                cuts.left(self.number, ".value", where=(code, frame.f_lasti))  # why a gradient may be missing
        if self.slot is not None:
            value = self.held
            if isinstance(value, Composite):
                value.flush()
                if self.held is value:  # the call that makes it failed, or handing it out was interrupted
                    value.settle(self)
            elif isinstance(value, Tensor):
                self.held, self.slot = value.value, None
        return self.held

    @property
    def id(self) -> TensorId:
        id = self.identity
        if type(id) is int:
            value = self.held
            if self.kind.requires_grad and isinstance(value, Composite):
                value.materialise()
            id = self.identity  # another thread may have run it meanwhile
            if type(id) is int:
                return TensorId(id)  # equal to any other with this number
        return id  # type: ignore[return-value]

    @property
    def number(self) -> int:
        """The number of its identity."""
        id = self.identity
        return id if type(id) is int else id.number  # type: ignore[union-attr]

    @property
    def epoch(self) -> Any:
        """That of the tape which recorded what made it; None for a leaf."""
        id = self.identity
        if type(id) is int:
            return self.held.epoch if self.kind.requires_grad and isinstance(self.held, Composite) else None
        return getattr(id.made_by, "epoch", None)  # type: ignore[union-attr]

    @property
    def requires_grad(self) -> bool:
        return self.kind.requires_grad

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded op made it."""
        id = self.identity
        return not self.kind.requires_grad if type(id) is int else id.made_by is None  # type: ignore[union-attr]

    @property
    def aval(self) -> Any:
        return self.kind.aval

    @property
    def shape(self) -> tuple[int, ...]:
        return self.kind.aval.shape

    @property
    def dtype(self) -> Any:
        return self.kind.aval.dtype

    @property
    def weak_type(self) -> bool:
        return self.kind.aval.weak_type

    @property
    def ndim(self) -> int:
        return len(self.kind.aval.shape)

    @property
    def size(self) -> int:
        return self.kind.aval.size

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def device(self) -> Any:
        return self.concrete("device").device

    @property
    def sharding(self) -> Any:
        return self.concrete("sharding").sharding

    def devices(self) -> set[Any]:
        return self.concrete("devices()").devices()

    def detach(self) -> Tensor:
        """The same value as a new leaf that needs no gradient."""
        kind = Kind.of(self.kind.aval, False)
        if isinstance(self.held, Tracer):  # whoever differentiates the traced program must stop here too
            return with_id(jax.lax.stop_gradient(self.held), TensorId(), kind)
        id = TensorId()
        if self.kind.requires_grad:
            cuts.left(self.number, "detach", id.number)
        return self.known_as(id, kind)

    def alias(self) -> Tensor:
        """A second Tensor object with the same value and the same identity."""
        return self.known_as(self.id, self.kind)

    def known_as(self, id: TensorId, kind: Kind) -> Tensor:
        """The same value, computed or not, under another identity."""
        value = self.held
        if isinstance(value, Composite):
            value = self
        tensor = with_id(value, id, kind)
        if isinstance(value, Tensor):
            tensor.slot = SHARED
        return tensor

    def backward(self, seed: Any = None, **options: Any) -> Gradients:
        """`tapejax.backward` from this root: the gradients are returned, not stored."""
        return above.backward(self, seed, **options)

    def register_hook(self, function: Callable[[Any], Any]) -> Hook:
        """Call function(gradient) when its gradient is complete; see `tapejax.hooks.on_gradient`."""
        return above.on_gradient(self, function)

    def numpy(self) -> np.ndarray:
        """A NumPy copy of the value; no gradient flows through it."""
        return np.array(self._leaves_the_tape("numpy()"))

    def item(self, *index: int) -> Any:
        """The single element as a Python number."""
        return self._converted("item()", lambda value: value.item(*index))

    def tolist(self) -> Any:
        return self._leaves_the_tape("tolist()").tolist()

    def block_until_ready(self) -> Tensor:
        self.concrete("block_until_ready()").block_until_ready()
        return self

    if not TYPE_CHECKING:  # to a type checker a missing attribute is an error anyway

        def __getattr__(self, name: str) -> Any:
            fix = habits.of_attribute(name)
            if name == "__jax_array__" and self.kind.requires_grad and callers.is_jax_but_no_operator():
                raise _refused(self, callers.find())
            if fix is not None:
                raise UnknownAttributeError(f"'Tensor' object has no attribute {name!r}", at=user_line(), fix=fix)
            if not name.startswith("_") and hasattr(jax.Array, name) and not hasattr(Tensor, name):
                fix = f"x.value.{name}: x.value is the plain array"
                raise ArrayAttributeError(f"'Tensor' object has no attribute {name!r}", at=user_line(), fix=fix)
            return object.__getattribute__(self, name)  # fails again, in Python's own words

    def concrete(self, wanted: str) -> Any:
        value = self.value
        if isinstance(value, Tracer):
            raise (TracedInLibraryError if callers.is_asked_by_a_library() else ConcreteValueError)(
                f"{wanted} needs a concrete value, but this Tensor is being traced by jax.jit, vmap or grad",
                at=user_line(),
                action=f"{self.id!r}: {self.aval.str_short()}",
                fix="move it out of the traced function; for branches use jnp.where or lax.cond, for loops lax.scan",
            )
        if is_gone(value):
            raise DeletedError.of("the value of this Tensor", user_line(), f"{self.id!r}: {self.aval.str_short()}")
        return value

    def _whole(self, wanted: str) -> Any:
        """Its value, all of which this process can read."""
        value = self.concrete(wanted)
        if not is_here(value):
            raise NotHereError(
                f"{wanted} needs all of the value, and {local_part(value)[1]}",
                at=user_line(),
                action=f"{self.id!r}: {self.aval.str_short()}",
                fix="x.value.addressable_shards has the part that is here; jax.experimental.multihost_utils.process_allgather("
                "x.value, tiled=True), called by all processes, has all of it; Orbax saves it",
            )
        return value

    def _leaves_the_tape(self, wanted: str) -> Any:
        """Its value, for whoever wants it plain; that it left is logged."""
        value = self._whole(wanted)
        if self.kind.requires_grad:
            cuts.left(self.number, wanted)
        return value

    def _converted(self, wanted: str, convert: Callable[[Any], Any]) -> Any:
        """The value as a plain Python number."""
        value = self._leaves_the_tape(wanted)
        try:
            return convert(value)
        except (TypeError, ValueError, IndexError) as cause:
            kind = IndexingError if isinstance(cause, IndexError) else ArgumentError
            what = f"{wanted} of a Tensor of {self.dtype}{list(self.shape)}: {cause}"
            raise kind(
                what, fix="pick one element, x[i], or reduce it: x.sum(), x.any(), x.all(), x.tolist()"
            ) from None

    # -- conversions: explicit, so that nothing leaves the tape unnoticed -------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self.requires_grad or isinstance(self.value, Tracer):
            caller = callers.find()
            if caller.jax:
                raise _refused(self, caller) if self.requires_grad else _given(caller)
            if self.requires_grad and caller.library is not None:  # it may know jax's arrays, and not Tensors
                raise _refused(self, caller)
        if self.requires_grad:
            raise TensorConversionError(
                "a recorded Tensor was about to become a NumPy or JAX array, which would drop it from the tape",
                at=user_line(),
                action=f"{self.id!r}: {self.aval.str_short()}",
                fix="use the same function from tapejax.numpy (or tapejax.lift), or leave the tape with .numpy(), .value or .detach()",
            )
        if copy is False:
            raise ValueError("a Tensor's value cannot be shared with NumPy without a copy")
        return np.array(self._whole("np.asarray"), dtype=dtype)

    def __float__(self) -> float:
        if self.kind.requires_grad and current_scope().enabled and (called := plain_math.called_by(_getframe(1))):
            raise TensorConversionError(
                f"{called[0]} of a Tensor would drop it from the tape",
                at=user_line(),
                action=f"{self.id!r}: {self.aval.str_short()}",
                fix=f"{called[1]} is recorded; {called[0]}(x.item()) is not, on purpose",
            )
        return self._converted("float()", float)

    def __int__(self) -> int:
        return self._converted("int()", int)

    def __complex__(self) -> complex:
        return self._converted("complex()", complex)

    def __index__(self) -> int:
        return self._converted("an index", operator.index)

    def __bool__(self) -> bool:
        return self._converted("a truth value (`if`, `while`, `and`, `or`, `not`)", bool)

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentError("len() of a Tensor with no dimensions", fix="x.size counts the elements")
        return self.shape[0]

    def __format__(self, spec: str) -> str:
        return format(self.concrete("format()"), spec) if spec else repr(self)

    def __repr__(self) -> str:
        value = self.value
        if isinstance(value, Tracer):
            parts = [f"{value!r}", f"dtype={self.dtype}"]
        else:
            here, part = local_part(self.concrete("repr()"))
            text = np.array2string(here, separator=", ", prefix="Tensor(")
            parts = [text, *[part] * bool(part), f"dtype={self.dtype}"]
        producer = self.id.producer
        if producer is not None:
            parts.append(f"op={getattr(producer, 'op', type(producer).__name__)}")
        elif self.requires_grad:
            parts.append("requires_grad=True")
        return f"Tensor({', '.join(parts)}, id={self.number})"

    # -- immutable, but copyable and picklable -----------------------------------------------------

    def __setitem__(self, index: Any, value: Any) -> None:
        raise ImmutableTensorError(
            "Tensors are immutable: x[i] = v is not possible", at=user_line(), fix="x = x.at[i].set(v)"
        )

    def __copy__(self) -> Tensor:
        return self.alias()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        # Of what an op made, another name for the same. Of a leaf, a new leaf that knows what it was made from.
        if _is_recorded(self):
            return self.alias()
        if not _records(self):
            return self.known_as(TensorId(), self.kind)
        caller = callers.find(called="copy.deepcopy", whole=True)
        made = cuts.took(self.id, self.kind, caller, next_number(), traced=False, exposed=False)
        return self.known_as(cuts.rebuilt(next_number(), made.chain, self.kind, caller, traced=False), self.kind)

    def __reduce__(self):
        if _records(self):
            caller = callers.find(called="pickle", whole=True)
            if _is_recorded(self):
                raise _refused(self, caller, TensorConversionError)
            cuts.took(self.id, self.kind, caller, next_number(), traced=False, exposed=False)
        return _unpickle, (np.asarray(self._whole("pickle")), self.dtype.name, self.weak_type, self.requires_grad)


def _unpickle(data: np.ndarray, dtype: str, weak_type: bool, requires_grad: bool) -> Tensor:
    value = jnp.asarray(data, dtype=jnp.dtype(dtype))
    made = make(jax.lax.convert_element_type(value, value.dtype) if not weak_type else value, requires_grad)
    if not _records(made):
        return made
    return made.known_as(cuts.rebuilt(next_number(), (), made.kind, callers.find(), traced=False), made.kind)


_new = object.__new__


def with_id(value: Any, id: TensorId, kind: Kind) -> Tensor:
    """A Tensor of these very parts."""
    tensor = _new(Tensor)
    tensor.held = value
    tensor.slot = None
    tensor.identity = id
    tensor.kind = kind
    return tensor


def make(value: Any, requires_grad: bool) -> Tensor:
    """A leaf."""
    return with_id(value, TensorId(), Kind.of(jax.typeof(value), requires_grad))


def array_of(data: Any, dtype: Any = None) -> jax.Array:
    """Data as a jax array with the values of this moment. A jax array is as it is.

    jax reads a NumPy buffer when it likes, in a thread of its own, or shares it for ever: so it gets a copy that nobody else has.
    """
    if isinstance(data, jax.Array):
        return data if dtype is None else data.astype(dtype)
    if not hasattr(data, "__jax_array__") and (hasattr(data, "__array__") or _is_buffer(data)):
        copy = np.array(data)
        return compat.array_from(copy) if dtype is None else jnp.asarray(copy, dtype=dtype)
    if dtype is None and isinstance(data, (list, tuple)) and _is_of_floats(data):
        return compat.array_from(np.array(data))
    if hasattr(data, "__dlpack__"):  # not in the memory of this process's processor: NumPy cannot read it
        return jax.block_until_ready(jnp.array(jax.dlpack.from_dlpack(data), dtype=dtype, copy=True))
    return jnp.array(data, dtype=dtype)


def _is_of_floats(data: list[Any] | tuple[Any, ...]) -> bool:
    """Whether a nested list has Python's floats only: jax and NumPy make the same of these."""
    return all([type(x) is float or (isinstance(x, (list, tuple)) and _is_of_floats(x)) for x in data])


def _is_buffer(data: Any) -> bool:
    """Whether it is writable memory that is no NumPy array: a bytearray, an array.array, a memoryview."""
    if isinstance(data, (int, float, complex, list, tuple, str, bytes, np.generic)):
        return False
    try:
        memoryview(data)
    except TypeError:
        return False
    return True


def tensor(data: Any, *, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """Make a Tensor from a number, a nested list, a NumPy array, a jax array or another Tensor.

    NumPy data, and any other memory that can be written to, is copied before this returns. A Tensor gives its value: the
    result is a new leaf. `device` may be a device or a sharding.

    >>> import tapejax as tj
    >>> tj.tensor([1.0, 2.0], requires_grad=True).requires_grad
    True
    """
    if isinstance(data, Tensor):
        data = data.value
    try:
        if isinstance(data, jax.Array):
            value = data if dtype is None else data.astype(dtype)
        else:
            value = array_of(_plain(data), dtype)
    except (TypeError, ValueError, OverflowError) as cause:
        if isinstance(cause, TensorConversionError):
            raise
        raise TensorConversionError(
            f"a {type(data).__name__} cannot become a Tensor: {cause}",
            at=user_line(),
            fix="give a number, a nested list of numbers of one shape, a NumPy array or a jax array",
        ) from None
    if device is not None:
        try:
            value = jax.device_put(value, device)
        except (TypeError, ValueError) as cause:
            raise ArgumentError(f"device={device!r}: {cause}", fix="one of jax.devices(), or a sharding") from None
    if requires_grad and not jnp.issubdtype(value.dtype, jnp.inexact):
        raise DtypeError(
            f"requires_grad=True needs a float or complex dtype, this is {value.dtype}",
            at=user_line(),
            fix="write the numbers as floats, or pass dtype=jnp.float32",
        )
    return make(value, requires_grad)


def _plain(data: Any) -> Any:
    """Nested lists with Tensors inside: their values (they must not be recorded ones)."""
    if isinstance(data, (list, tuple)):
        return [_plain(item) for item in data]
    if isinstance(data, Tensor):
        if data.requires_grad and current_scope().enabled:
            raise TensorConversionError(
                "a list with recorded Tensors inside was about to lose its gradients",
                at=user_line(),
                fix="tapejax.numpy.stack([...]) records, or take .value of each",
            )
        return data.value
    return np.array(data) if isinstance(data, np.ndarray) else data


def stop_gradient(x: Any) -> Any:
    """The same values (in any pytree) with no gradient flowing back through them.

    >>> import tapejax as tj
    >>> x = tj.tensor(3.0, requires_grad=True)
    >>> tj.backward(x * tj.stop_gradient(x))[x].item()
    3.0
    """
    is_tensor = lambda leaf: isinstance(leaf, Tensor)
    stop = lambda leaf: leaf.detach() if is_tensor(leaf) else jax.lax.stop_gradient(leaf)
    return jax.tree_util.tree_map(stop, x, is_leaf=is_tensor)


# --- as a pytree --------------------------------------------------------------------------------------
#
# A Tensor has its value as the only child. What is rebuilt from children is a new leaf: an identity in a
# structure would be kept alive, and confused with others, by jax's caches. So what an op recorded is not taken apart
# while its tape holds it, and of a parameter the tape remembers that it was: see docs/tensors-and-jax.md.


class _Whole(Tensor):
    """A Tensor as a leaf of a tree: pytrees are registered by exact type. `of` is the Tensor itself."""

    __slots__ = ("of",)


_Whole.__name__ = _Whole.__qualname__ = "Tensor"  # as it is printed: to its user it is one


def _whole(tensor: Tensor) -> _Whole:
    alias, made = tensor.alias(), _new(_Whole)
    made.held, made.slot, made.identity, made.kind = alias.held, alias.slot, alias.identity, alias.kind
    made.of = tensor
    return made


_WHOLE = cuts.Aux(True)  # of the structure around such a leaf: what comes back is put there as it is


def _records(tensor: Tensor) -> bool:
    return tensor.kind.requires_grad and current_scope().enabled


def _is_recorded(tensor: Tensor) -> bool:
    """Whether an op made it that a tape still holds. Within a transform, whether it is to be followed at all."""
    if not tensor.kind.requires_grad:
        return False
    if not tensor.is_leaf:
        epoch = tensor.epoch
        if epoch is None or epoch.current().taken_by is None:
            return True
    scope = current_scope()
    return scope.enabled and scope.tape.guarded


def _flatten(tensor: Tensor):
    if not tensor.kind.requires_grad:
        return (tensor.value,), False
    scope = current_scope()
    if not scope.enabled:
        if scope.bindings is not None:  # the body of a function of functions: it may be a Tensor from outside
            (tensor,) = scope.bindings.resolve([tensor])
        return (tensor.value,), True
    time = next_number()
    caller = callers.find_again(time)
    if caller.looks:
        return (tensor.value,), True
    if _is_recorded(tensor):
        if not (caller.tree and caller.kind is callers.USER):
            raise _refused(tensor, caller)
        return (_whole(tensor),), _WHOLE
    return (tensor.value,), cuts.took(tensor.id, tensor.kind, caller, time, traced=isinstance(tensor.held, Tracer))


def _unflatten(aux: Any, children):
    (value,) = children
    if isinstance(value, Tensor):
        return value.of if type(value) is _Whole else value
    if aux is _WHOLE:
        return value
    requires_grad = bool(aux)
    aval = getattr(value, "aval", None)
    kind = Kind.of(aval, requires_grad) if aval is not None else _kind_of_placeholder(value, requires_grad)
    if type(aux) is not cuts.Aux or not current_scope().enabled:
        return with_id(value, TensorId(), kind)
    chain, aux.used = () if aux.used else aux.chain, True
    number = next_number()
    caller = callers.find_again(number)
    return with_id(value, cuts.rebuilt(number, chain, kind, caller, traced=isinstance(value, Tracer)), kind)


def _given(caller: callers.Caller) -> GivenToJaxError:
    return GivenToJaxError(
        f"a Tensor was given to {caller.name}, which takes arrays only",
        at=caller.line,
        fix=f"Tensors go to the same function of tapejax{callers.counterpart(caller.name)}; .value is the plain array",
    )


def _refused(
    tensor: Tensor, caller: callers.Caller, kind: type[TensorConversionError] = GivenToJaxError
) -> TensorConversionError:
    how = f"Tensors go to the same function of tapejax{callers.counterpart(caller.name)}, which records; "
    return kind(
        f"a recorded Tensor was given to {caller.name}, which would take it off the tape",
        at=caller.line,
        action=f"{tensor.id!r}: {tensor.aval.str_short()}" + (f", {p!r}" if (p := tensor.id.producer) else ""),
        fix=f"{how}tapejax.lift(f)(x) records any function of arrays as one action; x.detach(), x.value or "
        "tapejax.no_grad() leave the tape",
    )


def refusal_of(error: Exception) -> WantsArraysError | None:
    """The refusal of a Tensor that an error is, or that jax itself made it from. An error of the user's is none."""
    if isinstance(error, WantsArraysError):
        return error
    cause = error.__context__
    return cause if isinstance(cause, WantsArraysError) and callers.is_raised_by_jax(error) else None


def _kind_of_placeholder(value: Any, requires_grad: bool) -> Kind:
    # jax also builds trees around what is no array at all (None, object(), ShapeDtypeStruct).
    try:
        return Kind.of(jax.typeof(value), requires_grad)
    except TypeError:
        return Kind(value, requires_grad)


jax.tree_util.register_pytree_node(Tensor, _flatten, _unflatten)
