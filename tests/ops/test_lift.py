"""lift: any JAX function over Tensors, as one action."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tapejax as tj
from tapejax import errors


def leaf(value):
    return tj.tensor(value, requires_grad=True)


def test_one_action_and_the_functions_own_structure():
    def f(tree, *, scale):
        return {"sum": (tree["a"] + tree["b"][0]) * scale, "n": jnp.argmax(tree["a"])}

    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    with tj.Tape() as tape:
        out = tj.lift(f)({"a": x, "b": (y, None)}, scale=3.0)
    assert len(tape) == 1
    assert set(out) == {"sum", "n"}
    assert out["sum"].requires_grad
    assert not out["n"].requires_grad
    grads = tape.backward(out["sum"])
    assert np.array_equal(grads[x], [3.0, 3.0])
    assert np.array_equal(grads[y], [3.0, 3.0])


def test_without_tensors_it_is_the_function_itself():
    f = tj.lift(lambda x: x * 2)
    assert isinstance(f(jnp.ones(2)), jax.Array)
    assert f(3) == 6
    assert jax.grad(f)(3.0) == 2.0


def test_arrays_numbers_and_tensors_mix():
    f = tj.lift(lambda x, y, z: x * y + z)
    x = leaf([1.0, 2.0])
    out = f(x, np.array([3.0, 4.0], "f"), 1)
    assert np.array_equal(out.value, [4.0, 9.0])
    assert np.array_equal(tj.backward(out)[x], [3.0, 4.0])


def test_static_arguments_by_name_and_position():
    f = tj.lift(lambda x, n: x.reshape(n, -1), static_argnames="n")
    x = leaf(np.arange(6, dtype="f"))
    assert f(x, 2).shape == (2, 3)
    assert f(x, n=3).shape == (3, 2)
    assert len(f.plans) >= 2


def test_keeps_name_and_docstring():
    lifted = tj.lift(jnp.sinc)
    assert lifted.__name__ == "sinc"
    assert lifted.__doc__ == jnp.sinc.__doc__


def test_decorator_with_options():
    @tj.lift(static_argnames="power")
    def f(x, power):
        return x**power

    assert tj.backward(f(leaf(3.0), 2)) is not None


def test_several_outputs_with_partial_cotangents():
    f = tj.lift(lambda x: (jnp.sin(x), jnp.cos(x), x > 0))
    x = leaf(0.5)
    a, b, c = f(x)
    assert not c.requires_grad
    assert np.isclose(tj.backward(b)[x], -np.sin(0.5))
    a, b, c = f(x)
    assert np.isclose(tj.backward(a * b)[x], np.cos(1.0), rtol=1e-6)


def test_plan_is_reused():
    calls = []

    def f(x):
        calls.append(1)
        return x * 2

    lifted = tj.lift(f)
    for value in (1.0, 2.0, 3.0):
        lifted(leaf(value))
    traced = len(calls)
    lifted(leaf(4.0))
    assert len(calls) == traced


def test_constant_through_floor_has_a_zero_gradient_as_in_jax():
    f = tj.lift(jnp.floor)
    x = leaf([1.5, 2.5])
    y = f(x)
    assert y.requires_grad
    assert np.array_equal(tj.backward(y)[x], [0.0, 0.0])


def test_stop_gradient_inside_ends_the_record():
    y = tj.lift(lambda x: lax.stop_gradient(x) * 2)(leaf(1.0))
    assert not y.requires_grad


def test_precision_setting_makes_a_program_of_its_own():
    x = leaf(np.ones((2, 2), "f"))
    f = tj.lift(jnp.matmul)
    f(x, x)
    with jax.default_matmul_precision("highest"):
        tj.backward(f(x, x))
    (plan,) = set(f.plans.values())
    both = [plan, *plan.variants.values()]
    precisions = {str(one.flat_program.eqns[0].params["precision"]) for one in both}
    assert len(precisions) == 2


def test_x64_makes_a_plan_of_its_own():
    x = tj.tensor(np.ones(3, np.int32))
    assert x.sum().dtype == jnp.int32
    with jax.enable_x64(True):
        assert x.sum().dtype == jnp.int64


def test_bad_options():
    with pytest.raises(TypeError, match="takes a function"):
        tj.lift(3)
    with pytest.raises(ValueError, match="foreign"):
        tj.lift(jnp.sin, foreign="yes")
    with pytest.raises(TypeError, match="neither numbers nor hashable"):
        tj.lift(lambda x, option: x)(leaf(1.0), set())
    with pytest.raises(TypeError, match="static argument"):
        tj.lift(lambda x, n: x, static_argnums=1)(leaf(1.0), leaf(1.0))
    with pytest.raises(TypeError, match="object array"):
        tj.lift(jnp.add)(leaf(1.0), np.array([None]))


# --- custom rules --------------------------------------------------------------------------------------


@jax.custom_vjp
def wrong(x):
    return jnp.sin(x)


wrong.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (10 * ct,))


def test_custom_vjp_is_honoured_and_can_be_ignored():
    x = leaf(0.5)
    assert tj.backward(tj.lift(wrong)(x))[x] == 10.0
    y = tj.lift(wrong, ignore_custom_rules=True)(x)
    assert np.isclose(tj.backward(y)[x], np.cos(0.5))


# --- under jax's transformations -----------------------------------------------------------------------------


def loss(x, w):
    h = tj.lift(jnp.tanh)(x @ w)
    return (h * h).sum()


def test_the_same_code_under_jit():
    x, w = np.ones((2, 3), "f"), np.full((3, 4), 0.1, "f")

    @jax.jit
    def step(x, w):
        tx, tw = tj.tensor(x, requires_grad=True), tj.tensor(w, requires_grad=True)
        grads = tj.backward(loss(tx, tw))
        return grads[tx], grads[tw]

    tx, tw = leaf(x), leaf(w)
    grads = tj.backward(loss(tx, tw))
    for got, expected in zip(step(x, w), (grads[tx], grads[tw]), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_the_same_code_under_vmap():
    def gradient(x):
        t = tj.tensor(x, requires_grad=True)
        return tj.backward((t * t * t).sum())[t]

    xs = np.arange(6, dtype="f").reshape(3, 2)
    np.testing.assert_allclose(jax.vmap(gradient)(xs), 3 * xs**2)


def test_the_same_code_under_jax_grad():
    def f(x):
        t = tj.tensor(x, requires_grad=True)
        return (t * t * t).sum().value

    np.testing.assert_allclose(jax.grad(f)(jnp.arange(3.0)), 3 * np.arange(3.0) ** 2)
    second = jax.grad(lambda x: tj.backward(lifted_cube(t := tj.tensor(x, requires_grad=True)))[t])
    np.testing.assert_allclose(second(2.0), 12.0)


lifted_cube = tj.lift(lambda x: x * x * x)


def test_higher_order_by_lifting_a_backward():
    """A backward is a plain JAX function, so it can be lifted again."""

    def slope(x):
        t = tj.tensor(x, requires_grad=True)
        return tj.backward(lifted_cube(t))[t]

    def curvature(x):
        t = tj.tensor(x, requires_grad=True)
        return tj.backward(tj.lift(slope)(t))[t]

    x = leaf(2.0)
    assert tj.backward(tj.lift(slope)(x))[x] == 12.0
    assert tj.backward(tj.lift(curvature)(x))[x] == 6.0


# --- foreign primitives -----------------------------------------------------------------------------------------


def test_primitive_of_another_package_is_marked_foreign():
    from jax.extend.core import Primitive
    from jax.interpreters import ad, mlir

    double = Primitive("double_of_somebody")
    double.def_impl(lambda x: x * 2)
    double.def_abstract_eval(lambda x: x)
    mlir.register_lowering(double, mlir.lower_fun(lambda x: x * 2, multiple_results=False))
    ad.deflinear2(double, lambda ct, x: [ct * 2])

    x = leaf(3.0)
    with tj.Tape() as tape:
        y = tj.lift(lambda x: double.bind(x) * x)(x)
    assert tape[0].foreign
    assert "(foreign)" in repr(tape[0])
    assert tape.backward(y)[x] == 12.0
    with pytest.raises(errors.MissingRule, match="double_of_somebody") as caught:
        tj.lift(lambda x: double.bind(x), foreign="error")(x)
    assert isinstance(caught.value, NotImplementedError)


def test_refused_primitive_names_reason_line_and_fix():
    def f(x):
        return jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct((), jnp.float32), x)

    with pytest.raises(errors.RefusedPrimitive) as caught:
        tj.lift(f)(leaf(1.0))
    assert "fix" in str(caught.value)
    assert "test_lift.py" in str(caught.value)


def test_zeros_of_either_sign_are_two_numbers():
    one = tj.tensor(1.0)
    assert float(one / 0.0) == np.inf
    assert float(one / -0.0) == -np.inf


def test_what_jax_says_of_a_trace_is_about_the_users_function():
    def decide(x):
        return x if x > 0 else -x

    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"the function decide at \S*test_lift\.py:\d+"):
        tj.lift(decide)(leaf(1.0))


def test_a_line_of_the_tape_shows_exponent_and_axis():
    x = leaf([[1.0, 2.0]])
    with tj.Tape() as tape:
        x**3, x.sum(0), x.sum(axis=(0, 1)), x.sum(), tj.numpy.mean(x, axis=1), tj.numpy.cumsum(x, 1)
    said = [repr(action).split(f"%{x.id.number}")[1] for action in tape]
    assert said == [" exponent=3", " axis=0", " axis=(0, 1)", "", " axis=1", " axis=1"]


def test_plain_options_are_told_apart():
    """A call with plain options finds its plan by a key of its own, which must not confuse what is nearly equal."""
    x = tj.tensor(np.arange(6.0, dtype="f").reshape(2, 3), requires_grad=True)
    for _ in range(3):
        assert tj.numpy.reshape(x, (3, 2)).shape == (3, 2)
        assert tj.numpy.reshape(x, (1, 6)).shape == (1, 6)
        assert tj.numpy.reshape(x, 6).shape == (6,)
        assert tj.numpy.sum(x, 0).shape == (3,)
        assert tj.numpy.sum(x, None).shape == ()
        assert tj.numpy.sum(x, axis=1, keepdims=True).shape == (2, 1)
        assert tj.numpy.sum(x, axis=1, keepdims=False).shape == (2,)
        assert tj.numpy.sum(x, keepdims=True, axis=1).shape == (2, 1)
        assert tj.numpy.sum(x, axis=(0, 1)).shape == ()
        assert tj.numpy.add(x, 1).value[0, 1] == 2.0
        assert tj.numpy.add(x, 2).value[0, 1] == 3.0  # a number that is an operand is none of the options
        assert tj.numpy.add(1, x).value[0, 1] == 2.0
        scaled = tj.lift(lambda x, by, up: x * by if up else x / by, static_argnums=(1, 2))
        assert scaled(x, 2, True).value[0, 1] == 2.0
        assert scaled(x, 2, False).value[0, 1] == 0.5
        assert scaled(x, True, 2).value[0, 1] == 1.0
        assert scaled(x, 2, up=True).value[0, 1] == 2.0
