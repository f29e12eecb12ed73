"""A Tensor in the hands of jax: the right gradient, or an error at the user's line. Nothing is lost in silence."""

import collections
import concurrent.futures
import copy
import pickle
import warnings

import equinox as eqx
import flax
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import tapejax as tj
import tapejax.numpy as tnp
from tests.hands_of_jax import FUNCTIONS, GROUPS, SHAPE

VALUE = np.array([[0.2, 0.9]], "f")
FILES = ("test_in_the_hands_of_jax.py", "hands_of_jax.py")
INNER = {"intermediate": tnp.sin, "parameter": lambda w: w}


def leaf(value=VALUE):
    return tj.tensor(value, requires_grad=True)


def program(function, inner, w):
    return tnp.sum(function(inner(w)) ** 2) + tnp.sum(w)


# --- where it happens: from a loss, a function that gives its gradient -----------------------------------------------


def ambient(loss):
    return lambda w: tj.backward(loss(w))[w]


def ambient_wrt(loss):
    def gradient(w):
        root = loss(w)
        return tj.backward(root, wrt=w)[w]

    return gradient


def ambient_tree(loss):
    return lambda w: tj.backward(loss(w)).tree({"w": w})["w"]


def on_a_tape(loss):
    def gradient(w):
        with tj.Tape() as tape:
            root = loss(w)
        return tape.backward(root)[w]

    return gradient


def in_a_jitted_step(loss):
    return tj.jit(lambda w: tj.backward(loss(w), wrt=w)[w])


def of_a_jitted_loss(loss):
    jitted = tj.jit(lambda w: loss(w))
    return lambda w: tj.backward(jitted(w))[w]


def in_a_transform(loss):
    return tj.grad(loss)


SCOPES = [ambient, ambient_wrt, ambient_tree, on_a_tape, in_a_jitted_step, of_a_jitted_loss, in_a_transform]


def expected(name, inner):
    function = FUNCTIONS[name]
    twin = function[1] if isinstance(function, tuple) else function
    plain = {"intermediate": jnp.sin, "parameter": lambda w: w}[inner]
    return np.asarray(jax.jit(jax.grad(lambda w: jnp.sum(twin(plain(w)) ** 2) + jnp.sum(w)))(VALUE))


def outcome(name, inner, scope, right):
    """What a program does in a scope, when it runs four times: so often that its structure is known."""
    function = FUNCTIONS[name]
    function = function[0] if isinstance(function, tuple) else function
    seen = []
    w, gradient = leaf(), scope(lambda w: program(function, INNER[inner], w))
    for _ in range(4):
        tj.take()
        try:
            found = gradient(w)
        except tj.TapejaxError as error:
            placed = any(file in error.at for file in FILES)
            seen.append("refused" if placed else f"refused elsewhere: {error}")
        except Exception as error:
            seen.append(f"untyped {type(error).__name__}: {error}")
        else:
            found = np.asarray(found.value if isinstance(found, tj.Tensor) else found)
            same = found.shape == right.shape and np.allclose(found, right, rtol=1e-5, atol=1e-5)
            seen.append("right" if same else f"WRONG {found.tolist()}, not {right.tolist()}")
    return seen


# An error, but not ours: the reason. Nothing is lost in silence here either.
NOT_OURS = {
    "jax: lax.reduce": "jax compares the structures of its operands before it looks at them",
    "jax: pure_callback": "our error is raised in the callback, and XLA wraps it",
    "jax: io_callback": "our error is raised in the callback, and XLA wraps it",
    "flax: bytes": "msgpack does not know Tensors",
    "chex: assert_tree_all_finite": "chex wants chexify for values under a trace",
    "chex: assert_trees_all_close": "chex wants chexify for values under a trace",
}


def apart(call, *args):
    """Call in a thread of its own: jaxlib 0.10.2 counts a level of recursion too many for each nested tree that is refused."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *args).result()


def table(names, scopes):
    totals, bad = collections.defaultdict(collections.Counter), []
    for name in names:
        for inner in INNER:
            right = expected(name, inner)
            for scope in scopes:
                for visit, found in enumerate(apart(outcome, name, inner, scope, right)):
                    kind = found.split(":")[0].split(" ")[0]
                    totals[scope.__name__][kind] += 1
                    if found not in ("right", "refused") and not (kind == "untyped" and name in NOT_OURS):
                        bad.append(f"{name}, {inner}, {scope.__name__}, visit {visit}: {found}")
    for scope, counts in totals.items():
        print(scope, dict(counts))
    return bad


SAMPLE = [
    "jax: jit, the same", "jax: vmap", "jax: scan", "jax: device_put", "jax: tree.map", "jax: tree.leaves", "jax: ravel_pytree",
    "jax: jnp.sin", "optax: tree.norm", "equinox: filter_jit", "python: deepcopy", "python: pickle",
]  # fmt: skip


def assert_nothing_is_lost(names, scopes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bad = table(names, scopes)
    assert not bad, "\n".join(bad)


def test_there_is_enough_to_be_sure():
    assert len(FUNCTIONS) >= 150
    assert set(SAMPLE) <= set(FUNCTIONS)
    assert set(NOT_OURS) <= set(FUNCTIONS)


@pytest.mark.parametrize("group", GROUPS)
def test_nothing_is_lost_in_silence(group):
    """By every fourth function; by all of them in the slow run, which is next but one."""
    assert_nothing_is_lost([name for name in FUNCTIONS if name.startswith(group)][::4], [ambient_wrt])


@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: scope.__name__)
def test_nor_in_any_other_scope(scope):
    assert_nothing_is_lost(SAMPLE[::3], [scope])


@pytest.mark.slow
@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: scope.__name__)
@pytest.mark.parametrize("group", GROUPS)
def test_nor_by_any_function_in_any_scope(group, scope):
    assert_nothing_is_lost([name for name in FUNCTIONS if name.startswith(group)], [scope])


# --- what people rightly do: no error, no noise ----------------------------------------------------------------------

X = jnp.asarray([[1.0, 2.0], [3.0, -1.0]])


def network():
    return {"a": leaf(np.full((2, 2), 0.3, "f")), "b": leaf(np.full((2, 2), 0.2, "f"))}


def cost(p, x=X):
    return ((tnp.tanh(x @ p["a"]) @ p["b"]) ** 2).mean()


def like(params, arrays):
    """Gradients, which are arrays, in the structure of the parameters."""
    return jax.tree.unflatten(jax.tree.structure(params), jax.tree.leaves(arrays))


def falls(step, params, steps=4):
    losses = []
    for _ in range(steps):
        params, loss = step(params)
        losses.append(float(loss))
    assert losses[-1] < losses[0]


def tree_map_updates():
    history = []

    def step(p):
        loss = cost(p)
        grads = like(p, tj.backward(loss).tree(p))
        history.append(p)  # old parameters live on
        return jax.tree.map(lambda p, g: p - 0.3 * g, p, grads), loss

    falls(step, network())


def optax_updates():
    optimiser = optax.adam(0.05)
    state = optimiser.init(network())

    def step(p):
        nonlocal state
        loss = cost(p)
        updates, state = optimiser.update(like(p, tj.backward(loss, wrt=p).tree(p)), state, p)
        return optax.apply_updates(p, updates), loss

    falls(step, network())


def jitted_updates():
    update = jax.jit(lambda p, g: jax.tree.map(lambda p, g: p - 0.3 * g, p, g))

    def step(p):
        loss = cost(p)
        return update(p, like(p, tj.backward(loss).tree(p))), loss

    falls(step, network())


def a_jitted_step():
    @jax.jit
    def step(p):
        loss = cost(p)
        return jax.tree.map(lambda p, g: p - 0.3 * g, p, like(p, tj.backward(loss).tree(p))), loss

    falls(step, network())


def a_step_jitted_by_tapejax():
    @tj.jit
    def step(p):
        loss, grads = tj.value_and_grad(cost)(p)
        return jax.tree.map(lambda p, g: tj.tensor(p - 0.3 * g, requires_grad=True), p, grads), loss

    step(network())


def a_jitted_step_within_a_tape():
    p = network()
    step = jax.jit(lambda p: (p, cost(p).value))
    with tj.Tape() as tape:
        step(p)
        loss = cost(p)
    assert p["a"] in tape.backward(loss)


def a_loop_within_a_tape():
    with tj.Tape() as tape:

        def step(p):
            loss = cost(p)
            return jax.tree.map(lambda p, g: p - 0.3 * g, p, like(p, tape.backward(loss).tree(p))), loss

        falls(step, network())


def equinox_parameters():
    layer = eqx.tree_at(lambda m: (m.weight, m.bias), eqx.nn.Linear(2, 1, key=jax.random.key(0)), (leaf(np.ones((1, 2), "f")), leaf(np.ones(1, "f"))))  # fmt: skip
    arrays, rest = eqx.partition(layer, eqx.is_array)
    layer = eqx.combine(arrays, rest)
    assert layer.weight in tj.backward((X @ layer.weight.T + layer.bias).sum())


def flax_state():
    state = nnx.State({"w": nnx.Param(leaf())})
    jax.tree.map(lambda value: value * 2, state)


def initialised_late():
    p = network()
    optax.adam(0.1).init(p)
    assert p["a"] in tj.backward(cost(p))


def counted():
    p = network()
    assert sum(value.size for value in jax.tree.leaves(p)) == 8
    assert p["a"] in tj.backward(cost(p))


def logged_between_steps():
    p = network()
    loss = cost(p)
    tj.backward(loss)
    float(optax.tree.norm(p))
    assert p["a"] in tj.backward(cost(p))


def logged_before_backward():
    p = network()
    loss = cost(p)
    float(optax.tree.norm(p))
    jax.jit(lambda p: p["a"].value.sum())(p)
    assert p["a"] in tj.backward(loss)


def saved_by_numpy(tmp_path="/dev/null"):
    p = network()
    np.savez(tmp_path, *jax.tree.leaves(p))
    assert p["a"] in tj.backward(cost(p))


def saved_by_pickle():
    p = network()
    loaded = pickle.loads(pickle.dumps(p))
    assert loaded["a"] in tj.backward(cost(loaded))


def saved_by_flax():
    p = network()
    flax.serialization.to_bytes(dict(enumerate(jax.tree.leaves(p))))
    assert p["a"] in tj.backward(cost(p))


def the_best_is_copied():
    p = network()
    best = copy.deepcopy(p)
    assert p["a"] in tj.backward(cost(p))
    assert best["a"] in tj.backward(cost(best))


def put_on_a_device_first():
    p = jax.device_put(network())
    assert p["a"] in tj.backward(cost(p))


def raveled_first():
    flat, back = jax.flatten_util.ravel_pytree(network())
    p = back(flat * 2)
    assert p["a"] in tj.backward(cost(p))


def blocked_on():
    p = network()
    loss = jax.block_until_ready(cost(jax.block_until_ready(p)))
    assert p["a"] in tj.backward(loss)


def shapes_evaluated():
    p = network()
    assert jax.eval_shape(cost, p).shape == ()
    with tj.Tape() as tape:
        h = tnp.sin(p["a"])
        assert jax.eval_shape(lambda h: h * 2, h).shape == (2, 2)
        loss = h.sum()
    assert p["a"] in tape.backward(loss)


def printed():
    p = network()
    loss = cost(p)
    print(loss, p, f"{loss:.3f}", jax.tree.structure({"loss": loss}))
    jax.debug.print("{}", loss)
    assert p["a"] in tj.backward(loss)


def traced_to_a_program():
    assert jax.make_jaxpr(cost)(network()).eqns


def metrics_after_backward():
    loss = cost(network())
    tj.backward(loss)
    jax.device_get(loss)
    jax.tree.map(float, {"loss": loss})
    jax.vmap(lambda v: v)(tj.tensor([1.0, 2.0]))


def a_mean_of_parameters():
    p = average = network()
    for _ in range(3):
        tj.backward(cost(p))
        p = jax.tree.map(lambda value: 0.9 * value, p)
        with tj.no_grad():
            average = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, average, p)


def a_target_made_without_gradients():
    p = network()
    with tj.no_grad():
        target = jax.tree.map(lambda value: value, p)
    assert p["a"] in tj.backward(cost(p) + cost(target))


def a_target_that_is_detached():
    p = network()
    target = tj.stop_gradient(jax.tree.map(lambda value: value, p))
    assert p["a"] in tj.backward(cost(p) + cost(target))


def both_are_asked_for():
    p = network()
    twin = jax.tree.map(lambda value: value, p)
    grads = tj.backward(cost(p) + cost(twin), wrt=[p, twin])
    assert p["a"] in grads
    assert twin["a"] in grads


def validation_is_held():
    def step(p):
        loss = cost(p)
        grads = like(p, tj.backward(loss).tree(p))
        validation.append(cost(p))
        return jax.tree.map(lambda p, g: p - 0.3 * g, p, grads), loss

    validation = []
    falls(step, network())


def without_gradients():
    h = tnp.sin(leaf())
    with tj.no_grad():
        jax.jit(lambda v: v * 2)(h)
        jax.vmap(lambda v: v)(h)
        jax.device_put(h)
        optax.tree.norm(h)
        pickle.dumps(h)
        copy.deepcopy(h)
        jax.tree.map(lambda v: v, h)


def out_of_the_tape():
    h = tnp.sin(leaf())
    jax.vmap(lambda v: v)(h.detach())
    jnp.sin(h.value)


def a_tree_of_results():
    w = leaf()
    h = {"sin": tnp.sin(w), "cos": tnp.cos(w)}
    assert jax.tree.map(float, {"loss": h["sin"].sum()})["loss"] > 0
    shapes = jax.tree.map(lambda t: t.shape, h)
    assert shapes == {"sin": SHAPE, "cos": SHAPE}
    twice = jax.tree.map(lambda t: t * 2, h)
    kept = jax.tree.map(lambda t: t, h)
    assert kept["sin"] is h["sin"]
    assert type(twice["sin"]) is tj.Tensor
    assert w in tj.backward(tnp.sum(twice["sin"] + kept["cos"]))


def in_threads():
    def train(_):
        tree_map_updates()

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(train, range(2)))


RIGHTLY = [
    tree_map_updates, optax_updates, jitted_updates, a_jitted_step, a_step_jitted_by_tapejax, a_jitted_step_within_a_tape,
    a_loop_within_a_tape, equinox_parameters, flax_state, initialised_late, counted, logged_between_steps,
    logged_before_backward, saved_by_numpy, saved_by_pickle, saved_by_flax, the_best_is_copied, put_on_a_device_first,
    raveled_first, blocked_on, shapes_evaluated, printed, traced_to_a_program, metrics_after_backward,
    a_mean_of_parameters, a_target_made_without_gradients, a_target_that_is_detached, both_are_asked_for,
    validation_is_held, without_gradients, out_of_the_tape, a_tree_of_results, in_threads,
]  # fmt: skip


@pytest.mark.parametrize("use", RIGHTLY, ids=lambda use: use.__name__)
def test_what_people_rightly_do_goes_on_working(use):
    for _ in range(2):
        tj.take()
        use()
