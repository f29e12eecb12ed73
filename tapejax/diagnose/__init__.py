"""Why a gradient is bad, vanishes, explodes or never arrives: the cause, at the user's line."""

from tapejax.diagnose.alarm import NonfiniteWarning, debug_nonfinite
from tapejax.diagnose.nonfinite import find_nonfinite
from tapejax.diagnose.report import Born, NonfiniteReport

__all__ = ["Born", "NonfiniteReport", "NonfiniteWarning", "debug_nonfinite", "find_nonfinite"]
