"""What a long check is doing, in one line that is rewritten in place; silent when nobody watches."""

from __future__ import annotations

import sys
import time

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


def _watched() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
