"""The race: every contestant on every workload, in turn, round after round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks import first_contact, peak
from benchmarks.agreement import check
from benchmarks.contestants import FAMILIES, FAMILY
from benchmarks.workers import Worker, WorkerFailed

COMPILED = ("tapejax in jax.jit", "jax.jit", "torch.compile")
MODES = ("forward", "gradient")
OURS = set(FAMILIES["jax"])  # a peer may fail and be left out; these may not


class Race:
    """Holds the workers; `results` is plain data, ready for JSON."""

    def __init__(self, names: Sequence[str], rounds: int, *, tiny: bool = False, say: Callable[[str], None] = print):
        self.names, self.rounds, self.tiny, self.say = list(names), rounds, tiny, say
        self.workers: dict[str, Worker] = {}
        self.results: dict[str, Any] = {"rounds": rounds, "skipped": {}, "workloads": {}, "scale": {}, "peak": {}}

    def __enter__(self) -> Race:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for worker in self.workers.values():
            worker.stop()

    def ask(self, name: str, method: str, *arguments: Any) -> Any:
        """Ask the worker of a contestant's family."""
        family = FAMILY[name]
        if family not in self.workers:
            self.workers[family] = Worker(self.tiny)
        return self.workers[family].ask(method, *arguments)

    def load(self) -> None:
        """Import every library; leave out, and say so, what is not there."""
        for name in list(self.names):
            try:
                self.ask(name, "load", name)
            except WorkerFailed as failure:
                if name in OURS:
                    raise
                self.results["skipped"][name] = str(failure)
                self.names.remove(name)
                self.say(f"skipped: {name} ({failure})")

    # -- one workload ---------------------------------------------------------------------------------

    def run(self, workload: str, names: Sequence[str] | None = None, wanted: Sequence[str] = MODES) -> None:
        """Make everyone (or those named) ready, compare with jax, then measure."""
        found: dict[str, Any] = {"forward": {}, "gradient": {}, "compiled": {}, "absent": {}, "unsettled": []}
        self.results["workloads"][workload] = found
        modes = self.prepare(workload, self.names if names is None else names, wanted, found)
        for mode in wanted:
            counts = {n: m[mode] for n, m in modes.items() if mode in m}
            found[mode] = self.rounds_of(workload, mode, counts, self.rounds)
        compiled = {n: m["gradient"] for n, m in modes.items() if n in COMPILED}
        found["compiled"] = self.rounds_of(workload, "gradient", compiled, 2 * self.rounds)
        for name in {FAMILY[name]: name for name in modes}.values():
            self.ask(name, "forget", workload)

    def prepare(
        self, workload: str, names: Sequence[str], wanted: Sequence[str], found: dict[str, Any]
    ) -> dict[str, dict[str, int]]:
        """{contestant: {mode: calls per sample}} of those that take part and agree with jax."""
        reference = self.ask("jax.jit", "prepare", "jax.jit", workload)
        expected = reference["numbers"]
        modes = {}
        for name in [name for name in self.names if name in names]:
            try:
                why = self.ask(name, "why_not", name, workload)
                ready = reference if name == "jax.jit" else None
                answer = None if why else ready or self.ask(name, "prepare", name, workload, wanted)
            except WorkerFailed as failure:
                if name in OURS:
                    raise
                why, answer = f"failed: {failure}", None
            if answer is None:
                found["absent"][name] = why
                self.say(f"  without {name}: {why}")
                continue
            if answer["numbers"] is not None:
                check(f"{name} on {workload}", answer["numbers"], expected)
            found["unsettled"] += [f"{name}, {mode}" for mode in answer["unsettled"]]
            modes[name] = answer["modes"]
        return modes

    def rounds_of(
        self, workload: str, mode: str, counts: dict[str, int], rounds: int
    ) -> dict[str, dict[str, list[float]]]:
        """Each round asks everyone once; each begins with another one."""
        found: dict[str, dict[str, list[float]]] = {name: {"seconds": [], "cores": []} for name in counts}
        names = list(counts)
        for turn in range(rounds if names else 0):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                seconds, cores = self.ask(name, "sample", name, workload, mode, counts[name])
                found[name]["seconds"].append(seconds)
                found[name]["cores"].append(cores)
        return found

    # -- the rest -------------------------------------------------------------------------------------

    def compile(self, workload: str) -> None:
        found = self.ask("jax.jit", "compilation", workload, max(3, self.rounds // 3))
        self.results["workloads"].setdefault(workload, {})["compilation"] = found

    def scale(self, lengths: Sequence[int], ways: Sequence[str], *, weigh: bool = False) -> None:
        """Chains of growing length, in turn, in a process of their own; weigh: their bytes too."""
        times: dict[tuple[int, str], list[dict[str, Any]]] = {(n, way): [] for n in lengths for way in ways}
        with self.apart() as worker:
            for turn in range(max(3, self.rounds // 5)):
                for length, way in list(times)[:: 1 if turn % 2 == 0 else -1]:
                    times[length, way].append(worker.ask("scale", length, way))
        for length in lengths:
            row: dict[str, Any] = {}
            for way in ways:
                each = times[length, way]
                row[way] = {key: [one[key] for one in each] for key in ("forward", "backward", "asked")}
                row[way]["settled"] = all(one["settled"] for one in each)
            if weigh:
                with self.apart() as worker:  # one that has freed memory before would grow by less
                    row["bytes"] = worker.ask("scale_bytes", length)
            self.results["scale"][str(length)] = row

    def peak(self, workload: str, names: Sequence[str]) -> None:
        """The most bytes that a step takes, each contestant in a process of its own."""
        found = self.results["peak"][workload] = {}
        for name in names:
            with self.apart(peak.SETTINGS) as worker:
                try:
                    found[name] = worker.ask("peak", name, workload, self.rounds)
                except WorkerFailed as failure:  # not every system can say
                    self.results["skipped"]["peak bytes"] = str(failure)
                    return

    def first_contact(self) -> None:
        """What a newcomer waits for, each time in fresh processes."""
        rounds = 1 if self.rounds < 5 else 3
        self.results["first_contact"] = first_contact.study(rounds, self.say)

    @contextmanager
    def apart(self, settings: Mapping[str, str] | None = None) -> Iterator[Worker]:
        """A worker for one purpose only."""
        worker = Worker(self.tiny, settings)
        try:
            yield worker
        finally:
            worker.stop()
