"""Several meshes in one process, on 8 virtual devices. Run by test_meshes.py: the number of devices is set when jax starts.

Each case prints `ok NAME` or what went wrong. The judge is jax.grad on one device.
"""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import tapejax as tj
import tapejax.numpy as tnp

X = np.linspace(-1, 1, 32).astype("f").reshape(8, 4)


def meshes(kind):
    devices = jax.devices()
    yield "a", jax.make_mesh((4,), ("a",), axis_types=(kind,))
    yield "b", jax.make_mesh((2, 4), ("b", "c"), axis_types=(kind, kind))
    yield ("b", "c"), jax.make_mesh((2, 4), ("b", "c"), axis_types=(kind, kind))
    yield "a", jax.make_mesh((4,), ("a",), axis_types=(kind,), devices=devices[4:])  # the same mesh to look at


def loss(n, w):
    return (n.tanh(w * 3.25) * w + 1.5).sum()


EXPECTED = jax.grad(lambda w: loss(jnp, w))(X)


def eager(w, mesh):
    with jax.set_mesh(mesh):
        return tj.backward(loss(tnp, w), wrt=w)[w]


def backward_outside(w, mesh):
    with jax.set_mesh(mesh):
        root = loss(tnp, w)
    return tj.backward(root, wrt=w)[w]


def looked_at_first(w, mesh):
    with jax.set_mesh(mesh), tj.Tape() as tape:
        root = loss(tnp, w)
        float(root)
        return tape.backward(root)[w]


def one_by_one(w, mesh):
    tj.fusion.enabled = False
    try:
        return eager(w, mesh)
    finally:
        tj.fusion.enabled = True


def jitted(w, mesh):
    with jax.set_mesh(mesh):
        return tj.jit(lambda w: tj.grad(lambda w: loss(tnp, w))(w))(w.value)


def checkpointed(w, mesh):
    with jax.set_mesh(mesh):
        return tj.backward(tj.checkpoint(lambda w: loss(tnp, w), w), wrt=w)[w]


def for_everything(w, mesh):
    """All devices run the same programs, whoever asks for what: nothing waits until somebody does."""
    with jax.set_mesh(mesh):
        grads = tj.backward(loss(tnp, w))
    assert not grads.unasked
    assert len(grads) == 6
    return grads[w]


def no_mesh_set(w, mesh):
    return tj.backward(loss(tnp, w), wrt=w)[w]


WAYS = [eager, for_everything, backward_outside, looked_at_first, one_by_one, jitted, checkpointed, no_mesh_set]


def check(kind, axes, mesh, way):
    sharding = NamedSharding(mesh, PartitionSpec(axes))
    for visit in range(2):
        w = tj.tensor(jax.device_put(X, sharding), requires_grad=True)
        found = way(w, mesh)
        np.testing.assert_allclose(np.asarray(found), EXPECTED, rtol=1e-5, atol=1e-6)
        assert found.sharding.is_equivalent_to(sharding, 2), f"visit {visit}: {found.sharding} instead of {sharding}"


if __name__ == "__main__":
    for kind in (AxisType.Auto, AxisType.Explicit)[: int(sys.argv[1])]:
        for way, (axes, mesh) in itertools.product(WAYS, meshes(kind)):
            name = f"{kind.name} {way.__name__} {axes} {mesh.devices.ravel()[0].id}"
            try:
                check(kind, axes, mesh, way)
                print("ok", name, flush=True)
            except Exception as error:
                print("FAILED", name, type(error).__name__, str(error).replace("\n", " ")[:300], flush=True)
