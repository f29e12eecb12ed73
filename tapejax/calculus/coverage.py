"""Which of jax's primitives have a rule, and what happens to the others.

    python -m tapejax.calculus.coverage
    python -m tapejax.calculus.coverage --markdown > docs/primitives.md

Every primitive that jax exports, that its derivative tables name, or that tracing its functions has
ever shown must stand in exactly one list: a rule, a constant with its reason, refused with its
reason, opened before rules are asked, or foreign. `tests/calculus/test_coverage.py` fails on any other.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import jax
from jax.extend.core import Primitive
from jax.extend.core import primitives as public_primitives
from jax.interpreters import ad  # only its tables of names are read: what jax can differentiate

from tapejax.ground import compat
from tapejax.program import discharge
from tapejax.program.program import CALLS
from tapejax.rules import TABLE

# Primitives that jax does not export and that its derivative tables need not name, met in traces.
MET_IN_TRACES = (
    "check", "composite", "custom_vmap_call", "debug_callback", "debug_print", "eval_jaxpr", "empty",
    "geqp3", "geqrf", "lu_pivots_to_permutation", "io_callback", "linear_call", "mulhi", "optimization_barrier",
    "ormqr", "platform_index", "psum_invariant", "pure_callback", "pvary", "ragged_dot_general", "random_clone",
    "random_unwrap", "random_wrap", "reduce_scatter", "scaled_dot", "scatter-sub", "shard_map", "split", "stack", "tile", "unstack",
)  # fmt: skip

# Differentiated by jax.jit's own machinery rather than by an entry in its tables.
BY_TRACE = {"custom_jvp_call", "custom_vjp_call", "shard_map", "jit", "closed_call", "call", "eval_jaxpr", "cond"}

# Primitives that jax lists a derivative for and tapejax has no rule of its own for, and why.
_HIJAX = "part of jax's unreleased language for user-made types; no public function leads to it"
_EDTYPE = "converts to and from dtypes that only jax's own internals define"
_HOSTS = "gathers or splits an array between processes, of jax.experimental.multihost_utils"
FOREIGN = {
    "box_get": _HIJAX, "box_set": _HIJAX, "new_box": _HIJAX, "log_extend": _HIJAX, "log_read": _HIJAX,
    "new_log": _HIJAX, "from_edtype": _EDTYPE,
    "global_array_to_host_local_array": _HOSTS, "host_local_array_to_global_array": _HOSTS, "to_edtype": _EDTYPE,
    "remat_opt": "a custom_vjp with optimize_remat inside jax's own derivative of it",
    "with_memory_space_constraint": "a hint inside Pallas kernels",
}  # fmt: skip

# Refused although jax's tables name them: jax's entry only raises, or serves forward mode alone.
REFUSED_BY_JAX_TOO = {
    "accum_grad_in_ref": "only jax's own backward makes it",
    "bcoo_spdot_general": "jax has no transpose for it",
    "custom_lin": "only jax's own linearisation makes it",
    "ffi_call": "jax's entry raises",
    "get_global": "inside Pallas kernels only",
    "io_callback": "jax's entry raises",
    "masked_load": "inside Pallas kernels only",
    "masked_swap": "inside Pallas kernels only",
    "mpmd_map": "inside Pallas kernels only",
    "pallas_call": "jax's entry has no transpose: reverse mode raises",
    "pure_callback": "jax's entry raises",
    "run_state": "only jax's own internals make it",
}


@dataclass(frozen=True, slots=True)
class Row:
    """What is known about one primitive.

    kind: rule, constant, refused, opened (before rules are asked), foreign (jax's own rule serves), missing.
    detail: what the rule says ran, or the reason.
    public: jax exports it. jax_reverse: jax's own tables name a derivative for it.
    """

    name: str
    kind: str
    family: str
    detail: str
    public: bool
    jax_reverse: bool


def names_of_jax() -> tuple[set[str], set[str]]:
    """(names that jax exports, names that jax lists a derivative for)."""
    import jax.experimental.multihost_utils
    import jax.experimental.sparse  # noqa: F401  both register derivatives when they are imported

    exported = {p.name for p in vars(public_primitives).values() if isinstance(p, Primitive)}
    listed = {p.name for p in [*ad.primitive_jvps, *ad.primitive_transposes] if compat.is_own(p)}
    return exported, listed | (BY_TRACE & (exported | set(MET_IN_TRACES)))


def primitive_table(more: tuple[str, ...] = ()) -> list[Row]:
    """One row per primitive, by family and name. `more`: further names to look up."""
    exported, listed = names_of_jax()
    entries = {entry.name: entry for entry in TABLE.values()}
    rows = []
    for name in exported | listed | set(MET_IN_TRACES) | set(more) | set(entries):
        kind, family, detail = "missing", "", ""
        entry = entries.get(name)
        if name in CALLS:
            kind, family, detail = "opened", "calls", "the program inside takes its place"
        elif name in discharge.REFERENCES:
            kind, family, detail = "opened", "references", "programs with references are rewritten to pure ones"
        elif entry is not None:
            kind, family = entry.kind, entry.family
            detail = entry.doc.partition("\n")[0] if entry.kind == "rule" else entry.reason
        elif name in FOREIGN:
            kind, family, detail = "foreign", "foreign", FOREIGN[name]
        rows.append(Row(name, kind, family, detail, name in exported, name in listed))
    return sorted(rows, key=lambda row: (row.family, row.name))


def summary(rows: list[Row]) -> str:
    kinds = Counter(row.kind for row in rows)
    counts = [(kinds["rule"], "rules"), (kinds["constant"], "constants"), (kinds["refused"], "refused")]
    counts += [(kinds["opened"], "opened"), (kinds["foreign"], "foreign"), (kinds["missing"], "missing")]
    return f"{len(rows)} primitives: " + ", ".join(f"{n} {word}" for n, word in counts)


_ESCAPED = str.maketrans({mark: f"\\{mark}" for mark in "|[*<"})  # what Markdown would take for its own


def markdown(rows: list[Row]) -> str:
    """The table as a page: docs/primitives.md."""
    lines = [
        "# Primitives",
        "",
        "Every primitive that jax exports, lists a derivative for, or was ever seen to use, and what becomes of it.",
        f"Made with jax {jax.__version__} by `python -m tapejax.calculus.coverage --markdown > docs/primitives.md`.",
        "",
        f"{summary(rows)}.",
        "",
        "- rule: differentiated by a rule of ours; the table says what it computes.",
        "- constant: no derivative flows through it, and why.",
        "- refused: it has no reverse derivative here, and why; the error says what to do.",
        "- opened: taken apart before rules are asked.",
        "- foreign: jax's own rule is used, and the tape says so.",
        "",
        "Names in *italics* are not exported by jax.",
    ]
    for family in sorted({row.family for row in rows}):
        lines += ["", f"## {family or 'nowhere'}", "", "| primitive | | |", "| --- | --- | --- |"]
        for row in rows:
            if row.family == family:
                name = f"`{row.name}`" if row.public else f"*{row.name}*"
                lines.append(f"| {name} | {row.kind} | {row.detail.translate(_ESCAPED)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] = ()) -> None:
    rows = primitive_table()
    if "--markdown" in arguments:
        print(markdown(rows))
        return
    for family in sorted({row.family for row in rows}):
        mine = [row for row in rows if row.family == family]
        print(f"\n{family or 'nowhere'} ({len(mine)})")
        for row in mine:
            mark = "" if row.public else "  (not exported)"
            print(f"  {row.name:<28} {row.kind:<9} {row.detail}{mark}")
    print(f"\n{summary(rows)}")


if __name__ == "__main__":
    main(sys.argv[1:])
