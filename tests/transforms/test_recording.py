"""A transform calls its function once, over Tensors or over arrays. What the function raises comes out."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tapejax import errors
from tests.some import one_in

X = jnp.linspace(0.5, 1.5, 3)


def leaf():
    return tj.tensor(X, requires_grad=True)


TRANSFORMS = {
    "grad": lambda f: tj.grad(f)(X),
    "grad of a Tensor": lambda f: tj.grad(f)(leaf()),
    "value_and_grad": lambda f: tj.value_and_grad(f)(X),
    "vjp": lambda f: tj.vjp(f, X),
    "jvp": lambda f: tj.jvp(f, (X,), (X,)),
    "linearize": lambda f: tj.linearize(f, X),
    "jacrev": lambda f: tj.jacrev(f)(X),
    "jacfwd": lambda f: tj.jacfwd(f)(X),
    "hessian": lambda f: tj.hessian(f)(X),
    "elementwise_grad": lambda f: tj.elementwise_grad(f)(X),
    "grad of grad": lambda f: tj.grad(lambda x: tj.grad(f)(x).sum())(X),
    "jit": lambda f: tj.jit(f)(X),
    "jit of a Tensor": lambda f: tj.jit(f)(leaf()),
    "vmap": lambda f: tj.vmap(f)(X),
    "vmap of a Tensor": lambda f: tj.vmap(f)(leaf()),
    "checkpoint": lambda f: tj.checkpoint(f, leaf()),
    "checkpoint with a policy": lambda f: tj.checkpoint(f, leaf(), policy="dots"),
    "checkpoint within grad": lambda f: tj.grad(lambda x: tj.checkpoint(f, x))(X),
    "lift": lambda f: tj.lift(f)(leaf()),
    "lift of no gradient": lambda f: tj.lift(f)(tj.tensor(X)),
    "verify": lambda f: tj.verify(f, X),
    "check_grads": lambda f: tj.check_grads(f, (X,), 1),
    "scan": lambda f: tj.lax.scan(lambda c, x: (f(x), c), leaf()[0], leaf()),
    "scan of arrays": lambda f: tj.lax.scan(lambda c, x: (f(x), c), X[0], X),
}
RAISED = {
    "TypeError": lambda: TypeError("Tensor of the wrong kind"),
    "AttributeError": lambda: AttributeError("'Tensor' object has no attribute 'colour'"),
    "an error of ours": lambda: errors.TensorConversionError("a Tensor, says the user"),
    "a ValueError": lambda: ValueError("Tensor"),
}


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_what_a_function_raises_comes_out_and_it_ran_once(name, raised):
    error, ran = RAISED[raised](), []
    if name == "verify" and isinstance(error, tj.TapejaxError):
        pytest.skip("what tapejax raises is what verify reports")

    def f(x):
        ran.append(x)
        raise error

    with pytest.raises(type(error)) as caught:
        TRANSFORMS[name](f)
    assert caught.value is error
    assert len(ran) == 1


@pytest.mark.parametrize("name", TRANSFORMS)
def test_also_after_ops_and_after_functions_of_jax(name):
    for m in (tnp, jnp) if "scan" not in name else (tnp,):
        error, ran = TypeError("'Tensor' object is not what I want"), []

        def f(x, m=m, ran=ran, error=error):
            y = m.sin(x) * 2
            ran.append(y)
            raise error

        with pytest.raises(TypeError) as caught:
            TRANSFORMS[name](f)
        assert caught.value is error
        assert len(ran) == 1


def test_an_error_that_the_function_made_of_a_refusal_is_its_own():
    for transform in (tj.grad(lambda x: f(x)), tj.jit(lambda x: f(x)), tj.vmap(lambda x: f(x))):
        ran = []

        def f(x, ran=ran):
            ran.append(x)
            try:
                return jnp.sin(x)
            except TypeError as refusal:
                raise TypeError("not with a Tensor") from refusal

        with pytest.raises(TypeError, match="not with a Tensor"):
            transform(leaf())
        assert len(ran) == 1


# --- functions written for arrays --------------------------------------------------------------------


def by_loop(x):
    return jax.lax.scan(lambda carry, row: (row + carry, carry), 0.0, x)[0]


def by_derivative(x):
    return jnp.sum(jax.grad(lambda y: (y * y * y).sum())(x))


def by_attribute(x):
    return x.copy().sum() if isinstance(x, jax.core.Tracer) else (x.addressable_shards, x)[1].sum()


OVER_ARRAYS = {
    "jax.numpy": lambda x: jnp.sum(jnp.sin(x) * x),
    "lax": lambda x: jax.lax.reduce_sum(jax.lax.mul(x, x), (0,)),
    "jit": jax.jit(lambda x: jnp.sum(x * x)),
    "loop": by_loop,
    "derivative": by_derivative,
    "branches": lambda x: jax.lax.cond(jnp.sum(x) > 0, lambda y: jnp.sum(y), lambda y: y.sum() * 0 + 1.0, x),
    "update": lambda x: jnp.zeros(3).at[0].set(x[0] * 2).sum(),
    "attribute": by_attribute,
}


@pytest.mark.parametrize("name", one_in(2, OVER_ARRAYS))
def test_functions_written_for_arrays(name):
    f = lambda x: OVER_ARRAYS[name](x)
    with jax.enable_x64(True):
        expected = np.asarray(jax.grad(f)(X))
    np.testing.assert_allclose(tj.grad(f)(X), expected, rtol=1e-6)
    np.testing.assert_allclose(tj.vjp(lambda x: f(x), X)[1](jnp.float32(1))[0], expected, rtol=1e-6)
    for call in (tj.jit(lambda x: f(x)), lambda x: tj.checkpoint(lambda y: f(y), x)):
        x = leaf()
        np.testing.assert_allclose(tj.backward(call(x))[x], expected, rtol=1e-6)
    x = tj.tensor(jnp.stack([X, X]), requires_grad=True)
    rows = tj.vmap(lambda x: f(x))(x)
    np.testing.assert_allclose(tj.backward(rows.sum())[x], [expected, expected], rtol=1e-6)


def test_a_function_that_gives_a_tensor_to_jax_is_begun_again_once():
    ran = []

    def f(x):
        ran.append(type(x))
        return jnp.sum(jnp.sin(x))

    slope = tj.grad(f)
    slope(X)
    assert ran[0] is tj.Tensor
    assert len(ran) == 2
    slope(X)
    assert len(ran) == 3, "what it is was remembered"


def test_numpy_does_not_make_it_begin_again():
    ran = []

    def f(x):
        ran.append(x)
        return np.sin(x)

    with pytest.raises(errors.TensorConversionError, match=r"np\.sin"):
        tj.grad(f)(X)
    assert len(ran) == 1


def test_a_function_that_runs_neither_way_says_what_was_wrong_over_tensors():
    def f(x):
        return tj.backward(jnp.sum(x), wrt=x)[x].sum()

    with pytest.raises(errors.GivenToJaxError, match="sum"):
        tj.grad(f)(X)


def test_over_arrays_an_error_about_the_program_or_of_the_users_own_comes_out():
    def grows(x):
        return jax.lax.while_loop(lambda c: c < 3.0, lambda c: c * 1.5, x)

    def refuses(x):
        jnp.sin(x)
        raise errors.ArgumentError("the user's own")

    def tridiagonal(x):
        return jnp.sum(jax.lax.linalg.tridiagonal(jnp.outer(x, x))[0])

    with pytest.raises(errors.UnknownLengthError):
        jax.jit(tj.grad(grows))(1.0)
    with pytest.raises(errors.ArgumentError, match="the user's own"):
        tj.grad(refuses)(1.0)
    with pytest.raises(errors.RefusedPrimitive):
        tj.grad(tridiagonal)(X)


def test_a_library_that_knows_arrays_and_not_tensors_gets_arrays():
    chex = pytest.importorskip("chex")

    def f(x):
        chex.assert_axis_dimension(x, axis=0, expected=len(X))
        return x @ x

    np.testing.assert_allclose(tj.grad(f)(X), 2 * X, rtol=1e-6)


LIBRARY = """
import jax

def positive(x):
    if not isinstance(x, jax.core.Tracer) and not (x > 0).all():
        raise ValueError("not positive")
    return x
"""


def test_a_library_that_knows_tracers_and_not_tensors_gets_arrays():
    beside_jax = pathlib.Path(jax.__file__).parents[1] / "somebody" / "checks.py"
    library: dict = {}
    exec(compile(LIBRARY, str(beside_jax), "exec"), library)
    f = lambda x: jnp.log(library["positive"](x)).sum()
    slope = lambda x: tj.grad(lambda x: f(x))(x)  # each time a function that nobody knows yet
    for transformed in (slope, jax.jit(slope), tj.jit(slope), jax.vmap(slope), tj.vmap(slope)):
        np.testing.assert_allclose(transformed(X), 1 / X, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: slope(x).sum())(X), -1 / X**2, rtol=1e-6)
    with pytest.raises(ValueError, match="not positive"):
        tj.grad(f)(-X * X)


def test_a_truth_value_of_ones_own_is_an_error_at_once():
    calls = []

    def f(x):
        calls.append(x)
        return x.sum() if (x > 0).all() else x.prod()

    with pytest.raises(errors.ConcreteValueError) as caught:
        jax.jit(tj.grad(f))(X)
    assert len(calls) == 1
    assert not isinstance(caught.value, errors.WantsArraysError)
    with pytest.raises(errors.ConcreteValueError):
        jax.jit(tj.grad(lambda x: np.float32(np.all(x > 0)) * x.sum()))(X)
