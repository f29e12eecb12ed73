"""One of two processes, with an array of which each holds a half: what shows it shows the half, and says so.

python -m tests.accelerators.part_here INDEX PORT      # run by test_part_here.py, twice at once
"""

import pickle
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tapejax as tj
import tapejax.numpy as tnp

W = np.arange(32.0, dtype="f").reshape(8, 4) / 10


def check_shown(w, index):
    rows = f"only [{4 * index}:{4 * index + 4}, 0:4] of (8, 4) is in this process"
    assert rows in repr(w), repr(w)
    assert "0. " not in repr(w) or index == 0
    grads = tj.backward((w * w).sum())
    assert rows in str(grads), str(grads)
    with pytest.raises(tj.errors.NotHereError, match="only") as caught:
        w.numpy()
    assert __file__ in caught.value.at
    for conversion in (pickle.dumps, np.asarray, lambda x: x.tolist()):
        with pytest.raises(tj.errors.NotHereError):
            conversion(w.detach())
    with tj.Tape() as tape, tempfile.TemporaryDirectory() as folder:
        root = tnp.tanh(w).sum()
        tape.save_html(f"{folder}/tape.html", root=root)
        with open(f"{folder}/tape.html") as page:
            assert f"only [{4 * index}:" in page.read()


def check_kept_elsewhere(w):
    with tj.save_on_cpu():
        root = tnp.exp(w).sum()
    gradient = tj.backward(root)[w]
    here = np.concatenate([np.asarray(shard.data) for shard in gradient.addressable_shards])
    first = gradient.addressable_shards[0].index[0].start or 0
    np.testing.assert_allclose(here, np.exp(W)[first : first + len(here)], rtol=1e-6)
    with tempfile.TemporaryDirectory() as folder, tj.save_to_disk(folder):
        again = tj.backward(tnp.exp(w).sum())[w]
    np.testing.assert_allclose(
        np.asarray(again.addressable_shards[0].data), here[: again.addressable_shards[0].data.shape[0]]
    )


def check_indexing(w):
    rows = jnp.array([0, 5, 2])
    gradient = tj.backward((w[rows] * w[rows]).sum())[w]
    whole = multihost_utils.process_allgather(gradient, tiled=True)
    true = np.zeros_like(W)
    true[[0, 5, 2]] = 2 * W[[0, 5, 2]]
    np.testing.assert_allclose(whole, true)


def check_random(index):
    drawn = tj.random.normal((3,))
    both = multihost_utils.process_allgather(drawn.value if isinstance(drawn, tj.Tensor) else drawn)
    np.testing.assert_array_equal(both[0], both[1])


def main(index: int, port: int) -> None:
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=index, initialization_timeout=60)
    mesh = jax.make_mesh((4,), ("rows",), axis_types=(AxisType.Auto,))
    value = jax.make_array_from_callback(W.shape, NamedSharding(mesh, P("rows")), lambda part: W[part])
    w = tj.tensor(value, requires_grad=True)
    check_shown(w, index)
    check_kept_elsewhere(w)
    check_indexing(w)
    check_random(index)
    print("ok", index, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
