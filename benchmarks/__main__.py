"""`python -m benchmarks`: measure, print tables; see --help."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import environment


def main(arguments: list[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    from benchmarks import report  # after the environment is set: these import numpy

    if options.list:
        listing()
        return 0
    results = json.loads(Path(options.load).read_text()) if options.load else measure(options)
    keep(results, options)
    figures = report.text(results)
    print(figures)
    if options.plot:
        report.plot(results, options.plot)
    if options.docs:
        page = Path(options.docs)
        page.write_text(report.fill(page.read_text(), figures))
    return 0


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure tapejax against bare jitted calls, jax and other libraries: one thread each, in turn.",
    )
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", default=[], help="workloads to measure, and `scale` (default: all)")
    add("--contestants", nargs="+", metavar="NAME", default=[], help="contestants to race (default: all)")
    add("--rounds", type=int, default=15, help="rounds per workload (default: %(default)s)")
    add("--quick", action="store_true", help="three rounds: to see that it works, not to quote")
    add("--no-compile", action="store_true", help="leave out trace, lower and compile times")
    add("--million", action="store_true", help="also a chain of a million actions (takes minutes)")
    add("--as-it-comes", action="store_true", help="leave jax's second thread and glibc's memory as they are")
    add("--json", metavar="FILE", help="write everything that was measured")
    add("--load", metavar="FILE", help="report on such a file, measure nothing")
    add("--plot", metavar="FILE", help="draw forward and backward times (needs matplotlib)")
    add("--docs", metavar="PAGE", help="put the tables between the markers of a page")
    add("--list", action="store_true", help="list workloads and contestants")
    return parser.parse_args(arguments)


def listing() -> None:
    from benchmarks.contestants import PLACES
    from benchmarks.workloads import all_workloads

    print("workloads:  ", ", ".join([*all_workloads(), "scale"]))
    print("contestants:", ", ".join(PLACES))


def chosen(wanted: list[str], names: list[str], what: str) -> list[str]:
    unknown = set(wanted) - set(names)
    if unknown:
        raise SystemExit(f"no {what} called {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return [name for name in names if name in wanted] if wanted else names


def measure(options: argparse.Namespace) -> dict:
    from benchmarks.contestants import PLACES
    from benchmarks.race import Race
    from benchmarks.workloads import all_workloads

    say = lambda line: print(line, file=sys.stderr, flush=True)
    workloads = chosen(options.only, [*all_workloads(), "scale"], "workload")
    names = chosen(options.contestants, list(PLACES), "contestant")
    rounds = 3 if options.quick else options.rounds
    described = environment.describe()
    with Race(names, rounds, say=say) as race:
        race.results |= {"environment": described, "command": " ".join(["python -m benchmarks", *sys.argv[1:]])}
        race.load()
        for position, name in enumerate(workloads, 1):
            say(f"{name} ({position} of {len(workloads)})")
            if name == "scale":
                race.scale(options.million)
            else:
                race.run(name)
                if not options.no_compile:
                    race.compile(name)
            keep(race.results, options)  # a long run that is cut short has not been for nothing
        return race.results


def keep(results: dict, options: argparse.Namespace) -> None:
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    environment.enter("benchmarks")
    sys.exit(main())
