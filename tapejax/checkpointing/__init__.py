"""Checkpoints: keep the inputs of a function, not what it computes on the way, and run it again in backward.

core        checkpoint: the first run, the action, the run again
run         a tape for such a run, and the trail that it leaves
moment      the state that both runs see: generators, jax's settings
digest      64 bits that stand for an array
blame       what a run that differs read, and where it first did
traced      under jit, vmap, grad and scan, and with a policy: jax.checkpoint
sequential  chains: sqrt and binomial schedules
memory      what a function keeps, and a schedule that fits a budget
saved       hooks on what actions keep: in host memory, on disk
"""

from __future__ import annotations

from tapejax.checkpointing.core import CheckpointAction, checkpoint, checkpoint_multi, checkpoint_name
from tapejax.checkpointing.memory import MemoryPlan, plan_memory
from tapejax.checkpointing.saved import save_on_cpu, save_to_disk, saved_tensors_hooks
from tapejax.checkpointing.sequential import Sequential, sequential

__all__ = [
    "CheckpointAction",
    "MemoryPlan",
    "Sequential",
    "checkpoint",
    "checkpoint_multi",
    "checkpoint_name",
    "plan_memory",
    "save_on_cpu",
    "save_to_disk",
    "saved_tensors_hooks",
    "sequential",
]
