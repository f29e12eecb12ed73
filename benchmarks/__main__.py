"""`python -m benchmarks`: measure, print tables; see --help."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks import environment

if TYPE_CHECKING:
    from benchmarks.race import Race


def main(arguments: list[str] | None = None) -> int:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    from benchmarks import report  # after the environment is set: these import numpy

    if options.list:
        listing()
        return 0
    results = read(options.load) if options.load else measure(options)
    keep(results, options)
    figures = report.text(results, read(options.beside) if options.beside else None)
    print(figures)
    if options.plot:
        report.plot(results, options.plot)
    if options.docs:
        page = Path(options.docs)
        page.write_text(report.fill(page.read_text(), figures))
    return 0


def read(file: str) -> dict:
    return json.loads(Path(file).read_text())


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure tapejax against bare jitted calls, jax and other libraries: one thread each, in turn. "
        "Without options: what the table of bars needs, as it comes.",
    )
    add = parser.add_argument
    add("--full", action="store_true", help="every contestant on every workload, and chains of all lengths")
    add("--only", nargs="+", metavar="NAME", default=[], help="parts to measure (default: all; --list names them)")
    add("--contestants", nargs="+", metavar="NAME", default=[], help="contestants to race (default: all)")
    add("--rounds", type=int, default=15, help="rounds per workload (default: %(default)s)")
    add("--quick", action="store_true", help="three rounds: to see that it works, not to quote")
    add("--no-compile", action="store_true", help="leave out trace, lower and compile times")
    add("--tuned", action="store_true", help="jax runs programs in the thread that asks, and freed memory stays")
    add("--beside", metavar="FILE", help="another run (--json), whose figures stand beside those of the bars")
    add("--json", metavar="FILE", help="write everything that was measured")
    add("--load", metavar="FILE", help="report on such a file, measure nothing")
    add("--plot", metavar="FILE", help="draw forward and backward times (needs matplotlib)")
    add("--docs", metavar="PAGE", help="put the tables between the markers of a page")
    add("--list", action="store_true", help="list what can be measured, and contestants")
    return parser.parse_args(arguments)


OTHERS = ("first_contact", "scale", "peak")  # what is measured besides workloads


def listing() -> None:
    from benchmarks.contestants import PLACES
    from benchmarks.workloads import all_workloads

    print("parts:      ", ", ".join([*OTHERS, *all_workloads()]))
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
    parts = chosen(options.only, [*OTHERS, *all_workloads()], "part")
    names = chosen(options.contestants, list(PLACES), "contestant")
    rounds = 3 if options.quick else options.rounds
    described, begin = environment.describe(), perf_counter()
    with Race(names, rounds, say=say) as race:
        race.results |= {"environment": described, "command": " ".join(["python -m benchmarks", *sys.argv[1:]])}
        race.results["settings"] = "as it comes" if environment.as_it_comes() else "tuned"
        race.load()
        for position, name in enumerate(parts, 1):
            say(f"{name} ({position} of {len(parts)}, {perf_counter() - begin:.0f} s so far)")
            measure_part(race, name, options)
            race.results["minutes"] = (perf_counter() - begin) / 60
            keep(race.results, options)  # a long run that is cut short has not been for nothing
        return race.results


def measure_part(race: Race, name: str, options: argparse.Namespace) -> None:
    from benchmarks import bars

    if name == "first_contact":
        race.first_contact()
    elif name == "scale" and options.full:
        race.scale((1_000, 10_000, 100_000, 1_000_000), bars.WAYS, weigh=True)
    elif name == "scale":
        race.scale(bars.ACTIONS, bars.TAPES)
    elif name == "peak":
        for workload in bars.PEAKS:
            race.peak(workload, ["tapejax", "tapejax, no wrt", "jax.jit"])
    else:
        only_compiled = ([bars.OURS, bars.JAX], ["gradient"])
        wanted = () if options.full or options.contestants else bars.needs().get(name, only_compiled)
        race.run(name, *wanted)
        if not options.no_compile:
            race.compile(name)


def keep(results: dict, options: argparse.Namespace) -> None:
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    environment.enter("benchmarks")
    sys.exit(main())
