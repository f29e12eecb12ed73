"""tapejax: a flight recorder for gradients."""

import importlib
import typing as _typing

from tapejax.engine.backward import backward
from tapejax.errors import TapejaxError
from tapejax.ops import operators as _operators  # noqa: F401  (gives Tensor its operators and methods)
from tapejax.ops.custom_op import custom_op
from tapejax.ops.lift import lift
from tapejax.tape.above import above as _above
from tapejax.tape.action import TapeAction, TensorId
from tapejax.tape.modes import enable_grad, no_grad
from tapejax.tape.switch import fusion
from tapejax.tape.tape import Tape, current_tape, is_recording, record, take
from tapejax.tensor.gradients import Gradients
from tapejax.tensor.tensor import Tensor, stop_gradient, tensor
from tapejax.transforms.forward_mode import hessian, hvp, jacfwd, jvp, linearize
from tapejax.transforms.jit import jit, vmap
from tapejax.transforms.reverse_mode import elementwise_grad, grad, jacobian, jacrev, value_and_grad, vjp

if _typing.TYPE_CHECKING:  # imported when they are first asked for: see __getattr__
    from tapejax import diagnose, hooks, lax, nn, numpy, random, scipy, testing, training, verify  # noqa: F401
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
    from tapejax.diagnose.alarm import debug_nonfinite
    from tapejax.diagnose.flow import gradient_flow
    from tapejax.diagnose.missing import explain
    from tapejax.diagnose.nonfinite import find_nonfinite
    from tapejax.engine.cursor import Cursor
    from tapejax.gradient_tape import GradientTape
    from tapejax.hooks import region, regions_of, watch
    from tapejax.ops.compiled import clear_plans, plans, programs  # noqa: F401
    from tapejax.verify.actions import verify_tape
    from tapejax.verify.check_grads import check_grads
    from tapejax.verify.custom import verify_custom_rule
    from tapejax.verify.sharded import verify_sharded
    from tapejax.verify.twins import compare, compare_precision

_above.install(backward="tapejax.engine.backward", cursor="tapejax.engine.cursor", on_gradient="tapejax.hooks")
_above.install(save="tapejax.view", dot="tapejax.view", html="tapejax.view", bundle="tapejax.view")

__version__ = "0.1.0"

__all__ = [
    "Cursor",
    "GradientTape",
    "Gradients",
    "Tape",
    "TapeAction",
    "TapejaxError",
    "Tensor",
    "TensorId",
    "backward",
    "check_grads",
    "checkpoint",
    "checkpoint_multi",
    "checkpoint_name",
    "compare",
    "compare_precision",
    "current_tape",
    "custom_op",
    "debug_nonfinite",
    "elementwise_grad",
    "enable_grad",
    "explain",
    "find_nonfinite",
    "fusion",
    "grad",
    "gradient_flow",
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
    "region",
    "regions_of",
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
    "verify_sharded",
    "verify_tape",
    "vjp",
    "vmap",
    "watch",
]

_NAMESPACES = ("diagnose", "hooks", "lax", "nn", "numpy", "random", "scipy", "testing", "training", "verify")
_LATE = {
    "ops.compiled": ("clear_plans", "plans", "programs"),
    "verify.check_grads": ("check_grads",),
    "checkpointing": (
        "checkpoint", "checkpoint_multi", "checkpoint_name", "plan_memory", "save_on_cpu", "save_to_disk",
        "saved_tensors_hooks", "sequential",
    ),
    "engine.cursor": ("Cursor",),
    "diagnose.alarm": ("debug_nonfinite",),
    "diagnose.flow": ("gradient_flow",),
    "diagnose.missing": ("explain",),
    "diagnose.nonfinite": ("find_nonfinite",),
    "gradient_tape": ("GradientTape",),
    "hooks": ("region", "regions_of", "watch"),
    "verify.actions": ("verify_tape",),
    "verify.custom": ("verify_custom_rule",),
    "verify.sharded": ("verify_sharded",),
    "verify.twins": ("compare", "compare_precision"),
}  # fmt: skip
_IN_TRAINING = (
    "Accumulator", "LossScale", "accumulate", "all_finite", "clip_by_norm", "clip_by_value", "global_norm",
)  # fmt: skip
_HOMES = {name: module for module, names in _LATE.items() for name in names}


def __getattr__(name: str):
    if name in _NAMESPACES:
        return importlib.import_module(f"tapejax.{name}")
    if name in _HOMES:
        found = globals()[name] = getattr(importlib.import_module(f"tapejax.{_HOMES[name]}"), name)
        return found
    moved = f": it is tapejax.training.{name}" if name in _IN_TRAINING else ""
    if not moved and not name.startswith("_"):
        _refuse(name)
    raise AttributeError(f"module 'tapejax' has no attribute {name!r}{moved}")


def _refuse(name: str) -> None:
    """A name of another library, or of one of our namespaces, gets an answer."""
    from tapejax.errors import UnknownAttributeError
    from tapejax.ground.habits import of_name
    from tapejax.ground.where import user_line

    inside = {
        f"tapejax.{module}": dir(importlib.import_module(f"tapejax.{module}"))
        for module in ("numpy", "nn", "random", "lax")
    }
    fix = of_name(name, inside)
    if fix is not None:
        raise UnknownAttributeError(f"module 'tapejax' has no attribute {name!r}", at=user_line(), fix=fix)


def __dir__() -> list[str]:
    inner = [name for name in globals() if name.startswith("__")]
    return sorted({*__all__, *_NAMESPACES, *_HOMES, *inner, "errors"})
