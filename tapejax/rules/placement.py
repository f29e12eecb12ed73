"""Operations that change nothing about a value but where, when or how it is kept."""

import jax

from tapejax.ground import compat
from tapejax.rules.registry import constant, refused, rule


@rule("reshard", cheap=True)
def reshard(ct, out, x, *, dst_sharding, concrete_mesh=None):
    """out = x, laid out differently over devices"""
    if x.sharding.mesh.empty:  # it came from where there was no mesh
        return (ct,)
    with compat.mesh_context(x):
        return (jax.sharding.reshard(ct, x.sharding),)


@rule("relayout", cheap=True)
def relayout(ct, out, x, *, dst_layout):
    """out = x, laid out differently in memory"""
    return (ct,)


@rule("stage", cheap=True)
def stage(ct, out, x):
    """out = x, as a value that is not known before the program runs"""
    return (ct,)


@rule("tie", cheap=True)
def tie(ct, out, x, y):
    """out = y, not before x"""
    return None, ct


constant(["check", "dce_sink"], "has no results", cheap=False)
refused(
    ["ffi_call", "pallas_call", "mpmd_map"],
    "it runs a program of another language, or a kernel, that has no derivative here",
    fix="wrap the call in jax.custom_vjp, with a backward that you write",
)
