"""A process per family of contestants, asked in turn: what is measured in one cannot disturb another.

The one that asks imports no library. It waits for each answer before it asks the next, so that at
any time only one process has something to do.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import sampling
from benchmarks.contestants import load
from benchmarks.contestants.base import Contestant, Entry
from benchmarks.workloads import all_workloads, tiny_workloads

PATIENCE = 600.0  # seconds for one answer


class WorkerFailed(RuntimeError):
    """A worker raised, died, or did not answer. The text says which; `details` has its traceback."""

    def __init__(self, text: str, details: str = ""):
        super().__init__(text)
        self.details = details
        if details:
            self.add_note(details)


class Worker:
    """The near end: `worker.ask("sample", ...)` calls Desk.sample in the process at the far end."""

    def __init__(self, tiny: bool = False, settings: Mapping[str, str] | None = None):
        """settings: what the environment of its process has besides ours."""
        self.tiny, self.settings = tiny, dict(settings or {})
        self._process: Any = None
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=serve, args=(far, self.tiny), daemon=True)
        before = {name: os.environ.get(name) for name in self.settings}
        os.environ.update(self.settings)  # a new process begins with what is there when it is started
        try:
            self._process.start()
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        far.close()

    def ask(self, method: str, *arguments: Any, patience: float = PATIENCE) -> Any:
        try:
            self._pipe.send((method, arguments))
            if not self._pipe.poll(patience):
                self.restart()
                raise WorkerFailed(f"no answer within {patience:.0f} s")
            kind, answer = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode
            self.restart()
            raise WorkerFailed(f"its process died (exit code {code})") from None
        if kind == "error":
            raise WorkerFailed(*answer)
        return answer

    def stop(self) -> None:
        self._pipe.close()
        self._process.join(2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def restart(self) -> None:
        self.stop()
        self._start()


def serve(pipe: Any, tiny: bool) -> None:
    """The far end: answer until the other side is gone."""
    desk = Desk(tiny)
    while True:
        try:
            method, arguments = pipe.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        try:
            answer = ("ok", getattr(desk, method)(*arguments))
        except Exception as error:
            first = (str(error) or "no message").splitlines()[0]
            answer = ("error", (f"{type(error).__name__}: {first}", traceback.format_exc()))
        pipe.send(answer)


class Desk:
    """What a worker can be asked. Workloads and contestants go by name."""

    def __init__(self, tiny: bool = False):
        self.workloads = tiny_workloads() if tiny else all_workloads()
        self.contestants: dict[str, Contestant] = {}
        self.entries: dict[tuple[str, str], Entry] = {}

    def load(self, name: str) -> None:
        self.contestants[name] = load(name)

    def _loaded(self, name: str) -> Contestant:
        if name not in self.contestants:  # after a restart
            self.load(name)
        return self.contestants[name]

    def why_not(self, name: str, workload: str) -> str | None:
        return self._loaded(name).why_not(self.workloads[workload])

    def prepare(self, name: str, workload: str, wanted: Sequence[str] = ("forward", "gradient")) -> dict[str, Any]:
        """Make ready and warm up.

        {"modes": {mode: calls per sample}, "numbers": (result, gradients) or None, "unsettled": modes for which
        programs were still being compiled when patience was at an end}.
        """
        contestant = self._loaded(name)
        entry = contestant.prepare(self.workloads[workload])
        numbers, modes, unsettled = None, {}, []
        for mode in wanted:
            call = getattr(entry, mode)
            if call is None:
                continue
            sampling.warm(call)
            if contestant.settles and not sampling.settle(call, contestant.unsettled):
                unsettled.append(mode)
            if mode == "gradient":  # by the programs that will be timed
                numbers = contestant.canonical(self.workloads[workload], call())
            modes[mode] = sampling.calibrate(call)
        self.entries[name, workload] = entry
        gc.collect()
        gc.freeze()  # so that collecting before each sample is quick
        return {"modes": modes, "numbers": numbers, "unsettled": unsettled}

    def sample(self, name: str, workload: str, mode: str, count: int) -> tuple[float, float]:
        if (name, workload) not in self.entries:  # after a restart
            self.prepare(name, workload)
        call = getattr(self.entries[name, workload], mode)
        call()  # wakes the process's own caches; not timed
        return sampling.sample(call, count)

    def forget(self, workload: str) -> None:
        """Let go of a workload's arrays and programs."""
        self.entries = {key: entry for key, entry in self.entries.items() if key[1] != workload}
        gc.unfreeze()
        gc.collect()

    def compilation(self, workload: str, rounds: int) -> dict[str, Any]:
        from benchmarks import compilation

        return compilation.study(self.workloads[workload], rounds)

    def scale(self, length: int, way: str) -> dict[str, Any]:
        from benchmarks import scale

        return scale.chain(length, way)

    def peak(self, name: str, workload: str, rounds: int) -> list[int]:
        """The most bytes that a step takes; asked of a worker that does nothing else."""
        from benchmarks import peak

        if (name, workload) not in self.entries:
            self.prepare(name, workload, ("gradient",))
        gradient = self.entries[name, workload].gradient
        assert gradient is not None
        return peak.growth(gradient, rounds)

    def scale_bytes(self, length: int) -> dict[str, float]:
        from benchmarks import scale

        return scale.footprint(length)
