"""The viewer as HTML that needs nothing from elsewhere: a fragment for notebooks, a page for a file."""

from __future__ import annotations

import json
import uuid
from html import escape
from importlib.resources import files
from typing import Any

from tapejax.ground.caches import cached
from tapejax.view.table import filled

LONG = 1000  # actions; a longer tape's parts are read as they are needed

# What `model` is without a kernel: the film, a position, and whoever follows it.
_SHIM = """
const film = JSON.parse(document.getElementById("{id}-film").textContent);
const state = {{ film, css_text: {css}, position: {position}, linked: {linked} }};
const followers = [];
const model = {{
  get: (name) => state[name],
  set: (name, value) => {{ state[name] = value; }},
  save_changes: () => followers.forEach((follower) => follower()),
  on: (event, follower) => followers.push(follower),
}};
render({{ model, el: document.getElementById("{id}") }});
"""

# On a page of its own the keys work at once; in a notebook they are the notebook's until the viewer is clicked.
_KEYS = """<script type="module">
document.querySelector("#tape > div").shadowRoot.querySelector(".view").focus({ preventScroll: true });
</script>"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>body {{ margin: 0; padding: clamp(8px, 2vw, 28px); background: light-dark(#f4f5f7, #0d1015); }}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


@cached(64)
def asset(name: str) -> str:
    """The text of a file of this package."""
    return files("tapejax.view").joinpath(name).read_text(encoding="utf-8")


def fragment(film: dict[str, Any], position: int = 0, id: str | None = None, *, linked: bool = False) -> str:
    """The viewer with its film, script and style inside. Without scripts, the table remains.

    linked: the page's address tells the step, as in tape.html#step=44.
    """
    id = id or f"tapejax-{uuid.uuid4().hex[:12]}"
    static = _without_scripts(film)
    later = ""
    if film["count"] > LONG:  # the insides of its regions are read when they are opened
        insides = zip((region[3] for region in film["regions"]), film["rows"])
        later = "".join(
            f'<script type="application/json" id="{id}-{number}">{_json(inside)}</script>'
            for number, inside in enumerate(insides)
        )
        regions = [[*region[:3], ""] for region in film["regions"]]
        film = {**film, "later": id, "regions": regions, "rows": [""] * len(regions)}
    data = _json(film)
    style = json.dumps(asset("style.css")).replace("<", "\\u003c")
    shim = _SHIM.format(id=id, css=style, position=position, linked=json.dumps(linked))
    return (
        f'<div id="{id}" class="tapejax-view">{static}</div>{later}'
        f'<script type="application/json" id="{id}-film">{data}</script>'
        f'<script type="module">{asset("stepper.js")}{shim}</script>'
    )


def _json(data: Any) -> str:
    """Data inside of a script element."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _without_scripts(film: dict[str, Any]) -> str:
    """What is there until the script runs, or where it may not: the table, if it is not long."""
    if film["count"] > LONG:
        return f"<p>A tape of {film['all']:,} actions. To see it, allow scripts in this page.</p>"
    roots = ", ".join(escape(film["tensors"][root][0]) for root in film["roots"] if root in film["tensors"])
    said = f"{escape(film['title'])}, backward from {roots}" if roots else escape(film["title"])
    head = f"<p>{said}. Scripts do not run here, so this is the log alone, with the norms of the gradients.</p>"
    return head + "".join(f"<p>{escape(note)}</p>" for note in film["notes"]) + filled(film["table"], film["rows"])


def page(film: dict[str, Any], position: int = 0) -> str:
    """A whole page, one file, that opens at a step."""
    body = fragment(film, position, id="tape", linked=True) + _KEYS
    return _PAGE.format(title=escape(f"{film['title']} · tapejax"), body=body)
