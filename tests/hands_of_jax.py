"""Functions that may be given a Tensor in the middle of a loss: of jax, of libraries on it, of Python. Data for a test.

Each takes an array of shape (1, 2) and gives one of any shape. One that jax cannot differentiate has a twin that it can.
"""

import concurrent.futures
import copy
import dataclasses
import functools
import itertools
import operator
import pickle
import types
from functools import partial

import chex
import equinox as eqx
import flax
import flax.linen
import flax.struct
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import NamedSharding, PartitionSpec

MESH = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
SPEC = PartitionSpec("i")
KEY = jax.random.key(0)
SHAPE = (1, 2)
same = lambda x: x
triple = lambda x: 3 * x


@jax.custom_vjp
def vjp_rule(x):
    return 3 * x


vjp_rule.defvjp(lambda x: (3 * x, None), lambda _, ct: (3 * ct,))


@jax.custom_jvp
def jvp_rule(x):
    return 3 * x


jvp_rule.defjvp(lambda primals, tangents: (3 * primals[0], 3 * tangents[0]))
gradient_rule = jax.custom_gradient(lambda x: (3 * x, lambda ct: 3 * ct))


def closure_converted(x):
    f, constants = jax.closure_convert(lambda y: 3 * y, x)
    return f(x, *constants)


def flattened(x):
    leaves, structure = jax.tree.flatten({"x": x})
    return jax.tree.unflatten(structure, [3 * leaf for leaf in leaves])["x"]


def raveled(x):
    flat, _ = ravel_pytree({"x": x})
    return 3 * flat.reshape(1, 2)


def raveled_and_back(x):
    flat, back = ravel_pytree({"x": x})
    return back(flat)["x"]


def on_host(x):
    return jax.pure_callback(lambda v: np.asarray(3 * v), jax.ShapeDtypeStruct(SHAPE, jnp.float32), x)


def on_host_with_effect(x):
    return jax.experimental.io_callback(lambda v: np.asarray(3 * v), jax.ShapeDtypeStruct(SHAPE, jnp.float32), x)


def through(call):
    """Call something for its effect; the argument goes on."""

    def go_on(x):
        call(x)
        return 3 * x

    return go_on


jitted, jitted_tree, jitted_cast, mapped = jax.jit(triple), jax.jit(lambda t: jax.tree.map(lambda a: 3 * a, t)), jax.jit(lambda t: jax.tree.map(lambda a: a.T, t)), jax.vmap(triple)  # fmt: skip
identity_jitted = jax.jit(same)

JAX = {
    "jit": jitted,
    "jit, the same": identity_jitted,
    "jit of tree.map": jitted_tree,
    "jit of a transpose": jitted_cast,
    "jit in place": lambda x: jax.jit(lambda y: 3 * y)(x),
    "jit of a dict": lambda x: jax.jit(lambda d: d["x"] * 3)({"x": x}),
    "vmap": mapped,
    "vmap, the same": jax.vmap(same),
    "vmap, other axes": lambda x: jax.vmap(same, out_axes=1)(x),
    "pmap": jax.pmap(triple),
    "scan": lambda x: lax.scan(lambda c, v: (c + 1, 3 * v), 0.0, x)[1],
    "scan, carried": lambda x: lax.scan(lambda c, v: (3 * c, None), x, jnp.arange(1))[0],
    "scan, closed over": lambda x: lax.scan(lambda c, v: (c + x.sum(), None), 0.0, jnp.arange(2))[0],
    "cond": lambda x: lax.cond(True, triple, same, x),
    "cond, closed over": lambda x: lax.cond(True, lambda: 3 * x, lambda: x),
    "switch": lambda x: lax.switch(0, [triple, same], x),
    "while_loop": (lambda x: lax.while_loop(lambda s: s[0] < 1, lambda s: (s[0] + 1, 3 * s[1]), (0, x))[1], triple),
    "fori_loop": lambda x: lax.fori_loop(0, 2, lambda i, v: 3 * v, x),
    "map": lambda x: lax.map(triple, x),
    "associative_scan": lambda x: lax.associative_scan(operator.add, x, axis=1),
    "checkpoint": jax.checkpoint(triple),
    "remat": lambda x: jax.remat(lambda y: y * 3)(x),
    "custom_vjp": vjp_rule,
    "custom_jvp": jvp_rule,
    "custom_gradient": gradient_rule,
    "device_put": jax.device_put,
    "device_put to a sharding": lambda x: jax.device_put(x, NamedSharding(MESH, SPEC)),
    "device_get": (jax.device_get, same),
    "with_sharding_constraint": lambda x: lax.with_sharding_constraint(x, NamedSharding(MESH, SPEC)),
    "shard_map": jax.shard_map(triple, mesh=MESH, in_specs=SPEC, out_specs=SPEC),
    "optimization_barrier": lax.optimization_barrier,
    "stop_gradient": lax.stop_gradient,
    "tree.map": lambda x: jax.tree.map(lambda leaf: 3 * leaf, {"x": x})["x"],
    "tree.map of two": lambda x: jax.tree.map(lambda a, b: a * b, [x], [x])[0],
    "tree.leaves": lambda x: 3 * jax.tree.leaves({"x": x})[0],
    "tree.flatten": flattened,
    "tree.reduce": lambda x: jax.tree.reduce(operator.add, {"x": x, "y": x}),
    "tree_map_with_path": lambda x: jax.tree_util.tree_map_with_path(lambda path, leaf: 3 * leaf, {"x": x})["x"],
    "tree.leaves_with_path": lambda x: jax.tree.leaves_with_path({"x": x})[0][1] * 3,
    "tree.transpose": lambda x: jax.tree.transpose(jax.tree.structure([0]), jax.tree.structure({"a": 0}), [{"a": x}])["a"][0],
    "tree.broadcast": lambda x: jax.tree.broadcast(x, x),
    "tree.structure": through(lambda x: jax.tree.structure({"x": x})),
    "tree_util.Partial": lambda x: jax.tree_util.Partial(operator.mul, x)(3.0),
    "jit of a Partial": lambda x: jax.jit(lambda p: p(3.0))(jax.tree_util.Partial(operator.mul, x)),
    "ravel_pytree": raveled,
    "ravel_pytree and back": raveled_and_back,
    "linearize": lambda x: jax.linearize(triple, x)[0],
    "jvp": lambda x: jax.jvp(triple, (x,), (x,))[1],
    "vjp": lambda x: jax.vjp(triple, x)[0],
    "grad": lambda x: jax.grad(lambda v: (v * v * v).sum())(x),
    "value_and_grad": lambda x: jax.value_and_grad(lambda v: (v * v).sum())(x)[0],
    "hessian": lambda x: jax.hessian(lambda v: (v * v * v).sum())(x),
    "jacfwd": lambda x: jax.jacfwd(lambda v: v * v)(x),
    "jacrev": lambda x: jax.jacrev(lambda v: v * v)(x),
    "eval_shape": through(lambda x: jax.eval_shape(triple, x)),
    "make_jaxpr": through(lambda x: jax.make_jaxpr(triple)(x)),
    "pure_callback": (on_host, triple),
    "io_callback": (on_host_with_effect, triple),
    "debug.print": through(lambda x: jax.debug.print("{}", x)),
    "debug.callback": through(lambda x: jax.debug.callback(lambda v: None, x)),
    "block_until_ready": lambda x: jax.block_until_ready(3 * x),
    "closure_convert": closure_converted,
    "named_call": jax.named_call(triple, name="triple"),
    "named_scope": lambda x: jax.named_scope("a")(triple)(x),
    "jnp.sin": jnp.sin,
    "jnp.sum": jnp.sum,
    "jnp.concatenate": lambda x: jnp.concatenate([x, x]),
    "jnp.stack": lambda x: jnp.stack([x, 2 * x]),
    "jnp.where": lambda x: jnp.where(jnp.array([[True, False]]), x, 3 * x),
    "jnp.einsum": lambda x: jnp.einsum("ij,ij->i", x, x),
    "jnp.asarray": lambda x: 3 * jnp.asarray(x),
    "jnp.array of a list": lambda x: 3 * jnp.array([x]),
    "jnp.linalg.norm": jnp.linalg.norm,
    "jnp.vectorize": jnp.vectorize(triple),
    "jnp.matmul of an array": lambda x: jnp.ones((2, 1)) @ x,
    "array + tensor": lambda x: jnp.ones(SHAPE) + x,
    "array.dot": lambda x: jnp.ones((2, 1)).dot(x),
    "array.at.set": lambda x: jnp.zeros((2, 2)).at[0].set(x[0]),
    "lax.sin": lax.sin,
    "lax.add": lambda x: lax.add(x, x),
    "lax.dot_general": lambda x: lax.dot_general(x, x, (((1,), (1,)), ((), ()))),
    "lax.reduce": lambda x: lax.reduce(x, 0.0, lax.add, (0,)),
    "lax.top_k": lambda x: lax.top_k(x, 1)[0],
    "nn.relu": jax.nn.relu,
    "nn.softmax": jax.nn.softmax,
    "nn.logsumexp": jax.nn.logsumexp,
    "scipy.special.erf": jax.scipy.special.erf,
    "random.normal": lambda x: x + jax.random.normal(KEY, SHAPE),
    "random.permutation": lambda x: jax.random.permutation(KEY, x, axis=1),
    "image.resize": lambda x: jax.image.resize(x, (2, 4), "linear"),
    "platform_dependent": lambda x: lax.platform_dependent(x, cpu=triple, default=triple),
    "np.asarray": (lambda x: 3 * np.asarray(x), triple),
    "np.sin": (np.sin, jnp.sin),
}  # fmt: skip


def transformed(transform):
    return lambda x: transform.update({"x": x}, transform.init({"x": jnp.zeros(SHAPE)}))[0]["x"]


OPTAX = {
    "global_norm": optax.global_norm,
    "clip": transformed(optax.clip(0.5)),
    "clip_by_global_norm": transformed(optax.clip_by_global_norm(0.5)),
    "scale": transformed(optax.scale(3.0)),
    "apply_updates": lambda x: optax.apply_updates({"x": x}, {"x": x})["x"],
    "apply_updates, as updates": lambda x: optax.apply_updates({"x": jnp.ones(SHAPE)}, {"x": x})["x"],
    "incremental_update": lambda x: optax.incremental_update({"x": x}, {"x": x}, 0.5)["x"],
    "l2_loss": optax.l2_loss,
    "softmax_cross_entropy": lambda x: optax.softmax_cross_entropy(x, jnp.array([[0.0, 1.0]])),
    "tree.scale": lambda x: optax.tree.scale(3.0, {"x": x})["x"],
    "tree.norm": lambda x: optax.tree.norm({"x": x}),
    "tree.sum": lambda x: optax.tree.sum({"x": x}),
}


class Scaled(eqx.Module):
    weight: object

    def __call__(self, by):
        return self.weight * by


def parted(x):
    arrays, rest = eqx.partition(Scaled(x), eqx.is_array)
    return eqx.combine(arrays, rest)(3.0)


EQUINOX = {
    "filter_jit": eqx.filter_jit(triple),
    "filter_jit of a module": lambda x: eqx.filter_jit(lambda m: m(3.0))(Scaled(x)),
    "filter_vmap": eqx.filter_vmap(triple),
    "filter_checkpoint": eqx.filter_checkpoint(triple),
    "filter_grad": lambda x: eqx.filter_grad(lambda v: (v * v * v).sum())(x),
    "tree_at": lambda x: eqx.tree_at(lambda m: m.weight, Scaled(x), replace_fn=triple)(1.0),
    "tree_at, put in": lambda x: eqx.tree_at(lambda m: m.weight, Scaled(jnp.ones(SHAPE)), x)(3.0),
    "filter": lambda x: eqx.filter(Scaled(x), eqx.is_array)(3.0),
    "partition": parted,
    "Module": lambda x: Scaled(x)(3.0),
    "apply_updates": lambda x: eqx.apply_updates(Scaled(x), Scaled(jnp.ones(SHAPE)))(3.0),
    "tree_equal": through(lambda x: eqx.tree_equal(x, x)),
    "error_if": lambda x: eqx.error_if(x, jnp.array(False), "never"),
}


@flax.struct.dataclass
class Held:
    x: object


class Layer(nnx.Module):
    def __init__(self, x):
        self.w = nnx.Param(x)

    def __call__(self, by):
        return self.w[...] * by


def split_and_merged(x):
    definition, state = nnx.split(Layer(x))
    return nnx.merge(definition, state)(3.0)


FLAX = {
    "linen apply": lambda x: flax.linen.Dense(2, use_bias=False).apply({"params": {"kernel": jnp.ones((2, 2))}}, x),
    "linen apply, as kernel": lambda x: flax.linen.Dense(2, use_bias=False).apply({"params": {"kernel": x}}, jnp.ones((2, 1))),
    "nnx module": lambda x: Layer(x)(3.0),
    "nnx split and merge": split_and_merged,
    "nnx jit": lambda x: nnx.jit(lambda layer: layer(3.0))(Layer(x)),
    "struct replace": lambda x: 3 * Held(x).replace(x=x).x,
    "struct in tree.map": lambda x: jax.tree.map(lambda leaf: 3 * leaf, Held(x)).x,
    "freeze": lambda x: 3 * flax.core.freeze({"x": x})["x"],
    "flatten_dict": lambda x: 3 * flax.traverse_util.flatten_dict({"a": {"b": x}})[("a", "b")],
    "state dict": lambda x: 3 * flax.serialization.from_state_dict(Held(x), flax.serialization.to_state_dict(Held(x))).x,
    "bytes": (lambda x: 3 * flax.serialization.from_bytes({"x": x}, flax.serialization.to_bytes({"x": x}))["x"], triple),
}  # fmt: skip


@chex.dataclass
class Chest:
    x: object


CHEX = {
    "assert_shape": through(lambda x: chex.assert_shape(x, SHAPE)),
    "assert_rank": through(lambda x: chex.assert_rank(x, 2)),
    "assert_equal_shape": through(lambda x: chex.assert_equal_shape([x, x])),
    "assert_tree_all_finite": (through(lambda x: chex.assert_tree_all_finite(x)), triple),
    "assert_trees_all_close": (through(lambda x: chex.assert_trees_all_close(x, x)), triple),
    "assert_trees_all_equal_shapes": through(lambda x: chex.assert_trees_all_equal_shapes(x, x)),
    "dataclass": lambda x: 3 * Chest(x=x).x,
    "dataclass in tree.map": lambda x: jax.tree.map(lambda leaf: 3 * leaf, Chest(x=x)).x,
    "dataclass replace": lambda x: 3 * Chest(x=x).replace(x=x).x,
}


@dataclasses.dataclass
class Record:
    x: object


def in_a_thread(x):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: jax.tree.map(lambda leaf: leaf, [x])[0]).result()


PYTHON = {
    "copy": lambda x: 3 * copy.copy(x),
    "copy of a dict": lambda x: 3 * copy.copy({"x": x})["x"],
    "deepcopy": (lambda x: 3 * copy.deepcopy(x), triple),
    "deepcopy of a dict": (lambda x: 3 * copy.deepcopy({"x": x})["x"], triple),
    "pickle": (lambda x: 3 * pickle.loads(pickle.dumps(x)), triple),
    "pickle of a dict": (lambda x: 3 * pickle.loads(pickle.dumps({"x": x}))["x"], triple),
    "reduce": lambda x: functools.reduce(operator.add, [x, x, x]),
    "partial": lambda x: partial(operator.mul, x)(3),
    "dataclasses.replace": lambda x: 3 * dataclasses.replace(Record(x), x=x).x,
    "dataclasses.asdict": (lambda x: 3 * dataclasses.asdict(Record(x))["x"], triple),
    "map": lambda x: sum(map(triple, [x, x])),
    "map of leaves": lambda x: 3 * next(iter(map(jax.tree.leaves, [[x]])))[0],
    "itertools": lambda x: sum(itertools.chain([x], [x])),
    "SimpleNamespace": lambda x: 3 * types.SimpleNamespace(x=x).x,
    "a thread": (in_a_thread, same),
    "sum": lambda x: sum(3 * row for row in x),
    "a comprehension": lambda x: functools.reduce(operator.add, [v * v for v in x]),
}

GROUPS = {"jax": JAX, "optax": OPTAX, "equinox": EQUINOX, "flax": FLAX, "chex": CHEX, "python": PYTHON}
FUNCTIONS = {f"{group}: {name}": found for group, table in GROUPS.items() for name, found in table.items()}
