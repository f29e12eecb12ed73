"""Run a module of the tests in a process of its own, so that a deadlock or a crash is a failed test."""

import json
import os
import pathlib
import subprocess
import sys

ALL = os.environ.get("TAPEJAX_ATTACKS") == "all"  # everything, which takes half an hour; else a part
ROOT = pathlib.Path(__file__).parents[2]


def alone(module, *arguments, folder="attacks", seconds=120, env=()):
    """What `python -m tests.folder.module arguments` prints, a JSON object per line."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1", **dict(env)}
    command = [sys.executable, "-m", f"tests.{folder}.{module}", *map(str, arguments)]
    try:
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as late:
        shown = "\n".join((stream or b"").decode(errors="replace")[-2000:] for stream in (late.stdout, late.stderr))
        raise AssertionError(f"no end after {seconds} s: {command[2:]}\n{shown}") from None
    assert done.returncode == 0, (
        f"{command[2:]} ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def no_failures(reports):
    """Fail with all that was found; say how much was tried."""
    failures = [text for report in reports for text in report["failures"]]
    tried = [{k: v for k, v in report.items() if k != "failures"} for report in reports]
    assert not failures, f"{len(failures)} failures, {tried}\n" + "\n".join(failures)
    assert reports, "nothing was tried"
    assert sum(report["tried"] for report in reports)
