"""The surface: jax's namespaces over Tensors, made from tables.

tables     which parameters are options, what is only plain, what needs a size: data
op         a jax function as an op over Tensors, arrays, numbers and pytrees of them
functions  functions of functions: Python functions over Tensors inside lax.scan, cond, ...
plain      what is not recorded, with the reason; what takes its result's size from the values
byhand     the few that need code of their own
mirror     a namespace of tapejax from a namespace of jax, each name made when it is first asked for
names      what there is: counts, reasons, and the list of signatures that shows when jax changes
"""

from tapejax.ops.surface.mirror import mirror

__all__ = ["mirror"]
