import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

from tapejax.rules.registry import TABLE
from tapejax.verify.check import our_vjp


def test_tie_passes_the_second_operand_on():
    ct = jnp.array([1.0, 2.0])
    x, y = TABLE["tie"].function(ct, ct, ct, ct)
    assert x is None
    assert np.array_equal(y, ct)


def test_checks_do_not_disturb():
    def function(x):
        checkify.check(jnp.all(x > 0), "must be positive")
        return jnp.log(x)

    checked = lambda x: checkify.checkify(function)(x)[1]
    _, pullback = our_vjp(checked, [jnp.array([1.0, 2.0])], [True])
    np.testing.assert_allclose(pullback([jnp.ones(2)])[0], [1.0, 0.5])
