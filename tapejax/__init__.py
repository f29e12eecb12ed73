"""tapejax: a flight recorder for gradients."""

import importlib

from tapejax import operators as _operators  # noqa: F401  (gives Tensor its operators and methods)
from tapejax.block import fusion
from tapejax.check import check_grads
from tapejax.compile import jit, vmap
from tapejax.cursor import Cursor
from tapejax.custom_op import custom_op
from tapejax.engine import backward
from tapejax.errors import TapejaxError
from tapejax.forward_mode import hessian, hvp, jacfwd, jvp, linearize
from tapejax.gradients import Gradients
from tapejax.lift import lift
from tapejax.modes import enable_grad, no_grad
from tapejax.tape import Tape, TapeAction, TensorId, current_tape, is_recording, record, take
from tapejax.tensor import Tensor, stop_gradient, tensor
from tapejax.transforms import elementwise_grad, grad, jacobian, jacrev, value_and_grad, vjp
from tapejax.utilities import Accumulator, LossScale, accumulate, all_finite, clip_by_norm, clip_by_value, global_norm

__version__ = "0.1.0"

__all__ = [
    "Accumulator",
    "Cursor",
    "GradientTape",
    "Gradients",
    "LossScale",
    "Tape",
    "TapeAction",
    "TapejaxError",
    "Tensor",
    "TensorId",
    "accumulate",
    "all_finite",
    "backward",
    "check_grads",
    "clip_by_norm",
    "clip_by_value",
    "current_tape",
    "custom_op",
    "elementwise_grad",
    "enable_grad",
    "fusion",
    "global_norm",
    "grad",
    "hessian",
    "hvp",
    "is_recording",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jit",
    "jvp",
    "lift",
    "linearize",
    "no_grad",
    "record",
    "stop_gradient",
    "take",
    "tensor",
    "value_and_grad",
    "vjp",
    "vmap",
]

_NAMESPACES = ("lax", "nn", "numpy", "random", "scipy")


def __getattr__(name: str):  # namespaces are made when they are first asked for
    if name in _NAMESPACES:
        return importlib.import_module(f"tapejax.{name}")
    if name in ("clear_plans", "plans"):
        return getattr(importlib.import_module("tapejax.caches"), name)
    if name == "GradientTape":
        return importlib.import_module("tapejax.gradient_tape").GradientTape
    raise AttributeError(f"module 'tapejax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMESPACES, "GradientTape", "clear_plans", "plans"})
