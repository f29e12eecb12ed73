import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec, reshard

from tapejax.rules import convolution
from tapejax.verify.check import our_vjp
from tapejax.verify.samples.convolution import SAMPLES
from tests.rules.harness import is_caught


def test_cotangents_lie_as_their_operands_on_an_explicit_mesh():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = reshard(np.ones((2, 3, 5), "float32"), PartitionSpec("data", None, None))
        w = reshard(np.ones((4, 3, 3), "float32"), PartitionSpec(None, None, None))
        (out,), pullback = our_vjp(lambda x, w: lax.conv(x, w, (1,), "SAME"), [x, w], [True, True])
        assert [jax.typeof(ct) for ct in pullback([out])] == [jax.typeof(x), jax.typeof(w)]


right = convolution.conv_general_dilated


def with_params(change):
    """The rule, run with other parameters than the primitive was."""
    return lambda ct, out, lhs, rhs, **params: right(ct, out, lhs, rhs, **(params | change(params)))


MUTANTS = {
    "window not reversed": lambda ct, out, lhs, rhs, **params: right(
        ct, out, lhs, lax.rev(rhs, params["dimension_numbers"].rhs_spec[2:]), **params
    ),
    "shifted by one": with_params(lambda p: {"padding": [(low + 1, high - 1) for low, high in p["padding"]]}),
    "conjugated": lambda ct, out, lhs, rhs, **params: right(ct.conj(), out, lhs, rhs, **params),
    "window's cotangent from the wrong side": lambda ct, out, lhs, rhs, **params: right(
        ct, out, lax.rev(lhs, params["dimension_numbers"].lhs_spec[2:]), rhs, **params
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_caught(mutant, monkeypatch):
    assert is_caught(monkeypatch, lax.conv_general_dilated_p, "lhs rhs", MUTANTS[mutant], SAMPLES)
