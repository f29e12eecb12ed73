"""Hooks on what actions keep for backward: packed when it is kept, unpacked when it is read."""

from __future__ import annotations

import inspect
import tempfile
import uuid
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tapejax.errors import ArgumentError, SavedTensorError
from tapejax.ground.where import user_line
from tapejax.hooks.calls import operands_kept
from tapejax.tape.packed import Packed
from tapejax.tape.scope import Entered, Entry, Scope, enter
from tapejax.tensor.tensor import Tensor, Tracer


@dataclass(frozen=True)
class Saved:
    """What a value is to the action that keeps it: the op, its operand (`out` for a result), and the user's line."""

    op: str
    operand: str
    line: str


class Manner:
    """How ops run where a scope asks for it: each at once, by itself, with what it keeps packed by hooks."""

    __slots__ = ("hooks",)

    def __init__(self, hooks: saved_tensors_hooks | None = None):
        self.hooks = hooks

    def pack(self, plan: Any, tensors: Sequence[Tensor], kept: tuple[Any, ...]) -> tuple[Any, ...]:
        hooks = self.hooks
        if hooks is None:
            return kept
        leaves = {id(tensor.held) for tensor in tensors if tensor.is_leaf}
        told = [None] * len(kept)
        if hooks.is_told:
            told = [Saved(plan.name, operand, user_line()) for operand, _ in operands_kept(plan)]
        return tuple([hooks.packed(v, is_leaf=id(v) in leaves, saved=s) for v, s in zip(kept, told, strict=True)])


STEADY = Manner()


class saved_tensors_hooks(Entered):
    """Within it, what ops keep for backward goes through `pack`, and through `unpack` when backward reads it.

    pack takes an array and returns anything; unpack takes that and returns an array of the same shape
    and dtype. A pack of two parameters is also told what the array is: `op`, `operand`, `line` (see `Saved`). The inputs of a checkpoint count as kept. The innermost hooks hold.

    >>> import numpy as np, tapejax as tj
    >>> x = tj.tensor([1.0, 2.0], requires_grad=True)
    >>> with tj.saved_tensors_hooks(lambda a: np.asarray(a).tolist(), np.float32):
    ...     y = (x * x).sum()
    >>> tj.backward(y)[x]
    Array([2., 4.], dtype=float32)
    """

    leaves = True  # whether leaf tensors, which live anyway, are packed too

    def __init__(self, pack: Callable[..., Any], unpack: Callable[[Any], Any]):
        for hook in (pack, unpack):
            if not callable(hook):
                raise ArgumentError(f"a hook is a function, not {type(hook).__name__}", at=user_line())
        self._pack, self._unpack = pack, unpack
        self.is_told = _wants_two(pack)
        self._entries: list[Entry] = []

    def __enter__(self) -> saved_tensors_hooks:
        return enter(self)

    def within(self, outer: Scope) -> Scope:
        return Scope(outer.tape, outer.enabled, (outer.thread, outer.task), outer.bindings, Manner(self))

    def packed(self, value: Any, *, is_leaf: bool = False, saved: Saved | None = None) -> Any:
        """A value as an action keeps it: what is traced, or lives anyway, as it is."""
        if isinstance(value, (Tracer, Packed)) or (is_leaf and not self.leaves):
            return value
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):  # random keys: small, and no plain numbers
            return value
        aval, sharding, unpack = jax.typeof(value), value.sharding, self._unpack

        def restore(handle: Any) -> Any:
            found = unpack(handle)
            if np.shape(found) != aval.shape or getattr(found, "dtype", None) != aval.dtype:
                kind = f"{getattr(found, 'dtype', type(found).__name__)}{list(np.shape(found))}"
                raise SavedTensorError(
                    f"unpack returned {kind} for what was packed as {aval.str_short()}",
                    fix="unpack must return an array of the shape and dtype that pack was given",
                )
            if isinstance(found, jax.Array) and found.weak_type == aval.weak_type and found.sharding == sharding:
                return found
            with jax.enable_x64(True):
                return jax.device_put(found, sharding)

        return Packed(self._pack(value, saved) if self.is_told else self._pack(value), restore)


def _wants_two(pack: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(pack).parameters.values()
    except (TypeError, ValueError):
        return False
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum([p.kind in plain and p.default is p.empty for p in parameters]) == 2


class _Elsewhere(saved_tensors_hooks):
    """Keep each array once, out of the device's memory; a leaf stays where it is."""

    leaves = False

    def __init__(self) -> None:
        super().__init__(self._store, self._load)
        self._known: dict[int, tuple[Any, Any]] = {}  # id -> (weak reference to the array, weak reference to its copy)

    def _store(self, value: Any) -> Any:
        found = self._known.get(id(value))
        if found is not None and found[0]() is value:
            copy = found[1]()
            if copy is not None:
                return copy
        copy = self.copy(value) if value.is_fully_addressable else Parts(value, self.copy)
        forget = lambda _, key=id(value), known=self._known: known.pop(key, None)
        self._known[id(value)] = (weakref.ref(value, forget), weakref.ref(copy))
        return copy

    def copy(self, value: Any) -> Copy:
        raise NotImplementedError

    def _load(self, copy: Copy) -> np.ndarray:
        return copy.load()


class Copy:
    """A copy of an array somewhere else."""

    __slots__ = ("__weakref__", "array")

    def __init__(self, array: np.ndarray):
        self.array = array

    def load(self) -> np.ndarray:
        return self.array


class Parts(Copy):
    """Copies of the parts of an array that this process has; other processes keep theirs."""

    __slots__ = ("copies", "shape", "sharding")

    def __init__(self, value: jax.Array, copy: Callable[[Any], Copy]):
        self.shape, self.sharding = value.shape, value.sharding
        self.copies = [(shard.device, copy(shard.data)) for shard in value.addressable_shards]

    def load(self) -> Any:
        parts = [jax.device_put(copy.load(), device) for device, copy in self.copies]
        return jax.make_array_from_single_device_arrays(self.shape, self.sharding, parts)


class FileCopy(Copy):
    """A copy in a file, which goes with the last action that needs it."""

    __slots__ = ("dtype", "path", "shape")

    def __init__(self, array: np.ndarray, path: Path):
        self.path, self.dtype, self.shape = path, array.dtype, array.shape
        array.tofile(path)
        weakref.finalize(self, path.unlink, missing_ok=True)

    def load(self) -> np.ndarray:
        try:
            return np.fromfile(self.path, np.uint8).view(self.dtype).reshape(self.shape)
        except (OSError, ValueError) as cause:
            raise SavedTensorError(
                f"what was kept in {self.path} cannot be read: {cause}", fix="leave the folder alone until backward"
            ) from cause


class save_on_cpu(_Elsewhere):
    """Within it, what ops keep for backward is kept in host memory, and goes back to its device when it is read.

    >>> import tapejax as tj, tapejax.numpy as tnp
    >>> x = tj.tensor([0.0, 1.0], requires_grad=True)
    >>> with tj.save_on_cpu():
    ...     y = tnp.exp(x).sum()
    >>> tj.backward(y)[x]
    Array([1.       , 2.7182817], dtype=float32)
    """

    def copy(self, value: Any) -> Copy:
        return Copy(np.array(value))  # a real copy: np.asarray would share the buffer on a CPU


class save_to_disk(_Elsewhere):
    """Within it, what ops keep for backward is kept in files of a folder, each deleted when it is no longer needed.

    >>> import tempfile, tapejax as tj, tapejax.numpy as tnp
    >>> x = tj.tensor([0.0, 1.0], requires_grad=True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with tj.save_to_disk(folder):
    ...         y = tnp.exp(x).sum()
    ...     print(tj.backward(y)[x])
    [1.        2.7182817]
    """

    def __init__(self, folder: str | Path | None = None):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tapejax-") if folder is None else folder)
        if not self.folder.is_dir():
            raise ArgumentError(f"{self.folder} is not a folder", at=user_line(), fix="make it first")

    def copy(self, value: Any) -> Copy:
        return FileCopy(np.ascontiguousarray(value).reshape(np.shape(value)), self.folder / f"{uuid.uuid4().hex}.saved")
