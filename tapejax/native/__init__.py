"""The calls that come over and over, without the interpreter in between: C, if it was built.

It is built when tapejax is installed where there is a C compiler (hatch_build.py). Without it the same happens in
Python, which is what says how it is to be. `TAPEJAX_NATIVE=0` leaves it out.
"""

from __future__ import annotations

import os
from typing import Any

from tapejax.native.sources import FOLDER, mark_of


def _found() -> Any:
    """The module; None if it is not there, not wanted, or built from other sources than those beside it."""
    if os.environ.get("TAPEJAX_NATIVE", "1") == "0":
        return None
    try:
        from tapejax.native import built  # type: ignore[attr-defined]
    except ImportError:
        return None
    return built if mark_of(FOLDER) == built.SOURCE else None


native = _found()
