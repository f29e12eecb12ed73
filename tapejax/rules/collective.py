"""Collectives: what devices say to each other, and `shard_map`, which starts the conversation.

Each collective is linear and its cotangent travels the same wires backwards. Under `check_vma=True`
a type says over which mesh axes a value varies, and a rule's result has its operand's type. Under
`check_vma=False` nobody knows, so jax counts every device's copy as a value of its own, and so do we.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import primitives as p
from jax.sharding import PartitionSpec

from tapejax.ground import compat
from tapejax.rules.reduction import along
from tapejax.rules.registry import RuleCall, refused, rule, structural


def varying(x, like):
    """x with the type of `like`: zeros and constants do not know over which mesh axes they should vary."""
    missing = compat.varying_axes(like) - compat.varying_axes(x)
    return lax.pcast(x, tuple(sorted(missing)), to="varying") if missing else x


# --- sums and casts --------------------------------------------------------------------------------


@rule(p.psum_p)
def psum(ct, out, x, *, axes, axis_index_groups):
    """out = x summed over devices, every device a value of its own; under vmap over axes of x too, by number"""
    names = tuple(axis for axis in axes if not isinstance(axis, int))
    ct = lax.psum(ct, names, axis_index_groups=axis_index_groups) if names else ct
    return (along(ct, [axis for axis in axes if isinstance(axis, int)], x),)


@rule("psum_invariant")
def psum_invariant(ct, out, x, *, axes):
    """out = x summed over devices: one value, known to all"""
    return (lax.pcast(ct, axes, to="varying"),)


@rule("pvary", cheap=True)
def pvary(ct, out, x, *, axes):
    """out = x, from now on each device's own"""
    return (lax.psum(varying(ct, out), axes),)


@rule("unreduced_psum")
def unreduced_psum(ct, out, x, *, axes):
    """out = x summed over devices, where x was a sum not yet taken"""
    return (lax.pcast(ct, axes, to="reduced"),)


@rule("preduced", cheap=True)
def preduced(ct, out, x, *, axes):
    """out = x, whose cotangent may stay a sum not yet taken"""
    return (lax.psum(ct, axes),)


def _vary_unreduced_cast(ct, out, x, *, axes):
    """out = x, read as the parts of a sum not yet taken"""
    return (lax.pcast(ct, axes, to="varying"),)


def _reduced_vary_cast(ct, out, x, *, axes):
    """out = x, from now on each device's own, whose cotangent may stay a sum not yet taken"""
    return (lax.pcast(varying(ct, out), axes, to="unreduced"),)


# Up to jax 0.11 the names of these two end in _p.
for ending in ("", "_p"):
    rule(f"vary_unreduced_cast{ending}", cheap=True)(_vary_unreduced_cast)
    rule(f"reduced_vary_cast{ending}", cheap=True)(_reduced_vary_cast)


# --- gathering and scattering ----------------------------------------------------------------------


@rule(p.all_gather_p)
def all_gather(ct, out, x, *, all_gather_dimension, axis_name, axis_index_groups, axis_size, tiled):
    """out = everyone's x, for everyone"""
    dimension, groups = all_gather_dimension, axis_index_groups
    return (lax.psum_scatter(ct, axis_name, scatter_dimension=dimension, axis_index_groups=groups, tiled=tiled),)


@rule("reduce_scatter")
def reduce_scatter(ct, out, x, *, axis_name, scatter_dimension, axis_index_groups, axis_size, tiled):
    """out = one slice of x summed over devices"""
    return (lax.all_gather(ct, axis_name, axis=scatter_dimension, axis_index_groups=axis_index_groups, tiled=tiled),)


@rule("all_gather_reduced")
def all_gather_reduced(ct, out, x, *, all_gather_dimension, axis_name, axis_size, tiled):
    """out = everyone's x, whose cotangent may stay a sum not yet taken"""
    return (lax.psum_scatter(ct, axis_name, scatter_dimension=all_gather_dimension, tiled=tiled),)


@rule("unreduced_reduce_scatter")
def unreduced_reduce_scatter(ct, out, x, *, axis_name, scatter_dimension, axis_size, tiled):
    """out = one slice of x summed over devices, where x was a sum not yet taken"""
    return (lax.all_gather(ct, axis_name, axis=scatter_dimension, tiled=tiled, to="reduced"),)


@rule("all_gather_invariant")
def all_gather_invariant(ct, out, x, *, all_gather_dimension, axis_name, axis_size, tiled):
    """out = everyone's x: one value, known to all"""
    size = out.shape[all_gather_dimension] // axis_size
    start = lax.axis_index(axis_name) * size
    mine = lax.dynamic_slice_in_dim(ct, start, size, axis=all_gather_dimension)
    return (mine if tiled else lax.squeeze(mine, [all_gather_dimension]),)


# --- moving ----------------------------------------------------------------------------------------


@rule(p.all_to_all_p)
def all_to_all(ct, out, x, *, axis_name, split_axis, concat_axis, axis_index_groups, tiled):
    """out = slice i of x from every device, on device i"""
    # An untiled one has its new axis already, of size 1: on this level both are the same.
    groups = axis_index_groups
    return (lax.all_to_all(ct, axis_name, concat_axis, split_axis, axis_index_groups=groups, tiled=True),)


@rule(p.ppermute_p)
def ppermute(ct, out, x, *, axis_name, perm):
    """out = x of another device, for each pair (from, to) of perm; zeros where nothing arrives"""
    return (lax.ppermute(ct, axis_name, [(to, from_) for from_, to in perm]),)


@rule("pbroadcast")
def pbroadcast(ct, out, x, *, axis_name, source):
    """out = x of the source device"""
    return (_at_source(ct, axis_name, source),)


@rule("pbroadcast_dynamic", saves="source")
def pbroadcast_dynamic(ct, out, x, source, *, axis_name):
    """out = x of the source device, which is only known when it runs"""
    return _at_source(ct, axis_name, source), None


def _at_source(ct, axis_name, source):
    total = lax.psum(ct, axis_name)
    return jnp.where(lax.axis_index(axis_name) == source, total, 0)


@rule(p.ragged_all_to_all_p, saves="input_offsets send_sizes output_offsets recv_sizes")
def ragged_all_to_all(
    ct, out, x, output, input_offsets, send_sizes, output_offsets, recv_sizes, *, axis_name, axis_index_groups
):
    """out = output with the rows of x that every device sends written over it"""
    # What was received at output_offsets (each sender knows its own: exchange them) goes back where it came from.
    over = {"axis_name": axis_name, "axis_index_groups": axis_index_groups}
    exchange = lambda v: lax.all_to_all(v, split_axis=0, concat_axis=0, tiled=True, **over)
    received_at, back_to = exchange(output_offsets), exchange(input_offsets)
    zeros = jnp.zeros(x.shape, x.dtype)
    x_ct = lax.ragged_all_to_all(ct, zeros, received_at, recv_sizes, back_to, send_sizes, **over)
    row = lax.broadcasted_iota(received_at.dtype, (out.shape[0], received_at.size), 0)
    written = ((row >= received_at) & (row < received_at + recv_sizes)).any(axis=1)
    output_ct = jnp.where(written.reshape(-1, *[1] * (ct.ndim - 1)), 0, ct)
    return x_ct, output_ct, None, None, None, None


refused(
    [p.pmax_p, p.pmin_p, "unreduced_pmax", "unreduced_pmin"],
    "jax gives no derivative to a maximum over devices, and ties between devices would have to be split",
    fix="gather first and take the maximum then: lax.all_gather(x, axis).max(0); or wrap the operand in stop_gradient",
)
refused(
    ["psend", "precv"],
    "one end of a message does not know where the other end keeps its cotangent",
    fix="use lax.ppermute, which holds both ends",
)


# --- shard_map -------------------------------------------------------------------------------------


def flow_inside(eqn, active_in, tools):
    return tools.active(tools.flatten(eqn.params["jaxpr"]), active_in)


@structural("shard_map", flow=flow_inside)
def shard_map(eqn, in_avals, out_avals, active_in, tools):
    """out = the same program on every device, each with its shards"""
    both = ShardMap(eqn, in_avals, out_avals, active_in, tools)
    inner = both.inner
    return RuleCall(inner.saves_in, inner.saves_out, both.backward, both.forward, both.extra_avals, inner.foreign)


class ShardMap:
    """A shard_map with its derivative: the program inside goes back on every device.

    inner: the program inside, reversed. kept_axes: per value that it keeps, the mesh axes it varies over.
    """

    def __init__(self, eqn, in_avals, out_avals, active_in, tools):
        params = eqn.params
        self.mesh, self.checked = params["mesh"], params["check_vma"]
        self.in_specs, self.out_specs = params["in_specs"], params["out_specs"]
        self.manual = tuple(name for name in self.mesh.axis_names if name in params["newly_manual_axes"])
        self.out_avals, self.active_in = out_avals, active_in
        self.program = tools.flatten(params["jaxpr"])
        self.inner, self.kept_axes = self.reversed_inside(in_avals, tools)

    def mapped(self, body, in_specs, out_specs):
        return jax.shard_map(
            body, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, axis_names=set(self.manual),
            check_vma=self.checked,
        )  # fmt: skip

    def reversed_inside(self, in_avals, tools):
        """The program's reverse, and the axes over which what it keeps varies.

        These are known only to a trace with the mesh in place, and so is what the rules of programs
        further inside need: an abstract run finds out.
        """
        found = []

        def probe(*args):
            inner = tools.reverse(self.program, self.active_in, wanted=tools.wanted, references=self.references())
            axes = [compat.varying_axes(kept) if self.checked else self.manual for kept in inner.forward(*args)[1]]
            found[:] = inner, [tuple(name for name in self.manual if name in varying) for varying in axes]
            return ()

        jax.eval_shape(self.mapped(probe, self.in_specs, ()), *in_avals)
        return found

    def references(self):
        """The slots that need not be kept a second time: inputs, and results that come back as they left.

        A value that is the same on all devices, but returned side by side, would come back as one that varies.
        """
        program, manual = self.program, set(self.manual)
        same = lambda aval, spec: set(_names(spec)) == compat.varying_axes(aval) & manual
        returned = zip(program.outputs, self.out_specs, strict=True)
        slots = (slot for slot, spec in returned if not self.checked or same(program.avals[slot], spec))
        return {*program.inputs, *slots}

    # What is kept on each device: the devices' copies one after the other along a new leading axis.

    @property
    def kept_specs(self):
        return tuple(PartitionSpec(axes or None) for axes in self.kept_axes)

    @property
    def extra_avals(self):
        return tuple(
            jax.ShapeDtypeStruct((self.devices_along(axes), *aval.shape), aval.dtype)
            for aval, axes in zip(self.inner.extra_avals, self.kept_axes, strict=True)
        )

    def devices_along(self, axes):
        return math.prod(self.mesh.shape[name] for name in axes)

    def forward(self, operands):
        def body(*args):
            outputs, extras = self.inner.forward(*args)
            return tuple(outputs), tuple(lax.expand_dims(extra, [0]) for extra in extras)

        outputs, extras = self.mapped(body, self.in_specs, (tuple(self.out_specs), self.kept_specs))(*operands)
        return list(outputs), list(extras)

    def backward(self, saved, cts):
        inner = self.inner
        n_referred = len(inner.saves_in) + len(inner.saves_out)
        wanted = [i for i, active in enumerate(self.active_in) if active]
        present = [i for i, ct in enumerate(cts) if ct is not None]

        def body(references, extras, seeds):
            full = [None] * len(cts)
            for i, ct in zip(present, seeds, strict=True):
                full[i] = ct
            in_cts = inner.backward([*references, *(lax.squeeze(extra, [0]) for extra in extras)], full)
            return tuple(self.total(i, in_cts[i]) for i in wanted)

        referred = [self.in_specs[i] for i in inner.saves_in] + [self.out_specs[i] for i in inner.saves_out]
        seed_specs = tuple(self.out_specs[i] for i in present)
        run = self.mapped(body, (tuple(referred), self.kept_specs, seed_specs), tuple(self.in_specs[i] for i in wanted))
        seeds = tuple(self.seed(i, cts[i]) for i in present)
        found = run(tuple(saved[:n_referred]), tuple(saved[n_referred:]), seeds)
        in_cts = [None] * len(self.active_in)
        for i, ct in zip(wanted, found, strict=True):
            in_cts[i] = ct
        return in_cts

    # Unchecked, a value that is not sharded over an axis has a copy on each device of it, each a value of its own.

    def copied_over(self, spec):
        return () if self.checked else tuple(name for name in self.manual if name not in _names(spec))

    def seed(self, i, ct):
        """A result's cotangent, of which each copy gets its part."""
        ct = compat.reshard_like(ct, self.out_avals[i])
        copies = self.devices_along(self.copied_over(self.out_specs[i]))
        return ct if copies == 1 else lax.div(ct, lax.full_like(ct, copies))

    def total(self, i, ct):
        """An operand's cotangent, on a device: the sum of those of its copies."""
        if ct is None:
            return jnp.zeros(self.program.in_avals[i].shape, self.program.in_avals[i].dtype)
        axes = self.copied_over(self.in_specs[i])
        return lax.psum(ct, axes) if axes else ct


def _names(spec):
    """The mesh axes that a PartitionSpec mentions."""
    for part in spec:
        if part is not None:
            yield from part if isinstance(part, tuple) else (part,)
