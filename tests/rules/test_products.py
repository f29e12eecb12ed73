import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec, reshard

from tapejax.rules import products
from tapejax.verify.check import our_vjp
from tapejax.verify.samples.products import SAMPLES
from tests.rules.harness import is_caught


def test_cotangents_lie_as_their_operands_on_an_explicit_mesh():
    # Going back, the product of x and ct sums over a sharded batch: the rule has to say how the result lies.
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = reshard(np.ones((2, 3), "float32"), PartitionSpec("data", None))
        w = reshard(np.ones((3, 4), "float32"), PartitionSpec(None, None))
        (out,), pullback = our_vjp(jnp.matmul, [x, w], [True, True])
        found = pullback([out])
        assert [jax.typeof(ct) for ct in found] == [jax.typeof(x), jax.typeof(w)]


def test_second_derivative_of_a_ragged_product_equals_that_of_its_dense_form():
    sizes = np.array([2, 0, 2])
    x, y, ct = (np.random.default_rng(0).standard_normal(shape) for shape in [(5, 3), (3, 3, 2), (5, 2)])
    member = np.repeat(np.eye(4)[:, :3], [2, 0, 2, 1], axis=0)  # the last row is in no group
    dense = lambda x, y: jnp.einsum("ik,gkj,ig->ij", x, y, member)

    def gradients(f):
        return lambda x, y: our_vjp(f, [x, y], [True, True])[1]([ct])

    with jax.enable_x64(True):
        x, y, ct = map(jnp.asarray, (x, y, ct))
        found = our_vjp(gradients(lambda x, y: lax.ragged_dot(x, y, jnp.asarray(sizes))), [x, y], [True, True])
        expected = jax.vjp(lambda x, y: jax.vjp(dense, x, y)[1](ct), x, y)
        for got, want in zip(found[0], expected[0], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12)
        for got, want in zip(found[1]([x, y]), expected[1]((x, y)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12)


right, ragged = products.dot_general, products.ragged_dot_general
MUTANTS = {
    "dot_general: lhs doubled": (
        lax.dot_general_p, "lhs rhs",
        lambda ct, out, lhs, rhs, **params: (right(ct, out, 2 * lhs, rhs, **params)),
    ),
    "dot_general: conjugated": (
        lax.dot_general_p, "lhs rhs",
        lambda ct, out, lhs, rhs, **params: right(ct, out, lhs.conj(), rhs.conj(), **params),
    ),
    "ragged_dot_general: groups in reverse": (
        "ragged_dot_general", "lhs rhs group_sizes",
        lambda ct, out, lhs, rhs, group_sizes, **params: ragged(ct, out, lhs, rhs, group_sizes[..., ::-1], **params),
    ),
    "symmetric_product: one side only": (
        lax.linalg.symmetric_product_p, "a",
        lambda ct, out, a, c, *, alpha, beta: (alpha * ct @ a, beta * ct),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_caught(mutant, monkeypatch):
    assert is_caught(monkeypatch, *MUTANTS[mutant], SAMPLES)
