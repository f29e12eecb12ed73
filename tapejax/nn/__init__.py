"""jax.nn over Tensors, and what networks need beyond it; each function is a single action.

>>> import tapejax as tj, tapejax.nn as tnn
>>> logits = tj.tensor([[2.0, 0.0]], requires_grad=True)
>>> with tj.Tape() as tape:
...     loss = tnn.cross_entropy(logits, [0])
>>> len(tape), tape.backward(loss)[logits].round(3)
(1, Array([[-0.119,  0.119]], dtype=float32))
"""

from tapejax.nn import layers as _layers
from tapejax.nn.labels import LabelledOp as _LabelledOp
from tapejax.ops.surface import mirror as _mirror
from tapejax.ops.surface.op import Op as _Op
from tapejax.tensor.generator import next_key as _next_key

# Each function of `layers` with its options.
_OPTIONS = {
    "layer_norm": "axis",
    "rms_norm": "axis",
    "group_norm": "groups",
    "batch_norm": "axis training",
    "dropout": "shape",
    "conv": "strides padding dilation groups",
    "max_pool": "window strides padding",
    "avg_pool": "window strides padding count_padding",
    "embedding": "",
    "binary_cross_entropy": "",
    "ssm_scan": "axis reverse parallel",
    "selective_scan": "parallel",
}
globals().update(
    {name: _Op(getattr(_layers, name), name, __name__, options.split()) for name, options in _OPTIONS.items()}
)
cross_entropy = _LabelledOp(_layers.cross_entropy, "cross_entropy", __name__, ["axis", "label_smoothing"])
_dropout = globals().pop("dropout")


def dropout(x, rate, *, key=None, shape=None, training=True):
    """x with a share `rate` of its elements set to zero and the rest scaled up; x itself unless training.

    key: a random key; by default tapejax.random's generator gives one. shape: of the mask, broadcast to x.
    training: a Python bool (under jit a static argument).

    >>> import tapejax as tj
    >>> sorted(set(tj.nn.dropout(tj.tensor([1.0] * 100), 0.5).tolist()))
    [0.0, 2.0]
    """
    if not training:
        return x
    return _dropout(x, rate, key=_next_key() if key is None else key, shape=shape)


__getattr__, __dir__, __all__ = _mirror(__name__, globals())
