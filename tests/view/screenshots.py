"""The pictures in docs/images, made anew: python -m tests.view.screenshots"""

import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from PIL import Image

import tapejax as tj
from tests.view.browser import chromium

IMAGES = Path(__file__).parents[2] / "docs" / "images"


def sums():
    x = tj.tensor([1.0, 2.0, 3.0], requires_grad=True)
    w = tj.tensor([0.5, -1.0, 0.25], requires_grad=True)
    with tj.Tape(label="two paths") as tape:
        h = tj.numpy.tanh(w * x)
        y = h * w + x
        loss = y.sum()
    return tape.cursor(loss)


def network():
    rng = np.random.default_rng(0)
    make = lambda *shape: tj.tensor((rng.normal(size=shape) * 0.5).astype(np.float32), requires_grad=True)
    x, labels = tj.tensor(rng.normal(size=(16, 8)).astype(np.float32)), jnp.arange(16) % 4
    layers = [{"w": make(8 if i == 0 else 12, 12), "b": make(12)} for i in range(6)]
    head = make(12, 4)

    def layer(h, p):
        z = h @ p["w"] + p["b"]
        a = tj.numpy.tanh(z)
        return a * tj.nn.sigmoid(z)

    with tj.Tape(label="a small network") as tape:
        h = x
        for p in layers:
            h = layer(h, p)
        scores = tj.nn.log_softmax(h @ head)
        fit = -(scores * tj.nn.one_hot(labels, 4)).sum(axis=-1).mean()
        size = sum((p["w"] * p["w"]).sum() for p in layers)
        loss = fit + 0.01 * size
    return tape.cursor(loss)


PICTURES = [
    ("viewer-light.png", sums, 5, "light", 1120),
    ("viewer-dark.png", sums, 5, "dark", 1120),
    ("viewer-network-light.png", network, 44, "light", 1120),
    ("viewer-network-dark.png", network, 44, "dark", 1120),
]


def main():
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        for name, program, steps, theme, width in PICTURES:
            path = program().save_html(Path(folder) / "tape.html")
            page = browser.new_context(
                viewport={"width": width, "height": 600}, color_scheme=theme, reduced_motion="reduce"
            ).new_page()
            page.goto(path.as_uri())
            page.focus(".view")
            for _ in range(steps):
                page.keyboard.press("ArrowRight")
            page.evaluate("() => document.activeElement.shadowRoot?.activeElement?.blur()")
            page.wait_for_timeout(400)
            page.locator("#tape").screenshot(path=IMAGES / name)
            picture = Image.open(IMAGES / name).convert("RGB").quantize(128)  # a quarter of the size, and none can tell
            picture.save(IMAGES / name, optimize=True)
            print(name, (IMAGES / name).stat().st_size)


if __name__ == "__main__":
    main()
