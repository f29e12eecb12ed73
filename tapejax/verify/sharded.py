"""verify_sharded: a function over sharded arguments against the same function on one device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, Sharding
from jax.sharding import PartitionSpec as P

from tapejax.errors import ArgumentError, TapejaxError
from tapejax.ground.where import user_line
from tapejax.ops.lift import is_tensor
from tapejax.transforms import reverse_mode as transforms
from tapejax.transforms.recording import plain
from tapejax.verify.report import RIGHT, WRONG, Findings, Row, aligned, device, number, plain_json, value
from tapejax.verify.subject import Subject, cotangents
from tapejax.verify.tolerance import Tolerance, difference, factor

ORDERS = 8.0  # times the unit of rounding and the root of the number of terms: what another order of a sum may do
SHAKEN = 8.0  # times what a change of the arguments in their last bit does


@dataclass(slots=True, repr=False)
class ShardedReport(Findings):
    """Each value and gradient of the sharded run against one device."""

    function: str
    devices: int
    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def judged(self) -> list[Row]:
        return self.rows

    @property
    def title(self) -> str:
        return f"verify_sharded({self.function})"

    @property
    def verdict_line(self) -> str:
        if not self.wrong:
            return f"right: {len(self.rows)} results on {self.devices} devices are those of one"
        row = self.first_wrong
        place = f"{row.input}{list(row.index) if row.index else ''}"
        return (
            f"WRONG: {place}: got {value(row.got)} on {self.devices} devices, {value(row.expected)} on one; {row.note}"
        )

    def to_json(self) -> dict[str, Any]:
        return plain_json({
            "function": self.function, "ok": self.ok, "devices": self.devices, "seconds": self.seconds,
            "jax": jax.__version__, "device": device(), "rows": [asdict(row) for row in self.rows],
        })  # fmt: skip

    def tables(self) -> list[tuple[str, list[Sequence[str]], list[str]]]:
        rows: list[Sequence[str]] = [("what", "kind", "max abs", "max rel", "fine", "verdict")]
        rows += [
            (r.input, r.kind, number(r.max_abs), number(r.max_rel), number(r.tolerance), r.verdict) for r in self.rows
        ]
        return [("", rows, [row.verdict for row in self.rows])]

    def __str__(self) -> str:
        [(_, rows, _)] = self.tables()
        return "\n".join([self.title, *aligned(rows), f"{self.verdict_line}  ({self.seconds:.1f} s)"])


def verify_sharded(
    function: Callable[..., Any],
    *args: Any,
    shardings: Any,
    reference: Callable[..., Any] | None = None,
    rtol: float | None = None,
    seed: int = 0,
) -> ShardedReport:
    """Whether a function and its gradient are the same over sharded arguments as on one device.

    shardings: a `jax.sharding.NamedSharding` for all arguments, or a tuple with one for each (or a tree of them, as in
    `jax.device_put`). reference: the function for one device; needed where `function` has a mesh of its own. Without,
    `function` runs a second time on a mesh of one device with the same axes, so that a `jax.shard_map` that is called
    inside of it without a mesh is judged too: there a collective does nothing, and one that is missing shows as a difference.

    Values and gradients may differ as sums in another order do: eight units of rounding times the root of the number of
    elements, relative to the largest; and by eight times what a change of the arguments in their last bit does. rtol: instead.
    A scalar is differentiated with cotangent 1, others with random ones. Costs two compilations.

    >>> import jax, jax.numpy as jnp, tapejax as tj
    >>> from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
    >>> mesh = jax.make_mesh((jax.device_count(),), ("rows",), axis_types=(AxisType.Auto,))
    >>> rows = NamedSharding(mesh, P("rows"))
    >>> tj.verify_sharded(lambda x: jnp.sum(jnp.sin(x) ** 2), jnp.ones((8, 2)), shardings=rows).ok
    True
    """
    start = time.perf_counter()
    mesh = _mesh_of(shardings)
    alone = jax.make_mesh(
        (1,) * len(mesh.axis_names), mesh.axis_names, axis_types=mesh.axis_types, devices=[mesh.devices.flat[0]]
    )
    on_one = jax.tree.map(lambda s: NamedSharding(alone, s.spec), shardings, is_leaf=_is_sharding)
    args = jax.tree.map(plain, args, is_leaf=is_tensor)
    many = _Run(function, args, shardings, mesh)
    one = _Run(reference or function, args, on_one, alone)
    outputs, gradients = many.run(seed)
    try:
        expected, slopes = one.run(seed)
    except TapejaxError:
        raise
    except ValueError as error:  # jax refuses to run a mesh within another
        if reference is not None:
            raise
        raise ArgumentError(
            f"`{many.subject.name}` does not run on one device, so that there is nothing to compare with: it has a mesh of its own",
            at=user_line(),
            fix="reference=, the same for one device; or call jax.shard_map inside of the function, without mesh=",
        ) from error
    report = ShardedReport(many.subject.name, mesh.size)
    names = [f"value {i}" if len(outputs) > 1 else "the value" for i in range(len(outputs))] + many.subject.names
    found, wanted = [*outputs, *gradients], [*expected, *slopes]
    terms = max([out.size for out in wanted] + [given.size for given in one.subject.values])
    tolerances = [_tolerance(out.dtype, terms, rtol) for out in wanted]
    units = [0.0] * len(wanted)
    if rtol is None and not all(_same(*each) for each in zip(found, wanted, tolerances, units, strict=True)):
        moved = jax.tree.leaves(one.run(seed, shaken=True))
        units = [SHAKEN * _distance(m, w) for m, w in zip(moved, wanted, strict=True)]
    for name, got, want, tolerance, unit in zip(names, found, wanted, tolerances, units, strict=True):
        report.rows.append(_row(name, got, want, tolerance, unit))
    report.seconds = time.perf_counter() - start
    return report


class _Run:
    """A function at placed arguments, and its gradient by the tape, as one compiled program."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], shardings: Any, mesh: Any):
        self.mesh = mesh
        self.subject = Subject.of(function, jax.device_put(args, shardings))
        self.compiled = jax.jit(self._both)

    def _both(self, values: Sequence[Any], cts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        outputs, pullback = transforms.vjp(self.subject.function, *values)
        return [plain(out) for out in outputs], [plain(slope) for slope in pullback(list(cts))]

    def run(self, seed: int, *, shaken: bool = False) -> tuple[list[Any], list[Any]]:
        values = self.subject.values
        if shaken:
            rng = np.random.default_rng(seed)
            values = [jax.device_put(_shaken(value, rng), value.sharding) for value in values]
        with jax.set_mesh(self.mesh):
            shapes = jax.eval_shape(self.subject.over_arrays, *self.subject.values)
            drawn = [jnp.ones((), shapes[0].dtype)] if _is_scalar(shapes) else cotangents(shapes, seed)
            places = [NamedSharding(self.mesh, s.sharding.spec if s.sharding else P()) for s in shapes]
            drawn = [jax.device_put(ct, place) for ct, place in zip(drawn, places, strict=True)]
            return jax.tree.map(np.asarray, self.compiled(values, drawn))


def _is_scalar(shapes: Sequence[Any]) -> bool:
    return len(shapes) == 1 and shapes[0].shape == ()


def _shaken(value: Any, rng: np.random.Generator) -> Any:
    unit = float(jnp.finfo(value.dtype).eps) / 2
    return np.asarray(value) * (1 + unit * rng.choice([-1, 1], value.shape)).astype(np.asarray(value).real.dtype)


def _tolerance(dtype: Any, terms: int, rtol: float | None) -> Tolerance:
    if rtol is not None:
        return Tolerance(rtol, 1.0, "as asked")
    unit = float(jnp.finfo(dtype).eps) / 2
    return Tolerance(ORDERS * unit * max(terms, 1) ** 0.5, 1.0, f"sums of up to {terms} terms, in another order")


def _same(got: Any, want: Any, tolerance: Tolerance, unit: float) -> bool:
    return got.shape == want.shape and difference(got, want, tolerance, unit).ok


def _distance(a: Any, b: Any) -> float:
    apart = np.abs(a.astype(np.complex128) - b.astype(np.complex128))
    return float(apart[np.isfinite(apart)].max(initial=0.0))


def _row(name: str, got: Any, want: Any, tolerance: Tolerance, unit: float) -> Row:
    kind = jax.typeof(want).str_short()
    if got.shape != want.shape:
        note = f"{jax.typeof(got).str_short()} instead of {kind}"
        return Row(name, kind, "one device", 1, WRONG, np.inf, np.inf, note=note)
    found = difference(got, want, tolerance, unit)
    note = "" if found.ok else factor(found.got, found.expected)
    return Row(
        name, kind, "one device", 1, RIGHT if found.ok else WRONG, found.max_abs, found.max_rel, found.index,
        found.got, found.expected, tolerance.rtol, tolerance.reason, note,
    )  # fmt: skip


def _is_sharding(leaf: Any) -> bool:
    return isinstance(leaf, Sharding)


def _mesh_of(shardings: Any) -> Any:
    leaves = jax.tree.leaves(shardings, is_leaf=_is_sharding)
    if not leaves or not all([isinstance(leaf, NamedSharding) for leaf in leaves]):
        raise ArgumentError(
            "shardings holds something else than a NamedSharding",
            at=user_line(),
            fix="NamedSharding(mesh, PartitionSpec(...))",
        )
    meshes = {leaf.mesh for leaf in leaves}
    if len(meshes) > 1:
        raise ArgumentError("shardings are of several meshes", at=user_line(), fix="one mesh for all arguments")
    return meshes.pop()
