"""Planted cases with a known answer to "who is wrong": the user, jax, tapejax, or nobody, by convention.

Each has the verdict that must come out, and words that the report must contain: the rule, the primitive, the line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import ad

from tapejax.ops.compiled import clear_plans
from tapejax.rules.registry import TABLE
from tests.verify.faults import WRONG_CUSTOM, WRONG_RULES, WrongRule, array, custom


@dataclass(frozen=True)
class Planted:
    """function at arguments; planted: a context in which somebody's rule is wrong."""

    name: str
    verdict: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    words: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    planted: Callable[[], Any] | None = None


# --- the user's: custom rules ----------------------------------------------------------------------------------------


def on_its_own(fault):
    """A function with a wrong custom rule, as a part of a larger one."""
    return lambda *args: jnp.sum(fault.function(*args) * 2.0)


def wrong_transpose(a, b):
    return lax.custom_linear_solve(
        lambda v: a @ v, b, lambda mv, b: jnp.linalg.solve(a, b), lambda vm, b: jnp.linalg.solve(a, b)
    )


@jax.custom_vjp
def stops_inside(x):
    return jnp.sin(x) ** 2


stops_inside.defvjp(
    lambda x: (stops_inside(x), x), lambda x, ct: (ct * lax.stop_gradient(2 * jnp.sin(x)) * jnp.cos(x),)
)


def pool(x):
    return x.reshape(-1, 2).max(axis=1)


def pool_backward(ct, x):
    pairs = x.reshape(-1, 2)
    return ((ct[:, None] * (pairs == pairs.max(axis=1, keepdims=True))).reshape(x.shape),)


counts_ties_twice = custom(pool, pool_backward)
inner_wrong = custom(jnp.sin, lambda ct, x: (1.5 * ct * jnp.cos(x),))
outer_of_inner = custom(lambda x: inner_wrong(x) * 2.0, lambda ct, x: jax.vjp(lambda x: inner_wrong(x) * 2.0, x)[1](ct))
tiny = custom(lambda x: x**2, lambda ct, x: ((2 * ct * x).at[0].add(1e-6),))
slightly = custom(lambda x: jnp.exp(jnp.sin(x)), lambda ct, x: ((1 + 3e-4) * ct * jnp.exp(jnp.sin(x)) * jnp.cos(x),))
one_block = custom(lambda x: x**3, lambda ct, x: ((3 * ct * x**2).at[3, :4].multiply(1.1),))


@jax.custom_jvp
def wrong_tangent(x):
    return jnp.log1p(x * x)


@wrong_tangent.defjvp
def wrong_tangent_rule(primals, tangents):
    (x,), (t,) = primals, tangents
    return wrong_tangent(x), t * x / (1 + x * x)


def callback(x):
    return jax.pure_callback(lambda v: np.sin(v), jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")


wrong_callback = custom(callback, lambda ct, x: (ct * jnp.sin(x),))


def kernel_call(x):
    from jax.experimental import pallas as pl

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * x_ref[...]

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


wrong_kernel = custom(kernel_call, lambda ct, x: (ct * x,))


def in_a_scan(x):
    return lax.scan(lambda c, v: (c + inner_wrong(v), c), jnp.float32(0), x)[0]


def in_a_branch(x):
    return lax.cond(x[0] > 0, lambda x: inner_wrong(x).sum(), lambda x: x.sum(), x)


def line_of(function: Callable[..., Any]) -> str:
    return f"planted.py:{inspect.getsourcelines(inspect.unwrap(function))[1]}"


USERS = [
    *(Planted(f"yours: {fault.name}", "custom_rule", on_its_own(fault), fault.arguments, ("custom_vjp rule", "planted.py")) for fault in WRONG_CUSTOM if fault.name not in ("wrong shape", "right value, wrong dtype")),
    Planted("yours: transpose of a linear solve", "custom_rule", wrong_transpose, (array(3, 3) + 3 * jnp.eye(3), array(3, seed=1)), ("custom_linear_solve", line_of(wrong_transpose).rpartition(":")[0])),
    Planted("yours: stop_gradient in a rule, order 2", "custom_rule", lambda x: jnp.sum(stops_inside(x)), (array(3),), ("stops_inside", "second derivative"), {"order": 2}),
    Planted("yours: stop_gradient in a rule, through an inner step", "custom_rule", lambda x: jnp.sum(stops_inside(x - 0.1 * jax.grad(lambda v: jnp.sum(stops_inside(v)))(x))), (array(3),), ("stop_gradient at", "planted.py")),
    Planted("yours: a tie counted twice", "custom_rule", lambda x: jnp.sum(counts_ties_twice(x)), (jnp.array([1.0, 1.0, 0.5, 0.2]),), ("pool",)),
    Planted("yours: the inner one of two", "custom_rule", lambda x: jnp.sum(outer_of_inner(x)), (array(4),), ("planted.py",)),
    Planted("yours: a jvp", "custom_rule", lambda x: jnp.sum(wrong_tangent(x)), (array(4),), ("custom_jvp rule of `wrong_tangent`", "0.5 times", line_of(wrong_tangent_rule))),
    Planted("yours: a callback", "custom_rule", lambda x: jnp.sum(wrong_callback(x)), (array(4),), ("callback",)),
    Planted("yours: a kernel", "custom_rule", lambda x: jnp.sum(wrong_kernel(x)), (array(4),), ("kernel_call",)),
    Planted("yours: in a scan", "custom_rule", in_a_scan, (array(4),), ("scan[",)),
    Planted("yours: in a branch", "custom_rule", in_a_branch, (array(4),), ("1.5 times",)),
    Planted("yours: one tiny element", "custom_rule", lambda x: jnp.sum(tiny(x)), (jnp.array([1e-5, 2e-5, 1e-5]),), ("rule of",)),
    Planted("yours: by 3e-4", "custom_rule", lambda x: jnp.sum(slightly(x)), (array(6),), ("1.0003 times what it should be",)),
    Planted("yours: one block", "custom_rule", lambda x: jnp.sum(one_block(x)), (array(8, 8),), ("1.1 times", "[3, ")),
]  # fmt: skip


# --- jax's: a rule of jax made wrong -----------------------------------------------------------------------------------


def wrong_in_jax(primitive: Any, factor: float = 1.5):
    """jax's jvp of a primitive, off by a factor while the context lasts."""

    @contextmanager
    def planted():
        right = ad.primitive_jvps[primitive]

        def wrong(primals, tangents, **params):
            out, tangent = right(primals, tangents, **params)
            scale = lambda t: t if type(t) is ad.Zero else (t * jnp.asarray(factor, t.dtype))
            return out, [scale(t) for t in tangent] if primitive.multiple_results else scale(tangent)

        ad.primitive_jvps[primitive] = wrong
        jax.clear_caches()
        try:
            yield
        finally:
            ad.primitive_jvps[primitive] = right
            jax.clear_caches()

    return planted


def jaxs(primitive, function, *arguments, factor=1.5):
    return Planted(f"jax's: {primitive.name}", "jax", function, arguments, (f"`{primitive.name}`",), planted=wrong_in_jax(primitive, factor))  # fmt: skip


# What jax got right in 0.12.
BEFORE_0_12 = tuple(map(int, jax.__version__.split(".")[:2])) < (0, 12)
COMPLEX = jnp.array([-0.6 + 0.4j, -1.2 - 0.3j], jnp.complex64)
JAXS = [
    jaxs(lax.log1p_p, lambda x: jnp.sum(jnp.log1p(x) ** 2), array(4)),
    jaxs(lax.exp_p, lambda x: jnp.sum(jnp.exp(x)), array(3, 2)),
    jaxs(lax.tanh_p, lambda x: jnp.tanh(x * x), array(5), factor=1.001),
    jaxs(lax.log_p, lambda x: jnp.sum(jnp.log(x)), array(4)),
    jaxs(lax.sqrt_p, lambda x: jnp.sum(jnp.sqrt(x)), array(4)),
    jaxs(lax.logistic_p, lambda x: jnp.sum(jax.nn.sigmoid(x) * x), array(4)),
    jaxs(lax.rsqrt_p, lambda x: jnp.sum(lax.rsqrt(x)), array(4)),
    jaxs(lax.erf_p, lambda x: jnp.sum(lax.erf(x)), array(4)),
    jaxs(lax.integer_pow_p, lambda x: jnp.sum(x**3), array(4)),
    jaxs(lax.cumsum_p, lambda x: jnp.cumsum(x) ** 2, array(5)),
    jaxs(lax.atan2_p, lambda x, y: jnp.arctan2(x, y), array(4), array(4, seed=1)),
    jaxs(lax.sort_p, lambda x: jnp.sort(x) * jnp.arange(4.0), jnp.array([0.7, 0.2, 1.4, 0.9])),
    jaxs(lax.cosh_p, lambda x: jnp.sum(jnp.cosh(x)), array(4)),
    jaxs(lax.linalg.cholesky_p, lambda a: jnp.sum(jnp.linalg.cholesky(a @ a.T + 3 * jnp.eye(3))), array(3, 3)),
    Planted("jax's: the value of lax.reduce", "jax", lambda x: lax.reduce(x, jnp.float32(3), lax.add, (0,)), (array(4),), ("another value",)),
    Planted("jax's: acosh in the left half plane", "jax" if BEFORE_0_12 else "right", lax.acosh, (COMPLEX,), ("acosh",) if BEFORE_0_12 else ()),
    Planted("jax's: sign of a complex number", "jax" if BEFORE_0_12 else "right", lax.sign, (COMPLEX,), ("sign",) if BEFORE_0_12 else ()),
]  # fmt: skip


# --- ours -----------------------------------------------------------------------------------------------------------------


def wrong_in_tapejax(fault: WrongRule):
    @contextmanager
    def planted():
        key = fault.primitive if fault.primitive in TABLE else fault.primitive.name
        right, TABLE[key] = TABLE[key], fault.plant()
        clear_plans()
        try:
            yield
        finally:
            TABLE[key] = right
            clear_plans()

    return planted


OURS = [
    Planted(f"ours: {fault.name}", "tapejax", fault.function, fault.arguments, () if fault.op == "scan" else (f"`{fault.op}`",), planted=wrong_in_tapejax(fault))
    for fault in WRONG_RULES
]  # fmt: skip


# --- conventions ----------------------------------------------------------------------------------------------------------

TIES = jnp.array([1.0, 1.0, 0.5, 1.0])
SYMMETRIC = jnp.array([[2.0, 0.5], [0.5, 1.0]])
CONVENTIONS = [
    Planted(f"convention: {name}", "convention" if BEFORE_0_12 or "cholesky" not in name else "right", function, arguments, words)
    for name, function, arguments, words in [
        ("abs at zero", lambda x: jnp.sum(jnp.abs(x)), (jnp.array([0.0, 1.0]),), ("slope -1 from below, 1 from above",)),
        ("relu at zero", lambda x: jnp.sum(jax.nn.relu(x)), (jnp.array([0.0, 1.0, -2.0]),), ("slope 0 from below, 1 from above",)),
        ("max of equals", jnp.max, (TIES,), ("kink",)),
        ("maximum of equals", lambda x, y: jnp.sum(jnp.maximum(x, y)), (TIES, jnp.ones(4)), ("kink",)),
        ("clip at its bounds", lambda x: jnp.sum(jnp.clip(x, 0.0, 1.0)), (jnp.array([0.0, 0.5, 1.0]),), ("kink",)),
        ("sort of equals", lambda x: jnp.sum(jnp.sort(x) * jnp.arange(4.0)), (TIES,), ("kink",)),
        ("max pool of equals", lambda x: jnp.sum(lax.reduce_window(x, -jnp.inf, lax.max, (2,), (2,), "VALID")), (jnp.array([1.0, 1.0, 2.0, 0.0]),), ("kink",)),
        ("relu on both sides", lambda x: jnp.sum(jax.nn.relu(x) - jax.nn.relu(-x)), (jnp.array([0.0, 1.0]),), ("nearby",)),
        ("largest of equals in size", lambda x: jnp.max(jnp.abs(x)), (jnp.array([1.0, -1.0, 0.2]),), ("kink",)),
        ("hard tanh at one", lambda x: jnp.sum(jax.nn.hard_tanh(x)), (jnp.array([1.0, 0.3]),), ("kink",)),
        ("cholesky of half a matrix", lambda a: jnp.sum(lax.linalg.cholesky(a, symmetrize_input=False)), (SYMMETRIC,), ("symmetric",) if BEFORE_0_12 else ()),
    ]
]  # fmt: skip

# --- a gradient that nobody can defend, though every rule does its work -----------------------------------------------------

NOT_A_NUMBER = [
    Planted("nan: a norm at zero", "undecided", lambda x: jnp.sqrt(jnp.sum(x * x)), (jnp.zeros(3),), ("nan", "a slope from each side")),
    Planted("nan: where, with a root", "undecided", lambda x: jnp.sum(jnp.where(x > 0, jnp.sqrt(x), 0.0)), (jnp.array([-1.0, 2.0]),), ("nan", "where()")),
]  # fmt: skip

PLANTED = [*USERS, *JAXS, *OURS, *CONVENTIONS, *NOT_A_NUMBER]
