"""What the viewer is made from: film, table, graph, names, HTML. The browser's part is in test_browser.py."""

import base64
import json
import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from tapejax import view
from tapejax.errors import ConcreteValueError
from tapejax.tensor import names
from tapejax.view.film import film
from tapejax.view.graph import MANY, TURNS, graph_of, short
from tapejax.view.html import fragment
from tapejax.view.table import filled
from tapejax.view.values import NUMBERS, describe


def small():
    x = tj.tensor([1.0, 2.0, 3.0], requires_grad=True)
    w = tj.tensor([0.5, -1.0, 0.25], requires_grad=True)
    with tj.Tape() as tape:
        h = tj.numpy.tanh(w * x)
        loss = (h * w + x).sum()
    return tape, loss, tape.cursor(loss)


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_small_values_are_there_to_the_last_bit(dtype):
    with jax.enable_x64(True):
        value = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)) * 1e-3, dtype)
    about = json.loads(json.dumps(describe(value), allow_nan=False))
    assert np.array(about["data"]).astype(value.dtype).tobytes() == np.asarray(value).tobytes()
    assert about["shape"] == [3, 4]
    assert about["norm"] == pytest.approx(float(np.linalg.norm(np.asarray(value, np.float64))), rel=1e-6)


def test_what_json_cannot_write_is_text():
    about = describe(jnp.array([jnp.nan, jnp.inf, -jnp.inf, -0.0, 1e30]))
    assert about["data"][:3] == ["nan", "inf", "-inf"]
    assert str(about["data"][3]) == "-0.0"
    assert describe(jnp.array([1 + 2j, 3 - 1j]))["data"] == ["1+2i", "3-1i"]
    assert describe(jnp.array([1, 2]))["data"] == [1, 2]


def heat_of(about):
    heat = about["heat"]
    levels = np.frombuffer(base64.b64decode(heat["cells"]), np.int8).reshape(heat["rows"], heat["cols"])
    return levels, heat


def test_a_heat_map_shows_the_largest_of_each_block():
    value = np.zeros((100, 60), np.float32)
    value[0, 0], value[50, 30], value[99, 59] = 2.0, -4.0, np.nan
    about = describe(jnp.asarray(value))
    levels, heat = heat_of(about)
    assert heat["block"] == [5, 3]
    assert levels.shape == (20, 20)
    assert levels[0, 0] == 64  # 2 of 4
    assert levels[10, 10] == -127
    assert levels[19, 19] == -128
    assert np.count_nonzero(levels) == 3
    assert about["bad"] == 1
    assert (about["min"], about["max"]) == (-4, 2)


@pytest.mark.parametrize("shape", [(NUMBERS + 1,), (1000,), (7, 11), (3, 5, 7), (2, 3, 4, 5), (1, 50), (50, 1)])
def test_heat_maps_of_any_shape_are_bounded(shape):
    value = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    levels, heat = heat_of(describe(jnp.asarray(value)))
    assert levels.shape[0] <= 24
    assert levels.shape[1] <= 48
    assert heat["scale"] == pytest.approx(np.abs(value).max(), rel=1e-6)
    if heat["block"] == [1, 1]:
        rows = value.reshape(levels.shape)
        np.testing.assert_allclose(levels / 127 * np.abs(value).max(), rows, atol=np.abs(value).max() / 127)


# --- film -----------------------------------------------------------------------------------------


def test_the_film_has_what_the_cursor_has():
    tape, loss, cursor = small()
    cursor.step(2)
    pages = json.loads(json.dumps(film(cursor), allow_nan=False))
    assert cursor.position == 2  # it stays where it was
    assert len(pages["steps"]) == len(tape) == pages["count"]
    numbers = lambda index: np.array(pages["values"][index]["data"], np.float32)
    for page, step in zip(pages["steps"], tape.cursor(loss), strict=True):
        assert page["action"] == step.index
        for (number, index), (id, value) in zip(page["in"], step.incoming.items(), strict=True):
            assert number == id.number
            np.testing.assert_array_equal(numbers(index), np.asarray(value).ravel())
        for (number, index, after, accumulates), term in zip(page["out"], step.outgoing, strict=True):
            assert (number, accumulates) == (term.id.number, term.accumulates)
            np.testing.assert_array_equal(numbers(index), np.asarray(term.value).ravel())
            np.testing.assert_array_equal(numbers(after), np.asarray(term.after).ravel())
    tanh = pages["actions"][1]
    assert [(tape[1].plan.name), "tanh"] == [tanh["op"]] * 2
    assert tanh["text"] == "h = tanh " + f"%{tape[0].numbers[0]}"
    assert "tj.numpy.tanh(w * x)" in tanh["source"]
    (kept,) = tanh["kept"]  # tanh keeps its output
    assert kept[0] == tape[1].numbers[0]


def test_a_failing_action_ends_the_film():
    class Fails(tj.TapeAction):
        def backward(self, grads):
            raise ValueError("no")

    x = tj.tensor(2.0, requires_grad=True)
    with tj.Tape() as tape:
        y = x * x
        tj.record(Fails())
        loss = y * 3
    pages = film(tape.cursor(loss))
    assert len(pages["steps"]) == 1
    assert "Fails: ValueError: no" in pages["notes"][0]
    json.dumps(pages, allow_nan=False)


def halves(turns):
    x = tj.tensor(1.0, requires_grad=True)
    with tj.Tape() as tape:
        y = x
        for _ in range(turns):
            y = y * 0.5 + x
    return tape, x, y


def test_a_tape_of_2001_actions_is_shown_in_full():
    tape, x, y = halves(1000)
    with tape:
        loss = y * 2
    assert len(tape) == 2001
    pages = film(tape.cursor(loss))
    assert (pages["count"], pages["first"], pages["all"], len(pages["steps"])) == (2001, 0, 2001, 2001)
    assert not pages["notes"]
    assert not pages["unfinished"]
    final = [after for step in pages["steps"] for number, _, after, _ in step["out"] if number == x.id.number][-1]
    assert pages["values"][final]["data"][0] == pytest.approx(float(tape.backward(loss)[x]))
    shown = set(re.findall(r'<tr data-action="(\d+)"', "".join(pages["rows"])))
    assert shown == {str(index) for index in range(2001)}


def test_a_longer_one_is_cut_and_says_so_wherever_it_matters():
    tape, x, y = halves(60)
    pages = film(tape.cursor(y), limit=50)
    assert (pages["count"], pages["first"], pages["all"], len(pages["steps"])) == (50, 70, 120, 50)
    assert "last 50 of 120" in pages["notes"][0]
    assert [page["action"] for page in pages["steps"]] == list(range(119, 69, -1))
    before = tape[69].outputs[0].number  # read by action 70, made by one that is not shown
    assert pages["unfinished"] == [x.id.number]  # what is complete is not marked
    row = r'data-tensor="(\d+)"[^>]*>[^<]*</span></td><td class="shape">[^<]*</td><td class="norm">([^<]*)<'
    norms = dict(re.findall(row, "".join(pages["rows"])))
    assert str(before) not in norms
    assert not any("…" in norm for norm in norms.values())
    assert "last 50 of 120" in fragment(pages).partition("<script")[0]  # without scripts too


def test_after_a_failure_sums_are_marked_as_parts():
    class Fails(tj.TapeAction):
        inputs = outputs = None

        def backward(self, grads):
            raise ValueError("no")

    x = tj.tensor(2.0, requires_grad=True)
    with tj.Tape() as tape:
        tj.record(Fails())
        loss = x * 3
    pages = film(tape.cursor(loss))
    assert x.id.number in pages["unfinished"]  # whatever Fails would have added to


def test_a_tape_that_is_traced_is_refused():
    def traced(value):
        with tj.Tape() as tape:
            loss = tj.tensor(value, requires_grad=True) ** 2
        with pytest.raises(ConcreteValueError, match="traced"):
            film(tape.cursor(loss))
        return loss.value

    jax.jit(traced)(2.0)


def test_size_does_not_grow_with_the_tensors():
    big = tj.tensor(np.ones((400, 300), np.float32), requires_grad=True)
    with tj.Tape() as tape:
        loss = (tj.numpy.tanh(big) * big).sum()
    assert len(tape.cursor(loss)._repr_html_()) < 120_000


# --- graph and table --------------------------------------------------------------------------------


def layered(layers):
    def layer(h):
        return tj.numpy.tanh(h * 1.1) + h

    x = tj.tensor(1.0, requires_grad=True)
    with tj.Tape() as tape:
        h = x
        for _ in range(layers):
            h = layer(h)
        loss = h * 2
    return tape, loss


def test_regions_follow_the_code():
    tape, _ = layered(14)
    graph = graph_of(tape.actions)
    assert [region.label for region in graph.regions] == ["layer"] * 14 + ["loss = h * 2"]
    assert all(region.last - region.first == 2 for region in graph.regions[:-1])
    assert graph_of(tape.actions[:MANY]).regions == []


def test_regions_that_were_named_are_shown_by_their_names():
    x = tj.tensor([0.5, 1.0], requires_grad=True)
    with tj.Tape() as tape:
        h = tj.numpy.cos(x)
        for number in range(3):
            with tj.region(f"block{number}"):
                for _ in range(8):
                    h = tj.numpy.tanh(h) * 0.5
        loss = h.sum()
    regions = graph_of(tape.actions).regions
    assert [(r.label, r.first, r.last) for r in regions[1:-1]] == [
        (f"block{n}", 1 + 16 * n, 16 + 16 * n) for n in range(3)
    ]
    assert (regions[0].first, regions[0].last) == (0, 0)
    assert (regions[-1].first, regions[-1].last) == (len(tape) - 1, len(tape) - 1)
    assert loss.shape == ()


def test_regions_are_few_and_cover_everything():
    tape, _ = layered(300)
    graph = graph_of(tape.actions)
    regions = graph.regions
    assert [r.first for r in regions] == [0] + [r.last + 1 for r in regions[:-1]]
    assert regions[-1].last == len(tape) - 1
    assert [(bundle, len(inside)) for bundle, inside in graph.units()] == [(0, 300), (None, 1)]
    assert graph.bundles[0].label == "layer × 300"
    assert regions[0].label == "layer"
    longest = graph_of(layered(1000)[0].actions)
    assert len(longest.regions) <= TURNS + 1
    assert longest.regions[0].label == "layer × 3"


def test_what_is_no_loop_is_shown_by_few_regions():
    x = tj.tensor(1.0, requires_grad=True)
    names = {"x": x, "tanh": tj.numpy.tanh}
    with tj.Tape() as tape:
        for number in range(90):  # ninety functions, one after the other
            exec(f"def layer{number}(h):\n    return tanh(h * 1.1) + h\nx = layer{number}(x)", names)
    graph = graph_of(tape.actions)
    assert graph.bundles == []
    assert len(graph.units()) <= MANY + 1
    assert graph.regions[-1].last == len(tape) - 1


def test_loops_are_regions():
    step = lambda carry, x: (carry * x + jnp.sin(carry), None)
    scanned = tj.lift(lambda init, xs: jax.lax.scan(step, init, xs)[0])
    with tj.Tape(detail="primitives") as tape:
        scanned(tj.tensor(0.5, requires_grad=True), tj.tensor(np.ones(15, np.float32), requires_grad=True))
    graph = graph_of(tape.actions)
    assert [r.label for r in graph.regions][:3] == ["scan[0]", "scan[1]", "scan[2]"]
    assert [bundle.label for bundle in graph.bundles] == ["scan: 15 steps"]
    assert len(graph.units()) == 1


def test_each_loop_is_a_bundle_with_its_inputs():
    step = lambda carry, x: (carry * x + jnp.sin(carry), None)
    back = lambda init, xs: jax.lax.scan(step, init, xs, reverse=True)[0]
    onwards = lambda init, xs: jax.lax.scan(step, init, xs)[0]
    init, xs = tj.tensor(0.5, requires_grad=True), tj.tensor(np.ones(15, np.float32), requires_grad=True)
    with tj.Tape(detail="primitives") as tape:
        middle = tj.lift(onwards)(tj.lift(onwards)(init, xs), xs) * 2.0
        loss = tj.lift(back)(middle, xs)
    pages = film(tape.cursor(loss))
    assert [label for label, _, _ in pages["bundles"]] == ["scan: 15 steps"] * 3
    assert [pages["regions"][first][0] for _, first, _ in pages["bundles"]] == ["scan[0]", "scan[0]", "scan[14]"]
    assert pages["graph"].count('class="node region bundle"') == 3
    assert pages["graph"].count(f'data-tensors="{xs.id.number} {init.id.number}"') == 2  # the box, and its edge
    assert pages["graph"].count(f'data-tensors="{xs.id.number}"') == 4
    assert pages["table"].count("data-folded") == len(pages["regions"]) - 1
    assert "hidden" not in filled(pages["table"], pages["rows"])  # where no script runs all is open


def test_actions_that_do_not_tell_are_drawn_as_they_were_seen():
    class Own(tj.TapeAction):
        def backward(self, grads):
            grads.insert(self.source, 2 * grads[self.target])

    own = Own()
    own.source, own.target = a, b = [tj.tensor([1.0, 2.0], requires_grad=True) for _ in range(2)]
    with tj.Tape() as tape:
        tj.record(own)
        loss = (b * b).sum()
    pages = film(tape.cursor(loss))
    assert pages["actions"][0]["inputs"] == [a.id.number]
    assert pages["actions"][0]["outputs"] == [b.id.number]
    assert pages["tensors"][b.id.number][:3] == ["b", "f32[2]", False]


def test_table_and_picture_name_every_action_once():
    tape, _loss, cursor = small()
    pages = film(cursor)
    for index in range(len(tape)):
        assert pages["table"].count(f'<tr data-action="{index}"') == 1
        assert pages["graph"].count(f'data-action="{index}"') == 1
    assert "test_view.py:" in pages["table"]
    assert re.search(r'<td class="norm">1\.732</td>', pages["table"])
    assert pages["graph"].count('class="node leaf"') == 2
    assert short("bfloat16") == "bf16"


def test_dot():
    tape, _, _ = small()
    text = tape.to_dot()
    assert text.startswith("digraph tape {")
    assert text.count("shape=box") == len(tape)
    assert text.count("->") == sum(len(action.inputs) for action in tape)


# --- names ------------------------------------------------------------------------------------------


def test_names_come_from_the_users_variables():
    layers = [{"w": tj.tensor(1.0, requires_grad=True)}, {"w": tj.tensor(2.0, requires_grad=True)}]
    pair = types.SimpleNamespace(ignored=tj.tensor(1.0))
    best = layers[1]["w"]
    found = names.names_around()
    assert found[layers[0]["w"].id.number] == "layers[0].w"
    assert found[best.id.number] == "best"  # a variable of its own goes first
    assert pair.ignored.id.number not in found
    assert names.names_in({"d": {"a b": best}, "_hidden": best}) == {best.id.number: "d['a b']"}


# --- HTML and notebooks -----------------------------------------------------------------------------


def test_the_file_is_whole(tmp_path):
    tape, loss, cursor = small()
    path = tape.save_html(tmp_path / "tape.html", loss)
    text = path.read_text()
    outside = set(re.findall(r"https?://[\w./-]+", text))
    assert outside <= {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", text)
    assert "default-src 'none'" in text
    assert len(tape) == 5  # nothing was consumed
    assert cursor.save_html(str(tmp_path / "again.html")).exists()


def test_names_cannot_break_out_of_the_page():
    class Evil(tj.TapeAction):
        """</script><script>alert(1)</script>"""

        def name(self):
            return "</script><img src=x onerror=alert(1)>"

        def backward(self, grads):
            pass

    with tj.Tape(label="</title><b>") as tape:
        tj.record(Evil())
        loss = tj.tensor(1.0, requires_grad=True) * 2
    text = fragment(film(tape.cursor(loss)))
    assert text.count("</script>") == 2  # the film's own and the stepper's
    assert "<img" not in text


def test_in_a_terminal_it_is_text():
    tape, _, cursor = small()
    assert tape._repr_mimebundle_() == {"text/plain": str(tape)}
    assert cursor._repr_mimebundle_() == {"text/plain": str(cursor)}


class Shell:
    kernel = object()
    user_ns = types.MappingProxyType({})


@pytest.fixture
def in_a_notebook(monkeypatch):
    module = types.ModuleType("IPython")
    module.get_ipython = lambda: Shell
    monkeypatch.setitem(sys.modules, "IPython", module)


def test_in_a_notebook_it_is_html(in_a_notebook, monkeypatch):
    monkeypatch.setenv("TAPEJAX_WIDGET", "0")
    tape, _, cursor = small()
    for shown in (tape, cursor):
        found = shown._repr_mimebundle_()
        assert set(found) == {"text/plain", "text/html"}
        assert "tapejax-view" in found["text/html"]
        assert shown._repr_html_().count("<script") == 2
    with tj.Tape() as empty:
        pass
    assert "text/html" in empty._repr_mimebundle_()


def test_a_tape_by_itself_starts_at_its_last_result():
    tape, loss, _ = small()
    assert list(view.as_cursor(tape).roots) == [loss.id]
    with tj.Tape() as empty:
        tj.record(tj.TapeAction())
    pages = film(view.as_cursor(empty))
    assert pages["steps"] == []
    assert "tape.cursor(root)" in pages["notes"][0]


def test_a_heavy_tape_is_shown_without_its_backward(monkeypatch):
    tape, loss, _ = small()
    monkeypatch.setattr(view, "HEAVY", 40)
    pages = film(view.as_cursor(tape))
    assert pages["steps"] == []
    assert "tape.cursor(root)" in pages["notes"][0]
    assert len(film(view.as_cursor(tape.cursor(loss)))["steps"]) == len(tape)  # who asks for it gets it


def test_random_keys_and_integers_are_no_obstacle():
    x = tj.tensor(np.ones(50, np.float32), requires_grad=True)
    masked = tj.lift(lambda key, x: x * jax.random.bernoulli(key, 0.5, x.shape))
    for detail in ("ops", "primitives"):
        with tj.Tape(detail=detail) as tape:
            loss = masked(jax.random.key(0), x)[jnp.array([1, 2])].sum()
        pages = json.loads(json.dumps(film(tape.cursor(loss)), allow_nan=False))
        assert len(pages["steps"]) == len(tape)


def test_the_widget_and_the_cursor_move_each_other():
    pytest.importorskip("anywidget", reason="needs anywidget: pip install 'tapejax[notebooks]'")
    from tapejax.view.widget import viewer

    _, _, cursor = small()
    shown = viewer(cursor, film(cursor))
    cursor.step(3)
    assert shown.position == 3
    shown.position = 1  # as a click does
    assert cursor.position == 1
    assert cursor.index == 4
    cursor.rewind()
    assert shown.position == 0
