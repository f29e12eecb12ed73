"""No primitive of jax is forgotten: each has a rule, or stands in a list that says why not."""

import inspect
import warnings

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import jax.scipy.linalg
import jax.scipy.signal
import jax.scipy.special
import jax.scipy.stats
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxprs_in_params

from tapejax.calculus import coverage
from tapejax.calculus.coverage import FOREIGN, MET_IN_TRACES, REFUSED_BY_JAX_TOO, primitive_table

ROWS = primitive_table()


def names(rows):
    return sorted(row.name for row in rows)


def test_every_exported_primitive_is_listed():
    assert names(row for row in ROWS if row.public and row.kind in ("missing", "foreign")) == []


def test_every_known_primitive_is_listed():
    assert names(row for row in ROWS if row.kind == "missing") == []


def test_what_jax_can_reverse_tapejax_can_too():
    """A constant is fine: jax's entry gives zeros then, which the constants' samples check."""
    lacking = [r for r in ROWS if r.jax_reverse and r.kind not in ("rule", "opened", "constant")]
    assert [r.name for r in lacking if r.name not in {**FOREIGN, **REFUSED_BY_JAX_TOO}] == []


def test_the_lists_of_exceptions_are_not_stale():
    """An exception that got a rule leaves its list."""
    kinds = {row.name: row.kind for row in ROWS}
    assert [name for name in FOREIGN if kinds.get(name, "foreign") != "foreign"] == []
    assert [name for name in REFUSED_BY_JAX_TOO if kinds.get(name, "refused") != "refused"] == []


def test_every_row_says_why():
    assert names(row for row in ROWS if not row.detail) == []


def test_no_primitive_has_two_entries():
    from tapejax.rules.registry import TABLE

    found = [entry.name for entry in TABLE.values()]
    assert sorted({name for name in found if found.count(name) > 1}) == []


def test_the_command_prints_every_family(capsys):
    rows = coverage.primitive_table()  # other tests may have made primitives of their own since
    coverage.main()
    printed = capsys.readouterr().out
    assert all(f"\n{row.family or 'nowhere'} (" in printed for row in rows)
    assert printed.strip().splitlines()[-1] == coverage.summary(rows)


# --- what tracing jax's functions shows ----------------------------------------------------------------

HALF = np.eye(4, dtype="float32") * 0.5 + 0.1
X, M, I, B = map(jnp.asarray, (np.full(4, 0.5, "float32"), HALF, np.arange(4), np.array([True, False, True, True])))
Z, KEY = jnp.asarray(np.complex64(HALF + 0.1j * HALF)), jax.random.key(0)
ATTEMPTS = [
    (X,), (M,), (I,), (B,), (Z,), (X, X), (M, M), (M, X), (I, I), (B, X, X), (X, X, X), (X, I), (X, 2), (M, 1), (KEY,),
    (KEY, X), (KEY, X, X), (KEY, (3,)), (KEY, 5, (2,)), (X, X, X, X), ([X, X],), ("ij,jk", M, M), (M, I, I), (Z, Z),
]  # fmt: skip
MODULES = [
    jnp, jnp.linalg, jnp.fft, lax, lax.linalg, jax.nn, jax.nn.initializers, jax.random, jsp.special, jsp.linalg,
    jsp.signal, jsp.fft, jsp.integrate, jax.ops, jax.image, jsp.stats, jsp.stats.norm, jsp.stats.gamma, jsp.stats.beta,
    jsp.stats.poisson, jsp.stats.t, jsp.stats.multivariate_normal, jsp.stats.vonmises, jsp.cluster.vq, jsp.ndimage,
]  # fmt: skip
LEFT_OUT = {"save", "savez", "load", "fromfile", "set_printoptions", "printoptions", "get_printoptions", "while_loop"}


def primitives_of(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in jaxprs_in_params(eqn.params):
            yield from primitives_of(inner)


def traced(module):
    """The names of all primitives in whatever of a module's functions can be traced with plain arguments."""
    found = set()
    for name in dir(module):
        function = getattr(module, name)
        if name.startswith("_") or name in LEFT_OUT or not callable(function) or inspect.isclass(function):
            continue
        successes = 0
        for args in ATTEMPTS:
            if successes == 4:
                break
            try:
                found.update(primitives_of(jax.make_jaxpr(lambda args=args, function=function: function(*args))()))
            except Exception:
                continue
            successes += 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_primitive_met_in_a_trace_is_listed(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = traced(module)
    kinds = {row.name: row.kind for row in primitive_table(tuple(found))}
    assert sorted(name for name in found if kinds[name] == "missing") == []


def test_the_list_of_names_met_in_traces_has_no_public_ones():
    assert (
        names(row for row in ROWS if row.public and row.name in MET_IN_TRACES and row.name not in coverage.CALLS) == []
    )
