"""What the exercises of the notebooks are compared with. A check names what the student has, never what it should be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import tapejax as tj


class Wrong(Exception):
    """An answer that is not right; says what the student has."""


ANSWERS: dict[str, Callable[..., None]] = {}


def exercise(number: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the check of an exercise."""

    def put(function: Callable[..., None]) -> Callable[..., None]:
        ANSWERS[number] = function
        return function

    return put


def same(name: str, value: Any, expected: Any, *, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    """The value is this number or array, up to rounding."""
    if value is None:
        raise Wrong(f"{name} is None: nothing was returned")
    try:
        found = np.asarray(value.value if isinstance(value, tj.Tensor) else value, np.float64)
    except (TypeError, ValueError):
        raise Wrong(f"You have {name} = {shown(value)}, which is no number") from None
    expected = np.asarray(expected, np.float64)
    if found.shape != expected.shape:
        raise Wrong(f"You have {name} of shape {found.shape}: look at the shape")
    if not np.allclose(found, expected, rtol=rtol, atol=atol, equal_nan=True):
        raise Wrong(f"You have {name} = {shown(found)}")


def true(holds: Any, what: str) -> None:
    """Something that must hold; `what` says what the student has."""
    if not bool(holds):
        raise Wrong(what)


def shown(value: Any) -> str:
    """The student's own value, short."""
    if isinstance(value, np.ndarray):
        return f"{value:.6g}" if value.ndim == 0 else np.array2string(value, precision=4, threshold=8)
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."


def wide(function: Callable[[float], float], x: float, h: float = 1e-6) -> float:
    """A slope measured by moving the input, in double precision."""
    return (function(x + h) - function(x - h)) / (2 * h)


# --- 02: a tape in ten lines ------------------------------------------------------------------------------


@exercise("02.1")
def _(count: Any, slopes: Any) -> None:
    x = np.array([1.0, 2.0, 3.0])
    true(count == 3, f"You have count = {shown(count)}")
    same("slopes", slopes, np.cos(x) * x + np.sin(x))


@exercise("02.2")
def _(inner_slope: Any) -> None:
    same("inner_slope", inner_slope, 14.0)


@exercise("02.3")
def _(too_large: Any) -> None:
    same("too_large", too_large, 1.5)


# --- 03: the chain rule -----------------------------------------------------------------------------------


@exercise("03.1")
def _(parts: Any) -> None:
    same("parts", [float(part) for part in parts], [4.0, 4.0, 4.0])


@exercise("03.2")
def _(through_base: Any, through_exponent: Any) -> None:
    same("through_base", through_base, 4.0)
    same("through_exponent", through_exponent, 4 * np.log(2.0))


@exercise("03.3")
def _(in_sum: Any, in_mean: Any) -> None:
    same("in_sum", in_sum, 5.0)
    same("in_mean", in_mean, 1.0)


# --- 05: build the engine ---------------------------------------------------------------------------------


@exercise("05.1")
def _(cos_rule: Any, my_grad: Any) -> None:
    x = jnp.array([0.1, 0.7, -1.3])
    same("the gradient of sum(cos(x))", my_grad(lambda x: jnp.sum(jnp.cos(x)))(x)[0], -jnp.sin(x))


@exercise("05.2")
def _(max_rule: Any, my_grad: Any) -> None:
    x = jnp.array([0.1, 0.7, -1.3])
    same("the gradient of max(x * x)", my_grad(lambda x: jnp.max(x * x))(x)[0], [0.0, 0.0, -2.6])


@exercise("05.3")
def _(leading: Any, traced: Any, run_forward: Any) -> None:
    jaxpr = traced(lambda a, b: jnp.sin(a) * jnp.exp(b), 1.0, 2.0)
    _, recorded = run_forward(jaxpr, (1.0, 2.0))
    for variable, first in zip(jaxpr.invars, ("sin", "exp")):
        names = leading(recorded, {variable})
        true(names is not None, "leading returned None")
        true(list(names) == [first, "mul"], f"For sin(a) * exp(b) and one variable you have {shown(names)}")


# --- 06: shapes, backwards --------------------------------------------------------------------------------


def normal(*shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(11).normal(size=shape), jnp.float32)


@exercise("06.1")
def _(gradient_of_scale: Any) -> None:
    x = normal(2, 3)
    same("gradient_of_scale(x)", gradient_of_scale(x), np.asarray(x).sum(axis=0))


@exercise("06.2")
def _(gradient_of_form: Any) -> None:
    matrix, x = normal(3, 3), normal(3)
    same(
        "gradient_of_form(A, x)",
        gradient_of_form(matrix, x),
        (np.asarray(matrix) + np.asarray(matrix).T) @ x,
        rtol=1e-3,
    )


@exercise("06.3")
def _(M2: Any, as_matrix: Any) -> None:
    same("M2", M2, np.asarray(as_matrix(7))[::2])


# --- 07: train --------------------------------------------------------------------------------------------


@exercise("07.1")
def _(clipped_step: Any, start: Any, state: Any, x: Any, y: Any) -> None:
    result = clipped_step(start, state, x, y)
    true(result is not None and len(result) == 3, f"You return {shown(result)}, not params, state and a norm")
    same("the norm after clipping", result[2], 0.1)


@exercise("07.2")
def _(largest: Any) -> None:
    true(0 <= float(largest) < 1e-4, f"You have largest = {float(largest):.3g}")


@exercise("07.3")
def _(small_accuracy: Any, accuracy: Any) -> None:
    true(0.4 < small_accuracy < 0.9 < accuracy, f"You have small_accuracy = {float(small_accuracy):.3f}")


# --- 08: checkpointing ------------------------------------------------------------------------------------


@exercise("08.1")
def _(states: Any) -> None:
    same("states", states, 20.0)


@exercise("08.2")
def _(runs: Any) -> None:
    same("runs", runs, 112.0)


@exercise("08.3")
def _(caught: Any) -> None:
    kind = getattr(tj, str(caught), None) or getattr(tj.errors, str(caught), None)
    true(isinstance(kind, type) and issubclass(kind, tj.TapejaxError), f"You have caught = {shown(caught)}")


# --- 09: higher derivatives -------------------------------------------------------------------------------


@exercise("09.1")
def _(third: Any) -> None:
    same("third", third, 8.0)


@exercise("09.2")
def _(my_hvp: Any) -> None:
    x, v = jnp.linspace(-1, 1, 5), jnp.arange(5.0)
    cubes = lambda x: (x * x * x).sum() + (x[:-1] * x[1:]).sum()
    hessian = np.diag(6 * np.asarray(x)) + np.eye(5, k=1) + np.eye(5, k=-1)
    same("my_hvp(f, x, v)", my_hvp(cubes, x, v), hessian @ np.asarray(v))


@exercise("09.3")
def _(largest: Any) -> None:
    true(0 <= float(largest) < 1e-4, f"You have largest = {float(largest):.3g}")


# --- 11: your own action ----------------------------------------------------------------------------------


@exercise("11.1")
def _(flip: Any, reverse_gradient: Any) -> None:
    x = tj.tensor([1.0, 2.0], requires_grad=True)
    y = reverse_gradient(x)
    same("reverse_gradient([1, 2])", y, [1.0, 2.0])
    same("the gradient of sum(reverse_gradient(x) ** 2)", tj.backward((y * y).sum())[x], [-2.0, -4.0])


@exercise("11.2")
def _(scaled_backward: Any, scaled: Any) -> None:
    x, s = tj.tensor([1.0, 2.0, 3.0], requires_grad=True), tj.tensor(4.0, requires_grad=True)
    grads = tj.backward(scaled(x, s))
    same("the gradient of x", grads[x], [4.0, 4.0, 4.0])
    same("the gradient of s", grads[s], 6.0)


@exercise("11.3")
def _(at_100: Any) -> None:
    same("at_100", at_100, 1.0)


# --- 12: verify your code ---------------------------------------------------------------------------------


@exercise("12.1")
def _(swish_ok: Any) -> None:
    true(swish_ok is True or swish_ok is np.True_, f"You have swish_ok = {shown(swish_ok)}")


@exercise("12.2")
def _(suspect: Any) -> None:
    true(suspect == "limit", f"You have suspect = {shown(suspect)}")


@exercise("12.3")
def _(clip_backward: Any) -> None:
    x, limit, ct = np.linspace(-0.5, 1, 5), 0.7, np.ones(5)
    found = clip_backward((jnp.asarray(x), jnp.asarray(limit)), jnp.asarray(ct))
    true(found is not None and len(found) == 2, f"You return {shown(found)}, not a gradient for each argument")
    value = lambda x, limit: (limit * np.tanh(x / limit)).sum()
    same("the gradient of x", found[0], [wide(lambda v: value(np.float64(v), limit), v) for v in x], rtol=1e-3)
    same("the gradient of limit", found[1], wide(lambda v: value(x, v), limit), rtol=1e-3)


# --- 14: a state-space model ------------------------------------------------------------------------------


@exercise("14.1")
def _(half_after_100: Any) -> None:
    true(abs(float(half_after_100) ** 100 - 0.5) < 1e-3, f"You have half_after_100 = {shown(half_after_100)}")


@exercise("14.2")
def _(gradient_of_start: Any, a: Any, b: Any, gradient_of_x: Any) -> None:
    same("gradient_of_start", gradient_of_start, float(a[0]) * float(gradient_of_x[0]) / float(b[0]), rtol=1e-3)


@exercise("14.3")
def _(selective_loss: Any, fixed_loss: Any) -> None:
    true(
        0 < selective_loss < 0.5 * fixed_loss,
        f"You have selective_loss = {float(selective_loss):.3f}, fixed_loss = {float(fixed_loss):.3f}",
    )


# --- 01: what a derivative is -----------------------------------------------------------------------------


@exercise("01.1")
def _(slope_at_20: Any) -> None:
    same("slope_at_20", slope_at_20, wide(_thrown, 20.0, 1e-4), rtol=1e-5)


def _thrown(speed: float) -> float:
    x, height, up, ahead = 0.0, 1.5, 0.6 * speed, 0.8 * speed
    while height > 0:
        drag = 0.02 * math.sqrt(up * up + ahead * ahead)
        up -= (9.81 + drag * up) * 0.01
        ahead -= drag * ahead * 0.01
        x += ahead * 0.01
        height += up * 0.01
    return x - ahead * 0.01 * (height / (up * 0.01))


@exercise("01.2")
def _(second: Any) -> None:
    same("second(sin, 1, 1e-4)", second(math.sin, 1.0, 1e-4), -math.sin(1.0), rtol=1e-5)
    same("second(x**3, 2, 1e-3)", second(lambda x: x**3, 2.0, 1e-3), 12.0, rtol=1e-5)


@exercise("01.3")
def _(best: Any) -> None:
    same("best", best, 1e-5, atol=0.0)


@exercise("01.4")
def _(runs_needed: Any) -> None:
    same("runs_needed", runs_needed, 1001.0, rtol=0.0)


# --- 04: forward and reverse ------------------------------------------------------------------------------


@exercise("04.1")
def _(divide: Any, Dual: Any) -> None:
    for a, b in (((3.0, 1.0), (4.0, 0.0)), ((3.0, 0.0), (4.0, 1.0)), ((1.0, 2.0), (-5.0, 0.5))):
        found = divide(Dual(*a), Dual(*b))
        true(found is not None, "divide returned None")
        same(f"the value of {a[0]} / {b[0]}", found.value, a[0] / b[0])
        same("the slope", found.slope, wide(lambda t, a=a, b=b: (a[0] + t * a[1]) / (b[0] + t * b[1]), 0.0))


@exercise("04.2")
def _(better: Any) -> None:
    true(str(better).strip().lower() == "forward", f"You have better = {shown(better)}")


@exercise("04.3")
def _(passes: Any) -> None:
    same("passes", passes, 2.0)


@exercise("04.4")
def _(var_sqrt: Any, reverse_gradient: Any) -> None:
    found = reverse_gradient(lambda xs: var_sqrt(xs[0]) * xs[1], [9.0, 2.0])
    same("the gradient of sqrt(x) * y at (9, 2)", found, [1 / 3, 3.0])


# --- 10: numerical trouble --------------------------------------------------------------------------------


@exercise("10.1")
def _(born: Any) -> None:
    entropy = lambda p: -(p * jnp.log(p)).sum()
    true(born == tj.find_nonfinite(entropy, jnp.array([0.5, 0.5, 0.0])).born.op, f"You have born = {shown(born)}")


@exercise("10.2")
def _(safe_entropy: Any) -> None:
    p = jnp.array([0.5, 0.25, 0.0])
    same("safe_entropy([0.5, 0.25, 0])", safe_entropy(p), -(0.5 * np.log(0.5) + 0.25 * np.log(0.25)))
    same("its gradient", tj.grad(safe_entropy)(p), [-np.log(0.5) - 1, -np.log(0.25) - 1, 0.0])


@exercise("10.3")
def _(cause: Any) -> None:
    true(cause == "saturated", f"You have cause = {shown(cause)}")


@exercise("10.4")
def _(factor_too_large: Any) -> None:
    factor = float(factor_too_large)
    with np.errstate(over="ignore"):
        largest = np.float32(30) * np.float32(factor) ** np.float32(29)
    true(0 < factor <= 40 and np.isinf(largest), f"You have factor_too_large = {factor:g}")


# --- 13: how the compiled one works -----------------------------------------------------------------------


@exercise("13.1")
def _(equations: Any) -> None:
    same("equations", equations, 2.0)


@exercise("13.2")
def _(kept: Any) -> None:
    true(tuple(kept) == (0, 1), f"You have kept = {shown(kept)}")


@exercise("13.3")
def _(compiled_gradient: Any) -> None:
    gradient = compiled_gradient(lambda x: jnp.sum(x**3))
    true(callable(gradient), f"It returns {shown(gradient)}, not a function")
    same("its result for sum(x**3) at [1, 2]", gradient(jnp.array([1.0, 2.0])), [3.0, 12.0])
    true(hasattr(gradient, "lower"), "The gradient is right, but it is not compiled as a whole")


# --- 15: find the bug -------------------------------------------------------------------------------------

_AT = {"x": 1.5, "y": 0.5}  # e = log(exp(x y) / x) + y, so the slopes are y - 1/x and x + 1
_SLOPES = {"x": _AT["y"] - 1 / _AT["x"], "y": _AT["x"] + 1.0}


def _lab(found: Any) -> None:
    for name, expected in _SLOPES.items():
        same(f"the gradient of {name}", found[1][name], expected)


@exercise("15.1")
def _(better_accumulate: Any, run: Any, program: Any) -> None:
    _lab(run(program, _AT, accumulate=better_accumulate))


@exercise("15.2")
def _(wrong_rule: Any) -> None:
    true(wrong_rule == "div", f"You have wrong_rule = {shown(wrong_rule)}")


@exercise("15.3")
def _(better_order: Any, run: Any, program: Any) -> None:
    _lab(run(program, _AT, order=better_order))


@exercise("15.4")
def _(bias_gradient: Any) -> None:
    ct = np.arange(15.0).reshape(5, 3)
    same("bias_gradient(ct, bias)", bias_gradient(ct, np.zeros(3)), ct.sum(axis=0))


@exercise("15.5")
def _(factor: Any) -> None:
    same("factor", factor, 0.5)


@exercise("15.6")
def _(safe_length: Any) -> None:
    same("safe_length([3, 4])", safe_length(jnp.array([3.0, 4.0])), 5.0)
    same("its gradient there", tj.grad(safe_length)(jnp.array([3.0, 4.0])), [0.6, 0.8])
    same("its gradient at zero", tj.grad(safe_length)(jnp.zeros(3)), np.zeros(3))


@exercise("15.7")
def _(missing_because: Any) -> None:
    true(missing_because == "cut", f"You have missing_because = {shown(missing_because)}")


@exercise("15.8")
def _(first_wrong: Any) -> None:
    same("first_wrong", first_wrong, 2.0)
