"""What people of another library write by habit, and what to write here: for errors only, never on the way of a call."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_PLACE = "x.to(jax.devices()[0]), or tapejax.tensor(data, device=jax.devices()[0])"
_GRAD = "grads = loss.backward(); grads[x]: gradients are returned, not stored"
_TRACKED = "tapejax.tensor(x, requires_grad=True) makes a new leaf"

# Attributes of torch.Tensor that a Tensor does not have.
ATTRIBUTES = {
    "grad": _GRAD,
    "grad_fn": "x.id.producer, the action that made it",
    "zero_grad": "nothing: every backward returns fresh gradients",
    "retain_grad": _GRAD,
    "register_post_accumulate_grad_hook": "tapejax.hooks.after_accumulation(x, f)",
    "requires_grad_": _TRACKED,
    "data": "x.value",
    "cpu": "x.numpy(), or x.to(jax.devices('cpu')[0])",
    "cuda": _PLACE,
    "type": "x.astype(dtype)",
    "float": "x.astype(jnp.float32)",
    "double": "x.astype(jnp.float64), with jax.config.update('jax_enable_x64', True)",
    "half": "x.astype(jnp.float16)",
    "bfloat16": "x.astype(jnp.bfloat16)",
    "long": "x.astype(int)",
    "int": "x.astype(int)",
    "bool": "x.astype(bool)",
    "clone": "nothing, Tensors are immutable; x + 0 for another one on the tape",
    "contiguous": "nothing: leave it out",
    "numel": "x.size",
    "dim": "x.ndim",
    "unsqueeze": "tapejax.numpy.expand_dims(x, axis), or x[:, None]",
    "permute": "x.transpose(*axes)",
    "t": "x.T",
    "mm": "x @ y",
    "bmm": "x @ y",
    "matmul": "x @ y",
    "expand": "tapejax.numpy.broadcast_to(x, shape)",
    "tile": "tapejax.numpy.tile(x, repeats)",
    "gather": "tapejax.numpy.take_along_axis(x, indices, axis)",
    "scatter": "x.at[indices].set(values)",
    "masked_fill": "tapejax.numpy.where(mask, value, x)",
    "clamp": "x.clip(low, high)",
    "norm": "tapejax.numpy.linalg.norm(x)",
    "chunk": "tapejax.numpy.split(x, parts, axis)",
    "split": "tapejax.numpy.split(x, parts, axis)",
    "softmax": "tapejax.nn.softmax(x, axis)",
    "log_softmax": "tapejax.nn.log_softmax(x, axis)",
    "relu": "tapejax.nn.relu(x)",
    "sigmoid": "tapejax.nn.sigmoid(x)",
    "logsumexp": "tapejax.nn.logsumexp(x, axis)",
}
ATTRIBUTES |= {name: f"tapejax.numpy.{name}(x)" for name in ("exp", "log", "sqrt", "sin", "cos", "tanh", "square")}
ATTRIBUTES |= {
    "add": "x + y", "sub": "x - y", "mul": "x * y", "div": "x / y", "pow": "x ** y", "neg": "-x", "abs": "abs(x)",
}  # fmt: skip
_IN_PLACE = {
    "zero_": "tapejax.numpy.zeros_like(x)",
    "fill_": "tapejax.numpy.full_like(x, value)",
    "copy_": "tapejax.tensor(y)",
    "normal_": "tapejax.tensor(jax.random.normal(key, x.shape))",
    "uniform_": "tapejax.tensor(jax.random.uniform(key, x.shape))",
}
ATTRIBUTES |= {name: f"x = {new}: Tensors are immutable" for name, new in _IN_PLACE.items()}


_LEAF = "tapejax.tensor({}, requires_grad=True)"
_OPTAX = "optax, or a few lines: params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads.tree(tensors))"
_LAYER = "parameters are plain arrays: {}; equinox and flax have layers (examples/ shows both)"

# Names that people look for in this module, or in its `nn`, and that are elsewhere here.
NAMES = {
    "zeros": _LEAF.format("jnp.zeros(shape)") + " for a leaf; tapejax.numpy.zeros",
    "ones": _LEAF.format("jnp.ones(shape)") + " for a leaf; tapejax.numpy.ones",
    "randn": _LEAF.format("jax.random.normal(key, shape)"),
    "rand": _LEAF.format("jax.random.uniform(key, shape)"),
    "Variable": _LEAF.format("data"),
    "Parameter": _LEAF.format("data"),
    "from_numpy": "tapejax.tensor(array)",
    "as_tensor": "tapejax.tensor(array)",
    "autograd": "tapejax.grad(f), or tape.backward(loss); tapejax.custom_op for Function, tapejax.check_grads for gradcheck",
    "optim": _OPTAX,
    "optimizers": _OPTAX,
    "Module": "a function of parameters and data; equinox and flax have modules (examples/ shows both)",
    "Linear": _LAYER.format("x @ w + b"),
    "Dense": _LAYER.format("x @ w + b"),
    "Conv2d": _LAYER.format("tapejax.nn.conv(x, kernel)"),
    "Embedding": _LAYER.format("table[tokens]"),
    "Sequential": "tapejax.sequential(functions, x), or one function after the other",
    "LayerNorm": _LAYER.format("tapejax.nn.standardize(x) * scale + shift"),
    "Dropout": _LAYER.format("x * jax.random.bernoulli(key, 0.9, x.shape) / 0.9"),
    "ReLU": "tapejax.nn.relu(x), a function",
    "Sigmoid": "tapejax.nn.sigmoid(x), a function",
    "Tanh": "tapejax.numpy.tanh(x), a function",
    "Softmax": "tapejax.nn.softmax(x), a function",
    "CrossEntropyLoss": "tapejax.nn.cross_entropy(scores, labels), a function",
    "MSELoss": "((x - y) ** 2).mean()",
    "functional": "tapejax.nn itself: its functions are plain",
    "save": "numpy.savez, or orbax: parameters are plain arrays",
    "load": "numpy.load, or orbax: parameters are plain arrays",
    "cuda": _PLACE,
    "device": _PLACE,
    "function": "jax.jit(step): a step with its tape inside compiles as it is",
    "manual_seed": "jax.random.key(seed), given to the functions that draw",
    "set_grad_enabled": "tapejax.no_grad(), tapejax.enable_grad()",
    "inference_mode": "tapejax.no_grad()",
    "constant": "tapejax.tensor(data)",
    "gradient": "tapejax.grad(f)(x), or tape.backward(loss)[x]; tapejax.numpy.gradient has the differences of an array",
    "derivative": "tapejax.grad(f)(x)",
    "gradcheck": "tapejax.check_grads(f, (x,), order=1), or tapejax.verify(f, x), which says who is wrong",
    "Function": "tapejax.custom_op: a function, and @it.defbackward above its derivative",
    "cat": "tapejax.numpy.concatenate([x, y], axis)",
    "utils": "tapejax.checkpoint(f, x) for torch.utils.checkpoint; batches are plain arrays",
}
# Attributes of other libraries' tapes.
OF_TAPES = {
    "grad": "tape.backward(loss)[x]",
    "gradient": "tape.backward(loss)[x], or grads = tape.backward(loss) for all at once",
    "jacobian": "tapejax.jacrev(f)(x)",
    "batch_jacobian": "tapejax.vmap(tapejax.jacrev(f))(x)",
    "reset": "a new tape: with tapejax.Tape() as tape",
    "stop_recording": "with tapejax.no_grad()",
    "watch": "tapejax.tensor(x, requires_grad=True): such tensors are watched; `with tapejax.watch() as calls:` shows every op",
    "watched_variables": "tensors made with requires_grad=True",
}


def of_name(name: str, namespaces: Mapping[str, Collection[str]]) -> str | None:
    """Where a name is that a module does not have. namespaces: the names that each module of ours has."""
    if name in NAMES:
        return NAMES[name]
    homes = [f"{module}.{name}" for module, names in namespaces.items() if name in names]
    return ", or ".join(homes[:2]) or None


def of_attribute(name: str) -> str | None:
    """What to write instead of a missing attribute, if somebody else's Tensors have it."""
    found = ATTRIBUTES.get(name)
    if found is None and name.endswith("_") and not name.startswith("_"):
        new = ATTRIBUTES.get(name[:-1], f"x.{name[:-1]}(...), or the function of tapejax.numpy")
        return f"x = {new}: Tensors are immutable"
    return found


# What jax says of a wrong argument, and what to do about it; in braces what was found in parentheses.
MESSAGES = {
    r"unexpected keyword argument '(?:dim|keepdim)'": "NumPy's names: axis= for dim=, keepdims= for keepdim=",
    r"axis -?\d+ is out of bounds for array of dimension (\d+)": "of {0} axes the first is 0, the last -1",
    r"index -?\d+ is out of bounds for axis 0 with size (\d+)": "of {0} axes the first is 0, the last -1",  # swapaxes
    r"[Ii]ncompatible shapes": "counted from the last axis, sizes must be equal, or one of them 1",
    r"contracting dimensions": "the axes that are summed over must have one size: see both shapes, and x.T",
    r"cannot reshape": "the sizes must multiply to the number of elements; one of them may be -1",
    r"isn't a permutation": "name every axis once",
    r"unbound axis name": "an axis is a number, or a tuple of them; a name is one of jax.vmap or shard_map around it",
    r"interpreted as an integer|of integral type|be an integer type|object is not iterable": "axes, shapes and counts are integers, or tuples of them",
    r"data type .* not understood": "a dtype is one of jax.numpy, as jnp.float32, or its name",
}


def of_message(message: str) -> str | None:
    """What to do about an argument that a function of jax refused."""
    for pattern, fix in MESSAGES.items():
        found = re.search(pattern, message)
        if found:
            return fix.format(*found.groups())
    return None
