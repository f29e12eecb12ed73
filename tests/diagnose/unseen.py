"""Programs that were written, with their answers, before their author had read tapejax.diagnose.

They are rebuilt from memory of public questions. The answers come from the definitions in `catalogue.py` and from the mathematics.

At their first run 38 of 41 answers agreed in everything, and none of 8 healthy programs raised an alarm. One of the three was wrong:
a lane of a mapped while loop went on after its end. In two the author was: a branch under vmap is healthy since jax guards it, and the
sum of an inverse with infinities of both signs is a NaN of that sum. Both were corrected here, the loop there.
"""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
from jax import lax

from tests.diagnose import catalogue
from tests.diagnose.catalogue import INF, NAN, Case, f16

BAD: list[Case] = []
HEALTHY: list[Case] = []
bad = catalogue.into(BAD)
healthy = catalogue.healthy_into(HEALTHY)

# --- distances, norms, normalisation ----------------------------------------------------------------------------


@bad(jnp.array([[0.0, 0.0], [3.0, 4.0]]), op="integer_pow", index=(0, 0, 0), back="cotangent")
def distances_between_points(points):
    squares = (points[:, None] - points[None]) ** 2  # here
    return jnp.sqrt(squares.sum(-1)).sum()


@bad(jnp.array([[0.0, 0.0], [3.0, 4.0]]), op="sqrt", index=(0, 0), back="derivative")
def distances_without_the_diagonal(points):
    squares = ((points[:, None] - points[None]) ** 2).sum(-1)
    distances = jnp.sqrt(squares)  # here
    return jnp.where(jnp.eye(2, dtype=bool), 0.0, distances).sum()


@bad(jnp.array([[1.0, 2.0], [0.0, 0.0]]), op="mul", index=(1, 0), back="cotangent")
def norm_of_a_zero_row(rows):
    return jnp.linalg.norm(rows, axis=-1).sum()  # here


@bad(jnp.array([1.0, -1.0, 2.0, -2.0]), op="div", index=(0,))
def weights_that_sum_to_zero(w):
    w = w / w.sum()  # here
    return (w**2).sum()


@bad(f16([2.0, 2.0]), op="div", index=(0,))
def epsilon_that_underflows_in_half(x):
    centred = x - x.mean()
    return (centred / jnp.sqrt(x.var() + 1e-8)).sum()  # here


@bad(1e4 + 0.003 * jnp.arange(3.0), op="sqrt")
def variance_by_difference(x):
    variance = (x * x).mean() - x.mean() ** 2
    return jnp.sqrt(variance)  # here


@bad(jnp.array([1.0, 2.0, 3.0]), op="div", index=(1,))
def mean_of_an_empty_segment(x):
    ids = jnp.array([0, 0, 2])
    total = jax.ops.segment_sum(x, ids, 3)
    count = jax.ops.segment_sum(jnp.ones_like(x), ids, 3)
    return (total / count).sum()  # here


# --- probabilities -----------------------------------------------------------------------------------------------


@bad(jnp.array([0.3, 1.0]), op="mul", index=(1,), cause="infinities")
def cross_entropy_at_certainty(p):
    y = jnp.array([0.0, 1.0])
    terms = y * jnp.log(p)
    terms = terms + (1.0 - y) * jnp.log(1.0 - p)  # here
    return -terms.mean()


@bad(jnp.array([0.5, 0.5, 0.0]), op="mul", index=(2,), cause="infinities")
def divergence_with_a_zero(p):
    q = jnp.array([0.25, 0.25, 0.5])
    return jnp.sum(p * jnp.log(p / q))  # here


@bad(jnp.array([1.0, 20.0]), op="log", index=(1,))
def squashed_gaussian(u):
    correction = jnp.log(1.0 - jnp.tanh(u) ** 2)  # here
    return (-0.5 * u**2 - correction).sum()


@bad(jnp.array([0.0, -200.0]), op="div", index=(1,))
def likelihood_with_no_spread(log_sigma):
    z = (1.5 - 0.5) / jnp.exp(log_sigma)  # here
    return jnp.sum(0.5 * z**2 + log_sigma)


@bad(jnp.array([0.5, 0.0]), op="log", index=(1,))
def gumbel_of_zero(u):
    return -jnp.log(-jnp.log(u)).sum()  # here


@bad(jnp.array([0.5, 1.0]), op="log1p", index=(1,))
def geometric_at_one(p):
    return jnp.log1p(-p).sum()  # here


@bad(jnp.array([0.0, 0.7]), op="log", index=(0,), back="derivative")
def log_with_a_floor(p):
    return -jnp.maximum(jnp.log(p), -100.0).sum()  # here


@bad(jnp.array([1.0, 2.0]), op="log")
def logsumexp_of_nothing(x):
    masked = jnp.where(jnp.array([False, False]), x, -jnp.inf)
    return jax.nn.logsumexp(masked)  # here


@bad(jnp.array([[1.0, 2.0], [3.0, 4.0]]), op="sub", index=(1, 0), cause="infinities")
def log_softmax_of_an_empty_row(logits):
    masked = jnp.where(jnp.array([[True, True], [False, False]]), logits, -jnp.inf)
    return jnp.sum(jax.nn.log_softmax(masked) * 0.5)  # here


@bad(f16([1.0, 2.0, 3.0]), op="mul", index=(0,), cause="infinities")
def large_number_as_mask_in_half(scores):
    mask = jnp.array([1.0, 1.0, 0.0], jnp.float16)
    masked = scores - 1e9 * (1.0 - mask)  # here
    return jax.nn.softmax(masked)[0]


@bad(jnp.array([0.5, -100.0]), op="exp", index=(1,), back="kept")
def sigmoid_by_hand(x):
    e = jnp.exp(-x)  # here
    return (1.0 / (1.0 + e)).sum()


@bad(jnp.array([0.5, 100.0]), op="exp", index=(1,), back="kept")
def distribution_of_a_maximum(x):
    e = jnp.exp(x)  # here
    return jnp.exp(-e).sum()


# --- elementary functions ----------------------------------------------------------------------------------------


@bad(jnp.array([2.0, 0.0, 3.0]), op="log", index=(1,), back="derivative")
def product_by_logarithms(x):
    logs = jnp.log(x)  # here
    return jnp.exp(logs.sum())


@bad(jnp.array([0.0, 1.0]), op="div", index=(0,), back="kept")
def sinc_by_hand(x):
    ratio = jnp.sin(x) / x  # here
    return jnp.where(x == 0.0, 1.0, ratio).sum()


@bad(jnp.array([8.0, -8.0]), op="pow", index=(1,))
def cube_root_of_negative(x):
    return (x ** (1.0 / 3.0)).sum()  # here


@bad(jnp.array([2.0, 1.0]), op="acosh", index=(1,), back="derivative")
def hyperbolic_distance_to_itself(x):
    return jnp.arccosh(x).sum()  # here


@bad(jnp.eye(3), op="acos", back="derivative")
def angle_of_no_rotation(rotation):
    cosine = (jnp.trace(rotation) - 1.0) / 2.0
    return jnp.arccos(cosine)  # here


# --- matrices, indices --------------------------------------------------------------------------------------------


@bad(jnp.eye(2), op="eigh", index=(0, 0), back="derivative")
def vectors_of_equal_eigenvalues(a):
    _, vectors = jnp.linalg.eigh(a)  # here
    return vectors[0].sum()


@bad(jnp.array([[1.0, 2.0], [2.0, 4.0]]), op="triangular_solve", index=(0, 0))
def inverse_of_a_singular_matrix(a):
    return jnp.linalg.inv(a)[0, 0]  # here


@bad(jnp.array([[1.0, 2.0], [2.0, 4.0]]), op="log")
def determinant_of_a_singular_matrix(a):
    return jnp.linalg.slogdet(a)[1]  # here


@bad(jnp.array([1.0, 2.0]), op="gather", index=(1,))
def index_out_of_range(table):
    rows = jnp.take(table, jnp.array([0, 5]))  # here
    return rows.sum()


# --- loops, branches, transforms ----------------------------------------------------------------------------------


@bad(jnp.array(0.5), op="div", steps=(("scan", 0),))
def optimiser_that_starts_at_the_optimum(target):
    def step(carry, _):
        p, v = carry
        g = p - lax.stop_gradient(target)
        v = 0.9 * v + 0.1 * g * g
        p = p - 0.1 * g / jnp.sqrt(v)  # here
        return (p, v), None

    (p, _), _ = lax.scan(step, (target, jnp.float32(0.0)), None, length=5)
    return p


@bad(jnp.array(1.0), op="div", steps=(("scan", 1),))
def newton_at_a_flat_place(x):
    def step(_, x):
        return x - (x * x + 1.0) / (2.0 * x)  # here

    return lax.fori_loop(0, 2, step, x)


@bad(jnp.array(10.0), op="mul", steps=(("scan", 4),))
def state_that_explodes(w):
    def step(h, _):
        h = w * h * h  # here
        return h, h

    return lax.scan(step, jnp.float32(10.0), None, length=8)[0]


@bad(jnp.array(3.0), op="div", steps=(("scan", 3),))
def bodies_that_collide(x):
    def step(x, _):
        force = 1.0 / jnp.abs(x) ** 3  # here
        return x - 1.0, force

    return lax.scan(step, x, None, length=6)[1].sum()


@bad(jnp.array([9.0, 3.0, 8.0]), op="log", index=(1,), steps=(("scan", 3),))
def one_lane_of_a_vmapped_scan(x):
    def one(x):
        def step(c, _):
            y = jnp.log(c)  # here
            return c - 1.0, y

        return lax.scan(step, x, None, length=4)[1].sum()

    return jax.vmap(one)(x).sum()


@bad(jnp.array([3.0, 0.0]), op="div", index=(0,), back="derivative")
def gradient_normalised_on_the_way(x):
    @jax.custom_vjp
    def normalised(x):
        return x

    def backward(_, ct):
        length = jnp.sqrt(jnp.sum(ct * ct))
        return (ct / length,)  # here

    normalised.defvjp(lambda x: (x, None), backward)
    return jnp.sum(0.0 * normalised(x))


@bad(jnp.array([2.0, -1.0]), op="sqrt", index=(1,), steps=(("scan", 2),), back="derivative")
def layers_under_checkpoint(x):
    @jax.checkpoint
    def layer(h, bias):
        h = h + bias
        root = jnp.sqrt(jnp.maximum(h, 0.0))  # here
        return jnp.where(h > 0, root, h), None

    return lax.scan(layer, x, jnp.array([[0.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 2.0]]))[0].sum()


@bad(jnp.array([1.0, 0.0]), op="log", index=(1,), steps=(("cond", 2),))
def one_of_three_branches(x):
    def third(x):
        return jnp.log(x)  # here

    return lax.switch(jnp.int32(2), [jnp.sin, jnp.cos, third], x).sum()


@bad(jnp.array([2.0, 5.5]), op="log", index=(0,), steps=(("while", 2),))
def lanes_of_a_vmapped_while(x):
    def one(x):
        def body(state):
            c, total = state
            y = jnp.log(c)  # here
            return c - 1.0, total + y

        return lax.while_loop(lambda state: state[0] > -0.5, body, (x, jnp.float32(0.0)))[1]

    return jax.vmap(one)(x).sum()


# --- libraries ----------------------------------------------------------------------------------------------------

if importlib.util.find_spec("optax"):

    @bad(jnp.zeros(2), op="div", index=(0,))
    def cosine_in_optax(x):
        import optax

        return optax.losses.cosine_similarity(x, jnp.ones(2))  # here


if importlib.util.find_spec("equinox"):

    @bad(jnp.array([1.0, 2.0]), op="sqrt", index=(0,), back="derivative")
    def network_in_equinox(x):
        import equinox as eqx

        network = eqx.nn.Linear(2, 2, use_bias=False, key=jax.random.key(0))
        network = eqx.tree_at(lambda n: n.weight, network, jnp.array([[2.0, -1.0], [1.0, 1.0]]))
        h = network(x)
        root = jnp.sqrt(h)  # here
        return jnp.where(h > 0, root, 0.0).sum()


if importlib.util.find_spec("flax"):

    @bad(jnp.array([[2.0, 2.0], [1.0, 3.0]]), op="mul", index=(0, 0), cause="infinities")
    def layer_norm_in_flax(x):
        from flax import nnx

        return (nnx.LayerNorm(2, epsilon=0.0, rngs=nnx.Rngs(0))(x) ** 2).sum()  # here


# --- healthy ------------------------------------------------------------------------------------------------------


@healthy(jnp.array([4.0, 0.0]))
def branch_under_vmap(x):
    return jax.vmap(lambda x: lax.cond(x > 0, jnp.sqrt, lambda x: 0.0 * x, x))(x).sum()


@healthy(jnp.array([1.0, 2.0]))
def sum_in_logs_from_nothing(x):
    return jnp.logaddexp(-jnp.inf, x).sum()


@healthy(jnp.array([1.0, 2.0, 3.0]))
def logsumexp_over_some(x):
    return jax.nn.logsumexp(x, where=jnp.array([True, False, True]))


@healthy(jnp.array([[0.0, 0.0], [3.0, 4.0]]))
def distances_done_right(points):
    squares = ((points[:, None] - points[None]) ** 2).sum(-1)
    apart = squares > 0
    return jnp.where(apart, jnp.sqrt(jnp.where(apart, squares, 1.0)), 0.0).sum() + jnp.where(apart, 0.0, jnp.inf).min()


@healthy(jnp.array([2.0, NAN, 3.0, NAN]))
def padded_with_nan(x):
    known = jnp.where(jnp.isnan(x), 0.0, x)
    return (known**2).sum() / jnp.isfinite(x).sum()


@healthy(jnp.array([3.0, NAN, 1.0]))
def first_after_sorting(x):
    return jnp.sort(x)[:2].sum()


@healthy(jnp.array([10.0, -10.0]))
def tanh_of_infinity(x):
    return jnp.tanh(1e38 * x).sum()


@healthy(jnp.array([1.0, 5.0, 3.0, 2.0]))
def only_the_best_two(logits):
    threshold = lax.top_k(logits, 2)[0][-1]
    return (jax.nn.softmax(jnp.where(logits < threshold, -jnp.inf, logits)) * jnp.arange(4.0)).sum()


@healthy(jnp.array([1.0, 4.0]), jnp.array([INF, 3.0]))
def clipped_between_infinities(x, bound):
    return jnp.clip(x, -jnp.inf, lax.stop_gradient(bound)).sum()
