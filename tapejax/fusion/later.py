"""Gradients that nobody has asked for yet.

`backward(loss)` is for everything that the loss was computed from. Most of that nobody holds any more: the results on
the way. Their gradients are computed when somebody asks for one of them, or for all. Until then what they are computed
from is kept. So this is done only where that takes no more memory than they would.

Not with several devices: there all processes run the same programs, whoever looks at what.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tapejax.errors import DeletedError
from tapejax.fusion.fused import Backward, Origin, backward_of
from tapejax.fusion.layout import call_of
from tapejax.ground.compat import Settings
from tapejax.ground.placement import is_gone
from tapejax.ground.where import user_line


class Later:
    """The gradients that a backward left out; see `Unasked`.

    results: the numbers of the identities of the block's results, by call; there: those of what the backward did not leave out.
    origin: what these are computed from; None once they are. settings, device: of jax, at the time.
    """

    __slots__ = ("backward", "computed", "device", "origin", "results", "settings", "there")

    def __init__(
        self,
        backward: Backward,
        results: Sequence[Any],
        there: list[int],
        origin: Origin,
        settings: Settings,
        device: Any,
    ) -> None:
        self.backward, self.results, self.there = backward, results, there
        self.origin: Origin | None = origin
        self.settings, self.device = settings, device
        self.computed: dict[int, Any] | None = None

    def __len__(self) -> int:
        return len(self.backward.left_out)

    def numbers(self) -> list[int]:
        return [self._number(slot) for slot in self.backward.left_out]

    def _number(self, slot: int) -> int:
        index, position = call_of(slot)
        number = self.results[index]
        return number if type(number) is int else number[position]

    def order(self) -> list[tuple[int, bool]]:
        left_out = set(self.backward.left_out)
        there = iter(self.there)
        return [
            (self._number(slot), True) if slot in left_out else (next(there), False)
            for slot in self._everything.outputs
        ]

    @property
    def _everything(self) -> Backward:
        of = self.backward
        return backward_of(of.layout, of.present, of.ones, None, None)

    def gradients(self) -> dict[int, Any]:
        origin = self.origin  # read before what is computed: it goes once that is there
        if self.computed is None:
            assert origin is not None
            everything = self._everything
            with self.settings.at(self.device):
                found = dict(zip(everything.outputs, _run(everything, origin), strict=True))
            self.computed = {self._number(slot): found[slot] for slot in self.backward.left_out}
        self.origin = None
        return self.computed


def _run(everything: Backward, origin: Origin) -> list[Any]:
    if any(map(is_gone, (*origin.values, *origin.cts))):
        raise DeletedError(
            "what this gradient would be computed from was donated to a jitted function, or deleted: it is gone",
            at=user_line(),
            fix="ask for it before that, or hold its tensor, or name it in wrt: then backward computes it at once",
        )
    if origin.ran:
        everything.together.ask("asked for later")
        return everything.run(origin.values, origin.cts, None)
    both = everything.returning(())
    both.together.ask("asked for later")
    return both.run(origin.values, origin.cts)[1]
