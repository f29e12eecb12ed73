"""Plan: all that is decided once about an op; OpAction: what the op leaves on the tape."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp

from tapejax.calculus.reverse import Options, Reversed, reverse
from tapejax.errors import ConsumedTapeError, UnknownLengthError, explain
from tapejax.ground import compat
from tapejax.ground.caches import cached
from tapejax.ground.compat import X64
from tapejax.ground.placement import Shardings
from tapejax.ground.where import is_of_jax, line_of
from tapejax.plan.executables import Executable
from tapejax.plan.policy import Part
from tapejax.plan.stepwise import Place
from tapejax.plan.tiers import moved
from tapejax.program.program import Program, bytes_of_all
from tapejax.program.tracing import trace
from tapejax.rules.registry import RuleCall
from tapejax.tape.action import TapeAction, TensorId
from tapejax.tape.packed import force
from tapejax.tensor.tensor import Kind

_tree = jax.tree_util
_LEAF = _tree.tree_structure(0)


class Plan:
    """All that is decided once for a function at given kinds of arguments.

    forward(*values) -> the outputs, then the extras (one bare array if there is only one)
    backward(*kept, *cts) -> a tuple with one gradient per input that needs one
    """

    __slots__ = (
        "all_wrt", "backward", "bare", "draws", "drops", "effects", "examples", "flat_program", "foreign", "forward", "function", "keep",
        "keeps_all_inputs", "layouts", "moves", "n_bytes", "n_ids", "n_in", "n_out", "n_read", "n_results", "name", "op", "options", "out_kinds", "pick_wrt", "program", "records", "reversed", "rule",
        "settings", "shown", "single", "special", "steps_cache", "stepwise", "structure", "variants", "waits", "wrt", "x64",
    )  # fmt: skip

    def __init__(
        self, name: str, function: Callable[..., Any], avals: Sequence[Any], wrt: Sequence[bool], options: Options
    ):
        self.name, self.function, self.options = name, function, options
        self.op = camel(name)
        self.shown = ""  # what its line says of options
        self.settings = compat.Settings.now()
        self.variants: dict[Any, Plan] = {}  # of the same function under other settings of jax
        self.layouts: set[Any] = set()  # keys of the structures it is part of
        self.x64 = X64.value
        self.stepwise = False
        self.examples = list(avals)
        program, self.structure = trace(function, avals, ignore_custom_rules=options.ignore_custom_rules)
        self.flat_program = program
        inner = inspect.unwrap(function)
        if is_of_jax(inner) and not isinstance(getattr(inner, "__self__", None), Program):
            # One of jax's own, and no program of the user's: the line to show is that of each call.
            for eqn in program.eqns:
                eqn.located = False
        self.steps_cache: dict[Any, Any] = {}
        self.wrt = tuple(wrt)
        self.n_in, self.n_out = len(avals), len(program.outputs)
        self.records = any(wrt)
        # Its effects happen when it is called; and what the host does in a callback is none of a fused program's business.
        self.waits = compat.calls_host(program.eqns)
        self.moves = compat.moves(program.eqns)
        self.effects = self.waits or any(eqn.has_effects for eqn in program.eqns)
        self.draws = compat.draws_numbers(program.eqns)
        self.foreign: tuple[str, ...] = ()
        self.reversed: Reversed | None = None
        self.keep = _nothing
        self.keeps_all_inputs = False
        n_extra = 0
        if self.records:
            n_extra = self._differentiate(program)
        if not self.records:
            self.out_kinds = tuple(Kind.of(aval, False) for aval in program.out_avals)
        self.drops = not self.records and any(self.wrt)  # what needs a gradient goes in, and none comes out
        # What was called is what is differentiated: the function is never traced again for this plan.
        self.program: Any = program if self.reversed is None else self.reversed
        self.all_wrt = all(self.wrt)
        self.pick_wrt = _picker([i for i, wanted in enumerate(self.wrt) if wanted])
        self.n_ids = sum(self.wrt) if self.records else 0
        self.n_results = self.n_out + n_extra
        self.single = self.n_results == 1
        self.special = (
            self.effects or self.draws or self.moves or not self.n_out or (self.records and self.stepwise)
        )  # is not just deferred
        self.bare = self.n_out == 1 and self.structure == _LEAF  # returns an array, not a tuple or dict of them
        self.forward = Jitted(self._run_forward, name, program, name, moves=self.moves)
        self.n_bytes = bytes_of_all(program.out_avals)

    def _differentiate(self, program: Program) -> int:
        """Decide what to keep; the number of extras."""
        try:
            reversed_ = reverse(program, self.wrt, self.options)
        except UnknownLengthError:
            self.stepwise = True  # a loop that can only be followed step by step, on concrete values
            self.out_kinds = ()
            return 0
        if not any(reversed_.depends):
            self.records = False
            return 0
        self.reversed = reversed_
        self.foreign = reversed_.foreign
        self.out_kinds = tuple(Kind.of(aval, d) for aval, d in zip(program.out_avals, reversed_.depends, strict=True))
        n_extra = len(reversed_.extras)
        chosen = [*reversed_.saves_in, *(self.n_in + i for i in reversed_.saves_out)]
        chosen += [self.n_in + self.n_out + i for i in range(n_extra)]
        self.n_read = len(chosen)
        made = [*reversed_.saves_out, *range(self.n_out, self.n_out + n_extra)]
        self.rule = RuleCall(reversed_.saves_in, tuple(made), self._pull_as_rule)
        # The derivative of a backward that reads extras needs the inputs they were made from: kept too, last.
        self.keeps_all_inputs = n_extra > 0
        if n_extra:
            chosen += [i for i in range(self.n_in) if i not in reversed_.saves_in]
        self.keep = _picker(chosen)
        self.backward = Jitted(
            self.run_backward, f"{self.name}_backward", program, self.name, times=2, moves=self.moves
        )
        return n_extra

    def under(self, settings: compat.Settings, tensors: Sequence[Any]) -> Plan:
        """The plan of a call of the same function, made under other settings: these are in force now."""
        found = self.variants.get(settings)
        if found is None:
            try:
                found = Plan(self.name, self.function, [tensor.aval for tensor in tensors], self.wrt, self.options)
            except Exception as error:
                explain(error, f"{self.name} of {' '.join(a.str_short() for a in self.examples)}", of_jax=False)
                raise
            found.shown = self.shown
            self.variants[settings] = found
        return found

    def _run_forward(self, *values):
        if self.reversed is None:
            results = self.program.run(*values)
        else:
            outputs, extras = self.program.forward(*values)
            results = [*outputs, *extras]
        return results[0] if self.single else tuple(results)

    def run_backward(self, *arguments):
        kept, cts = arguments[: self.n_read], arguments[-self.n_out :]
        found = self.program.backward(kept, cts)
        return tuple(
            [
                jnp.zeros(aval.shape, aval.dtype) if ct is None else ct
                for ct, aval, wanted in zip(found, self.examples, self.wrt, strict=True)
                if wanted
            ]
        )

    def _pull_as_rule(self, saved: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        """`backward` as the rule of an equation has it: cotangents may be None, and there is one for each operand."""
        filled = [zeros_for(k.aval) if ct is None else ct for ct, k in zip(cts, self.out_kinds)]
        found = iter(self.backward(*saved, *filled))
        return [next(found) if wanted else None for wanted in self.wrt]

    def pull(self, arguments: Sequence[Any], shardings: Shardings) -> tuple[Any, ...]:
        """The gradients of the inputs that need one, which are given these shardings."""
        if not self.moves:
            return self.backward.laid_out(shardings)(*arguments)
        found = self.backward(*arguments)
        return found if shardings is None else tuple(map(jax.device_put, found, shardings))

    def __repr__(self) -> str:
        return f"Plan({self.name}: {', '.join(a.str_short() for a in self.examples)})"


def camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.strip("_<>").split("_")) or "Op"


def _nothing(values: Sequence[Any]) -> tuple[Any, ...]:
    return ()


def _picker(positions: list[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    if not positions:
        return _nothing
    if len(positions) == 1:
        (only,) = positions
        return lambda values: (values[only],)
    return itemgetter(*positions)


class Jitted(Part):
    """A function of arrays that is jitted, but not while jax traces a larger program.

    There its equations go straight into that program, which is quicker than to trace them apart and
    then copy them. Only what is long, or has programs inside, is traced apart the second time it comes.

    scope: what its equations are named within a larger program.
    times: how many equations it has for each one of the program.
    moves: whether it puts values on other devices, which no compiled program does.
    """

    __slots__ = ("apart", "long", "moves", "run", "scope")

    LONG = 8  # equations; measured: from there on copying them is quicker than running the rules again

    def __init__(
        self, run: Callable[..., Any], name: str, program: Program, scope: str, times: int = 1, moves: bool = False
    ):
        super().__init__(times * len(program.eqns), Executable(run, name), times * moved(program))
        self.run, self.moves = run, moves
        self.scope = scope if times * len(program.eqns) > 1 else ""  # an equation has its own name
        self.long = len(program.eqns) > self.LONG or any(compat.has_subjaxprs(eqn.params) for eqn in program.eqns)
        self.apart = False

    def __call__(self, *values: Any) -> Any:
        if compat.is_staged(values):
            with compat.named(self.scope) if self.scope else compat.NO_CONTEXT:
                return self._traced(*values)
        return self.run(*values) if self.moves else self.compiled(*values)

    def _traced(self, *values: Any) -> Any:
        if self.apart:
            return self.compiled(*values)
        self.apart = self.long
        return self.run(*values)

    def laid_out(self, shardings: Any) -> Callable[..., Any]:
        """The same, whose results have these shardings."""
        return self if shardings is None else self.compiled.laid_out(shardings)


class Failed:
    """Stands for what a call would have kept, had it not failed when it ran."""

    __slots__ = ("error",)

    def __init__(self, error: Exception):
        self.error = error


class OpAction(TapeAction):
    """What a lifted op leaves on the tape.

    block, index: the block that deferred the call, if any, and which of its calls it was.
    source: within a trace, jax's own account of the call: its frames and named scopes.
    """

    __slots__ = (
        "__weakref__",
        "_shardings",
        "block",
        "epoch",
        "held",
        "index",
        "inputs",
        "numbers",
        "plan",
        "source",
        "where",
    )  # fmt: skip
    reachable = True  # its outputs' identities keep it alive: an ambient tape may hold it weakly

    plan: Plan
    block: Any
    inputs: Sequence[TensorId]
    numbers: tuple[int, ...]
    held: tuple[Any, ...] | None

    def __init__(self, plan, inputs, numbers, kept, where, epoch, shardings=None, source=None):
        self.block, self.index = None, 0
        self._shardings, self.source = shardings, source
        self.plan, self.inputs, self.numbers, self.held = plan, inputs, numbers, kept
        self.where, self.epoch = where, epoch

    @property
    def kept(self) -> tuple[Any, ...] | None:
        """What its backward reads; runs its block if need be. None once a fused backward has used it up."""
        if self.held is None and self.block is not None:
            self.block.flush()
            if self.held is None:  # giving it out was interrupted
                self.held = self.block.kept_by(self.index)
        if type(self.held) is Failed:
            raise self.held.error
        return self.held

    @property
    def shardings(self) -> Shardings:
        """Those that the gradients of its inputs are to have."""
        return self._shardings if self.block is None else self.block.shardings_for(self.index)

    @property
    def outputs(self) -> tuple[TensorId, ...]:
        return tuple(TensorId(number) for number in self.numbers)

    @property
    def sequence(self) -> int:
        return self.numbers[0]

    @property
    def op(self) -> str:
        return self.plan.op

    @property
    def line(self) -> str:
        """`file:line` of the call, or of the equation inside the function that was opened."""
        return self.where.line if isinstance(self.where, Place) else line_of(self.where)

    @property
    def steps(self) -> tuple[tuple[str, int], ...]:
        """The loop steps it belongs to, outermost first: (("scan", 3),)."""
        return self.where.steps if isinstance(self.where, Place) else ()

    @property
    def foreign(self) -> bool:
        """Whether its derivative is jax's own rather than ours."""
        return bool(self.plan.foreign)

    def name(self) -> str:
        return f"{self.plan.op}({', '.join(map(repr, self.inputs))})"

    def __repr__(self) -> str:
        outputs = " ".join(f"%{number}" for number in self.numbers)
        inputs = " ".join(f"%{id.number}" for id in self.inputs)
        steps = "".join(f" {loop}[{step}]" for loop, step in self.steps)
        return f"{outputs} = {self.plan.name} {inputs}{self.plan.shown}{steps}{' (foreign)' * self.foreign}"

    def release(self) -> None:
        self.held = self.block = None

    def backward(self, grads) -> None:
        with self.plan.settings.hold(), self.going_back():  # as they were in the forward
            self._pull(grads)

    def going_back(self) -> AbstractContextManager[Any]:
        """What is traced inside is the derivative of the line that it came from."""
        return compat.NO_CONTEXT if self.source is None else compat.made_by_going_back(self.source)

    def _pull(self, grads) -> None:
        sums = grads.sums
        numbers = self.numbers
        plan = self.plan
        cts = [sums.get(number) for number in numbers]
        if plan.n_out == 1:
            if cts[0] is None:
                return
        elif all(ct is None for ct in cts):
            return
        else:
            cts = [zeros_for(kind.aval) if ct is None else ct for ct, kind in zip(cts, plan.out_kinds, strict=True)]
        kept = self.kept
        if kept is None:
            raise ConsumedTapeError(
                f"{self.name()} has let go of what its backward reads: its tape was consumed",
                at=self.line,
                action=repr(self),
                fix="run the forward again, or keep the tape with backward(..., retain_tape=True)",
            )
        kept = [force(value) for value in kept]
        found = plan.pull([*kept, *cts], self.shardings)
        for id, gradient in zip(self.differentiable_inputs(), found, strict=True):
            grads.add(id.number, gradient)

    def differentiable_inputs(self) -> list[TensorId]:
        return [id for id, wanted in zip(self.inputs, self.plan.wrt, strict=True) if wanted]


def zeros_for(aval: Any) -> Any:
    if not jnp.issubdtype(aval.dtype, jnp.inexact):
        return jnp.zeros((), jnp.float32)  # never read: no cotangent goes through an integer
    return jnp.zeros(aval.shape, aval.dtype)


def x64_for(dtype: Any) -> AbstractContextManager[Any]:
    """A context in which numbers of this dtype can be made, whatever the caller's setting."""
    return X64(True) if not X64.value and _is_wide(dtype) else _NO_CONTEXT


_NO_CONTEXT = nullcontext()


@cached(64)
def _is_wide(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact) and jnp.finfo(dtype).bits == 64
