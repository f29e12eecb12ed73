"""A moment: the state that a function may read besides its arguments, kept to run the function in it again.

- the generator of `tapejax.random`, and NumPy's and Python's global generators;
- jax's settings in this thread: x64, matmul precision, default device, promotion, kind of random keys;
- jax's settings for the process, which is what threads started by the function see.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import numpy as np

from tapejax.tensor import generator

_SETTINGS = {
    "jax_enable_x64": jax.enable_x64,
    "jax_default_matmul_precision": jax.default_matmul_precision,
    "jax_default_device": jax.default_device,
    "jax_numpy_dtype_promotion": jax.numpy_dtype_promotion,
    "jax_numpy_rank_promotion": jax.numpy_rank_promotion,
    "jax_default_prng_impl": jax.default_prng_impl,
    "jax_threefry_partitionable": jax.threefry_partitionable,
}
_STATES = tuple(_SETTINGS.values())


class Moment:
    """The present state; `again()` brings it back for a while."""

    __slots__ = ("everywhere", "generator", "here", "others", "threads")

    def __init__(self) -> None:
        self.here = tuple([state.value for state in _STATES])
        self.everywhere = tuple([state.get_global() for state in _STATES])
        self.generator = generator.place()
        self.others = _others()
        self.threads = False

    def over(self) -> None:
        """The function has run: note whether threads that it started have drawn random keys."""
        before, after = self.generator, generator.place()
        self.threads = (before[1] or before[0])[2] != (after[1] or after[0])[2]

    def return_to(self) -> None:
        """Set every generator back to where it was, as if nothing had been drawn since."""
        generator.rewind(self.generator)
        if _others() is not self.others:
            _set_others(self.others)

    @contextmanager
    def settings(self) -> Iterator[None]:
        """jax's settings as they were. Left as they are found, also after an exception."""
        changed = {
            name: state.get_global()
            for (name, state), then in zip(_SETTINGS.items(), self.everywhere, strict=True)
            if state.get_global() != then
        }
        try:
            for name, then in zip(_SETTINGS, self.everywhere, strict=True):
                if name in changed:
                    jax.config.update(name, then)
            with ExitStack() as stack:
                for state, then in zip(_STATES, self.here, strict=True):
                    if state.value != then:
                        stack.enter_context(state(then))
                yield
        finally:
            for name, now in changed.items():
                jax.config.update(name, now)

    @contextmanager
    def randomness(self) -> Iterator[None]:
        """All generators as they were; afterwards they go on where they were found."""
        now = _others()
        if now is not self.others:
            _set_others(self.others)
        try:
            with generator.replaying(self.generator, threads=self.threads):
                yield
        finally:
            if _others() is not now:
                _set_others(now)


# --- NumPy's and Python's own generators ---------------------------------------------------------------

_last: tuple[Any, Any] | None = None  # most functions draw from neither: their moments share one copy


def _others() -> tuple[Any, Any]:
    global _last
    numpys, pythons, last = np.random.get_state(legacy=False), random.getstate(), _last
    if last is not None and _equal(last[0], numpys) and last[1] == pythons:
        return last
    _last = numpys, pythons
    return _last


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(value, b[key]) for key, value in a.items())
    return np.array_equal(a, b)


def _set_others(states: tuple[Any, Any]) -> None:
    np.random.set_state(states[0])
    random.setstate(states[1])
