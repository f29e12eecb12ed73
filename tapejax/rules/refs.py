"""Mutable references never reach a rule: tapejax/program/discharge.py rewrites programs that use them first.

What is left of them is the first read and the last write of a reference from outside the function.
"""

from jax.extend.core import primitives as p

from tapejax.rules.registry import constant, refused

constant([p.get_p], "the value that a reference from outside has at the start is a constant", cheap=False)
constant(
    [p.swap_p],
    "the last write of a reference from outside is an effect; what the function reads again is differentiated",
    cheap=False,
)
refused(
    ["accum_grad_in_ref", "run_state", "masked_load", "masked_swap", "get_global"],
    "it belongs to the inside of jax's own transforms or of a kernel",
    fix="differentiate the function before it gets there, or give it a custom_vjp",
)
