"""Why a gradient is bad, vanishes, explodes or never arrives: the cause, at the user's line."""

from tapejax.diagnose.alarm import NonfiniteWarning, debug_nonfinite
from tapejax.diagnose.data import TapeData
from tapejax.diagnose.entries import Entry
from tapejax.diagnose.flow import Flow, FlowHistory, gradient_flow
from tapejax.diagnose.missing import Explanation, explain
from tapejax.diagnose.nonfinite import find_nonfinite
from tapejax.diagnose.partings import Difference, Parting
from tapejax.diagnose.report import Born, NonfiniteReport

__all__ = [
    "Born", "Difference", "Entry", "Explanation", "Flow", "FlowHistory", "NonfiniteReport", "NonfiniteWarning", "Parting",
    "TapeData", "debug_nonfinite", "explain", "find_nonfinite", "gradient_flow",
]  # fmt: skip
