"""The bars: what was promised, what was measured, and whether it is met."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.statistics import Spread, geometric_mean, ratio, spread

OURS, JAX = "tapejax in jax.jit", "jax.jit"
SINGLE = ("add", "mul", "matmul", "tanh", "sum", "getitem")
TORCH = {"mlp_6x32": 0.65, "mlp_6x512": 0.90, "transformer": 0.90, "conv_net": 0.90, "character_gpt": 1.00}
PEERS = {"MyGrad": 0.50, "HIPS autograd": 0.22, "TensorFlow GradientTape": 0.06, "jax.value_and_grad": 0.025}
FLAT, MEMORY, BUFFER = 1.2, 1.2, 64  # BUFFER: the least that XLA gives to a buffer
ACTIONS = (1_000, 1_000_000)
TAPES = ("explicit tape", "ambient tape")  # with the default backward, the collector on
WAYS = (*TAPES, "explicit tape, wrt", "explicit tape, wrt, collector off")  # those of scale.py
PEAKS = ("character_gpt", "conv_net")


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
    return [*first_contact(results), *eager(results), *compiled(results), *scale(results), *peak(results)]


def needs() -> dict[str, tuple[list[str], list[str]]]:
    """What the table needs and no more: {workload: (contestants, modes)}; all others need what is compiled only."""
    found = {name: (["tapejax", OURS, JAX, "torch"], ["gradient"]) for name in (*SINGLE, *TORCH)}
    more = ["tapejax, no wrt", "bare jitted calls", *PEERS]
    found["mlp_6x32"] = (["tapejax", OURS, JAX, "torch", *more], ["forward", "gradient"])
    return found


# --- the first steps ---------------------------------------------------------------------------------


def first_contact(results: dict[str, Any]) -> Iterator[Row]:
    """A newcomer's character model: processor time, but for the worst step, which is what somebody waits for."""
    first = "cold first eager step / first call of jax.jit, character_gpt"
    many = "30 eager steps over 20 lengths / the same with jax.jit, character_gpt"
    worst = "worst step after the first visit / median step"
    cache = "second process with the compilation cache / first, time to the second step"
    found = results.get("first_contact")
    if not found:
        bars = ((first, 1.0), (many, 1.0), (f"{many}, quick tier", 0.6), (worst, 3.0), (cache, 0.3))
        yield from [Row(measure, bar, None, "left out of this run") for measure, bar in bars]
        return
    same, lengths = found["same"], found["lengths"]
    step = lambda who: [one["processor"][0] for one in same[who]]
    yield Row(first, 1.0, ratio(step("tapejax"), step(JAX)))
    total = ratio(*[[sum(one["processor"]) for one in lengths[who]] for who in ("tapejax", JAX)])
    yield Row(many, 1.0, total, _rounds(lengths[JAX]))
    yield Row(f"{many}, quick tier", 0.6, total, _rounds(lengths[JAX]))
    # The run of one length is long enough for the program to be compiled well: that is where it might stall.
    still = "it is still quickly compiled at the end" if any(one["quick"] for one in same["tapejax"]) else ""
    yield Row(f"{worst}, one length", 3.0, spread([_worst_step(one["wall"][1:]) for one in same["tapejax"]]), still)
    again = [_worst_step([one["wall"][at] for at in visited_again()]) for one in lengths["tapejax"]]
    yield Row(f"{worst}, lengths visited again", 3.0, spread(again), _rounds(lengths[JAX]))
    two_steps = lambda which: [sum(one["processor"][:2]) for one in found["cache"][which]]
    yield Row(cache, 0.3, ratio(two_steps("second"), two_steps("first")))
    yield Row(f"{cache}, another having trained", 0.3, ratio(two_steps("after"), two_steps("first")))
    twenty = [[sum(one["processor"][:20]) for one in found["cache"][which]] for which in ("after", "trained")]
    yield Row(
        "twenty steps of a process with the compilation cache / of one before it that trained", 1.0, ratio(*twenty)
    )
    whole = [[one["in_all"] for one in found["cache"][which]] for which in ("second", "first")]
    yield Row(f"{cache}, imports included", 0.3, ratio(*whole))


def _rounds(each: Sequence[Any]) -> str:
    return "one round" if len(each) == 1 else ""


def _worst_step(seconds: Sequence[float]) -> float:
    return max(seconds) / statistics.median(seconds)


def visited_again() -> list[int]:
    """The steps of the run over many lengths whose length has been there before."""
    from benchmarks.first_contact import LENGTHS

    return [at for at, length in enumerate(LENGTHS) if length in LENGTHS[:at]]


# --- eager -------------------------------------------------------------------------------------------


def eager(results: dict[str, Any]) -> Iterator[Row]:
    yield _against(results, "gradient", "mlp_6x32", JAX, 1.6, ours="tapejax, no wrt")
    yield _against(results, "gradient", "mlp_6x32", JAX, 1.4)
    for workload, bar in TORCH.items():
        yield _against(results, "gradient", workload, "torch", bar)
    yield _against(results, "forward", "mlp_6x32", "bare jitted calls", 0.90)
    yield _single(results)
    for peer, bar in PEERS.items():
        yield _against(results, "gradient", "mlp_6x32", peer, bar)


WORDS = {"forward": "eager forward with recording", "gradient": "eager forward+backward"}
WITH = {"tapejax": "", "tapejax, no wrt": " without wrt"}


def _against(results, mode: str, workload: str, other: str, bar: float, ours: str = "tapejax") -> Row:
    wrt = " with wrt" if other == JAX and not WITH[ours] else WITH[ours]
    measure = f"{WORDS[mode]}{wrt} / {other}, {workload}"
    found = _pair(results, mode, workload, ours, other)
    if isinstance(found, str):
        return Row(measure, bar, None, found)
    return Row(measure, bar, found, _unsettled(results, [workload], ours))


def _pair(results, mode: str, workload: str, ours: str, other: str) -> Spread | str:
    """The ratio, or why there is none."""
    measured = results["workloads"].get(workload, {})
    times = measured.get(mode, {})
    for name in (ours, other):
        if name not in times:
            why = measured.get("absent", {}).get(name) or results["skipped"].get(name) or "left out of this run"
            return f"{name}: {why}"
    return ratio(times[ours]["seconds"], times[other]["seconds"])


def _unsettled(results, workloads: Sequence[str], ours: str = "tapejax") -> str:
    """A word about what was measured while programs were still being compiled for it."""
    at_work = {f"{ours}, {mode}" for mode in WORDS}
    found = [name for name in workloads if at_work & set(results["workloads"][name].get("unsettled", ()))]
    return f"still compiling: {', '.join(found)}" if found else ""


def _single(results) -> Row:
    measure = "eager forward+backward / torch, single ops 8x8, geometric mean"
    found = {name: _pair(results, "gradient", name, "tapejax", "torch") for name in SINGLE}
    missing = {name: why for name, why in found.items() if isinstance(why, str)}
    if missing:
        return Row(measure, 1.00, None, f"{', '.join(missing)}: {'; '.join(dict.fromkeys(missing.values()))}")
    each = {name: value for name, value in found.items() if isinstance(value, Spread)}
    note = ", ".join(f"{name} {value.median:.2f}" for name, value in each.items())
    return Row(measure, 1.00, _means(each), "; ".join(filter(None, [note, _unsettled(results, SINGLE)])))


# --- compiled ----------------------------------------------------------------------------------------


def compiled(results: dict[str, Any]) -> Iterator[Row]:
    """Geometric means over all workloads; the note has the worst one."""
    run = _by_workload(results, lambda w: _times(w.get("compiled"), "seconds"))
    yield _mean("compiled run time / jax.jit", 0.95, run)
    yield _mean("XLA temp bytes / jax.jit", 0.95, _by_workload(results, lambda w: _bytes(w.get("compilation"))))
    for kind, measure, bar in (
        ("warm", "trace + lower / jax.jit, what is called known", 0.75),
        ("cold", "trace + lower / jax.jit, caches empty", 0.75),
        ("compile", "XLA compile time / jax.jit", 0.95),
    ):
        yield _mean(measure, bar, _by_workload(results, lambda w, kind=kind: _times(w.get("compilation"), kind)))


def _by_workload(results, read: Callable[[Any], Spread | None]) -> dict[str, Spread]:
    found = {name: read(measured) for name, measured in results["workloads"].items()}
    return {name: value for name, value in found.items() if value is not None}


def _times(rows: Any, key: str) -> Spread | None:
    return ratio(rows[OURS][key], rows[JAX][key]) if rows and OURS in rows and JAX in rows else None


def _bytes(rows: Any) -> Spread | None:
    """No buffer is as much as the least one: programs without any are alike."""
    if not rows:
        return None
    return spread([max(rows[OURS]["temp_bytes"], BUFFER) / max(rows[JAX]["temp_bytes"], BUFFER)])


def _mean(measure: str, bar: float, found: dict[str, Spread]) -> Row:
    measure = f"{measure}, geometric mean"
    if not found:
        return Row(measure, bar, None, "left out of this run")
    worst = max(found, key=lambda name: found[name].median)
    return Row(measure, bar, _means(found), f"of {len(found)}; the most: {worst}, {found[worst].median:.2f}")


def _means(found: dict[str, Spread]) -> Spread:
    each = found.values()
    return Spread(*[geometric_mean([getattr(value, part) for value in each]) for part in ("median", "low", "high")])


# --- scale -------------------------------------------------------------------------------------------


def scale(results: dict[str, Any]) -> Iterator[Row]:
    """The whole step, and its backward by itself: neither may grow with the length. Nor if all gradients are asked for."""
    short, long = [results["scale"].get(str(length), {}) for length in ACTIONS]
    for tape in TAPES:
        for what, parts in (
            ("forward + default backward", ("forward", "backward")),
            ("default backward", ("backward",)),
            ("forward + default backward, every gradient asked for", ("forward", "backward", "asked")),
        ):
            measure = f"time per action, {what}, 1,000,000 / 1,000 actions, collector on, {tape}"
            if tape not in short or tape not in long:
                yield Row(measure, FLAT, None, "left out of this run")
                continue
            settled = short[tape]["settled"] and long[tape]["settled"]
            value = ratio(added(long[tape], parts), added(short[tape], parts))
            yield Row(measure, FLAT, value, "" if settled else "still compiling")


def added(row: dict[str, Any], parts: Sequence[str]) -> list[float]:
    """Seconds per action of some parts together, round by round."""
    return [sum(one) for one in zip(*[row[part] for part in parts])]


# --- memory ------------------------------------------------------------------------------------------


def peak(results: dict[str, Any]) -> Iterator[Row]:
    for workload in PEAKS:
        found = results["peak"].get(workload, {})
        for ours, words in (("tapejax", "with wrt"), ("tapejax, no wrt", "without wrt")):
            measure = f"peak bytes of an eager step {words} / jax.jit, {workload}"
            if ours in found and JAX in found:
                most = [spread(found[name]).median / 1e6 for name in (ours, JAX)]
                note = f"{most[0]:.1f} MB / {most[1]:.1f} MB"
                yield Row(measure, MEMORY, ratio(found[ours], found[JAX]), note)
            else:
                yield Row(measure, MEMORY, None, results["skipped"].get("peak bytes", "left out of this run"))
