"""The viewer as a live widget: the page shows the cursor, and moving either moves the other."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from tapejax.cursor import Cursor
from tapejax.view.html import asset


class Viewer(anywidget.AnyWidget):
    """The stepper over a cursor. A click in the page reaches `cursor`; `cursor.step()` moves the page."""

    _esm = asset("stepper.js")
    film = traitlets.Dict().tag(sync=True)
    css_text = traitlets.Unicode().tag(sync=True)
    position = traitlets.Int(0).tag(sync=True)

    def __init__(self, cursor: Cursor, film: dict[str, Any]):
        self.cursor = cursor
        super().__init__(film=film, css_text=asset("style.css"), position=min(cursor.position, len(film["steps"])))
        cursor._listeners.append(self._follow)
        self.observe(self._move, names="position")

    def _follow(self, cursor: Cursor) -> None:
        self.position = min(cursor.position, len(self.film["steps"]))

    def _move(self, change: Any) -> None:
        if change["new"] != min(self.cursor.position, len(self.film["steps"])):
            self.cursor.seek(change["new"])
