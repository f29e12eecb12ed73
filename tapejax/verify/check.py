"""Compare one function's gradient by our rules with jax.vjp and with finite differences.

This is where the judge lives: nothing in tapejax.rules may call what this module calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.calculus.reverse import Options, reverse
from tapejax.program import program as programs
from tapejax.verify.samples.base import Sample

# Relative to the largest element of the expected array (a sum of n terms carries about sqrt(n) eps).
TOLERANCES = {
    "float64": 1e-10, "complex128": 1e-10, "float32": 2e-4, "complex64": 2e-4, "float16": 3e-2, "bfloat16": 1e-1,
}  # fmt: skip


@dataclass(slots=True)
class Outcome:
    """What one comparison found."""

    ok: bool
    error: float
    message: str = ""


OURS = Options(foreign="error")  # a rule of jax's own would be no second opinion


def our_vjp(function: Callable[..., Any], args: Sequence[Any], wrt: Sequence[bool], options: Options = OURS):
    """(outputs, pullback) of a function over arrays, by our rules. The pullback fills in zeros."""
    program, _ = programs.trace(function, args, ignore_custom_rules=options.ignore_custom_rules)
    reversed_ = reverse(program, wrt, options)
    outputs, extras = reversed_.forward(*args)

    def pullback(cts):
        kept = [args[i] for i in reversed_.saves_in] + [outputs[i] for i in reversed_.saves_out] + list(extras)
        found = reversed_.backward(kept, cts)
        return [
            (jnp.zeros(jnp.shape(arg), jnp.result_type(arg)) if ct is None else ct)
            for arg, ct, wanted in zip(args, found, reversed_.wrt, strict=True)
            if wanted
        ]

    return outputs, pullback


def make_arguments(sample: Sample, dtype: str, seed: int) -> list[Any]:
    digest = hashlib.sha256(f"{sample.label}{dtype}{seed}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:4], "little"))
    return [jnp.asarray(recipe(rng, jnp.dtype(dtype))) for recipe in sample.arguments]


def inexact(value: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(value), jnp.inexact)


def cotangents(outputs: Sequence[Any], seed: int) -> list[Any]:
    rng = np.random.default_rng(seed + 1)

    def draw(out):
        shape, dtype = jnp.shape(out), jnp.result_type(out)
        values = rng.standard_normal(shape)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            values = values + 1j * rng.standard_normal(shape)
        return jnp.asarray(values, dtype)

    return [draw(out) if inexact(out) else None for out in outputs]


def flat(function):
    """The function with its results as a flat list, and only the inexact ones differentiated."""
    return lambda *args: jax.tree_util.tree_leaves(function(*args))


def _ours(function, args, wrt, seed):
    outputs, pullback = our_vjp(function, args, wrt)
    return outputs, pullback(cotangents(outputs, seed))


def _judge(function, args, wrt, seed):
    results, pullback = _jax_vjp(function, args, wrt)
    return results, list(pullback([ct for ct in cotangents(results, seed) if ct is not None]))


def jax_vjp(function, args, wrt, cts):
    """(results, gradients) by jax. cts: one for each inexact result."""
    results, pullback = _jax_vjp(function, args, wrt)
    inexact_results = [result for result in results if inexact(result)]
    return results, list(pullback([jnp.asarray(ct, r.dtype) for ct, r in zip(cts, inexact_results, strict=True)]))


def _jax_vjp(function, args, wrt):
    chosen = [i for i, wanted in enumerate(wrt) if wanted]

    def of_chosen(*values):
        full = list(args)
        for i, value in zip(chosen, values, strict=True):
            full[i] = value
        results = function(*full)
        return [r for r in results if inexact(r)], results

    _, pullback, results = jax.vjp(of_chosen, *[args[i] for i in chosen], has_aux=True)
    return results, pullback


def compare(got: Sequence[Any], expected: Sequence[Any], rtol: float, what: str) -> Outcome:
    """Dtype, shape, and every element, relative to the largest expected one."""
    worst = 0.0
    if len(got) != len(expected):
        return Outcome(False, float("inf"), f"{what}: {len(got)} results, expected {len(expected)}")
    for position, (g, e) in enumerate(zip(got, expected, strict=True)):
        if jnp.result_type(g) != jnp.result_type(e) or jnp.shape(g) != jnp.shape(e):
            return Outcome(False, float("inf"), f"{what} {position}: {jax.typeof(g)}, expected {jax.typeof(e)}")
        if jnp.issubdtype(jnp.result_type(e), jax.dtypes.prng_key):
            continue
        wide = np.complex128 if jnp.issubdtype(jnp.result_type(e), jnp.complexfloating) else np.float64
        a, b = np.asarray(g).astype(wide), np.asarray(e).astype(wide)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(all="ignore"):
            finite = np.abs(b[np.isfinite(b)])
            scale = max(finite.max(initial=0.0), 1e-30)
            off = np.where(same, 0.0, np.abs(a - b)) / scale
        off = np.where(np.isnan(off), np.inf, off)
        error = float(off.max(initial=0.0))
        if error > rtol:
            index = tuple(int(i) for i in np.unravel_index(int(off.argmax()), off.shape))
            text = f"{what} {position} at {index}: got {a[index]}, expected {b[index]}, relative error {error:.2e}"
            return Outcome(False, error, text)
        worst = max(worst, error)
    return Outcome(True, worst)


def check_sample(sample: Sample, dtype: str, order: int = 1, seed: int = 0) -> Outcome:
    """Our gradient of a sample against jax.vjp, at order 1 or 2."""
    with jax.enable_x64(True):
        args = make_arguments(sample, dtype, seed)
        rtol = TOLERANCES[dtype]
        if sample.rtol and dtype in ("float64", "complex128"):
            rtol = sample.rtol
        function = flat(sample.function)
        wrt = [inexact(arg) for arg in args]
        # Both in one program: half the compilations, and no chance to differ by how the forward was fused.
        if order == 1:
            both = jax.jit(lambda *a: (_ours(function, a, wrt, seed), _judge(function, a, wrt, seed)))
            ours, judge = both(*args)
            outcome = compare(ours[0], judge[0], rtol, "value")
            return outcome if not outcome.ok else compare(ours[1], judge[1], rtol, "gradient")
        ours = lambda *a: _ours(function, a, wrt, seed)[1]
        judge = lambda *a: _judge(function, a, wrt, seed)[1]
        both = jax.jit(lambda *a: (_ours(ours, a, wrt, seed + 7)[1], _judge(judge, a, wrt, seed + 7)[1]))
        found, expected = both(*args)
        return compare(found, expected, rtol * 10, "second derivative")


def check_finite(sample: Sample, seed: int = 0, step: float = 1e-5, rtol: float = 1e-5) -> Outcome:
    """Our gradient of a real sample against central differences along random directions, float64."""
    with jax.enable_x64(True):
        args = make_arguments(sample, "float64", seed)
        function = flat(sample.function)
        wrt = [inexact(arg) for arg in args]
        outputs, gradients = jax.jit(lambda *a: _ours(function, a, wrt, seed))(*args)
        cts = cotangents(outputs, seed)
        rng = np.random.default_rng(seed + 2)

        @jax.jit
        def objective(*a):
            pairs = zip(function(*a), cts, strict=True)
            # JAX pairs complex numbers without conjugation: the derivative of Re(sum(ct * out)).
            return sum((jnp.sum(ct * out).real for out, ct in pairs if ct is not None), jnp.zeros(()))

        inexact_args = [i for i, wanted in enumerate(wrt) if wanted]
        worst = 0.0
        for i, gradient in zip(inexact_args, gradients, strict=True):
            direction = rng.standard_normal(args[i].shape)
            if np.issubdtype(args[i].dtype, np.complexfloating):
                direction = direction + 1j * rng.standard_normal(args[i].shape)

            def along(t, i=i, direction=direction):
                moved = list(args)
                moved[i] = args[i] + t * direction
                return float(objective(*moved))

            numeric = (along(step) - along(-step)) / (2 * step)
            exact = float(jnp.sum(gradient * direction).real)
            scale = max(abs(numeric), abs(exact), float(np.abs(np.asarray(gradient)).max(initial=0.0)), 1e-3)
            error = abs(numeric - exact) / scale
            if not error <= rtol:
                return Outcome(False, error, f"argument {i}: slope {exact:.8g}, finite difference {numeric:.8g}")
            worst = max(worst, error)
        return Outcome(True, worst)
