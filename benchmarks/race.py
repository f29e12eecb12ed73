"""The race: every contestant on every workload, in turn, round after round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.agreement import check
from benchmarks.contestants import FAMILIES, FAMILY
from benchmarks.workers import Worker, WorkerFailed

COMPILED = ("tapejax in jax.jit", "jax.jit", "torch.compile")
LENGTHS = (1_000, 10_000, 100_000)  # actions of a chain
MILLION = 1_000_000
OURS = set(FAMILIES["jax"])  # a peer may fail and be left out; these may not


class Race:
    """Holds the workers; `results` is plain data, ready for JSON."""

    def __init__(self, names: Sequence[str], rounds: int, *, tiny: bool = False, say: Callable[[str], None] = print):
        self.names, self.rounds, self.tiny, self.say = list(names), rounds, tiny, say
        self.workers: dict[str, Worker] = {}
        self.results: dict[str, Any] = {"rounds": rounds, "skipped": {}, "workloads": {}, "scale": {}}

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

    def run(self, workload: str) -> None:
        """Make everyone ready, compare with jax, then measure."""
        found: dict[str, Any] = {"forward": {}, "gradient": {}, "compiled": {}, "absent": {}}
        self.results["workloads"][workload] = found
        modes = self.prepare(workload, found["absent"])
        for mode in ("forward", "gradient"):
            found[mode] = self.rounds_of(
                workload, mode, {n: m[mode] for n, m in modes.items() if mode in m}, self.rounds
            )
        compiled = {n: m["gradient"] for n, m in modes.items() if n in COMPILED}
        found["compiled"] = self.rounds_of(workload, "gradient", compiled, 2 * self.rounds)
        for name in {FAMILY[name]: name for name in modes}.values():
            self.ask(name, "forget", workload)

    def prepare(self, workload: str, absent: dict[str, str]) -> dict[str, dict[str, int]]:
        """{contestant: {mode: calls per sample}} of those that take part and agree with jax."""
        expected = self.ask("jax.jit", "prepare", "jax.jit", workload)["numbers"]
        modes = {}
        for name in self.names:
            try:
                why = self.ask(name, "why_not", name, workload)
                if why is None:
                    answer = self.ask(name, "prepare", name, workload)
            except WorkerFailed as failure:
                if name in OURS:
                    raise
                why = f"failed: {failure}"
            if why is not None:
                absent[name] = why
                self.say(f"  {workload}: without {name} ({why})")
                continue
            if answer["numbers"] is not None:
                check(f"{name} on {workload}", answer["numbers"], expected)
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
        found = self.ask("jax.jit", "compilation", workload, max(3, self.rounds // 2))
        self.results["workloads"].setdefault(workload, {})["compilation"] = found

    def scale(self, million: bool) -> None:
        """Chains of growing length, in turn; then their bytes."""
        lengths = [*((200, 400) if self.tiny else LENGTHS), *[MILLION] * million]
        times: dict[int, list[dict[str, float]]] = {length: [] for length in lengths}
        for turn in range(max(3, self.rounds // 3)):
            for length in lengths if turn % 2 == 0 else lengths[::-1]:
                times[length].append(self.ask("tapejax", "scale", length))
        for length in lengths:
            row: dict[str, Any] = {key: [one[key] for one in times[length]] for key in times[length][0]}
            row["bytes"] = self.bytes_of(length)
            self.results["scale"][str(length)] = row

    def bytes_of(self, length: int) -> dict[str, float]:
        """In a process of its own: one that has freed memory before would grow by less."""
        worker = Worker(self.tiny)
        try:
            return worker.ask("scale_bytes", length)
        finally:
            worker.stop()
