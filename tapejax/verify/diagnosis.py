"""What a wrong gradient is owed to: a custom rule if there is a wrong one, else the first wrong action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tapejax.errors import TapejaxError
from tapejax.verify.actions import verify_tape
from tapejax.verify.custom import verify_custom_rule


def culprit(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The report that names it, or None if each part is right by itself."""
    for look in (verify_custom_rule, verify_tape):
        try:
            found = look(function, *args)
        except (TapejaxError, TypeError, ValueError):  # none in there, or it cannot be opened
            continue
        if found.wrong:
            return found
    return None
