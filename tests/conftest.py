"""Settings for all tests, made before jax starts."""

import os

# The tests compile thousands of tiny programs and run each once: optimising them is most of the time.
if "xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()

import pytest

import tapejax


@pytest.fixture(autouse=True)
def clean_tape():
    """Each test starts and ends with an empty ambient tape."""
    tapejax.take()
    yield
    tapejax.take()
