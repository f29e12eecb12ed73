"""A Tensor in the hands of jax: the right gradient, or an error at the user's line. Nothing is lost in silence."""

import collections
import contextlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tests.hands_of_jax import FUNCTIONS, SHAPE

VALUE = np.array([[0.2, 0.9]], "f")
FILES = ("test_in_the_hands_of_jax.py", "hands_of_jax.py")
INNER = {"intermediate": tnp.sin, "parameter": lambda w: w}


def leaf(value=VALUE):
    return tj.tensor(value, requires_grad=True)


def program(function, inner, w):
    return tnp.sum(function(inner(w)) ** 2) + tnp.sum(w)


# --- where it happens: from a loss, a function that gives its gradient -----------------------------------------------


def ambient(loss):
    return lambda w: tj.backward(loss(w))[w]


def ambient_wrt(loss):
    def gradient(w):
        root = loss(w)
        return tj.backward(root, wrt=w)[w]

    return gradient


def ambient_tree(loss):
    return lambda w: tj.backward(loss(w)).tree({"w": w})["w"]


def on_a_tape(loss):
    def gradient(w):
        with tj.Tape() as tape:
            root = loss(w)
        return tape.backward(root)[w]

    return gradient


def in_a_jitted_step(loss):
    return tj.jit(lambda w: tj.backward(loss(w), wrt=w)[w])


def of_a_jitted_loss(loss):
    jitted = tj.jit(lambda w: loss(w))
    return lambda w: tj.backward(jitted(w))[w]


def in_a_transform(loss):
    return tj.grad(loss)


SCOPES = [ambient, ambient_wrt, ambient_tree, on_a_tape, in_a_jitted_step, of_a_jitted_loss, in_a_transform]


def expected(name, inner):
    function = FUNCTIONS[name]
    twin = function[1] if isinstance(function, tuple) else function
    plain = {"intermediate": jnp.sin, "parameter": lambda w: w}[inner]
    return np.asarray(jax.grad(lambda w: jnp.sum(twin(plain(w)) ** 2) + jnp.sum(w))(jnp.asarray(VALUE)))


def outcome(name, inner, scope, right):
    """What a program does in a scope, when it runs four times: so often that its structure is known."""
    function = FUNCTIONS[name]
    function = function[0] if isinstance(function, tuple) else function
    seen = []
    w, gradient = leaf(), scope(lambda w: program(function, INNER[inner], w))
    for _ in range(4):
        tj.take()
        try:
            found = gradient(w)
        except tj.TapejaxError as error:
            placed = any(file in error.at for file in FILES)
            seen.append("refused" if placed else f"refused elsewhere: {error}")
        except Exception as error:
            seen.append(f"untyped {type(error).__name__}: {error}")
        else:
            found = np.asarray(found.value if isinstance(found, tj.Tensor) else found)
            same = found.shape == right.shape and np.allclose(found, right, rtol=1e-5, atol=1e-5)
            seen.append("right" if same else f"WRONG {found.tolist()}, not {right.tolist()}")
    return seen


# An error, but not ours: the reason. Nothing is lost in silence here either.
NOT_OURS = {
    "jax: lax.reduce": "jax compares the structures of its operands before it looks at them",
    "jax: pure_callback": "our error is raised in the callback, and XLA wraps it",
    "jax: io_callback": "our error is raised in the callback, and XLA wraps it",
    "flax: bytes": "msgpack does not know Tensors",
    "chex: assert_tree_all_finite": "chex wants chexify for values under a trace",
    "chex: assert_trees_all_close": "chex wants chexify for values under a trace",
}


def table(names, scopes):
    totals, bad = collections.defaultdict(collections.Counter), []
    for name in names:
        for inner in INNER:
            right = expected(name, inner)
            for scope in scopes:
                for visit, found in enumerate(outcome(name, inner, scope, right)):
                    kind = found.split(":")[0].split(" ")[0]
                    totals[scope.__name__][kind] += 1
                    if found not in ("right", "refused") and not (kind == "untyped" and name in NOT_OURS):
                        bad.append(f"{name}, {inner}, {scope.__name__}, visit {visit}: {found}")
    for scope, counts in totals.items():
        print(scope, dict(counts))
    return bad


QUICK = [ambient_wrt, in_a_transform]


@pytest.mark.parametrize("group", ["jax", "optax", "equinox", "flax", "chex", "python"])
@pytest.mark.parametrize("scopes", [QUICK, pytest.param([s for s in SCOPES if s not in QUICK], marks=pytest.mark.slow)], ids=["quick", "rest"])  # fmt: skip
def test_nothing_is_lost_in_silence(group, scopes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bad = table([name for name in FUNCTIONS if name.startswith(group)], scopes)
    assert not bad, "\n".join(bad)
