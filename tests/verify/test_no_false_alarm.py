"""No false alarm on 200 correct functions: kinks, ties, ill-conditioned matrices, narrow floats, programs."""

import contextlib
import os

import jax
import numpy as np
import pytest

import tapejax as tj
from tests.verify.functions import KINDS, NEAR


def cases():
    return [
        pytest.param(
            function,
            arguments,
            id=f"{kind}-{name}".replace(" ", "_"),
            marks=[pytest.mark.slow] * (number >= NEAR[kind]),
        )
        for kind, functions in KINDS.items()
        for number, (name, (function, arguments)) in enumerate(functions.items())
    ]


def test_there_are_two_hundred():
    assert sum(map(len, KINDS.values())) >= 200


@pytest.mark.parametrize(("function", "arguments"), cases())
def test_right(function, arguments):
    wide = any(isinstance(leaf, np.ndarray) and leaf.dtype == np.float64 for leaf in arguments)
    with jax.enable_x64(True) if wide else contextlib.nullcontext():
        report = tj.verify(function, *arguments, seeds=1, diagnose=False)
    assert report.ok, str(report)


@pytest.mark.slow
@pytest.mark.parametrize(("function", "arguments"), cases() if "TAPEJAX_ALL_CASES" in os.environ else cases()[::3])
def test_each_action_is_right(function, arguments):
    wide = any(isinstance(leaf, np.ndarray) and leaf.dtype == np.float64 for leaf in arguments)
    with jax.enable_x64(True) if wide else contextlib.nullcontext():
        report = tj.verify_tape(function, *arguments)
    assert not report.wrong, str(report)
