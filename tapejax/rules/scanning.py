"""How a scan goes back: as a scan in the other direction.

What a step's backward reads comes, in this order of preference, from the loop's own operands and
results; from one value computed before the loop, if no step changes it; from a stack with one
entry per step, which the forward loop returns besides its results.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import compress as chosen
from typing import Any

from jax import lax
from jax.extend.core.primitives import add_jaxvals_p

from tapejax.ground import compat
from tapejax.ground.accumulation import added
from tapejax.program.program import Eqn, Program, run_eqns
from tapejax.program.tracing import trace
from tapejax.rules.registry import zeros_like


@dataclass(slots=True)
class Scan:
    """A scan's body as a program, and how its operands (consts, carry, xs) and results (carry, ys) split."""

    body: Program
    n_consts: int
    n_carry: int
    length: int
    reverse: bool
    unroll: int | bool

    @classmethod
    def of(cls, eqn, tools) -> Scan:
        n_consts, n_carry = compat.scan_counts(eqn.params, len(eqn.inputs))
        body = tools.flatten(eqn.params["jaxpr"])
        return cls(body, n_consts, n_carry, eqn.params["length"], eqn.params["reverse"], eqn.params["unroll"])

    def split_in(self, values) -> tuple[list[Any], list[Any], list[Any]]:
        end = self.n_consts + self.n_carry
        return list(values[: self.n_consts]), list(values[self.n_consts : end]), list(values[end:])

    def split_out(self, values) -> tuple[list[Any], list[Any]]:
        return list(values[: self.n_carry]), list(values[self.n_carry :])

    def run(self, step, init, xs, *, backwards=False):
        """lax.scan of a step in this loop's direction, or in the opposite one."""
        options = {"length": self.length, "reverse": self.reverse != backwards, "unroll": self.unroll}
        return lax.scan(step, init, xs, **options)

    def invariant(self) -> tuple[set[int], list[Eqn]]:
        """The slots that are the same at every step, and the equations that compute them."""
        consts, carry, _ = self.split_in(self.body.inputs)
        carried, _ = self.split_out(self.body.outputs)
        slots = {*self.body.constants, *consts, *(a for a, b in zip(carry, carried, strict=True) if a == b)}
        eqns = []
        for eqn in self.body.eqns:
            if slots.issuperset(eqn.inputs) and not eqn.has_effects:
                slots.update(eqn.outputs)
                eqns.append(eqn)
        return slots, eqns


@dataclass(slots=True)
class Kept:
    """Where the values that a step's backward reads are found after the loop."""

    operands: dict[int, int]  # slot -> position of the scan's operand
    results: dict[int, int]  # slot -> position of the scan's result (a stack)
    shifted: dict[int, tuple[int, int]]  # slot -> (initial operand, result with the later ones)
    once: list[int]  # slots computed before the loop
    stacked: list[int]  # slots that get a stack of their own

    @classmethod
    def of(cls, loop: Scan, slots, invariant) -> Kept:
        consts, carry, xs = loop.split_in(loop.body.inputs)
        carried, ys = loop.split_out(loop.body.outputs)
        same = [slot for slot in carry if slot in invariant]
        readable = {*consts, *same, *xs}
        operand_of = {slot: i for i, slot in enumerate(loop.body.inputs) if slot in readable}
        result_of = {slot: loop.n_carry + i for i, slot in enumerate(ys)}
        kept = cls({}, {}, {}, [], [])
        for slot in dict.fromkeys(slots):
            if slot in operand_of:
                kept.operands[slot] = operand_of[slot]
            elif slot in result_of:
                kept.results[slot] = result_of[slot]
            elif slot in carry and (later := carried[carry.index(slot)]) in result_of:
                kept.shifted[slot] = (loop.n_consts + carry.index(slot), result_of[later])
            elif slot in invariant:
                kept.once.append(slot)
            else:
                kept.stacked.append(slot)
        return kept


class BackScan:
    """A scan with its derivative."""

    def __init__(self, loop: Scan, back):
        self.loop, self.back = loop, back
        invariant, before = loop.invariant()
        once = {id(eqn) for eqn in before}
        invariant.update(slot for eqn, _, extras, _ in back.steps if id(eqn) in once for slot in extras)
        self.before, self.invariant = before, invariant
        self.each = [eqn for eqn in loop.body.eqns if id(eqn) not in once]
        self.again_before = [eqn for eqn in back.recompute if id(eqn) in once]
        self.again_each = [eqn for eqn in back.recompute if id(eqn) not in once]
        self.kept = kept = Kept.of(loop, back.kept_slots, invariant)
        self.saves_in = tuple(sorted({*kept.operands.values(), *(i for i, _ in kept.shifted.values())}))
        self.saves_out = tuple(sorted({*kept.results.values(), *(j for _, j in kept.shifted.values())}))

    @property
    def extra_avals(self) -> tuple[Any, ...]:
        avals, kept = self.back.avals, self.kept
        stacks = [compat.stacked_aval(avals[slot], self.loop.length) for slot in kept.stacked]
        return (*(avals[slot] for slot in kept.once), *stacks)

    def forward(self, operands):
        loop, body, kept = self.loop, self.loop.body, self.kept
        consts, init, xs = loop.split_in(operands)
        const_slots, carry_slots, x_slots = loop.split_in(body.inputs)
        fixed = body.constants | dict(zip([*const_slots, *carry_slots], [*consts, *init], strict=True))
        self.back.run(self.before, fixed)

        def step(carry, x):
            env = fixed | dict(zip([*carry_slots, *x_slots], [*carry, *x], strict=True))
            self.back.run(self.each, env)
            carry, y = loop.split_out([env[slot] for slot in body.outputs])
            return carry, (y, [env[slot] for slot in kept.stacked])

        carry, (y, stacks) = loop.run(step, init, xs)
        return [*carry, *y], [*(fixed[slot] for slot in kept.once), *stacks]

    def found(self, saved) -> tuple[dict[int, Any], dict[int, Any]]:
        """What was kept: the values that stay the same, and the stacks, by slot."""
        loop, kept = self.loop, self.kept
        n_in, n_out = len(self.saves_in), len(self.saves_out)
        operands = dict(zip(self.saves_in, saved[:n_in], strict=True))
        results = dict(zip(self.saves_out, saved[n_in : n_in + n_out], strict=True))
        extras = dict(zip([*kept.once, *kept.stacked], saved[n_in + n_out :], strict=True))
        first_x = loop.n_consts + loop.n_carry
        fixed = loop.body.constants | {slot: operands[i] for slot, i in kept.operands.items() if i < first_x}
        fixed.update((slot, extras[slot]) for slot in kept.once)
        fixed.update((slot, results[j][0]) for slot, j in kept.results.items() if slot in self.invariant)
        self.back.run(self.again_before, fixed)
        stacks = {slot: operands[i] for slot, i in kept.operands.items() if i >= first_x}
        stacks.update((slot, results[j]) for slot, j in kept.results.items() if slot not in self.invariant)
        for slot, (i, j) in kept.shifted.items():
            first, later = lax.expand_dims(operands[i], [0]), results[j]
            parts = [later[1:], first] if loop.reverse else [first, later[:-1]]
            stacks[slot] = lax.concatenate(parts, 0)
        stacks.update((slot, extras[slot]) for slot in kept.stacked)
        return fixed, stacks

    def backward(self, saved, cts):
        loop = self.loop
        ct_carry, ct_ys = loop.split_out(cts)
        if loop.length == 0:
            return [None] * loop.n_consts + ct_carry + [None] * (len(loop.body.inputs) - loop.n_consts - loop.n_carry)
        fixed, stacks = self.found(saved)
        program, present, slots = self.one_step_back(fixed, list(stacks), ct_carry, ct_ys)
        steps = StepsBack(loop, program, present, slots, self.carry_avals)
        return steps.run(list(chosen(ct_carry, present)), [*drop_none(ct_ys), *stacks.values()])

    @property
    def carry_avals(self):
        return [self.back.avals[slot].strip_weak_type() for slot in self.loop.split_out(self.loop.body.outputs)[0]]

    def one_step_back(self, fixed, stack_slots, ct_carry, ct_ys):
        """The program of one step's backward; which carries have a cotangent; the slot of each input's, or None.

        A carry without a cotangent after the last step may get one from the ys: found by trying.
        """
        loop, avals = self.loop, self.back.avals
        y_slots = loop.split_out(loop.body.outputs)[1]
        y_avals = [avals[slot].strip_weak_type() for slot, ct in zip(y_slots, ct_ys, strict=True) if ct is not None]
        present = [ct is not None for ct in ct_carry]
        while True:
            flags: list[bool] = []

            def step(cts, y_cts, values, present=present, flags=flags):
                cts, y_cts = iter(cts), iter(y_cts)
                env = fixed | dict(zip(stack_slots, values, strict=True))
                self.back.run(self.again_each, env)
                out_cts = [next(cts) if there else None for there in present]
                out_cts += [None if ct is None else next(y_cts) for ct in ct_ys]
                found = self.back.pull(env, out_cts)
                flags[:] = [ct is not None for ct in found]
                return drop_none(found)

            carry_avals = list(chosen(self.carry_avals, present))
            program, _ = trace(step, (carry_avals, y_avals, [avals[slot] for slot in stack_slots]))
            grown = [a or b for a, b in zip(present, loop.split_in(flags)[1], strict=True)]
            if grown == present:
                outputs = iter(program.outputs)
                return program, present, [next(outputs) if flag else None for flag in flags]
            present = grown


class StepsBack:
    """The backward of one step, run over all steps from the last to the first.

    Cotangents of consts are sums over the steps, those of carries go from step to step, those of xs are stacks.

    program: one step's backward, of the carries' cotangents and the stacks' entries. present: which carries have
    a cotangent. slots: for each operand of the scan the slot of its cotangent, or None.
    """

    def __init__(self, loop: Scan, program: Program, present, slots, carry_avals):
        self.loop, self.program, self.present = loop, program, present
        self.ct_slots, self.x_slots = program.inputs[: sum(present)], program.inputs[sum(present) :]
        self.const_slots, carry_slots, self.out_slots = loop.split_in(slots)
        self.carries = list(chosen(zip(carry_slots, carry_avals, strict=True), present))
        self.sums = sums = Sums(program, drop_none(self.const_slots), self.x_slots)
        self.late = late = Late(program, sums.in_loop, drop_none(self.out_slots), self.x_slots)
        in_loop = [slot for slot in drop_none(self.out_slots) if slot not in late.made]
        self.stacked = list(dict.fromkeys([*sums.factors, *late.factors, *in_loop]))
        read = {slot for eqn in late.in_loop for slot in eqn.inputs}
        read.update(self.stacked, sums.added, drop_none(carry_slots))
        self.read_slots = [slot for slot in self.x_slots if slot in read]

    def step(self, carry, x):
        totals, cts = carry
        env = self.program.constants | dict(zip([*self.ct_slots, *self.read_slots], [*cts, *x], strict=True))
        run_eqns(self.late.in_loop, env)
        totals = [added(total, env[slot]) for total, slot in zip(totals, self.sums.added, strict=True)]
        cts = [zeros_like(aval) if slot is None else env[slot] for slot, aval in self.carries]
        return (totals, cts), [env[slot] for slot in self.stacked]

    def start(self, ct_carry):
        """What the loop starts from: sums of nothing, and the cotangents of the last carries."""
        avals = self.program.avals
        totals = [compat.as_typed(zeros_like(avals[slot]), avals[slot]) for slot in self.sums.added]
        cts = [zeros_like(aval) if ct is None else ct for ct, (_, aval) in zip(ct_carry, self.carries, strict=True)]
        types = [aval if slot is None else avals[slot] for slot, aval in self.carries]
        return totals, [compat.as_typed(ct, aval) for ct, aval in zip(cts, types, strict=True)]

    def run(self, ct_carry, xs) -> list[Any]:
        """The cotangents of the scan's operands, from those of its last carries and the stacks that are read."""
        xs = dict(zip(self.x_slots, xs, strict=True))
        read = [xs[slot] for slot in self.read_slots]
        (totals, first), stacks = self.loop.run(self.step, self.start(ct_carry), read, backwards=True)
        env = self.program.constants | xs | dict(zip(self.stacked, stacks, strict=True))
        run_eqns(self.late.eqns, env)
        ct_xs = [None if slot is None else env[slot] for slot in self.out_slots]
        self.sums.finish(env, totals)
        first = iter(first)
        return [
            *(None if slot is None else env[slot] for slot in self.const_slots),
            *(next(first) if there else None for there in self.present),
            *ct_xs,
        ]


class Sums:
    """How the cotangents of consts, sums over all steps, are computed.

    A step's part of a weight's gradient is mostly a product, often of factors much smaller than
    itself. Then the factors are stacked, and one product after the loop contracts the steps as well.
    The rest is added up in the loop. Transposes and sums of such parts are done once, after the loop.
    """

    SMALLER = 4  # measured on CPU: an LSTM gains a third when its batch is a quarter of its width, loses when equal
    LATER = (lax.transpose_p, lax.neg_p, lax.add_p, add_jaxvals_p)

    def __init__(self, program: Program, slots, x_slots):
        self.program = program
        self.added: list[int] = []
        self.factors: list[int] = []
        self.products: list[Eqn] = []
        self.after: list[Eqn] = []
        maker = {slot: eqn for eqn in program.eqns for slot in eqn.outputs}
        uses = Counter([slot for eqn in program.eqns for slot in eqn.inputs] + program.outputs)
        at_hand = set(x_slots)
        pending = list(dict.fromkeys(slots))
        while pending:
            slot = pending.pop()
            eqn = maker.get(slot) if uses[slot] == 1 else None
            same_shape = eqn and all(program.avals[i].size == program.avals[slot].size for i in eqn.inputs)
            if eqn and eqn.primitive in self.LATER and same_shape:
                self.after.append(eqn)
                pending.extend(eqn.inputs)
            elif eqn and eqn.primitive is lax.dot_general_p and program.constants.keys().isdisjoint(eqn.inputs):
                new = {i for i in eqn.inputs if i not in at_hand}
                if self.SMALLER * sum(program.avals[i].size for i in new) <= program.avals[slot].size:
                    self.products.append(eqn)
                    self.factors.extend(new)
                    at_hand |= new
                else:
                    self.added.append(slot)
            else:
                self.added.append(slot)
        self.added = list(dict.fromkeys(self.added))
        later = {id(eqn) for eqn in [*self.after, *self.products]}
        self.after = [eqn for eqn in program.eqns if id(eqn) in {id(e) for e in self.after}]
        self.in_loop = [eqn for eqn in program.eqns if id(eqn) not in later]

    def finish(self, env, totals) -> None:
        """After the loop: env has the stacks; put in the sums over all steps."""
        env_after = dict(zip(self.added, totals, strict=True))
        for eqn in self.products:
            env_after[eqn.outputs[0]] = product_over_steps(env[eqn.inputs[0]], env[eqn.inputs[1]], **eqn.params)
        run_eqns(self.after, env_after)
        env.update(env_after)


class Late:
    """Cotangents of xs that need not be computed in the loop.

    Where such a cotangent is the last thing a step computes, element by element, it is computed once
    for all steps, from stacks: those that went into the loop, and those of the other factors, if these
    are fewer than the cotangents. A recurrence h = a * h + b * x is left with one stack instead of three.
    """

    ELEMENTWISE = (lax.mul_p, lax.div_p, lax.neg_p, lax.add_p, lax.sub_p, add_jaxvals_p)

    def __init__(self, program: Program, eqns, slots, x_slots):
        avals, at_hand = program.avals, set(x_slots)
        maker = {eqn.outputs[0]: eqn for eqn in eqns if eqn.primitive in self.ELEMENTWISE and not eqn.has_context}
        uses = Counter([slot for eqn in program.eqns for slot in eqn.inputs] + program.outputs)

        def stacks(eqn, slot) -> bool:
            """Whether the equation does to stacks what it does to the values of one step."""
            alike = [i for i in eqn.inputs if i not in program.constants or avals[i].shape]
            return compat.is_plain(avals[slot]) and all(
                i not in program.constants and avals[i].shape == avals[slot].shape for i in alike
            )

        made = [slot for slot in slots if slot in maker and uses[slot] == 1 and stacks(maker[slot], slot)]
        read = dict.fromkeys(i for slot in made for i in maker[slot].inputs if i not in program.constants)
        factors = [i for i in read if i not in at_hand]
        size = lambda slots: sum(avals[i].size for i in slots)
        if size(factors) >= size(made):
            made, factors = [], []
        self.made, self.factors = set(made), factors
        self.eqns = [maker[slot] for slot in made]
        self.in_loop = [eqn for eqn in eqns if eqn.outputs[0] not in self.made]


def product_over_steps(x, y, *, dimension_numbers, **params):
    """The sum over steps of dot_general(x[step], y[step])."""
    (x_sum, y_sum), (x_batch, y_batch) = dimension_numbers
    later = lambda axes: [axis + 1 for axis in axes]
    numbers = ((0, *later(x_sum)), (0, *later(y_sum))), (later(x_batch), later(y_batch))
    return lax.dot_general(x, y, numbers, **params)


def drop_none(values) -> list[Any]:
    return [value for value in values if value is not None]
