"""Settings for all tests, made before jax starts."""

import os
from importlib.metadata import version

# The tests compile thousands of tiny programs and run each once: optimising them is most of the time.
if "xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()
    if version("jaxlib").startswith("0.10."):  # the newer way to emit code takes twice as long; later there is no other
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"

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


@pytest.fixture(autouse=True)
def clean_tape():
    """Each test starts and ends with an empty ambient tape."""
    tapejax.take()
    yield
    tapejax.take()
