"""What a contestant is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.workloads import Workload

TO_NCHW = {"x": (0, 3, 1, 2), "w": (3, 2, 0, 1)}
TO_NHWC = {"x": (0, 2, 3, 1), "w": (2, 3, 1, 0)}


@dataclass
class Entry:
    """A workload made ready by one contestant.

    forward(): the result, recorded so that a backward could follow.
    gradient(): (result, one gradient per parameter). Both return when the numbers are there.
    """

    gradient: Callable[[], tuple[Any, Sequence[Any]]] | None
    forward: Callable[[], Any] | None = None


class Contestant:
    """A library, or one way of using it. Making one imports it: an exception says why it cannot."""

    name = ""
    compiled = False  # the whole step is one compiled program
    layout = "NHWC"
    longest_loop: int | None = None  # beyond this a loop without a scan is left out

    @classmethod
    def why_not(cls, workload: Workload) -> str | None:
        """Why it does not take part in a workload; None if it does."""
        if workload.written_for and cls.name not in workload.written_for:
            return "it is not written in its functions"
        if cls.longest_loop is not None and workload.loop > cls.longest_loop:
            return f"has no scan, and a loop of {workload.loop} steps takes minutes to compile"
        return None

    def prepare(self, workload: Workload) -> Entry:
        raise NotImplementedError

    settles = False  # it compiles what has come often anew; see `unsettled`

    def unsettled(self, call: Callable[[], Any]) -> bool:
        """Call it once: whether a program was compiled for it, or it ran by one that will be compiled again."""
        call()
        return False

    def numbers(self, result: tuple[Any, Sequence[Any]]) -> tuple[np.ndarray, list[np.ndarray]]:
        """What gradient() returned, as numpy arrays in this contestant's layout."""
        out, gradients = result
        return np.asarray(out), [np.asarray(gradient) for gradient in gradients]

    def arrays(self, workload: Workload) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Parameters and data in this contestant's layout."""
        given = [*workload.params, *workload.data]
        if self.layout == "NCHW":
            for position, kind in workload.images.items():
                given[position] = np.ascontiguousarray(given[position].transpose(TO_NCHW[kind]))
        return given[: len(workload.params)], given[len(workload.params) :]

    def canonical(self, workload: Workload, result: tuple[Any, Sequence[Any]]) -> tuple[np.ndarray, list[np.ndarray]]:
        """What gradient() returned, as numpy arrays in the workload's own layout."""
        out, gradients = self.numbers(result)
        if self.layout == "NCHW":
            for position, kind in workload.images.items():
                if position < len(gradients):
                    gradients[position] = gradients[position].transpose(TO_NHWC[kind])
        return out, gradients
