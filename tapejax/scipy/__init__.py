"""jax.scipy over Tensors: special, linalg, stats, signal, ndimage, interpolate, ... as jax has them."""

from tapejax.ops.surface import mirror as _mirror
from tapejax.ops.surface.mirror import submodule as _submodule
from tapejax.ops.surface.tables import MODULES as _MODULES

__getattr__, __dir__, __all__ = _mirror(__name__, globals())

for _name in _MODULES:
    if _name.startswith(__name__ + "."):
        _submodule(_name)
