"""tapejax: a flight recorder for gradients."""

import importlib

from tapejax import operators as _operators  # noqa: F401  (gives Tensor its operators and methods)
from tapejax.block import fusion
from tapejax.check import check_grads
from tapejax.checkpointing import (
    checkpoint,
    checkpoint_multi,
    checkpoint_name,
    plan_memory,
    save_on_cpu,
    save_to_disk,
    saved_tensors_hooks,
    sequential,
)
from tapejax.compile import jit, vmap
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
    "checkpoint",
    "checkpoint_multi",
    "checkpoint_name",
    "clip_by_norm",
    "clip_by_value",
    "compare",
    "compare_precision",
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
    "plan_memory",
    "record",
    "save_on_cpu",
    "save_to_disk",
    "saved_tensors_hooks",
    "sequential",
    "stop_gradient",
    "take",
    "tensor",
    "value_and_grad",
    "verify",
    "verify_custom_rule",
    "verify_tape",
    "vjp",
    "vmap",
]

_NAMESPACES = ("lax", "nn", "numpy", "random", "scipy", "testing", "verify")
_LATE = {  # functions whose modules are imported when they are first asked for
    "Cursor": "tapejax.cursor",
    "compare": "tapejax.verify.twins",
    "compare_precision": "tapejax.verify.twins",
    "verify_custom_rule": "tapejax.verify.custom",
    "verify_tape": "tapejax.verify.actions",
}


def __getattr__(name: str):  # namespaces are made when they are first asked for
    if name in _NAMESPACES:
        return importlib.import_module(f"tapejax.{name}")
    if name in ("clear_plans", "plans"):
        return getattr(importlib.import_module("tapejax.caches"), name)
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    if name == "GradientTape":
        return importlib.import_module("tapejax.gradient_tape").GradientTape
    raise AttributeError(f"module 'tapejax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMESPACES, *_LATE, "GradientTape", "clear_plans", "plans"})
