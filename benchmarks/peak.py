"""The most memory that a step takes, beyond what is there before it: in a process of its own, by the system's account.

What is counted is the same for all: pages of the process, at their highest during a step, less those there were before it.
That holds whatever the step allocates (results, gradients, XLA's temporary buffers, what the tape keeps, Python's objects), and
not the parameters and data, which are there before. So that a step cannot live on what an earlier one left, freed memory goes
back to the system: what is larger than a few pages at once, since it is mapped by itself (SETTINGS), and the rest before
each step (`malloc_trim`). Then the system is told to forget the highest point so far (`/proc/self/clear_refs`).
Everything is compiled by then, and compiled well.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from typing import Any

ENDS = "/proc/self/clear_refs"
SETTINGS = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(1 << 14)}  # of the process that is measured
MOMENT = 0.02  # seconds for jax's other thread to let go of what it had


class NotHere(RuntimeError):
    """This system cannot say what is asked."""


def growth(call: Callable[[], Any], rounds: int) -> list[int]:
    """Bytes at the highest point of each call, above what the process held before it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        raise NotHere("needs glibc's malloc_trim")
    found = []
    for _ in range(rounds):
        time.sleep(MOMENT)
        gc.collect()
        trim(0)
        forget_highest()
        before = status("VmRSS")
        call()
        found.append(status("VmHWM") - before)
    return found


def forget_highest() -> None:
    try:
        with open(ENDS, "w") as file:
            file.write("5")
    except OSError as error:
        raise NotHere(f"needs {ENDS}: {error.strerror}") from None


def status(name: str) -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
