"""Building the C sources, where that can be done, and doing without where it cannot."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from tapejax.native import native
from tapejax.native.sources import FOLDER, build, mark_of, target

ROOT = pathlib.Path(__file__).parents[2]
built_here = pytest.mark.skipif(native is None, reason="the C extension is not built here, or TAPEJAX_NATIVE=0")
ADDS = (
    "import tapejax as tj; from tapejax.native import native; x = tj.tensor(2.0); print(native is None, (x * x).item())"
)


@pytest.fixture
def copied(tmp_path):
    """The package somewhere else, without what is built."""
    package = tmp_path / "tapejax"
    shutil.copytree(ROOT / "tapejax", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return package / "native"


def runs(copied):
    command = [sys.executable, "-c", ADDS]
    environment = {**os.environ, "PYTHONPATH": str(copied.parents[1])}
    done = subprocess.run(command, env=environment, cwd=copied.parents[1], capture_output=True, text=True, check=True)
    return done.stdout.split()


@built_here
def test_what_is_built_is_of_the_sources_beside_it(copied):
    assert runs(copied) == ["True", "4.0"]  # not built: in Python
    assert build(copied) == ""
    assert runs(copied) == ["False", "4.0"]
    with (copied / "step.c").open("a") as file:
        file.write("/* changed since */\n")
    assert runs(copied) == ["True", "4.0"]


def test_the_mark_is_of_every_source(copied):
    marks = {mark_of(copied)}
    assert marks == {mark_of(FOLDER)}
    sources = [*copied.glob("*.c"), *copied.glob("*.h")]
    for source in sources:
        source.write_text(source.read_text() + "\n")
        marks.add(mark_of(copied))
    assert len(marks) == 1 + len(sources) > 4


@pytest.mark.slow  # compilers differ in what they warn of
@built_here
def test_it_compiles_without_a_warning(copied, monkeypatch):
    warnings = "-Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -Wno-cast-function-type -Werror"
    monkeypatch.setenv("CC", f"{os.environ.get('CC', 'cc')} {warnings}")
    assert build(copied) == ""


def test_no_compiler_is_a_reason_and_no_error(copied, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "no C compiler" in build(copied)
    assert not list(copied.glob("built*"))


@built_here
def test_sources_that_do_not_compile_are_a_reason_and_leave_nothing(copied):
    (copied / "step.c").write_text("not C\n")
    assert "the C compiler" in build(copied)
    assert not list(copied.glob("built*"))
    assert not target(copied).exists()
