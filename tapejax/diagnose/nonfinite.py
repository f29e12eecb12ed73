"""find_nonfinite: where a NaN or an infinity in a gradient, a loss or any output was born."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.diagnose import words
from tapejax.diagnose.births import FORWARD, Arrived, Birth, Hop, Inside
from tapejax.diagnose.elements import INF, NAN, first, kind_of, mask
from tapejax.diagnose.loops import without_whiles
from tapejax.diagnose.places import place_of
from tapejax.diagnose.report import Bad, Born, Hidden, NonfiniteReport, Stop
from tapejax.diagnose.runs import Probe, Run
from tapejax.diagnose.shards import without_shard_maps
from tapejax.diagnose.stepping import cursor_at
from tapejax.diagnose.walk import Walker
from tapejax.engine.cursor import Cursor
from tapejax.errors import ArgumentError, RuleError, TapejaxError, UnknownLengthError
from tapejax.ground import compat
from tapejax.ground.where import user_line
from tapejax.ops.lift import is_data, is_tensor
from tapejax.program.program import Program
from tapejax.program.tracing import trace
from tapejax.tape.tape import Tape
from tapejax.tensor.tensor import Tensor, make
from tapejax.transforms.recording import plain

_tree = jax.tree_util


def find_nonfinite(
    f: Callable[..., Any], *args: Any, wrt: int | Sequence[int] | None = None, has_aux: bool = False
) -> NonfiniteReport:
    """Where a NaN or an infinity in the outputs of f, or in its gradients, was born; `report.ok` if there is none.

    f is any function that jax can trace, or one over Tensors; it is run once forward and once back, with a cotangent
    of ones. wrt: positions of the arguments to differentiate by (default: all that hold floats). has_aux: f returns
    (loss, others); no gradient is taken of the others, and they may hold what they like.

    Like jax.jit, it traces a function once per kind of arguments: what it reads from outside should stay as it is.

    >>> import jax.numpy as jnp, tapejax as tj
    >>> def loss(x):
    ...     root = jnp.sqrt(x)
    ...     return jnp.where(x > 0, root, 0.0).sum()
    >>> report = tj.find_nonfinite(loss, jnp.array([4.0, 0.0, 1.0]))
    >>> report.ok, report.born.op, report.born.index, report.born.direction, report.born.cause
    (False, 'sqrt', (1,), 'backward', 'derivative')
    """
    subject = Subject.of(f, args, wrt, has_aux)
    run = subject.run()
    return subject.report(run)


class Subject:
    """A function at arguments: its program, with names for what goes in and comes out."""

    def __init__(self, name: str, traced: Traced, values: list[Any], flat: Callable[..., Any]):
        self.name, self.traced, self.values, self.flat = name, traced, values, flat

    @classmethod
    def of(cls, f: Callable[..., Any], args: Sequence[Any], wrt: Any, has_aux: bool) -> Subject:
        if not callable(f):
            raise ArgumentError(f"find_nonfinite takes a function, not {type(f).__name__}", at=user_line())
        given, structure = _tree.tree_flatten_with_path(tuple(args), is_leaf=is_tensor)
        leaves = [plain(leaf) for _, leaf in given]
        numbers = [i for i, leaf in enumerate(leaves) if is_data(leaf)]
        labels = _labels(f, len(args))
        names = [labels[given[i][0][0].idx] + _tree.keystr(given[i][0][1:]) for i in numbers]
        values = [jnp.asarray(leaves[i]) for i in numbers]
        chosen = None if wrt is None else {n % len(args) for n in ([wrt] if isinstance(wrt, int) else wrt)}
        flags = tuple(
            _inexact(value) and (chosen is None or given[i][0][0].idx in chosen)
            for i, value in zip(numbers, values, strict=True)
        )
        rest = tuple((i, _identity(leaf)) for i, leaf in enumerate(leaves) if i not in numbers)
        key = (structure, tuple(jax.typeof(v) for v in values), flags, rest, has_aux, compat.Settings.now())

        def flat(*values):
            full = list(leaves)
            for position, value in zip(numbers, values, strict=True):
                full[position] = value
            return f(*_tree.tree_unflatten(structure, full))

        name = getattr(f, "__name__", type(f).__name__)
        traced = _kept(f, key, lambda: Traced(flat, values, names, flags, has_aux))
        return cls(name, traced, values, flat)

    def run(self) -> Run:
        return self.traced.run(self.values)

    # -- what is bad ---------------------------------------------------------------------------------------

    def bad(self, run: Run) -> tuple[list[tuple[Bad, int, int]], list[str]]:
        """(the bad results, each with its slot, and 1 for a gradient; the names of the finite outputs)."""
        traced, program = self.traced, self.traced.probe.program
        found: list[tuple[Bad, int, int]] = []
        fine = []
        for name, slot, counts in zip(traced.out_names, program.outputs, traced.counts, strict=True):
            if not counts or not _inexact(run.env[slot]):
                continue
            bad = _look("output", name, run.value(slot))
            if bad is None:
                fine.append(name)
            else:
                found.append((bad, slot, 0))
        for name, slot, flag in zip(traced.names, program.inputs, traced.flags, strict=True):
            if flag and run.cts.get(slot) is not None:
                bad = _look("gradient", name, run.ct(slot))
                if bad is not None:
                    found.append((bad, slot, 1))
        return found, fine

    def report(self, run: Run) -> NonfiniteReport:
        found, fine = self.bad(run)
        notes = self.traced.notes
        if not found:
            return NonfiniteReport(self.name, notes=notes)
        bad, slot, is_gradient = found[0]
        walker = Walker(bad.kind)
        start = walker.backward if is_gradient else walker.forward
        birth = start(run, slot, bad.index, Inside())
        if isinstance(birth, Arrived):
            birth = self._at_edge(run, birth, is_gradient, walker)
        results = tuple(bad for bad, _, _ in found)
        report = self._told(run, birth, results, walker.path, fine, notes)
        report.recorded = self.cursor_at
        return report

    def cursor_at(self, born: Born) -> Cursor:
        """The function again, on a tape of primitives, with a cursor at the birth."""
        traced = self.traced

        def looked_at(*values):
            leaves = [leaf for leaf in _tree.tree_leaves(_call(self.flat, values)) if is_data(leaf)]
            return [leaf for leaf, wanted in zip(leaves, traced.wanted, strict=True) if wanted]

        return cursor_at(born, looked_at, self.values, traced.flags, traced.names, self.name)

    def _at_edge(self, run: Run, arrived: Arrived, is_gradient: int, walker: Walker) -> Birth:
        """The bad number is an argument's."""
        slot = run.probe.program.inputs[arrived.at]
        value = run.value(slot)
        last = arrived.last
        place = place_of(last.sources) if last is not None else place_of(())
        made = Birth(
            "input", place, (), arrived.index, FORWARD, "input", walker.kind, value[arrived.index], str(value.dtype)
        )
        made.input = arrived.at
        return made

    def _told(
        self, run: Run, birth: Birth, results: tuple[Bad, ...], path: list[Hop], fine: list[str], notes: Any
    ) -> NonfiniteReport:
        inputs = dict(zip(self.traced.probe.program.inputs, self.traced.names, strict=True))
        hidden = words.hidden_by(birth)
        origin = birth.origin
        return NonfiniteReport(
            self.name,
            results,
            self._born(run, birth, inputs),
            tuple(
                Stop(hop.op, hop.place.file, hop.place.lineno, hop.steps, hop.index, hop.direction, hop.kind)
                for hop in [birth, *reversed(path)]
            ),
            None if origin is None or _same(origin, birth) else self._born(run, origin, inputs),
            None if hidden is None else Hidden("where", *_file_line(hidden)),
            words.fix(_to_mend(birth), hidden),
            tuple(fine),
            notes,
        )

    def _born(self, run: Run, birth: Birth, inputs: dict[int, str]) -> Born:
        here = inputs if birth.run is run else {}
        numbers = tuple(words.met(birth, here))
        if birth.input is not None:
            names: tuple[str, ...] = (self.traced.names[birth.input],)
        else:
            names = self.traced.names_behind(birth.eqn) if birth.run is run else ()
        place = birth.place
        return Born(
            birth.op, place.file, place.lineno, place.source, place.library, birth.steps, birth.index, birth.direction,
            birth.cause, birth.kind, birth.dtype, numbers, birth.function, names,
        )  # fmt: skip


def _to_mend(birth: Birth) -> Birth:
    """Where something has to change: if infinities met, where they were made."""
    origin = birth.origin
    if origin is None or origin.cause == "constant" or birth.cause not in ("infinities", "cotangent"):
        return birth
    meets_at_once = birth.cause == "infinities" and (birth.op == "sub" or origin.op in ("log", "exp"))
    return birth if meets_at_once else origin


def _same(a: Birth, b: Birth) -> bool:
    return a.place == b.place and a.op == b.op and a.direction == b.direction


def _file_line(eqn: Any) -> tuple[str, int]:
    place = place_of(eqn.sources)
    return place.file, place.lineno


def _look(what: str, name: str, value: np.ndarray) -> Bad | None:
    kind = kind_of(value)
    if kind is None:
        return None
    where = mask(value, kind)
    return Bad(what, name, kind, first(where) or (), int((mask(value, NAN) | mask(value, INF)).sum()), value.size)


class Traced:
    """The program of a function at arguments of some kinds."""

    def __init__(self, flat: Any, values: list[Any], names: list[str], flags: tuple[bool, ...], has_aux: bool):
        self.names, self.flags = names, flags
        self.notes: tuple[str, ...] = ()
        structure: Any = None

        def over_arrays(*values):
            nonlocal structure
            outputs, structure = _tree.tree_flatten_with_path(_call(flat, values))
            structure = [path for path, leaf in outputs if is_data(leaf)]
            return [jnp.asarray(leaf) for _, leaf in outputs if is_data(leaf)]

        try:
            program, _ = trace(over_arrays, values)
        except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
            raise ArgumentError(
                "the function needs the values of its arguments while it is traced: a Python branch, or float() of one",
                at=user_line(),
                fix="lax.cond, jnp.where or lax.while_loop in their place; or fix such arguments with functools.partial",
            ) from error
        program = without_shard_maps(program)
        self.out_names = [_out_name(path, aval) for path, aval in zip(structure, program.out_avals, strict=True)]
        self.counts = [not has_aux or (bool(path) and getattr(path[0], "idx", 1) == 0) for path in structure]
        self.probe = self._probe(program, values)
        self.avals = program.out_avals

    def _probe(self, program: Program, values: list[Any]) -> Probe:
        wanted = [c and _inexact(aval) for c, aval in zip(self.counts, program.out_avals, strict=True)]
        self.wanted = wanted
        try:
            return Probe(program, self.flags, wanted)
        except UnknownLengthError:
            forward = Probe(program, [False] * len(program.inputs))
            run = forward.run(values, [None] * len(program.outputs))
            self.lengths_vary = True
            try:
                return Probe(without_whiles(program, run), self.flags, wanted)
            except RuleError as error:  # a while inside another loop
                self.notes = (f"only the outputs were looked at: {error.what}",)
                return forward
        except RuleError as error:
            self.notes = (f"only the outputs were looked at: {error.what}",)
            return Probe(program, [False] * len(program.inputs))

    lengths_vary = False  # whether the program holds for these values only

    def run(self, values: list[Any]) -> Run:
        avals = self.probe.program.out_avals
        cts = [
            np.ones(aval.shape, aval.dtype) if wanted else None for aval, wanted in zip(avals, self.wanted, strict=True)
        ]
        return self.probe.run(values, cts if self.probe.back is not None else [None] * len(cts))

    def names_behind(self, eqn: Any) -> tuple[str, ...]:
        """The inputs an equation depends on."""
        if eqn is None:
            return ()
        wanted = set(eqn.inputs)
        for other in reversed(self.probe.program.eqns):
            if not wanted.isdisjoint(other.outputs):
                wanted.update(other.inputs)
        return tuple(n for n, slot in zip(self.names, self.probe.program.inputs, strict=True) if slot in wanted)


def _call(flat: Any, values: Sequence[Any]) -> Any:
    """The function on arrays, or on Tensors if it asks for what only these have. What it raises itself comes out at once."""
    try:
        result = flat(*values)
    except (TapejaxError, AttributeError) as refusal:
        if not _wants_tensors(refusal):
            raise
        tensors = [make(value, _inexact(value)) for value in values]
        with Tape():
            result = flat(*tensors)
    return _tree.tree_map(plain, result, is_leaf=is_tensor)


def _wants_tensors(refusal: Exception) -> bool:
    """Whether an array was asked for an attribute of a Tensor, or given to one of our functions that takes Tensors."""
    if isinstance(refusal, AttributeError):
        return isinstance(refusal.obj, jax.Array) and hasattr(Tensor, refusal.name or "")
    return isinstance(refusal, ArgumentError)


def _out_name(path: Any, aval: Any) -> str:
    return f"output{_tree.keystr(path)}" if path or aval.shape else "loss"


def _inexact(value: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(value) if not hasattr(value, "dtype") else value.dtype, jnp.inexact)


# --- what was traced is kept ------------------------------------------------------------------------------------

_traced: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()


def _kept(f: Any, key: Any, make: Callable[[], Traced]) -> Traced:
    try:
        own = _traced.setdefault(f, {})
        outside = tuple(_outside(f))
        found = own.get(key)
    except TypeError:  # a function, or an argument, that cannot be hashed or referred to weakly
        return make()
    if found is not None and len(found[0]) == len(outside) and all(a is b for a, b in zip(found[0], outside)):
        return found[1]
    made = make()
    if not made.lengths_vary:
        own[key] = (outside, made)
    return made


def _outside(f: Any) -> Iterator[Any]:
    """What a function reads from outside, as far as its own code says."""
    code = getattr(f, "__code__", None)
    for cell in getattr(f, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            yield None
    if code is not None:
        names = f.__globals__
        yield from (names.get(name) for name in code.co_names)
    yield from (getattr(f, "__defaults__", None) or ())


def _identity(leaf: Any) -> Any:
    try:
        hash(leaf)
    except TypeError:
        return id(leaf)
    return leaf


def _labels(f: Any, count: int) -> list[str]:
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    found = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            found += [f"{parameter.name}[{i}]" for i in range(count - len(found))]
            break
        if parameter.kind is not parameter.KEYWORD_ONLY:
            found.append(parameter.name)
    return [*found, *(f"argument {i}" for i in range(len(found), count))][:count]
