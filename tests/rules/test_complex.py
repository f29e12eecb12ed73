import pytest
from jax import lax

from tapejax.verify.samples.complex import SAMPLES
from tests.rules.harness import is_caught

MUTANTS = {
    "imag: sign": (lax.imag_p, "", lambda ct, out, x: (lax.complex(0 * ct, ct),)),
    "complex: sign": (lax.complex_p, "", lambda ct, out, x, y: (lax.real(ct), lax.imag(ct))),
    "conj: forgotten": (lax.conj_p, "", lambda ct, out, x, *, input_dtype: (ct.astype(input_dtype),)),
    "abs: not conjugated": (lax.abs_p, "out x", lambda ct, out, x: (lax.complex(ct / out, 0 * ct) * x,)),
}


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_rule_is_caught(mutant, monkeypatch):
    assert is_caught(monkeypatch, *MUTANTS[mutant], SAMPLES)
