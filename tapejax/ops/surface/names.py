"""What the surface has: how each name of jax is there, and one line per name that shows when jax changes."""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tapejax.ground.caches import cached
from tapejax.ops.surface.mirror import is_function, public_names
from tapejax.ops.surface.op import NUMBER_IS_OPTION, OPTION, Op, parameters_of
from tapejax.ops.surface.plain import Maker, Plain
from tapejax.ops.surface.tables import MODULES

LIFTED, PLAIN, MISSING, OTHER = "lifted", "plain", "missing", "other"


@dataclass(frozen=True, slots=True)
class Name:
    """A public name of a namespace of jax: how tapejax has it (lifted, plain, missing; other: no function), and why."""

    module: str
    name: str
    kind: str
    reason: str = ""


def look_up(module: str, name: str) -> Name:
    original = getattr(importlib.import_module(MODULES[module]), name)
    try:
        ours = getattr(importlib.import_module(module), name)
    except AttributeError as error:
        return Name(module, name, MISSING, str(error))
    if isinstance(ours, Plain):
        return Name(module, name, PLAIN, ours.reason)
    if ours is original:
        return Name(module, name, MISSING if is_function(original) else OTHER)
    return Name(module, name, LIFTED)


@cached(1)
def survey() -> list[Name]:
    """Every public name of jax's namespaces."""
    return [look_up(module, name) for module in MODULES for name in public_names(module)]


def report() -> str:
    """Per namespace: functions of jax, lifted, plain only (with the reason), missing."""
    names = survey()
    rows = [("namespace", "functions", "lifted", "plain only", "missing")]
    totals: Counter[str] = Counter()
    for module in MODULES:
        kinds = Counter(entry.kind for entry in names if entry.module == module and entry.kind != OTHER)
        totals.update(kinds)
        if kinds:
            rows.append(_row(module, kinds))
    rows.append(_row("all", totals))
    lines = [f"{first:<38}{''.join(f'{cell:>12}' for cell in rest)}" for first, *rest in rows]
    reasons: dict[str, list[str]] = {}
    for entry in names:
        if entry.kind == PLAIN:
            reasons.setdefault(entry.reason, []).append(f"{entry.module.removeprefix('tapejax.')}.{entry.name}")
    lines += ["", "plain only: called on values; a recorded Tensor is refused where its gradient would be lost"]
    lines += [f"  {reason}:\n    {' '.join(found)}" for reason, found in reasons.items()]
    missing = [f"{entry.module}.{entry.name}" for entry in names if entry.kind == MISSING]
    return "\n".join([*lines, *(["", "missing: " + " ".join(missing)] if missing else [])])


def _row(title: str, kinds: Counter[str]) -> tuple[str, ...]:
    return (title, *(str(n) for n in (kinds.total(), kinds[LIFTED], kinds[PLAIN], kinds[MISSING])))


def listing() -> list[str]:
    """One line per name: how it is there, and its parameters (axis!: an option; x2?: an option if a number)."""
    lines = []
    for entry in survey():
        ours = getattr(importlib.import_module(entry.module), entry.name, None)
        shown = f"({', '.join(_parameters(ours))})" if entry.kind in (LIFTED, PLAIN) else ""
        lines.append(f"{entry.module.removeprefix('tapejax.')}.{entry.name}{shown} {entry.kind}")
    return lines


def _parameters(ours: Any) -> list[str]:
    marks = {OPTION: "!", NUMBER_IS_OPTION: "?"}
    roles = ours.roles if isinstance(ours, Op) else {}
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    function = ours.function if isinstance(ours, (Op, Plain, Maker)) else ours
    return [
        stars.get(parameter.kind, "") + parameter.name + marks.get(roles.get(parameter.name, 0), "")
        for parameter in parameters_of(function)
    ]
