import pytest

from tapejax.rules import sparse
from tapejax.rules.registry import TABLE, Rule
from tapejax.verify.check import check_finite, check_sample
from tapejax.verify.samples.sparse import BEYOND_JAX, SAMPLES
from tests.rules.harness import (
    assert_both_orders,
    assert_finite,
    assert_sample,
    cases,
    finite_cases,
    rules_without_samples,
)


@pytest.mark.parametrize(("sample", "dtype"), cases(SAMPLES, order=1, merged=True))
def test_gradient_equals_jax(sample, dtype):
    assert_sample(sample, dtype, order=1)


FIRST = {name: samples[:1] for name, samples in SAMPLES.items()}  # the others differ only in where the axes are


@pytest.mark.parametrize(("sample", "dtype"), cases(FIRST, order=2))
def test_second_derivative_equals_jax(sample, dtype):
    """And the value and the gradient on the way there."""
    assert_both_orders(sample, dtype)


@pytest.mark.parametrize("sample", finite_cases(FIRST))
def test_gradient_equals_finite_differences(sample):
    assert_finite(sample)


@pytest.mark.parametrize("sample", BEYOND_JAX.values(), ids=BEYOND_JAX)
def test_what_jax_cannot_do_equals_finite_differences(sample):
    assert_finite(sample)


def test_every_rule_has_a_sample():
    assert rules_without_samples("sparse", SAMPLES) == []


def counts_padding(cts, outs, x, **_):
    return (sparse.onto(x.shape, cts[0], outs[1], outs[2]),)


def keeps_the_order(cts, outs, data, indices, **_):
    return cts[0], None


def first_of_each_only(ct, out, data, indices, **_):
    return sparse.values_at(ct, *sparse._first_of_each(indices, ct.shape, data)), None


def not_weighted(ct, out, data, row, column, y, **_):
    return sparse.at(ct, row), None, None, sparse.onto(y.shape, sparse.at(ct, row) * data, column)


def not_negated(ct, out, data, indices, indptr, b, **params):
    data_ct, *rest = sparse.spsolve(ct, out, data, indices, indptr, b, **params)
    return -data_ct, *rest


MUTANTS = [
    ("coo_fromdense", counts_padding, "out"),
    ("bcoo_sort_indices", keeps_the_order, ""),
    ("bcoo_todense", first_of_each_only, "indices"),
    ("coo_matvec", not_weighted, "data row column y"),
    ("spsolve", not_negated, "data indices indptr out"),
]


@pytest.mark.parametrize(("name", "mutant", "saves"), MUTANTS, ids=[m[0] for m in MUTANTS])
def test_a_wrong_rule_is_caught(name, mutant, saves, monkeypatch):
    monkeypatch.setitem(TABLE, name, Rule(name, mutant, saves, cheap=False, zeros=True, family="sparse"))
    right = all(check_sample(sample, "float64").ok for sample in SAMPLES[name])  # as far as the first that is not
    assert not (right and all(check_finite(sample).ok for sample in BEYOND_JAX.values()))
