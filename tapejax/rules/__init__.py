"""The calculus: one reverse rule per lax primitive, by family. See README.md in this folder."""

from tapejax.rules import (  # noqa: F401
    arithmetic,
    collective,
    complex,
    constants,
    control,
    convolution,
    custom,
    elementwise,
    fft,
    indexing,
    linalg,
    loops,
    placement,
    products,
    reduction,
    refs,
    rounding,
    shape,
    solves,
    sparse,
    special,
    windows,
)
from tapejax.rules.foreign import foreign_rule
from tapejax.rules.registry import TABLE, constant, elementwise_rule, lookup, refused, rule, structural

__all__ = ["TABLE", "constant", "elementwise_rule", "foreign_rule", "lookup", "refused", "rule", "structural"]
