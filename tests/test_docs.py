"""What the documents show is what happens: every python block and every doctest is run."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import traceback
from pathlib import Path

import jax
import pytest
from jax.interpreters import ad

import tapejax
from tapejax.rules import TABLE
from tests.test_layers import LAYERS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "tapejax").rglob("*.md"))]  # fmt: skip
MODULES = [
    m.name
    for m in pkgutil.walk_packages(tapejax.__path__, "tapejax.")
    if not m.name.endswith(("__main__", "native.built"))
]
FLAGS = doctest.ELLIPSIS | doctest.REPORT_ONLY_FIRST_FAILURE

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = {"console", "text"}  # commands to type and what they print, pictures in letters


def blocks(page):
    """(language, first line's number, text) of each fenced block."""
    text = page.read_text()
    for found in FENCE.finditer(text):
        yield found[1], text.count("\n", 0, found.start(2)), found[2]


@pytest.fixture
def rules_as_before():
    """A page may register rules, ours or jax's; they are gone after it."""
    before = [(table, dict(table)) for table in (TABLE, ad.primitive_jvps)]
    yield
    for table, entries in before:
        table.clear()
        table.update(entries)


@pytest.fixture(autouse=True)
def errors_with_notes(monkeypatch):
    """An error's notes are part of its text, as later doctests have it; that of Python 3.11.2 sees the last one only."""
    lines = traceback.format_exception_only
    monkeypatch.setattr(traceback, "format_exception_only", lambda *error, **how: ["".join(lines(*error, **how))])


class Checker(doctest.OutputChecker):
    """Compares with tensors and tapes numbered anew: a page's numbers are those of a fresh session."""

    def check_output(self, want, got, flags):
        return super().check_output(renumbered(want), renumbered(got), flags)


def renumbered(text):
    for numbers in (r"(?<=%)\d+|(?<=TensorId\()\d+", r"(?<=tape )\d+"):  # tensors and tapes count apart
        seen = {}
        text = re.sub(numbers, lambda found, seen=seen: seen.setdefault(found[0], f"#{len(seen)}"), text)
    return text


def run_doctest(text, names, page, line):
    test = doctest.DocTestParser().get_doctest(text, names, f"{page.name}:{line}", str(page), line)
    said = []
    runner = doctest.DocTestRunner(Checker(), optionflags=FLAGS)
    runner.run(test, out=said.append, clear_globs=False)
    assert not runner.failures, "".join(said)
    names.update(test.globs)  # the parser copies them


# Pages whose blocks take long; the slow run has them.
LONG = {"docs/verify.md", "docs/semantics.md", "docs/checkpoint.md", "docs/index-tape.md", "docs/how-to/move-code-to-the-tape.md", "docs/how-to/coming-from-pytorch.md", "docs/how-to/verify-in-ci.md"}  # fmt: skip


def with_marks(page):
    name = str(page.relative_to(ROOT))
    return pytest.param(page, id=name, marks=[pytest.mark.slow] * (name in LONG))


@pytest.mark.parametrize("page", [with_marks(page) for page in PAGES])
def test_blocks_of_a_page_run_in_order(page, rules_as_before):
    names = {"__name__": "__main__"}
    for language, line, text in blocks(page):
        if ">>>" in text:
            assert language == "python", f"{page.name}:{line} has a session in a block that is not python"
            run_doctest(text, names, page, line)
        elif language == "python":
            exec(compile("\n" * line + text, str(page), "exec"), names)
        else:
            assert language in NOT_RUN, f"{page.name}:{line} is a block of `{language}`, which nothing runs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_commands_exist(page):
    text = page.read_text()
    for target in re.findall(r"(?<!\\)\[[^\]]*\]\(([\w./-]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command in re.findall(r"(?:^|`)make ([\w-]+)", text, re.MULTILINE):
        assert command in targets, f"{page.name} says `make {command}`"


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    module = importlib.import_module(name)
    tree = ast.parse(inspect.getsource(module))
    ours = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    said = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for test in doctest.DocTestFinder().find(module, "module"):
        if test.name == "module" or test.name.split(".")[1] in ours:  # a mirrored function has jax's docstring
            runner.run(test, out=said.append)
    assert not runner.failures, "".join(said)


def test_a_wrong_block_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\n>>> 1 + 1\n3\n```\n")
    with pytest.raises(AssertionError, match="Expected"):
        test_blocks_of_a_page_run_in_order(page, None)


def test_public_names_have_docstrings():
    for name in tapejax.__all__:
        assert getattr(tapejax, name).__doc__, name


def test_the_architecture_page_names_layers_in_their_order():
    rows = re.findall(r"^\| (`[^|]*`) \|", (ROOT / "docs/design.md").read_text(), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert named == [layer for layer in LAYERS if layer != "__main__"]


def test_the_architecture_page_names_modules_that_are_there():
    table = re.findall(r"^\| (`\w+`)? ?\| ([^|]*) \|", (ROOT / "docs/design.md").read_text(), re.MULTILINE)
    folder = ""
    for layer, modules in table:
        folder = layer.strip("`") or folder
        for name in re.findall(r"`(\w+)`", modules):
            found = ROOT / "tapejax" / folder / name
            there = found.is_dir() or any(found.with_suffix(suffix).exists() for suffix in (".py", ".c"))
            assert there, f"{folder}/{name}"


def test_the_page_of_primitives_is_up_to_date():
    page = (ROOT / "docs/primitives.md").read_text()
    made_with = re.search(r"Made with jax (\S+) by", page)[1]
    if made_with != jax.__version__:
        pytest.skip(f"the page was made with jax {made_with}")
    # In a process of its own: packages that other tests import bring primitives of theirs.
    command = [sys.executable, "-m", "tapejax.calculus.coverage", "--markdown"]
    made = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert page == made.stdout, "run: python -m tapejax.calculus.coverage --markdown > docs/primitives.md"
