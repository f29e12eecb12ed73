import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tapejax.errors import RefusedPrimitive
from tapejax.program import discharge
from tapejax.program.program import trace
from tapejax.verify.check import check_sample, our_vjp
from tapejax.verify.samples.refs import SAMPLES, straight
from tests.rules.harness import assert_finite, assert_sample, cases, finite_cases


@pytest.mark.parametrize(("sample", "dtype"), cases(SAMPLES, order=1))
def test_gradient_equals_jax(sample, dtype):
    assert_sample(sample, dtype, order=1)


# Up to jax 0.11 jax.vjp of jax.vjp fails on references ("DynamicJaxprTracer has no attribute accum").
TWICE = {k: v[:1] for k, v in SAMPLES.items()} if jax.__version_info__ >= (0, 12) else {}


@pytest.mark.parametrize(("sample", "dtype"), cases(TWICE, order=2))
def test_second_derivative_equals_jax(sample, dtype):
    assert_sample(sample, dtype, order=2)


@pytest.mark.parametrize("sample", finite_cases(SAMPLES))
def test_gradient_equals_finite_differences(sample):
    assert_finite(sample)


# --- what jax cannot do ------------------------------------------------------------------------------


def test_a_reference_from_outside_keeps_its_effect_and_its_derivative():
    ref = jax.new_ref(jnp.ones(3))

    def function(x):
        y = ref[...]
        ref[...] = 2.0 * x
        return 3.0 * x * y + ref[...] ** 2

    x = jnp.array([1.0, 2.0, 3.0])
    out, pullback = our_vjp(function, [x], [True])
    np.testing.assert_allclose(out[0], 3.0 * x + 4.0 * x**2)
    np.testing.assert_allclose(pullback([jnp.ones(3)])[0], 3.0 + 8.0 * x)
    np.testing.assert_allclose(ref[...], 2.0 * x)


def test_an_empty_reference():
    def function(x):
        ref = jax.empty_ref(jax.ShapeDtypeStruct((3,), x.dtype))
        ref[...] = x * x
        return ref[...] * x

    x = jnp.array([1.0, 2.0, 3.0])
    program, _ = trace(function, [x])
    np.testing.assert_allclose(program.run(x)[0], x**3)


def test_a_while_loop_runs_with_its_references():
    def function(x):
        ref = jax.new_ref(x)

        def body(i):
            ref[...] = ref[...] * x
            return i + 1

        lax.while_loop(lambda i: (i < 3) & (ref[...] < 100.0), body, 0)
        return ref[...]

    program, _ = trace(function, [jnp.array(2.0)])
    assert program.run(jnp.array(2.0))[0] == 16.0
    assert program.run(jnp.array(20.0))[0] == 400.0


def test_a_reference_into_a_custom_function_is_refused():
    @jax.custom_jvp
    def store(ref, x):
        ref[...] = x

    store.defjvp(lambda primals, tangents: (None, None))

    def function(x):
        ref = jax.new_ref(x)
        store(ref, x)
        return ref[...]

    try:
        jax.make_jaxpr(function)(1.0)
    except Exception:
        pytest.skip("jax itself refuses it")
    with pytest.raises(RefusedPrimitive, match="reference"):
        trace(function, [jnp.array(1.0)])


def test_equations_keep_the_users_lines():
    def in_this_file(x):
        ref = jax.new_ref(x)
        ref[0] = ref[1] * ref[2]
        return jax.freeze(ref)

    program, _ = trace(in_this_file, [jnp.ones(3)])
    lines = [eqn.line for eqn in program.eqns]
    assert lines
    assert all("test_discharge.py" in line for line in lines)


def test_nothing_of_the_references_is_left():
    program, _ = trace(straight, [jnp.ones(3)])
    assert {eqn.name for eqn in program.eqns}.isdisjoint(discharge.REFERENCES)


# --- a wrong rewriting is caught ---------------------------------------------------------------------


def forgets_to_write(eqn, cell, new, *leaves):
    return [discharge.read(cell.value, discharge.index_of(eqn, leaves))]


def returns_the_new_value(eqn, cell, new, *leaves):
    discharge.swap(eqn, cell, new, *leaves)
    return [new]


def overwrites(eqn, cell, more, *leaves):
    discharge.swap(eqn, cell, more, *leaves)
    return []


def always_the_start(eqn, cell, *leaves):
    return [discharge.read(cell.value, discharge.index_of(eqn, leaves)) * 2.0]


MUTANTS = [
    ("swap", forgets_to_write), ("swap", returns_the_new_value), ("addupdate", overwrites), ("get", always_the_start),
]  # fmt: skip


@pytest.mark.parametrize(("name", "mutant"), MUTANTS)
def test_a_wrong_rewriting_is_caught(name, mutant, monkeypatch):
    monkeypatch.setitem(discharge.REFERENCES, name, mutant)
    assert not all(check_sample(sample, "float64").ok for sample in SAMPLES[name] if "float64" in sample.dtypes)
