"""One generic check for all rules; each test file here gives the family's samples to it."""

import os
import zlib
from functools import partial

import jax
import jax.numpy as jnp
import pytest

from tapejax.rules.registry import TABLE, Rule, name_of
from tapejax.verify import check
from tapejax.verify.check import check_finite, check_sample

WIDE = ("float64", "complex128")


def cases(samples, *, order, merged=False):
    """(sample, dtype) for every sample of a family that is checked at this order.

    The first sample of each rule runs in double precision; what mostly repeats that is left to the slow run.
    merged: what order 2 is checked of by default is left out at order 1, as `assert_both_orders` sees it, too.
    """

    def marks(number, dtype):
        return [] if dtype in WIDE and number == 0 else [pytest.mark.slow]

    def at_order_two(number, sample, dtype):
        return order == 1 and merged and number == 0 and dtype in WIDE and sample.orders >= 2

    return [
        pytest.param(sample, dtype, id=case, marks=marks(number, dtype))
        for primitive, entries in samples.items()
        for number, sample in enumerate(entries)
        if sample.orders >= order
        for dtype in (sample.dtypes if order == 1 else [d for d in sample.dtypes if d in WIDE])
        for case in [f"{name_of(primitive)}-{number}-{dtype}"]
        if not at_order_two(number, sample, dtype)
        if not marks(number, dtype) or (number == 1 and dtype in WIDE and order == 1) or chosen(case)
    ]


def chosen(case):
    """Whether the slow run has a case: every second one, or all if TAPEJAX_ALL_CASES is set. `tapejax verify` has all."""
    return "TAPEJAX_ALL_CASES" in os.environ or zlib.crc32(case.encode()) % 2 == 0


def finite_cases(samples):
    """The samples that finite differences can judge: a second judge, so left to the slow run."""
    return [
        pytest.param(sample, id=f"{name_of(primitive)}-{number}", marks=pytest.mark.slow)
        for primitive, entries in samples.items()
        for number, sample in enumerate(entries)
        if sample.finite and "float64" in sample.dtypes and chosen(f"{name_of(primitive)}-{number}")
    ]


def assert_sample(sample, dtype, order):
    outcome = check_sample(sample, dtype, order)
    assert outcome.ok, outcome.message


def assert_both_orders(sample, dtype):
    """Value, gradient and second derivative against jax's, all from one program."""
    with jax.enable_x64(True):
        args = check.make_arguments(sample, dtype, seed=0)
        function, wrt = check.flat(sample.function), [check.inexact(arg) for arg in args]
        rtol = sample.rtol or check.TOLERANCES[dtype]

        def orders(vjp, args):
            slope = lambda *args: vjp(function, args, wrt, 0)[1]
            return vjp(slope, args, wrt, 7)

        def both(*args):
            values = check.our_vjp(function, args, wrt)[0], function(*args)
            return values, *zip(orders(check._ours, args), orders(check._judge, args), strict=True)

        for what, found, tolerance in zip(
            ("value", "gradient", "second derivative"), jax.jit(both)(*args), (rtol, rtol, 10 * rtol), strict=True
        ):
            outcome = check.compare(*found, tolerance, what)
            assert outcome.ok, outcome.message


def assert_finite(sample):
    outcome = check_finite(sample)
    assert outcome.ok, outcome.message


def rules_without_samples(family, samples):
    """Names of the family's rules that no sample exercises."""
    names = {name_of(primitive) for primitive, entries in samples.items() if entries}
    return sorted({e.name for e in TABLE.values() if e.kind == "rule" and e.family == family} - names)


def is_caught(monkeypatch, primitive, saves, wrong, samples):
    """Whether one of the primitive's samples fails with this wrong rule in place of the right one."""
    entry = Rule(name_of(primitive), wrong, saves, cheap=True, zeros=True, family="mutant")
    monkeypatch.setitem(TABLE, primitive, entry)
    return any(
        not (check_sample(sample, dtype) if sample.orders else check_finite(sample)).ok
        for sample in samples[primitive]
        for dtype in sample.dtypes
        if dtype in ("float64", "complex128")
    )


def assert_equal_functions(function, same, *values):
    """Our first and second derivatives of a function that jax refuses, against jax's of one that equals it."""
    with jax.enable_x64(True):
        args = [jnp.asarray(value, "float64") for value in values]
        wrt = [True] * len(args)
        for order in (1, 2):
            function = partial(_gradients, check._ours, check.flat(function), wrt)
            same = partial(_gradients, check._judge, check.flat(same), wrt)
            outcome = check.compare(jax.jit(function)(*args), jax.jit(same)(*args), 1e-10, f"derivative {order}")
            assert outcome.ok, outcome.message


def _gradients(vjp, function, wrt, *args):
    return vjp(function, args, wrt, 0)[1]
