"""The viewer in a real Chromium: a saved file, an exported notebook, a live JupyterLab."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from tests.view.browser import Watched, chromium, shown

pytestmark = [
    pytest.mark.slow,
    # playwright's own loop, seen by pytest when it ends
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PROGRAM = """import tapejax as tj
x = tj.tensor([1.0, 2.0, 3.0], requires_grad=True)
w = tj.tensor([0.5, -1.0, 0.25], requires_grad=True)
with tj.Tape() as tape:
    h = tj.numpy.tanh(w * x)
    loss = (h * w + x).sum()
cursor = tape.cursor(loss)
"""


def program():
    names = {}
    exec(PROGRAM, names)
    return names["cursor"]


def as_numbers(cells, like):
    return np.array([float(cell) for cell in cells], like.dtype).reshape(like.shape)


def check_page_shows(page, cursor):
    """The page shows what the cursor has, number by number."""
    seen = shown(page)
    assert seen["position"] == cursor.position
    if cursor.index is None:
        assert seen["rows"] == []
        return seen
    assert seen["rows"] == [cursor.index]
    assert seen["nodes"] == [str(cursor.index)]
    assert repr(cursor.action).split()[2] in seen["spoken"]
    for cells, value in zip(seen["arrives"], cursor.incoming.values(), strict=True):
        np.testing.assert_array_equal(as_numbers(cells, np.asarray(value)), value)
    touched = {str(term.id.number) for term in cursor.outgoing}
    assert set(seen["sums"]) == touched
    sums = {str(id.number): entry for id, entry in cursor.sums.items()}
    for number in touched:
        entry, drawn = sums[number], seen["sums"][number]
        values = [np.asarray(term.value) for term in entry.terms]
        if len(values) > 1:
            assert "total" in drawn[-1][0]
            values.append(np.asarray(entry.value))
        assert len(drawn) == len(values)
        for (_, cells), value in zip(drawn, values, strict=True):
            np.testing.assert_array_equal(as_numbers(cells, value), value)
    return seen


def walk(page, cursor):
    """Step to the end and back by buttons, then by keys; at each place the page shows what Python has."""
    check_page_shows(page, cursor)
    pictures = []
    while not cursor.done:
        page.click('[data-do="step"]')
        cursor.step()
        pictures.append(check_page_shows(page, cursor))
    assert len({str(picture) for picture in pictures}) == len(cursor)
    while cursor.position > 1:
        page.click('[data-do="back"]')
        cursor.back()
        assert check_page_shows(page, cursor) == pictures[cursor.position - 1]
    page.focus(".view")
    for key, move in [
        ("Home", cursor.rewind), ("ArrowRight", cursor.step), ("ArrowRight", cursor.step), ("ArrowLeft", cursor.back),
        ("a", cursor.next_accumulation), ("Home", cursor.rewind), ("End", cursor.finish),
    ]:  # fmt: skip
        page.keyboard.press(key)
        move()
        check_page_shows(page, cursor)


@pytest.fixture
def browser():
    with chromium() as found:
        yield found


def test_saved_file(browser, tmp_path):
    cursor = program()
    path = cursor.save_html(tmp_path / "tape.html")
    context = browser.new_context(color_scheme="dark")
    watched = Watched(context)
    page = watched.page
    page.goto(path.as_uri())
    page.wait_for_selector(".step h3")
    assert shown(page)["theme"] == "dark"
    walk(page, cursor)

    page.focus(".view")
    page.keyboard.press("Home")
    page.select_option(".speed", "450")
    page.focus(".view")
    page.keyboard.press(" ")  # play until the end, where it stops by itself
    page.wait_for_function(
        "() => document.querySelector('#tape > div').shadowRoot.querySelector('.step').dataset.position == '5'"
    )
    page.wait_for_selector('[data-do="play"][aria-pressed="false"]')

    page.click("svg.graph [data-action='2']")  # a box, a row, an input
    assert shown(page)["rows"] == [2]
    page.click(".log tr[data-action='4'] .op")
    assert shown(page)["rows"] == [4]
    page.click("svg.graph .leaf >> nth=0")
    assert page.is_visible(".followed")
    page.click('[data-do="theme"]')
    assert shown(page)["theme"] == "light"

    view_box = page.get_attribute(".overview svg.graph", "viewBox")
    page.click('[data-zoom="in"]')
    zoomed = page.get_attribute(".overview svg.graph", "viewBox")
    assert zoomed != view_box
    box = page.locator(".overview svg.graph").bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 80, box["y"] + 30)
    page.mouse.up()
    assert page.get_attribute(".overview svg.graph", "viewBox") != zoomed
    assert watched.errors == []
    assert watched.outside == []


def test_a_square_shows_both_terms(browser, tmp_path):
    x = tj.tensor([1.0, 2.0], requires_grad=True)
    with tj.Tape() as tape:
        loss = (x * x).sum()
    cursor = tape.cursor(loss)
    watched = Watched(browser.new_context())
    watched.page.goto(cursor.save_html(tmp_path / "square.html").as_uri())
    watched.page.wait_for_selector(".step h3")
    for _ in range(2):
        watched.page.keyboard.press("ArrowRight")  # keys work without a click
    assert watched.page.locator(".step .rule .backward").count() == 2
    assert watched.page.locator(".overview path.edge[data-reader='0']").count() == 2
    assert watched.errors == []


HEIGHT = "() => document.querySelector('#tape > div').shadowRoot.querySelector('.view').offsetHeight"


@pytest.mark.parametrize("turns", [3, 40])
def test_nothing_on_the_page_moves_from_step_to_step(browser, tmp_path, turns):
    x = tj.tensor(np.linspace(-1, 1, 12).astype(np.float32), requires_grad=True)
    with tj.Tape() as tape:
        h = x
        for _ in range(turns):
            h = tj.numpy.tanh(h * x) + x
        loss = tj.nn.logsumexp(h)
    for width in (1200, 600):
        watched = Watched(browser.new_context(viewport={"width": width, "height": 900}))
        watched.page.goto(tape.cursor(loss).save_html(tmp_path / "steps.html").as_uri())
        watched.page.wait_for_selector(".step h3")
        heights = {watched.page.evaluate(HEIGHT)}
        for _ in range(len(tape)):
            watched.page.keyboard.press("ArrowRight")
            heights.add(watched.page.evaluate(HEIGHT))
        assert len(heights) == 1
        assert watched.errors == []


def test_what_is_left_out_is_said_on_the_page(browser, tmp_path):
    from tapejax.view.film import film
    from tapejax.view.html import page as page_of

    x = tj.tensor(1.0, requires_grad=True)
    with tj.Tape() as tape:
        y = x
        for _ in range(30):
            y = y * 0.5 + x
    path = tmp_path / "cut.html"
    path.write_text(page_of(film(tape.cursor(y), limit=20)), encoding="utf-8")
    watched = Watched(browser.new_context())
    page = watched.page
    page.goto(path.as_uri())
    page.wait_for_selector(".step h3")
    page.keyboard.press("End")
    assert "the last 20 of 60 actions" in page.inner_text("header")
    assert "of 60" in page.inner_text(".count")
    page.click(f".log .tensor[data-tensor='{x.id.number}'] >> nth=-1")
    assert "40 actions not shown" in page.inner_text(".followed")
    assert "+ …" in page.text_content(f".overview .leaf[data-tensor='{x.id.number}'] .norm >> nth=-1")
    assert "not complete" in page.text_content(".spoken")
    assert watched.errors == []


def test_long_tape_by_regions(browser, tmp_path):
    x = tj.tensor(np.linspace(-1, 1, 80).astype(np.float32).reshape(8, 10), requires_grad=True)

    def layer(h):
        return tj.numpy.tanh(h * 1.1) + h * 0.5

    with tj.Tape() as tape:
        h = x
        for _ in range(100):
            h = layer(h)
        loss = h.sum()
    cursor = tape.cursor(loss)
    watched = Watched(browser.new_context())
    page = watched.page
    page.goto(cursor.save_html(tmp_path / "long.html").as_uri())
    page.wait_for_selector(".step h3")
    assert page.locator(".overview .node.region").count() == 2  # the loop, and what comes after it
    assert page.locator(".overview .node.bundle").count() == 1
    page.click('[data-do="step"]')
    page.click('[data-do="step"]')
    cursor.step(2)
    seen = shown(page)
    assert seen["rows"] == [cursor.index]
    region, action = seen["nodes"]
    assert action == str(cursor.index)
    assert region == "loop 0"
    norm = float(page.get_attribute(".step canvas >> nth=0", "data-norm"))
    (value,) = cursor.incoming.values()
    assert norm == pytest.approx(float(np.linalg.norm(np.asarray(value))), rel=1e-6)
    page.click(".inside .collapse")
    assert not page.is_visible(".inside")
    page.click(".overview .node.bundle")
    assert page.is_visible(".inside")
    page.locator(".slider").fill("300")
    cursor.seek(300)
    assert shown(page)["rows"] == [cursor.index]
    assert watched.errors == []
    assert watched.outside == []


def test_a_loop_opens_to_its_steps(browser, tmp_path):
    step = lambda carry, x: (jnp.tanh(carry * x) + carry, None)
    scanned = tj.lift(lambda init, xs: jax.lax.scan(step, init, xs)[0])
    init, xs = tj.tensor(0.5, requires_grad=True), tj.tensor(np.ones(20, np.float32), requires_grad=True)
    with tj.Tape(detail="primitives") as tape:
        loss = scanned(init, xs) * 2.0
    cursor = tape.cursor(loss)
    watched = opened(browser, cursor.save_html(tmp_path / "loop.html"))
    page = watched.page
    loop = page.locator(".overview .node.bundle")
    assert loop.count() == 1
    assert "scan: 20 steps" in loop.text_content()
    headings = page.locator(".log tbody.turn tr")
    assert headings.count() == 20
    assert not headings.first.is_visible()  # the loop is one line of the log
    loop.click()
    assert page.inner_text(".inside figcaption b") == "scan[19]"
    page.click('.inside [data-turn="-1"]')
    assert page.inner_text(".inside figcaption b") == "scan[18]"
    assert page.inner_text(".inside .turns output") == "part 19 of 20"
    page.locator(".slider").fill(str(len(tape)))
    cursor.finish()
    assert headings.first.is_visible()
    assert page.inner_text(".inside figcaption b") == "scan[0]"
    assert page.is_disabled('.inside [data-turn="-1"]')
    assert shown(page)["rows"] == [cursor.index]
    page.click(".log tr[data-bundle] button")
    assert not headings.first.is_visible()
    assert watched.errors == []


def test_the_grouped_view_has_parameters_and_the_norms_of_their_gradients(browser, tmp_path):
    params = [{"w": tj.tensor(np.full(3, 0.1 * k + 0.5, np.float32), requires_grad=True)} for k in range(12)]

    def layer(p, h):
        return tj.numpy.tanh(h * p["w"]) * p["w"] + h

    x = tj.tensor(np.array([1.0, -2.0, 0.5], np.float32))
    with tj.Tape() as tape:
        h = x
        for p in params:
            h = layer(p, h)
        loss = h.sum()
    cursor = tape.cursor(loss)
    watched = opened(browser, cursor.save_html(tmp_path / "net.html"))
    page = watched.page
    boxes = page.locator(".overview .node.inputs")
    assert [box.locator(".name").text_content() for box in boxes.all()] == [f"params[{k}].w" for k in range(12)]
    assert [box.locator(".norm").text_content() for box in boxes.all()] == [""] * 12
    page.keyboard.press("End")
    grads = cursor.finish()
    for box, p in zip(boxes.all(), params, strict=True):
        said = float(box.locator(".norm").text_content().removeprefix("‖∇‖ "))
        assert said == pytest.approx(float(np.linalg.norm(grads[p["w"]])), rel=1e-3)
    boxes.first.click()
    assert page.is_visible(".followed")
    assert watched.errors == []


def test_a_long_sum_is_folded_and_unfolds(browser, tmp_path):
    x = tj.tensor(2.0, requires_grad=True)
    with tj.Tape() as tape:
        loss = x * 1.0
        for k in range(11):
            loss = loss + x * float(k)
    watched = opened(browser, tape.cursor(loss).save_html(tmp_path / "sum.html"))
    page = watched.page
    page.keyboard.press("End")
    row = f".step [data-sum='{x.id.number}']"
    assert page.get_attribute(row, "data-terms") == "12"
    assert page.locator(f"{row} .term").count() == 6  # what came before as one, four terms, the sum
    assert page.inner_text(f"{row} .unfold") == "8 earlier terms"
    page.click(f"{row} .unfold")
    listed = page.locator(f"{row} .earlier li b").all_text_contents()
    assert [float(text.removeprefix("‖·‖ ")) for text in listed] == [10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0]
    page.keyboard.press("Enter")  # the button has the focus still
    assert page.locator(f"{row} .earlier").count() == 0
    assert watched.errors == []


def opened(browser, path, address="", **options):
    watched = Watched(browser.new_context(**options))
    watched.page.goto(path.as_uri() + address)
    watched.page.wait_for_selector(".step h3")
    return watched


def test_where_scripts_do_not_run_the_log_is_there(browser, tmp_path):
    """As in a notebook that is not trusted, or an editor that shows HTML only."""
    from tapejax.view.film import film
    from tapejax.view.html import fragment

    cursor = program()
    (tmp_path / "cell.html").write_text(fragment(film(cursor)), encoding="utf-8")
    watched = Watched(browser.new_context(java_script_enabled=False))
    page = watched.page
    page.goto((tmp_path / "cell.html").as_uri())
    assert "backward from loss" in page.inner_text("p")
    rows = page.locator("table tr[data-action]")
    assert [row.locator(".op").inner_text() for row in rows.all()] == [action.op.lower() for action in cursor.actions]
    grads = cursor.finish()
    for row, action in zip(rows.all(), cursor.actions, strict=True):
        norm = float(np.linalg.norm(np.asarray(grads[action.outputs[0]])))
        if row.locator(".norm").inner_text():
            assert float(row.locator(".norm").inner_text()) == pytest.approx(norm, rel=1e-3)
    assert (
        sum(bool(row.locator(".norm").inner_text()) for row in rows.all()) == len(cursor) - 1
    )  # all but the root's seed
    assert watched.errors == []
    assert watched.outside == []


def test_a_link_to_a_step(browser, tmp_path):
    cursor = program()
    path = cursor.save_html(tmp_path / "tape.html")
    watched = opened(browser, path, "#step=3")
    assert shown(watched.page)["position"] == 3
    watched.page.keyboard.press("ArrowRight")
    assert watched.page.url.endswith("#step=4")  # the address follows, to be copied
    watched.page.evaluate("location.hash = '#step=1'")
    watched.page.wait_for_selector(".step[data-position='1']")
    assert opened(browser, path, "#step=999").errors == []
    assert watched.errors == []


def test_search_finds_by_op_name_line_and_not_finite(browser, tmp_path):
    x = tj.tensor([4.0, 0.0], requires_grad=True)
    with tj.Tape() as tape:
        root = tj.numpy.sqrt(x)
        scaled = root * 3.0
        loss = scaled.sum()
    watched = opened(browser, tape.cursor(loss).save_html(tmp_path / "tape.html"))
    page = watched.page
    found = lambda: [int(b.get_attribute("data-action")) for b in page.locator(".found button").all()]
    for text, actions in [
        ("sqrt", [0]), ("op:mul", [1]), ("name:root", [0, 1]), ("nan", [0]), ("zzz", []), ("op:sum name:loss", [2]),
    ]:  # fmt: skip
        page.keyboard.press("/")
        page.fill(".search", text)
        assert found() == actions, text
        assert f"{len(actions)} of 3 actions" in page.inner_text(".found p")
    page.fill(".search", "sqrt")
    page.press(".search", "Enter")
    assert shown(page)["rows"] == [0]
    page.press(".search", "Escape")
    assert page.is_visible(".log")
    assert page.locator(".log tr.bad").evaluate_all("rows => rows.map((r) => r.dataset.action)") == ["0"]
    assert page.locator(".overview .node.bad").evaluate_all("nodes => nodes.map((n) => n.dataset.action)") == ["0"]
    assert page.get_attribute(".ticks path.bad", "d") == "M3 0v1"
    assert watched.errors == []


def test_the_forward_is_played_before_the_backward(browser, tmp_path):
    watched = opened(browser, program().save_html(tmp_path / "tape.html"))
    page = watched.page
    page.keyboard.press("f")
    seen = []
    for _ in range(5):
        page.keyboard.press("ArrowRight")
        seen += shown(page)["rows"]
        assert "forward" in page.inner_text(".step .badge")
    assert seen == [0, 1, 2, 3, 4]
    assert "tanh" not in page.inner_text(".step h3")
    page.select_option(".speed", "450")
    page.focus(".view")
    page.keyboard.press("Home")
    page.keyboard.press(" ")  # forward to its end, then back to the inputs
    page.wait_for_selector(".step[data-position='5'] .badge:not(:text('forward'))", timeout=20_000)
    assert shown(page)["rows"] == [0]
    assert watched.errors == []


def test_memory_falls_as_backward_goes(browser, tmp_path):
    x = tj.tensor(np.ones(1000, np.float32), requires_grad=True)
    with tj.fusion(False), tj.Tape() as tape:
        loss = (tj.numpy.tanh(x) * tj.numpy.exp(x)).sum()
    watched = opened(browser, tape.cursor(loss).save_html(tmp_path / "tape.html"))
    page = watched.page
    said = [page.inner_text(".memory span")]
    for _ in range(4):
        page.keyboard.press("ArrowRight")
        said.append(page.inner_text(".memory span"))
    held = [line.removeprefix("kept for the backward: ").partition(" of ")[0] for line in said]
    assert held == [
        "7.81 KiB",
        "7.81 KiB",
        "7.81 KiB",
        "3.91 KiB",
        "0 B",
    ]  # tanh and exp keep what they made, the product keeps the same


def test_the_drawing_is_saved_as_svg_and_png(browser, tmp_path):
    watched = opened(browser, program().save_html(tmp_path / "tape.html"), accept_downloads=True)
    page = watched.page
    for kind, begin in (("svg", b"<svg"), ("png", b"\x89PNG")):
        with page.expect_download() as download:
            page.click(f".overview [data-export='{kind}']")
        assert download.value.suggested_filename == f"tape.{kind}"
        content = download.value.path().read_bytes()
        assert content.startswith(begin)
        assert len(content) > 2000
        if kind == "svg":
            assert content.count(b'class="node') == 7
            assert b"tanh" in content
    assert watched.errors == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser, tmp_path, theme):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="needs pip install 'tapejax[browser]'"
    ).Axe
    watched = opened(browser, program().save_html(tmp_path / "tape.html"), color_scheme=theme, reduced_motion="reduce")
    page = watched.page
    for key in ("", "ArrowRight", "a", "f"):
        if key:
            page.keyboard.press(key)
        found = axe().run(page).response["violations"]
        serious = [
            (v["id"], v["impact"], v["nodes"][0]["html"][:120], v["nodes"][0].get("failureSummary", ""))
            for v in found
            if v["impact"] in ("serious", "critical")
        ]
        assert serious == []


def test_ten_thousand_actions(browser, tmp_path):
    """It opens and steps; how fast is printed, and said in docs/viewer.md."""
    x = tj.tensor(np.ones(4, np.float32), requires_grad=True)
    with tj.fusion(False), tj.Tape() as tape:
        h = x
        for _ in range(3333):
            h = tj.numpy.tanh(h * 0.9) + x
        loss = h.sum()
    assert len(tape) == 10_000
    path = tape.cursor(loss).save_html(tmp_path / "long.html")
    context = browser.new_context(viewport={"width": 1200, "height": 1000})
    watched = Watched(context)
    page = watched.page
    chrome = context.new_cdp_session(page)
    chrome.send("Performance.enable", {"timeDomain": "threadTicks"})  # the processor's time: other work is not counted

    def seconds():
        metrics = chrome.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    start = seconds()
    page.goto(path.as_uri())
    page.wait_for_selector(".step h3")
    opening = seconds() - start
    wall = page.evaluate("performance.now()") / 1000
    page.evaluate(
        """async () => {
          const root = document.querySelector('#tape > div').shadowRoot;
          for (let i = 0; i < 40; i++) {
            root.querySelector('[data-do="step"]').click();
            root.querySelector('.step').offsetHeight;
            await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
          }
        }"""
    )
    step = (seconds() - start - opening) / 40
    print(
        f"\n10,000 actions: opens in {opening:.2f} s of the processor ({wall:.2f} s by the clock), a step in {step * 1e3:.0f} ms"
    )
    assert shown(page)["position"] == 40
    page.fill(".search", "op:tanh")
    assert "3,333 of 10,000" in page.inner_text(".found p")
    page.press(".search", "Escape")
    page.keyboard.press("Tab")
    page.locator(".slider").fill("10000")
    assert shown(page)["rows"] == [0]
    assert watched.errors == []


def write_notebook(path, *cells):
    nbformat = pytest.importorskip("nbformat", reason="needs jupyter: pip install 'tapejax[notebooks]'")
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)


def test_exported_notebook(browser, tmp_path):
    pytest.importorskip("nbconvert", reason="needs jupyter: pip install 'tapejax[notebooks]'")
    write_notebook(tmp_path / "note.ipynb", f"{PROGRAM}cursor", "tape")
    command = [
        sys.executable, "-m", "nbconvert", "--to", "html", "--execute", str(tmp_path / "note.ipynb"),
        "--NbConvertBase.display_data_priority=['text/html', 'image/png', 'text/plain']",
        "--HTMLExporter.require_js_url=", "--HTMLExporter.mathjax_url=",  # what nbconvert itself would fetch
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=180, env={**os.environ, "TAPEJAX_WIDGET": "0"})
    watched = Watched(browser.new_context())
    page = watched.page
    page.goto((tmp_path / "note.html").as_uri())
    page.wait_for_selector(".step h3")
    assert page.locator(".view").count() == 2  # the cursor, and the tape by itself
    cursor = program()
    first = page.locator(".view").first
    first.locator('[data-do="step"]').click()
    assert shown(page)["position"] == 1
    assert shown(page)["theme"] == "light"
    second = page.locator(".view").nth(1)
    assert second.locator(".step").get_attribute("data-position") == "0"  # each by itself
    numbers = lambda: [float(v) for v in page.locator(".view").first.locator(".step .total [data-value]").evaluate_all("cells => cells.map((c) => c.dataset.value)")]  # fmt: skip
    first.locator('[data-do="sum"]').click()
    assert not cursor.at_accumulation
    cursor.next_accumulation()
    sums = [cursor.sums[id].value for id in dict.fromkeys(term.id for term in cursor.outgoing)]
    np.testing.assert_array_equal(np.array(numbers(), np.float32), np.concatenate([np.asarray(v) for v in sums]))
    assert [error for error in watched.errors if "mathjax" not in error.lower()] == []
    assert watched.outside == []


@contextmanager
def jupyter_lab(folder):
    pytest.importorskip("jupyterlab", reason="needs JupyterLab: pip install 'tapejax[notebooks]'")
    pytest.importorskip("anywidget", reason="needs anywidget: pip install 'tapejax[notebooks]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}", "--ip=127.0.0.1",
        "--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True", f"--ServerApp.root_dir={folder}",
        "--LabApp.news_url=", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    with open(folder / "server.log", "w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api", timeout=2).close()
                break
            except OSError:
                assert server.poll() is None, (folder / "server.log").read_text()
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def test_live_in_jupyter_lab(browser, tmp_path):
    write_notebook(
        tmp_path / "live.ipynb",
        f"{PROGRAM}cursor",
        'print("kernel at", cursor.position)',
        "cursor.jump(0); print('moved')",
    )
    with jupyter_lab(tmp_path) as address:
        context = browser.new_context(viewport={"width": 1400, "height": 1200})
        watched = Watched(context)
        page = watched.page
        page.goto(f"{address}/lab/tree/live.ipynb")
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=120_000)
        page.wait_for_selector("text=/Python 3.* [|] Idle/", timeout=120_000)
        cell = lambda number: page.locator(".jp-Notebook .jp-Cell").nth(number)

        def run(number):
            cell(number).locator(".jp-InputPrompt").click()
            page.locator('[data-command="notebook:run-cell-and-select-next"]').first.click()

        run(0)
        page.wait_for_selector(".view .step h3", timeout=120_000)
        cursor = program()
        assert shown(page)["position"] == 0
        page.click('[data-do="step"]')
        page.click('[data-do="step"]')
        cursor.step(2)
        check_page_shows_up_to_names(page, cursor)
        run(1)
        page.wait_for_selector("text=kernel at 2", timeout=30_000)  # the clicks reached the kernel
        run(2)
        page.wait_for_selector("text=moved", timeout=30_000)  # and the kernel's move reaches the page
        page.wait_for_selector(f'.step[data-position="{len(cursor)}"]', timeout=30_000)
        assert shown(page)["rows"] == [0]
        cells = page.locator(".jp-Notebook .jp-Cell").count()
        page.focus(".view")
        for key in ("Home", "a", "ArrowLeft", "ArrowLeft"):  # in JupyterLab `a` is a command, and so are arrows
            page.keyboard.press(key)
        page.wait_for_selector(f'.step[data-position="{len(cursor) - 2}"]', timeout=30_000)
        assert page.locator(".jp-Notebook .jp-Cell").count() == cells
        page.evaluate("document.body.dataset.jpThemeLight = 'false'")
        page.wait_for_selector('.view[data-theme="dark"]')
        assert [error for error in watched.errors if "tapejax" in error or "stepper" in error] == []
        assert watched.outside == []


def check_page_shows_up_to_names(page, cursor):
    """As `check_page_shows`, where tensors are numbered apart in the kernel."""
    seen = shown(page)
    assert seen["position"] == cursor.position
    assert seen["rows"] == [cursor.index]
    for cells, value in zip(seen["arrives"], cursor.incoming.values(), strict=True):
        np.testing.assert_array_equal(as_numbers(cells, np.asarray(value)), value)
    drawn = list(seen["sums"].values())
    assert len(drawn) == len({term.id.number for term in cursor.outgoing})
