"""Settings for all tests, made before jax starts."""

import os
from importlib.metadata import version

# The tests compile thousands of tiny programs and run each once: optimising them is most of the time.
if "xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()
    if version("jaxlib").startswith("0.10."):  # the newer way to emit code takes twice as long; later there is no other
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"

import pytest

import tapejax


@pytest.fixture(autouse=True)
def clean_tape():
    """Each test starts and ends with an empty ambient tape."""
    tapejax.take()
    yield
    tapejax.take()
