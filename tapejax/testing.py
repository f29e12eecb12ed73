"""For test suites: assertions about gradients, and inputs that stay away from kinks.

The pytest fixture `gradients_match` (plugin `pytest_tapejax`) is `assert_gradients_match`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapejax.errors import ArgumentError
from tapejax.ground.where import user_line
from tapejax.verify.custom import RuleReport, verify_custom_rule
from tapejax.verify.function import verify
from tapejax.verify.report import Report


def assert_gradients_match(function: Callable[..., Any], *args: Any, **options: Any) -> Report:
    """Assert that a function's gradient agrees with jax.vjp and with finite differences; options as in verify.

    Raises a VerificationError, an AssertionError whose message is the report and whose `report` is the object.

    >>> import jax.numpy as jnp
    >>> from tapejax.testing import assert_gradients_match
    >>> assert_gradients_match(lambda x: jnp.sum(x**2), jnp.array([1.0, 2.0])).ok
    True
    """
    __tracebackhide__ = True
    report = verify(function, *args, **options)
    report.assert_ok()
    return report


def assert_custom_rules_match(function: Callable[..., Any], *args: Any, **options: Any) -> RuleReport:
    """Assert that the custom_vjp and custom_jvp rules in a function agree with their primal code.

    >>> import jax, jax.numpy as jnp
    >>> from tapejax.testing import assert_custom_rules_match
    >>> assert_custom_rules_match(jax.nn.relu, jnp.array([-1.0, 0.5])).ok
    True
    """
    __tracebackhide__ = True
    report = verify_custom_rule(function, *args, **options)
    report.assert_ok()
    return report


def smooth_arrays(
    shape: int | Sequence[int] = (),
    dtype: Any = "float32",
    *,
    low: float = -3.0,
    high: float = 3.0,
    away_from: float | Sequence[float] = 0.0,
    gap: float = 0.05,
    distinct: bool = True,
) -> Any:
    """A hypothesis strategy for arrays where abs, relu, max, sort and the like have a slope.

    No element is nearer than `gap` to a point of `away_from`, and no two elements are nearer than that to each other
    (distinct=False lets them be: for functions without max or sort). Shrinks towards the points nearest to zero.

    >>> from hypothesis import given, settings
    >>> from tapejax.testing import smooth_arrays
    >>> @given(smooth_arrays(3))
    ... @settings(max_examples=10, deadline=None)
    ... def test(x):
    ...     assert abs(x).min() >= 0.05
    >>> test()
    """
    import jax.numpy as jnp
    from hypothesis import strategies  # pyright: ignore[reportMissingImports]

    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    size = int(np.prod(shape))
    points = _points(low, high, np.atleast_1d(np.asarray(away_from, float)), gap)
    if not points or (distinct and len(points) < size):
        raise ArgumentError(
            f"{size} elements between {low} and {high} do not fit with a gap of {gap}: there are {len(points)} places",
            at=user_line(),
            fix="a smaller gap, a wider range, or distinct=False",
        )
    elements = strategies.lists(strategies.sampled_from(points), min_size=size, max_size=size, unique=distinct)
    return elements.map(lambda numbers: jnp.asarray(np.reshape(numbers, shape), dtype))


def _points(low: float, high: float, kinks: np.ndarray, gap: float) -> list[float]:
    """Places 1.5 gaps apart, none nearer than a gap to a kink, the ones near zero first."""
    count = int((high - low) / (1.5 * gap)) + 1
    grid = np.linspace(low, high, count) if count > 1 else np.array([(low + high) / 2])
    clear = np.abs(grid[:, None] - kinks).min(axis=1) >= gap * (1 + 1e-6) if kinks.size else np.full(grid.shape, True)
    return sorted(grid[clear].tolist(), key=abs)
