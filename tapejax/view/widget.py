"""The viewer as a live widget: the page shows the cursor, and moving either moves the other.

anywidget is optional, so it is imported only when a notebook asks for the widget.
"""

from __future__ import annotations

from typing import Any

from tapejax.engine.cursor import Cursor
from tapejax.ground.caches import cached
from tapejax.view.html import asset


def viewer(cursor: Cursor, film: dict[str, Any]) -> Any:
    """A widget over a cursor. A click in the page reaches the cursor; `cursor.step()` moves the page."""
    return _widget_class()(cursor, film)


@cached(1)
def _widget_class() -> type[Any]:
    import anywidget  # pyright: ignore[reportMissingImports]
    import traitlets  # pyright: ignore[reportMissingImports]

    class Viewer(anywidget.AnyWidget):
        _esm = asset("stepper.js")
        film = traitlets.Dict().tag(sync=True)
        css_text = traitlets.Unicode().tag(sync=True)
        position = traitlets.Int(0).tag(sync=True)

        def __init__(self, cursor: Cursor, film: dict[str, Any]):
            self.cursor = cursor
            self.last = len(film["steps"])  # a long tape's film ends before its cursor does
            super().__init__(film=film, css_text=asset("style.css"), position=self.place())
            cursor.listeners.append(lambda _: self.set_trait("position", self.place()))
            self.observe(self.moved, names="position")

        def place(self) -> int:
            return min(self.cursor.position, self.last)

        def moved(self, change: Any) -> None:
            if change["new"] != self.place():
                self.cursor.seek(change["new"])

    return Viewer
