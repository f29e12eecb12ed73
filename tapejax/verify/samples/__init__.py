"""Test data for every rule, by family; see base.py."""

from tapejax.verify.samples import (
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

FAMILIES = {
    module.__name__.rpartition(".")[2]: module.SAMPLES
    for module in (
        arithmetic, collective, complex, constants, control, convolution, custom, elementwise, fft, indexing, linalg, loops,
        placement, products, reduction, refs, rounding, shape, solves, sparse, special, windows,
    )
}  # fmt: skip

# Rules that no sample can reach, and why. The tests check them in other ways.
UNREACHABLE = {
    "pbroadcast": "XLA cannot run it on a CPU; its rule is tested alone",
    "pbroadcast_dynamic": "XLA cannot run it on a CPU; its rule is tested alone",
    "ragged_all_to_all": "XLA cannot run it on a CPU; tested against a dense emulation",
    "relayout": "no public function of jax leads to it",
    "reshard": "needs a mesh around it; tested on four devices",
    "tie": "no public function of jax leads to it; its rule is tested alone",
}
MANY_DEVICES = {"collective": 4}  # how many devices a family's samples want; fewer make them trivial or impossible

__all__ = ["FAMILIES", "MANY_DEVICES", "UNREACHABLE"]
