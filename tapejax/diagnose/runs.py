"""A program that ran, with everything there was on the way: each value, and each cotangent going back.

The whole pass is one compiled program whose results are all its intermediate values. Programs inside
(loops, branches, functions with a rule of their own) are opened when somebody looks into them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from jax import lax

from tapejax.calculus.reverse import Options, Reversed, fit, is_inexact, reverse
from tapejax.diagnose.elements import to_numpy
from tapejax.ground import compat
from tapejax.program.program import Eqn, Program


def compiled(function: Any, *, runs_once: bool = True, **options: Any) -> Any:
    """jax.jit, with each number rounded where the program says so: else an overflow in float16 may not be seen.

    runs_once: not worth the compiler's time.
    """
    how: dict[str, Any] = {}
    if jax.default_backend() in ("cpu", "gpu"):
        how["xla_allow_excess_precision"] = False
        if runs_once:
            how["xla_backend_optimization_level"] = 0
    return jax.jit(function, compiler_options=how, **options)


class Probe:
    """A program, ready to be run with all its values looked at.

    wrt: the inputs that gradients are wanted for. wanted: the outputs that cotangents arrive for.
    """

    def __init__(
        self, program: Program, wrt: Sequence[bool], wanted: Sequence[bool] | None = None, options: Options = Options()
    ):
        self.program, self.options = program, options
        self.back: Any = reverse(program, wrt, options, wanted=wanted) if any(wrt) else None
        self.producer = {slot: eqn for eqn in program.eqns for slot in eqn.outputs}
        self.inside: dict[Any, Any] = {}  # what was opened of it, by equation
        self._run = compiled(self.trace)

    @cached_property
    def readers(self) -> dict[int, list[Eqn]]:
        found: dict[int, list[Eqn]] = {}
        for eqn in self.program.eqns:
            for slot in eqn.inputs:
                found.setdefault(slot, []).append(eqn)
        return found

    @cached_property
    def terms(self) -> dict[int, list[tuple[int, int]]]:
        """By slot, the (step, operand) whose cotangents are added up for it, in the order of backward."""
        found: dict[int, list[tuple[int, int]]] = {}
        steps = self.back.steps if self.back is not None else []
        for number in range(len(steps) - 1, -1, -1):
            eqn, _, _, active = steps[number]
            for at, (slot, flag) in enumerate(zip(eqn.inputs, active, strict=True)):
                if flag:
                    found.setdefault(slot, []).append((number, at))
        return found

    def trace(self, args: Sequence[Any], cts: Sequence[Any]) -> tuple[Any, Any, Any]:
        """(values by slot, cotangents by slot, for each step the cotangents it sends on): under jit."""
        env = dict(self.program.constants)
        env.update(zip(self.program.inputs, args, strict=True))
        run_eqns(self.program.eqns, env, self.back)
        if self.back is None:
            return env, {}, []
        sums, sent = pull(self.back, env, cts)
        return env, sums, sent

    def run(self, args: Sequence[Any], cts: Sequence[Any]) -> Run:
        env, sums, sent = self._run(list(args), list(cts))
        return Run(self, env, sums, sent, list(cts))


def as_written(values: Sequence[Any]) -> list[Any]:
    """The values, out of the compiler's sight: x * 1e30 * 1e30 must not become x * inf, nor a sum be rounded later."""
    inexact = [i for i, value in enumerate(values) if value is not None and is_inexact(value)]
    found = list(values)
    if inexact:
        for i, value in zip(inexact, lax.optimization_barrier([values[i] for i in inexact]), strict=True):
            found[i] = value
    return found


def run_eqns(eqns: Sequence[Eqn], env: dict[int, Any], back: Reversed | None = None) -> None:
    """Run equations one by one, each also giving what its own backward wants kept."""
    for eqn in eqns:
        operands = [env[slot] for slot in eqn.inputs]
        own = None if back is None else back.augmented.get(id(eqn))
        if own is None:
            slots, values = eqn.outputs, eqn.bind(operands)
        else:
            step, extra_slots = own
            results, extras = step.forward(operands)
            slots, values = (*eqn.outputs, *extra_slots), [*results, *extras]
        env.update(zip(slots, as_written(values), strict=True))


def pull(back: Reversed, env: dict[int, Any], cts: Sequence[Any]) -> tuple[dict[int, Any], list[Any]]:
    """`Reversed.pull` that keeps all: the sum at every slot, and what every step adds to those of its operands."""
    sums: dict[int, Any] = {}

    def add(slot: int, ct: Any) -> None:
        if slot in sums:
            with compat.mesh_context(back.avals[slot]):
                (ct,) = as_written([lax.add(sums[slot], ct)])
        sums[slot] = ct

    for slot, ct in zip(back.program.outputs, cts, strict=True):
        if ct is not None and is_inexact(back.avals[slot]):
            add(slot, ct)
    sent: list[Any] = [None] * len(back.steps)
    for number in range(len(back.steps) - 1, -1, -1):
        eqn, _, _, active = back.steps[number]
        out_cts = [sums.get(slot) for slot in eqn.outputs]
        if all(ct is None for ct in out_cts):
            continue
        in_cts = as_written(step_back(back, number, env, out_cts))
        sent[number] = in_cts
        for slot, ct, flag in zip(eqn.inputs, in_cts, active, strict=True):
            if flag and ct is not None:
                add(slot, ct)
    return sums, sent


def step_back(back: Reversed, number: int, env: Any, out_cts: Sequence[Any]) -> list[Any]:
    """The cotangents that one step makes of those of its results, each in its operand's shape."""
    eqn, step, _, active = back.steps[number]
    with eqn.context:
        found = step.backward(saved_of(back, number, env), out_cts)
        return [
            fit(ct, back.avals[slot], eqn) if flag and ct is not None else None
            for slot, ct, flag in zip(eqn.inputs, found, active, strict=True)
        ]


def saved_slots(back: Reversed, number: int) -> list[int]:
    eqn, step, extra_slots, _ = back.steps[number]
    return [*(eqn.inputs[i] for i in step.saves_in), *(eqn.outputs[i] for i in step.saves_out), *extra_slots]


def saved_of(back: Reversed, number: int, env: Any) -> list[Any]:
    return [env[slot] for slot in saved_slots(back, number)]


@dataclass
class Run:
    """What a probe found. `value` and `ct` give arrays of numpy, by slot."""

    probe: Probe
    env: dict[int, Any]
    cts: dict[int, Any]
    sent: list[Any]
    seeds: list[Any]

    def __post_init__(self) -> None:
        self._values: dict[int, Any] = {}
        self._cts: dict[int, Any] = {}

    def value(self, slot: int) -> Any:
        if slot not in self._values:
            self._values[slot] = to_numpy(self.env[slot])
        return self._values[slot]

    def ct(self, slot: int) -> Any:
        if slot not in self._cts:
            self._cts[slot] = to_numpy(self.cts.get(slot))
        return self._cts[slot]

    def operands(self, eqn: Eqn) -> list[Any]:
        return [self.env[slot] for slot in eqn.inputs]

    def results_cts(self, eqn: Eqn) -> list[Any]:
        return [self.cts.get(slot) for slot in eqn.outputs]
