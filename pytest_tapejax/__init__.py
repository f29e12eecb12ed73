"""A pytest plugin: the fixture `gradients_match`, and reports of what failed as pages.

It stands beside the package, so that pytest can load it without importing jax.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tapejax")
    group.addoption(
        "--gradient-reports", metavar="FOLDER", help="write the report of each wrong gradient there, as a page"
    )


@pytest.fixture
def gradients_match() -> Callable[..., Any]:
    """Assert that a function's gradient is right: gradients_match(f, *args, **options of tapejax.verify)."""

    def check(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        __tracebackhide__ = True
        from tapejax.testing import assert_gradients_match

        return assert_gradients_match(function, *args, **options)

    return check


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]):
    outcome = yield
    folder = item.config.getoption("--gradient-reports")
    report = getattr(call.excinfo and call.excinfo.value, "report", None)
    if folder and report is not None and hasattr(report, "save_html"):
        path = Path(folder) / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', item.nodeid)}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        report.save_html(path)
        outcome.get_result().sections.append(("gradient report", str(path)))
