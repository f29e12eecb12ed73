"""Every lifted function, called on a sample: value, dtype, weak type and gradient against jax in float64."""

import importlib
import itertools

import jax
import jax.numpy as jnp
import pytest

from tapejax.ops.surface import names
from tapejax.ops.surface.tables import MODULES
from tests.ops.surface import judge
from tests.ops.surface.samples import ARRAYS, EAGER, NEEDS_GPU, SAMPLES, TOLERANCE

CALLS = [
    (module, name, arguments)
    for module, table in SAMPLES.items()
    for arguments, functions in table
    for name in functions.split()
    if hasattr(importlib.import_module(MODULES[module]), name)
]
SIZE = 24  # samples in one compiled program


def chunks():
    """The samples that are compiled together, by sample."""
    together = [sample for sample in CALLS if sample[1] not in EAGER | NEEDS_GPU]
    groups = [
        group for _, found in itertools.groupby(together, lambda sample: sample[0]) for group in split(list(found))
    ]
    return {sample: group for group in groups for sample in group}


def split(samples):
    return [tuple(samples[start : start + SIZE]) for start in range(0, len(samples), SIZE)]


CHUNKS = chunks()


def case(sample):
    """The two largest modules run with the slow tests."""
    module, name, arguments = sample
    marks = [pytest.mark.slow] * (module in ("tapejax.numpy", "tapejax.scipy.special"))
    return pytest.param(sample, id=f"{module.removeprefix('tapejax.')}.{name}({arguments})", marks=marks)


@pytest.mark.parametrize("sample", [case(sample) for sample in CHUNKS])
def test_sample(sample):
    found = judge.together(CHUNKS[sample])[str(sample)]
    if isinstance(found, Exception):
        raise found
    judge.compare(found, TOLERANCE.get(sample[1], 1e-7))


@pytest.mark.parametrize("sample", [s for s in CALLS if s[1] in EAGER], ids=lambda s: s[1])
def test_sample_that_looks_at_values(sample):
    with jax.enable_x64(True):
        judge.compare(judge.both(sample, {word: jnp.asarray(value) for word, value in ARRAYS.items()}))


@pytest.mark.parametrize("module", SAMPLES)
def test_every_lifted_function_has_a_sample(module):
    have = {name for _, functions in SAMPLES[module] for name in functions.split()}
    lifted = {entry.name for entry in names.survey() if entry.module == module and entry.kind == names.LIFTED}
    assert lifted - have == set()


def test_a_wrong_gradient_is_caught():
    ours = ([jnp.ones(2)], [jnp.ones(2)])
    with pytest.raises(AssertionError):
        judge.compare((ours, ([jnp.ones(2)], [jnp.array([1.0, 1.00001])])))
    with pytest.raises(AssertionError):
        judge.compare((ours, ([jnp.array([1.0, 1.00001])], [jnp.ones(2)])))
