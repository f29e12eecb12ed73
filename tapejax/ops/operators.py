"""Operators, indexing and ndarray methods of Tensor, from tables: each is a lifted jax function.

The tables are data; what a Tensor can do is what jax arrays can do, with jax's own signatures.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.errors import ArgumentError, IndexingError, TensorConversionError
from tapejax.ground.caches import cached, table
from tapejax.ground.compat import PROMOTION, X64
from tapejax.ground.where import user_line
from tapejax.native import native
from tapejax.ops.lift import NUMBERS, PLAIN_OPTIONS, Lifted, apply_plan, as_tensor, is_data, lift
from tapejax.ops.straight import straight
from tapejax.tape.scope import current_scope
from tapejax.tensor.tensor import Tensor, Tracer, tensor

BINARY = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "truediv": jnp.true_divide,
    "floordiv": jnp.floor_divide, "mod": jnp.mod, "divmod": jnp.divmod, "pow": jnp.power, "matmul": jnp.matmul,
    "and": jnp.bitwise_and, "or": jnp.bitwise_or, "xor": jnp.bitwise_xor,
    "lshift": jnp.left_shift, "rshift": jnp.right_shift,
}  # fmt: skip
COMPARISONS = {
    "eq": jnp.equal, "ne": jnp.not_equal, "lt": jnp.less, "le": jnp.less_equal,
    "gt": jnp.greater, "ge": jnp.greater_equal,
}  # fmt: skip
UNARY = {"neg": jnp.negative, "pos": jnp.positive, "abs": jnp.abs, "invert": jnp.bitwise_not}

# ndarray methods: jax's function of the same name, and which of its arguments are options.
METHODS = {
    "sum": ("axis", "dtype", "keepdims", "promote_integers"),
    "mean": ("axis", "dtype", "keepdims"),
    "max": ("axis", "keepdims"),
    "min": ("axis", "keepdims"),
    "prod": ("axis", "dtype", "keepdims", "promote_integers"),
    "var": ("axis", "dtype", "ddof", "keepdims", "correction"),
    "std": ("axis", "dtype", "ddof", "keepdims", "correction"),
    "all": ("axis", "keepdims"),
    "any": ("axis", "keepdims"),
    "argmax": ("axis", "keepdims"),
    "argmin": ("axis", "keepdims"),
    "argsort": ("axis", "kind", "order", "stable", "descending"),
    "sort": ("axis", "kind", "order", "stable", "descending"),
    "cumsum": ("axis", "dtype"),
    "cumprod": ("axis", "dtype"),
    "ptp": ("axis", "keepdims"),
    "squeeze": ("axis",),
    "ravel": ("order",),
    "swapaxes": ("axis1", "axis2"),
    "repeat": ("repeats", "axis", "total_repeat_length"),
    "take": ("axis", "mode", "unique_indices", "indices_are_sorted"),
    "round": ("decimals",),
    "clip": (),
    "dot": ("precision", "preferred_element_type"),
    "conj": (),
    "conjugate": (),
    "trace": ("offset", "axis1", "axis2", "dtype"),
    "diagonal": ("offset", "axis1", "axis2"),
    "searchsorted": ("side", "sorter", "method"),
    "compress": ("axis", "size"),
    "choose": ("mode",),
    "nonzero": ("size",),
}


def _operand(value: Any) -> bool:
    return type(value) in NUMBERS or isinstance(value, Tensor) or is_data(value)


def _binary(name: str, op: Lifted) -> tuple[Callable, Callable]:
    plans = op.plans

    def forward(self, other):
        if type(other) is Tensor:  # the common case, with nothing in between
            scope = current_scope()
            plan = plans.get((self.kind, other.kind, scope.enabled, X64.value))
            return op(self, other) if plan is None else apply_plan(plan, (self, other), scope)
        if _operand(other):
            return op(self, as_tensor(other)) if not _is_literal(other) else _with_literal(op, other, False)(self)
        return _not_an_operand(name, other)

    def reflected(self, other):
        if _operand(other):
            return op(as_tensor(other), self) if not _is_literal(other) else _with_literal(op, other, True)(self)
        return _not_an_operand(name, other)

    return forward, reflected


def _unary(op: Lifted) -> Callable:
    return lambda self: op(self)


def _method(op: Lifted) -> Callable:
    def method(self, *args, **kwargs):
        return op(self, *args, **kwargs)

    method.__doc__ = f"See jax.numpy.{op.name}."
    return method


def _is_literal(value: Any) -> bool:
    """Whether jax is to see a number as it stands: under strict promotion it allows more of numbers than of arrays."""
    return PROMOTION.value == "strict" and (type(value) in NUMBERS or isinstance(value, np.generic))


@cached(256, typed=True)
def _with_literal(op: Lifted, number: Any, first: bool) -> Lifted:
    """The operator with one operand given."""
    function = op.function
    return lift((lambda x: function(number, x)) if first else (lambda x: function(x, number)), name=op.name)


def _not_an_operand(name: str, other: Any) -> Any:
    if isinstance(other, (list, tuple, str, bytes)):
        raise TensorConversionError(
            f"`{name}` of a Tensor and a {type(other).__name__}",
            at=user_line(),
            fix="convert it first: tapejax.tensor(data), or tapejax.numpy.stack([...]) for Tensors in a list",
        )
    return NotImplemented


ANY = -1  # as many arguments as there are


def _install(name: str, function: Any, op: Lifted | None = None, *, others: int = 1, reflected: bool = False) -> None:
    """Make it a method of Tensor.

    op: what it comes to; others: with how many arguments besides the Tensor (one is another Tensor, or a number);
    reflected: with its operands in the other order.
    """
    function.__name__ = name
    function.__qualname__ = f"Tensor.{name}"
    if op is not None and native is not None:
        function = functools.update_wrapper(native.Method(op, function, others, reflected), function)
    setattr(Tensor, name, function)


# A Python int as exponent is an option, as it is for jax: x**2 is x*x, with no pow in sight.
_integer_power = lift(lambda x, *, exponent: x**exponent, name="power", static_argnames="exponent")
OPS: dict[str, Lifted] = {}


def _install_operators() -> None:
    for name, function in (BINARY | COMPARISONS).items():
        op = OPS[name] = lift(straight(function), name=function.__name__)
        forward, reflected = _binary(name, op)
        _install(f"__{name}__", forward, op)
        if name in BINARY:
            _install(f"__r{name}__", reflected, op, reflected=True)
    for name, function in UNARY.items():
        op = OPS[name] = lift(straight(function), name=function.__name__)
        _install(f"__{name}__", _unary(op), op, others=0)

    power = Tensor.__pow__

    def __pow__(self, other, modulo=None):
        if modulo is not None:
            raise ArgumentError("pow() with a modulus is not defined for Tensors", at=user_line())
        if type(other) is int:
            return _integer_power(self, exponent=other)
        return power(self, other)

    _install("__pow__", __pow__)

    ufuncs = {getattr(np, f.__name__).__name__: OPS[name] for name, f in (BINARY | COMPARISONS).items()}

    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        """`array + tensor` comes here from NumPy and is ours; a ufunc called by its name is refused."""
        op = ufuncs.get(ufunc.__name__)
        if op is not None and method == "__call__" and len(inputs) == 2 and not options:
            return op(*inputs)
        raise TensorConversionError(
            f"np.{ufunc.__name__} of a Tensor would drop it from the tape",
            at=user_line(),
            action=f"{self.id!r}: {self.aval.str_short()}",
            fix=f"tapejax.numpy.{ufunc.__name__} is recorded; np.{ufunc.__name__}(x.numpy()) is not, on purpose",
        )

    _install("__array_ufunc__", __array_ufunc__)


def _install_methods() -> None:
    for name, options in METHODS.items():
        op = lift(straight(getattr(jnp, name)), name=name, static_argnames=options)
        OPS.setdefault(name, op)
        _install(name, _method(op), op, others=ANY)


# --- those whose signature is the method's own ------------------------------------------------------

_reshape = lift(
    lambda x, *, shape, order: jnp.reshape(x, shape, order), name="reshape", static_argnames=("shape", "order")
)
_transpose = lift(lambda x, *, axes: jnp.transpose(x, axes), name="transpose", static_argnames="axes")
_astype = lift(lambda x, *, dtype: jnp.astype(x, dtype), name="astype", static_argnames="dtype")
_matrix_transpose = lift(jnp.matrix_transpose, name="matrix_transpose")
_view = lift(lambda x, *, dtype: x.view(dtype), name="view", static_argnames="dtype")
_to = lift(jax.device_put, name="to")
_real = lift(jnp.real, name="real")
_imag = lift(jnp.imag, name="imag")


def _sizes(shape: tuple[Any, ...]) -> tuple[int, ...]:
    if len(shape) == 1 and isinstance(shape[0], Iterable) and not isinstance(shape[0], (str, Tensor)):
        shape = tuple(shape[0])
    return tuple([_integer(size, "sizes and axes") for size in shape])


def _integer(number: Any, what: str) -> int:
    try:
        return operator.index(number)
    except TypeError as cause:
        if type(cause) is not TypeError:  # a tracer says what to do by itself
            raise
        raise ArgumentError(f"{number!r} is no integer", fix=f"{what} are integers") from None


def reshape(self, *shape, order="C"):
    """See jax.numpy.reshape; the shape may be given as one tuple or as numbers."""
    return _reshape(self, shape=_sizes(shape), order=order)


def transpose(self, *axes):
    """See jax.numpy.transpose."""
    if not axes or axes == (None,):
        return _transpose(self, axes=None)
    return _transpose(self, axes=_sizes(axes))


def astype(self, dtype):
    """The values in another dtype; gradients come back in this one."""
    if dtype is None:
        dtype = float
    if dtype not in NUMBERS:  # `int` means jax's default integer, `int64` that very one
        dtype = _dtype(dtype)
    return _astype(self, dtype=dtype)


def to(self, place):
    """The same values elsewhere: on a device, in a sharding, in another memory ("pinned_host", "device"). Recorded.

    The gradient comes back to where this one is. Under a trace jax decides what is moved: memory is, devices are not.

    >>> import jax, tapejax as tj
    >>> x = tj.tensor([1.0, 2.0], requires_grad=True)
    >>> y = x.to("pinned_host")
    >>> y.sharding.memory_kind, tj.backward((y.to("device") * 3.0).sum())[x].sharding.memory_kind
    ('pinned_host', 'device')
    """
    known = MEMORIES.get(place) if isinstance(place, str) else place
    if not isinstance(known, (jax.Device, jax.sharding.Sharding, jax.memory.Space)):
        raise ArgumentError(
            f"to({place!r}) names no place",
            at=user_line(),
            fix='a device, as jax.devices()[0], a sharding, or a memory, "pinned_host" or "device"; x.astype(dtype) for a dtype',
        )
    return _to(self, known)


MEMORIES = {"device": jax.memory.Space.Device, "pinned_host": jax.memory.Space.Host}


def view(self, dtype, *sizes):
    """The same bits as another dtype (no gradient flows through that)."""
    if sizes or isinstance(dtype, (int, tuple)):
        shape = ", ".join(map(str, (dtype, *sizes)))
        raise ArgumentError(f"view takes a dtype, not a shape ({shape})", at=user_line(), fix=f"x.reshape({shape})")
    return _view(self, dtype=_dtype(dtype))


def _dtype(dtype: Any) -> Any:
    try:
        return jnp.dtype(dtype)
    except TypeError:
        raise ArgumentError(f"{dtype!r} is no dtype", fix="one of jax.numpy, as jnp.float32, or its name") from None


def flatten(self, order="C"):
    """See jax.numpy.ravel."""
    return self.ravel(order=order)


def iterate(self):
    if not self.shape:
        raise ArgumentError("iteration over a Tensor with no dimensions", fix="x.item() is its number")
    return (self[i] for i in range(self.shape[0]))


# --- indexing ----------------------------------------------------------------------------------------


class Pattern:
    """The structure of an index: everything about it but the numbers that may differ from call to call."""

    __slots__ = ("_hash", "_key", "parts")

    def __init__(self, parts: tuple[Any, ...]):
        self.parts = parts
        self._key = tuple((p.start, p.stop, p.step) if isinstance(p, slice) else (type(p), p) for p in parts)
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash


PLAIN_OPTIONS.add(Pattern)


HOLE = "hole"  # a part of the index that is an operand: an array, or an integer


class Window(int):
    """A slice of this length whose start is an operand, so that x[i:i+n] is one plan for every i."""


def split_index(
    shape: tuple[int, ...], index: Any, *, fixed: bool = False, numbers: bool = True, arrays: bool = True
) -> tuple[Pattern, list[Any]]:
    """An index as its pattern and its operands, checked against the shape.

    fixed: numbers are part of the pattern. Under a trace that makes the smaller program.
    numbers, arrays: refuse those that are out of range, where jax would clamp or drop in silence.
    """
    parts = [_as_part(part) for part in (index if isinstance(index, tuple) else (index,))]
    consumed = sum(map(_axes_of, parts))
    if consumed > len(shape):
        raise IndexingError(
            f"an index of {consumed} axes for a Tensor of {len(shape)}: its shape is {shape}{_masks_among(parts)}",
            fix="one number, slice or integer array per axis at most; a mask counts for each of its own axes",
        )
    if sum(part is Ellipsis for part in parts) > 1:
        raise IndexingError("an index with more than one `...`", fix="write `:` for the axes of the others")
    pattern, operands, axis = [], [], 0
    for part in parts:
        if part is None or isinstance(part, bool):
            pattern.append(part)
        elif part is Ellipsis:
            pattern.append(part)
            axis += len(shape) - consumed
        elif isinstance(part, slice):
            pattern.append(part if fixed else _window(part, shape[axis], operands))
        elif _is_mask(part):
            places = _places(part, shape, axis)
            pattern += [HOLE] * len(places)
            operands += places
        elif isinstance(part, int):
            if numbers:
                _check_range(part, part, axis, shape[axis])
                part %= shape[axis]
            known = fixed or (numbers and shape[axis] == 1)  # then there is no other
            pattern.append(part if known else HOLE)
            operands += [] if known else [part]
        else:
            if arrays:
                _check_array(part, axis, shape[axis])
            pattern.append(HOLE)
            operands.append(part)
        axis += _axes_of(part)
    return Pattern(tuple(pattern)), operands


def _as_part(part: Any) -> Any:
    """A part of an index as None, ..., a bool, an int, a slice, or an array or Tensor of integers or booleans."""
    if isinstance(part, (list, range)):
        part = tensor(list(part)) if part else np.zeros(0, np.int32)  # which would be floats
    if part is None or part is Ellipsis or isinstance(part, (slice, bool, int)):
        return part
    if isinstance(part, (np.bool_, np.integer)):
        return part.item()
    if isinstance(part, (Tensor, jax.Array, np.ndarray)):
        if part.dtype == bool and not part.shape:
            return bool(_concrete_mask(part))
        if part.dtype == bool or jnp.issubdtype(part.dtype, jnp.integer):
            return part
    kind = f"{part.dtype} numbers" if hasattr(part, "dtype") else type(part).__name__
    raise ArgumentError(
        f"a Tensor cannot be indexed by {kind}", fix="use integers, slices, None, ..., integer or boolean arrays"
    )


def _axes_of(part: Any) -> int:
    """How many axes of the Tensor a part of an index stands for."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    return part.ndim if _is_mask(part) else 1


def _is_mask(part: Any) -> bool:
    return hasattr(part, "dtype") and part.dtype == bool


def _masks_among(parts: list[Any]) -> str:
    shapes = [str(part.shape) for part in parts if _is_mask(part)]
    return f", that of the mask {', '.join(shapes)}" if shapes else ""


def _check_array(part: Any, axis: int, size: int) -> None:
    value = part.value if isinstance(part, Tensor) else part
    if isinstance(value, Tracer) or not value.size or not getattr(value, "is_fully_addressable", True):
        return
    found = np.asarray(value)
    _check_range(int(found.min()), int(found.max()), axis, size)


def _check_range(low: int, high: int, axis: int, size: int) -> None:
    if not -size <= low <= high < size:
        raise IndexingError(
            f"index {low if low < -size else high} is out of bounds for axis {axis} with size {size}",
            fix=f"use {-size} to {size - 1}" if size else "the axis is empty: there is nothing to pick",
        )


def _window(part: slice, size: int, operands: list[Any]) -> Any:
    bounds = _bounds(part)
    start, stop, step = slice(*bounds).indices(size)
    if step != 1 or (start == 0 and stop >= size) or stop <= start:
        return slice(*bounds)
    operands.append(start)
    return Window(stop - start)


def _bounds(part: slice) -> list[int | None]:
    if part.step is not None and part.step == 0:
        raise ArgumentError("the step of a slice is 0", fix="a step is 1 or more, or negative to go backwards")
    bounds = (part.start, part.stop, part.step)
    return [None if bound is None else _integer(bound, "the bounds of a slice") for bound in bounds]


def _places(mask: Any, shape: tuple[int, ...], axis: int) -> list[Any]:
    """A boolean mask picks a number of elements that only its values tell: integer arrays instead."""
    covered = shape[axis : axis + mask.ndim]
    if mask.shape != covered:
        axes = f"axis {axis}" if mask.ndim == 1 else f"axes {axis} to {axis + mask.ndim - 1}"
        raise IndexingError(
            f"a boolean mask of shape {mask.shape} for {axes} of a Tensor of shape {shape}",
            fix=f"a mask has the sizes of the axes it stands for, here {covered}",
        )
    return [jnp.asarray(found) for found in np.nonzero(np.asarray(_concrete_mask(mask)))]


def _concrete_mask(mask: Any) -> Any:
    value = mask.value if isinstance(mask, Tensor) else mask
    if isinstance(value, Tracer):
        raise ArgumentError(
            "a boolean mask under jit, vmap or grad gives a result of unknown size",
            fix="tapejax.numpy.where(mask, x, 0) keeps the shape",
        )
    return value


def joined(x: Any, pattern: Pattern, operands: tuple[Any, ...]) -> tuple[Any, Any]:
    """(array, index) such that array[index] is what was asked for; windows are cut out first."""
    given = iter(operands)
    consumed = sum(
        1 for part in pattern.parts if part is not None and part is not Ellipsis and not isinstance(part, bool)
    )
    index, axis = [], 0
    for part in pattern.parts:
        if isinstance(part, Window):
            x = jax.lax.dynamic_slice_in_dim(x, next(given), int(part), axis)
            part = slice(None)
        elif part is HOLE:
            part = next(given)
        index.append(part)
        if part is Ellipsis:
            axis += x.ndim - consumed
        elif part is not None and not isinstance(part, bool):
            axis += 1
    return x, tuple(index)


def _gather(x, *operands, pattern):
    x, index = joined(x, pattern, operands)
    return x[index]


_getitem = lift(_gather, name="getitem", static_argnames="pattern")


_splits = table("indices", 4096)  # of indices that have no arrays in them


def getitem(self, index):
    key = _key_of_index(index)
    if key is None:
        pattern, operands = split_index(self.shape, index)
        return _getitem(self, *[as_tensor(operand) for operand in operands], pattern=pattern)
    traced = isinstance(self.held, Tracer)
    key = (key, self.kind.aval.shape, X64.value, traced)
    found = _splits.get(key)
    if found is None:
        pattern, operands = split_index(self.shape, index, fixed=traced)
        found = pattern, [as_tensor(operand) for operand in operands]
        _splits.keep(key, found)
    return _getitem(self, *found[1], pattern=found[0])


def _key_of_index(index: Any) -> Any:
    """An index of numbers, slices, `...` and new axes as part of a key; None if there is anything else in it."""
    kind = type(index)
    if kind is int or index is Ellipsis:
        return index
    if index is None:
        return "new"
    if kind is slice:
        bounds = index.start, index.stop, index.step
        return bounds if all([type(bound) in (int, type(None)) for bound in bounds]) else None
    if kind is tuple:
        parts = [_key_of_index(part) if type(part) is not tuple else None for part in index]
        return None if None in parts else (kind, *parts)
    return None


class At:
    """x.at[index].set(value) and friends, as jax has them; each is recorded."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor):
        self.tensor = tensor

    def __getitem__(self, index: Any) -> AtIndex:
        return AtIndex(self.tensor, index)


class AtIndex:
    """The place that an x.at[index] means."""

    __slots__ = ("index", "tensor")

    def __init__(self, tensor: Tensor, index: Any):
        self.tensor, self.index = tensor, index

    def _parts(self, options: dict[str, Any]) -> tuple[Pattern, list[Any]]:
        # Where elements are written a window stays a slice: its numbers are part of the pattern.
        parts = self.index if isinstance(self.index, tuple) else (self.index,)
        slices = [slice(*_bounds(part)) for part in parts if isinstance(part, slice)]
        pattern, operands = split_index(
            self.tensor.shape,
            tuple(slice(None) if isinstance(p, slice) else p for p in parts),
            numbers="mode" not in options,
            arrays=False,  # jax drops, fills or clamps them, as `mode` says
        )
        given = iter(slices)
        return Pattern(tuple(next(given) if isinstance(p, slice) else p for p in pattern.parts)), operands

    def get(self, **options: Any) -> Tensor:
        pattern, operands = self._parts(options)
        return _at_get(self.tensor, *operands, pattern=pattern, options=tuple(sorted(options.items())))

    def apply(self, function: Callable[[Any], Any], **options: Any) -> Tensor:
        """A function over jax values applied where the index points."""
        return self.set(lift(function)(self.get(**options)), **options)  # type: ignore[attr-defined]


def _get_at(x, *operands, pattern, options):
    _, index = joined(x, pattern, operands)
    return x.at[index].get(**dict(options))


_at_get = lift(_get_at, name="at_get", static_argnames=("pattern", "options"))


def _at_method(name: str):
    def update(x, value, *operands, pattern, options):
        _, index = joined(x, pattern, operands)
        return getattr(x.at[index], name)(value, **dict(options))

    op = lift(update, name=f"at_{name}", static_argnames=("pattern", "options"))

    def method(self, value, **options):
        value = jnp.asarray(value) if isinstance(value, (list, tuple)) else value
        pattern, operands = self._parts(options)
        return op(self.tensor, value, *operands, pattern=pattern, options=tuple(sorted(options.items())))

    method.__name__ = name
    return method


for _name in ("set", "add", "subtract", "multiply", "mul", "divide", "power", "min", "max"):
    setattr(AtIndex, _name, _at_method(_name))

_install_operators()
_install_methods()
for _function in (reshape, transpose, astype, to, view, flatten):
    _install(_function.__name__, _function)
_install("__getitem__", getitem)
_install("__iter__", iterate)
Tensor.T = property(lambda self: _transpose(self, axes=None), doc="The axes reversed.")  # type: ignore[attr-defined]
Tensor.mT = property(lambda self: _matrix_transpose(self), doc="The last two axes swapped.")  # type: ignore[attr-defined]
Tensor.real = property(lambda self: _real(self), doc="The real part.")  # type: ignore[attr-defined]
Tensor.imag = property(lambda self: _imag(self), doc="The imaginary part.")  # type: ignore[attr-defined]
Tensor.at = property(At, doc="x.at[i].set(v), .add(v), .multiply(v) ...: a changed copy.")  # type: ignore[attr-defined]
