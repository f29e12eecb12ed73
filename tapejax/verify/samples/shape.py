"""Samples: shape."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend.core.primitives import copy_p, device_put_p, name_p, sharding_constraint_p

from tapejax.verify.samples.base import ALL, COMPLEX, WIDE, integers, normal, sample

F64 = ("float64",)


def one_device():
    return jax.sharding.NamedSharding(
        jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",)), jax.sharding.PartitionSpec("d")
    )


def converted(dtype):
    return lambda x: lax.convert_element_type(x, dtype)


def complex_to_real(x):
    return lax.convert_element_type_p.bind(x, new_dtype=np.dtype("float32"), weak_type=False, sharding=None)


def permuted_reshape(x):
    return lax.reshape_p.bind(x, new_sizes=(4, 6), dimensions=(2, 0, 1), sharding=None)


SAMPLES = {
    lax.broadcast_in_dim_p: [
        sample(lambda x: lax.broadcast_in_dim(x, (2, 3, 4), (1, 2)), normal(3, 4), dtypes=ALL),
        sample(lambda x: lax.broadcast_in_dim(x, (2, 3, 4), (0, 1, 2)), normal(2, 1, 4), dtypes=F64),
        sample(lambda x: lax.broadcast_in_dim(x, (2, 3, 4), (0, 2)), normal(1, 1), dtypes=F64),
        sample(lambda x: lax.broadcast_in_dim(x, (3,), ()), normal(), dtypes=F64),
        sample(lambda x: lax.broadcast_in_dim(x, (0, 3), (1,)), normal(3), dtypes=F64),
        sample(lambda x: x[..., None, :], normal(2, 3), dtypes=F64),
    ],
    lax.reshape_p: [
        sample(lambda x: lax.reshape(x, (3, 2, 2)), normal(4, 3), dtypes=ALL),
        sample(lambda x: lax.reshape(x, (1, 1)), normal(), dtypes=F64),
        sample(lambda x: lax.reshape(x, (2, 0)), normal(0, 3), dtypes=F64),
        sample(permuted_reshape, normal(2, 3, 4), dtypes=F64),
    ],
    lax.squeeze_p: [
        sample(lambda x: lax.squeeze(x, (0, 2)), normal(1, 3, 1, 2), dtypes=ALL),
        sample(lambda x: lax.squeeze(x, (0,)), normal(1), dtypes=F64),
    ],
    lax.transpose_p: [
        sample(lambda x: lax.transpose(x, (2, 0, 1)), normal(2, 3, 4), dtypes=ALL),
        sample(lambda x: x.T, normal(0, 3), dtypes=F64),
    ],
    lax.rev_p: [sample(lambda x: lax.rev(x, (0, 2)), normal(3, 2, 2), dtypes=ALL)],
    lax.slice_p: [
        sample(lambda x: lax.slice(x, (1, 0), (4, 3)), normal(5, 3), dtypes=ALL),
        sample(lambda x: lax.slice(x, (1, 0), (7, 4), (3, 2)), normal(8, 4), dtypes=F64),
        sample(lambda x: lax.slice(x, (2, 1), (2, 3)), normal(4, 3), dtypes=F64),
    ],
    lax.pad_p: [
        sample(lambda x, v: lax.pad(x, v, [(1, 2, 0), (0, 1, 2)]), normal(2, 3), normal(), dtypes=ALL),
        sample(lambda x, v: lax.pad(x, v, [(-1, 2, 1), (1, -2, 0)]), normal(4, 3), normal(), dtypes=F64),
        sample(lambda x, v: lax.pad(x, v, [(-2, -1, 2)]), normal(4), normal(), dtypes=F64),
        sample(lambda x, v: lax.pad(x, v, [(1, 1, 1)]), normal(0), normal(), dtypes=F64),
        sample(lambda x, v: lax.pad(x, v, []), normal(), normal(), dtypes=F64),
    ],
    lax.concatenate_p: [
        sample(lambda x, y, z: lax.concatenate([x, y, z], 1), normal(2, 1), normal(2, 0), normal(2, 3), dtypes=ALL),
        sample(lambda x: lax.concatenate([x, jnp.sin(x)], 0), normal(3), dtypes=F64),
    ],
    "split": [
        sample(lambda x: lax.split(x, (1, 0, 2), 1), normal(2, 3), dtypes=ALL),
        sample(lambda x: lax.split(x, (1, 2), 0)[1], normal(3), dtypes=F64),
    ],
    "stack": [
        sample(lambda x, y: jnp.stack([x, y], 1), normal(2, 3), normal(2, 3), dtypes=ALL),
        sample(lambda x, y: jnp.stack([x, y, x]), normal(), normal(), dtypes=F64),
    ],
    "unstack": [
        sample(lambda x: jnp.unstack(x, axis=1), normal(2, 3), dtypes=ALL),
        sample(lambda x: jnp.unstack(x)[1], normal(3, 2), dtypes=F64),
    ],
    "tile": [
        sample(lambda x: lax.tile(x, (2, 3)), normal(2, 3), dtypes=ALL),
        sample(lambda x: jnp.tile(x, (2, 1, 2)), normal(1, 3), dtypes=F64),
        sample(lambda x: lax.tile(x, (0, 2)), normal(2, 2), dtypes=F64),
    ],
    lax.convert_element_type_p: [
        sample(converted("float32"), normal(2, 3), finite=False, dtypes=F64),
        sample(converted("bfloat16"), normal(2, 3), finite=False),
        sample(converted("complex128"), normal(2, 3), dtypes=ALL),
        sample(converted("int32"), normal(2, 3), dtypes=F64, finite=False),
        sample(lambda x, n: x * lax.convert_element_type(n, x.dtype), normal(3), integers([1, 2, 3]), dtypes=F64),
        sample(complex_to_real, normal(2, 3), dtypes=COMPLEX),
    ],
    lax.reduce_precision_p: [sample(lambda x: lax.reduce_precision(x, 5, 4), normal(2, 3), finite=False, dtypes=WIDE)],
    copy_p: [sample(jnp.copy, normal(2, 3), dtypes=ALL)],
    name_p: [sample(lambda x: checkpoint_name(x, "hidden"), normal(2, 3), dtypes=ALL)],
    device_put_p: [
        sample(lambda x, y: jax.device_put((x, y)), normal(2, 3), normal(2), dtypes=ALL),
        sample(lambda x, n: jax.device_put((x, n))[0] * 3, normal(2), integers([1]), dtypes=F64),
    ],
    "optimization_barrier": [
        sample(lambda x, y: lax.optimization_barrier((x, y)), normal(2, 3), normal(2), dtypes=ALL),
        sample(lambda x, n: lax.optimization_barrier((x, n))[0] * 3, normal(2), integers([1]), dtypes=F64),
    ],
    sharding_constraint_p: [sample(lambda x: lax.with_sharding_constraint(x, one_device()), normal(2, 3), dtypes=ALL)],
    "layout_constraint": [
        sample(lambda x: with_layout_constraint(x, Layout(major_to_minor=(1, 0))), normal(2, 3), dtypes=ALL)
    ],
}
