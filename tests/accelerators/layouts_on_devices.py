"""Training on 8 virtual devices, laid out in every usual way. Run by test_layouts.py: jax counts devices when it starts.

Each case prints `ok NAME` or what went wrong. The judge is jax.value_and_grad on one device, over 20 steps.
"""

import collections
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tapejax as tj
import tapejax.numpy as tnp

STEPS, RATE = 20, 0.25
DRAWN = np.random.default_rng(0)
START = {
    "w": DRAWN.normal(size=(8, 16)).astype("f") / 4,
    "b": DRAWN.normal(size=(16,)).astype("f") / 4,
    "v": DRAWN.normal(size=(16, 8)).astype("f") / 4,
}
X, Y = DRAWN.normal(size=(16, 8)).astype("f"), DRAWN.normal(size=(16, 8)).astype("f")

# By name: the mesh, the specs of the parameters, the spec of the data, whether the parameters are gathered
# before they are used, and the sharding of a product over what is split (in an Explicit mesh it has to be said).
LAYOUTS = {
    "data": ({"d": 8}, {"w": P(), "b": P(), "v": P()}, P("d"), False, None),
    "tensor": ({"m": 8}, {"w": P(None, "m"), "b": P("m"), "v": P("m")}, P(), False, P()),
    "both": ({"d": 2, "m": 4}, {"w": P(None, "m"), "b": P("m"), "v": P("m")}, P("d"), False, P("d")),
    "fully": ({"d": 8}, {"w": P("d"), "b": P("d"), "v": P(None, "d")}, P("d"), True, None),
}


class Model:
    """The loss, written once for jax.numpy and for tapejax.numpy."""

    def __init__(self, gathered, product, explicit):
        self.product = product if explicit else None
        self.gather = functools.partial(jax.sharding.reshard, out_shardings=P()) if gathered and explicit else None
        self.matmul = functools.partial(jnp.matmul, out_sharding=self.product)
        self.lifted_gather = tj.lift(self.gather, name="gather") if self.gather else None
        self.lifted_matmul = tj.lift(self.matmul, name="matmul")

    def loss(self, n, p, x, y):
        gather, matmul = (self.gather, self.matmul) if n is jnp else (self.lifted_gather, self.lifted_matmul)
        w, b, v = (gather(p[name]) if gather else p[name] for name in "wbv")
        h = n.tanh(n.matmul(x, w) + b)
        return ((matmul(h, v) - y) ** 2).mean()


def penalised(value_and_grad):
    """The loss, plus the square of its own gradient in `v`: a derivative of a derivative."""

    def loss(p, x, y):
        value, slope = value_and_grad(p, x, y)
        return value + 0.125 * (slope["v"] ** 2).sum()

    return loss


def descend(step, params, x, y):
    losses, grads = [], None
    for _ in range(STEPS):
        loss, grads = step(params, x, y)
        losses.append(float(loss))
        params = {name: params[name] - RATE * grads[name] for name in params}
    return losses, grads, params


def eager(model):
    def step(params, x, y):
        p = {name: tj.tensor(value, requires_grad=True) for name, value in params.items()}
        loss = model.loss(tnp, p, tj.tensor(x), tj.tensor(y))
        return loss, tj.backward(loss, wrt=p).tree(p)

    return step


def looked_at(model):
    def step(params, x, y):
        p = {name: tj.tensor(value, requires_grad=True) for name, value in params.items()}
        loss = model.loss(tnp, p, tj.tensor(x), tj.tensor(y))
        return float(loss), tj.backward(loss).tree(p)

    return step


def one_by_one(model):
    def step(*args):
        with tj.fusion(False):
            return eager(model)(*args)

    return step


def jitted(model):
    return tj.jit(eager(model))


def in_jax_jit(model):
    return jax.jit(tj.value_and_grad(functools.partial(model.loss, tnp)))


def checkpointed(model):
    def step(params, x, y):
        p = {name: tj.tensor(value, requires_grad=True) for name, value in params.items()}
        loss = tj.checkpoint(functools.partial(model.loss, tnp), p, tj.tensor(x), tj.tensor(y))
        return loss, tj.backward(loss, wrt=p).tree(p)

    return step


def second_order(model):
    inner = tj.value_and_grad(functools.partial(model.loss, tnp))

    def step(params, x, y):
        p = {name: tj.tensor(value, requires_grad=True) for name, value in params.items()}
        loss = penalised(inner)(p, tj.tensor(x), tj.tensor(y))
        return loss, tj.backward(loss, wrt=p).tree(p)

    return step


def second_order_in_jax_jit(model):
    return jax.jit(tj.value_and_grad(penalised(tj.value_and_grad(functools.partial(model.loss, tnp)))))


FIRST = [eager, looked_at, one_by_one, jitted, in_jax_jit, checkpointed]
SECOND = [second_order, second_order_in_jax_jit]


@functools.cache
def expected(second):
    step = jax.value_and_grad(functools.partial(Model(False, None, False).loss, jnp))
    step = jax.jit(jax.value_and_grad(penalised(step)) if second else step)
    return descend(step, {name: jnp.asarray(value) for name, value in START.items()}, X, Y)


def check(way, model, mesh, specs, data):
    lay = lambda value, spec: jax.device_put(value, NamedSharding(mesh, spec))
    params = {name: lay(value, specs[name]) for name, value in START.items()}
    losses, grads, params = descend(way(model), params, lay(X, data), lay(Y, data))
    true_losses, true_grads, true_params = expected(way in SECOND)
    np.testing.assert_allclose(losses, true_losses, atol=1e-6, rtol=1e-6)
    for name in START:
        np.testing.assert_allclose(np.asarray(grads[name]), true_grads[name], atol=1e-6, err_msg=name)
        np.testing.assert_allclose(np.asarray(params[name]), true_params[name], atol=1e-5, err_msg=name)
        if "in_jax_jit" not in way.__name__ and way is not jitted:  # there jax and XLA choose
            wanted = NamedSharding(mesh, specs[name])
            found = grads[name].sharding
            assert found.is_equivalent_to(wanted, grads[name].ndim), f"{name}: {found} instead of {wanted}"


def collectives(lowered):
    kinds = r"[})] (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
    return collections.Counter(re.findall(kinds, lowered.compile().as_text()))


def check_collectives(model, mesh, specs, data):
    """The program of a step has no more collectives of any kind than jax's own."""
    lay = lambda value, spec: jax.device_put(value, NamedSharding(mesh, spec))
    params = {name: lay(value, specs[name]) for name, value in START.items()}
    out = None, {name: value.sharding for name, value in params.items()}
    of_jax = jax.jit(jax.value_and_grad(functools.partial(model.loss, jnp)), out_shardings=out)
    of_tape = jax.jit(tj.value_and_grad(functools.partial(model.loss, tnp)), out_shardings=out)
    theirs, ours = [collectives(step.lower(params, lay(X, data), lay(Y, data))) for step in (of_jax, of_tape)]
    assert sum(theirs.values()), "jax's own program has none: nothing was compared"
    assert not ours - theirs, f"{dict(ours)} against {dict(theirs)} of jax"


def run(name, case, *args):
    try:
        case(*args)
        print("ok", name, flush=True)
    except Exception as error:
        print("FAILED", name, type(error).__name__, str(error).replace("\n", " ")[:400], flush=True)


if __name__ == "__main__":
    for kind in (AxisType.Auto, AxisType.Explicit):
        for layout, (axes, specs, data, gathered, product) in LAYOUTS.items():
            mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(kind,) * len(axes))
            model = Model(gathered, product, kind is AxisType.Explicit)
            with jax.set_mesh(mesh):
                for way in [*FIRST, *SECOND]:
                    run(f"{kind.name} {layout} {way.__name__}", check, way, model, mesh, specs, data)
                run(f"{kind.name} {layout} collectives", check_collectives, model, mesh, specs, data)
