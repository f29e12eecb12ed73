"""The verdict, where it points to, and what a judge must know about itself before it speaks."""

import contextlib
import inspect
import io
import json
import pydoc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tapejax as tj
from tapejax import errors
from tapejax.ground import callers
from tapejax.program.program import trace
from tapejax.rules.registry import name_of
from tapejax.verify import progress
from tapejax.verify.check import flat, make_arguments
from tapejax.verify.samples import FAMILIES, MANY_DEVICES
from tapejax.verify.tolerance import for_dtype
from tapejax.verify.wide import narrowest_float, noting_narrow, run_wide
from tests.verify.faults import WRONG_RULES, custom
from tests.verify.planted import wrong_in_tapejax

X = jnp.array([0.3, 0.7, -0.4])


def rounded(x):
    return jnp.round(x)


straight = custom(rounded, lambda ct, x: (ct,))
wrong = custom(jnp.sin, lambda ct, x: (2 * ct * jnp.cos(x),))


def test_the_lines_of_the_call_and_of_the_rule_are_named():
    def rule(x, ct):
        return (ct * x,)

    cosine = jax.custom_vjp(jnp.cos)
    cosine.defvjp(lambda x: (cosine(x), x), rule)

    def loss(x):
        y = x * 2
        return jnp.sum(cosine(y))

    call = inspect.getsourcelines(loss)[1] + 2
    report = tj.verify(loss, X, seeds=1)
    assert report.verdict == "custom_rule"
    said = report.verdict_line
    assert f"test_verdict.py:{call}" in said
    assert f"test_verdict.py:{rule.__code__.co_firstlineno}" in said
    known = json.loads(json.dumps(report.to_json()))
    assert known["verdict"] == "custom_rule"
    assert known["why"]
    assert known["findings"][0]["verdict"] == "custom_rule"


def test_a_scalar_loss_is_checked_with_cotangent_one():
    report = tj.verify(lambda x: jnp.sum(wrong(x)), X, seeds=1, diagnose=False)
    row = report.wrong[0]
    assert row.got == pytest.approx(float(jax.grad(lambda x: jnp.sum(wrong(x)))(X)[row.index[0]]))
    assert "cotangent 1" in str(report)


def test_the_innermost_wrong_rule_comes_first():
    outer = custom(lambda x: wrong(x) + x, lambda ct, x: jax.vjp(lambda x: wrong(x) + x, x)[1](ct))
    report = tj.verify(lambda x: jnp.sum(outer(x)), X, seeds=1)
    assert report.culprit.first_wrong.name == "sin"


def test_a_rule_that_is_meant_to_differ():
    loss = lambda x: jnp.sum(straight(3 * x) * x)
    assert tj.verify(loss, X, seeds=1).verdict == "custom_rule"
    report = tj.verify(loss, X, seeds=1, intended="rounded")
    assert report.verdict == "right"
    assert any("meant to differ" in note for note in report.notes)
    both = tj.verify(lambda x: jnp.sum(straight(wrong(x))), X, seeds=1, intended="rounded")
    assert both.verdict == "custom_rule"
    assert both.culprit.first_wrong.name == "sin"
    with pytest.raises(errors.ArgumentError, match="no function of this name"):
        tj.verify(loss, X, intended="round")


def test_each_stop_gradient_that_matters_is_listed_with_its_line():
    def loss(x):
        y = lax.stop_gradient(x)
        return jnp.sum(x * y + jax.nn.logsumexp(x))  # the one inside logsumexp makes no difference

    report = tj.verify(loss, X, seeds=1)
    assert report.verdict == "right"
    [stop] = report.stops
    assert f"test_verdict.py:{inspect.getsourcelines(loss)[1] + 1}" in stop.line
    assert stop.change > 0.1
    assert "stop_gradient at" in str(report)


def test_the_budget_ends_differences():
    report = tj.verify(lambda x, y: jnp.sum(jnp.sin(x) * y), X, X, seeds=1, budget=0.0)
    assert report.verdict == "right"  # jax agrees; the headline says what was not seen
    assert "not checked: x against finite differences" in report.verdict_line
    assert "time" in report.rows[-1].note


def test_help_and_signature_show_the_options():
    assert str(inspect.signature(tj.verify)).startswith("(function")
    text = pydoc.render_doc(tj.verify)
    for option in inspect.signature(tj.verify).parameters:
        assert option in text


def test_a_gradient_that_is_zero_in_theory_is_right():
    report = tj.verify(lambda x, b: jax.nn.softmax(x + b)[0], jnp.array([0.3, 1.2, -0.5]), jnp.float32(0.7), seeds=1)
    assert report.verdict == "right", str(report)
    # A rule that gives something there, beyond rounding, is not excused.
    leaky = custom(lambda x, b: jax.nn.softmax(x + b)[0], lambda ct, x, b: (jax.vjp(lambda x: jax.nn.softmax(x + b)[0], x)[1](ct)[0], ct * 1e-3))  # fmt: skip
    assert tj.verify(leaky, X, jnp.float32(0.7), seeds=1, diagnose=False).verdict == "custom_rule"


def test_differences_alone_condemn_nobody():
    """Numbers of a function whose program in float64 is another one are not believed."""
    eps_of = lambda x: jnp.asarray(jnp.finfo(x.dtype).eps * 1e6, x.dtype)
    report = tj.verify(lambda x: jnp.sum(jnp.sqrt(x * x + eps_of(x))), X, seeds=1)
    assert report.ok, str(report)


def test_what_runs_in_its_own_dtype_only_is_differenced_there():
    host = lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")
    right = custom(host, lambda ct, x: (ct * jnp.cos(x),))
    report = tj.verify(right, X, seeds=1)
    assert report.verdict == "right"
    assert any("own dtype: pure_callback" in row.note for row in report.rows)
    report = tj.verify(custom(host, lambda ct, x: (1.1 * ct * jnp.cos(x),)), X)
    assert report.verdict == "custom_rule", str(report)


HAVE_PROGRAMS_INSIDE = ("indexing", "reduction", "windows", "control")


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in HAVE_PROGRAMS_INSIDE)) for name in FAMILIES],
)
def test_the_widened_program_computes_the_same_function(family):
    """For every sample: all results are wide, and equal to the function's own as far as that has digits."""
    if jax.device_count() < MANY_DEVICES.get(family, 1):
        pytest.skip("it needs more devices")
    for primitive, entries in FAMILIES[family].items():
        for number, sample in enumerate(entries):
            dtype = next((d for d in ("float32", "complex64") if d in sample.dtypes), None)
            if dtype is not None and name_of(primitive) != "random_gamma":  # other bits, another draw
                same_function(f"{name_of(primitive)} {number}", sample, dtype)


def same_function(name, sample, dtype):
    found = set()
    with jax.enable_x64(True):
        args = make_arguments(sample, dtype, 0)
        function = flat(sample.function)
        program, _ = trace(function, args, ignore_custom_rules=True)
        with noting_narrow(found):
            both = jax.jit(lambda *args: (function(*args), run_wide(program, args)[0]))(*args)
    assert found <= {"reduce_precision"}, name
    rtol = for_dtype(narrowest_float(program) or np.float32).rtol
    for own, wide in zip(*both, strict=True):
        if jnp.issubdtype(own.dtype, jnp.inexact):
            assert wide.dtype in (np.float64, np.complex128), name
            a, b = np.asarray(own).astype(wide.dtype), np.asarray(wide)
            scale = np.abs(a[np.isfinite(a)]).max(initial=1e-30)
            np.testing.assert_allclose(b / scale, a / scale, rtol=0, atol=rtol, err_msg=name)


@pytest.mark.slow
def test_a_reproducer_comes_with_a_wrong_rule_of_tapejax():
    fault = next(fault for fault in WRONG_RULES if fault.op == "tanh")
    with wrong_in_tapejax(fault)():
        report = tj.verify(lambda x: jnp.sum(jnp.tanh(x * x) * 2), X, seeds=1)
        assert report.verdict == "tapejax"
        assert "to reproduce:" in str(report)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(report.reproducer, {})
    assert out.getvalue().startswith("TAPEJAX IS WRONG")
    assert report.to_json()["reproducer"] == report.reproducer
    assert tj.verify(jnp.sin, X, seeds=1).reproducer == ""


def test_progress_is_shown_to_somebody_who_watches_and_waits(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    loss = lambda x: jnp.sum(jnp.sin(x))
    for patience, terminal, shown in ((0.0, Terminal(), True), (1e9, Terminal(), False), (0.0, io.StringIO(), False)):
        monkeypatch.setattr(progress, "PATIENCE", patience)
        monkeypatch.setattr("sys.stderr", terminal)
        tj.verify(loss, X, seeds=1)
        said = terminal.getvalue()
        assert ("differences of x (1 of 1)" in said) is shown
        assert said == "" or said.endswith("\r")  # the line is taken away


def weighted(x, weights):
    """The log of a weighted sum, after a function with a custom rule; at a weight of 0 jax's logsumexp forgets its slope."""
    return jax.scipy.special.logsumexp(jax.nn.softplus(x), b=weights)


@pytest.mark.slow
def test_a_function_that_jax_wrote_is_wrong_by_its_code():
    x, weights = jnp.array([0.5, -1.2, 2.0]), jnp.array([0.0, 1.0, 0.0])
    report = tj.verify(weighted, x, weights)
    assert report.verdict == "jax"  # not the custom rule of softplus, whose code has the same gradient
    assert "`logsumexp`" in report.verdict_line
    assert Path(__file__).name in report.verdict_line  # the line that called it
    [i] = report.first_wrong.index
    slope = jnp.exp(jax.nn.softplus(x[i]) - jax.nn.softplus(x[1]))  # by hand: exp(s_i) / sum(b exp(s))
    assert report.first_wrong.expected == pytest.approx(float(slope), rel=1e-4)
    assert report.to_json()["culprit"]["function"] == "logsumexp"
    assert tj.verify(weighted, x, weights + 0.3).verdict == "right"


def test_a_nan_of_a_function_that_jax_wrote():
    x = 1.137
    report = tj.verify(lambda x: 2 * jax.scipy.special.spence(x), x)
    assert report.verdict == "jax"
    assert "`spence`" in report.verdict_line
    assert report.first_wrong.expected == pytest.approx(2 * np.log(x) / (1 - x), rel=1e-4)


def test_a_root_in_the_users_own_where_is_not_jaxs():
    report = tj.verify(lambda x: jnp.sum(jnp.where(x > 0, jnp.sqrt(x), 0.0)), jnp.array([-1.0, 2.0]))
    assert report.verdict == "undecided"


def test_branches_that_never_ran_are_named():
    def loss(x):
        def step(total, a):
            return lax.switch((a > 0.5).astype(int), [lambda t: t + a, lambda t: t * a, lambda t: t - a], total), None

        total, _ = lax.scan(step, jnp.float32(1.0), x)
        return lax.cond(total > 100, lambda t: t * t, lambda t: 3 * t, total)

    report = tj.verify(loss, X)
    assert report.verdict == "right"
    notes = [note for note in report.notes if "never ran" in note]
    assert [note.partition(" at ")[0] for note in notes] == ["branch 2 of 3", "the branch for True"]
    assert all(Path(__file__).name in note for note in notes)
    assert all(note in str(report) for note in notes)


# --- what is not judged, and what goes another way ---------------------------------------------------------------------


def test_how_much_float32_loses_is_asked_under_every_cotangent():
    """Of sinc beside 0 the tape and jax lose two digits, each at other cotangents."""
    for seeds in (1, 3, 5):
        report = tj.verify(jnp.sinc, jnp.array([0.0, 1e-3, 0.5, 2.2], "float32"), seeds=seeds)
        assert report.ok, str(report)


def test_a_rule_that_reads_what_is_traced_around_it_is_not_ours_to_answer_for():
    def f(x):
        top = lax.stop_gradient(jnp.max(x))  # the rule below has no other way to it

        @jax.custom_vjp
        def scaled(x):
            return x * x

        scaled.defvjp(lambda x: (x * x, x), lambda x, ct: (2 * x * ct * top / top,))
        return scaled(jnp.sin(x)).sum()

    with pytest.raises(Exception):  # noqa: B017, PT011  # a TypeError today; what matters is that jax cannot either
        jax.vjp(jax.jit(f), X)[1](jnp.ones(()))
    report = tj.verify(f, X)
    assert report.verdict in ("undecided", "custom_rule"), str(report)
    assert "jax cannot either once it is compiled" in str(report)


LIBRARY = """
def checked(x):
    if type(x).__name__ == "Tensor":
        raise TypeError("arrays only")
    return x * x

def fails(x):
    calls.append(type(x).__name__)
    raise ValueError("always")

calls = []
"""


def test_a_library_that_refuses_tensors_gets_arrays(tmp_path, monkeypatch):
    file = tmp_path / "strict_library.py"
    file.write_text(LIBRARY)
    monkeypatch.setitem(callers.owners, str(file), callers.LIBRARY)  # as if it were installed beside jax
    monkeypatch.syspath_prepend(tmp_path)
    import strict_library

    report = tj.verify(lambda x: strict_library.checked(x).sum(), X)
    assert report.verdict == "right", str(report)
    with pytest.raises(ValueError, match="always"):  # what it raises over arrays too comes out
        tj.verify(lambda x: strict_library.fails(x), X)


def test_the_users_own_error_comes_out_at_once():
    calls = []

    def f(x):
        calls.append(type(x).__name__)
        raise TypeError("a Tensor is not what I want")

    with pytest.raises(TypeError, match="not what I want"):
        tj.verify(f, X)
    assert calls == ["Tensor"]
