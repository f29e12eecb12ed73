"""What public libraries compute: value, gradient and second order of tapejax against jax, in float64.

`python -m tests.libraries.sweep [LIBRARY ...]` prints the table of coverage. A library that is not installed is left out.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tapejax as tj
from tests.libraries.table import calls_of, installed, libraries

RTOL = 1e-7  # relative to the largest element; solvers end at 1e-10 or so
STAGES = ("value", "gradient", "second order")


@dataclass
class Coverage:
    """One library: how many functions were looked at, called, and agree in each stage; and what does not."""

    library: str
    seen: int = 0
    called: int = 0
    agree: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STAGES, 0))
    not_by_jax: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STAGES, 0))
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        stages = "  ".join(
            f"{self.agree[stage]:4d}" + (f" (jax {self.not_by_jax[stage]} not)" if self.not_by_jax[stage] else "")
            for stage in STAGES
        )
        return f"{self.library:24} {self.seen:5d} {self.called:5d}  {stages}  {self.seconds:6.1f} s"


def loss_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function made a real number, so that all of it counts."""

    def loss(*args):
        total = jnp.zeros(())
        for leaf in jax.tree_util.tree_leaves(function(*args)):
            if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact):
                weights = jnp.cos(jnp.arange(1.0, leaf.size + 1)).reshape(leaf.shape)
                total = total + jnp.sum(jnp.real(leaf * weights))
        return total

    return loss


def by_floats(function: Callable[..., Any], args: Sequence[Any]) -> tuple[Callable[..., Any], list[Any]]:
    """The loss as a function of the float leaves of its arguments."""
    leaves, structure = jax.tree_util.tree_flatten(tuple(args))
    places = [i for i, leaf in enumerate(leaves) if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact)]
    loss = loss_of(function)

    def of_floats(floats):
        full = list(leaves)
        for place, value in zip(places, floats, strict=True):
            full[place] = value
        return loss(*jax.tree_util.tree_unflatten(structure, full))

    return of_floats, [jnp.asarray(leaves[i]) for i in places]


def along(gradient: Callable[..., Any]) -> Callable[..., Any]:
    """A number made of a gradient: its gradient is the second order."""
    return lambda floats: sum(
        (jnp.sum(g * jnp.sin(jnp.arange(1.0, g.size + 1)).reshape(g.shape)) for g in gradient(floats)), jnp.zeros(())
    )


def stages(function: Callable[..., Any], transforms: Any) -> dict[str, Callable[..., Any]]:
    """By tapejax or jax, each as a list of arrays."""
    grad = transforms.grad
    return {
        "value": lambda floats: [transforms.value_and_grad(function)(floats)[0]],
        "gradient": grad(function),
        "second order": grad(along(grad(function))),
    }


def compared(function: Callable[..., Any], args: Sequence[Any]) -> dict[str, str]:
    """Per stage: "" if both agree, "not by jax" if jax cannot, else what is wrong."""
    of_floats, floats = by_floats(function, args)
    ours, theirs = stages(of_floats, tj), stages(of_floats, jax)
    theirs["value"] = lambda floats: [of_floats(floats)]
    try:  # one program for everything: most of the time is compiling
        both = jax.jit(lambda floats: {stage: (ours[stage](floats), theirs[stage](floats)) for stage in STAGES})(floats)
        return {stage: _difference(*both[stage]) for stage in STAGES}
    except Exception:  # who it is, and at which stage, is found one by one
        return {stage: _alone(ours[stage], theirs[stage], floats) for stage in STAGES}


def _alone(ours: Callable[..., Any], theirs: Callable[..., Any], floats: list[Any]) -> str:
    try:
        expected = jax.jit(theirs)(floats)
    except Exception:  # jax cannot differentiate it, or not twice
        return "not by jax"
    try:
        return _difference(jax.jit(ours)(floats), expected)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _difference(found: Sequence[Any], expected: Sequence[Any]) -> str:
    largest = max((float(np.abs(e[np.isfinite(e)]).max(initial=0.0)) for e in map(np.asarray, expected)), default=0.0)
    for number, (a, b) in enumerate(zip(map(np.asarray, found), map(np.asarray, expected), strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"leaf {number}: {a.dtype}{list(a.shape)} instead of {b.dtype}{list(b.shape)}"
        if not np.allclose(a, b, rtol=RTOL, atol=RTOL * max(largest, 1e-3), equal_nan=True):
            worst = (
                np.unravel_index(np.nanargmax(np.abs(a - b)), a.shape) if a.size and np.isfinite(a - b).any() else ()
            )
            return f"leaf {number} at {[int(i) for i in worst]}: {a[worst]} instead of {b[worst]}"
    return ""


def sweep(library: str, part: slice = slice(None)) -> Coverage:
    """Every call of a library (or a part of them)."""
    start = time.perf_counter()
    coverage = Coverage(library)
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calls, coverage.seen = calls_of(library)
        for name in sorted(calls)[part]:
            try:
                function, args = calls[name]()
                function(*args)
            except Exception:  # it does not take them after all
                continue
            coverage.called += 1
            for stage, said in compared(function, args).items():
                if not said:
                    coverage.agree[stage] += 1
                elif said == "not by jax":
                    coverage.not_by_jax[stage] += 1
                else:
                    coverage.wrong.append(f"{library}: {name}, {stage}: {said}")
    coverage.seconds = time.perf_counter() - start
    return coverage


def main(names: Sequence[str]) -> int:
    print(f"{'library':24} {'seen':>5} {'called':>5}  {'  '.join(STAGES)}")
    every = []
    for library in names or libraries():
        if not installed(library):
            print(f"{library:24} not installed")
            continue
        every.append(sweep(library))
        print(every[-1], flush=True)
        for said in every[-1].wrong:
            print("   ", said[:220], flush=True)
    print(
        f"{sum(c.called for c in every)} functions of {len(every)} libraries in {sum(c.seconds for c in every):.0f} s"
    )
    return int(any(coverage.wrong for coverage in every))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
