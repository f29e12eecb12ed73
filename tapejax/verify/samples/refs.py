"""Samples for programs with mutable references (tapejax/program/discharge.py)."""

import jax
import jax.numpy as jnp
from jax import lax

from tapejax.verify.samples.base import integers, normal, sample

ONE = ("float64",)
I = jnp.array([0, 2])


def straight(x):
    ref = jax.new_ref(jnp.sin(x))
    ref[0] = ref[1] * x[2]
    y = ref[...]
    ref[1:] += x[1:] ** 2
    return jax.freeze(ref) * y


def swapped(x):
    ref = jax.new_ref(x * x)
    before = jax.ref.swap(ref, 0, x[1])
    return before * ref[...]


def added(x):
    ref = jax.new_ref(x)
    jax.ref.addupdate(ref, ..., 2.0 * x)
    jax.ref.addupdate(ref, slice(0, 2), x[1:] * x[0])
    jax.ref.addupdate(ref, jnp.array([1, 1]), x[:2])  # twice the same place
    return ref[...] ** 2


def at_traced_places(x, i):
    ref = jax.new_ref(x)
    ref[i] = x[0] * x[1]
    return ref[i] * ref[jnp.array([0, 1])]


def at_mixed_places(x):
    ref = jax.new_ref(jnp.zeros((3, 4, 2), x.dtype))
    ref[I, :, 1] = jnp.sin(x[:2, None]) * jnp.ones((2, 4))
    ref[:, I, 0] = jnp.cos(x[:, None]) * jnp.ones((3, 2))
    ref[1, I] += x[1]
    return ref[::2, I] * ref[0:2, 1:3]


def through_calls(x):
    ref = jax.new_ref(x)

    @jax.jit
    def change(ref):
        ref[0] = 2.0 * ref[1] * ref[2]

    change(ref)
    change(ref)
    return ref[...] ** 2


def through_scan(x):
    ref, total = jax.new_ref(x), jax.new_ref(jnp.zeros((), x.dtype))

    def step(carry, y):
        ref[...] = jnp.sin(ref[...]) * y
        total[...] += ref[0] * carry
        return carry + y, ref[1]

    carry, ys = lax.scan(step, x[0], x)
    return ref[...], total[...], carry, ys


def through_branches(x):
    ref = jax.new_ref(x)

    def change():
        ref[0] = x[1] * x[2]
        return jnp.sin(ref[0])

    def leave():
        return jnp.cos(x[0])

    first = lax.cond(jnp.sum(x) > 0, change, leave)
    second = lax.cond(jnp.sum(x) < 0, change, leave)
    return ref[...] ** 2, first * second


def made_inside_a_loop(x):
    @jax.jit
    def inner(x):
        ref = jax.new_ref(x)
        ref[0] = x[1] * x[2]
        return ref[...]

    return lax.scan(lambda carry, y: (inner(carry) * y, carry[0]), x, x)


def pure(function):
    return sample(function, normal(3), dtypes=ONE)


# By what the program does: references have no rules of their own.
SAMPLES = {
    "get": [pure(straight), pure(at_mixed_places), sample(at_traced_places, normal(3), integers(1), dtypes=ONE)],
    "swap": [pure(swapped), pure(through_calls), sample(straight, normal(3), dtypes=("complex128", "float32"))],
    "addupdate": [pure(added)],
    "scan": [pure(through_scan), pure(made_inside_a_loop), pure(jax.checkpoint(straight))],
    "cond": [pure(through_branches)],
    "vmap": [sample(jax.vmap(straight), normal(2, 3), dtypes=ONE)],
}
