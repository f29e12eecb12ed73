"""What each tool says about the catalogue: python -m tests.diagnose.table

op and line: of the programs with a bad number, how many it names right. step, element, direction, cause: the same, where the
tool says such a thing. alarms: on how many healthy programs it raises. `--markdown` prints it for a page, `--write` puts it there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
import traceback
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.experimental import checkify

import tapejax as tj
from tests.diagnose import catalogue, outside, unseen
from tests.diagnose.catalogue import Case

if importlib.util.find_spec("torch"):
    import torch

    from tests.diagnose.in_torch import NotTranslated, by_torch
else:

    class NotTranslated(Exception):
        pass

    by_torch = None

BAD = catalogue.BAD + unseen.BAD + outside.BAD
HEALTHY = catalogue.HEALTHY + unseen.HEALTHY + outside.HEALTHY
FILES = (catalogue.__file__, unseen.__file__, outside.__file__)
PAGE, MARK, PAST = Path(__file__).parents[2] / "docs" / "find-a-nan.md", "<!-- table -->", "\n\n`python -m bench"
COLUMNS = ("op", "line", "step", "element", "direction", "cause")


def scalar(case: Case):
    if "has_aux" in case.options:
        return lambda *args: case.function(*args)[0]
    return case.function


def gradient(case: Case):
    argnums = tuple(range(len(case.args)))
    return jax.value_and_grad(scalar(case), argnums)


def line_in_catalogue(error: BaseException | None) -> int:
    while error is not None:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in FILES]
        if frames:
            return frames[-1].lineno or 0
        error = error.__cause__
    return 0


def by_us(case: Case):
    report = tj.find_nonfinite(case.function, *case.args, **case.options)
    if report.ok:
        return None
    born = report.born
    return {
        "op": born.op == case.op, "line": born.lineno == case.lineno, "step": born.steps == case.steps,
        "element": born.index == case.index, "direction": born.direction == case.direction,
        "cause": born.cause == case.cause,
    }  # fmt: skip


def by_debug_nans(case: Case, wrap=lambda f: f):
    try:
        with jax.debug_nans(True), jax.debug_infs(True):
            jax.block_until_ready(wrap(gradient(case))(*case.args))
    except FloatingPointError as error:
        return {"op": str(error).rstrip(".").split(" in ")[-1].split(".")[0] == case.op, "line": line_in_catalogue(error) == case.lineno}  # fmt: skip
    except Exception:  # what it cannot differentiate
        return {}
    return None


def by_checkify(case: Case):
    try:
        checked = checkify.checkify(gradient(case), errors=checkify.float_checks)
        error, _ = jax.jit(checked)(*case.args)
    except Exception:
        return {}
    said = error.get()
    if said is None:
        return None
    op = said.split("primitive: ")[-1].split(".")[0]
    try:
        error.throw()
    except Exception as thrown:
        return {"op": op == case.op or (said, case.op) == ("division by zero", "div"), "line": line_in_catalogue(thrown) == case.lineno}  # fmt: skip


def by_equinox(case: Case):
    """equinox.debug.backward_nan around every argument, the one place that needs no knowledge of the program."""

    def guarded(*args):
        return scalar(case)(*jax.tree.map(guard, args))

    def guard(x):
        floats = jnp.issubdtype(jnp.result_type(x), jnp.floating)
        return eqx.debug.backward_nan(x, name="argument", terminate=True) if floats else x

    argnums = tuple(range(len(case.args)))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            jax.block_until_ready(jax.jit(jax.value_and_grad(guarded, argnums))(*case.args))
            jax.effects_barrier()
    except Exception as error:  # its own, or what it cannot differentiate
        return {"op": False, "line": line_in_catalogue(error) == case.lineno}
    return None


TOOLS = {
    "tapejax.find_nonfinite": by_us,
    "jax.debug_nans and debug_infs": by_debug_nans,
    "the same under jax.jit": lambda case: by_debug_nans(case, jax.jit),
    "checkify (float_checks)": by_checkify,
    "equinox.debug.backward_nan": by_equinox,
}


def answers(look, cases: list[Case]) -> list[dict[str, bool]]:
    """What a tool says of the programs that it can run."""
    found = []
    for case in cases:
        with contextlib.suppress(NotTranslated):
            found.append(look(case) or {})
    return found


if by_torch is not None:
    TOOLS[f"torch {torch.__version__.partition('+')[0]}, autograd.detect_anomaly"] = by_torch


def main() -> None:
    if "--write" in sys.argv and by_torch is None:
        raise SystemExit("torch is not installed, and its row would be missing: pip install tapejax[bench]")
    rows = []
    for tool, look in TOOLS.items():
        found, harmless = answers(look, BAD), answers(look, HEALTHY)
        if len(found) < len(BAD):
            tool = f"{tool} (of the {len(found)} and {len(harmless)} that it can run)"
        said = [sum(bool(answer.get(column)) for answer in found) for column in COLUMNS]
        shown = [str(n) if any(column in answer for answer in found) else "-" for n, column in zip(said, COLUMNS)]
        alarms = sum(map(bool, harmless))
        rows.append((tool, *shown, str(alarms)))
    head = (f"of {len(BAD)}", *COLUMNS, f"alarms, of {len(HEALTHY)}")
    markdown = "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
    if "--markdown" in sys.argv:
        print(markdown)
        return
    if "--write" in sys.argv:
        text = PAGE.read_text()
        start = text.index(MARK) + len(MARK)
        PAGE.write_text(f"{text[:start]}\n\n{markdown}{text[text.index(PAST, start) :]}")
        return
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


if __name__ == "__main__":
    jnp.zeros(1)
    main()
