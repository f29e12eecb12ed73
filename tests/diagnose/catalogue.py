"""Programs with a NaN or an infinity, and where it is born: written from the mathematics, as data.

The line is the one marked `# here`. A NaN is born where it appears first on the way to the result: from finite numbers
("value"), from infinities that meet ("infinities"); going back from an infinite slope ("derivative"), from a
kept value that is not finite ("kept"), or from infinite cotangents that meet ("cotangent"). An infinity is born where
finite numbers first make one. HEALTHY programs hold NaN or infinities that reach neither output nor gradient.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

INF, NAN = jnp.inf, jnp.nan
f16 = partial(jnp.array, dtype=jnp.float16)


@dataclass
class Case:
    function: Callable[..., Any]
    args: tuple[Any, ...]
    op: str = ""
    index: tuple[int, ...] = ()
    direction: str = "forward"
    cause: str = "value"
    steps: tuple[tuple[str, int], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def file(self) -> str:
        return inspect.getsourcefile(inspect.unwrap(self.function)) or ""

    @property
    def lineno(self) -> int:
        lines, start = inspect.getsourcelines(inspect.unwrap(self.function))
        marked = [start + i for i, line in enumerate(lines) if "# here" in line]
        return marked[0] if marked else 0


def into(cases: list[Case]):
    def bad(*args, op, index=(), back=None, cause=None, steps=(), **options):
        """back: the cause, if it is born going back."""

        def add(function):
            direction = "backward" if back else "forward"
            cases.append(Case(function, args, op, index, direction, back or cause or "value", steps, options))
            return function

        return add

    return bad


def healthy_into(cases: list[Case]):
    def healthy(*args, **options):
        def add(function):
            cases.append(Case(function, args, options=options))
            return function

        return add

    return healthy


BAD: list[Case] = []
HEALTHY: list[Case] = []
bad, healthy = into(BAD), healthy_into(HEALTHY)


# --- hidden by a where: the value is dropped, the slope is not ---------------------------------------------


@bad(jnp.array([4.0, 0.0, 1.0]), op="sqrt", index=(1,), back="derivative")
def where_around_sqrt(x):
    root = jnp.sqrt(x)  # here
    return jnp.where(x > 0, root, 0.0).sum()


@bad(jnp.array([1.0, 2.0, 0.0]), op="log", index=(2,), back="derivative")
def where_around_log(x):
    y = jnp.log(x)  # here
    return jnp.sum(jnp.where(x > 0, y, 0.0))


@bad(jnp.array([0.0, 2.0]), op="div", index=(0,), back="kept")
def where_around_division(x):
    y = 1.0 / x  # here
    return jnp.sum(jnp.where(x != 0, y, 0.0))


@bad(jnp.array([1.0, 1000.0]), op="exp", index=(1,), back="kept")
def where_around_exp(x):
    y = jnp.exp(x)  # here
    return jnp.sum(jnp.where(x < 50, y, 0.0))


@bad(jnp.array([0.0, 4.0]), op="pow", index=(0,), back="derivative")
def where_around_power(x):
    y = jnp.power(x, 0.3)  # here
    return jnp.sum(jnp.where(x > 0, y, 0.0))


@bad(jnp.array([0.5, 1.0]), op="acos", index=(1,), back="derivative")
def where_around_arccos(x):
    angle = jnp.arccos(x)  # here
    return jnp.sum(jnp.where(jnp.abs(x) < 1, angle, 0.0))


@bad(jnp.array([0.0, 1.0]), op="atanh", index=(1,), back="derivative")
def where_around_arctanh(x):
    y = jnp.arctanh(x)  # here
    return jnp.sum(jnp.where(jnp.abs(x) < 1, y, 0.0))


@bad(jnp.array([1.0, -1.0]), op="sqrt", index=(1,), back="kept")
def where_around_root_of_negative(x):
    root = jnp.sqrt(x)  # here
    return jnp.sum(jnp.where(x > 0, root, 0.0))


@bad(jnp.array([[1.0, 0.0], [2.0, 3.0]]), op="log", index=(0, 1), back="derivative")
def log_of_masked_matrix(x):
    mask = x > 0
    logs = jnp.log(x)  # here
    return jnp.mean(jnp.where(mask, logs, 0.0) * x)


# --- slopes that are infinite ----------------------------------------------------------------------------------


@bad(jnp.array([0.0, 1.0]), op="sqrt", index=(0,), back="derivative")
def root_at_zero(x):
    return jnp.sqrt(x).sum()  # here


@bad(jnp.zeros(3), op="mul", index=(0,), back="cotangent")
def length_at_zero(x):
    squares = x * x  # here
    return jnp.sqrt(squares.sum())


@bad(jnp.array(0.0), op="cbrt", back="derivative")
def cube_root_at_zero(x):
    return jnp.cbrt(x)  # here


@bad(jnp.array(0.0), jnp.array(0.0), op="atan2", back="derivative")
def angle_of_the_origin(y, x):
    return jnp.arctan2(y, x)  # here


@bad(jnp.full(4, 2.0), op="square", index=(0,), back="cotangent")
def spread_of_equal_numbers(x):
    return jnp.std(x)  # here


@bad(jnp.array(0.0), op="mul", back="derivative")
def slope_that_overflows(x):
    y = 1e10 * x  # here
    return jnp.sin(1e30 * y)


@bad(f16(0.0), op="mul", back="derivative")
def loss_scale_too_large(x):
    y = x * f16(1000.0)  # here
    return y * f16(1000.0)


@bad(jnp.array(1.0), op="asin", back="derivative")
def arcsine_at_one(x):
    return jnp.arcsin(x)  # here


# --- values ------------------------------------------------------------------------------------------------------


@bad(jnp.array([1.0, 0.0]), op="log", index=(1,))
def log_of_zero(x):
    return jnp.log(x).sum()  # here


@bad(jnp.array([1.0, 0.0, 3.0]), op="div", index=(1,))
def division_by_zero(x):
    y = 2.0 / x  # here
    return y.sum()


@bad(jnp.array([-1.0, 2.0]), op="log", index=(0,))
def log_of_negative(x):
    logs = jnp.log(x)  # here
    return logs.mean()


@bad(jnp.array([1.0, -4.0]), op="sqrt", index=(1,))
def root_of_negative(x):
    root = jnp.sqrt(x)  # here
    return (root * root).sum()


@bad(jnp.array([0.0, 1.0]), jnp.array([0.0, 1.0]), op="div", index=(0,))
def zero_by_zero(x, y):
    ratio = x / y  # here
    return ratio.sum()


@bad(jnp.array([1000.0, 1.0]), op="exp", index=(0,))
def naive_logsumexp(x):
    e = jnp.exp(x)  # here
    return jnp.log(e.sum())


@bad(f16([1.0, 12.0]), op="exp", index=(1,))
def exp_in_half(x):
    y = jnp.exp(x)  # here
    return y[1] * f16(0.5)


@bad(f16([300.0, 2.0]), op="mul", index=(0,))
def square_in_half(x):
    y = x * x  # here
    return y.max()


@bad(f16([6e4, 6e4]), op="convert_element_type")
def sum_in_half(x):
    return jnp.sum(x)  # here


@bad(jnp.array([1e20, 1.0]), op="mul", index=(0,))
def square_overflows(x):
    y = x * x  # here
    return jnp.log(y.sum())


@bad(jnp.full((2, 2), 1e30), jnp.full((2, 2), 1e30), op="dot_general", index=(0, 0))
def product_overflows(w, x):
    h = w @ x  # here
    return jnp.sum(h)


@bad(jnp.array([-1000.0, 0.0]), op="log", index=(0,))
def log_of_underflown_softmax(x):
    p = jax.nn.softmax(x)
    logs = jnp.log(p)  # here
    return -logs[0]


@bad(jnp.array(40.0), op="log")
def saturated_sigmoid(x):
    p = jax.nn.sigmoid(x)
    return -jnp.log(1.0 - p)  # here


@bad(jnp.array([0.0, 4.0]), op="pow", index=(0,))
def negative_power_of_zero(x):
    return jnp.power(x, -0.5).sum()  # here


@bad(jnp.array([3.0, 3.0, 3.0]), op="div", index=(0,))
def layer_norm_of_equal_numbers(x):
    centred = x - x.mean()
    scale = jnp.sqrt((centred * centred).mean())
    return (centred / scale).sum()  # here


@bad(jnp.zeros(3), jnp.ones(3), op="div")
def cosine_of_zero_vector(a, b):
    length = jnp.sqrt(jnp.sum(a * a)) * jnp.sqrt(jnp.sum(b * b))
    return jnp.dot(a, b) / length  # here


@bad(jnp.arange(3.0), op="div")
def mean_of_nothing(x):
    return x[:0].sum() / x[:0].size  # here


@bad(jnp.array([0.5, 1.0]), op="erf_inv", index=(1,))
def inverse_of_erf_at_one(x):
    return lax.erf_inv(x).sum()  # here


@bad(jnp.array([2.0, 0.0]), op="lgamma", index=(1,))
def log_gamma_at_zero(x):
    return jax.scipy.special.gammaln(x).sum()  # here


@bad(jnp.array([[1.0, 2.0], [2.0, 1.0]]), op="cholesky", index=(0, 0))
def cholesky_of_indefinite(a):
    lower = lax.linalg.cholesky(a)  # here
    return lower.sum()


@bad(jnp.array([1.0, 2.0, -4.0, 1.0]), op="log", index=(2,))
def log_of_running_sum(x):
    total = jnp.cumsum(x)
    logs = jnp.log(total)  # here
    return logs[2]


@bad(jnp.array([3.0, -1.0, 2.0]), op="sqrt", index=(0,))
def root_after_sort(x):
    y = jnp.sort(x)
    root = jnp.sqrt(y)  # here
    return root[::-1].sum()


@bad(jnp.array([1.0, 0.0, 2.0, 5.0]), op="log", index=(1,))
def log_after_gather(x):
    rows = x[jnp.array([3, 1])]
    logs = jnp.log(rows)  # here
    return logs.sum()


# --- infinities that meet ------------------------------------------------------------------------------------------


@bad(jnp.array([1000.0, 1.0]), op="div", index=(0,), cause="infinities")
def naive_softmax(x):
    e = jnp.exp(x)
    p = e / e.sum()  # here
    return p[0]


@bad(jnp.array([0.5, 0.0]), op="mul", index=(1,), cause="infinities")
def entropy_with_a_zero(p):
    logs = jnp.log(p)
    return -jnp.sum(p * logs)  # here


@bad(jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), op="sub", index=(1, 0), cause="infinities")
def row_that_is_all_masked(logits):
    mask = jnp.array([[True, False, True], [False, False, False]])
    masked = jnp.where(mask, logits, -jnp.inf)
    weights = jax.nn.softmax(masked)  # here
    return jnp.sum(weights * logits)


@bad(jnp.array([1000.0, 1.0]), op="mul", index=(0,), cause="infinities")
def mask_by_product(x):
    mask = jnp.array([0.0, 1.0])
    kept = mask * jnp.exp(x)  # here
    return kept.sum()


@bad(jnp.array([0.0, 100.0]), op="mul", index=(0,), cause="infinities")
def one_hot_times_log(x):
    p = jnp.array([0.0, 1.0]) * jax.nn.sigmoid(x)
    return -jnp.sum(jnp.array([0.0, 1.0]) * jnp.log(p))  # here


@bad(jnp.array(400.0), op="sub", cause="infinities")
def difference_of_exponentials(x):
    return jnp.exp(x) - jnp.exp(x + 1.0)  # here


# --- arguments and constants -------------------------------------------------------------------------------------------


@bad(jnp.array([1.0, NAN, 2.0]), op="input", index=(1,), cause="input")
def data_with_a_nan(x):
    y = x * 2.0  # here
    return y.sum()


@bad({"w": jnp.ones(2), "b": jnp.array([0.0, INF])}, op="input", index=(1,), cause="input")
def parameters_with_an_infinity(params):
    y = params["w"] + params["b"]  # here
    return jnp.sum(y)


@bad(jnp.array([1.0, -1.0]), op="select_n", index=(1,), cause="constant")
def mask_of_infinity(x):
    y = jnp.where(x > 0, x, -jnp.inf)  # here
    return y.sum()


# --- loops -----------------------------------------------------------------------------------------------------------


@bad(jnp.array(20.0), op="log", steps=(("scan", 20),))
def log_in_a_countdown(x):
    def step(c, _):
        y = jnp.log(c)  # here
        return c - 1.0, y

    _, ys = lax.scan(step, x, None, length=21)
    return ys.sum()


@bad(jnp.ones(12).at[7].set(0.0), op="sqrt", steps=(("scan", 7),), back="derivative")
def root_in_a_scan(xs):
    def step(total, x):
        root = jnp.sqrt(x)  # here
        return total + jnp.where(x > 0, root, 0.0), None

    return lax.scan(step, 0.0, xs)[0]


@bad(jnp.array(0.0), op="mul", steps=(("scan", 7),), back="derivative")
def slope_that_grows(x):
    def step(c, _):
        return 1e3 * c, None  # here

    return lax.scan(step, x, None, length=20)[0]


@bad(jnp.array(1.0), op="log", steps=(("scan", 1234),))
def one_step_of_three_thousand(x):
    def step(c, t):
        y = jnp.log(jnp.where(t == 1234, -1.0, c))  # here
        return c + 0.001 * y, None

    return lax.scan(step, x, jnp.arange(3000))[0]


@bad(jnp.array([1.0, 2.0]), op="sqrt", index=(1,), steps=(("scan", 3),), back="derivative")
def root_in_a_reversed_scan(x):
    def step(c, t):
        root = jnp.sqrt(jnp.where((t == 3) & (jnp.arange(2) == 1), 0.0, 1.0) * x)  # here
        return c + jnp.where(root > 0, root, 0.0), None

    return lax.scan(step, x, jnp.arange(6), reverse=True)[0].sum()


@bad(jnp.array(4.0), op="log", steps=(("while", 5),))
def log_in_a_while(x):
    def body(state):
        i, c, total = state
        y = jnp.log(c)  # here
        return i + 1, c - 1.0, total + y

    return lax.while_loop(lambda state: state[0] < 10, body, (0, x, 0.0))[2]


@bad(jnp.array(1.0), op="div", steps=(("scan", 3),))
def division_in_a_fori(x):
    def body(i, y):
        return y / (3.0 - i)  # here

    return lax.fori_loop(0, 6, body, x)


@bad(jnp.array([1.0, 2.0, 0.0, 3.0]), op="log", steps=(("scan", 2),))
def log_in_a_map(xs):
    return lax.map(lambda x: jnp.log(x), xs).sum()  # here


@bad(jnp.array([3.0, 5.0]), op="div", index=(0,), steps=(("scan", 2), ("scan", 1)))
def loop_in_a_loop(x):
    def outer(c, i):
        def inner(d, j):
            y = d / jnp.where((i == 2) & (j == 1), jnp.array([0.0, 1.0]), 1.0)  # here
            return y, None

        return lax.scan(inner, c, jnp.arange(4))[0], None

    return lax.scan(outer, x, jnp.arange(5))[0].sum()


@bad(jnp.ones(3), jnp.arange(8.0), op="log", steps=(("scan", 5),))
def weights_of_a_scan(w, xs):
    def step(c, x):
        gate = jnp.log(jnp.abs(x - 5.0))  # here
        return c + w * gate, None

    return lax.scan(step, jnp.zeros(3), xs)[0].sum()


# --- under transformations ----------------------------------------------------------------------------------------------


@bad(jnp.array([1.0, 4.0, 9.0, 0.0]), op="sqrt", index=(3,), back="derivative")
def lanes_of_a_vmap(xs):
    def one(x):
        root = jnp.sqrt(x)  # here
        return jnp.where(x > 0, root, 0.0)

    return jax.vmap(one)(xs).sum()


@bad(jnp.array([0.0, 2.0]), op="div", index=(0,))
def jit_in_a_jit(x):
    @jax.jit
    def inner(x):
        return 1.0 / x  # here

    return jax.jit(lambda x: inner(x).sum())(x)


@bad(jnp.array([0.0, 1.0]), op="sqrt", index=(0,), back="derivative")
def root_in_a_checkpoint(x):
    @jax.checkpoint
    def inner(x):
        root = jnp.sqrt(x)  # here
        return jnp.where(x > 0, root, 0.0)

    return jnp.sum(jnp.sin(inner(x)))


@bad(jnp.array([1.0, 0.0]), op="div", index=(1,), back="derivative")
def rule_of_a_custom_jvp(x):
    @jax.custom_jvp
    def root(x):
        return jnp.sqrt(x)

    @root.defjvp
    def root_jvp(primals, tangents):
        out = root(primals[0])
        return out, tangents[0] / (2.0 * out)  # here

    return jnp.sum(jnp.where(x > 0, root(x), 0.0))


@bad(jnp.array([1.0, 3.0]), op="div", index=(1,), back="derivative")
def rule_of_a_custom_vjp(x):
    @jax.custom_vjp
    def twice(x):
        return 2.0 * x

    def forward(x):
        return 2.0 * x, x

    def backward(x, ct):
        return (ct / (3.0 - x),)  # here

    twice.defvjp(forward, backward)
    return twice(x).sum()


@bad(jnp.array([1.0, -3.0]), op="log", index=(1,))
def body_of_a_custom_vjp(x):
    @jax.custom_vjp
    def logs(x):
        return jnp.log(x)  # here

    logs.defvjp(lambda x: (jnp.log(x), x), lambda x, ct: (ct / x,))
    return logs(x).sum()


@bad(jnp.array([1.0, 0.0]), op="log", index=(1,), steps=(("cond", 1),))
def branch_that_is_taken(x):
    def taken(x):
        return jnp.log(x)  # here

    return lax.cond(x.sum() > 0, taken, jnp.sin, x).sum()


@bad(jnp.array([1.0, 0.0]), jnp.array([2.0, 0.0]), op="log", index=(1,))
def harmless_one_before(x, y):
    harmless = jnp.where(x > 0, lax.stop_gradient(jnp.log(x)), 0.0)
    logs = jnp.log(y)  # here
    return jnp.sum(harmless + logs)


# --- healthy: NaN or infinities inside, and none of them reaches a result -------------------------------------------------


@healthy(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
def masked_softmax(x):
    mask = jnp.array([[True, False], [True, True]])
    return jnp.sum(jax.nn.softmax(jnp.where(mask, x, -jnp.inf)) * jnp.arange(2.0))


@healthy(jnp.array([4.0, 0.0]))
def double_where(x):
    safe = jnp.where(x > 0, x, 1.0)
    return jnp.sum(jnp.where(x > 0, jnp.sqrt(safe), 0.0))


@healthy(jnp.array([1.0, 0.0]))
def stopped_log(x):
    return jnp.sum(jnp.where(x > 0, lax.stop_gradient(jnp.log(x)), x))


@healthy(jnp.array([1.0, -2.0]))
def nan_replaced(x):
    return jnp.sum(x * jnp.nan_to_num(lax.stop_gradient(jnp.log(x))))


@healthy(jnp.array([1.0, 2.0]))
def exp_of_minus_infinity(x):
    return jnp.sum(jnp.exp(jnp.array([-jnp.inf, 0.0])) * x)


@healthy(jnp.array([1.0, 2.0, 3.0]))
def logsumexp_with_a_mask(x):
    return jax.nn.logsumexp(jnp.where(jnp.arange(3) < 2, x, -jnp.inf))


@healthy(jnp.array([1.0, 5.0]))
def smallest_of_infinity(x):
    return jnp.sum(jnp.minimum(x, jnp.inf))


@healthy(jnp.array([-1.0, 2.0]))
def branch_not_taken(x):
    return lax.cond(x.sum() > 0, lambda x: jnp.sin(x), lambda x: jnp.log(x - 10.0), x).sum()


@healthy(jnp.array([2.0, 3.0]))
def one_over_infinity(x):
    return jnp.sum(x / jnp.array([jnp.inf, 1.0]))


@healthy(jnp.array([1.0, 2.0]))
def index_of_the_largest(x):
    scores = jnp.where(x > 1, x, -jnp.inf)
    return x[jnp.argmax(scores)]


@healthy(jnp.array([1.0, 4.0, 2.0]))
def running_maximum(xs):
    return lax.scan(lambda best, x: (jnp.maximum(best, x), None), -jnp.inf, xs)[0]


@healthy(jnp.array([1.0, 2.0]))
def counting_nans(x):
    return jnp.sum(x) + jnp.isnan(jnp.array([jnp.nan, 1.0]) * lax.stop_gradient(x)).sum()


@healthy(jnp.array([1.0, jnp.nan, 3.0]))
def sum_without_nans(x):
    return jnp.nansum(x)


@healthy(jnp.array([1.0, 2.0]), has_aux=True)
def infinity_beside_the_loss(x):
    return jnp.sum(x * x), jnp.log(x - x)


@healthy(jnp.array([1.0, 2.0, jnp.nan]))
def rows_that_are_not_read(x):
    return jnp.sum(x[:2] ** 2)


@healthy(jnp.array(3.0))
def best_so_far(x):
    def body(state):
        i, best = state
        return i + 1, jnp.minimum(best, x * (5.0 - i))

    return lax.while_loop(lambda state: state[0] < 4, body, (0, jnp.float32(jnp.inf)))[1]


@healthy(jnp.array([1.0, 2.0]), jnp.array([0.0, 1.0]))
def infinity_that_is_only_compared(x, y):
    return jnp.sum(jnp.where(1.0 / lax.stop_gradient(y) > 5.0, x, 2.0 * x))
