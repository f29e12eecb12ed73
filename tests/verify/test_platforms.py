"""`verify --against cpu`: our rules on the default device against float64 on the CPU, and the table of what is fine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tapejax.cli import main
from tapejax.rules.registry import TABLE, Rule
from tapejax.verify import platforms
from tapejax.verify.platforms import ASKED, PLATFORMS, UNITS, check_on_device, unit_of
from tapejax.verify.samples.base import exactly, normal, positive, sample
from tapejax.verify.suite import verify_rules


def test_the_rules_here_are_as_good_as_their_dtype():
    report = verify_rules(only=["sin", "div", "dot_general"], against="cpu", quick=True)
    assert report.ok
    assert {result.dtype for result in report.results} == {"float32"}
    assert max(result.error for result in report.results) <= 32 * UNITS["float32"]
    assert report.title == "tapejax verify --against cpu --quick"
    if jax.default_backend() == "cpu":
        assert "float32 on the CPU was compared with float64 on the CPU" in str(report)


def wrong_slope(ct, out, x, *, accuracy):
    return (ct * lax.cos(x) * 1.0001,)


def low_precision(ct, out, x, *, accuracy):
    return ((ct.astype(jnp.bfloat16) * lax.cos(x.astype(jnp.bfloat16))).astype(x.dtype),)


@pytest.mark.parametrize("planted", [wrong_slope, low_precision])
def test_a_rule_that_is_wrong_or_rounds_too_much_is_found(planted, monkeypatch, capsys):
    monkeypatch.setitem(TABLE, lax.sin_p, Rule("sin", planted, "x", cheap=True, zeros=True, family="planted"))
    assert main(["verify", "--against", "cpu", "--quick", "--only", "sin"]) == 1
    said = capsys.readouterr().out
    assert "WRONG sin #0 float32 against cpu float64: gradient" in said


def test_what_rounding_does_to_a_sample_is_no_fault_of_the_rule():
    cancels = sample(lambda x: (x + 1000.0) - 1000.0, positive(3))
    assert check_on_device(cancels, "float32").ok
    cut = sample(lambda x: jnp.sum(jnp.floor(x * 3.0) * x), exactly([1 / 3, 0.5]))
    outcome = check_on_device(cut, "float32")
    assert outcome.ok
    of_its_own = sample(lambda x: lax.mul(x, jnp.ones(2, "float64")), normal(2), dtypes=("float64",))
    assert check_on_device(of_its_own, "float32") is None


def test_tolerances_follow_the_platform_and_the_precision_that_is_set():
    cpu, gpu, tpu = (PLATFORMS[name] for name in ("cpu", "gpu", "tpu"))
    assert unit_of(cpu, "float32", True) == unit_of(gpu, "float32", False) == 2.0**-24
    assert unit_of(gpu, "float32", True) == 2.0**-11
    assert unit_of(tpu, "float32", True) == unit_of(tpu, "bfloat16", True) == 2.0**-8
    for asked, unit in ASKED.items():
        with jax.default_matmul_precision(asked):
            assert unit_of(tpu, "float32", True) == unit


def test_products_are_found_inside_other_programs():
    looped = jax.make_jaxpr(lambda x: lax.fori_loop(0, 3, lambda _, y: y @ x, x))(jnp.ones((2, 2)))
    assert platforms.has_products(looped)
    assert not platforms.has_products(jax.make_jaxpr(jnp.sin)(1.0))


def test_coarse_products_are_wrong_on_a_cpu_and_fine_on_a_tpu():
    rng = np.random.default_rng(3)
    x, y, ct = (rng.standard_normal((4, 4)).astype(np.float32) for _ in range(3))
    judge = platforms.Judge(lambda a, c: ([a[0] @ a[1]], [c[0] @ a[1].T, a[0].T @ c[0]]), [x, y], [ct], "float32")
    got = ([half(x, y)], [half(ct, y.T), half(x.T, ct)])
    for name, fine in {"cpu": False, "tpu": True}.items():
        unit = unit_of(PLATFORMS[name], "float32", True)
        assert judge.weigh(got, unit, PLATFORMS[name].units * unit).ok is fine


def half(x, y):
    return (jnp.asarray(x, jnp.bfloat16) @ jnp.asarray(y, jnp.bfloat16)).astype(x.dtype)
