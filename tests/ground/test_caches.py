"""Every cache is known, keeps to its bound, and is emptied by `clear_plans`."""

import ast
import gc
from pathlib import Path

import tapejax as tj
import tapejax.numpy as tnp
from tapejax.ground.caches import Table, cached, caches

ROOT = Path(tj.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "ground" / "caches.py")


def test_no_cache_is_made_elsewhere():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            assert not {"lru_cache", "cache"} & set(names), path
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "functools":
                assert node.attr not in ("lru_cache", "cache"), f"{path}:{node.lineno}"


def test_a_table_lets_the_oldest_go():
    table = Table(3)
    for number in range(5):
        assert table.keep(number, str(number)) == str(number)
    assert list(table) == [2, 3, 4]
    assert table.keep(3, "later") == "3", "what was there first stays"


def test_the_results_of_a_function_are_kept_up_to_its_bound():
    calls = []

    @cached(2)
    def twice(number):
        calls.append(number)
        return 2 * number

    assert [twice(n) for n in (1, 2, 2, 3, 1)] == [2, 4, 4, 6, 2]
    assert calls == [1, 2, 3, 1]
    (known,) = [cache for cache in caches() if cache.name.endswith("twice")]
    assert (known.size(), known.bound) == (2, 2)


def use_everything(n):
    """What makes entries: shapes, numbers, indices, structures, functions of functions."""
    x = tj.tensor([0.5] * (n % 7 + 2), requires_grad=True)
    y = tnp.sin(x[: n % 5 + 1] * (n + 0.25)).sum() + tj.lax.fori_loop(0, 2, lambda _, v: v * (n + 1.0), x).sum()
    return tj.backward(y)[x]


def test_no_cache_grows_beyond_its_bound(monkeypatch):
    tables = {
        cache.name: cache.clear.__self__
        for cache in caches()
        if isinstance(getattr(cache.clear, "__self__", None), Table)
    }
    assert {"scalars", "indices", "seeds", "structures", "functions of functions"} <= set(tables)
    tj.clear_plans()
    for table in tables.values():
        monkeypatch.setattr(table, "bound", 3)
    for n in range(6):
        use_everything(n)
    reached = {name for name, table in tables.items() if len(table) == 3}
    assert {"scalars", "indices", "structures", "functions of functions"} <= reached, "the bound was reached"
    assert all(len(table) <= 3 for table in tables.values())


def test_clear_plans_empties_them_all():
    use_everything(1)
    assert sum(cache.size() for cache in caches()) > 0
    gc.collect()
    tj.clear_plans()
    assert {cache.name: cache.size() for cache in caches() if cache.size()} == {}
    assert use_everything(1).shape == (3,)
