"""How a derivative is written down: one rule per lax primitive.

A rule is calculus and nothing else. It gets the cotangent of the output, the output, the operands
and the primitive's parameters, and returns one cotangent per operand (None for none). What it may
look at is declared in `saves`; the rest arrives as an aval (shape and dtype), so misuse raises.

    @rule(lax.div_p, saves="out y")
    def div(ct, out, x, y):
        '''out = x / y'''
        return ct / y, -ct * out / y

With `formula` in place of `rule` the arguments are Terms (terms.py): operators are lax's own functions, and
cotangents that nobody wants are not computed.

Rules never undo broadcasting and never convert weak types: the transform does both.
A primitive with several results gets tuples for `ct` and `out`; a result without a cotangent
arrives as zeros (`zeros=False`: as None).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive

from tapejax.errors import RefusedPrimitive, RuleSignatureError
from tapejax.ground import compat
from tapejax.rules.terms import later, term, value_of


@dataclass(slots=True)
class RuleCall:
    """A rule made ready for one equation: what to keep, and how to go back.

    forward(operands) -> (results, extras), or None when the primitive itself is the forward.
    backward(saved, cts) -> one cotangent (or None) per operand, where `saved` has the operands of
    `saves_in`, then the results of `saves_out`, then the extras.
    """

    saves_in: tuple[int, ...]
    saves_out: tuple[int, ...]
    backward: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
    forward: Callable[[Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]] | None = None
    extra_avals: tuple[Any, ...] = ()
    foreign: tuple[str, ...] = ()  # primitives inside that are differentiated by their own jax rule


class Rule:
    """The reverse rule of one primitive."""

    kind = "rule"
    foreign = False

    def __init__(self, name, function, saves, *, cheap, zeros, family, refuses=None, is_formula=False):
        self.name: str = name
        self.function = function
        self.refuses = refuses
        self.family: str = family
        self.cheap: bool = cheap  # may be computed again in the backward instead of kept
        self.zeros: bool = zeros
        self.is_formula: bool = is_formula  # its arguments are Terms
        self.doc: str = inspect.getdoc(function) or ""
        self._read_signature(saves)

    def _read_signature(self, saves: str | Sequence[str]) -> None:
        parameters = inspect.signature(self.function).parameters.values()
        kinds = inspect.Parameter
        positional = [p.name for p in parameters if p.kind is kinds.POSITIONAL_OR_KEYWORD]
        variadic = [p.name for p in parameters if p.kind is kinds.VAR_POSITIONAL]
        self.keywords = {p.name for p in parameters if p.kind is kinds.KEYWORD_ONLY}
        self.required = {p.name for p in parameters if p.kind is kinds.KEYWORD_ONLY and p.default is p.empty}
        self.takes_any_keyword = any(p.kind is kinds.VAR_KEYWORD for p in parameters)
        self.operand_names = positional[2:]
        self.variadic = variadic[0] if variadic else None
        fixed = len(self.operand_names)
        # One set of needs per operand's cotangent; a single string serves them all.
        texts = [saves] if isinstance(saves, str) else list(saves)
        self.needs = [self._parse(text.split(), fixed) for text in texts]

    def _parse(self, names: list[str], fixed: int) -> tuple[frozenset[int | str], frozenset[int | str]]:
        operands: set[int | str] = set()
        results: set[int | str] = set()
        for name in names:
            if name == "out":
                results.add("all")
            elif name.startswith("out."):
                results.add(int(name[4:]))
            elif name == self.variadic:
                operands.update(["rest"])
            elif name in self.operand_names:
                operands.add(self.operand_names.index(name))
            else:
                known = [*self.operand_names, *([self.variadic] if self.variadic else [])]
                raise RuleSignatureError(
                    f"the rule for `{self.name}` saves `{name}`, which is not one of its arguments",
                    fix=f"name one of: out {' '.join(known)}",
                )
        return frozenset(operands), frozenset(results)

    def saves_of(self, active_in: Sequence[bool], n_out: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Positions of the operands and results that the cotangents of the active operands read."""
        fixed = len(self.operand_names)
        operands: set[int] = set()
        results: set[int] = set()
        for position, active in enumerate(active_in):
            if not active:
                continue
            needed_in, needed_out = self.needs[position if len(self.needs) > 1 else 0]
            operands.update(i for i in needed_in if isinstance(i, int))
            if "rest" in needed_in:
                operands.update(range(fixed, len(active_in)))
            results.update(range(n_out) if "all" in needed_out else needed_out)
        return tuple(sorted(operands)), tuple(sorted(results))

    @property
    def declared(self) -> frozenset[int | str]:
        """Operand positions that some cotangent reads."""
        return frozenset().union(*(operands for operands, _ in self.needs))

    def check_params(self, params: dict[str, Any]) -> None:
        if self.takes_any_keyword:
            return
        unknown = set(params) - self.keywords
        missing = self.required - set(params)
        if unknown or missing:
            words = [f"does not know {sorted(unknown)}"] * bool(unknown) + [f"wants {sorted(missing)}"] * bool(missing)
            raise RuleSignatureError(
                f"the rule for `{self.name}` {' and '.join(words)}: jax changed this primitive's parameters",
                fix="spell the parameter out in the rule (docs/how-to/add-a-rule.md) or use a supported jax release",
            )

    def specialise(self, eqn, in_avals, out_avals, active_in, tools) -> RuleCall:
        """The Step of this rule for one equation. `tools` is for rules of control flow (see StructuralRule)."""
        self.check_params(eqn.params)
        if self.refuses is not None and (why := self.refuses(*in_avals, **eqn.params)):
            what = f"this `{eqn.name}` cannot be differentiated in reverse: {why[0]}"
            raise RefusedPrimitive(what, at=eqn.line, action=eqn, fix=why[1])
        saves_in, saves_out = self.saves_of(active_in, len(out_avals))
        call = self._over_terms if self.is_formula else self._over_arrays
        return RuleCall(saves_in, saves_out, call(eqn, in_avals, out_avals, active_in, saves_in, saves_out))

    def _over_terms(self, eqn, in_avals, out_avals, active_in, saves_in, saves_out):
        """A backward that calls the rule with Terms, and computes of what it returns only what is wanted."""
        function, params, several, n_in = self.function, eqn.params, eqn.primitive.multiple_results, len(saves_in)
        unknown_in, unknown_out = [term(aval) for aval in in_avals], [term(aval) for aval in out_avals]

        def backward(saved, cts):
            operands, results = unknown_in.copy(), unknown_out.copy()
            for i, value in zip(saves_in, saved[:n_in], strict=True):
                operands[i] = term(value)
            for i, value in zip(saves_out, saved[n_in:], strict=True):
                results[i] = term(value)
            if several:
                filled = [zeros_like(aval) if ct is None else ct for ct, aval in zip(cts, out_avals, strict=True)]
                found = function(tuple(map(term, filled)), tuple(results), *operands, **params)
            else:
                found = function(term(cts[0]), results[0], *operands, **params)
            return wanted_of(found, active_in)

        return backward

    def _over_arrays(self, eqn, in_avals, out_avals, active_in, saves_in, saves_out):
        """A backward that calls the rule with arrays. It computes all its cotangents.

        An operand that only the cotangent of an inactive operand reads was not kept: zeros stand in, and
        XLA drops the code that reads them.
        """
        function, params, several, n_in = self.function, eqn.params, eqn.primitive.multiple_results, len(saves_in)
        declared, fixed = self.declared, len(self.operand_names)
        stand_ins = [
            i for i in range(len(in_avals))
            if i not in saves_in and (i in declared or ("rest" in declared and i >= fixed))
        ]  # fmt: skip
        lacks_out = len(self.needs) > 1 and not several and not saves_out and any(r for _, r in self.needs)

        def backward(saved, cts):
            operands, results = list(in_avals), list(out_avals)
            for i in stand_ins:
                operands[i] = zeros_like(in_avals[i])
            for i, value in zip(saves_in, saved[:n_in], strict=True):
                operands[i] = value
            for i, value in zip(saves_out, saved[n_in:], strict=True):
                results[i] = value
            if lacks_out:
                results[0] = zeros_like(out_avals[0])
            if several:
                if self.zeros:
                    cts = [zeros_like(aval) if ct is None else ct for ct, aval in zip(cts, out_avals, strict=True)]
                found = function(tuple(cts), tuple(results), *operands, **params)
            else:
                found = function(cts[0], results[0], *operands, **params)
            return wanted_of(found, active_in)

        return backward


def wanted_of(found, active_in):
    """The cotangents of active operands; of Terms, the others are never computed."""
    if len(found) != len(active_in):
        return found  # which the transform refuses, by name and line
    return [value_of(ct) if active else None for ct, active in zip(found, active_in, strict=True)]


class StructuralRule:
    """A rule for a primitive that holds programs of its own: loops, branches, custom rules.

    function(eqn, in_avals, out_avals, active_in, tools) -> RuleCall. `tools.reverse` is the reverse
    transform itself, passed in so that rules never import upwards.
    cheap(eqn, is_cheap) and flow(eqn, active_in, tools) may look into the programs inside: whether
    they may be run again in the backward, and which results a derivative flows to (default: all).
    """

    kind = "rule"
    foreign = False

    def __init__(self, name, function, *, cheap, flow, family):
        self.name: str = name
        self.function = function
        self.cheap: bool | Callable[..., bool] = cheap
        self.flow: Callable[..., Sequence[bool]] | None = flow
        self.family: str = family
        self.doc: str = inspect.getdoc(function) or ""

    def specialise(self, eqn, in_avals, out_avals, active_in, tools) -> RuleCall:
        return self.function(eqn, in_avals, out_avals, active_in, tools)


@dataclass(slots=True)
class Constant:
    """A primitive through which no derivative flows, and why."""

    name: str
    reason: str
    family: str
    cheap: bool = True
    stops: bool = False  # the result does not even count as depending on its operands (stop_gradient)
    kind = "constant"


@dataclass(slots=True)
class Refused:
    """A primitive that cannot be differentiated in reverse, why, and what to do instead."""

    name: str
    reason: str
    fix: str
    family: str
    cheap = False
    kind = "refused"


Entry = Rule | StructuralRule | Constant | Refused

# Primitives that jax exports are keys as objects. The others are keys by name, and only jax's own
# may be found that way (see `lookup`).
TABLE: dict[Primitive | str, Entry] = {}


def _family(function_or_depth: Any) -> str:
    return function_or_depth.__module__.rpartition(".")[2]


def _caller_family() -> str:
    import sys

    return sys._getframe(2).f_globals["__name__"].rpartition(".")[2]


def _add(primitive: Primitive | str, entry: Entry) -> None:
    TABLE[primitive] = entry


def name_of(primitive: Primitive | str) -> str:
    return primitive if isinstance(primitive, str) else primitive.name


def rule(
    primitive: Primitive | str,
    saves: str | Sequence[str] = "",
    *,
    cheap: bool = False,
    zeros: bool = True,
    refuses: Callable[..., tuple[str, str] | None] | None = None,
):
    """Register the decorated function as the reverse rule of a primitive (or of a name of jax's).

    saves: the arguments whose values the rule reads, separated by spaces: operand names, `out`,
    or `out.1` for one of several results. A tuple gives one such string per operand's cotangent, so
    that less is kept when only some operands need one: `saves=("y", "x")` for a product.
    cheap: the primitive may be run again in the backward rather than have its result kept.
    refuses: function(*operand avals, **params) -> (reason, fix) where the rule does not hold, else None.
    """

    def register(function):
        options = {"cheap": cheap, "zeros": zeros, "refuses": refuses, "family": _family(function)}
        _add(primitive, Rule(name_of(primitive), function, saves, **options))
        return function

    return register


def formula(primitive: Primitive | str, saves: str | Sequence[str] = "", *, cheap: bool = False, **how: Any):
    """As `rule`, for a function over Terms. One cotangent per operand, of which only the wanted ones are computed."""

    def register(function):
        options = {"cheap": cheap, "zeros": True, "family": _family(function), "is_formula": True} | how
        _add(primitive, Rule(name_of(primitive), function, saves, **options))
        return function

    return register


def structural(*primitives: Primitive | str, cheap: Any = False, flow: Any = None):
    """Register a function that builds the Step of a primitive with programs inside (see StructuralRule)."""

    def register(function):
        family = _family(function)
        for primitive in primitives:
            _add(primitive, StructuralRule(name_of(primitive), function, cheap=cheap, flow=flow, family=family))
        return function

    return register


def elementwise(primitive: Primitive | str, slope: Callable[[Any], Any], *, family: str = "") -> None:
    """The rule of a one-operand elementwise primitive from its slope, `ct * slope`, a formula.

    The slope's argument, named `x` or `out`, is what is kept.
    """
    (argument,) = inspect.signature(slope).parameters
    if argument == "x":
        backward = lambda ct, out, x, *, accuracy=None: (ct * slope(x),)
    elif argument == "out":
        backward = lambda ct, out, x, *, accuracy=None: (ct * slope(out),)
    else:
        raise RuleSignatureError(f"a slope takes `x` or `out`, not `{argument}`")
    how = {"cheap": True, "zeros": True, "family": family or _caller_family(), "is_formula": True}
    entry = Rule(name_of(primitive), backward, argument, **how)
    entry.doc = f"out = {name_of(primitive)}(x)"
    _add(primitive, entry)


def elementwise_rule(primitive: Primitive | str, slope: Callable[[Any], Any]) -> None:
    """As `elementwise`, for a slope that is a function of arrays, as those of other packages are."""
    elementwise(primitive, functools.wraps(slope)(later(slope)), family=_caller_family())


def constant(primitives: Iterable[Primitive | str], reason: str, *, cheap: bool = True, stops: bool = False) -> None:
    """List primitives through which no derivative flows."""
    family = _caller_family()
    for primitive in primitives:
        _add(primitive, Constant(name_of(primitive), reason, family, cheap, stops))


def refused(primitives: Iterable[Primitive | str], reason: str, *, fix: str) -> None:
    """List primitives that cannot be differentiated in reverse."""
    family = _caller_family()
    for primitive in primitives:
        _add(primitive, Refused(name_of(primitive), reason, fix, family))


def lookup(primitive: Primitive) -> Entry | None:
    """The entry of a primitive, or None. A name counts only for primitives that jax itself defines."""
    entry = TABLE.get(primitive)
    if entry is None:
        entry = TABLE.get(primitive.name)
        if entry is not None and not compat.is_own(primitive):
            return None
    return entry


def zeros_like(aval: Any) -> Any:
    """Zeros like a value, or like an aval."""
    kind = getattr(aval, "aval", aval)
    if kind.shape and compat.is_plain(kind):
        return lax.broadcast(kind.dtype.type(0), kind.shape)
    if kind is not aval:
        return lax.full_like(aval, 0)
    return jnp.zeros(aval.shape, aval.dtype, device=compat.explicit_sharding(aval))
