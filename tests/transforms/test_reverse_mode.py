"""grad and its relatives against jax's own: ten functions, orders one to three, pytrees, complex numbers, refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tapejax import errors
from tapejax.fusion.layout import layouts
from tests.some import one_in

TOLERANCE = 1e-10
rng = np.random.default_rng(0)
X = rng.normal(size=3)
MATRIX = rng.normal(size=(3, 3))


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@jax.custom_vjp
def custom(x):
    return jnp.sin(x) * x


custom.defvjp(lambda x: (custom(x), x), lambda x, ct: (ct * (x * jnp.cos(x) + jnp.sin(x)),))


@jax.custom_jvp
def custom_forward(x):
    return x**3


custom_forward.defjvp(lambda primals, tangents: (primals[0] ** 3, 3 * primals[0] ** 2 * tangents[0]))


def newton(m, x):
    for _ in range(2):
        x = x - (x**3 - m * x - 1.0) / (3 * x**2 + 1.0)
    return x


def recurrence(np_, x):
    h = x * 0.0
    for i in range(2):
        h = np_.tanh(h * x[i] + x)
    return h


# Each takes a module like jax.numpy, so that the same function is written for arrays and for Tensors.
FUNCTIONS = {
    "operators": lambda m, x: (x**3 / (1.0 + x * x) - 2.0 * x).sum(),
    "elementwise": lambda m, x: m.sum(m.tanh(x) * m.exp(-x) + m.log1p(x * x)),
    "matmul": lambda m, x: m.sum(m.sin(MATRIX @ x) @ MATRIX * x),
    "softmax": lambda m, x: m.sum(m.exp(x - m.max(x)) / m.sum(m.exp(x - m.max(x))) * m.arange(3.0)),
    "indexing": lambda m, x: x[0] * x[1:].sum() + m.prod(x) + x[m.array([2, 0])] @ x[:2],
    "where": lambda m, x: m.sum(m.where(x > 0, x**2, m.exp(x) * x)),
    "linalg": lambda m, x: m.linalg.slogdet(m.outer(x, x) + 4.0 * m.eye(3))[1],
    "control": lambda m, x: functools.reduce(lambda s, i: s + m.sin(x[i]) * s, range(2), x[2] * x[2]),
    "iteration": lambda m, x: newton(x[0], x[1] + 2.0) * x[2],
    "recurrence": lambda m, x: (recurrence(m, x) ** 2).sum(),
    "power": lambda m, x: m.sum(m.abs(x) ** 2.5) ** 0.5,
}
VECTOR_FUNCTIONS = {
    "outer": lambda m, x: m.outer(m.sin(x), x**2),
    "affine": lambda m, x: m.tanh(MATRIX @ x),
    "dict": lambda m, x: {"a": x[1:] * x[0], "b": (m.cos(x) * x).sum()},
}
JAX_FUNCTIONS = {
    "jitted": jax.jit(lambda x: (x**3).sum() * jnp.cos(x[0])),
    "jitted operators": jax.jit(lambda x: (x * x * x).sum()),
    "scan": lambda x: jnp.sum(jax.lax.scan(lambda h, e: (jnp.tanh(h * e + x), h * e), x, x)[1] ** 2),
    "custom_vjp": lambda x: custom(x).sum() ** 2,
    "custom_jvp": lambda x: custom_forward(x).sum() ** 2,
    "vmap": lambda x: jax.vmap(lambda a: a * jnp.sin(a))(x).prod(),
    "tree": lambda x: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves({"a": x, "b": x[1:] * x[:2]})),
    "checkpoint": lambda x: jax.checkpoint(lambda a: jnp.sum(jnp.sin(a) ** 3))(x),
}

OVER = {"tensors": tnp, "arrays": jnp}


def cases(functions):
    """Each function over Tensors; three of them over arrays too, where it is one op whatever it does."""
    marks = lambda name: [] if name in QUICK else [pytest.mark.slow]
    several = [pytest.param(f, "tensors", id=name, marks=marks(name)) for name, f in functions.items()]
    one_op = list(functions.items())[:3]
    return several + [pytest.param(f, "arrays", id=f"{name}-arrays", marks=marks(name)) for name, f in one_op]


QUICK = {"control", "elementwise", "affine"}  # the others run with the slow tests


def close(ours, judge):
    ours_leaves, ours_structure = jax.tree.flatten(ours)
    judge_leaves, judge_structure = jax.tree.flatten(judge)
    assert ours_structure == judge_structure
    for a, b in zip(ours_leaves, judge_leaves, strict=True):
        assert isinstance(a, (jax.Array, np.ndarray))
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        if a.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


def scalar(g):
    """A function whose gradient can be taken again."""
    return lambda x: (lambda r: (r * r).sum())(g(x))


# --- orders one to three -----------------------------------------------------------------------------


def all_of(m, f, x, t):
    """Every transform of jax or tapejax, in orders one to three: one program, so that it is compiled once."""
    g, h = scalar(m.grad(f)), scalar(m.grad(scalar(m.grad(f))))
    return {
        "value_and_grad": m.value_and_grad(f)(x),
        "grad 2": m.grad(g)(x),
        "grad 3": m.grad(h)(x),
        "jvp": m.jvp(f, (x,), (t,)),
        "linearize": m.linearize(f, x)[1](t),
        "vjp": m.vjp(m.grad(f), x)[1](t),
        "hessian": m.hessian(f)(x),
        "jacobian 2": m.jacrev(m.jacfwd(f))(x),
        "mixed 3": m.jacrev(lambda x: m.jvp(m.grad(f), (x,), (t,))[1])(x),
    }


@pytest.mark.parametrize(("f", "over"), cases(FUNCTIONS))
def test_all_transforms_of_order_one_to_three(f, over):
    ours, judge = functools.partial(f, OVER[over]), functools.partial(f, jnp)
    x, t = jnp.asarray(X), jnp.asarray(X[::-1] + 1.0)
    close(tj.value_and_grad(ours)(x), jax.jit(jax.value_and_grad(judge))(x))
    found = jax.jit(functools.partial(all_of, tj, ours))(x, t)
    judged = jax.jit(functools.partial(all_of, jax, judge))(x, t)
    assert found.keys() == judged.keys()
    for name in found:
        close(found[name], judged[name])


def all_jacobians(m, f, x, t):
    out, pullback = m.vjp(f, x)
    _, tangent = m.linearize(f, x)
    once, ones = pullback(out), pullback(jax.tree.map(jnp.ones_like, out))  # it may be called again
    third = m.jacrev(m.jacfwd(m.jacrev(f)))(x)
    return [m.jacrev(f)(x), m.jacfwd(f)(x), m.hessian(f)(x), third, out, once, ones, tangent(t), tangent(x)]


@pytest.mark.parametrize(("f", "over"), cases(VECTOR_FUNCTIONS))
def test_jacobians_of_order_one_to_three(f, over):
    ours, judge = functools.partial(f, OVER[over]), functools.partial(f, jnp)
    x = jnp.asarray(X)
    found, judged = (jax.jit(functools.partial(all_jacobians, m, g))(x, x * x) for m, g in ((tj, ours), (jax, judge)))
    close(found, judged)


@pytest.mark.slow
def test_eager_equals_compiled_in_orders_two_and_three():
    f = functools.partial(FUNCTIONS["elementwise"], tnp)
    x = jnp.asarray(X)
    some = lambda x: (tj.grad(scalar(tj.grad(f)))(x), tj.jacfwd(tj.grad(f))(x), tj.jvp(tj.hessian(f), (x,), (x * x,)))
    close(some(x), jax.jit(some)(x))


@pytest.mark.parametrize("name", one_in(2, JAX_FUNCTIONS))
def test_functions_that_jax_must_trace(name):
    f = JAX_FUNCTIONS[name]
    x = jnp.asarray(X)
    both = lambda m: lambda x: (m.value_and_grad(f)(x), m.grad(scalar(m.grad(f)))(x))
    close(tj.value_and_grad(f)(x), jax.jit(jax.value_and_grad(f))(x))
    close(jax.jit(both(tj))(x), jax.jit(both(jax))(x))


def test_custom_rules_as_they_are():
    x = jnp.asarray(X)
    close(tj.elementwise_grad(custom)(x), x * jnp.cos(x) + jnp.sin(x))
    close(tj.grad(custom_forward)(x[0]), 3 * x[0] ** 2)


def test_a_wrong_gradient_would_be_seen():
    with pytest.raises(AssertionError):
        close(tj.grad(lambda x: (x * x).sum())(jnp.asarray(X)), jax.grad(lambda x: 2.000001 * (x * x).sum() / 2)(X))


# --- arguments, pytrees, aux ----------------------------------------------------------------------------


def model(p, x, scale=1.0):
    hidden = (p["w"] @ x + p["b"][0]) * scale
    return (hidden * hidden).sum() + (p["b"][1] * hidden).sum()


PARAMETERS = {"w": MATRIX, "b": [X, np.float32(2.0)]}


@pytest.mark.parametrize("argnums", one_in(3, [0, -1, (0,), (1, 0), 1, (0, 1), [1]]))
def test_pytrees_and_argnums(argnums):
    p = jax.tree.map(jnp.asarray, PARAMETERS)
    for ours, judge in [(tj.grad, jax.grad), (tj.value_and_grad, jax.value_and_grad), (tj.jacrev, jax.jacrev),
                        (tj.jacfwd, jax.jacfwd), (tj.hessian, jax.hessian)]:  # fmt: skip
        if isinstance(argnums, list) and ours is not tj.grad:
            continue
        call = lambda transform, p, x: transform(model, argnums)(p, x, scale=0.5)
        close(jax.jit(functools.partial(call, ours))(p, X), jax.jit(functools.partial(call, judge))(p, X))


def test_aux_of_any_kind():
    f = lambda x: (jnp.sum(x**2), {"mean": x.mean(), "name": "here", "n": 3})
    for ours, judge in [(tj.grad, jax.grad), (tj.value_and_grad, jax.value_and_grad), (tj.jacrev, jax.jacrev)]:
        mine, theirs = ours(f, has_aux=True)(X), judge(f, has_aux=True)(X)
        names = lambda tree: [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, str)]
        assert names(mine) == names(theirs) == ["here"]
        plain = lambda tree: [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree) if not isinstance(leaf, str)]
        close(plain(mine), plain(theirs))
    g = lambda x: (x**2, x.sum())
    close(tj.jacfwd(g, has_aux=True)(X), jax.jacfwd(g, has_aux=True)(X))
    close(tj.jvp(g, (X,), (X,), has_aux=True), jax.jvp(g, (X,), (X,), has_aux=True))
    close([r for r in tj.vjp(g, X, has_aux=True) if not callable(r)], [r for r in jax.vjp(g, X, has_aux=True) if not callable(r)])  # fmt: skip
    close([r for r in tj.linearize(g, X, has_aux=True) if not callable(r)], [X**2, jnp.sum(X)])


def test_outputs_that_do_not_depend_on_the_input():
    for f in (lambda x: 3.0, lambda x: jnp.sum(jnp.ones(2)), lambda x: (x * 0.0).sum(), lambda x: jnp.sum(jax.lax.stop_gradient(x))):  # fmt: skip
        close(tj.grad(f)(X), np.zeros(3))
    close(tj.jacfwd(lambda x: {"a": x, "b": jnp.ones(2)})(X), jax.jacfwd(lambda x: {"a": x, "b": jnp.ones(2)})(X))
    close(tj.grad(lambda x: x)(2.0), jnp.float64(1.0))


SQUARE = np.arange(1.0, 5.0).reshape(2, 2)
INDEPENDENT = {
    "the power 0 of a matrix": lambda m, x: m.linalg.matrix_power(x, 0),
    "the power 0": lambda m, x: x**0,
    "distances of one point": lambda m, x: m.sqrt(m.square(x[:1] - x[:1]) + 1),
    "zeros like it": lambda m, x: m.zeros_like(x),
    "its shape": lambda m, x: m.asarray(float(x.shape[0])),
    "whole numbers of it": lambda m, x: x.astype(int).astype(float),
    "none of its elements": lambda m, x: x[:0],
    "a step": lambda m, x: m.floor(x),
    "something else": lambda m, x: m.ones(3),
}


@pytest.mark.parametrize("case", one_in(3, INDEPENDENT))
def test_every_transform_gives_zeros_for_what_does_not_depend_on_its_input(case):
    f = INDEPENDENT[case]
    values = lambda x: f(jnp, x)

    @jax.jit
    def judged(x):
        out, pull = jax.vjp(values, x)
        return out, pull(out), jax.jacrev(values)(x), jax.jacfwd(values)(x)

    out, gradient, rows, columns = judged(SQUARE)
    for ours in (values, lambda x: f(tj.numpy, x)):  # over arrays, and over Tensors
        total = lambda x, ours=ours: ours(x).sum()
        close(tj.grad(total)(SQUARE), jnp.zeros((2, 2)))
        close(tj.grad(lambda x: tj.grad(total)(x).sum())(SQUARE), jnp.zeros((2, 2)))  # noqa: B023
        close(tj.vjp(ours, SQUARE)[1](out), gradient)
        close(tj.jvp(ours, (SQUARE,), (SQUARE,))[1], jnp.zeros_like(out))
        close(tj.jacrev(ours)(SQUARE), rows)
        close(tj.jacfwd(ours)(SQUARE), columns)


def test_forward_mode_of_integers_is_float0_in_the_shape_of_the_jacobian():
    # jax.jacfwd gives integers here, or fails.
    positions, squares = tj.jacfwd(lambda x: (jnp.argmax(x, axis=0), x**2))(SQUARE)
    assert (positions.shape, positions.dtype) == ((2, 2, 2), jax.dtypes.float0)
    close(squares, jax.jacfwd(lambda x: x**2)(SQUARE))


# --- complex numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "f",
    [
        lambda z: z**3 + 2j * z,
        lambda z: jnp.sin(z) * jnp.exp(z),
        lambda z: 1.0 / (1.0 + z * z),
        lambda z: jnp.log(z) * z,
    ],
)
def test_holomorphic(f):
    z = 0.7 + 0.4j
    close(tj.grad(f, holomorphic=True)(z), jax.jit(jax.grad(f, holomorphic=True))(z))
    second, judge = tj.grad(tj.grad(f, holomorphic=True), holomorphic=True), jax.grad(jax.grad(f, holomorphic=True), holomorphic=True)  # fmt: skip
    close(second(z), jax.jit(judge)(z))
    zs = jnp.array([z, 1.0 - z])
    for ours, theirs in [(tj.jacrev, jax.jacrev), (tj.jacfwd, jax.jacfwd)]:
        close(ours(f, holomorphic=True)(zs), jax.jit(theirs(f, holomorphic=True))(zs))


@pytest.mark.parametrize(
    "f", [lambda z: jnp.abs(z) ** 2, lambda z: (z * jnp.conj(z) * z).real, lambda z: jnp.real(z) * jnp.imag(z)]
)
def test_real_functions_of_complex_numbers(f):
    z, t = jnp.complex128(0.7 + 0.4j), jnp.complex128(0.1 - 0.3j)
    close(tj.grad(f)(z), jax.grad(f)(z))
    close(tj.jvp(f, (z,), (t,)), jax.jvp(f, (z,), (t,)))
    close(tj.jvp(lambda z: jnp.conj(z) * z * z, (z,), (t,)), jax.jvp(lambda z: jnp.conj(z) * z * z, (z,), (t,)))


# --- what is refused as jax refuses it -------------------------------------------------------------------------

REFUSED = {
    "integer argument": lambda m: m.grad(lambda x: x * 1.0)(3),
    "boolean argument": lambda m: m.grad(lambda x: x * 1.0)(jnp.array(True)),
    "integer argument of jacrev": lambda m: m.jacrev(lambda x: x * 1.0)(3),
    "integer argument of jacfwd": lambda m: m.jacfwd(lambda x: x * 1.0)(3),
    "integer output": lambda m: m.grad(lambda x: jnp.int32(3))(1.0),
    "output with a shape": lambda m: m.grad(lambda x: x * 1.0)(jnp.ones(3)),
    "several outputs": lambda m: m.grad(lambda x: (x, x))(1.0),
    "no output": lambda m: m.grad(lambda x: None)(1.0),
    "complex output": lambda m: m.grad(lambda x: x * 1j)(1.0),
    "complex output of jacrev": lambda m: m.jacrev(lambda x: x * 1j)(1.0),
    "complex argument of jacfwd": lambda m: m.jacfwd(lambda x: x * 1.0)(1j),
    "holomorphic of a real": lambda m: m.grad(lambda x: x, holomorphic=True)(1.0),
    "argnums too large": lambda m: m.grad(lambda x: x, argnums=3)(1.0),
    "argnums of a wrong kind": lambda m: m.grad(lambda x: x, argnums="a")(1.0),
    "argument by name": lambda m: m.grad(lambda x: x)(x=1.0),
    "text": lambda m: m.grad(lambda x: 1.0)("text"),
    "no function": lambda m: m.grad(3),
    "no aux": lambda m: m.grad(lambda x: x, has_aux=True)(1.0),
    "too much aux": lambda m: m.grad(lambda x: (x, 1, 2), has_aux=True)(1.0),
    "tangent of another shape": lambda m: m.jvp(jnp.sin, (1.0,), (jnp.ones(2),)),
    "tangent of another dtype": lambda m: m.jvp(jnp.sin, (1.0,), (1,)),
    "tangent of an integer": lambda m: m.jvp(lambda x: x * 1.0, (1,), (1,)),
    "no tuples": lambda m: m.jvp(jnp.sin, 1.0, 1.0),
    "tangents of linearize": lambda m: m.linearize(jnp.sin, 1.0)[1](jnp.ones(2)),
    "cotangent of another shape": lambda m: m.vjp(jnp.sin, 1.0)[1](jnp.ones(2)),
    "cotangent of another dtype": lambda m: m.vjp(jnp.sin, 1.0)[1](1),
    "cotangent of another structure": lambda m: m.vjp(jnp.sin, 1.0)[1]((1.0, 1.0)),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_refused_as_jax_refuses_it(call):
    with pytest.raises((TypeError, ValueError)) as judge:
        call(jax)
    with pytest.raises(judge.type):
        call(tj)


def test_allow_int_gives_float0():
    f = lambda x, n: (x * n).sum()
    close(tj.grad(f, argnums=(0, 1), allow_int=True)(X, np.arange(3)), jax.grad(f, argnums=(0, 1), allow_int=True)(X, np.arange(3)))  # fmt: skip
    out, pullback = tj.vjp(f, X, np.arange(3))
    close(pullback(jnp.ones_like(out)), jax.vjp(f, X, np.arange(3))[1](jnp.ones_like(out)))


def test_python_control_flow_on_values():
    def f(x):
        total = x * 0.0
        while total < 10.0:
            total = total + x * x if x > 1.0 else total + tnp.exp(x)
        return total

    for x, judge in [(2.0, 3 * 4.0), (0.5, 7 * np.exp(0.5))]:
        close(tj.grad(f)(x), jnp.asarray(judge))


# --- nesting and closures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", OVER)
def test_closures_over_outer_variables(over):
    m = OVER[over]
    for x in (0.3, 1.7):
        ours = tj.grad(lambda x: x * tj.grad(lambda y: m.sin(x * y) + x)(x) * tj.grad(lambda y: x + y)(2.0))
        judge = jax.grad(lambda x: x * jax.grad(lambda y: jnp.sin(x * y) + x)(x) * jax.grad(lambda y: x + y)(2.0))
        close(ours(x), judge(x))
        ours = tj.grad(lambda x: tj.vjp(lambda y: m.exp(x * y), x**2)[1](x)[0])
        judge = jax.grad(lambda x: jax.vjp(lambda y: jnp.exp(x * y), x**2)[1](x)[0])
        close(ours(x), judge(x))
        ours = tj.grad(lambda x: tj.jvp(lambda y: m.exp(x * y), (x**2,), (x,))[1])
        judge = jax.grad(lambda x: jax.jvp(lambda y: jnp.exp(x * y), (x**2,), (x,))[1])
        close(ours(x), judge(x))


def test_tensors_in_tensors_out_recorded_on_the_tape():
    x = tj.tensor(X, requires_grad=True)
    f = lambda x: (x**3).sum()
    with tj.Tape() as tape:
        value, gradient = tj.value_and_grad(f)(x)
        penalty = (gradient * gradient).sum() + value
    assert gradient.requires_grad
    assert value.requires_grad
    close(tape.backward(penalty)[x], jax.grad(lambda x: (jax.grad(f)(x) ** 2).sum() + f(x))(X))
    with tj.no_grad():
        value, gradient = tj.value_and_grad(f)(x)
    assert not gradient.requires_grad
    close(gradient.value, 3 * X**2)


def test_nothing_is_left_on_the_tape_by_arrays():
    with tj.Tape() as tape:
        tj.hessian(lambda x: (x**3).sum())(X)
    assert len(tape) == 0


def test_under_jax_transforms():
    f = FUNCTIONS["elementwise"]
    ours, judge = functools.partial(f, tnp), functools.partial(f, jnp)
    batch = jnp.stack([X, X + 1.0])
    close(jax.vmap(tj.grad(ours))(batch), jax.jit(jax.vmap(jax.grad(judge)))(batch))
    close(jax.jit(tj.hessian(ours))(X), jax.jit(jax.hessian(judge))(X))
    twice = jax.jit(jax.grad(lambda x: (jax.grad(judge)(x) ** 2).sum()))(X)
    close(jax.grad(lambda x: (tj.grad(ours)(x) ** 2).sum())(X), twice)
    close(tj.grad(lambda x: (jax.grad(judge)(x) ** 2).sum())(X), twice)


def test_errors_name_the_users_line():
    with pytest.raises(errors.DtypeError) as caught:
        tj.grad(lambda x: x * 1.0)(3)
    assert __file__ in str(caught.value)


def test_a_loop_compiles_its_step_once():
    p = [jnp.ones(2) * i for i in range(1, 13)]
    step = tj.value_and_grad(lambda p: sum((w * w).sum() for w in p))
    for _ in range(3):
        step(p)
    before = len(layouts)
    for _ in range(40):
        step(p)
    assert len(layouts) == before
