"""The architecture, checked: imports go down, jax stays public, the calculus never asks the judge."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

import tapejax

ROOT = Path(tapejax.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# From the ground up: folders, and the few modules that people import by name. Each may import only from what stands
# before it, and from itself; within functions, too.
LAYERS = [
    "native", "ground", "errors", "program", "rules", "calculus", "tape", "tensor", "hooks", "plan", "fusion", "ops", "engine",
    "numpy", "nn", "lax", "scipy", "random", "transforms", "checkpointing",
    "training", "gradient_tape", "view", "verify", "diagnose", "testing", "course", "cli", "__main__",
]  # fmt: skip


def layer_of(path):
    return path.relative_to(ROOT).with_suffix("").parts[0]


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


@functools.cache
def imports_of(path):
    """What it imports, wherever in it; not what only type checkers see."""
    return list(found_imports(path))


def found_imports(path):
    nodes = list(ast.walk(parsed(path)))
    typing = [node for node in nodes if isinstance(node, ast.If) and "'TYPE_CHECKING'" in ast.dump(node.test)]
    skipped = {id(inner) for node in typing for inner in ast.walk(node)}
    for node in nodes:
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "tapejax":
                yield from (f"tapejax.{alias.name}" for alias in node.names)


def test_imports_go_down_only():
    for path in FILES:
        if path == ROOT / "__init__.py":
            continue
        here = LAYERS.index(layer_of(path))
        for name in imports_of(path):
            parts = name.split(".")
            if parts[0] == "tapejax" and len(parts) > 1:
                assert LAYERS.index(parts[1]) <= here, f"{path} imports {name}"


def test_every_module_has_its_layer():
    assert {layer_of(path) for path in FILES} - {"__init__"} == set(LAYERS)


def test_only_public_jax():
    for path in FILES:
        for name in imports_of(path):
            assert "_src" not in name.split("."), f"{path}: {name}"
        assert "jax._src" not in path.read_text(), path


def underscores_of_others(path):
    """Names with an underscore that a module reads of others: it defines them nowhere itself."""
    nodes = list(ast.walk(parsed(path)))
    own = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    own |= {node.id for node in nodes if isinstance(node, ast.Name)}
    own |= {
        node.attr for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls")
    }
    own |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and node.attr not in own:
            yield node.attr
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tapejax"):
            yield from (alias.name for alias in node.names if alias.name.startswith("_"))


PROTOCOLS = {"_getframe", "_replace", "_repr_mimebundle_"}  # of Python and Jupyter


def test_nobody_reads_the_underscore_of_another():
    for path in FILES:
        found = {name for name in underscores_of_others(path) if not (name.startswith("__") and name.endswith("__"))}
        assert found <= PROTOCOLS, path


SETTINGS = {"enable_x64", "default_device", "default_matmul_precision", "numpy_dtype_promotion", "numpy_rank_promotion"}


def test_the_settings_of_jax_are_read_in_one_place():
    for path in FILES:
        if path == ROOT / "ground" / "compat.py":
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Attribute) and node.attr == "value" and isinstance(node.value, ast.Attribute):
                assert node.value.attr not in SETTINGS, f"{path}:{node.lineno}"


JUDGES = {"grad", "vjp", "jvp", "linearize", "value_and_grad", "jacrev", "jacfwd", "hessian", "linear_transpose"}
REACHES_OTHERS_RULES = {"custom.py", "foreign.py"}  # a user's own rule, a primitive of another package


@pytest.mark.parametrize("path", sorted((ROOT / "rules").glob("*.py")), ids=lambda p: p.name)
def test_rules_never_ask_the_judge(path):
    if path.name in REACHES_OTHERS_RULES:
        return
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("jax", "jax.interpreters.ad", "ad"):
            assert node.attr not in JUDGES, f"{path.name}:{node.lineno} calls jax.{node.attr}"
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("jax"):
            assert not JUDGES & {alias.name for alias in node.names}, f"{path.name}:{node.lineno}"
            assert node.module != "jax.interpreters"


def test_engine_does_not_ask_the_judge_either():
    text = (ROOT / "engine" / "backward.py").read_text() + (ROOT / "calculus" / "reverse.py").read_text()
    for judge in JUDGES:
        assert f"jax.{judge}(" not in text


def test_one_place_adds_two_cotangents():
    """Backward code asks `accumulation`; what a rule's own formula adds are its terms (`x + y` in the rule)."""
    for path in FILES:
        if path.parts[-2:] == ("ground", "accumulation.py") or layer_of(path) not in (
            "rules",
            "calculus",
            "tape",
            "tensor",
            "plan",
            "fusion",
            "ops",
            "engine",
            "transforms",
        ):
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in ("lax.add", "jnp.add", "jax.lax.add"), f"{path}:{node.lineno}"


def test_import_needs_no_optional_package():
    code = (
        "import sys; blocked = ['scipy', 'torch', 'optax', 'chex', 'rich', 'matplotlib', 'anywidget']\n"
        "before = {m for m in sys.modules}\n"
        "import jax, jax.numpy; known = set(sys.modules)\n"
        "import tapejax; print([m for m in blocked if m in sys.modules and m not in known])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_import_does_not_start_jax():
    """jax.distributed.initialize must come before jax starts, and people import first."""
    code = (
        "import jax, tapejax, tapejax.numpy, tapejax.lax, tapejax.nn, tapejax.scipy, tapejax.verify\n"
        "jax.config.update('jax_platforms', 'nowhere')\n"
        "try:\n    jax.devices()\nexcept RuntimeError:\n    print('not started')"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "not started"
