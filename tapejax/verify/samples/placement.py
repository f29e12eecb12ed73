"""Samples for the rules of rules/placement.py. (Those that need several devices: tests/rules/test_collective.py.)"""

import jax.numpy as jnp
from jax import lax

from tapejax.verify.samples.base import ALL, normal, sample

SAMPLES = {
    "stage": [
        sample(lambda x: lax.stage(jnp.sin(x)) * x, normal(2, 3), dtypes=ALL),
        sample(lambda x: lax.stage(x * x), normal()),
    ],
}
