"""`python -m benchmarks.against OTHER [THIS]`: the same eager measures of two checkouts, side by side.

Each checkout runs in a process of its own that stays alive. They are asked in turn, round after round, and only one works at any
time. Shown are the least of each, the ratio of these, and the median and quartiles of the ratios of the same round. Only names
that every version has are used (`tensor`, `backward`, `Tape`, `jit`, `value_and_grad`), so that old versions can be asked.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import environment

HERE = Path(__file__).resolve().parents[1]
WORKER = Path(__file__).with_name("against_worker.py")


class Checkout:
    """A process that has imported the tapejax of a directory."""

    def __init__(self, where: Path) -> None:
        self.where = where.resolve()
        given = os.environ | {"PYTHONPATH": str(self.where)}
        command = [sys.executable, str(WORKER)]
        self._process = subprocess.Popen(
            command, cwd=self.where, env=given, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        imported = Path(self.ask("where"))
        if self.where not in imported.parents:
            raise SystemExit(f"{self.where} has no tapejax: {imported} was imported")

    def ask(self, *question: Any) -> Any:
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        print(json.dumps(question), file=asked, flush=True)
        answer = answers.readline()
        if not answer:
            raise SystemExit(f"the process of {self.where} has ended; its last words are above")
        return json.loads(answer)

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description="Two checkouts, side by side.")
    add = parser.add_argument
    add("other", type=Path, help="a directory that holds a tapejax to compare with")
    add("this", type=Path, nargs="?", default=HERE, help="the one that is compared (default: this checkout)")
    add("--rounds", type=int, default=25, help="(default: %(default)s)")
    add("--only", nargs="+", metavar="WORD", default=[], help="measures whose names have one of these words")
    add("--clock", choices=("processor", "wall"), default="processor", help="(default: %(default)s time, all threads)")
    add("--one-thread", action="store_true", help="jax runs programs in the thread that asks (default: as it comes)")
    add("--warm-up", type=float, default=60.0, help="seconds at most to wait until nothing is compiled any more")
    add("--json", metavar="FILE", help="write every sample")
    return parser.parse_args(arguments)


def measure(options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """{measure: {"this": seconds of each round, "other": the same}}."""
    both = {"this": Checkout(options.this), "other": Checkout(options.other)}
    found: dict[str, dict[str, list[float]]] = {}
    try:
        names = [name for name in both["this"].ask("names") if not options.only or any(w in name for w in options.only)]
        for name in names:
            print(f"{name} ...", file=sys.stderr, flush=True)
            counts = {}
            for who, checkout in both.items():
                answer = checkout.ask("prepare", name, options.warm_up)
                counts[who] = answer["count"]
                if not answer["settled"]:
                    print(f"  {who}: still compiling; a longer --warm-up may help", file=sys.stderr)
            count = min(counts.values())
            found[name] = {"this": [], "other": []}
            for turn in range(options.rounds):
                for who in ("this", "other")[:: 1 if turn % 2 else -1]:
                    found[name][who].append(both[who].ask("sample", name, count, options.clock))
    finally:
        for checkout in both.values():
            checkout.stop()
    return found


def show(found: dict[str, dict[str, list[float]]], options: argparse.Namespace) -> str:
    from benchmarks.report import factor, seconds, table
    from benchmarks.statistics import ratio, spread

    head = ["measure", "this, least", "other, least", "ratio of these", "this, median", "other, median", "ratio, by round", "quartiles"]  # fmt: skip
    body = []
    for name, times in found.items():
        ours, theirs = times["this"], times["other"]
        apart = ratio(ours, theirs)
        body.append([
            name, seconds(min(ours)), seconds(min(theirs)), factor(min(ours) / min(theirs)),
            seconds(spread(ours).median), seconds(spread(theirs).median),
            factor(apart.median), f"{factor(apart.low)} to {factor(apart.high)}",
        ])  # fmt: skip
    settings = "one thread" if options.one_thread else "as it comes"
    load = f"load {os.getloadavg()[0]:.1f} at the end"
    told = f"{options.clock} time, {settings}, {options.rounds} rounds, {load}; this / other: {options.this} / {options.other}"
    return f"{told}\n\n{table(head, body)}"


def main() -> int:
    options = parse(sys.argv[1:])
    os.environ |= environment.ONE_THREAD | environment.QUIET
    if options.one_thread:
        os.environ["JAX_CPU_ENABLE_ASYNC_DISPATCH"] = "false"
    found = measure(options)
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    print(show(found, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
