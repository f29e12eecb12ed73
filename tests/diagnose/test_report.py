"""The report as text, JSON and page; the command; debug_nonfinite; inside libraries and under transformations."""

import json
import os
import warnings

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest

import tapejax as tj
from tapejax import cli
from tapejax.errors import ArgumentError
from tests.diagnose.catalogue import BAD

CASES = {case.name: case for case in BAD}


def where_around_sqrt(x):
    root = jnp.sqrt(x)
    return jnp.where(x > 0, root, 0.0).sum()


FIRST = where_around_sqrt.__code__.co_firstlineno
POINT = jnp.array([4.0, 0.0, 1.0])


def test_the_text_says_it_all():
    assert str(tj.find_nonfinite(where_around_sqrt, POINT)).splitlines() == [
        "gradient of x: NaN at [1] (1 of 3); loss finite",
        f"born    sqrt, going back, at [1]    test_report.py:{FIRST + 1}  root = jnp.sqrt(x)",
        "        arrives 0.0   kept root = 0.0   slope 1/(2*root) = inf   0*inf = nan",
        f"hidden  `where` at :{FIRST + 2} drops the value, not the slope",
        "try     jnp.sqrt(jnp.where(x > 0, x, 1.0)) inside the where",
    ]


def test_json_and_page(tmp_path):
    report = tj.find_nonfinite(where_around_sqrt, POINT)
    data = json.loads(json.dumps(report.to_json()))
    assert (data["ok"], data["born"]["op"], data["born"]["index"], data["hidden"]["lineno"]) == (
        False,
        "sqrt",
        [1],
        FIRST + 2,
    )
    assert data["path"][0]["op"] == "sqrt"
    report.save_html(tmp_path / "nan.html")
    page = (tmp_path / "nan.html").read_text()
    assert "jnp.sqrt(x)" in page
    assert "http" not in page
    assert "tj-report" in report._repr_html_()


def test_a_good_function_has_nothing_to_tell():
    report = tj.find_nonfinite(lambda x: (x * x).sum(), POINT)
    assert report.ok
    assert bool(report)
    assert report.born is None
    assert str(report).endswith("every output and gradient is finite")


def test_the_numbers_of_an_overflow_name_the_dtype():
    report = tj.find_nonfinite(CASES["exp_in_half"].function, *CASES["exp_in_half"].args)
    assert report.born.numbers == ("exp(12.0) > 65504 in float16",)
    assert "float32" in report.fix


def test_infinities_that_meet_say_where_they_come_from():
    report = tj.find_nonfinite(CASES["naive_softmax"].function, *CASES["naive_softmax"].args)
    assert report.born.numbers == ("inf / inf = nan",)
    assert (report.origin.op, report.origin.lineno) == ("exp", report.born.lineno - 1)
    assert "maximum" in report.fix


def test_the_function_with_a_custom_rule_is_named():
    case = CASES["rule_of_a_custom_vjp"]
    assert tj.find_nonfinite(case.function, *case.args).born.function == "twice"


def test_the_arguments_behind_it():
    report = tj.find_nonfinite(lambda a, b, c: jnp.sum(a + jnp.log(b)) + c, jnp.ones(2), jnp.zeros(2), 1.0)
    assert report.born.arguments == ("b",)


def test_a_function_over_tensors():
    def over_tensors(x):
        y = tj.numpy.sqrt(x)
        return (y * 2.0).sum()

    born = tj.find_nonfinite(over_tensors, tj.tensor([0.0, 1.0])).born
    assert (born.op, born.lineno, born.index) == ("sqrt", over_tensors.__code__.co_firstlineno + 1, (0,))


def test_what_a_function_reads_from_outside_may_change():
    scale = 1.0

    def f(x):
        return (x / scale).sum()

    assert tj.find_nonfinite(f, POINT).ok
    scale = 0.0
    assert not tj.find_nonfinite(f, POINT).ok


def test_a_while_in_a_scan_is_looked_at_going_forward():
    def f(x):
        def outer(c, _):
            c = jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.log(s[1] - 1.0)), (0, c))[1]
            return c, None

        return jax.lax.scan(outer, x, None, length=4)[0]

    report = tj.find_nonfinite(f, jnp.float32(2.0))
    assert (report.born.op, report.born.steps) == ("log", (("scan", 0), ("while", 1)))  # log(log(2 - 1) - 1)
    assert "only the outputs" in report.notes[0]


def test_a_python_branch_on_a_value_is_refused_with_the_way_out():
    with pytest.raises(TypeError, match=r"lax\.cond"):
        tj.find_nonfinite(lambda x: x.sum() if x.sum() > 0 else -x.sum(), POINT)
    with pytest.raises(TypeError, match="takes a function"):
        tj.find_nonfinite(POINT)


def test_the_command(tmp_path, capsys):
    (tmp_path / "train_nan.py").write_text(
        "import jax.numpy as jnp\ndef loss(x):\n    return jnp.log(x).sum()\ndef inputs():\n    return jnp.array([1.0, 0.0])\n"
    )
    target = f"{tmp_path / 'train_nan.py'}:loss"
    assert cli.main(["nonfinite", target]) == 1
    assert "log, going forward, at [1]    train_nan.py:3" in capsys.readouterr().out
    assert cli.main(["nonfinite", target, "--args", "[1.0, 2.0]", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_debug_nonfinite_raises_with_the_report():
    with tj.debug_nonfinite(), pytest.raises(FloatingPointError, match="born    sqrt") as caught:
        tj.grad(where_around_sqrt)(POINT)
    assert caught.value.report.born.lineno == FIRST + 1
    assert jnp.isnan(tj.grad(where_around_sqrt)(POINT)).any()  # outside, nothing is looked at


def test_debug_nonfinite_warns_and_collects():
    with tj.debug_nonfinite(on="warn") as found, pytest.warns(tj.diagnose.NonfiniteWarning, match="sqrt"):
        tj.value_and_grad(where_around_sqrt)(POINT)
    assert len(found.reports) == 1
    with warnings.catch_warnings(), tj.debug_nonfinite(on="collect") as found:
        warnings.simplefilter("error")
        tj.grad(where_around_sqrt)(POINT)
        tj.grad(where_around_sqrt)(POINT + 1.0)
    assert [report.born.op for report in found.reports] == ["sqrt"]
    with pytest.raises(ValueError, match="unknown on"):
        tj.debug_nonfinite(on="print")


def test_debug_nonfinite_looks_at_a_tape():
    x = tj.tensor(POINT, requires_grad=True)
    with tj.Tape() as tape:
        loss = tj.numpy.where(x > 0, tj.numpy.sqrt(x), 0.0).sum()
    with tj.debug_nonfinite(on="collect") as found:
        tape.backward(loss)
    assert [(report.born.op, report.born.index) for report in found.reports] == [("sqrt", (1,))]


# --- inside libraries -------------------------------------------------------------------------------------------


def test_inside_flax_both_lines_are_named():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Dense(4)(x)
            return nn.LayerNorm(epsilon=0.0, use_fast_variance=False)(x).sum()

    model = Model()
    params = jax.tree.map(jnp.zeros_like, model.init(jax.random.key(0), jnp.ones((2, 3))))
    born = tj.find_nonfinite(model.apply, params, jnp.ones((2, 3))).born
    assert (os.path.basename(born.file), born.cause) == ("test_report.py", "infinities")
    assert "LayerNorm" in born.source
    assert f"{os.sep}flax{os.sep}" in born.library


def test_inside_equinox():
    class Model(eqx.Module):
        weight: jax.Array
        name: str = eqx.field(static=True)

        def __call__(self, x):
            hidden = self.weight @ x
            return jnp.log(hidden).sum()

    model = Model(jnp.array([[1.0, 1.0], [1.0, -1.0]]), "m")
    born = tj.find_nonfinite(lambda model, x: model(x), model, jnp.ones(2)).born
    assert (born.op, born.index, born.source) == ("log", (1,), "return jnp.log(hidden).sum()")


def test_inside_optax():
    def step(w):
        optimiser = optax.adam(1e-3, eps=0.0)
        updates, _ = optimiser.update(jnp.zeros_like(w), optimiser.init(w), w)
        return optax.apply_updates(w, updates).sum()

    born = tj.find_nonfinite(step, jnp.ones(2)).born
    assert (born.op, born.cause) == ("div", "value")
    assert "optimiser.update" in born.source
    assert f"{os.sep}optax{os.sep}" in born.library


# --- under transformations ---------------------------------------------------------------------------------------

SOME = ["where_around_sqrt", "naive_softmax", "root_in_a_scan", "root_in_a_checkpoint", "rule_of_a_custom_jvp"]


def found_in(report):
    born = report.born
    return born.op, born.lineno, born.steps, born.index, born.direction, born.cause


@pytest.mark.parametrize("name", SOME)
def test_the_same_under_jit(name):
    case = CASES[name]
    report = tj.find_nonfinite(jax.jit(case.function), *case.args)
    assert found_in(report) == (case.op, case.lineno, case.steps, case.index, case.direction, case.cause)


@pytest.mark.parametrize("name", SOME)
def test_under_vmap_the_lane_is_the_first_index(name):
    case = CASES[name]
    lanes = [jnp.stack([jnp.ones_like(arg), arg]) for arg in case.args]
    report = tj.find_nonfinite(lambda *args: jax.vmap(case.function)(*args).sum(), *lanes)
    op, lineno, steps, index, direction, cause = found_in(report)
    assert (op, lineno, steps, direction, cause) == (case.op, case.lineno, case.steps, case.direction, case.cause)
    assert index == (1, *case.index)


@pytest.mark.slow
@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_all_the_same_under_jit(case):
    report = tj.find_nonfinite(jax.jit(case.function), *case.args)
    assert found_in(report) == (case.op, case.lineno, case.steps, case.index, case.direction, case.cause)


def test_what_a_function_raises_comes_out_and_it_ran_once():
    ran = []

    def broken(x):
        ran.append(1)
        raise TypeError("its own")

    with pytest.raises(TypeError, match="its own"):
        tj.find_nonfinite(broken, POINT)
    assert len(ran) == 1

    def misspelled(x):
        ran.append(1)
        return x.summ()

    with pytest.raises(AttributeError):
        tj.find_nonfinite(misspelled, POINT)
    assert len(ran) == 2


def test_a_function_that_asks_for_what_tensors_have():
    def loss(x):
        return (tj.numpy.log(x) + x.detach()).sum()

    report = tj.find_nonfinite(loss, POINT)
    assert (report.born.op, report.born.index) == ("log", (1,))


@pytest.mark.parametrize("name", ["clip_by_norm", "global_norm"])
def test_helpers_of_an_optimiser_say_where_to_look(name):
    gradients = {"w": jnp.array([1.0, jnp.nan])}
    limit = (1.0,) if name == "clip_by_norm" else ()

    def three_steps():  # a norm is looked at when it is there, at the next step at the latest
        for _ in range(3):
            jax.block_until_ready(getattr(tj.training, name)(gradients, *limit))

    with pytest.warns(tj.errors.NonfiniteWarning, match=rf"{name} at .*test_report.py.*find_nonfinite"):
        three_steps()


def test_verify_says_where_to_look():
    report = tj.verify(where_around_sqrt, POINT)
    assert any("find_nonfinite" in note for note in report.notes)
    assert "find_nonfinite" in str(report)
    assert not tj.verify(lambda x: jnp.sin(x).sum(), POINT).notes


def test_inside_diffrax():
    diffrax = pytest.importorskip("diffrax")

    def loss(y0):
        def field(t, y, args):
            return -jnp.sqrt(y)

        term, times = diffrax.ODETerm(field), (0.0, 2.0, 0.25)
        return diffrax.diffeqsolve(term, diffrax.Euler(), *times, y0, saveat=diffrax.SaveAt(t1=True)).ys.sum()

    born = tj.find_nonfinite(loss, jnp.array([1.0, 9.0])).born
    assert (born.op, born.direction, born.cause, born.index) == ("sqrt", "forward", "value", (0,))
    assert born.lineno == loss.__code__.co_firstlineno + 2
    assert born.steps[0] == ("while", 7)  # by Euler's steps of 1/4: the seventh leaves the positive numbers


@pytest.mark.parametrize("place", [0, 2, 3])
def test_through_the_parts_of_a_split(place):
    def forward(x):
        a, b = jnp.split(jnp.log(x), 2)
        return a.sum() - b.sum()

    def back(x):
        a, b = jnp.split(2 * x, 2)
        return jnp.where(b > 0, jnp.sqrt(b), 0.0).sum() + jnp.where(a > 0, jnp.sqrt(a), 0.0).sum()

    born = tj.find_nonfinite(forward, jnp.ones(4).at[place].set(-1.0)).born
    assert (born.op, born.index) == ("log", (place,))
    found = tj.find_nonfinite(back, jnp.ones(4).at[place].set(0.0))
    assert (found.born.op, found.born.index, found.born.direction) == ("sqrt", (place % 2,), "backward")
    assert found.results[0].index == (place,)


# --- in the viewer --------------------------------------------------------------------------------------------------


def scanned(xs):
    def step(c, x):
        root = jnp.sqrt(x)
        return c + jnp.where(x > 0, root, 0.0), None

    return jax.lax.scan(step, 0.0, xs)[0]


@pytest.mark.parametrize("name", ["where_around_log", "log_of_zero", "rule_of_a_custom_vjp", "branch_that_is_taken"])
def test_a_cursor_at_the_birth(name):
    case = CASES[name]
    report = tj.find_nonfinite(case.function, *case.args)
    cursor = report.cursor()
    assert cursor.index == cursor.marked is not None
    if name == "rule_of_a_custom_vjp":  # which is one action, on the line of its call
        assert cursor.action.plan.name == "custom_vjp_call"
        assert not bool(jnp.isfinite(cursor.outgoing[0].value).all())
    else:
        assert cursor.action.plan.name == case.op
        assert int(cursor.action.line.split(":")[1]) == case.lineno
        assert cursor.action.steps == case.steps


def test_a_cursor_at_the_step_of_a_loop_marked_on_the_page(tmp_path):
    report = tj.find_nonfinite(scanned, jnp.ones(6).at[3].set(0.0))
    cursor = report.cursor()
    assert (cursor.action.plan.name, cursor.action.steps) == ("sqrt", (("scan", 3),))
    assert bool(jnp.isnan(cursor.outgoing[0].value))
    position = cursor.position
    page = cursor.save_html(tmp_path / "born.html").read_text()
    assert f'"marked":{cursor.marked},' in page
    assert f"position: {position}," in page
    assert cursor.position == position
    live = cursor._repr_html_()
    assert f'"marked":{cursor.marked},' in live
    assert f"position: {position}," in live


def test_nothing_to_step_to():
    with pytest.raises(ArgumentError, match="all is finite"):
        tj.find_nonfinite(lambda x: x.sum(), jnp.ones(2)).cursor()
