"""jax.numpy over Tensors: every name of jax.numpy, with its signature and docstring.

Functions take Tensors, jax arrays, NumPy arrays, numbers, and sequences of them. With a Tensor among
them they return Tensors, and are recorded; without, they are jax's own.

>>> import tapejax as tj, tapejax.numpy as tnp
>>> x = tj.tensor([1.0, 2.0], requires_grad=True)
>>> tj.backward(tnp.sum(tnp.concatenate([x, 3 * x])))[x]
Array([4., 4.], dtype=float32)
>>> tnp.arange(3)
Array([0, 1, 2], dtype=int32)
"""

from tapejax.ops.surface import mirror as _mirror

__getattr__, __dir__, __all__ = _mirror(__name__, globals())
