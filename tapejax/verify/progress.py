"""What a long check is doing, in one line that is rewritten in place; silent when nobody watches.

With rich where it is installed (`pip install tapejax[progress]`), as plain text otherwise.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from typing import Any

PATIENCE = 2.0  # seconds before anything is said
WIDTH = 100


class Progress:
    """Say what is being done, from the third second on. `done()` takes the line away."""

    def __init__(self, name: str):
        self.name = name
        self.start = time.perf_counter()
        self.said = False

    def __call__(self, doing: str) -> None:
        passed = time.perf_counter() - self.start
        if passed < PATIENCE or not _watched():
            return
        self.said = True
        text = f"verify({self.name}), {passed:.0f} s: {doing}"
        print(f"\r{text:<{WIDTH}.{WIDTH}}", end="", file=sys.stderr, flush=True)

    def done(self) -> None:
        if self.said:
            print(f"\r{'':<{WIDTH}}\r", end="", file=sys.stderr, flush=True)
            self.said = False


class Bar:
    """How far a command is, of how much, and how long the rest will take. `clear()` takes it away."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.last = 0.0
        self.rich: Any = None

    def __call__(self, done: int, total: int, name: str) -> None:
        now = time.perf_counter()
        if not _watched() or now - self.last < 0.1:
            return
        self.last = now
        if self.rich is None and importlib.util.find_spec("rich") is not None:
            self.rich = _rich_bar()
        if self.rich is not None:
            self.rich.update(self.rich.task_ids[0], completed=done, total=total, description=f"{name:<32.32}")
            return
        part = done / max(total, 1)
        bar = "#" * int(30 * part) + "." * (30 - int(30 * part))
        left = f"{(now - self.start) * (1 - part) / part:4.0f} s left" if part > 0.02 else ""
        print(f"\r[{bar}] {done}/{total} {left}  {name:<32.32}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.rich is not None:
            self.rich.stop()
        elif self.last:
            print(f"\r{'':<{WIDTH}}\r", end="", file=sys.stderr, flush=True)


def _rich_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    progress = Progress(*columns, console=Console(file=sys.stderr), transient=True)
    progress.add_task("", total=None)
    progress.start()
    return progress


def _watched() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
