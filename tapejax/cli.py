"""The command line: `tapejax` and `python -m tapejax`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence

EXAMPLES = """examples:
  tapejax verify                     check every rule against jax.vjp and finite differences
  tapejax verify --quick             one sample of each rule, float64, first order
  tapejax verify --only sin,linalg   some primitives or families
  tapejax coverage                   which primitives have a rule, are constant, or are refused
  tapejax coverage functions         which functions of jax are lifted, or plain and why
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tapejax",
        description="A flight recorder for gradients: see, trust and check a gradient in JAX.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)

    verify = commands.add_parser("verify", help="check the rules of this installation on this machine's device")
    verify.add_argument("--quick", action="store_true", help="one sample of each rule, float64, first order")
    verify.add_argument("--only", metavar="NAMES", help="primitives or families, separated by commas")
    verify.add_argument("--json", metavar="FILE", help="write all results to a file ('-' for standard output)")
    verify.set_defaults(run=_verify)

    coverage = commands.add_parser(
        "coverage", help="primitives (rule, constant, refused) and functions of jax (lifted, plain)"
    )
    coverage.add_argument("what", nargs="?", choices=("all", "primitives", "functions"), default="all")
    coverage.set_defaults(run=_coverage)

    options = parser.parse_args(arguments)
    return options.run(options)


def _verify(options: argparse.Namespace) -> int:
    _use_four_cpu_devices()
    from tapejax.verify.samples import FAMILIES
    from tapejax.verify.suite import name_of, verify_rules

    only = None
    if options.only:
        only = [name.strip() for name in options.only.split(",")]
        known = set(FAMILIES) | {name_of(p) for samples in FAMILIES.values() for p in samples}
        unknown = [name for name in only if name not in known]
        if unknown:
            print(f"tapejax verify: no primitive or family called {', '.join(unknown)}", file=sys.stderr)
            return 2
    report = verify_rules(quick=options.quick, only=only, progress=Progress())
    if options.json == "-":
        print(json.dumps(report.to_json()))
    else:
        print(report)
        if options.json:
            with open(options.json, "w") as file:
                json.dump(report.to_json(), file, indent=1)
    return 0 if report.ok else 1


def _use_four_cpu_devices() -> None:
    """Collectives need somebody to talk to. Not if the user chose a number, or jax runs already."""
    import jax

    chosen = jax.config.jax_num_cpu_devices > 0 or "xla_force_host_platform_device_count" in os.environ.get(
        "XLA_FLAGS", ""
    )
    with contextlib.suppress(RuntimeError):  # jax runs already
        if not chosen:
            jax.config.update("jax_num_cpu_devices", 4)


def _coverage(options: argparse.Namespace) -> int:
    status = 0
    if options.what != "functions":
        from tapejax.coverage import main

        status = main() or 0
    if options.what != "primitives":
        from tapejax.surface import names

        print(names.report())
        status = status or any(name.kind == names.MISSING for name in names.survey())
    return int(status)


class Progress:
    """A line that is rewritten in place; silent when nobody watches."""

    def __init__(self) -> None:
        self.last = 0.0
        self.start = time.perf_counter()

    def __call__(self, done: int, total: int, name: str) -> None:
        now = time.perf_counter()
        if not sys.stderr.isatty() or now - self.last < 0.1:
            return
        self.last = now
        filled = 30 * done // max(total, 1)
        bar = "#" * filled + "." * (30 - filled)
        print(f"\r[{bar}] {done}/{total}  {name:<28.28}", end="\r", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
