"""Planted faults: 20 wrong rules of tapejax, 20 wrong custom_vjps. Each is found, and named, by the tests here.

`python -m tests.verify.faults` writes the table in docs/check-grads-comparison.md: what
`jax.test_util.check_grads` says about the same faults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tapejax.rules.registry import TABLE, Rule, StructuralRule, lookup


def array(*shape, seed=0, low=0.3, high=1.5):
    return jnp.asarray(np.asarray(np.random.default_rng(seed).uniform(low, high, shape), jnp.float32))


# --- wrong rules -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WrongRule:
    """A rule of tapejax made wrong, and a function in which it does its harm.

    wrong(right): the wrong backward, made from the right one; both are (ct, out, *operands, **params) -> cotangents.
    op: the action that must be named.
    """

    name: str
    primitive: Any
    wrong: Callable[..., Any]
    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    @property
    def op(self) -> str:
        return self.primitive.name

    def plant(self) -> Any:
        """The entry to put in the table of rules."""
        right = lookup(self.primitive)
        if isinstance(right, StructuralRule):
            return _wrong_structural(right, self.wrong)
        entry = object.__new__(Rule)
        entry.__dict__.update(right.__dict__)
        entry.function = self.wrong(right.function)
        return entry


def _wrong_structural(right: StructuralRule, wrong: Callable[..., Any]) -> StructuralRule:
    def function(eqn, in_avals, out_avals, active_in, tools):
        step = right.specialise(eqn, in_avals, out_avals, active_in, tools)
        backward = step.backward
        step.backward = lambda saved, cts: wrong(backward)(saved, cts)
        return step

    made = StructuralRule(right.name, function, cheap=right.cheap, flow=right.flow, family=right.family)
    return made


def cts(change, position=0):
    """A fault that changes one cotangent, or all for position None."""

    def wrong(right):
        def backward(*args, **params):
            found = list(right(*args, **params))
            for i, ct in enumerate(found):
                if ct is not None and position in (i, None):
                    found[i] = change(ct)
            return found

        return backward

    return wrong


negated, doubled, slightly = (lambda ct: -ct), (lambda ct: 2 * ct), (lambda ct: 1.01 * ct)
at_one = lambda ct: ct.reshape(-1).at[1].multiply(3.0).reshape(ct.shape)
shifted = lambda ct: jnp.roll(ct, 1, axis=0)
transposed = lambda ct: jnp.swapaxes(ct, -1, -2)
in_half = lambda ct: ct.astype(jnp.float16)


def dropped(right):
    """The cotangent of the second operand is forgotten."""
    return lambda *args, **params: [*list(right(*args, **params))[:1], None]


WRONG_RULES = [
    WrongRule("sin, sign", lax.sin_p, cts(negated), lambda x: jnp.sum(jnp.exp(jnp.sin(x) * 2)), (array(4),)),
    WrongRule("exp, factor", lax.exp_p, cts(doubled), lambda x: jnp.sum(jnp.exp(jnp.cos(x))), (array(3, 2),)),
    WrongRule("tanh, factor of 1.01", lax.tanh_p, cts(slightly), lambda x: jnp.tanh(x * x), (array(5),)),
    WrongRule("mul, operands swapped", lax.mul_p, lambda right: lambda *a, **k: list(right(*a, **k))[::-1], lambda x, y: jnp.sum(x * jnp.sin(y)), (array(3), array(3, seed=1))),
    WrongRule("div, sign of the divisor", lax.div_p, cts(negated, 1), lambda x, y: jnp.sum(jnp.cos(x) / y), (array(3), array(3, seed=1))),
    WrongRule("sub, sign of the second", lax.sub_p, cts(negated, 1), lambda x, y: jnp.sum(jnp.square(x - y)), (array(3), array(3, seed=1))),
    WrongRule("dot_general, transposed", lax.dot_general_p, cts(transposed, 0), lambda x, y: jnp.sum(jnp.sin(x @ y)), (array(3, 3), array(3, 3, seed=1))),
    WrongRule("dot_general, one forgotten", lax.dot_general_p, dropped, lambda x, y: jnp.sum(jnp.tanh(x @ y)), (array(2, 3), array(3, 2, seed=1))),
    WrongRule("broadcast_in_dim, sum instead of one", lax.broadcast_in_dim_p, cts(doubled), lambda x: jnp.sum(jnp.broadcast_to(x, (3, 2)) ** 2), (array(2),)),
    WrongRule("reduce_sum, mean instead", lax.reduce_sum_p, cts(lambda ct: ct / 3), lambda x: jnp.sum(jnp.sin(x), axis=0) * 2, (array(3, 2),)),
    WrongRule("reduce_max, all ones", lax.reduce_max_p, cts(jnp.ones_like), lambda x: jnp.max(jnp.sin(x), axis=0), (array(4, 2),)),
    WrongRule("transpose, not undone", lax.transpose_p, cts(transposed), lambda x: jnp.sum(x.T * jnp.arange(9.0).reshape(3, 3)), (array(3, 3),)),
    WrongRule("cumsum, off by one", lax.cumsum_p, cts(shifted), lambda x: jnp.cumsum(x) ** 2, (array(5),)),
    WrongRule("scan, carry off by one", lax.scan_p, cts(lambda ct: shifted(ct) if ct.ndim else ct, None), lambda x: lax.scan(lambda c, v: (c * 0.9 + v, c), jnp.float32(0), x)[1], (array(6),)),
    WrongRule("sort, unsorted cotangent", lax.sort_p, cts(shifted), lambda x: jnp.sort(x) * jnp.arange(4.0), (jnp.array([0.7, 0.2, 1.4, 0.9]),)),
    WrongRule("log, wrong at one element", lax.log_p, cts(at_one), lambda x: jnp.sum(jnp.log(x) ** 2), (array(2, 3),)),
    WrongRule("gather, wrong row", lax.gather_p, cts(shifted), lambda x: x[jnp.array([0, 2])] ** 2, (array(4, 2),)),
    WrongRule("integer_pow, power not lowered", lax.integer_pow_p, cts(lambda ct: ct * 1.5), lambda x: jnp.sum(x**3), (array(4),)),
    WrongRule("logistic, right value, wrong dtype", lax.logistic_p, cts(in_half), lambda x: jnp.sum(jax.nn.sigmoid(x) * x), (array(4),)),
    WrongRule("cholesky, diagonal only", lax.linalg.cholesky_p, cts(lambda ct: ct * jnp.eye(3)), lambda x: jnp.linalg.cholesky(x @ x.T + 3 * jnp.eye(3)).sum(), (array(3, 3),)),
]  # fmt: skip


# --- wrong custom rules --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WrongCustom:
    """A custom_vjp whose rule is wrong, and a call of it. argument: the one whose rule is wrong."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    argument: int = 0
    element: tuple[int, ...] | None = None


def custom(primal, backward):
    """A custom_vjp with backward(ct, *arguments)."""
    made = jax.custom_vjp(primal)
    made.defvjp(lambda *args: (primal(*args), args), lambda args, ct: backward(ct, *args))
    return made


def ssm(a, b, x):
    """h_t = a_t h_{t-1} + b_t x_t"""

    def step(h, inputs):
        a, b, x = inputs
        h = a * h + b * x
        return h, h

    return lax.scan(step, jnp.zeros(()), (a, b, x))[1]


def ssm_backward(ct, a, b, x, *, lag):
    """lam_t = dy_t + a_{t+1} lam_{t+1}; with lag=0 the a of the wrong step."""
    ahead = jnp.concatenate([a[1:], jnp.zeros(1)]) if lag else a
    lam = lax.scan(lambda l, inputs: (inputs[0] + inputs[1] * l,) * 2, jnp.zeros(()), (ct, ahead), reverse=True)[1]
    h = ssm(a, b, x)
    return lam * jnp.concatenate([jnp.zeros(1), h[:-1]]), lam * x, lam * b


def layer_norm(x, scale):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale


def layer_norm_backward(ct, x, scale):
    sigma = jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    g = ct * scale
    return (g - g.mean(-1, keepdims=True)) / sigma, (ct * (x - x.mean(-1, keepdims=True)) / sigma).sum(0)


def softmax_backward(ct, x):
    y = jax.nn.softmax(x)
    return (ct * y * (1 - y),)  # only the diagonal


X, Y, M, N = array(4), array(4, seed=1), array(3, 4), array(4, 2, seed=2)
WRONG_CUSTOM = [
    WrongCustom("sine, sign", custom(jnp.sin, lambda ct, x: (-ct * jnp.cos(x),)), (X,)),
    WrongCustom("square, factor", custom(lambda x: x * x, lambda ct, x: (ct * x,)), (X,)),
    WrongCustom("tanh, factor of 1.01", custom(jnp.tanh, lambda ct, x: (1.01 * ct * (1 - jnp.tanh(x) ** 2),)), (X,)),
    WrongCustom("softplus, not divided", custom(lambda x: jnp.log1p(jnp.exp(x)), lambda ct, x: (ct * jnp.exp(x),)), (X,)),
    WrongCustom("product, swapped", custom(lambda x, y: x * y * y, lambda ct, x, y: (ct * x * x, ct * 2 * x * y)), (X, Y)),
    WrongCustom("product, second wrong", custom(lambda x, y: x * y, lambda ct, x, y: (ct * y, ct * y)), (X, Y), 1),
    WrongCustom("matmul, transposed", custom(lambda a: a @ a, lambda ct, a: (ct.T @ a + a @ ct,)), (array(3, 3),)),
    WrongCustom("bias, missing sum over rows", custom(lambda x, b: x + b, lambda ct, x, b: (ct, ct[0])), (M, array(4)), 1),
    WrongCustom("scale, mean for sum", custom(lambda x, s: x * s, lambda ct, x, s: (ct * s, (ct * x).mean())), (M, jnp.float32(2.0)), 1),
    WrongCustom("one element", custom(jnp.exp, lambda ct, x: (ct * jnp.exp(x).at[2].multiply(0.5),)), (X,), 0, (2,)),
    WrongCustom("one element of a matrix", custom(jnp.cos, lambda ct, x: ((-ct * jnp.sin(x)).at[1, 3].add(1.0),)), (M,), 0, (1, 3)),
    WrongCustom("right value, wrong dtype", custom(jnp.sin, lambda ct, x: ((ct * jnp.cos(x)).astype(jnp.float16),)), (X,)),
    WrongCustom("wrong shape", custom(lambda x: x.sum(0), lambda ct, x: (ct,)), (M,)),
    WrongCustom("state space model, off by one", custom(ssm, lambda ct, *args: ssm_backward(ct, *args, lag=0)), (X, Y, array(4, seed=3))),
    WrongCustom("cumulative sum, not reversed", custom(lambda x: jnp.cumsum(x), lambda ct, x: (jnp.cumsum(ct),)), (X,)),
    WrongCustom("layer norm, shortcut", custom(layer_norm, layer_norm_backward), (M, array(4))),
    WrongCustom("softmax, diagonal only", custom(lambda x: jax.nn.softmax(x), softmax_backward), (X,)),
    WrongCustom("zero", custom(lambda x: x**3, lambda ct, x: (jnp.zeros_like(x),)), (X,)),
    WrongCustom("norm, squared", custom(lambda x: jnp.sqrt((x * x).sum()), lambda ct, x: (ct * x / (x * x).sum(),)), (X,)),
    WrongCustom("attention scores, not scaled", custom(lambda q, k: q @ k / 2.0, lambda ct, q, k: (ct @ k.T, q.T @ ct / 2.0)), (M, N)),
]  # fmt: skip

# Right ones among them: no checker may complain.
RIGHT_CUSTOM = [
    WrongCustom("state space model", custom(ssm, lambda ct, *args: ssm_backward(ct, *args, lag=1)), (X, Y, array(4, seed=3))),
    WrongCustom("sine", custom(jnp.sin, lambda ct, x: (ct * jnp.cos(x),)), (X,)),
]  # fmt: skip


def planted(fault: WrongRule, monkeypatch: Any) -> None:
    """Put the wrong rule in place until the test ends."""
    key = fault.primitive if fault.primitive in TABLE else fault.primitive.name
    monkeypatch.setitem(TABLE, key, fault.plant())


# --- the table in docs/check-grads-comparison.md ---------------------------------------------------------------


def with_tape_gradient(fault: WrongRule) -> Callable[..., Any]:
    """The function with the gradient that tapejax gives while the fault is planted, as jax sees it."""
    import tapejax as tj

    return custom(fault.function, lambda ct, *args: tj.vjp(fault.function, *args)[1](ct))


def said_by_check_grads(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """The last words of jax's own checker, in one line; empty if it finds nothing."""
    from jax.test_util import check_grads

    try:
        check_grads(function, arguments, order=1, modes=["rev"])
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        wanted = [line for line in lines if line.startswith(("VJP", "Max relative", "Custom VJP", "the rule"))]
        text = (
            "; ".join(wanted or lines[:1])
            if isinstance(error, AssertionError)
            else f"{type(error).__name__}: {lines[0]}"
        )
        return text[:110]
    return ""


def said_by_tapejax(report: Any) -> str:
    first = report.first_wrong
    row = first.worst
    place = f"{row.input}{f' at {list(row.index)}' if row.index is not None else ''}"
    name = f"`{first.op}`" if hasattr(first, "op") else f"rule of `{first.name}`"
    return f"{name}, {place}{f': {row.note}' if row.note else ''}"[:150]


def table() -> str:
    """Every fault, what check_grads says about it, and what tapejax says."""
    import tapejax as tj

    rows = ["| fault | `check_grads` | what it says | tapejax |", "| --- | --- | --- | --- |"]
    found = 0
    for fault in [*WRONG_RULES, *WRONG_CUSTOM]:
        if isinstance(fault, WrongRule):
            key = fault.primitive if fault.primitive in TABLE else fault.primitive.name
            right, TABLE[key] = TABLE[key], fault.plant()
            try:
                said = said_by_check_grads(with_tape_gradient(fault), fault.arguments)
                whole = tj.lift(lambda *args, f=fault: f.function(*args), name="scans")
                opened = (fault.function, "primitives") if fault.op != "scan" else (whole, "ops")
                report = tj.verify_tape(opened[0], *fault.arguments, detail=opened[1])
            finally:
                TABLE[key] = right
        else:
            said = said_by_check_grads(fault.function, fault.arguments)
            report = tj.verify_custom_rule(fault.function, *fault.arguments)
        found += bool(said)
        escaped = said.replace("|", "\\|")
        kind = "rule" if isinstance(fault, WrongRule) else "custom_vjp"
        words = said_by_tapejax(report) if not report.ok else "not found"
        rows.append(f"| {kind}: {fault.name} | {'finds it' if said else '**passes it**'} | {escaped} | {words} |")
    total = len(WRONG_RULES) + len(WRONG_CUSTOM)
    missed = sum(row.endswith("| not found |") for row in rows)
    rows.append("")
    rows.append(
        f"`check_grads` finds {found} of {total}; tapejax finds {total - missed} of {total}. (jax {jax.__version__})"
    )
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
