"""Fused programs are compiled quickly first, and well when they have come often.

On a CPU, XLA compiles in a quarter of the time if it is told not to optimise, to code that runs at half the speed. (A
small transformer: 0.7 s instead of 5.7, then 69 ms a step instead of 26.) Most programs run a few times only.

When it is compiled again is counted, and never decided by a clock: the same calls run the same programs, in every
process. Each visit adds what it loses, by the bytes that the program moves. At half of what compiling well costs, a
thread begins to do it; when all of it is lost, the next visit has the better program, and waits for it if need be.

Where jax keeps what it compiled in a folder (JAX_COMPILATION_CACHE_DIR), a mark beside it says which programs are there
compiled well. A process that finds the mark of a program runs the better one from its first visit on.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import jax
from jax import lax

from tapejax.ground import compat
from tapejax.ground.placement import several_devices
from tapejax.program.program import Eqn, Program, bytes_of_all

if TYPE_CHECKING:
    from tapejax.plan.policy import Part

ENABLED = os.environ.get("TAPEJAX_QUICK_COMPILATION", "1") != "0"
BYTE = 1 / 60e6  # what a byte that is moved loses, in the units of policy.py: at 30 GB/s
EQUATION = 1 / 2000  # what each equation loses: 1 us
BEGIN = 0.5  # the share of the price at which the better program is begun
REUSE = 16  # how often a product has an operand in its registers, about
# Their work cannot be told from their shapes.
UNKNOWN = {"sort", "top_k", "approx_top_k", "fft", "random_bits", "threefry2x32", "rng_bit_generator", "igamma", "lgamma", "reduce_window", "reduce_window_sum", "reduce_window_max",
           "reduce_window_min", "select_and_gather_add", "select_and_scatter_add", "conv_general_dilated", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"}  # fmt: skip


def moved(program: Program) -> float:
    """The bytes that a program reads and writes, by estimate; infinite where that cannot be told from its shapes."""
    return sum([_moved_by(eqn, program.avals) for eqn in program.eqns])


def _moved_by(eqn: Eqn, avals: list[Any]) -> float:
    within = compat.custom_body(eqn.origin)
    if eqn.name in UNKNOWN or (eqn.is_structural and within is None):
        return math.inf
    bytes = bytes_of_all([avals[slot] for slot in (*eqn.inputs, *eqn.outputs)])
    if within is not None:
        return bytes * max(1, len(within.eqns))
    if eqn.primitive is lax.dot_general_p:
        (contracted, _), _ = eqn.params["dimension_numbers"]
        shape = avals[eqn.inputs[0]].shape
        bytes += bytes_of_all([avals[eqn.outputs[0]]]) * math.prod([shape[axis] for axis in contracted]) / REUSE
    return bytes


def quick_options() -> dict[str, Any]:
    """Options to compile quickly; none where that is not worth it, or not wanted."""
    return compat.quick_compilation() if ENABLED else {}


def quick_jit(function: Any) -> Any:
    """jax.jit for what runs a few times only: compiled quickly, to slower code.

    Some programs (a complex number made real) the quick way does not compile.
    """
    options, well = quick_options(), jax.jit(function)
    if not options:
        return well
    quick = jax.jit(function, compiler_options=options)

    def run(*args: Any) -> Any:
        try:
            return quick(*args)
        except jax.errors.JaxRuntimeError:
            return well(*args)

    return run


class Tiers:
    """What compiling a program well costs, and what each visit loses without, in the units of policy.py."""

    __slots__ = ("cost", "loss")

    def __init__(self, cost: float, parts: Iterable[Part]) -> None:
        self.cost = cost
        self.loss = sum([BYTE * part.moved + EQUATION * part.size for part in parts])

    @property
    def visits(self) -> float:
        """After how many of them all that compiling well costs is lost."""
        return self.cost / self.loss if self.loss else math.inf

    def jit(self, function: Callable[..., Any], ready: Callable[[Any, Any], None], **options: Any) -> Any:
        """The function, jitted; ready: is told of the one that was compiled quickly and of the one to use from then on."""
        well = jax.jit(function, compiler_options=compat.good_compilation(), **options)
        settings = quick_options() if self.loss < self.cost else None
        if not settings:
            return well
        return Quick(jax.jit(function, compiler_options=settings, **options), well, self, ready)


class Quick:
    """A jitted function that was compiled quickly.

    well: the same, to be compiled well; aside: the thread that does; visits: how often it has run; mark: see `mark_of`.
    """

    __slots__ = ("_begin", "_jitted", "_ready", "_switch", "aside", "mark", "visits", "well")

    def __init__(self, jitted: Any, well: Any, tiers: Tiers, ready: Callable[[Any, Any], None]) -> None:
        self._jitted, self.well, self._ready = jitted, well, ready
        self._begin, self._switch = BEGIN * tiers.visits, tiers.visits
        self.visits = 0
        self.aside: threading.Thread | None = None
        self.mark: Path | None = None

    def __call__(self, *args: Any) -> Any:
        visits = self.visits
        if not visits:
            self._look_for_mark(args)
        if visits >= self._begin:
            if visits >= self._switch:
                return self._well_compiled(args)
            if self.aside is None:
                self._compile_aside(args)
        results = self._jitted(*args)
        self.visits = visits + 1
        return results

    def _look_for_mark(self, args: Sequence[Any]) -> None:
        cache = compat.compilation_cache()
        if cache is not None:
            self.mark = mark_of(self.well.lower(*args), cache[0])
            if os.path.exists(self.mark):  # False for a folder that cannot be read
                self._begin = self._switch = 0

    def _compile_aside(self, args: Sequence[Any]) -> None:
        lowered = self.well.lower(*args)  # jax has it already
        self.aside = threading.Thread(target=_prepare, args=(lowered, args, self.mark), name="tapejax-compile")
        self.aside.start()

    def _well_compiled(self, args: Sequence[Any]) -> Any:
        if self.aside is not None and self.aside.is_alive():  # not if an interrupt came before it was started
            self.aside.join()
        results = self.well(*args)
        self._ready(self, self.well)
        return results


def mark_of(lowered: Any, folder: str) -> Path:
    """The file that is there if the folder in which jax keeps programs has this one compiled well."""
    what = f"{jax.__version__} {jax.default_backend()} {compat.good_compilation()} {lowered.as_text()}"
    return Path(folder) / f"tapejax-{hashlib.sha256(what.encode()).hexdigest()}"


def _prepare(lowered: Any, args: Sequence[Any], mark: Path | None) -> None:
    """Compile it, and run it once: at first the libraries that XLA calls write code of their own.

    jax keeps the result where a call finds it. An error comes again there, where somebody sees it.
    """
    begin = perf_counter()
    try:
        compiled = lowered.compile()
    except Exception:
        return
    cache = compat.compilation_cache()
    if mark is not None and cache is not None and perf_counter() - begin >= cache[1]:
        with contextlib.suppress(OSError):  # a folder that cannot be written to: then the next process begins quickly
            mark.touch()
    if not several_devices():  # two programs with collectives at once may wait for each other
        with contextlib.suppress(Exception):  # an operand that was given away, meanwhile
            jax.block_until_ready(compiled(*args))
