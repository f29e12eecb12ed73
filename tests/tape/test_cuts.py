"""A gradient that would lack a part is refused before backward begins; see also test_in_the_hands_of_jax.py."""

import copy
import gc
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tapejax.errors import CutGradientError, MissingGradientError, TensorConversionError
from tapejax.tape import cuts


def leaf(value=(0.2, 0.9)):
    return tj.tensor(np.asarray(value, "f"), requires_grad=True)


def test_the_tape_stays_as_it_was():
    w = leaf()
    moved = jax.device_put(w)
    with tj.Tape() as tape:
        loss = (leaf() * 2).sum()
        moved = jax.device_put(w)
        loss = loss + (moved * w).sum()
    before = tape.actions
    for options in ({}, {"wrt": w}, {"retain_tape": True}, {"create_graph": True}):
        with pytest.raises(CutGradientError) as caught:
            tape.backward(loss, **options)
        assert str(caught.value).count("test_cuts.py:") >= 3  # rebuilt here, read there, asked for here
        assert "jax.device_put" in str(caught.value)
    assert tape.actions == before
    assert np.array_equal(tape.backward(loss, wrt=[w, moved])[w], moved.value)


def test_a_cursor_refuses_too():
    w = leaf()
    with tj.Tape() as tape:
        loss = (jax.device_put(w) * w).sum()
    with pytest.raises(CutGradientError):
        tape.cursor(loss)


def test_one_that_was_not_reached_has_a_reason():
    w, v = leaf(), leaf()
    loss = (jax.device_put(w) * v).sum()
    with pytest.raises(CutGradientError):
        tj.backward(loss, wrt=[w, v])
    grads = tj.backward(loss)
    assert v in grads
    assert w not in grads
    assert "rebuilt from it by jax.device_put" in grads.explain(w)
    with pytest.raises(MissingGradientError, match="rebuilt"):
        grads[w]
    with pytest.raises(MissingGradientError, match="rebuilt"):
        grads.tree({"w": w, "v": v})
    assert grads.tree([v])


def test_a_plain_value_on_the_way_has_a_reason_too():
    w, v = leaf(), leaf()

    def loss():
        return (optax.tree.norm(w) * v).sum()

    grads = tj.backward(loss())
    with pytest.raises(MissingGradientError, match="plain value"):
        grads.tree([w, v])


def test_what_is_taken_out_in_between_is_seen():
    w = leaf()
    part = (w * w).sum()
    size = optax.tree.norm(w)
    loss = part + size
    with pytest.raises(CutGradientError, match="plain value"):
        tj.backward(loss)


def test_what_is_taken_out_first_on_a_tape_is_seen():
    w = leaf()
    with tj.Tape() as tape:
        size = jnp.sum(jax.tree.leaves(w)[0] ** 2)
        loss = (w * w).sum() + size
    with pytest.raises(CutGradientError, match="plain value"):
        tape.backward(loss)


def test_a_log_that_belongs_to_nothing_is_no_harm():
    w = leaf()
    loss = (w * w).sum()
    optax.tree.norm(w)  # after the last op
    assert w in tj.backward(loss)
    optax.tree.norm(w)  # before the first, by the function that calls backward
    loss = (w * w).sum()
    assert w in tj.backward(loss)


def test_the_memory_of_a_compiled_function_is_of_an_earlier_call():
    same = jax.jit(lambda t: jax.tree.map(lambda a: a, t))
    old, new = leaf(), leaf()
    same(old)
    copied = same(new)  # its structure remembers `old`
    with pytest.raises(CutGradientError, match=f"the gradient of {new.id!r}".replace("(", r"\(").replace(")", r"\)")):
        tj.backward((copied + new).sum())
    tj.take()
    old = same(old)
    assert new in tj.backward((old * new).sum() + new.sum(), wrt=[old, new])


def test_what_is_rebuilt_again_leads_to_the_first():
    w = leaf()
    again = jax.tree.map(lambda a: a, jax.device_put(copy.deepcopy(w)))
    with pytest.raises(CutGradientError):
        tj.backward((again + w).sum())


def test_a_loaded_parameter_is_matched_by_its_kind():
    w, other = leaf(), leaf((1.0, 2.0, 3.0))
    loaded = pickle.loads(pickle.dumps(w))
    assert other in tj.backward((loaded.sum() + other).sum())
    loaded = pickle.loads(pickle.dumps(w))
    with pytest.raises(CutGradientError):
        tj.backward((loaded + w).sum())


def test_nothing_is_kept_alive():
    tj.backward((jax.device_put(leaf()) * 2).sum())
    gc.collect()
    before = len(cuts.log._taken)
    w = leaf()
    for _ in range(50):
        w = jax.tree.map(lambda a: 0.9 * a, w)
        tj.backward((w * w).sum())
    assert len(w.id.chain) == 1
    del w
    gc.collect()
    assert len(cuts.log._taken) <= before


def test_structures_stay_alike():
    a, b = leaf(), leaf()
    calls = []
    f = jax.jit(lambda t: calls.append(1))
    f(a)
    f(b)
    with tj.no_grad():
        f(a)
    assert len(calls) == 1
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert str(jax.tree.structure(a)) == "PyTreeDef(CustomNode(Tensor[True], [*]))"


def test_a_body_that_closes_over_a_recorded_tensor_may_take_it_apart():
    w = leaf()
    h = tnp.sin(w)
    total, _ = tj.lax.scan(lambda c, x: (c + x * jnp.sum(jax.tree.leaves(h)[0]), None), 0.0, jnp.ones(2))
    assert np.allclose(tj.backward(total)[w], 2 * np.cos(w.value))


def test_a_function_written_for_tensors_says_what_it_was_refused_for():
    @tj.jit
    def step(w):
        loss = jax.vmap(lambda v: 3 * v)(tnp.sin(w)).sum()
        return tj.backward(loss, wrt=w)[w]

    with pytest.raises(TensorConversionError, match=r"jax\.vmap"):
        step(leaf())


def test_a_leaf_of_a_tree_is_a_tensor_like_any_other():
    w = leaf()
    h = tnp.sin(w)
    (part,) = jax.tree.leaves([h])
    assert isinstance(part, tj.Tensor)
    assert part.id == h.id
    ops = [part + 1, 1 + part, part * part, part @ part, part[0], part**2, jnp.ones(2) * part, -part, part.sum(),
           tnp.sum(part), tnp.stack([part, part]), tnp.where(part > 0, part, 0.0), tj.lift(jnp.cos)(part), tj.nn.relu(part),
           tj.lax.cond(True, lambda p: p * 2, lambda p: p, part), tj.vmap(lambda v: v * v)(part), copy.deepcopy(part)]  # fmt: skip
    assert all(type(made) is tj.Tensor and made.requires_grad for made in ops)
    total = sum(tnp.sum(made) for made in ops)
    arrays = lambda w: (lambda h: sum(jnp.sum(made) for made in [h + 1, 1 + h, h * h, h @ h, h[0], h**2, h, -h, h.sum(), h.sum(), 2 * h, h, jnp.cos(h), h, 2 * h, h * h, h]))(jnp.sin(w))  # fmt: skip
    found = tj.backward(total, wrt=[w, part])
    assert np.allclose(found[w], jax.grad(arrays)(w.value), rtol=1e-5)
    assert part in found
    for call in (jnp.sin, jax.jit(jnp.sin), jax.vmap(jnp.sin), jax.device_put, jax.lax.sin):
        with pytest.raises(TypeError, match="Tensor"):
            call(part)


def test_a_lifted_function_that_closes_over_a_recorded_tensor_is_refused():
    w, v = leaf(), leaf()
    for closed_over in (w, tnp.sin(w)):
        with pytest.raises(TensorConversionError, match=r"given to tapejax\.lift as the result"):
            tj.lift(lambda x: x * closed_over)(v)  # noqa: B023
