"""One of two processes that train together on a mesh over both, eagerly; each holds and looks at other things.

python -m tests.processes INDEX PORT      # run by test_processes.py, twice at once
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import tapejax as tj
import tapejax.numpy as tnp


def main(index: int, port: int) -> None:
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=index, initialization_timeout=60)
    mesh = jax.make_mesh((4,), ("batch",), axis_types=(AxisType.Auto,))
    data = np.linspace(-1, 1, 32).astype("f").reshape(8, 4)
    start = np.linspace(0.1, 1.0, 4).astype("f")

    def everywhere(array, spec):
        sharding = NamedSharding(mesh, spec)
        return jax.make_array_from_callback(array.shape, sharding, lambda part: array[part])

    x = tj.tensor(everywhere(data, PartitionSpec("batch")))
    w = tj.tensor(everywhere(start, PartitionSpec()), requires_grad=True)
    held = []
    for step in range(6):
        h = tnp.tanh(x * w)
        middle = (h * h).mean()
        loss = middle + (h - x).mean() ** 2
        if index == 0 and step % 2:
            float(middle)  # one looks in the middle of the step
        if index == 1:
            held.append(middle)  # the other holds what the first lets go
        gradient = tj.backward(loss, wrt=w)[w]
        w = tj.tensor(w.value - 0.5 * gradient, requires_grad=True)

    def plain(w):
        h = jnp.tanh(data * w)
        return (h * h).mean() + (h - data).mean() ** 2

    expected = jnp.asarray(start)
    for _ in range(6):
        expected = expected - 0.5 * jax.grad(plain)(expected)
    np.testing.assert_allclose(np.asarray(w.value.addressable_data(0)), expected, rtol=1e-5)

    print("ok", index, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
