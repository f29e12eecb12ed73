"""What there is: nothing missing, and a list that shows when jax changes."""

import ast
import importlib
import inspect
import pickle
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tapejax.ops.surface import names, stubs
from tapejax.ops.surface.tables import MODULES

LIST = Path(__file__).parent / f"names-{jax.__version__}.txt"


def test_nothing_is_missing():
    assert [entry for entry in names.survey() if entry.kind == names.MISSING] == []


def test_the_report_counts():
    report = names.report()
    assert "tapejax.numpy " in report
    assert "missing:" not in report


def test_the_committed_list_is_what_jax_has():
    """Write it anew with `python -m tests.ops.surface.test_names`, and look at the difference."""
    if not LIST.exists():
        pytest.skip(f"no list for jax {jax.__version__}")
    assert names.listing() == LIST.read_text().splitlines()


@pytest.mark.parametrize("module", MODULES)
def test_every_name_is_there_and_signatures_are_jaxs(module):
    ours, original = importlib.import_module(module), importlib.import_module(MODULES[module])
    for entry in (entry for entry in names.survey() if entry.module == module):
        found = getattr(ours, entry.name)
        assert entry.name in dir(ours)
        if entry.kind in (names.LIFTED, names.PLAIN) and not isinstance(found, type) and hasattr(found, "__name__"):
            assert found.__name__ == entry.name
            assert found.__doc__ == getattr(original, entry.name).__doc__
            try:
                expected = inspect.signature(getattr(original, entry.name))
            except ValueError:
                continue
            assert inspect.signature(found).parameters.keys() == expected.parameters.keys()


@pytest.mark.parametrize("module", MODULES)
def test_stubs_are_what_jax_has(module):
    """Write them anew with `python -m tapejax.ops.surface.stubs`."""
    text = stubs.path_of(module).read_text()
    ast.parse(text)
    if f"from jax {jax.__version__}:" in text:
        assert text == stubs.stub(module)


def test_import_forms():
    from tapejax.numpy import linalg, sin

    norm = importlib.import_module("tapejax.scipy.stats.norm")

    assert sin is tj.numpy.sin
    assert linalg is tj.numpy.linalg
    assert norm.logpdf is tj.scipy.stats.norm.logpdf
    assert pickle.loads(pickle.dumps(tnp.sin)) is tnp.sin
    with pytest.raises(AttributeError, match="has no attribute 'sine'"):
        _ = tnp.sine


def test_constants_and_dtypes_are_jaxs():
    assert tnp.pi == jnp.pi
    assert tnp.float32 is jnp.float32
    assert tnp.ndarray is jnp.ndarray


def test_importing_tapejax_makes_no_namespace():
    import subprocess
    import sys

    code = "import sys, tapejax; print([m for m in sys.modules if m.startswith('tapejax.numpy')])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


if __name__ == "__main__":
    LIST.write_text("\n".join(names.listing()) + "\n")
