"""What is made of a NumPy array, or of other memory, holds the values of that moment: it may be written to right after."""

import array

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
import tapejax.numpy as tnp
from tests.some import one_in

SIZES = (1, 3, 16, 1000, 4096, 65_537, 1_000_000)
OFFSETS = (0, 4, 8, 16, 32, 60, 64)  # bytes: jax shares, or copies later, depending on the alignment


def buffers(sizes=SIZES, offsets=OFFSETS):
    """Arrays of ones that start so many bytes after a multiple of 64."""
    for size in sizes:
        room = np.zeros(4 * size + 192, np.uint8)
        start = -room.ctypes.data % 64
        for offset in offsets:
            found = room[start + offset : start + offset + 4 * size].view(np.float32)
            found[:] = 1
            yield found


def holds_ones(make, sizes=SIZES):
    for data in buffers(sizes):
        made = make(data)
        data[:] = -7
        for value in jax.tree.leaves(made):
            np.testing.assert_array_equal(np.unique(value), [1], err_msg=f"{data.size} at {data.ctypes.data % 64}")


class OnlyDlpack:
    def __init__(self, data):
        self.data = data

    def __dlpack__(self, **options):
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.data.__dlpack_device__()


MAKERS = {
    "tensor": lambda data: tj.tensor(data).value,
    "with a dtype": lambda data: tj.tensor(data, dtype=jnp.float32).value,
    "on a device": lambda data: tj.tensor(data, device=jax.devices()[0]).value,
    "in a list": lambda data: tj.tensor([data, data]).value,
    "a memoryview": lambda data: tj.tensor(memoryview(data)).value,
    "dlpack": lambda data: tj.tensor(OnlyDlpack(data)).value,
    "gradient": lambda data: [grads := tj.Gradients(), key := tj.TensorId(), grads.insert(key, data), grads[key]][-1],
}


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_made_of_an_array(name):
    holds_ones(MAKERS[name])


def ones(like):
    return tj.tensor(jnp.ones(like.shape), requires_grad=True)


def kept_by_backward(data):
    """The gradient of a product reads the other factor, long after the call."""
    x = ones(data)
    y = x * data
    return lambda: tj.backward(y)[x]


def kept_by_pullback(data):
    _, pullback = tj.vjp(lambda x, y: x * y, jnp.ones(data.shape), data)
    return lambda: pullback(jnp.ones(data.shape))[0]


def value_of(result):
    return lambda: result.value


def seeded(data):
    x = ones(data)
    gradient = tj.backward(x * 1, seed=data)[x]
    return lambda: gradient


def jitted(data):
    result = tj.jit(lambda x: x * 1)(data)
    return lambda: result


READERS = {
    "operand": kept_by_backward,
    "reflected operand": lambda data: value_of(data * ones(data)),
    "function": lambda data: value_of(tnp.multiply(ones(data), data)),
    "lifted function": lambda data: value_of(tj.lift(lambda x, y: x * y)(ones(data), data)),
    "argument of vjp": kept_by_pullback,
    "seed": seeded,
    "jit": jitted,
    "vmap": lambda data: value_of(tj.vmap(lambda x, y: x * y)(ones(data), data)),
}


@pytest.mark.parametrize("name", one_in(2, READERS))
def test_what_reads_an_array(name):
    for data in buffers((3, 1000, 65_537, 1_000_000)):
        read = READERS[name](data)
        data[:] = -7
        np.testing.assert_array_equal(np.unique(read()), [1], err_msg=f"{data.size} at {data.ctypes.data % 64}")


def test_other_memory():
    numbers, raw = array.array("f", [1.0, 2.0]), bytearray(b"\x01\x02")
    made = tj.tensor(numbers), tj.tensor(raw)
    numbers[0] = raw[0] = 9
    assert [t.tolist() for t in made] == [[1.0, 2.0], [1, 2]]


def test_what_jax_converts_itself_is_left_to_it():
    class Wrapped:
        def __jax_array__(self):
            return jnp.arange(3.0)

        def __array__(self, dtype=None, copy=None):
            raise AssertionError("not asked")

    assert tj.tensor(Wrapped()).tolist() == [0.0, 1.0, 2.0]
