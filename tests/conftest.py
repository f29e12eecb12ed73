"""Settings for all tests, made before jax starts."""

import gc
import os
from importlib.metadata import version

# The tests compile thousands of tiny programs and run each once: optimising them is most of the time.
if "xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()
    if version("jaxlib").startswith("0.10."):  # the newer way to emit code takes twice as long; later there is no other
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"

import pathlib

import jax
import pytest

import tapejax

HERE = pathlib.Path(__file__).parent
# What computes numbers on the default device. The rest reads text, draws, or starts processes that have virtual CPU devices.
ON_DEVICES = {
    "calculus",
    "checkpointing",
    "engine",
    "fusion",
    "nn",
    "ops",
    "plan",
    "program",
    "programs",
    "rules",
    "tensor",
    "transforms",
}


def pytest_report_header(config):
    if "accelerator" not in config.option.markexpr:
        return None
    devices = jax.devices()
    alone = "; no accelerator here: what is marked `accelerator` runs on the CPU" * (devices[0].platform == "cpu")
    return f"devices: {len(devices)} x {devices[0].device_kind} ({devices[0].platform}){alone}"


def pytest_collection_modifyitems(config, items):
    """Mark what is worth running on a GPU or TPU, and skip what such a device does not have."""
    on_tpu = "accelerator" in config.option.markexpr and jax.default_backend() == "tpu"
    for item in items:
        if item.path.relative_to(HERE).parts[0] in ON_DEVICES:
            item.add_marker("accelerator")
        if on_tpu and "complex128" in item.name:
            item.add_marker(pytest.mark.skip(reason="a TPU has no complex128"))


lowered = 0  # programs since jax's caches were emptied
MANY = 400


def count(event, seconds, **_):
    global lowered
    lowered += event == "/jax/core/compile/jaxpr_to_mlir_module_duration"


jax.monitoring.register_event_duration_secs_listener(count)


@pytest.fixture(autouse=True, scope="module")
def old_things_rest():
    """Garbage collections look only at what is new: going through all that is compiled takes longer than most tests.

    What the file before this one left in circles is collected first.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def few_programs():
    """jax keeps about 1 MB for each program that it made, and the next one takes the longer the more there are."""
    global lowered
    if lowered > MANY:
        jax.clear_caches()
        lowered = 0


@pytest.fixture(autouse=True)
def clean_tape():
    """Each test starts and ends with an empty ambient tape."""
    tapejax.take()
    yield
    tapejax.take()
