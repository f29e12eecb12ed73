"""The function under test, seen four ways: by the tape, by jax, in float64, and along a line."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax.errors import ArgumentError
from tapejax.ground import compat
from tapejax.ground.where import user_line
from tapejax.ops.lift import is_data, is_tensor
from tapejax.program.program import CUSTOM, flatten
from tapejax.tape.tape import Tape
from tapejax.tensor.tensor import make
from tapejax.transforms import reverse_mode as transforms
from tapejax.transforms.recording import plain
from tapejax.verify.line import Line, nudged
from tapejax.verify.tolerance import inexact, wide_numpy, wide_value
from tapejax.verify.wide import all_equations, narrowest_float, run_wide

_tree = jax.tree_util
OWN_RULES = {*CUSTOM, "custom_linear_solve"}


class Subject:
    """A function of the chosen leaves of its arguments, returning its inexact outputs as a list.

    `function` takes Tensors or arrays; `for_jax` is what jax differentiates (the same, unless `function`
    is a derivative taken by the tape). positions: the inputs whose gradient is checked. judge: who the other
    opinion comes from.
    """

    judge = "jax"
    speaker = "the tape"
    kinks_are_conventions = False  # whether another opinion at a kink is fine
    thorough = True  # whether single elements are differenced too
    raised: Exception | None = None  # what the function itself raised when it was called
    before: tuple[Subject, list[Any]] | None = None  # of which this is the gradient, under which cotangents

    def __init__(self, name: str, names: list[str], function: Callable[..., Any], for_jax: Callable[..., Any], values):
        self.name, self.names, self.function = name, names, function
        self.for_jax = for_jax
        self.values: list[Any] = values
        self.positions: list[int] = list(range(len(values)))
        self.compiled: dict[Any, Any] = {}
        self.value_by_jax: list[Any] | None = None  # what jax.vjp gave as the function's value, last time

    def at(self, values: Sequence[Any]) -> Subject:
        """The same at other values of the same kinds; what was traced and compiled is shared."""
        _ = self.program, self.narrowest  # traced once, for all of them
        other = copy.copy(self)
        other.values = list(values)
        return other

    @classmethod
    def of(cls, function: Callable[..., Any], args: tuple[Any, ...], wrt: Any = None) -> Subject:
        """The subject for a call. A callable pytree with arrays in it (an equinox module) is an argument too."""
        transforms.check_callable(function)
        name = getattr(function, "__name__", type(function).__name__)
        labels = _labels(function, len(args))
        module = None
        if any(map(_is_array, _tree.tree_leaves(function))):
            module, function = function, lambda module, *rest: module(*rest)
            args, labels = (module, *args), [type(module).__name__, *labels]
            wrt = None if wrt is None else tuple(number + 1 for number in _numbers(wrt, len(args) - 1))
        wanted = range(len(args)) if wrt is None else _numbers(wrt, len(args))
        given, structure = _tree.tree_flatten_with_path(tuple(args), is_leaf=is_tensor)
        chosen = [
            position
            for position, (path, leaf) in enumerate(given)
            if path[0].idx in wanted
            and (is_tensor(leaf) or is_data(leaf))
            and inexact(plain(leaf))
            # A module's own numbers are settings (a rate of dropout); its arrays are parameters.
            and (module is None or path[0].idx > 0 or is_tensor(leaf) or _is_array(leaf))
        ]
        if not chosen:
            raise ArgumentError(
                f"`{name}` was given nothing to differentiate by: no float or complex array or number",
                at=user_line(),
                fix="pass floats (1.0, not 1), and see that wrt names their positions",
            )
        leaves = [plain(leaf) for _, leaf in given]
        names = [labels[given[i][0][0].idx] + _tree.keystr(given[i][0][1:]) for i in chosen]
        values = [jnp.asarray(leaves[i]) for i in chosen]

        def flat(*values):
            full = list(leaves)
            for position, value in zip(chosen, values, strict=True):
                full[position] = value
            try:
                result = function(*_tree.tree_unflatten(structure, full))
            except Exception as error:
                subject.raised = error
                raise
            results = _tree.tree_leaves(result, is_leaf=is_tensor)
            return [result for result in results if (is_tensor(result) or is_data(result)) and inexact(plain(result))]

        flat.__name__ = name
        subject = cls(name, names, flat, flat, values)
        return subject

    def allowed_move(self, position: int, direction: np.ndarray) -> np.ndarray:
        """The part of a direction along which the input may move."""
        return direction

    def allowed_cts(self, cts: list[Any]) -> list[Any]:
        """Cotangents without what falls on outputs that mean nothing."""
        return cts

    def derivative(self, cts: Sequence[Any]) -> Subject:
        """The function's gradient under given cotangents, as the next subject."""

        def by_tape(*values):
            return list(transforms.vjp(self.function, *values)[1](list(cts)))

        def by_jax(*values):
            return list(jax.vjp(self.over_arrays, *values)[1](list(cts)))

        by_tape.__name__ = f"{self.name}'"
        found = Subject(by_tape.__name__, self.names, by_tape, by_jax, self.values)
        found.positions = self.positions
        found.before = self, list(cts)
        return found

    # -- by the tape -------------------------------------------------------------------------------

    def by_tape(self, values: Sequence[Any]) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
        """(outputs, pullback) as the tape gives them."""
        outputs, pullback = transforms.vjp(self.function, *values)
        return [plain(out) for out in outputs], lambda cts: [plain(ct) for ct in pullback(list(cts))]

    # -- by jax ------------------------------------------------------------------------------------

    def over_arrays(self, *values: Any) -> list[Any]:
        """The function on jax values; a function that insists on Tensors gets them, holding jax's tracers."""
        if not self._insists_on_tensors:
            return [plain(result) for result in self.for_jax(*values)]
        with Tape():
            return [plain(result) for result in self.for_jax(*[make(jnp.asarray(value), True) for value in values])]

    @cached_property
    def _insists_on_tensors(self) -> bool:
        try:
            self.for_jax(*self.values)
        except (TypeError, AttributeError):
            return True
        return False

    @cached_property
    def jaxpr(self) -> Any:
        """The program as jax traces it; None if it cannot be traced (Python branches on values, say)."""
        try:
            return jax.make_jaxpr(self.over_arrays)(*self.values)
        except Exception:
            return None

    @cached_property
    def program(self) -> Any:
        """The flat program with custom rules opened: what the function computes, no matter how it differentiates.

        Of a derivative: that of the primal code, so that what a custom rule does to the next derivative shows.
        """
        if self.jaxpr is None:
            return None
        if self.before is not None and self.has_custom_rules:
            subject, cts = self.before
            if subject.program is None:
                return None
            opened = lambda *values: run_wide(subject.program, values, real=None)[0]
            try:
                jaxpr = jax.make_jaxpr(lambda *values: vjp_at(opened, values, subject.positions, cts))(*self.values)
            except Exception:  # jax cannot differentiate what is inside a custom rule
                return None
            return flatten(jaxpr, ignore_custom_rules=True)
        return flatten(self.jaxpr, ignore_custom_rules=True)

    @cached_property
    def has_custom_rules(self) -> bool:
        """Whether somebody's own derivative is on the way: a custom_vjp, a custom_jvp, the transpose of a linear solve."""
        if self.before is not None and self.before[0].has_custom_rules:
            return True
        return self.jaxpr is not None and any(eqn.primitive.name in OWN_RULES for eqn in all_equations(self.jaxpr))

    @cached_property
    def narrowest(self) -> Any:
        """The dtype with the fewest digits on the way."""
        dtypes = [value.dtype for value in self.values if inexact(value)]
        if self.program is not None:
            dtypes.append(narrowest_float(self.program) or dtypes[0])
        return max(dtypes, key=lambda dtype: jnp.finfo(dtype).eps)

    @cached_property
    def work(self) -> int:
        """The numbers that a run computes, about; what loops repeat is counted once."""
        avals = () if self.program is None else self.program.avals
        return sum(math.prod(aval.shape) for aval in avals if hasattr(aval, "shape"))

    def by_jax(self, values: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        if self.jaxpr is None:
            return at_positions(
                vjp_at(self.over_arrays, values, self.positions, list(cts)), self.positions, len(values)
            )
        if "vjp" not in self.compiled:
            pull = lambda values, cts: value_and_vjp_at(self.over_arrays, values, self.positions, cts)
            self.compiled["vjp"] = compat.quick_jit(pull)
        self.value_by_jax, found = self.compiled["vjp"](list(values), list(cts))
        return at_positions(found, self.positions, len(values))

    def value(self, values: Sequence[Any]) -> list[Any]:
        """What the function itself gives, with no derivative in sight."""
        if self.jaxpr is None:
            return self.over_arrays(*values)
        if "value" not in self.compiled:
            self.compiled["value"] = compat.quick_jit(self.over_arrays)
        return self.compiled["value"](*values)

    def in_float64(self, values: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        """The gradient of the program in float64, custom rules opened: of what the function computes, by jax's rules."""
        with jax.enable_x64(True):
            found = self._opened(np.float64)(list(map(wide_value, values)), list(map(wide_value, cts)))
        return at_positions([wide_numpy(gradient) for gradient in found], self.positions, len(values))

    def rounded(self, values: Sequence[Any], cts: Sequence[Any]) -> Iterator[tuple[list[Any], list[Any]]]:
        """The same in the program's own precision beside the one in float64, several times.

        Their difference is what narrow floats lose here, whoever's rules are used: at the point as one program, which
        may turn a + b - b into a; at points that differ from it in the last bits; and step by step, which takes longest.
        """
        program, positions = self.program, self.positions
        if program is None:
            return
        wide = self.in_float64(values, cts)
        for number in range(3):
            point = nudged(values, number) if number else values
            narrow = at_positions(self._opened(None)(list(point), list(cts)), positions, len(values))
            yield narrow, self.in_float64(point, cts) if number else wide
        by_steps = vjp_at(lambda *values: run_wide(program, values, real=None)[0], list(values), positions, list(cts))
        yield at_positions(by_steps, positions, len(values)), wide

    def _opened(self, real: Any) -> Callable[..., Any]:
        program, positions = self.program, self.positions
        if ("opened", real) not in self.compiled:
            outputs = lambda *values: run_wide(program, values, real=real)[0]
            self.compiled["opened", real] = compat.quick_jit(
                lambda values, cts: vjp_at(outputs, values, positions, cts)
            )
        return self.compiled["opened", real]

    # -- along a line --------------------------------------------------------------------------------

    def line(self, values: Sequence[Any], cts: Sequence[Any], outputs: Sequence[Any] | None = None) -> Line:
        """outputs: what the function gives there, if it is known; the line is checked against it."""
        return Line(self, values, cts, outputs)


def vjp_at(function: Callable[..., Any], values: Sequence[Any], positions: Sequence[int], cts: Sequence[Any]):
    """jax.vjp with respect to the inputs at some positions."""
    return value_and_vjp_at(function, values, positions, cts)[1]


def value_and_vjp_at(function: Callable[..., Any], values: Sequence[Any], positions: Sequence[int], cts: Sequence[Any]):
    """The outputs, and the gradients with respect to the inputs at some positions, both as jax.vjp gives them."""

    def of_chosen(*chosen):
        full = list(values)
        for position, value in zip(positions, chosen, strict=True):
            full[position] = value
        return list(function(*full))

    outputs, pullback = jax.vjp(of_chosen, *[values[i] for i in positions])
    return outputs, list(pullback(list(cts)))


def at_positions(found: Sequence[Any], positions: Sequence[int], count: int) -> list[Any]:
    """One entry per input, None for those that were not asked for."""
    places = dict(zip(positions, found, strict=True))
    return [places.get(position) for position in range(count)]


def random_like(value: Any, rng: np.random.Generator) -> np.ndarray:
    """Random numbers of an array's shape, complex if it is; none near zero, so that every element counts."""

    def draw():
        return rng.choice([-1.0, 1.0], np.shape(value)) * rng.uniform(0.5, 1.5, np.shape(value))

    return draw() + 1j * draw() if jnp.issubdtype(jnp.result_type(value), jnp.complexfloating) else draw()


def cotangents(outputs: Sequence[Any], seed: int) -> list[Any]:
    """A random cotangent per output, in its own dtype."""
    rng = np.random.default_rng([seed, 1])
    return [jnp.asarray(random_like(out, rng), jnp.result_type(out)) for out in outputs]


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray))


def _labels(function: Callable[..., Any], count: int) -> list[str]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    kinds = [parameter.kind for parameter in parameters]
    star = kinds.index(inspect.Parameter.VAR_POSITIONAL) if inspect.Parameter.VAR_POSITIONAL in kinds else len(kinds)

    def label(position: int) -> str:
        if position >= star and star < len(kinds):
            return f"{parameters[star].name}[{position - star}]"
        return parameters[position].name if position < star else f"argument {position}"

    return [label(position) for position in range(count)]


def _numbers(wrt: Any, count: int) -> tuple[int, ...]:
    numbers = (wrt,) if isinstance(wrt, int) else tuple(wrt)
    for number in numbers:
        if not isinstance(number, int) or not -count <= number < count:
            raise ArgumentError(
                f"wrt={wrt!r} for a call with {count} arguments",
                at=user_line(),
                fix="give the positions of the arguments to differentiate by, as argnums of jax.grad",
            )
    return tuple(number % count for number in numbers)
