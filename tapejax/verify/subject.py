"""The function under test, seen four ways: by the tape, by jax, in float64, and along a line."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tapejax import transforms
from tapejax.errors import ArgumentError
from tapejax.lift import is_data, is_tensor
from tapejax.program import flatten
from tapejax.recording import plain
from tapejax.tape import Tape
from tapejax.tensor import make
from tapejax.verify.finite import Slope, slope
from tapejax.verify.tolerance import wide_numpy
from tapejax.verify.wide import is_analytic, narrowest_float, run_wide, stopping
from tapejax.where import user_line

_tree = jax.tree_util


def inexact(value: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(value), jnp.inexact)


class Subject:
    """A function of the chosen leaves of its arguments, returning its inexact outputs as a list.

    `function` takes Tensors or arrays; `for_jax` is what jax differentiates (the same, unless `function`
    is a derivative taken by the tape). positions: the inputs whose gradient is checked. judge: who the other
    opinion comes from.
    """

    judge = "jax"
    speaker = "the tape"
    kinks_are_conventions = False  # whether another opinion at a kink is fine

    def __init__(self, name: str, names: list[str], function: Callable[..., Any], for_jax: Callable[..., Any], values):
        self.name, self.names, self.function = name, names, function
        self.for_jax = for_jax
        self.values: list[Any] = values
        self.positions: list[int] = list(range(len(values)))
        self.compiled: dict[Any, Any] = {}

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
        if any(map(_is_array, _tree.tree_leaves(function))):
            module, function = function, lambda module, *rest: module(*rest)
            args, labels = (module, *args), [type(module).__name__, *labels]
            wrt = None if wrt is None else tuple(number + 1 for number in _numbers(wrt, len(args) - 1))
        wanted = range(len(args)) if wrt is None else _numbers(wrt, len(args))
        given, structure = _tree.tree_flatten_with_path(tuple(args), is_leaf=is_tensor)
        chosen = [
            position
            for position, (path, leaf) in enumerate(given)
            if path[0].idx in wanted and (is_tensor(leaf) or is_data(leaf)) and inexact(plain(leaf))
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
            results = _tree.tree_leaves(function(*_tree.tree_unflatten(structure, full)), is_leaf=is_tensor)
            return [result for result in results if (is_tensor(result) or is_data(result)) and inexact(plain(result))]

        flat.__name__ = name
        return cls(name, names, flat, flat, values)

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
        return Subject(by_tape.__name__, self.names, by_tape, by_jax, self.values)

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
        """The flat program with custom rules opened: what the function computes, no matter how it differentiates."""
        return None if self.jaxpr is None else flatten(self.jaxpr, ignore_custom_rules=True)

    @cached_property
    def has_custom_rules(self) -> bool:
        text = str(self.jaxpr)
        return "custom_vjp_call" in text or "custom_jvp_call" in text

    @cached_property
    def narrowest(self) -> Any:
        """The dtype with the fewest digits on the way."""
        dtypes = [value.dtype for value in self.values if inexact(value)]
        if self.program is not None:
            dtypes.append(narrowest_float(self.program) or dtypes[0])
        return max(dtypes, key=lambda dtype: jnp.finfo(dtype).eps)

    def by_jax(self, values: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        if self.jaxpr is None:
            return _filled(vjp_at(self.over_arrays, values, self.positions, list(cts)), self.positions, len(values))
        return self._jitted_vjp(list(values), list(cts))

    def _jitted_vjp(self, values: list[Any], cts: list[Any]) -> list[Any]:
        if "vjp" not in self.compiled:
            self.compiled["vjp"] = jax.jit(lambda values, cts: vjp_at(self.over_arrays, values, self.positions, cts))
        return _filled(self.compiled["vjp"](values, cts), self.positions, len(values))

    def by_jax_twice(self, values: Sequence[Any], cts: Sequence[Any]) -> tuple[list[Any], list[Any]] | None:
        """jax's gradient of the program, custom rules opened, in its own precision and in float64.

        Their difference is what narrow floats lose here, whoever's rules are used.
        """
        if self.program is None:
            return None
        program, positions = self.program, self.positions
        if "twice" not in self.compiled:
            outputs = lambda real: lambda *values: run_wide(program, values, real=real)[0]
            self.compiled["twice"] = [
                jax.jit(lambda values, cts, real=real: vjp_at(outputs(real), values, positions, cts))
                for real in (None, np.float64)
            ]
        narrow, wide = self.compiled["twice"]
        found = narrow(list(values), list(cts))
        # Compiled as one, a + b - b may become a. Run step by step it does not; the worse of the two counts.
        eager = vjp_at(lambda *values: run_wide(program, values, real=None)[0], list(values), positions, list(cts))
        with jax.enable_x64(True):
            yardstick = wide(list(map(wide_value, values)), list(map(wide_value, cts)))
        away = lambda one, wide: float(np.nanmax(np.abs(wide_numpy(one) - wide_numpy(wide)), initial=0.0))
        worse = [max(pair, key=lambda g, w=w: away(g, w)) for *pair, w in zip(found, eager, yardstick, strict=True)]
        return _filled(worse, positions, len(values)), _filled(yardstick, positions, len(values))

    # -- along a line --------------------------------------------------------------------------------

    def line(self, values: Sequence[Any], cts: Sequence[Any]) -> Line:
        return Line(self, values, cts)


class Line:
    """The function at a point, under cotangents, as numbers along directions: for finite differences."""

    def __init__(self, subject: Subject, values: Sequence[Any], cts: Sequence[Any]):
        self.subject = subject
        self.cts = [wide_numpy(ct) for ct in cts]
        self.values = [wide_value(value) for value in values]
        self.precise = subject.program is not None
        self.dtypes = [value.dtype for value in values]
        if self.precise:
            with jax.enable_x64(True):
                base, self.held = _run_jitted(subject)(self.values, None if stopping(subject.program) else [])
        else:
            base = subject.over_arrays(*values)
        self.base = [wide_numpy(out) for out in base]
        narrowest = np.float64 if self.precise else subject.narrowest
        terms = [np.abs(ct * np.where(np.isfinite(out), out, 0)) for ct, out in zip(self.cts, self.base, strict=True)]
        self.size_of_value = float(np.sqrt(sum((term**2).sum() for term in terms)))
        self.noise = 4 * float(jnp.finfo(narrowest).eps) * self.size_of_value

    @property
    def analytic(self) -> bool:
        """Whether the complex step holds."""
        subject = self.subject
        if "analytic" not in subject.compiled:
            subject.compiled["analytic"] = self.precise and is_analytic(subject.program)
        return subject.compiled["analytic"]

    def at(self, moved: Sequence[Any]) -> float:
        """What the cotangents make of the change from the point to another one."""
        if self.precise:
            with jax.enable_x64(True):
                outputs, _ = _run_jitted(self.subject)(list(moved), self.held)
        else:
            outputs = self.subject.over_arrays(*[jnp.asarray(m, d) for m, d in zip(moved, self.dtypes, strict=True)])
        total = 0.0
        with np.errstate(all="ignore"):
            for ct, out, base in zip(self.cts, outputs, self.base, strict=True):
                change = ct * (wide_numpy(out) - base)
                total += float(np.sum(np.real(change)))
        return total

    def moved(self, position: int, direction: np.ndarray, t: Any) -> list[Any]:
        moved: list[Any] = list(self.values)
        moved[position] = self.values[position] + t * direction
        return moved

    def slope(self, position: int, direction: np.ndarray, size: float) -> Slope:
        """The slope along a direction of one input."""
        first = 0.02 if self.precise else 0.1
        return slope(lambda t: self.at(self.moved(position, direction, t)), self.noise, size, first)

    def complex_step(self, position: int, direction: np.ndarray) -> float:
        """The slope from one step along the imaginary axis: nothing cancels, so it is exact to rounding."""
        tiny = 1e-30
        with jax.enable_x64(True):
            moved = [
                value.astype(np.complex128) if inexact(value) else value
                for value in self.moved(position, direction, 1j * tiny)
            ]
            outputs, _ = _run_jitted(self.subject, np.complex128)(moved, self.held)
        parts = zip(self.cts, outputs, strict=True)
        return float(sum(np.sum(ct * np.imag(np.asarray(out))) for ct, out in parts)) / tiny


def _run_jitted(subject: Subject, real: Any = np.float64) -> Callable[..., Any]:
    """The wide run, compiled once per subject; `held` is None at the base point."""
    if real not in subject.compiled:
        program = subject.program
        subject.compiled[real] = jax.jit(lambda values, held: run_wide(program, values, real=real, held=held))
    return subject.compiled[real]


def vjp_at(function: Callable[..., Any], values: Sequence[Any], positions: Sequence[int], cts: Sequence[Any]):
    """jax.vjp with respect to the inputs at some positions."""

    def of_chosen(*chosen):
        full = list(values)
        for position, value in zip(positions, chosen, strict=True):
            full[position] = value
        return list(function(*full))

    return list(jax.vjp(of_chosen, *[values[i] for i in positions])[1](list(cts)))


def _filled(found: Sequence[Any], positions: Sequence[int], count: int) -> list[Any]:
    """One entry per input, None for those that were not asked for."""
    places = dict(zip(positions, found, strict=True))
    return [places.get(position) for position in range(count)]


def wide_value(value: Any) -> Any:
    """An inexact value in NumPy's widest dtype; others as they are."""
    return wide_numpy(value) if inexact(value) else value


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
