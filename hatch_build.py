"""When tapejax is installed: build tapejax/native, where there is a C compiler. Where there is none, nothing is missing.

A wheel stays one for every machine: what is built has this machine's and this Python's mark in its name, and others pass it
over.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = Path(self.root, "tapejax", "native")
        sources = _sources(folder)
        reason = sources.build(folder)
        if reason:
            self.app.display_warning(f"tapejax/native is not built, and Python does its work: {reason}")
            return
        build_data["artifacts"].append(f"tapejax/native/{sources.target(folder).name}")


def _sources(folder: Path) -> Any:
    """tapejax/native/sources.py, without the package around it, which imports jax."""
    spec = importlib.util.spec_from_file_location("sources", folder / "sources.py")
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module
