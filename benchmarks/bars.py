"""The bars: what was promised, what was measured, and whether it is met."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.statistics import Spread, geometric_mean, ratio, spread

OURS, JAX = "tapejax in jax.jit", "jax.jit"
NOISE = 1.03  # two equal programs differ by as much from run to run


@dataclass(frozen=True)
class Row:
    """One line of the table of bars; value None: not measured, and `note` says why."""

    measure: str
    bar: float
    value: Spread | None
    note: str = ""

    @property
    def met(self) -> bool | None:
        return None if self.value is None else self.value.median <= self.bar

    @property
    def verdict(self) -> str:
        return {None: "not measured", True: "met", False: "NOT met"}[self.met]


def rows(results: dict[str, Any]) -> list[Row]:
    """Every bar, measured or not."""
    return [*eager(results), *compiled(results), *scale(results)]


# --- eager -------------------------------------------------------------------------------------------


def eager(results: dict[str, Any]) -> Iterator[Row]:
    forward = "eager forward with recording / bare jitted calls"
    yield _against(results, "forward", "mlp_6x32", "bare jitted calls", 1.10, forward)
    yield _against(results, "gradient", "mlp_6x32", "torch", 0.80)
    for workload in ("mlp_6x512", "transformer", "conv_net"):
        yield _against(results, "gradient", workload, "torch", 1.00)
    yield _against(results, "gradient", "mlp_6x32", "MyGrad", 0.60)
    yield _against(results, "gradient", "mlp_6x32", "HIPS autograd", 0.25)
    yield _against(results, "gradient", "mlp_6x32", "TensorFlow GradientTape", 0.20)
    yield _against(results, "gradient", "mlp_6x32", "jax.value_and_grad", 0.03)


def _against(results, mode: str, workload: str, other: str, bar: float, measure: str | None = None) -> Row:
    measure = f"{measure or f'eager forward+backward / {other}'}, {workload}"
    measured = results["workloads"].get(workload, {})
    times = measured.get(mode, {})
    for name in ("tapejax", other):
        if name not in times:
            why = measured.get("absent", {}).get(name) or results["skipped"].get(name) or "left out of this run"
            return Row(measure, bar, None, f"{name}: {why}")
    return Row(measure, bar, ratio(times["tapejax"]["seconds"], times[other]["seconds"]))


# --- compiled ----------------------------------------------------------------------------------------


def compiled(results: dict[str, Any]) -> Iterator[Row]:
    """For each measure the worst workload, and the geometric mean of all."""
    run = _by_workload(results, lambda w: _times(w.get("compiled"), "seconds"))
    yield _worst("compiled run time / jax.jit", NOISE, run)
    yield _mean("compiled run time / jax.jit", 1.00, run)
    temp = _by_workload(results, lambda w: _bytes(w.get("compilation")))
    yield _worst("XLA temp bytes / jax.jit", 1.00, temp)
    for kind, measure, bar in (
        ("warm", "trace + lower / jax.jit, what is called known", 0.80),
        ("cold", "trace + lower / jax.jit, caches empty", 0.80),
        ("compile", "XLA compile time / jax.jit", 1.00),
    ):
        found = _by_workload(results, lambda w, kind=kind: _times(w.get("compilation"), kind))
        yield _worst(measure, bar, found)
        yield _mean(measure, bar, found)


def _by_workload(results, read: Callable[[Any], Spread | None]) -> dict[str, Spread]:
    found = {name: read(measured) for name, measured in results["workloads"].items()}
    return {name: value for name, value in found.items() if value is not None}


def _times(rows: Any, key: str) -> Spread | None:
    return ratio(rows[OURS][key], rows[JAX][key]) if rows and OURS in rows and JAX in rows else None


def _bytes(rows: Any) -> Spread | None:
    if not rows:
        return None
    ours, theirs = rows[OURS]["temp_bytes"], rows[JAX]["temp_bytes"]
    value = 1.0 if ours == theirs else ours / max(theirs, 1)
    return Spread(value, value, value)


def _worst(measure: str, bar: float, found: dict[str, Spread]) -> Row:
    if not found:
        return Row(f"{measure}, each workload", bar, None, "left out of this run")
    worst = max(found, key=lambda name: found[name].median)
    above = [name for name, value in found.items() if value.median > bar]
    note = f"worst: {worst}; above the bar: {', '.join(above) or 'none'} (of {len(found)})"
    return Row(f"{measure}, each workload", bar, found[worst], note)


def _mean(measure: str, bar: float, found: dict[str, Spread]) -> Row:
    if not found:
        return Row(f"{measure}, geometric mean", bar, None, "left out of this run")
    each = found.values()
    means = [geometric_mean([getattr(value, part) for value in each]) for part in ("median", "low", "high")]
    return Row(f"{measure}, geometric mean", bar, Spread(*means))


# --- scale -------------------------------------------------------------------------------------------


def scale(results: dict[str, Any]) -> Iterator[Row]:
    found = results["scale"]
    long, short = found.get("1000000"), found.get("1000")
    measure = "time per action, forward+backward, 1,000,000 / 1,000 actions"
    for collecting in ("off", "on"):
        named = f"{measure}, garbage collector {collecting}"
        if long and short:
            yield Row(named, 1.2, ratio(both(long, collecting), both(short, collecting)))
        else:
            yield Row(named, 1.2, None, "needs --million")
    if found:
        longest = max(found, key=int)
        value = found[longest]["bytes"]
        for kind in ("traced", "resident"):
            spread_ = spread([value[kind]])
            yield Row(f"bytes per action beyond what rules keep, {kind}, {int(longest):,} actions", 600, spread_)
    else:
        yield Row("bytes per action beyond what rules keep", 600, None, "left out of this run")


def both(row: dict[str, Any], collecting: str) -> list[float]:
    """Seconds per action of forward and backward together, round by round."""
    return [f + b for f, b in zip(row[f"forward, gc {collecting}"], row[f"backward, gc {collecting}"], strict=True)]
