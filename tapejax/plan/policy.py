"""When calls are compiled together as one program, and when each runs by a program of its own.

Decided by cost, and never by a clock: the same calls lead to the same programs, in every process. Costs are
counted in equations: what XLA needs to compile one more of them (on a CPU between 0.2 and 5 ms, 2 ms as a rule).

- Together is chosen at the first visit if it costs no more than to compile, one by one, what is not compiled yet.
- A part that was compiled within others again and again is worth compiling by itself: what was spent on it there is
  taken off its price. So calls that come in ever new combinations end up with programs of their own.
- Where each call has its own program already, every visit loses a little. When the sum has reached what compiling
  together costs, that is done: never worse than twice the best choice made in hindsight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tapejax.plan.tiers import Tiers

START = 20.0  # compiling a program, however small: 40 ms
CALL = 1 / 100  # what a call by a program of its own loses at each visit: 20 us
BYTE = 1 / 10e6  # what it loses for each byte that is written and read again: at 5 GB/s


class Part:
    """What can be compiled by itself, or as a part of a larger program.

    size: its equations; moved: the bytes that it moves; spent: what compiling it within larger programs has cost so far.
    """

    __slots__ = ("compiled", "moved", "size", "spent")

    def __init__(self, size: int, compiled: Any, moved: float = 0.0) -> None:
        self.size, self.compiled, self.moved = size, compiled, moved
        self.spent = 0.0

    @property
    def price(self) -> float:
        """What a program of its own would cost now."""
        return 0.0 if self.compiled.is_compiled else max(0.0, START + self.size - self.spent)


class Together:
    """The choice for one stretch of calls, made anew at each visit until they are compiled together.

    reason: why they were; None as long as they are not.
    failures: the errors that its program raised. Then its calls run one by one, so that the one that fails is named,
    and the program is not tried again before that has paid once more.
    """

    __slots__ = ("cost", "failures", "loss", "lost", "parts", "reason")

    def __init__(self, parts: Sequence[Part], n_bytes: int) -> None:
        self.parts = parts
        self.cost = START + sum([part.size for part in parts])
        self.loss = CALL * len(parts) + BYTE * n_bytes
        self.lost = 0.0
        self.reason: str | None = None
        self.failures: list[Exception] = []

    @property
    def tiers(self) -> Tiers:
        return Tiers(self.cost, self.parts)

    @property
    def price(self) -> float:
        """The least that it would cost now to run these calls, in whichever way."""
        return 0.0 if self.reason else min(self.cost, self.price_apart)

    @property
    def price_apart(self) -> float:
        return sum([part.price for part in dict.fromkeys(self.parts)])

    def pays(self, otherwise: Iterable[Together] = ()) -> bool:
        """Whether they run together at this visit; otherwise: the stretches that would run instead, if not single calls."""
        if self.reason is not None:
            return True
        instead = [one.price for one in otherwise]
        apart = sum(instead) if instead else self.price_apart
        if apart >= self.cost and not self.failures:
            self.reason = "less to compile than one by one"
        elif self.lost >= self.cost:
            self.reason = "came often"
        else:
            self.lost += self.loss if self.failures else self.loss + apart
            return False
        for part in self.parts:
            part.spent += self.cost / len(self.parts)
        return True

    def ask(self, reason: str) -> None:
        """They run together from now on, whatever that costs."""
        self.reason = self.reason or reason

    def run(self, program: Callable[..., Any], *args: Any) -> Any:
        """Their program; that it raised is noted."""
        try:
            return program(*args)
        except Exception as error:
            self.failures = [*self.failures[-3:], error]
            self.reason, self.lost = None, 0.0
            raise

    @property
    def why(self) -> str:
        """The reason, or what its program raised last."""
        failed = f"it raised {type(self.failures[-1]).__name__}; its calls run one by one" if self.failures else ""
        return self.reason or failed
