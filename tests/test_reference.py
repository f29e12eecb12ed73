"""The reference has every public name, and each shows itself in an example that runs."""

import ast
import functools
import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import tapejax
from tapejax.ops.surface.names import LIFTED, PLAIN, survey
from tapejax.ops.surface.tables import MODULES

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
REFERENCE = [page for page in PAGES if "reference" in page.parts]
HOME = {"tapejax.verify": "tapejax.verify.function.verify"}  # the package that is a function, too
DIRECTIVE = re.compile(r"^(?:\.\. (\w+):: |:::\{(mirrored)\} )(\S+)", re.MULTILINE)


def directives():
    """(directive, full name) for each that the reference pages have."""
    for page in REFERENCE:
        module = "tapejax"
        for automatic, mirrored, name in DIRECTIVE.findall(page.read_text()):
            if automatic == "currentmodule":
                module = name
            else:
                yield automatic or mirrored, name if name.startswith("tapejax") else f"{module}.{name}"


def own_names(module):
    """The public names of a namespace that jax does not have, and functions only."""
    namespace, jax_names = importlib.import_module(module), dir(importlib.import_module(MODULES[module]))
    return [name for name in namespace.__all__ if name not in jax_names]


def public():
    """Every public name of ours, in full."""
    for name in dir(tapejax):
        if not name.startswith("_") and (
            callable(found := getattr(tapejax, name)) or not isinstance(found, ModuleType)
        ):
            yield HOME.get(f"tapejax.{name}", f"tapejax.{name}")
    for module in ("tapejax.nn", "tapejax.random", "tapejax.numpy", "tapejax.lax"):
        yield from (f"{module}.{name}" for name in own_names(module))
    for module in map(importlib.import_module, ("tapejax.testing", "tapejax.training")):
        yield from (
            f"{module.__name__}.{name}"
            for name, found in vars(module).items()
            if is_of(found, module) and name[0] != "_"
        )


def is_of(found, module):
    return (inspect.isfunction(found) or inspect.isclass(found)) and found.__module__ == module.__name__


def resolve(full):
    module, _, name = full.rpartition(".")
    return getattr(importlib.import_module(module), name)


PUBLIC = sorted(public())
LISTED = {name for kind, name in directives() if kind.startswith("auto")}


# What tests/test_docs.py runs: the docstrings of top-level functions and classes.
@functools.cache
def run():
    return {
        inspect.cleandoc(text)
        for path in (ROOT / "tapejax").rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and (text := ast.get_docstring(node))
    }


def example_of(found):
    """The docstring with the example: an object's own, or its class's."""
    return inspect.cleandoc(found.__doc__ or type(found).__doc__ or "")


def test_there_is_something_to_look_at():
    assert {"tapejax.backward", "tapejax.nn.conv", "tapejax.random.seed", "tapejax.verify_tape"} <= set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_in_the_reference_and_has_an_example_that_runs(name):
    assert name in LISTED, f"add {name} to a page in docs/reference"
    text = example_of(resolve(name))
    assert ">>>" in text, f"the docstring of {name} has no example"
    assert text in run(), f"the example of {name} is in a docstring that no test runs"


def test_what_the_reference_lists_is_there():
    for kind, name in directives():
        if kind.startswith("auto") and kind != "automodule":
            resolve(name)


def test_each_namespace_with_functions_of_jax_is_listed():
    mirrored = [name for kind, name in directives() if kind == "mirrored"]
    assert len(mirrored) == len(set(mirrored))
    assert set(mirrored) == {entry.module for entry in survey() if entry.kind in (LIFTED, PLAIN)}


def test_the_check_sees_a_missing_example():
    def bare():
        """Nothing to see."""

    assert ">>>" not in example_of(bare)
    assert example_of(bare) not in run()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_that_a_page_mentions_exist(page):
    text = page.read_text()
    for alias, module in (("tj", "tapejax"), ("tnp", "tapejax.numpy"), ("tnn", "tapejax.nn")):
        for path in re.findall(rf"(?<![\w.]){alias}\.([a-zA-Z_]\w*(?:\.[a-z_]\w*)*)", text):
            found = importlib.import_module(module)
            for part in path.split("."):
                assert hasattr(found, part), f"{page.name} mentions {alias}.{path}"
                found = getattr(found, part)


@pytest.mark.parametrize("page", ["coming-from-pytorch.md"])
def test_torch_names_in_the_table_exist(page):
    torch = pytest.importorskip("torch")
    text = (ROOT / "docs/how-to" / page).read_text()
    names = re.findall(r"`torch\.([a-z][\w.]*)", text)
    assert len(names) > 5
    for path in names:
        found = torch
        for part in path.split("."):
            found = getattr(found, part)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("[0-9]*.py")), ids=lambda path: path.stem)
def test_the_page_of_examples_names_each(path):
    assert f"[{path.stem[:2]}]({path.name})" in (ROOT / "examples/README.md").read_text()


def test_examples_are_numbered_without_gaps():
    numbers = [int(path.name[:2]) for path in sorted((ROOT / "examples").glob("[0-9]*.py"))]
    assert numbers == list(range(1, len(numbers) + 1))


def test_pages_that_ask_the_network_are_seen(tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("offline", ROOT / "docs/extensions/offline.py")
    offline = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(offline)
    assert offline.main(str(tmp_path)) == 1  # no pages at all
    page = tmp_path / "page.html"
    page.write_text('<a href="https://example.org">a link</a><script src="_static/theme.js"></script>')
    assert offline.main(str(tmp_path)) == 0
    for bad in (
        '<script async src="https://example.org/a.js">',
        '<link rel="stylesheet" type="text/css" href="//example.org/a.css">',
        "<style>@font-face { src: url(https://example.org/a.woff2) }</style>",
    ):
        page.write_text(bad)
        assert offline.main(str(tmp_path)) == 1
    assert "example.org" in capsys.readouterr().out


def test_dir_lists_what_is_public_only():
    names = [name for name in dir(tapejax) if not name.startswith("_")]
    assert {*tapejax.__all__, "numpy", "nn", "errors"} <= set(names)
    assert not {"importlib", "hot", "lazy", "operators"} & set(names)
    assert all(hasattr(tapejax, name) for name in names)
