"""jax.lax over Tensors; scan, cond, while_loop and the like take functions over Tensors.

Each call of a function of functions is one action, whatever happens inside. Recorded Tensors that a
body closes over get their gradients too.

>>> import tapejax as tj, tapejax.lax as tlax
>>> w = tj.tensor(2.0, requires_grad=True)
>>> last, _ = tlax.scan(lambda c, x: (c * w + x, None), tj.tensor(1.0), tj.tensor([1.0, 1.0]))
>>> last.item(), tj.backward(last)[w].item()
(7.0, 5.0)
"""

from tapejax.ops.surface import mirror as _mirror

__getattr__, __dir__, __all__ = _mirror(__name__, globals())
