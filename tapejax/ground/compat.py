"""What differs between the JAX releases we support, and nothing else.

Supported: 0.10.2 (the last for Python 3.11) up to 0.12. Each entry names the release that makes
it necessary, so that it can be deleted when that release is dropped. Public JAX API only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, ClassVar

import jax
import numpy as np
from jax.experimental import io_callback
from jax.extend import core as jex_core
from jax.extend import source_info_util

from tapejax.ground.caches import cached
from tapejax.ground.where import is_internal, shown


def jaxpr_parts(jaxpr: Any) -> tuple[Any, list[Any]]:
    """(open jaxpr, consts) of a ClosedJaxpr (0.10) or of a Jaxpr that carries its consts (0.12).

    A jaxpr with neither (an open one in a parameter) has no consts.
    """
    consts = getattr(jaxpr, "consts", None)
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return inner, list(consts or ())


def equation_as_function(eqn: Any) -> Callable[..., list[Any]]:
    """One equation as a function of its operands; reaches custom rules, scans and calls alike."""

    def run(*values):
        with equation_context(eqn):
            return bind(eqn.primitive, eqn.params, values)

    return run


def bind(primitive: Any, params: dict[str, Any], values: Iterable[Any]) -> list[Any]:
    """Run a primitive, with the parameters that its equations have; always a list of results."""
    out = primitive.bind(*values, **primitive.get_bind_params(params))
    return list(out) if primitive.multiple_results else [out]


_own_primitives: frozenset[Any] = frozenset()
_modules_seen = 0


def is_own(primitive: Any) -> bool:
    """Whether jax itself defines a primitive: one that does not is in none of jax's modules.

    A name says nothing: two packages may give the same one.
    """
    global _own_primitives, _modules_seen
    if primitive not in _own_primitives and len(sys.modules) != _modules_seen:
        modules = sys.modules.copy()
        inside = [vars(module) for name, module in modules.items() if name == "jax" or name.startswith("jax.")]
        found = [value for names in inside for value in list(names.values()) if isinstance(value, jex_core.Primitive)]
        _own_primitives, _modules_seen = frozenset(found), len(modules)
    return primitive in _own_primitives


def has_subjaxprs(params: dict[str, Any]) -> bool:
    return any(True for _ in jex_core.jaxprs_in_params(params))


def custom_body(eqn: Any) -> Any:
    """The jaxpr of a function with a custom derivative; None if it is none."""
    found = eqn.params.get("call_jaxpr") if eqn.primitive.name in ("custom_jvp_call", "custom_vjp_call") else None
    return None if found is None else jaxpr_parts(found)[0]


def quick_compilation() -> dict[str, Any]:
    """Options with which XLA compiles in less time to slower code; none where that is not worth it.

    Until 0.10 there is another, older way to emit code for a CPU: it takes half the time. There XLA also cuts a program into
    32 pieces to compile them side by side, which costs more than it saves: in one piece it takes a quarter to a half less.
    """
    if jax.default_backend() != "cpu" or jax.process_count() > 1:
        return {}
    options: dict[str, Any] = {"xla_backend_optimization_level": 0}
    if jax.__version_info__ < (0, 11):
        options |= {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
    return options


def good_compilation() -> dict[str, Any]:
    """Options with which XLA compiles well what runs often.

    On a CPU, LLVM's level 2 instead of XLA's own choice, 3. Measured with jaxlib 0.10.2: a small conv net runs in 0.88 of the
    time, an MLP of 32 in 0.97, a transformer in 1.01, others the same; and it compiles in 0.9. What XLA_FLAGS says stays.
    """
    level = "xla_backend_optimization_level"
    return {level: 2} if jax.default_backend() == "cpu" and level not in os.environ.get("XLA_FLAGS", "") else {}


def looks_for_nonfinite() -> bool:
    """Whether jax looks for NaN and infinities in what programs return."""
    return jax.debug_nans.value or jax.debug_infs.value


def compilation_cache() -> tuple[str, float] | None:
    """The folder in which jax keeps what it compiled, and from how many seconds on it does.

    None if it keeps nothing, or not in a folder of this machine.
    """
    folder = jax.config.jax_compilation_cache_dir
    if not folder or "://" in folder or not jax.config.jax_enable_compilation_cache:
        return None
    return folder, jax.config.jax_persistent_cache_min_compile_time_secs


def scan_counts(params: dict[str, Any], n_in: int) -> tuple[int, int]:
    """(num_consts, num_carry) of a scan; 0.12 has `ft_in` (consts, carry, xs) instead."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def source_line(source_info: Any) -> str:
    """`file:line` of the user's code an equation came from, or '' when jax did not keep it."""
    try:
        summary = source_info_util.summarize(source_info)
    except Exception:  # a jaxpr made by hand has no source
        return ""
    if summary in ("unknown", "<unknown>"):
        return ""
    file, colon, rest = summary.partition(":")
    return shown(file) + colon + rest


def source_frames(source_info: Any) -> list[tuple[str, int]]:
    """(file, line) of the frames an equation was made in, the innermost first; none where jax did not keep them."""
    traceback = getattr(source_info, "traceback", None)
    return [(frame.file_name, frame.line_num) for frame in getattr(traceback, "frames", ())]


_JAX = os.path.dirname(jax.__file__) + os.sep
_LIBRARIES = tuple(f"{os.sep}{name}{os.sep}" for name in ("image", "nn", "numpy", "ops", "scipy"))


def called_functions(source_info: Any) -> list[str]:
    """The functions of jax's libraries (jax.numpy, jax.scipy, jax.nn) that an equation was made in, the innermost first.

    Only those that the user's own code called, directly or through each other.
    """
    found = []
    for frame in getattr(getattr(source_info, "traceback", None), "frames", ()):
        if not frame.file_name.startswith(_JAX):
            if is_internal(frame.file_name):
                continue
            break
        if any(part in frame.file_name[len(_JAX) - 1 :] for part in _LIBRARIES):
            found.append(frame.function_name.rpartition(".")[2])
    return found


class MadeAt:
    """What is traced inside comes from these frames, and has these names: what profilers and XLA dumps show.

    jax's own context manager also rewrites what is raised inside; this one lets it pass as it is.
    """

    __slots__ = ("_context",)

    def __init__(self, traceback: Any, names: Any) -> None:
        self._context = source_info_util.user_context(traceback, name_stack=names)

    def __enter__(self) -> None:
        self._context.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._context.__exit__(None, None, None)


source_now: Callable[[], Any] = source_info_util.current
no_names: Callable[[], Any] = source_info_util.new_name_stack
no_names_yet: Callable[[], Any] = source_info_util.reset_name_stack
named: Callable[[str], Any] = source_info_util.extend_name_stack
derived: Callable[[str], Any] = source_info_util.transform_name_stack


def source_of(sources: Sequence[Any]) -> Any:
    """One source of an equation that was opened from calls, from its own and theirs, inside out: all names, one line."""
    found = next(filter(source_line, sources), sources[0])
    names = no_names()
    for source in reversed(sources):
        names = names + source.name_stack
    return found.replace(name_stack=names)


def made_at(source: Any) -> MadeAt:
    """As what was made at this source, within the names that are in force."""
    return MadeAt(source.traceback, source_info_util.current_name_stack() + source.name_stack)


def made_by_going_back(source: Any) -> MadeAt:
    """As the derivative of what was made at this source: `outer/backward(layer)`."""
    here, there = source_info_util.current_name_stack(), source.name_stack
    common = 0
    while common < len(here) and here[: common + 1] == there[: common + 1]:
        common += 1
    return MadeAt(source.traceback, here[:common].transform("backward") + there[common:])


top_trace = jex_core.find_top_trace
with jax.core.eval_context():  # whoever imports us may be tracing
    NO_TRACE = top_trace(())


def is_tracing() -> bool:
    """Whether jax is tracing here (jit, grad, vmap, ...)."""
    return top_trace(()) is not NO_TRACE


def array_from(values: np.ndarray) -> jax.Array:
    """`jnp.asarray` without a program: since 0.10 that compiles one for each new shape. On a mesh, jax decides where it goes."""
    if is_tracing() or not jax.sharding.get_abstract_mesh().empty:
        return jax.numpy.asarray(values)
    return jax.device_put(values)


# jax's settings: `.value` is what holds here and now.
X64, DEVICE, PRECISION = jax.enable_x64, jax.default_device, jax.default_matmul_precision
PROMOTION, RANKS = jax.numpy_dtype_promotion, jax.numpy_rank_promotion


class Settings:
    """jax's settings of a moment, as far as they change what a function traces or lowers to.

    There is one object for equal settings, so that they are compared by identity.
    `with settings.hold():` brings them back; that costs little while they are as they were.
    """

    __slots__ = ("partitionable", "precision", "prng", "promotion", "ranks", "values", "x64")

    STATES = (
        jax.enable_x64,
        jax.default_matmul_precision,
        jax.numpy_dtype_promotion,
        jax.numpy_rank_promotion,
        jax.threefry_partitionable,
        jax.default_prng_impl,
    )
    _interned: ClassVar[dict[tuple[Any, ...], Settings]] = {}
    _last: ClassVar[Settings | None] = None

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values
        self.x64, self.precision, self.promotion, self.ranks, self.partitionable, self.prng = values

    @classmethod
    def now(cls) -> Settings:
        last = cls._last
        if last is not None and last.is_now():
            return last
        values = tuple([state.value for state in cls.STATES])
        found = cls._interned.get(values) or cls._interned.setdefault(values, cls(values))
        cls._last = found
        return found

    def is_now(self) -> bool:
        return self.values == (
            _x64.value, _precision.value, _promotion.value, _ranks.value, _partitionable.value, _prng.value,
        )  # fmt: skip

    def with_device(self, device: Any) -> tuple[Any, ...]:
        """Those of them that most ops depend on, and the default device: compared at every op."""
        return self.x64, device, self.precision, self.promotion, self.ranks

    @contextmanager
    def at(self, device: Any) -> Iterator[None]:
        """As they are here, with a default device, and no trace around."""
        with jax.ensure_compile_time_eval(), self.hold(), jax.default_device(device):
            yield

    def hold(self) -> Any:
        return NO_CONTEXT if Settings.now() is self else self._held()

    @contextmanager
    def _held(self) -> Iterator[None]:
        with ExitStack() as stack:
            for state, value in zip(self.STATES, self.values, strict=True):
                if state.value != value:
                    stack.enter_context(state(value))
            yield


_x64, _precision, _promotion, _ranks, _partitionable, _prng = Settings.STATES

_RANDOM = frozenset(
    getattr(jex_core.primitives, name)
    for name in (
        "random_bits_p",
        "random_fold_in_p",
        "random_gamma_p",
        "random_seed_p",
        "random_split_p",
        "threefry2x32_p",
    )
)


def draws_numbers(eqns: Iterable[Any]) -> bool:
    """Whether equations draw random numbers, which depend on settings when they are lowered."""
    return any(eqn.primitive in _RANDOM for eqn in all_equations(eqns))


def moves(eqns: Iterable[Any]) -> bool:
    """Whether equations put values on other devices: a compiled program runs on those that it was given."""
    places = [
        place for eqn in eqns if eqn.primitive is jex_core.primitives.device_put_p for place in eqn.params["devices"]
    ]
    return any([isinstance(place, (jax.Device, jax.sharding.Sharding)) for place in places])


def calls_host(eqns: Iterable[Any]) -> bool:
    """Whether equations call back into Python when they run."""
    return any(eqn.primitive in _host_calls() for eqn in all_equations(eqns))


def all_equations(eqns: Iterable[Any]) -> Iterator[Any]:
    """Equations, and those of the programs inside them."""
    for eqn in eqns:
        yield eqn
        for inner in jex_core.jaxprs_in_params(eqn.params):
            yield from all_equations(jaxpr_parts(inner)[0].eqns)


@cached(1)
def _host_calls() -> frozenset[Any]:
    """The primitives of callbacks; jax does not export them."""
    scalar = jax.ShapeDtypeStruct((), np.float32)

    def all_kinds(x):
        jax.debug.callback(lambda x: None, x)
        y = jax.pure_callback(lambda x: x, scalar, x)
        return y, io_callback(lambda x: x, scalar, x)

    inner, _ = jaxpr_parts(jax.make_jaxpr(all_kinds)(scalar))
    return frozenset(eqn.primitive for eqn in inner.eqns)


def is_float0(dtype: Any) -> bool:
    return dtype == jax.dtypes.float0


def avals_of(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(jax.typeof(value) for value in values)


# For jit: within a larger program its equations become that program's own. In 0.12 True means later, when lowering.
INLINE: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True


STAGED: set[type] = set()  # the types of the values with which functions are traced


def is_staged(values: Iterable[Any]) -> bool:
    """Whether a program is being traced with one of these values (rather than, say, mapped over a batch)."""
    staged = _staged()
    return any([type(value) in staged for value in values])


@cached(1)
def _staged() -> set[type]:
    """STAGED, with the type that jit traces with: jax does not export it."""
    jax.make_jaxpr(lambda x: STAGED.add(type(x)))(0)
    return STAGED


def one_minus_square(x: Any) -> Any:
    """1 - x * x, accurate near 1 and -1; a primitive of its own since 0.12."""
    primitive = getattr(jax.lax, "one_minus_square", None)
    if primitive is not None:
        return primitive(x)
    one = jax.lax.full_like(x, 1) if getattr(x, "weak_type", False) else x.dtype.type(1)
    rest = jax.lax.sub(one, x)
    return jax.lax.add(rest, jax.lax.mul(rest, x))


def varying_axes(value: Any) -> frozenset[Any]:
    """The mesh axes over which a value, or an aval, varies from device to device inside a shard_map."""
    aval = value if hasattr(value, "manual_axis_type") else jax.typeof(value)
    kind = getattr(aval, "manual_axis_type", None)
    return frozenset() if kind is None else kind.varying


def explicit_sharding(aval: Any) -> Any:
    """The sharding in an aval's type, or None where the mesh leaves shardings to the compiler."""
    sharding = getattr(aval, "sharding", None)
    mesh = getattr(sharding, "mesh", None)
    if mesh is None or mesh.empty or jax.sharding.AxisType.Explicit not in mesh.axis_types:
        return None
    return sharding


def is_plain(aval: Any) -> bool:
    """Whether an aval is a shape and a dtype of NumPy's kind, and nothing more: no mesh has a say in it, no size is a symbol."""
    if not isinstance(aval.dtype, np.dtype) or not all([isinstance(size, int) for size in aval.shape]):
        return False
    return explicit_sharding(aval) is None and not varying_axes(aval)


def reshard_like(value: Any, aval: Any) -> Any:
    """value, laid out as the aval's type says."""
    sharding = explicit_sharding(aval)
    if sharding is None or jax.typeof(value).sharding == sharding:
        return value
    if sharding.spec.unreduced or sharding.spec.reduced:  # a cotangent of the one kind is of the other
        return value
    return jax.sharding.reshard(value, sharding)


def stacked_aval(aval: Any, length: int) -> Any:
    """The aval of `length` values of this aval on a new leading axis (whole on every device)."""
    sharding = explicit_sharding(aval)
    if sharding is None:
        return aval.update(shape=(length, *aval.shape))
    spec = jax.sharding.PartitionSpec(None, *sharding.spec)
    return aval.update(shape=(length, *aval.shape), sharding=sharding.update(spec=spec))


def as_typed(value: Any, aval: Any) -> Any:
    """value with the sharding and the varying mesh axes that the aval's type says."""
    missing = varying_axes(aval) - varying_axes(value)
    if missing:
        value = jax.lax.pcast(value, tuple(sorted(missing)), to="varying")
    return reshard_like(value, aval)


NO_CONTEXT = nullcontext()


def has_context(eqn: Any) -> bool:
    """Whether a mesh, or a place to compute on, was set where an equation was traced."""
    context = getattr(eqn, "ctx", None)
    return context is not None and not (context.cur_abstract_mesh.empty and context.compute_type is None)


def equation_context(eqn: Any) -> Any:
    """A context manager that sets what was set where an equation was traced: the mesh, where to compute."""
    return eqn.ctx.manager if has_context(eqn) else NO_CONTEXT


def mesh_context(aval: Any) -> Any:
    """A context manager that sets the mesh in an aval's type, if there is one."""
    mesh = getattr(getattr(aval, "sharding", None), "mesh", None)
    if mesh is None or mesh.empty or mesh == jax.sharding.get_abstract_mesh():
        return NO_CONTEXT
    return jax.sharding.use_abstract_mesh(mesh)


def is_saveable(answer: Any) -> bool:
    """Whether a checkpoint policy's answer is to keep the value on the device; jax does not export the type."""
    return answer is True or type(answer) is _saveable_type()


@cached(1)
def _saveable_type() -> type:
    keeps = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["kept"],
        names_which_can_be_offloaded=[],
        offload_src="device",
        offload_dst="pinned_host",
    )
    return type(keeps(jex_core.primitives.name_p, name="kept"))


def offloads_to(answer: Any) -> tuple[str, str] | None:
    """(from, to) of a checkpoint policy's answer that moves the value to another memory; None for another answer."""
    return (answer.src, answer.dst) if isinstance(answer, tuple) and hasattr(answer, "dst") else None


def composite_jaxpr(params: dict[str, Any]) -> Any:
    """The program inside a lax.composite; 0.10 calls it `jaxpr`."""
    return params["call_jaxpr"] if "call_jaxpr" in params else params["jaxpr"]
