"""jax.nn.initializers over Tensors."""

from tapejax.ops.surface import mirror as _mirror

__getattr__, __dir__, __all__ = _mirror(__name__, globals())
