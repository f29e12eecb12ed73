"""Host callbacks that use tapejax themselves: python -m tests.attacks.callbacks WAY HOST..."""

import faulthandler
import json
import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

import tapejax as tj
import tapejax.numpy as tnp

SHAPE = jax.ShapeDtypeStruct((3,), jnp.float32)
DATA = np.array([0.25, -0.5, 1.0], "f")
VISITS = 5


def leaf(value=DATA):
    return tj.tensor(value, requires_grad=True)


# --- host functions: each returns sin(data) --------------------------------------------------------------------


def host_plain(data):
    return np.sin(np.asarray(data))


def host_jax(data):
    """The control: what jax itself makes of a computation within a callback."""
    return np.asarray(jnp.sin(np.asarray(data)))


def host_ops(data):
    return tnp.sin(tj.tensor(np.asarray(data)) * 1.0).numpy()


def host_backward(data):
    x = leaf(np.asarray(data))
    with tj.Tape() as tape:
        y = -tnp.cos(x).sum()
    return np.asarray(tape.backward(y)[x])


def host_pending(data):
    return PENDING[-1].numpy()


PENDING: list = []
HOSTS = {"plain": host_plain, "jax": host_jax, "ops": host_ops, "backward": host_backward, "pending": host_pending}


# --- ways to call them: x * sin(data) -----------------------------------------------------------------------------


def lifted(host):
    return tj.lift(lambda x, d: x * jax.pure_callback(host, SHAPE, d))


def ordered(host):
    return tj.lift(lambda x, d: x * io_callback(host, SHAPE, d, ordered=False))


def compiled(host):
    return tj.jit(lambda x, d: x * tj.lift(lambda v: jax.pure_callback(host, SHAPE, v))(d))


WAYS = {"lift": lifted, "io": ordered, "jit": compiled}


def typed(error):
    """A tapejax error, also one that jax wrapped in its own."""
    return "tapejax.errors" in "".join(traceback.format_exception(error)) or isinstance(error, tj.TapejaxError)


def visit(function, number, among):
    """One use, alone or among other ops; what is wrong, or None."""
    data = DATA + number
    PENDING.append(tnp.sin(tj.tensor(data, requires_grad=True) * 1.0))
    x = leaf(data)
    before = tnp.exp(x) if among else None
    y = function(x, tj.tensor(data))
    after = tnp.tanh(x) if among else None
    try:
        if not np.allclose(y.numpy(), data * np.sin(data), rtol=1e-4, atol=1e-6):
            return f"value {y.numpy()} instead of {data * np.sin(data)}"
        gradient = tj.backward(y.sum(), wrt=x)[x]
        if not np.allclose(gradient, np.sin(data), rtol=1e-4, atol=1e-6):
            return f"gradient {gradient} instead of {np.sin(data)}"
    except Exception as error:
        if not typed(error):
            return f"{type(error).__name__}: {str(error)[-600:]}"
    for name, tensor, expected in (("before", before, np.exp(data)), ("after", after, np.tanh(data))):
        if tensor is not None and not np.allclose(tensor.numpy(), expected, rtol=1e-4):
            return f"{name} is {tensor.numpy()} instead of {expected}"
    return None


def attack(way, host):
    faulthandler.dump_traceback_later(20, exit=True)
    failures = []
    for among in (False, True):
        function = WAYS[way](HOSTS[host])
        for number in range(VISITS):
            try:
                problem = visit(function, number, among)
            except Exception as error:
                problem = f"beside it, {type(error).__name__}: {str(error)[:600]}"
            if problem:
                failures.append(f"{host} {'among others' if among else 'alone'}, visit {number + 1}: {problem}")
    print(json.dumps({"host": host, "tried": 2 * VISITS, "failures": failures}), flush=True)


def main(way, *hosts):
    for host in hosts:
        attack(way, host)


if __name__ == "__main__":
    main(*sys.argv[1:])
