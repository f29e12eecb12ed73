"""Film: everything the stepper shows, as data. Taken once from a cursor; what shows it only turns pages."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tapejax.engine.cursor import Cursor, Term
from tapejax.errors import BackwardError, ConcreteValueError
from tapejax.plan.plan import OpAction, x64_for
from tapejax.program.program import bytes_of_all
from tapejax.tape.action import TapeAction, TensorId
from tapejax.tape.packed import force
from tapejax.tensor.tensor import Tracer
from tapejax.view import svg, table
from tapejax.view.formulas import formula_of
from tapejax.view.graph import Graph, graph_of, source_line
from tapejax.view.values import CELLS, brief, describe

LIMIT = 10_000  # actions in one file: it opens in less than two seconds
IN_A_CELL = 2_500  # actions in the output of a notebook's cell, which is saved with it


def film(cursor: Cursor, *, limit: int = LIMIT) -> dict[str, Any]:
    """The whole backward pass of a cursor, which stays where it is.

    The last `limit` actions, those that a backward pass meets first. An action that fails ends the
    film, with its error. Values of many elements are shown as heat maps of a bounded size.
    """
    first = max(len(cursor.actions) - limit, 0)
    count = len(cursor.actions) - first
    pages = _Pages(CELLS if count <= 150 else CELLS // 2)
    seeds, steps, error = _steps(cursor, count, pages)
    graph = graph_of(cursor.actions[first:], cursor.names, first, pages.observed, pages.gradients)
    unfinished = _unfinished(cursor, len(steps), graph) if steps else set()
    notes = []
    if first:
        more = " `tape.save_html(path)` shows more." if limit < LIMIT else ""
        notes.append(
            f"Shown are the last {limit:,} of {len(cursor.actions):,} actions. The {first:,} before them are not shown, and what "
            f"they add is missing: a gradient marked “+ …” is a part of its sum.{more}"
        )
    if error:
        notes.append(error)
    if count and not cursor.roots:
        notes.append("The backward pass was not run for this view: tape.cursor(root) steps through it.")
    outline, rows = table.parts(graph, _norms(steps, pages, unfinished))
    return {
        "title": cursor.label,
        "roots": [id.number for id in cursor.roots],
        "marked": cursor.marked,
        "count": count,
        "all": len(cursor.actions),
        "unfinished": sorted(unfinished),
        "first": first,
        "notes": notes,
        "graph": svg.draw(graph),
        "regions": [[r.label, r.first, r.last, svg.draw_region(graph, r)] for r in graph.regions],
        "bundles": [[bundle.label, bundle.first, bundle.last] for bundle in graph.bundles],
        "table": outline,
        "rows": rows,
        "tensors": {
            number: [info.label, info.kind, info.leaf, info.wants_gradient] for number, info in graph.tensors.items()
        },
        **_action_pages(cursor, graph, pages),
        "seeds": seeds,
        "steps": steps,
        "held": _held(cursor.actions, len(steps)) if cursor.roots else [],
        "values": pages.values,
    }


def _unfinished(cursor: Cursor, taken: int, graph: Graph) -> set[int]:
    """Tensors, by number, to whose gradients actions may add that the film does not reach."""
    left = cursor.actions[: len(cursor.actions) - taken]
    read: set[int] = set()
    for action in left:
        inputs = getattr(action, "inputs", None)
        if inputs is None:  # it does not tell: it may add to anything
            return {number for number, tensor in graph.tensors.items() if tensor.wants_gradient}
        read.update(id.number for id in inputs)
    return {number for number in read if number in graph.tensors and graph.tensors[number].wants_gradient}


def _norms(steps: list[Any], pages: _Pages, unfinished: set[int]) -> dict[int, str]:
    """Of the gradients at the end, by tensor: what the table says where no script runs."""
    more = lambda number: " + …" if number in unfinished else ""
    return {
        number: brief(pages.values[after]["norm"]) + more(number)
        for step in steps
        for number, _, after, _ in step["out"]
    }


class _Pages:
    """Values and rules, each described once however often it is shown."""

    def __init__(self, cells: int):
        self.cells = cells
        self.values: list[Any] = []
        self.rules: list[Any] = []
        self.observed: dict[int, tuple[Any, Any]] = {}  # what actions read and added that do not tell
        self.gradients: dict[int, Any] = {}
        self._seen: dict[int, tuple[int, Any]] = {}
        self._known: dict[Any, int] = {}

    def value(self, value: Any) -> int:
        if isinstance(getattr(value, "value", value), Tracer):
            raise ConcreteValueError(
                "a view needs numbers, but this tape is being traced by jax.jit, vmap or grad",
                fix="record it outside of the traced function",
            )
        if id(value) not in self._seen:
            self._seen[id(value)] = (len(self.values), value)  # the value too: its id must not be given to another
            self.values.append(describe(value, self.cells))
        return self._seen[id(value)][0]

    def rule(self, action: TapeAction) -> int:
        key = action.plan if isinstance(action, OpAction) else getattr(action, "custom", type(action))
        if key not in self._known:
            try:
                page = formula_of(action).html()
            except Exception as cause:  # a rule that cannot be told is no reason to show nothing
                page = {"forward": "", "backward": [], "parts": [], "notes": [f"No formula: {cause}"], "source": ""}
            self._known[key] = len(self.rules)
            self.rules.append(page)
        return self._known[key]


def _steps(cursor: Cursor, count: int, pages: _Pages) -> tuple[list[Any], list[Any], str]:
    """Seeds, steps, and what went wrong."""
    position = cursor.position
    listeners, cursor.listeners = cursor.listeners, []  # nobody need follow this
    show = lambda term: [term.id.number, pages.value(term.value), pages.value(term.after), term.accumulates]
    steps: list[Any] = []
    error = ""
    try:
        cursor.rewind()
        seeds = [show(term) for terms in cursor.sums.values() for term in terms.terms]
        while cursor.roots and len(steps) < count:
            step = cursor.step()
            assert step is not None
            if getattr(step.action, "outputs", None) is None:
                added = dict.fromkeys(term.id for term in step.outgoing)
                pages.observed[step.index] = (list(added), list(step.incoming))
            pages.gradients.update((term.id.number, term.value) for term in step.outgoing)
            hooked = {term.id for term in step.replaced}
            steps.append(
                {
                    "action": step.index,
                    "in": [[id.number, pages.value(value)] for id, value in step.incoming.items()],
                    "out": [show(term) for term in step.outgoing if term.id not in hooked]
                    + [[id.number, at, at, False] for id, at in _last(step.replaced, pages)],
                    "removed": [id.number for id in (*step.removed, *hooked)],
                    "skipped": step.skipped,
                }
            )
    except BackwardError as failed:
        error = failed.what
    finally:
        cursor.seek(min(position, cursor.position) if error else position)
        cursor.listeners = listeners
    return seeds, steps, error


def _last(replaced: tuple[Term, ...], pages: _Pages) -> list[tuple[TensorId, int]]:
    """What hooks put in the place of a gradient, and where its page is."""
    return [(id, pages.value(value)) for id, value in {term.id: term.after for term in replaced}.items()]


def _action_pages(cursor: Cursor, graph: Graph, pages: _Pages) -> dict[str, Any]:
    found = []
    for info in graph.actions:
        action = cursor.actions[info.index]
        found.append(
            {
                "text": info.text,
                "op": info.op,
                "inputs": info.inputs,
                "outputs": info.outputs,
                "place": info.place,
                "source": source_line(action, info.line),
                "loop": info.loop,
                "rule": pages.rule(action),
                "kept": [[number, pages.value(value)] for number, value in (kept_of(action) if cursor.roots else ())],
            }
        )
    return {"actions": found, "rules": pages.rules}


def _held(actions: tuple[TapeAction, ...], taken: int) -> list[int]:
    """Bytes that are kept for the backward at each place of it: before the first step, after each.

    A value that several actions keep is let go with the first of them, which goes back last.
    """
    seen: set[int] = set()
    totals = [0]
    for action in actions:
        fresh = 0
        for value in getattr(action, "kept", None) or () if isinstance(action, OpAction) else ():
            if isinstance(value, jax.Array) and not isinstance(value, Tracer) and id(value) not in seen:
                seen.add(id(value))
                fresh += value.nbytes
        totals.append(totals[-1] + fresh)
    return totals[::-1][: taken + 1]


def kept_of(action: TapeAction) -> list[tuple[int, Any]]:
    """What the action's backward reads besides gradients, by tensor number."""
    if not isinstance(action, OpAction) or action.kept is None or action.plan.reversed is None:
        return []
    plan = action.plan
    values = [force(value) for value in action.kept[: plan.n_read]]
    if any(value is None or isinstance(value, Tracer) for value in values):
        return []  # a value that is let go, or not known
    saves_in, saves_out = plan.reversed.saves_in, plan.reversed.saves_out
    numbers = [action.inputs[i].number for i in saves_in] + [action.numbers[i] for i in saves_out]
    named = dict(zip(numbers, values))  # the extras, which have no name, are left out
    return [(number, value) for number, value in named.items() if not jnp.issubdtype(value.dtype, jax.dtypes.extended)]


def size_of_results(actions: tuple[TapeAction, ...]) -> int:
    """Bytes of what the ops made, which is what their gradients will take."""
    return bytes_of_all(
        [kind.aval for action in actions if isinstance(action, OpAction) for kind in action.plan.out_kinds]
    )


def last_result(actions: tuple[TapeAction, ...]) -> list[tuple[TensorId, Any]]:
    """The last result that has a derivative, with ones: where a backward pass would most likely start."""
    for action in reversed(actions):
        if isinstance(action, OpAction):
            for number, kind in zip(action.numbers, action.plan.out_kinds):
                if kind.requires_grad:
                    with x64_for(kind.aval.dtype):
                        return [(TensorId(number), jnp.ones(kind.aval.shape, kind.aval.dtype))]
        elif hasattr(action, "custom") and action.outputs:
            output = action.kept[0][0]
            return [(action.outputs[0], jnp.ones_like(output))]
    return []
