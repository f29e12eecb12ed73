"""What NumPy gives becomes a jax array as jax would make it, and no program is compiled for its shape."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import tapejax as tj
from tapejax.errors import TensorConversionError

ARRAYS = {
    "float32": np.ones((2, 3), "f4"),
    "float64": np.array([1.1, -0.0, np.nan]),
    "int64": np.array([2**40, -1]),
    "uint64": np.array([2**63], "u8"),
    "bool": np.array(True),
    "complex128": np.array([1 + 1j]),
    "bfloat16": np.ones(2, ml_dtypes.bfloat16),
    "float8": np.ones(2, ml_dtypes.float8_e4m3fn),
    "int4": np.ones(2, ml_dtypes.int4),
    "empty": np.zeros((0, 3)),
    "strided": np.arange(12.0)[::2],
    "fortran": np.asfortranarray(np.ones((2, 3))),
    "a scalar": np.float32(2),
    "a list": [1.1, -0.0, float("nan")],
    "lists": [[1.0, 2.0], (3.0, 4.0)],
    "an empty list": [],
    "numbers": [True, 2, 3.5],
    "NumPy's numbers": [np.float16(1), 2.0],
}


@pytest.mark.parametrize("x64", [False, True])
def test_it_is_what_jax_makes_of_it(x64):
    with jax.enable_x64(x64):
        for name, data in ARRAYS.items():
            ours, theirs = tj.tensor(data).value, jnp.array(data)
            assert jax.typeof(ours) == jax.typeof(theirs), name
            assert (ours.sharding, ours.committed) == (theirs.sharding, theirs.committed), name
            assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes(), name


@pytest.mark.parametrize(
    "data", [np.array(["a"]), np.array([object()]), np.zeros(2, "M8[D]")], ids=lambda d: str(d.dtype)
)
def test_what_is_no_number_is_refused(data):
    with pytest.raises(TensorConversionError, match="cannot become a Tensor"):
        tj.tensor(data)


def test_nothing_is_compiled_for_a_new_shape():
    compiled = []
    listener = lambda event, seconds, **_: compiled.append(event) if "backend_compile" in event else None
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        for n in range(211, 214):
            tj.tensor(np.ones((n, 3), "f4"), requires_grad=True)
            tj.tensor([1.0] * n, requires_grad=True)
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert not compiled


def test_on_a_mesh_jax_decides_where_it_goes():
    mesh = jax.make_mesh((jax.device_count(),), ("all",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        data = np.ones((jax.device_count(), 2), "f4")
        assert tj.tensor(data).value.sharding == jnp.asarray(data).sharding


def test_in_a_trace_the_program_is_that_of_jax():
    data = np.ones(3, "f4")
    program = lambda make: str(jax.make_jaxpr(lambda x: x + make(data))(jnp.ones(3)))
    assert program(lambda data: tj.tensor(data).value) == program(jnp.asarray)
