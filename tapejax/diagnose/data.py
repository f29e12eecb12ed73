"""A tape as data: what ran, with the numbers on the way forward and back; to slice, save, load, replay and compare.

Tensors are numbered as they appear, so that two runs of the same program have the same numbers. A file holds text and
arrays and nothing else: loading one runs no code. If its program is saved as well, it is StableHLO, which jax.export reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.diagnose.entries import Entry
from tapejax.diagnose.partings import Difference, difference
from tapejax.errors import ArgumentError, IndexingError
from tapejax.ground.where import user_line
from tapejax.hooks.regions import Regions
from tapejax.plan.plan import OpAction
from tapejax.tape.tape import Tape
from tapejax.tensor.tensor import Tensor
from tapejax.transforms.recording import plain
from tapejax.verify.subject import Subject
from tapejax.verify.watch import see, watch

FORMAT, VERSION = "tapejax tape", 1


@dataclass(frozen=True)
class TapeData:
    """The actions of a tape as data: a sequence of `Entry`, with `values` and `cotangents` by number of the tensor.

    leaves: the numbers of the tensors that no action made, by name. roots: those that the way back started from.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> run = tj.diagnose.TapeData.record(lambda x: tj.numpy.sin(x * x).sum(), jnp.array([1.0, 2.0]))
    >>> print(run)
    x = %0
    %1 = multiply %0 %0
    %2 = sin %1
    %3 = sum %2
    >>> run.values[1], run.cotangents[0].round(3)
    (array([1., 4.], dtype=float32), array([ 1.081, -2.615], dtype=float32))
    """

    entries: tuple[Entry, ...]
    leaves: Mapping[str, int]
    roots: tuple[int, ...] = ()
    values: Mapping[int, np.ndarray] = field(default_factory=dict, repr=False)
    cotangents: Mapping[int, np.ndarray] = field(default_factory=dict, repr=False)
    program: bytes = field(default=b"", repr=False)
    _actions: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    _numbers: Mapping[int, int] = field(default_factory=dict, repr=False, compare=False)

    # -- where it comes from -----------------------------------------------------------------------------

    @classmethod
    def record(cls, function: Callable[..., Any], *args: Any, detail: str = "ops") -> TapeData:
        """A function's run at arguments, forward and back. detail="primitives" opens it."""
        subject = Subject.of(function, args)
        run = watch(subject, detail=detail)
        tape = _with(run.actions)
        known = {
            id.number: value
            for seen in run.seen
            for ids, values in ((seen.action.inputs, seen.inputs), (seen.action.outputs, seen.outputs))
            for id, value in zip(ids or (), values or ())
            if value is not None
        }
        labels = [subject.names[position] for position in subject.positions]
        names = dict(zip([leaf.id.number for leaf in run.leaves], labels, strict=True))
        roots = [root for root in run.roots if isinstance(root, Tensor) and root.requires_grad]
        return cls._of(tape, roots, known, names)

    @classmethod
    def of(cls, tape: Tape, root: Tensor | Sequence[Tensor] | None = None, **leaves: Tensor) -> TapeData:
        """A tape, which stays as it is. root: where the way back starts. leaves: Tensors by name, whose values are kept too."""
        known = {tensor.id.number: tensor.value for tensor in leaves.values()}
        for seen in see(tape.actions, dict(known), {}):
            ids = [*(seen.action.inputs or ()), *(seen.action.outputs or ())]
            found = [*(seen.inputs or ()), *(seen.outputs or ())]
            known.update({id.number: value for id, value in zip(ids, found) if value is not None})
        roots = [] if root is None else [root] if isinstance(root, Tensor) else list(root)
        return cls._of(tape, roots, known, {tensor.id.number: name for name, tensor in leaves.items()})

    @classmethod
    def _of(cls, tape: Tape, roots: Sequence[Tensor], known: dict[int, Any], names: dict[int, str]) -> TapeData:
        actions = tape.actions
        slots: dict[int, int] = {}
        slot = lambda id: slots.setdefault(id.number, len(slots))
        for number in names:
            slots[number] = len(slots)
        regions, made, entries = Regions(actions), set(), []
        for action in actions:
            inputs, outputs = action.inputs or (), action.outputs or ()
            entries.append(
                Entry(
                    _op(action), tuple(map(slot, inputs)), tuple(map(slot, outputs)), tuple(_kinds(action, outputs, known)),
                    action.line, regions.of(action), getattr(action, "steps", ()), getattr(getattr(action, "plan", None), "shown", ""),
                )
            )  # fmt: skip
            made.update(id.number for id in outputs)
        leaves = {names.get(number, f"%{at}"): at for number, at in slots.items() if number not in made}
        values = {slots[number]: _array(value) for number, value in known.items() if number in slots and _plain(value)}
        cotangents = _cotangents(tape, roots, slots) if roots else {}
        starts = tuple([slots[root.id.number] for root in roots if root.id.number in slots])
        return cls(tuple(entries), leaves, starts, values, cotangents, b"", actions, slots)

    # -- parts -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._only(range(len(self.entries))[index])
        try:
            return self.entries[index]
        except IndexError:
            raise IndexingError(f"no action {index} among {len(self.entries)}") from None

    def filter(
        self, *, op: str | None = None, region: str | None = None, line: str | None = None, where: Any = None
    ) -> TapeData:
        """Those of an op, within a region, on a line (`train.py:140`), or for which where(entry) holds."""
        tests = [
            lambda entry: op is None or entry.op == op,
            lambda entry: region is None or region in entry.regions,
            lambda entry: line is None or entry.line.endswith(line),
            lambda entry: where is None or where(entry),
        ]
        return self._only([i for i, entry in enumerate(self.entries) if all([test(entry) for test in tests])])

    @property
    def regions(self) -> dict[str, TapeData]:
        """The part of each region, by name, in the order in which they came."""
        names = dict.fromkeys(name for entry in self.entries for name in entry.regions)
        return {name: self.filter(region=name) for name in names}

    def _only(self, places: Iterable[int]) -> TapeData:
        entries = tuple([self.entries[i] for i in places])
        made = {slot for entry in entries for slot in entry.outputs}
        read = {slot for entry in entries for slot in entry.inputs}
        names = {slot: name for name, slot in self.leaves.items()}
        leaves = {names.get(slot, f"%{slot}"): slot for slot in sorted(read - made)}
        some = lambda arrays: {slot: array for slot, array in arrays.items() if slot in made | read}
        actions = tuple([self._actions[i] for i in places]) if self._actions else ()
        return replace(
            self, entries=entries, leaves=leaves, values=some(self.values), cotangents=some(self.cotangents),
            program=b"", _actions=actions,
        )  # fmt: skip

    def __str__(self) -> str:
        head = [f"{', '.join(f'{name} = %{slot}' for name, slot in self.leaves.items())}"] if self.leaves else []
        return "\n".join([*head, *map(str, self.entries)])

    # -- files -------------------------------------------------------------------------------------------------

    def save(self, path: str | Path, *, program: bool = False) -> Path:
        """Write path.json, and path.npz beside it; the first. program: with what it takes to replay it after loading."""
        path = Path(path).with_suffix(".json")
        arrays = {f"value {slot}": array for slot, array in self.values.items()}
        arrays |= {f"cotangent {slot}": array for slot, array in self.cotangents.items()}
        if program:
            arrays["program"] = np.frombuffer(self.program or self._export(), np.uint8)
        text = {
            "format": FORMAT, "version": VERSION, "leaves": dict(self.leaves), "roots": self.roots,
            "entries": [asdict(entry) for entry in self.entries],
            "arrays": {name: [array.dtype.name, list(array.shape)] for name, array in arrays.items()},
        }  # fmt: skip
        # As bytes: what numpy does not know, such as bfloat16, it would not write as it is.
        raw = {name: np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8) for name, array in arrays.items()}
        np.savez_compressed(path.with_suffix(".npz"), allow_pickle=False, **raw)
        path.write_text(json.dumps(text, indent=1), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> TapeData:
        """What `save` wrote. No code is run, whatever the files hold."""
        path = Path(path).with_suffix(".json")
        try:
            text = json.loads(path.read_text(encoding="utf-8"))
            if text["format"] != FORMAT or text["version"] != VERSION:
                raise ValueError(f"{text['format']} {text['version']}")
            with np.load(path.with_suffix(".npz"), allow_pickle=False) as file:
                arrays = {
                    name: file[name].view(jnp.dtype(dtype)).reshape(shape) for name, (dtype, shape) in text["arrays"].items()
                }  # fmt: skip
            entries = tuple([Entry.read(one) for one in text["entries"]])
            leaves = {str(name): int(slot) for name, slot in text["leaves"].items()}
            roots = tuple(map(int, text["roots"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as cause:
            raise ArgumentError(
                f"{path} is no saved tape: {type(cause).__name__}: {cause}",
                at=user_line(),
                fix="a file of TapeData.save",
            ) from cause
        by = lambda what: {int(n.split()[1]): array for n, array in arrays.items() if n.startswith(what)}
        program = arrays["program"].tobytes() if "program" in arrays else b""
        return cls(entries, leaves, roots, by("value "), by("cotangent "), program)

    # -- again, with other numbers -------------------------------------------------------------------------

    def replay(self, **leaves: Any) -> TapeData:
        """The same actions with other numbers in some leaves, by name: values anew, and cotangents if there were some.

        Of a tape in memory. One that was loaded replays its values only, if it was saved with its program.
        """
        unknown = [name for name in leaves if name not in self.leaves]
        if unknown:
            raise ArgumentError(f"no leaf is called {unknown[0]}", fix=f"one of {', '.join(self.leaves)}")
        values = {self.leaves[name]: _array(plain(value)) for name, value in leaves.items()}
        for name, slot in self.leaves.items():
            if slot in values:
                old = self.values.get(slot)
                if old is not None and (old.shape, old.dtype) != (values[slot].shape, values[slot].dtype):
                    raise ArgumentError(f"{name} is {_kind(old)}, not {_kind(values[slot])}")
            elif slot in self.values:
                values[slot] = self.values[slot]
            else:
                raise ArgumentError(f"the value of {name} was not kept", fix=f"replay({name}=...)")
        if self._actions:
            return self._replay_actions(values)
        if not self.program:
            raise ArgumentError("it was saved without its program", fix="save(path, program=True)")
        from jax import export

        with _needs_flatbuffers():
            exported = export.deserialize(bytearray(self.program))
        found = exported.call(*[values[slot] for slot in self.leaves.values()])
        made = [slot for entry in self.entries for slot in entry.outputs]
        return replace(self, values=values | dict(zip(made, map(_array, found), strict=True)), cotangents={})

    def _replay_actions(self, values: dict[int, Any]) -> TapeData:
        env: dict[int, Any] = dict(values)
        again = [_run_again(action, entry, env) for action, entry in zip(self._actions, self.entries, strict=True)]
        tape = _with(again)
        found = {slot: _array(value) for slot, value in env.items()}
        roots = [id for action in again for id in action.outputs if self._numbers[id.number] in self.roots]
        cotangents = _pulled(tape, roots, env, self._numbers) if self.cotangents else {}
        return replace(self, values=found, cotangents=cotangents, _actions=tuple(again))

    def _export(self) -> bytes:
        if not self._actions:
            raise ArgumentError(
                "only a tape in memory has a program to save", fix="save what TapeData.record or of gave"
            )

        def run(*values):
            env = dict(zip(self.leaves.values(), values, strict=True))
            for action, entry in zip(self._actions, self.entries, strict=True):
                _run_again(action, entry, env)
            return [env[slot] for entry in self.entries for slot in entry.outputs]

        missing = [name for name, slot in self.leaves.items() if slot not in self.values]
        if missing:
            raise ArgumentError(f"the kind of {missing[0]} is not known", fix="TapeData.of(tape, root, name=tensor)")
        given = [jax.ShapeDtypeStruct(self.values[s].shape, self.values[s].dtype) for s in self.leaves.values()]
        from jax import export

        exported = export.export(jax.jit(run))(*given)
        with _needs_flatbuffers():
            return bytes(exported.serialize())

    # -- two of them -------------------------------------------------------------------------------------------

    def diff(self, other: TapeData, *, rtol: float | None = None) -> Difference:
        """Where two runs part: the first action, going forward, and the first, going back.

        rtol: how far numbers may be apart, in units of the largest of the array; by default 64 times the dtype's spacing.
        """
        return difference(self, other, rtol)


# --- from actions -------------------------------------------------------------------------------------------


def _with(actions: Sequence[Any]) -> Tape:
    tape = Tape(label="data")
    for action in actions:
        tape.push(action)
    tape.epoch = next((a.epoch for a in actions if getattr(a, "epoch", None) is not None), tape.epoch)
    return tape


def _cotangents(tape: Tape, roots: Sequence[Tensor], slots: dict[int, int]) -> dict[int, np.ndarray]:
    cursor = tape.cursor(list(roots), [jnp.ones(root.shape, root.dtype) for root in roots], hooks=False)
    steps = list(cursor)
    found: dict[int, Any] = {}
    for step in steps:
        found.update({id.number: ct for id, ct in step.incoming.items()})
        found.update({term.id.number: term.after for term in step.outgoing})
    return {slots[number]: _array(plain(ct)) for number, ct in found.items() if number in slots}


def _pulled(tape: Tape, roots: Sequence[Any], env: dict[int, Any], slots: Mapping[int, int]) -> dict[int, np.ndarray]:
    from tapejax.engine import backward as engine
    from tapejax.tensor.gradients import Gradients

    grads = Gradients()
    for id in roots:
        grads.add(id.number, jnp.ones_like(env[slots[id.number]]))
    engine.go_back(list(tape.actions), grads, alone=False)
    return {slots[number]: _array(plain(ct)) for number, ct in grads.sums.items() if number in slots}


def _run_again(action: Any, entry: Entry, env: dict[int, Any]) -> Any:
    """An action with what it would keep now; its results go to env."""
    if type(action) is not OpAction:
        raise ArgumentError(
            f"{entry} cannot be replayed: only ops can", at=action.line or None, fix="replay a slice without it"
        )
    plan = action.plan
    values = [env[slot] for slot in entry.inputs]
    with plan.settings.hold():
        results = plan.forward(*values)
    results = (results,) if plan.single else tuple(results)
    env.update(zip(entry.outputs, results))
    return OpAction(plan, action.inputs, action.numbers, plan.keep((*values, *results)), action.where, action.epoch)


@contextmanager
def _needs_flatbuffers() -> Iterator[None]:
    try:
        yield
    except ImportError as cause:
        raise ArgumentError("jax writes and reads programs with flatbuffers", fix="pip install flatbuffers") from cause


def _op(action: Any) -> str:
    plan = getattr(action, "plan", None)
    return plan.name if plan is not None else getattr(action, "op", type(action).__name__)


def _kinds(action: Any, outputs: Sequence[Any], known: dict[int, Any]) -> Iterator[str]:
    plan = getattr(action, "plan", None)
    if plan is not None:
        yield from (kind.aval.str_short() for kind in plan.out_kinds)
    else:
        yield from (_kind(known[id.number]) if id.number in known else "" for id in outputs)


def _kind(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}"


def _plain(value: Any) -> bool:
    """Whether a value is numbers that a file can hold: no tracer, no random key."""
    traced = isinstance(value, jax.core.Tracer)
    return not traced and not jax.dtypes.issubdtype(jnp.result_type(value), jax.dtypes.extended)


def _array(value: Any) -> np.ndarray:
    return np.asarray(value)
