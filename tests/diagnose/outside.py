"""More programs that were written, with their answers, before their author had read how tapejax.diagnose searches.

They are what people meet: libraries, lanes, half precision, distributions at the edge of their support, masks. The answers come from
the definitions in `catalogue.py` and from the mathematics. jax.grad alone said that each is bad, or healthy.

At their first run 24 of 27 answers agreed in everything, and none of 8 healthy programs raised an alarm. One of the three was wrong:
a while loop that carries its bound unchanged, as fori_loop does, could not be opened. In two the author was: the rule of xlogy
divides first and multiplies after, and an element within a shard_map begins with the place of its device.
"""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from tests.diagnose import catalogue
from tests.diagnose.catalogue import NAN, Case, f16

BAD: list[Case] = []
HEALTHY: list[Case] = []
bad = catalogue.into(BAD)
healthy = catalogue.healthy_into(HEALTHY)

# --- likelihoods, masks, attention --------------------------------------------------------------------------------


@bad(jnp.array([[1.0, 2.0], [3.0, 4.0]]), op="log", index=(1,))
def logsumexp_of_a_masked_row(logits):
    mask = jnp.array([[True, False], [False, False]])
    return jax.nn.logsumexp(jnp.where(mask, logits, -jnp.inf), axis=-1).sum()  # here


@bad(jnp.array([1.0, 2.0]), jnp.array([1.0, 0.0]), op="add", index=(1,), cause="infinities")
def normal_with_no_width(x, scale):
    return jax.scipy.stats.norm.logpdf(x, 0.0, scale).sum()  # here


@bad(jnp.array([0.0, 0.5]), op="mul", index=(0,), back="cotangent")
def likelihood_of_what_never_comes(q):
    counts = jnp.array([0.0, 1.0])
    return jax.scipy.special.xlogy(counts, q).sum()  # here


@bad(jnp.array([1.0, 0.0]), op="log", index=(1,))
def poisson_with_rate_zero(rate):
    return jax.scipy.stats.poisson.logpmf(jnp.array([3, 2]), rate).sum()  # here


@bad(jnp.array([1.0, 2.0]), jnp.array(0.0), op="sub", index=(0,), cause="infinities")
def temperature_zero(logits, temperature):
    scaled = logits / temperature
    return jax.nn.softmax(scaled)[0]  # here


@bad(jnp.array([0.5, 1.0]), op="div", index=(1,))
def logit_of_one(p):
    return jax.scipy.special.logit(p).sum()  # here


@bad(jnp.array([0.1, 0.2]), op="log", index=(2,), steps=(("scan", 0),), back="derivative")
def markov_chain_with_a_state_out_of_reach(scores):
    stays = jnp.log(jnp.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]))

    def step(alpha, score):
        alpha = jax.nn.logsumexp(alpha[:, None] + score + stays, axis=0)  # here
        return alpha, None

    alpha, _ = lax.scan(step, jnp.array([0.0, -jnp.inf, -jnp.inf]), scores)
    return jax.nn.logsumexp(alpha)


@bad(jnp.array([[1.0, 2.0], [3.0, 4.0]]), op="div", index=(1,), back="derivative")
def mean_of_an_empty_row(x):
    mask = jnp.array([[1.0, 1.0], [0.0, 0.0]])
    means = (x * mask).sum(1) / mask.sum(1)  # here
    return jnp.nanmean(means)


# --- half precision -----------------------------------------------------------------------------------------------


@bad(f16([[200.0, 200.0], [1.0, 1.0]]), op="sub", index=(0, 0), cause="infinities")
def scores_in_half(q):
    scores = q @ q.T
    return jax.nn.softmax(scores, axis=-1)[0, 0]  # here


@bad(jnp.array([1.0, 1000.0]), op="convert_element_type", index=(1,))
def cast_to_eight_bits(w):
    small = w.astype(jnp.float8_e4m3fn)  # here
    return small.astype(jnp.float32).sum()


@bad(f16(1.0), op="mul", steps=(("scan", 15),))
def doubling_in_half(x):
    def step(c, _):
        return c * 2, None  # here

    return lax.scan(step, x, None, length=20)[0]


# --- slopes at a corner -------------------------------------------------------------------------------------------


@bad(jnp.array([[0.5, 1.0], [0.0, 0.2]]), op="pow", index=(1, 0), back="derivative")
def gamma_correction(image):
    @jax.jit
    def brighter(row):
        return row ** (1 / 2.2)  # here

    return jax.vmap(brighter)(image).sum()


@bad(jnp.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), op="atan2", index=(2,), back="derivative")
def angles_of_points(points):
    def angle(v):
        return jnp.arctan2(v[1], v[0])  # here

    return jax.vmap(angle)(points).sum()


@bad(jnp.ones(4), op="log", index=(1,))
def spectrum_of_a_constant(signal):
    power = jnp.abs(jnp.fft.rfft(signal)) ** 2
    return jnp.log(power).sum()  # here


@bad(jnp.array([2.0, 0.0]), op="integer_pow", index=(1,))
def inverse_square_law(r):
    return (r**-2).sum()  # here


@bad(jnp.zeros(2), op="mul", index=(0,), back="cotangent")
def gradient_penalty_at_zero(x):
    g = jax.grad(lambda x: jnp.sum(x * x))(x)
    length = jnp.sqrt(jnp.sum(g * g))  # here
    return (length - 1.0) ** 2


# --- matrices -----------------------------------------------------------------------------------------------------


@bad(jnp.eye(2), op="svd", index=(0, 0), back="derivative")
def vectors_of_equal_singular_values(a):
    u, _, _ = jnp.linalg.svd(a)  # here
    return u[0].sum()


@bad(jnp.array([[1.0, 2.0], [2.0, 4.0]]), op="triangular_solve", index=(1, 0))
def solution_of_a_singular_system(a):
    x = jnp.linalg.solve(a, jnp.array([1.0, 0.0]))  # here
    return x[1]


# --- loops, rules, transforms -------------------------------------------------------------------------------------


@bad(jnp.array([9.0, 6.0]), op="log", index=(1,), steps=(("scan", 2), ("scan", 1)))
def lanes_of_nested_scans(x):
    def one(x):
        def inner(c, _):
            y = jnp.log(c)  # here
            return c - 1.0, y

        def outer(c, _):
            return lax.scan(inner, c, None, length=3)

        return lax.scan(outer, x, None, length=3)[1].sum()

    return jax.vmap(one)(x).sum()


@bad(jnp.array(2.0), jnp.int32(5), op="div", steps=(("while", 2),))
def loop_of_a_given_length(x, n):
    def body(i, total):
        return total + 1.0 / (x - i)  # here

    return lax.fori_loop(0, n, body, jnp.float32(0.0))


@bad(jnp.array([1.0, 100.0]), op="div", index=(1,), back="kept")
def rule_that_kept_an_infinity(x):
    @jax.custom_vjp
    def softplus(x):
        return jnp.logaddexp(x, 0.0)

    def backward(e, ct):
        return (ct * (e / (1 + e)),)  # here

    softplus.defvjp(lambda x: (softplus(x), jnp.exp(x)), backward)
    return softplus(x).sum()


@bad(jnp.array([[1.0, 2.0], [3.0, 4.0]]), op="div", index=(0, 0))
def norm_of_a_dead_layer(w):
    def block(h):
        h = jax.nn.relu(h @ w)
        return h / jnp.sqrt(jnp.mean(h * h, -1, keepdims=True))  # here

    block = jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable)
    return block(-jnp.ones((1, 2))).sum()


@bad(jnp.array([1.0, 0.0, 2.0]), op="log", index=(0, 1))
def log_in_a_shard(x):
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))

    def part(x):
        y = jnp.log(x)  # here
        return lax.psum(y.sum(), "data")

    spec = PartitionSpec("data")
    return jax.shard_map(part, mesh=mesh, in_specs=spec, out_specs=PartitionSpec())(x)


# --- libraries ----------------------------------------------------------------------------------------------------

if importlib.util.find_spec("optax"):

    @bad(jnp.array([0.0, 1.0]), op="sqrt", index=(0,), back="derivative")
    def learned_through_adam(x):
        import optax

        adam = optax.adam(0.1)
        step, _ = adam.update(x, adam.init(x), x)  # here
        return (optax.apply_updates(x, step) ** 2).sum()

    @bad(jnp.array([1.0, 2.0, 3.0]), op="mul", index=(1,), cause="infinities")
    def cross_entropy_of_masked_classes(logits):
        import optax

        logits = jnp.where(jnp.array([True, False, True]), logits, -jnp.inf)
        return optax.losses.softmax_cross_entropy(logits, jnp.array([1.0, 0.0, 0.0]))  # here

    @healthy(jnp.array([1.0, 2.0, 3.0]))
    def labels_of_masked_classes(logits):
        import optax

        logits = jnp.where(jnp.array([True, False, True]), logits, -jnp.inf)
        return optax.losses.softmax_cross_entropy_with_integer_labels(logits, jnp.array(0))


if importlib.util.find_spec("equinox"):

    @bad(jnp.array([1.0, 2.0]), op="log", index=(1,))
    def activation_in_equinox(x):
        import equinox as eqx

        network = eqx.nn.MLP(2, 1, 2, 1, activation=jnp.log, use_bias=False, key=jax.random.key(0))
        network = eqx.tree_at(lambda n: n.layers[0].weight, network, jnp.array([[1.0, 1.0], [2.0, -1.0]]))
        return network(x)[0]  # here


if importlib.util.find_spec("flax"):

    @bad(jnp.array([[1.0, 2.0]]), op="log", index=(0, 1))
    def module_in_linen(x):
        from flax import linen

        class Inverse(linen.Module):
            @linen.compact
            def __call__(self, x):
                h = linen.relu(linen.Dense(2, use_bias=False, name="dense")(x))
                return jnp.log(jnp.expm1(h))  # here

        params = {"params": {"dense": {"kernel": jnp.array([[1.0, 1.0], [1.0, -1.0]])}}}
        return Inverse().apply(params, x).sum()


# --- healthy ------------------------------------------------------------------------------------------------------


@healthy(jnp.array([0.1, 0.2]))
def markov_chain_from_one_state(scores):
    moves = jnp.log(jnp.array([[0.5, 0.3, 0.2], [0.1, 0.5, 0.4], [0.3, 0.3, 0.4]]))

    def step(alpha, score):
        return jax.nn.logsumexp(alpha[:, None] + score + moves, axis=0), None

    alpha, _ = lax.scan(step, jnp.array([0.0, -jnp.inf, -jnp.inf]), scores)
    return jax.nn.logsumexp(alpha)


@healthy(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
def causal_attention(q):
    bias = jnp.where(jnp.tril(jnp.ones((2, 2), bool)), 0.0, -jnp.inf)
    return (jax.nn.softmax(q @ q.T + bias, axis=-1) @ q).sum()


@healthy(jnp.array([[0.0, 0.0], [3.0, 4.0], [1.0, 1.0]]))
def nearest_neighbour(points):
    squares = ((points[:, None] - points[None]) ** 2).sum(-1)
    return jnp.where(jnp.eye(3, dtype=bool), jnp.inf, squares).min(1).sum()


@healthy(jnp.array([1.0, 5.0, 2.0]))
def largest_of_no_rows(x):
    largest = jax.ops.segment_max(x, jnp.array([0, 0, 2]), num_segments=3)
    return jnp.where(jnp.isfinite(largest), largest, 0.0).sum()


@healthy(jnp.array([0.5, 3.0]))
def outside_of_the_support(x):
    return jnp.maximum(jax.scipy.stats.uniform.logpdf(x), -10.0).sum()


@healthy(f16([1.0, 2.0]))
def step_that_is_skipped(x):
    scaled = x * 6e4
    return jnp.where(jnp.isfinite(scaled).all(), jnp.float16(1.0), jnp.float16(0.5)) * x.sum()


@healthy(jnp.array([[1.0, NAN], [3.0, 4.0]]))
def rows_without_a_hole(x):
    whole = ~jnp.isnan(x).any(1)
    filled = jnp.where(whole[:, None], x, 1.0)
    return jax.vmap(lambda row, keep: jnp.where(keep, jnp.log(row).sum(), 0.0))(filled, whole).sum()
