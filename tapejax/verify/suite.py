"""Check every rule of this installation on its samples: what `tapejax verify` runs, with and without `--against cpu`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import jax

from tapejax.rules.registry import TABLE, name_of
from tapejax.verify.check import Outcome, check_finite, check_sample
from tapejax.verify.platforms import check_on_device, narrow_dtypes, platform_of
from tapejax.verify.report import RIGHT, WRONG, Findings, plain_json
from tapejax.verify.samples import FAMILIES, MANY_DEVICES, UNREACHABLE
from tapejax.verify.samples.base import Sample

WIDE = ("float64", "complex128")
SINGLE = ("float32", "complex64")
HALF = ("bfloat16", "float16")


@dataclass(slots=True)
class Check:
    """One comparison that will be made."""

    family: str
    primitive: str
    number: int
    against: str  # "jax", "jax, order 2", "finite" or "cpu float64"
    dtype: str
    run: Callable[[], Outcome | None]  # None: this sample is not for this dtype


@dataclass(slots=True)
class Result:
    """One comparison that was made."""

    family: str
    primitive: str
    number: int
    against: str
    dtype: str
    ok: bool
    error: float
    message: str
    seconds: float


@dataclass(slots=True, repr=False)
class SuiteReport(Findings):
    """All results; `str` gives the table by family."""

    results: list[Result]
    unsampled: list[str]
    seconds: float
    device: str = field(default_factory=lambda: describe_device())
    quick: bool = False
    against: str = "jax"
    left_out: list[str] = field(default_factory=list)  # rules whose samples have a dtype of their own

    @property
    def ok(self) -> bool:
        return not self.failures and not self.unsampled and bool(self.results)

    @property
    def failures(self) -> list[Result]:
        return [result for result in self.results if not result.ok]

    @property
    def title(self) -> str:
        return f"tapejax verify{' --against cpu' * (self.against == 'cpu')}{' --quick' * self.quick}"

    @property
    def verdict_line(self) -> str:
        if self.ok:
            rules = len({(result.family, result.primitive) for result in self.results})
            return f"every rule agrees: {rules} rules, {len(self.results)} checks"
        return f"WRONG: {len(self.failures)} wrong, {len(self.unsampled)} unchecked"

    def to_json(self) -> dict[str, Any]:
        return plain_json({
            "ok": self.ok,
            "device": self.device,
            "jax": jax.__version__,
            "quick": self.quick,
            "against": self.against,
            "seconds": self.seconds,
            "unsampled": self.unsampled,
            "results": [asdict(result) for result in self.results],
        })  # fmt: skip

    def tables(self) -> list[tuple[str, list[Sequence[str]], list[str]]]:
        columns = {"worst float64": WIDE} if self.against == "jax" else {"worst float32": SINGLE, "worst half": HALF}
        rows: list[Sequence[str]] = [("family", "rules", "checks", "failed", *columns, "seconds")]
        verdicts = []
        for family in sorted({result.family for result in self.results}):
            mine = [result for result in self.results if result.family == family]
            failed = sum(not result.ok for result in mine)
            rules = str(len({result.primitive for result in mine}))
            seconds = f"{sum(result.seconds for result in mine):.1f}"
            errors = [f"{_worst(mine, dtypes):.1e}" for dtypes in columns.values()]
            rows.append((family, rules, str(len(mine)), str(failed), *errors, seconds))
            verdicts.append(WRONG if failed else RIGHT)
        rules = str(len({(r.family, r.primitive) for r in self.results}))
        empty = [""] * len(columns)
        rows.append(("all", rules, str(len(self.results)), str(len(self.failures)), *empty, f"{self.seconds:.1f}"))
        return [("", rows, [*verdicts, "total"])]

    def remarks(self) -> list[tuple[str, str]]:
        found = [
            ("WRONG", f"{r.primitive} #{r.number} {r.dtype} against {r.against}: {r.message}") for r in self.failures
        ]
        for family, devices in MANY_DEVICES.items():
            if jax.device_count() < devices:
                found.append(("not run", f"{family}: needs {devices} devices, this machine has {jax.device_count()}"))
            elif self.against == "cpu" and not _on_cpu():
                found.append(
                    ("not run", f"{family}: its mesh is of the default devices; `tapejax verify` checks it there")
                )
        if self.against == "cpu":
            found += self._about_the_device()
        return found + [("unchecked", f"{name}: a rule with no sample") for name in self.unsampled]

    def _about_the_device(self) -> list[tuple[str, str]]:
        platform = platform_of(jax.devices()[0])
        found = [("fine", f"{platform.units:g} units of rounding ({platform.source}); {platform.of_products()}")]
        if _on_cpu():
            found.append(("note", "there is no accelerator: float32 on the CPU was compared with float64 on the CPU"))
        moved = sorted({result.primitive for result in self.results if result.ok and result.message})
        if moved:
            found.append(("unchecked", f"one sample or more, which rounding alone moves: {', '.join(moved)}"))
        if self.left_out:
            found.append(("not run", f"samples with float64 in their own code: {', '.join(self.left_out)}"))
        return found

    def __str__(self) -> str:
        [(_, rows, _)] = self.tables()
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        pad = lambda i, cell: cell.ljust(widths[i]) if i == 0 else cell.rjust(widths[i])
        lines = ["  ".join(pad(i, cell) for i, cell in enumerate(row)) for row in rows]
        rule = "-" * len(lines[0])
        lines = [lines[0], rule, *lines[1:-1], rule, lines[-1], ""]
        lines += [f"{label} {text}" for label, text in self.remarks()]
        lines.append(f"{self.verdict_line}  (jax {jax.__version__}, {self.device})")
        return "\n".join(lines)


def _worst(results: Sequence[Result], dtypes: Sequence[str]) -> float:
    return max([r.error for r in results if r.dtype in dtypes and r.against != "finite" and r.ok], default=0.0)


def _on_cpu() -> bool:
    return jax.devices()[0].platform == "cpu"


def describe_device() -> str:
    device = jax.devices()[0]
    simulated = ", simulated" if device.platform == "cpu" and jax.device_count() > 1 else ""
    return f"{jax.device_count()} x {device.device_kind} ({device.platform}{simulated})"


def checks(*, quick: bool = False, only: Sequence[str] | None = None, against: str = "jax") -> list[Check]:
    """What there is to check. quick: the first sample of each rule, in one dtype, first order.

    against: "jax" for jax.vjp and differences on this device; "cpu" for float64 on the CPU.
    """
    checks_of = _checks_of if against == "jax" else _checks_against_cpu
    found = []
    for family, samples in FAMILIES.items():
        if jax.device_count() < MANY_DEVICES.get(family, 1) or (
            family in MANY_DEVICES and against == "cpu" and not _on_cpu()
        ):
            continue
        for primitive, entries in samples.items():
            name = name_of(primitive)
            if only and name not in only and family not in only:
                continue
            for number, sample in enumerate(entries[:1] if quick else entries):
                found.extend(checks_of(family, name, number, sample, quick))
    return found


def _checks_of(family: str, name: str, number: int, sample: Sample, quick: bool) -> Iterator[Check]:
    def check(against, dtype, run):
        return Check(family, name, number, against, dtype, run)

    dtypes = sample.dtypes
    if quick:
        dtypes = [dtype for dtype in dtypes if dtype in WIDE][:1] or dtypes[:1]
    if sample.orders >= 1:  # 0: jax has no derivative to compare with, finite differences are the judge
        for dtype in dtypes:
            yield check("jax", dtype, lambda dtype=dtype: check_sample(sample, dtype, 1))
        if quick:
            return
    if sample.orders >= 2:
        for dtype in dtypes:
            if dtype in WIDE:
                yield check("jax, order 2", dtype, lambda dtype=dtype: check_sample(sample, dtype, 2))
    if sample.finite and "float64" in dtypes:
        yield check("finite", "float64", lambda: check_finite(sample))


def _checks_against_cpu(family: str, name: str, number: int, sample: Sample, quick: bool) -> Iterator[Check]:
    for dtype in narrow_dtypes(sample, quick):
        run = lambda dtype=dtype: check_on_device(sample, dtype)
        yield Check(family, name, number, "cpu float64", dtype, run)


def verify_rules(
    *,
    quick: bool = False,
    only: Sequence[str] | None = None,
    against: str = "jax",
    progress: Callable[[int, int, str], None] | None = None,
) -> SuiteReport:
    """Check every rule on its samples against jax.vjp, order 1 and 2, and finite differences; or against float64 on the CPU."""
    start = time.perf_counter()
    todo = checks(quick=quick, only=only, against=against)
    results = []
    for done, check in enumerate(todo):
        if progress is not None:
            progress(done, len(todo), f"{check.family}: {check.primitive}")
        begun = time.perf_counter()
        try:
            outcome = check.run()
        except Exception as error:  # a rule that raises is as wrong as one that lies
            outcome = Outcome(
                False, float("inf"), f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            )
        if outcome is None:
            continue
        results.append(
            Result(
                check.family, check.primitive, check.number, check.against, check.dtype,
                outcome.ok, outcome.error, outcome.message, time.perf_counter() - begun,
            )
        )  # fmt: skip
    left_out = sorted({check.primitive for check in todo} - {result.primitive for result in results})
    sampled = {name_of(p) for samples in FAMILIES.values() for p, entries in samples.items() if entries}
    rules = {entry.name for entry in TABLE.values() if entry.kind == "rule"}
    unsampled = [] if only else sorted(rules - sampled - set(UNREACHABLE))
    return SuiteReport(results, unsampled, time.perf_counter() - start, quick=quick, against=against, left_out=left_out)
