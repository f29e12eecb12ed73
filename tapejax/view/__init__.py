"""The viewer: a tape as a table, a graph and a stepper through its backward pass. See docs/viewer.md."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from tapejax.engine.cursor import Cursor
from tapejax.errors import TapejaxError
from tapejax.tape.tape import Tape
from tapejax.tensor.names import names_around, notebook
from tapejax.view.film import IN_A_CELL, film, last_result, size_of_results
from tapejax.view.graph import graph_of, to_dot
from tapejax.view.html import fragment, page

HEAVY = 256 * 2**20  # bytes: a tape that is only looked at does not run a backward that keeps more gradients than this


def html(shown: Tape | Cursor) -> str:
    """The viewer as a fragment of HTML, for notebooks."""
    cursor = as_cursor(shown)
    pages = film(cursor, limit=IN_A_CELL)
    return fragment(pages, min(cursor.position, len(pages["steps"])))


def bundle(shown: Tape | Cursor) -> dict[str, Any]:
    """What a notebook displays: a widget if anywidget is there, HTML, text. In a terminal, text alone."""
    if notebook() is None:
        return {"text/plain": str(shown)}
    cursor = as_cursor(shown)
    try:
        pages = film(cursor, limit=IN_A_CELL)
    except TapejaxError as error:  # what cannot be shown in full is shown as text
        return {"text/plain": f"{shown}\n({error.what})"}
    found = {"text/plain": str(shown), "text/html": fragment(pages, min(cursor.position, len(pages["steps"])))}
    if os.environ.get("TAPEJAX_WIDGET", "1") != "0" and importlib.util.find_spec("anywidget") is not None:
        from tapejax.view.widget import viewer

        live = viewer(cursor, pages)._repr_mimebundle_()
        live = live[0] if isinstance(live, tuple) else live
        found |= {kind: data for kind, data in (live or {}).items() if kind != "text/plain"}
    return found


def save(shown: Tape | Cursor, path: Any) -> Path:
    """Write the viewer as one HTML file that needs no network; where it is."""
    path = Path(path)
    cursor = as_cursor(shown)
    pages = film(cursor)
    opens_at = 0 if cursor.marked is None else min(cursor.position, len(pages["steps"]))
    path.write_text(page(pages, opens_at), encoding="utf-8")
    return path


def dot(tape: Tape) -> str:
    """The graph in Graphviz's language."""
    return to_dot(graph_of(tape.actions, names_around()))


def as_cursor(shown: Tape | Cursor) -> Cursor:
    """A tape by itself goes back from its last result."""
    if isinstance(shown, Cursor):
        return shown
    actions = shown.actions
    light = size_of_results(actions) <= HEAVY
    return Cursor(actions, last_result(actions) if light else [], shown.label, names_around(), hooks=False)
