"""Every rule on the default device, in the precision it has there, against float64 on the CPU: `verify --against cpu`.

Both get the same numbers: arguments and cotangents are drawn in the narrow dtype and widened, which is exact. Our rules run on
the device; on the CPU jax.vjp does, in float64. How far the two may be apart is a small table by platform and, where that is
not enough, what rounding does to this sample, which is measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.calculus.reverse import Options
from tapejax.ground import compat
from tapejax.verify.check import OURS, Outcome, cotangents, flat, inexact, jax_vjp, make_arguments, our_vjp
from tapejax.verify.samples.base import Sample

NARROW = {"float64": "float32", "complex128": "complex64"}
WIDE = {"float32": "float64", "complex64": "complex128", "bfloat16": "float64", "float16": "float64"}
UNITS = {"float32": 2.0**-24, "complex64": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # of rounding, relative


@dataclass(frozen=True, slots=True)
class Platform:
    """How a kind of device rounds.

    products: the unit of rounding of a float32 matrix product as it is by default, and `format`, its name.
    units: how many units of rounding are fine, relative to the largest element of a result. source: who says so.
    """

    products: float
    format: str
    units: float
    source: str

    def of_products(self) -> str:
        """What float32 matrix products are rounded to, as jax is set."""
        asked = jax.config.jax_default_matmul_precision
        if asked in ASKED:
            return f"float32 products as asked for: {asked}"
        return f"float32 products in {self.format}"


PLATFORMS = {
    "cpu": Platform(2.0**-24, "float32", 32, "measured on x86-64"),
    "gpu": Platform(2.0**-11, "TF32", 64, "from the format, not measured"),
    "tpu": Platform(2.0**-8, "bfloat16 in one pass", 128, "from the format, not measured"),
}
OTHER = Platform(2.0**-8, "unknown", 128, "unknown platform: as coarse as any that is known")
# What jax.default_matmul_precision makes of float32 products, where the platform has it.
ASKED = {
    "highest": 2.0**-24, "float32": 2.0**-24, "F32_F32_F32": 2.0**-24, "high": 2.0**-16, "BF16_BF16_F32_X3": 2.0**-16,
    "tensorfloat32": 2.0**-11, "TF32_TF32_F32": 2.0**-11, "bfloat16": 2.0**-8, "BF16_BF16_F32": 2.0**-8,
}  # fmt: skip
PRODUCTS = frozenset({
    "dot_general", "conv_general_dilated", "ragged_dot_general", "triangular_solve", "cholesky", "lu", "qr", "eigh", "svd",
})  # fmt: skip
SPREAD = 8.0  # times what rounding of the arguments and of jax's own rules does to a sample
HOPELESS = 0.1  # a sample of which rounding moves more than this part says nothing


def platform_of(device: Any) -> Platform:
    return PLATFORMS.get(device.platform, OTHER)


def unit_of(platform: Platform, dtype: str, has_products: bool) -> float:
    """The unit of rounding of a program in a dtype, at the matmul precision that is set."""
    unit = UNITS[dtype]
    if not has_products or dtype not in ("float32", "complex64"):
        return unit
    return max(unit, ASKED.get(str(jax.config.jax_default_matmul_precision), platform.products))


def narrow_dtypes(sample: Sample, quick: bool) -> list[str]:
    """The dtypes to try a sample in: float32 and complex64 where it has them or their wide ones, and the halves."""
    found = [NARROW.get(dtype, dtype) for dtype in sample.dtypes]
    found = [dtype for dtype in dict.fromkeys(found) if dtype in WIDE]
    return found[:1] if quick else found


def check_on_device(sample: Sample, dtype: str, seed: int = 0, options: Options = OURS) -> Outcome | None:
    """Our gradient of a sample on the default device against jax.vjp in float64 on the CPU.

    None: a dtype is written in the sample's code, so that it does not run in both.
    """
    device, cpu = jax.devices()[0], jax.local_devices(backend="cpu")[0]
    with jax.enable_x64(True):
        function = flat(sample.function)
        args = [_narrowed(arg, dtype) for arg in make_arguments(sample, dtype, seed)]
        wrt = [inexact(arg) for arg in args]
        wide = _widened(_on_host(args), dtype)
        theirs = partial(jax_vjp, function) if sample.orders else None  # None: jax has no derivative
        if not all([_runs(function, theirs, values, wrt) for values in (args, wide)]):
            return None
        cts = [ct for ct in cotangents(jax.eval_shape(function, *args), seed) if ct is not None]

        def ours(args, cts):
            outputs, pullback = our_vjp(function, args, wrt, options)
            given = iter(cts)
            return outputs, pullback([jnp.asarray(next(given), o.dtype) if inexact(o) else None for o in outputs])

        program = jax.jit(ours).trace(args, cts)
        got = program.lower().compile()(args, cts)
        unit = unit_of(platform_of(device), dtype, has_products(program.jaxpr))
        with jax.default_device(cpu):
            by_jax = ours if theirs is None else lambda args, cts: theirs(args, wrt, cts)
            return Judge(by_jax, args, cts, dtype).weigh(got, unit, platform_of(device).units * unit)


def _runs(function: Any, theirs: Any, args: Sequence[Any], wrt: Sequence[bool]) -> bool:
    """Whether jax traces a call without complaint about dtypes, and its derivative where it has one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        try:
            outputs = jax.eval_shape(function, *args)
            if theirs is not None:
                cts = [jnp.zeros(out.shape, out.dtype) for out in outputs if inexact(out)]
                jax.eval_shape(lambda *args: theirs(args, wrt, cts), *args)
        except (TypeError, ValueError, FutureWarning):
            return False
    return True


class Judge:
    """A call in float64 on the CPU. run: (arguments, cotangents) to (results, gradients)."""

    def __init__(self, run, args: Sequence[Any], cts: Sequence[Any], dtype: str):
        self.run, self.dtype = jax.jit(run), dtype
        self.args, self.cts = _on_host(args), _on_host(cts)

    def weigh(self, got: Any, unit: float, rtol: float) -> Outcome:
        args, cts = _widened(self.args, self.dtype), _widened(self.cts, self.dtype)
        expected = self.run(args, cts)
        outcome = _apart(got, expected, rtol, [0.0] * len(jax.tree.leaves(expected)))
        if outcome.ok:
            return outcome
        rng = np.random.default_rng(0)
        moved = self.run(*(_shaken(values, unit, rng) for values in (args, cts)))
        rounded = self.run(self.args, self.cts)  # jax's own rules in the narrow dtype
        scale = unit / UNITS[self.dtype]
        noise = [
            SPREAD * max(_distance(m, e), scale * _distance(r, e))
            for m, r, e in zip(*map(jax.tree.leaves, (moved, rounded, expected)), strict=True)
        ]
        return _apart(got, expected, rtol, noise)


def _widened(values: Sequence[Any], dtype: str) -> list[Any]:
    return [np.asarray(v, WIDE[dtype]) if v.dtype == jnp.dtype(dtype) else v for v in values]


def _narrowed(arg: Any, dtype: str) -> Any:
    narrow = NARROW.get(arg.dtype.name)
    return arg.astype(narrow) if narrow and dtype in NARROW.values() else arg


def _on_host(values: Sequence[Any]) -> list[Any]:
    return [value if jnp.issubdtype(value.dtype, jax.dtypes.prng_key) else np.asarray(value) for value in values]


def _shaken(values: Sequence[Any], unit: float, rng: np.random.Generator) -> list[Any]:
    """Each number changed by one unit of rounding, up or down."""
    return [v * (1 + unit * rng.choice([-1.0, 1.0], v.shape)) if inexact(v) else v for v in values]


def _distance(a: Any, b: Any) -> float:
    """The largest absolute difference of finite elements."""
    if not inexact(b):
        return 0.0
    a, b = (np.asarray(v).astype(np.complex128) for v in (a, b))
    with np.errstate(all="ignore"):
        apart = np.abs(a - b)
    return float(apart[np.isfinite(apart)].max(initial=0.0))


def _apart(got: Any, expected: Any, rtol: float, noise: Sequence[float]) -> Outcome:
    """Compare results and gradients, each relative to its largest element. noise: an absolute error that is fine, each."""
    worst = 0.0
    whats = ["value"] * len(expected[0]) + ["gradient"] * len(expected[1])
    mine = jax.tree.leaves(got)
    if len(mine) != len(whats):
        return Outcome(False, float("inf"), f"{len(mine)} results, expected {len(whats)}")
    for position, (what, g, e, fine) in enumerate(zip(whats, mine, jax.tree.leaves(expected), noise, strict=True)):
        if jnp.issubdtype(g.dtype, jax.dtypes.prng_key):
            continue
        if g.shape != e.shape:
            return Outcome(False, float("inf"), f"{what} {position}: {jax.typeof(g)}, expected {jax.typeof(e)}")
        a, b = (np.asarray(v).astype(np.complex128) for v in (g, e))
        with np.errstate(all="ignore"):
            apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
            apart = np.where(np.isnan(apart), np.inf, apart)
            largest = np.abs(b[np.isfinite(b)]).max(initial=1e-30)
        if apart.size == 0:
            continue
        if fine > HOPELESS * largest:
            return Outcome(True, 0.0, f"{what} {position}: rounding alone moves it by {fine / SPREAD / largest:.1e}")
        error = float(apart.max() / largest)
        if apart.max() > rtol * largest + fine:
            index = tuple(int(i) for i in np.unravel_index(int(apart.argmax()), apart.shape))
            allowed = rtol + fine / largest
            text = (
                f"{what} {position} at {index}: got {a[index]}, expected {b[index]}: {error:.1e}, {allowed:.1e} is fine"
            )
            return Outcome(False, error, text)
        worst = max(worst, min(error, rtol))  # what is beyond was explained by the sample, not by the platform
    return Outcome(True, worst)


def has_products(jaxpr: Any) -> bool:
    """Whether a program multiplies matrices, at any depth."""
    return any(eqn.primitive.name in PRODUCTS for eqn in compat.all_equations(compat.jaxpr_parts(jaxpr)[0].eqns))
