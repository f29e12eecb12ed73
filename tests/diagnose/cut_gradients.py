"""Gradients that are missing, lack a part, or are zero, each for another reason: as data.

The line that is to blame is marked `# here`.
"""

import copy
import math
import pickle

import jax
import jax.numpy as jnp

import tapejax as tj

CASES = []


def case(cause, op="", share=0.0, x=(1.0, 2.0)):
    def add(function):
        CASES.append((function, cause, op, share, x))
        return function

    return add


@case("unused")
def never_used(x, z):
    return (z * z).sum()


@case("cut", "numpy()")
def by_numpy(x, z):
    return (z * x.numpy()).sum()  # here


@case("cut", "item()")
def by_item(x, z):
    scale = x.sum().item()  # here
    return (z * scale).sum()


@case("cut", "float()")
def by_float(x, z):
    scale = float(x[0])  # here
    return (z * scale).sum()


@case("cut", "int()")
def by_int(x, z):
    count = int(x[1])  # here
    return (z * count).sum()


@case("cut", "tolist()")
def by_tolist(x, z):
    again = tj.tensor(x.tolist(), requires_grad=True)  # here
    return (z * again).sum()


@case("cut", "a truth value (`if`, `while`, `and`, `or`, `not`)")
def by_a_branch(x, z):
    if x.sum():  # here
        return (2.0 * z).sum()
    return z.sum()


@case("cut", "detach")
def by_detach(x, z):
    fixed = (3.0 * x).detach()  # here
    return (z * fixed).sum()


@case("cut", "detach")
def by_stop_gradient(x, z):
    fixed = tj.stop_gradient(x)  # here
    return (z * fixed).sum()


@case("cut", "no_grad")
def by_no_grad(x, z):
    with tj.no_grad():  # here
        scale = 2.0 * x
    return (z * scale).sum()


@case("cut", "jax.tree.map")
def by_tree_map(x, z):
    doubled = jax.tree.map(lambda a: 2.0 * a, x)  # here
    return (z * doubled).sum()


@case("cut", "detach")
def root_is_detached(x, z):
    return (x * z).sum().detach()  # here


@case("partial", "detach")
def a_part_by_detach(x, z):
    fixed = x.detach()  # here
    return (x * fixed).sum()


@case("flat", "relu", 1.0)
def dead_relu(x, z):
    return tj.nn.relu(x - 5.0).sum()  # here


@case("flat", "relu", 0.5)
def half_dead_relu(x, z):
    return tj.nn.relu(x - 1.5).sum()  # here


@case("flat", "round", 1.0)
def rounding(x, z):
    return (tj.numpy.round(x) * z).sum()  # here


@case("flat", "floor", 1.0)
def by_floor(x, z):
    return tj.numpy.floor(x).sum()  # here


@case("flat", "where", 1.0)
def masked_out(x, z):
    kept = tj.numpy.where(x > 9.0, x, 0.0)  # here
    return kept.sum()


@case("flat", "multiply", 1.0)
def times_zero(x, z):
    return (x * 0.0).sum()  # here


@case("flat", "sign", 1.0)
def only_its_sign(x, z):
    return (tj.numpy.sign(x) * z).sum()  # here


@case("saturated", "sigmoid", 1.0)
def saturated_sigmoid(x, z):
    return tj.nn.sigmoid(200.0 * x).sum()  # here


@case("saturated", "tanh", 1.0)
def saturated_tanh(x, z):
    return tj.numpy.tanh(100.0 * x).sum()  # here


@case("saturated", "clip", 0.5)
def beyond_the_clip(x, z):
    return tj.numpy.clip(x, 0.0, 1.5).sum()  # here


@case("saturated", "exp", 1.0)
def underflow(x, z):
    return tj.numpy.exp(-1000.0 * x).sum()  # here


@case("none")
def nothing_wrong(x, z):
    return (x * x).sum()


@case("cut", ".value")
def by_value(x, z):
    plain = jnp.sin(x.value)  # here
    return (z * plain).sum()


@case("cut", "argmax")
def by_argmax(x, z):
    best = x.argmax()  # here
    return z[best]


@case("cut", "greater")
def by_comparison(x, z):
    mask = x > 1.5  # here
    return tj.numpy.where(mask, z, 0.0).sum()


@case("cut", "astype")
def by_integers(x, z):
    whole = x.astype(jnp.int32)  # here
    return (z * whole).sum()


@case("cut", "argsort")
def by_integers_and_further(x, z):
    order = x.argsort()  # here
    return (z * (2 * order + 1)).sum()


@case("cut", "tape")
def by_another_tape(x, z):
    with tj.Tape():
        scale = 2.0 * x  # here
    return (z * scale).sum()


@case("cut", "copy.deepcopy")
def by_deepcopy(x, z):
    again = copy.deepcopy(x)  # here
    return (z * again).sum()


@case("cut", "pickle")
def by_pickle(x, z):
    again = pickle.loads(pickle.dumps(x))  # here
    return (z * again).sum()


@case("cut", "halved")
def by_a_stop_inside(x, z):
    halved = tj.lift(lambda x: jax.lax.stop_gradient(x) / 2, name="halved")
    return (z * halved(x)).sum()  # here


@case("partial", "detach")
def a_part_by_stop_gradient(x, z):
    return (x * tj.stop_gradient(x.sum())).sum()  # here


@case("flat", "max", 0.5)
def not_the_largest(x, z):
    return x.max()  # here


@case("flat", "getitem", 0.5)
def not_picked(x, z):
    return (x[:1] * z[:1]).sum()  # here


@case("saturated", "softmax", 1.0)
def certain_softmax(x, z):
    return (tj.nn.softmax(500.0 * x) * z).sum()  # here


# --- written, with their answers, when their author had read no more of missing.py than how `_zero` begins: 14 of 20 agreed at the first run. Of the others a power
# of zero and what cancels were told wrong; two were refused or meant differently by jax; two parts that are missing (under
# no_grad, by a stop_gradient within a lifted function) are not told, and are not here.


@case("cut", "float()")
def by_math(x, z):
    root = math.sqrt(float(x.sum()))  # here
    return (z * root).sum()


@case("cut", "searchsorted")
def by_a_search(x, z):
    place = tj.numpy.searchsorted(tj.tensor([0.0, 1.5, 3.0]), x)  # here
    return (z * place).sum()


@case("unused")
def only_its_shape(x, z):
    return (z * x.shape[0]).sum()


@case("partial", "jax.tree.map")
def a_part_by_tree_map(x, z):
    doubled = jax.tree.map(lambda a: 2.0 * a, x)  # here
    return (x * doubled).sum()


@case("none")
def compared_and_used(x, z):
    return tj.numpy.where(x > 0.5, x * x, 0.0).sum()


@case("none")
def printed_and_used(x, z):
    str((x, x.sum()))
    return (x * z).sum()


@case("flat", "multiply", 0.5)
def dropped(x, z):
    kept = x * jnp.array([0.0, 2.0])  # here
    return (kept * z).sum()


@case("flat", "minimum", 0.5)
def above_the_bound(x, z):
    return tj.numpy.minimum(x, 1.5).sum()  # here


@case("flat", "power", 0.5, x=(0.0, 2.0))
def bottom_of_a_square(x, z):
    return (x**2).sum()  # here


@case("flat", "getitem", 1.0)
def joined_and_dropped(x, z):
    both = tj.numpy.concatenate([x, z])
    return both[2:].sum()  # here


@case("flat", "matmul", 1.0)
def weights_of_zero(x, z):
    return (x @ jnp.zeros((2, 2)) * z).sum()  # here


@case("flat", "subtract", 1.0)
def what_cancels(x, z):
    return (x - x).sum()  # here


@case("flat", "masked", 1.0)
def masked_inside(x, z):
    masked = tj.lift(lambda x: jnp.where(x > 9.0, x, 0.0), name="masked")
    return masked(x).sum()  # here


@case("saturated", "softplus", 1.0)
def far_below_softplus(x, z):
    return tj.nn.softplus(x - 300.0).sum()  # here


@case("saturated", "erf", 1.0)
def saturated_erf(x, z):
    return tj.scipy.special.erf(30.0 * x).sum()  # here


@case("saturated", "gelu", 1.0)
def far_below_gelu(x, z):
    return tj.nn.gelu(x - 60.0).sum()  # here
