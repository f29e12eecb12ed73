import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tapejax.errors import RefusedPrimitive
from tapejax.rules.registry import TABLE, Rule
from tapejax.verify.check import check_sample, our_vjp
from tapejax.verify.samples.constants import SAMPLES
from tests.rules.harness import assert_finite, assert_sample, cases, finite_cases

# No derivative could flow through these, whatever their operands: nothing to compare with jax.
# (mulhi multiplies integers, and XLA has no kernel for it on CPU.)
WITHOUT_SAMPLES = ["after_all", "axis_index", "create_token", "empty2", "mulhi"]


@pytest.mark.parametrize(("sample", "dtype"), cases(SAMPLES, order=1))
def test_gradient_equals_jax(sample, dtype):
    assert_sample(sample, dtype, order=1)


@pytest.mark.parametrize("sample", finite_cases(SAMPLES))
def test_gradient_equals_finite_differences(sample):
    assert_finite(sample)


def test_every_constant_has_a_sample():
    names = {entry.name for entry in TABLE.values() if entry.kind == "constant" and entry.family == "constants"}
    sampled = {key if isinstance(key, str) else key.name for key in SAMPLES}
    assert sorted(names - sampled) == WITHOUT_SAMPLES


def test_every_reason_is_given():
    assert [e.name for e in TABLE.values() if e.kind == "constant" and not e.reason] == []


@pytest.mark.parametrize("primitive", [lax.floor_p, lax.ceil_p, lax.round_p, lax.stop_gradient_p])
def test_a_derivative_where_none_flows_is_caught(primitive, monkeypatch):
    straight_through = Rule(primitive.name, lambda ct, out, x, **_: (ct,), "", cheap=True, zeros=True, family="")
    monkeypatch.setitem(TABLE, primitive, straight_through)
    assert not all(check_sample(sample, "float64").ok for sample in SAMPLES[primitive])


def test_the_bounds_of_hidden_random_numbers_are_refused():
    draw = lambda x: lax.rng_uniform(x, x + 1, (3,))
    with pytest.raises(RefusedPrimitive, match="rng_uniform"):
        our_vjp(draw, [jnp.array(1.0)], [True])


def test_stop_gradient_says_that_its_result_does_not_depend():
    from tapejax.calculus.reverse import reverse
    from tapejax.program.program import trace

    both = lambda x: [lax.stop_gradient(x), lax.floor(x), x]
    program, _ = trace(both, [jax.ShapeDtypeStruct((2,), jnp.float32)])
    assert reverse(program, [True]).depends == (False, True, True)
