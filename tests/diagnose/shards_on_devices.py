"""find_nonfinite within shard_map, on four devices: run by test_shards.py in a process of its own."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import tapejax as tj
from tapejax.diagnose.nonfinite import Subject

LINE = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
SQUARE = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)


def hidden_root(x):
    def inner(x):
        root = jnp.sqrt(x)
        return jax.lax.psum(jnp.where(x > 0, root, 0.0).sum(), "d")

    return jax.shard_map(inner, mesh=LINE, in_specs=P("d"), out_specs=P())(x)


def log_of_a_mean(w, x):
    def inner(w, x):
        mean = jax.lax.pmean(x @ w, "d")
        return jnp.log(mean) + jax.lax.axis_index("d")

    return jax.shard_map(inner, mesh=LINE, in_specs=(P(), P("d", None)), out_specs=P("d"))(w, x).sum()


def on_a_square(x):
    def inner(x):
        everything = jax.lax.psum(jax.lax.all_gather(x, "a").sum(), "b")
        return jnp.sqrt(x) * everything

    return jax.shard_map(inner, mesh=SQUARE, in_specs=P("a", "b"), out_specs=P("a", "b"))(x).sum()


def look(function, *args):
    born = tj.find_nonfinite(function, *args).born
    return born.op, born.lineno - function.__code__.co_firstlineno, born.index, born.direction, born.cause


def main() -> None:
    # Device 2 has elements 4 and 5.
    assert look(hidden_root, jnp.ones(8).at[5].set(0.0)) == ("sqrt", 2, (2, 1), "backward", "derivative")
    rows = jnp.ones((8, 3)).at[:, 0].set(-2.0)
    mean = look(log_of_a_mean, jnp.ones((3, 2)), rows)  # the same on all devices: an element without a device
    assert mean == ("log", 3, (0, 0), "forward", "value")
    # Row 3, column 1: on the device at (1, 0) of the mesh, there at [1, 1].
    bad = look(on_a_square, jnp.ones((4, 4)).at[3, 1].set(-1.0))
    assert bad == ("sqrt", 3, (1, 0, 1, 1), "forward", "value")
    x = jnp.arange(1.0, 17.0).reshape(4, 4)
    assert tj.find_nonfinite(on_a_square, x).ok
    subject = Subject.of(on_a_square, (x,), None, False)
    gradient = subject.run().cts[subject.traced.probe.program.inputs[0]]
    np.testing.assert_allclose(gradient, jax.grad(on_a_square)(x), rtol=1e-5)
    print("ok")


if __name__ == "__main__":
    main()
