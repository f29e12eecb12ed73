"""Where gradients and moved values lie, on 8 virtual devices. Run by test_places.py: jax counts devices when it starts.

Each case prints `ok NAME` or what went wrong.
"""

import sys
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import tapejax as tj
import tapejax.lax
import tapejax.numpy as tnp

MESH = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
ROWS, COLUMNS, WHOLE = (NamedSharding(MESH, spec) for spec in (P("d"), P(None, "d"), P()))
W, V = np.linspace(-1, 1, 128).astype("f").reshape(8, 16), np.linspace(1, -1, 128).astype("f").reshape(16, 8)
X = np.linspace(0, 1, 128).astype("f").reshape(16, 8)


def loss(n, x, w, v):
    return (n.tanh(x @ w) @ v).mean()


def lies(array, sharding):
    assert array.sharding.is_equivalent_to(sharding, array.ndim), f"{array.sharding} instead of {sharding}"


def check_gradients(gradients, w, v):
    expected = jax.grad(lambda w, v: loss(jnp, X, w, v), argnums=(0, 1))(W, V)
    for found, true, sharding in zip(gradients, expected, (ROWS, COLUMNS), strict=True):
        np.testing.assert_allclose(np.asarray(found), true, atol=1e-6)
        lies(found, sharding)


def laid_out():
    w, v = jax.device_put(W, ROWS), jax.device_put(V, COLUMNS)
    return tj.tensor(w, requires_grad=True), tj.tensor(v, requires_grad=True), tj.tensor(jax.device_put(X, ROWS))


def gradients_lie_where_parameters_do():
    for _ in range(2):
        w, v, x = laid_out()
        grads = tj.backward(loss(tnp, x, w, v), wrt=[w, v])
        check_gradients((grads[w], grads[v]), w, v)


def gradients_of_a_forward_that_was_looked_at():
    for _ in range(2):
        w, v, x = laid_out()
        h = tnp.tanh(x @ w)
        assert h.value.shape == (16, 16)
        grads = tj.backward((h @ v).mean())
        check_gradients((grads[w], grads[v]), w, v)


def gradients_op_by_op():
    with tj.fusion(False):
        w, v, x = laid_out()
        grads = tj.backward(loss(tnp, x, w, v))
        check_gradients((grads[w], grads[v]), w, v)


def gradients_with_the_tape_retained():
    w, v, x = laid_out()
    with tj.Tape() as tape:
        root = loss(tnp, x, w, v)
        grads = tape.backward(root, retain_tape=True)
        check_gradients((grads[w], grads[v]), w, v)
        check_gradients(tuple(map(tj.backward(root, tape=tape).get, (w, v))), w, v)


def gradients_that_are_recorded():
    w, v, x = laid_out()
    grads = tj.backward(loss(tnp, x, w, v), wrt=[w, v], create_graph=True)
    check_gradients((grads[w].value, grads[v].value), w, v)


def gradients_of_a_transform():
    w, v, x = laid_out()
    found = tj.grad(lambda w, v: loss(tnp, x, w, v), argnums=(0, 1))(w.value, v.value)
    check_gradients(found, w, v)


def the_same_structure_in_another_layout():
    for sharding in (ROWS, COLUMNS, WHOLE, ROWS):
        w = tj.tensor(jax.device_put(W, sharding), requires_grad=True)
        lies(tj.backward((w * w).sum(), wrt=w)[w], sharding)


ONE, OTHER, THIRD = jax.devices()[1:4]


def a_value_is_moved_and_its_gradient_comes_back():
    w, v, _ = laid_out()
    root = loss(tnp, tj.tensor(X, device=OTHER), w.to(OTHER), v.to(OTHER))
    assert root.devices() == {OTHER}
    grads = tj.backward(root, wrt=[w, v])
    check_gradients((grads[w], grads[v]), w, v)


def what_is_moved_by_a_lifted_function():
    for put in (tj.lift(jax.device_put), tj.lift(lambda x, place: jax.device_put(x * 1.0, place))):
        x = tj.tensor([1.0, 2.0], requires_grad=True, device=ONE)
        y = put(x, OTHER)
        assert y.devices() == {OTHER}
        gradient = tj.backward((y * y).sum())[x]
        assert gradient.devices() == {ONE}
        np.testing.assert_allclose(gradient, [2.0, 4.0])


def a_value_is_spread_and_gathered():
    x = tj.tensor(W, requires_grad=True, device=ONE)
    y = x.to(ROWS)
    lies(y.value, ROWS)
    gradient = tj.backward((y * y).sum())[x]
    assert gradient.devices() == {ONE}
    np.testing.assert_allclose(gradient, 2 * W)


def a_second_derivative_through_a_move():
    x = tj.tensor([1.0, 2.0], requires_grad=True, device=ONE)
    y = x.to(OTHER)
    gradient = tj.backward((y * y * y).sum(), wrt=x, create_graph=True)[x]
    assert gradient.devices() == {ONE}
    second = tj.backward(gradient.sum(), wrt=x)[x]
    assert second.devices() == {ONE}
    np.testing.assert_allclose(second, [6.0, 12.0])


def a_parameter_in_host_memory():
    host = ROWS.with_memory_kind("pinned_host")
    for fused in (True, False):
        with tj.fusion(fused):
            w = tj.tensor(jax.device_put(W, host), requires_grad=True)
            gradient = tj.backward((w.to("device") ** 2).sum(), wrt=w)[w]
            lies(gradient, host)
            assert gradient.sharding.memory_kind == "pinned_host"
            np.testing.assert_allclose(np.asarray(gradient), 2 * W)
    found = jax.jit(tj.grad(lambda w: (jax.device_put(w, jax.memory.Space.Device) ** 2).sum()))(w.value)
    assert found.sharding.memory_kind == "pinned_host"


def operands_on_different_devices_are_refused():
    x, y = tj.tensor([1.0], requires_grad=True, device=ONE), tj.tensor([2.0], device=OTHER)
    for fused in (True, False):
        with tj.fusion(fused):
            for operation in (lambda: x * y, lambda: (x + 1.0) * (y + 1.0)):
                with pytest.raises(tj.errors.DevicesError, match=r"cpu:1|CPU_1") as caught:
                    operation()
                assert __file__ in caught.value.at
    assert tj.backward((x * y.to(ONE)).sum())[x].devices() == {ONE}


def one_tape_over_several_devices():
    for _ in range(2):
        x = tj.tensor([1.0, 2.0], requires_grad=True, device=ONE)
        a = tnp.tanh(x * 2.0)
        b = tnp.sin(a.to(OTHER) * 3.0)
        c = (b.to(THIRD) * b.to(THIRD)).sum()
        gradient = tj.backward(c, wrt=x)[x]
        assert gradient.devices() == {ONE}
        true = jax.grad(lambda x: (jnp.sin(jnp.tanh(x * 2.0) * 3.0) ** 2).sum())(jnp.array([1.0, 2.0]))
        np.testing.assert_allclose(np.asarray(gradient), np.asarray(true), rtol=1e-5)


def a_memory_plan_counts_what_one_device_holds():
    layers, sizes = [tnp.sin] * 8, {}
    for sharding in (WHOLE, ROWS):
        x = tj.tensor(jax.device_put(W, sharding), requires_grad=True)
        plan = tj.plan_memory(layers, (x,), budget_bytes=1 << 20)
        sizes[sharding] = plan.candidates[0].bytes
    assert sizes[WHOLE] == 7 * W.nbytes
    assert sizes[ROWS] == 7 * W.nbytes // 8


# --- collectives, written for Tensors ------------------------------------------------------------------

RING = [(i, (i + 1) % 8) for i in range(8)]
BODIES = [
    lambda n, lax, x: lax.psum(n.sin(x), "d") * x,
    lambda n, lax, x: lax.pmean(n.sin(x), "d") * x,
    lambda n, lax, x: (lax.all_gather(n.sin(x), "d", tiled=True) ** 2).sum() * x,
    lambda n, lax, x: lax.psum_scatter(n.sin(n.concatenate([x] * 8)), "d", tiled=True) * x,
    lambda n, lax, x: lax.ppermute(n.sin(x), "d", RING) * x,
    lambda n, lax, x: lax.all_to_all(n.sin(x), "d", 1, 0, tiled=True).reshape(x.shape) * x,
]


def collectives_over_tensors_and_lifted():
    mapped = lambda f: jax.shard_map(f, mesh=MESH, in_specs=P("d"), out_specs=P("d"))
    for body in BODIES:
        plain = mapped(lambda x, body=body: body(jnp, jax.lax, x))
        weighed = lambda x, plain=plain: (plain(x) * X).sum()
        true = jax.grad(weighed)(X)

        def back(x, ct, body=body):
            leaf = tj.tensor(x, requires_grad=True)
            return tj.backward(body(tnp, tapejax.lax, leaf), ct)[leaf]

        np.testing.assert_allclose(np.asarray(mapped(back)(X, X)), np.asarray(true), rtol=3e-5, atol=1e-5)
        lifted = tj.lift(weighed)
        np.testing.assert_allclose(np.asarray(tj.grad(lifted)(X)), np.asarray(true), rtol=3e-5, atol=1e-5)
        twice = lambda grad, f: grad(lambda x: (grad(f)(x) ** 2).sum())(X)
        second, judge = np.asarray(twice(tj.grad, lifted)), np.asarray(twice(jax.grad, weighed))
        np.testing.assert_allclose(second, judge, rtol=1e-4, atol=1e-4)


CASES = [
    a_memory_plan_counts_what_one_device_holds,
    a_value_is_moved_and_its_gradient_comes_back,
    what_is_moved_by_a_lifted_function,
    a_value_is_spread_and_gathered,
    a_second_derivative_through_a_move,
    a_parameter_in_host_memory,
    operands_on_different_devices_are_refused,
    one_tape_over_several_devices,
    gradients_lie_where_parameters_do,
    gradients_of_a_forward_that_was_looked_at,
    gradients_op_by_op,
    gradients_with_the_tape_retained,
    gradients_that_are_recorded,
    gradients_of_a_transform,
    the_same_structure_in_another_layout,
]


SLOW = [collectives_over_tensors_and_lifted]


if __name__ == "__main__":
    for case in SLOW if "slow" in sys.argv else CASES:
        try:
            case()
            print("ok", case.__name__, flush=True)
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[1]
            print("FAILED", case.__name__, f"line {at.lineno}", type(error).__name__, str(error)[:600], flush=True)
