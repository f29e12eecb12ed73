"""A real Chromium for the tests of the viewer, and a page that says what it saw on the network."""

import shutil
from contextlib import contextmanager
from urllib.parse import urlparse

import pytest

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def chromium():
    """A browser, or a skipped test that says what to install."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("needs a Chromium: apt-get install chromium")
    with playwright.sync_playwright() as run:
        browser = run.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Watched:
    """A page with everything that must not happen: errors, and requests that leave the machine."""

    def __init__(self, context):
        self.page = context.new_page()
        self.errors, self.outside = [], []
        self.page.on(
            "console", lambda message: message.type in ("error", "warning") and self.errors.append(message.text)
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._request)

    def _request(self, request):
        url = urlparse(request.url)
        if url.scheme not in ("file", "data", "blob", "about") and url.hostname not in ("127.0.0.1", "localhost"):
            self.outside.append(request.url)


def shown(page):
    """What the stepper shows: position, highlighted action, and for each sum its terms and value (as text)."""
    return page.evaluate(
        """() => {
          const roots = [...document.querySelectorAll("*")].filter((e) => e.shadowRoot).map((e) => e.shadowRoot);
          const root = roots.find((r) => r.querySelector(".view"));
          const cells = (element) => [...element.querySelectorAll("[data-value]")].map((c) => c.dataset.value);
          const card = root.querySelector(".step");
          return {
            position: Number(card.dataset.position),
            nodes: [...root.querySelectorAll(".overview .node.current, .inside .node.op.current")].map((n) => n.dataset.action ?? (n.dataset.bundle ? `loop ${n.dataset.bundle}` : `region ${n.dataset.region}`)),
            rows: [...root.querySelectorAll(".log tr.current")].map((r) => Number(r.dataset.action)),
            arrives: [...card.querySelectorAll(".arrives .named")].map(cells),
            sums: Object.fromEntries([...card.querySelectorAll("[data-sum]")].map((li) => [li.dataset.sum,
              [...li.querySelectorAll(".term")].map((term) => [term.className, cells(term)])])),
            spoken: root.querySelector(".spoken").textContent,
            theme: root.querySelector(".view").dataset.theme,
          };
        }"""
    )
