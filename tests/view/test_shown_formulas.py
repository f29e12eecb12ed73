"""Every formula that the viewer shows, evaluated, is the gradient that the engine computed: on the samples of every rule.

The evaluation knows no derivative. Formulas of one element become Python and are run; those with indices or words
are carried out as they read, over NumPy arrays.
"""

import collections
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from tapejax.ops.surface.op import Op
from tapejax.verify.samples import FAMILIES, MANY_DEVICES
from tapejax.view.formulas import formula_of
from tests.view.test_formulas import evaluate


class Shown:
    """An action, the formulas that are shown of it, and the numbers they speak of."""

    def __init__(self, function, arguments, name=None):
        wants = [bool(jnp.issubdtype(a.dtype, jnp.inexact)) for a in arguments]
        self.function, self.wants = function, wants
        self.x = [tj.tensor(a, requires_grad=w) for a, w in zip(arguments, wants)]
        with tj.Tape() as tape:
            result = tj.lift(function, name=name)(*self.x) if not isinstance(function, Op) else function(*self.x)
        self.action = tape[-1] if len(tape) else None
        if self.action is None or not isinstance(result, tj.Tensor) or not result.requires_grad:
            self.action = None
            return
        assert len(tape) == 1
        self.formula = formula_of(self.action)
        if self.general:
            return
        rng = np.random.default_rng(7)
        ct = rng.standard_normal(result.shape)
        if jnp.issubdtype(result.dtype, jnp.complexfloating):
            ct = ct + 1j * rng.standard_normal(result.shape)
        self.ct = np.asarray(ct).astype(result.dtype)
        self.out = result.numpy()
        self.grads = tape.backward(result, self.ct)
        self.values = [np.asarray(t.numpy()) for t in self.x]
        eqns = self.action.plan.flat_program.eqns
        self.params = eqns[0].params if len(eqns) == 1 else {}

    @property
    def general(self):
        """Shown as a derivative in general, which is true by its definition, and by its primitives."""
        return not self.formula.backward or any(r"\partial" in line for line in self.formula.backward)

    def operand(self, line):
        """Which operand a line is about, by its letter."""
        letter = line.partition("+=")[0].strip()[len(r"\bar{")]
        return self.formula.letters.index(letter) if letter in self.formula.letters else "xy".index(letter)

    def moved(self):
        """For every element of the result, the place that it came from, counted over all operands; -1: from nowhere."""
        starts = np.cumsum([0] + [v.size for v in self.values[:-1]])
        ids = [
            (np.arange(v.size) + start + 0.25).reshape(v.shape) if wanted else v  # a quarter: no fill value is one
            for v, start, wanted in zip(self.values, starts, self.wants)
        ]
        found = np.real(np.asarray(self.function(*map(jnp.asarray, ids)))).ravel()
        places = np.where(found % 1 == 0.25, found, -1).astype(int)
        return places, starts, sum(v.size for v in self.values)

    def sent_back(self, operand):
        places, starts, total = self.moved()
        sums = np.zeros(total, self.ct.dtype)
        np.add.at(sums, places[places >= 0], self.ct.ravel()[places >= 0])
        value = self.values[operand]
        return sums[starts[operand] : starts[operand] + value.size].reshape(value.shape)


def over_axes(shown, value):
    """A result of a reduction, with the reduced axes back as ones."""
    (x, *_) = shown.values
    axes = shown.params.get("axes", range(x.ndim))
    return np.asarray(value).reshape([1 if d in axes else n for d, n in enumerate(x.shape)])


def each_tie(shown):
    x, y = shown.values[0], over_axes(shown, shown.out)
    axes = tuple(shown.params.get("axes", range(x.ndim)))
    tied = x == y
    return over_axes(shown, shown.ct) * tied / tied.sum(axis=axes, keepdims=True)


def product_of_others(shown):
    x, found = shown.values[0], np.zeros_like(shown.values[0])
    axes = tuple(shown.params.get("axes", range(x.ndim)))
    for place in np.ndindex(x.shape):
        others = x.copy()
        others[place] = 1
        found[place] = over_axes(shown, others.prod(axis=axes))[
            tuple(0 if d in axes else i for d, i in enumerate(place))
        ]
    return over_axes(shown, shown.ct) * found


def running(shown, *, later):
    axis = shown.params["axis"]
    n = shown.values[0].shape[axis]
    weights = np.tril(np.ones((n, n))) if later else np.triu(np.ones((n, n)))  # [i, j]: i >= j, or i <= j
    return np.moveaxis(np.tensordot(weights, shown.ct, (0, axis)), 0, axis)


def convolved(shown, *, to):
    """The two lines of a convolution with stride 1, as loops over the window."""
    numbers = shown.params["dimension_numbers"]
    lhs, rhs, out = (list(spec) for spec in (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec))
    x, y = np.transpose(shown.values[0], lhs), np.transpose(shown.values[1], rhs)  # batch, in, ...; out, in, ...
    ct = np.transpose(shown.ct, out)
    padding, window = shown.params["padding"], y.shape[2:]
    sent = np.zeros_like(x if to == 0 else y)
    for place in np.ndindex(*ct.shape[2:]):
        for tap in np.ndindex(*window):
            at = tuple(p + t - low for p, t, (low, _) in zip(place, tap, padding))
            if any(a < 0 or a >= n for a, n in zip(at, x.shape[2:])):
                continue
            here = ct[(slice(None), slice(None), *place)]  # batch, out
            if to == 0:
                sent[(slice(None), slice(None), *at)] += here @ y[(slice(None), slice(None), *tap)]
            else:
                sent[(slice(None), slice(None), *tap)] += here.T @ x[(slice(None), slice(None), *at)]
    return np.transpose(sent, np.argsort(lhs if to == 0 else rhs))


def swap(matrix):
    return np.swapaxes(matrix, -1, -2)


# What is shown in words or with indices, carried out as it reads.
AS_IT_READS = {
    r"\bar{x}_i += \bar{y}": lambda s: over_axes(s, s.ct) * np.ones_like(s.values[0]),
    r"\bar{x}_i += \frac{\bar{y}}{n}": lambda s: s.ct / s.values[0].size * np.ones_like(s.values[0]),
    r"\bar{x}_i += \bar{y} \, \frac{2}{m} (x_i - \mu)": lambda s: s.ct * 2 / s.m * (s.values[0] - s.values[0].mean()),
    r"\bar{x}_i += \bar{y} [x_i = y]": each_tie,
    r"\bar{x}_i += \bar{y} \prod_{j \ne i} x_j": product_of_others,
    r"\bar{x}_j += \sum_{i \ge j} \bar{y}_i": lambda s: running(s, later=True),
    r"\bar{x}_j += \sum_{i \le j} \bar{y}_i": lambda s: running(s, later=False),
    r"\bar{x}_i += y_i \, (\bar{y}_i - \sum_j \bar{y}_j y_j)": lambda s: (
        s.out * (s.ct - (s.ct * s.out).sum(-1, keepdims=True))
    ),
    r"\bar{x}_i += \bar{y}_i - \exp(y_i) \sum_j \bar{y}_j": lambda s: (
        s.ct - np.exp(s.out) * s.ct.sum(-1, keepdims=True)
    ),
    r"\bar{x}_i += \bar{y} \exp(x_i - y)": lambda s: s.ct * np.exp(s.values[0] - s.out),
    r"\bar{x}_i += \bar{y} \, \frac{x_i}{y}": lambda s: s.ct * s.values[0] / s.out,
    r"\bar{x} += \bar{y}^\top": lambda s: swap(s.ct),
    r"\bar{x} += \bar{z} \, y^\top": lambda s: s.ct @ swap(s.values[1]),
    r"\bar{y} += x^\top \bar{z}": lambda s: swap(s.values[0]) @ s.ct,
    r"\bar{x} += -y^\top \bar{y} y^\top": lambda s: -swap(s.out) @ s.ct @ swap(s.out),
    r"\bar{x} += \bar{y} y \, x^{-\top}": lambda s: (s.ct * s.out)[..., None, None] * swap(np.linalg.inv(s.values[0])),
    r"\bar{x} += \text{z̄ ⋆ (y flipped)}": lambda s: convolved(s, to=0),
    r"\bar{y} += x \star \bar{z}": lambda s: convolved(s, to=1),
}
MOVED = {  # what only moves elements, or copies them
    r"\bar{x} += \text{ȳ in the shape of x}",
    r"\bar{x} += \text{ȳ with its axes in the order of x}",
    r"\bar{x} += \text{ȳ reversed}",
    r"\bar{x} += \sum_{\text{copies}} \bar{y}",
    r"\bar{x}[i] += \bar{y}",
    r"\bar{x}[t] += \bar{y}",
}


def carried_out(shown, line):
    """[(operand, what the line says that it gets)]"""
    if r"[\text{part k}]" in line:
        return [(k, shown.sent_back(k)) for k in range(len(shown.values))]
    operand = shown.operand(line)
    if line in MOVED:
        return [(operand, shown.sent_back(operand))]
    if line in AS_IT_READS:
        return [(operand, AS_IT_READS[line](shown))]
    right = line.split("+=")[1].strip()
    if r"\sum_{" in right or (r"\,_" in right) or "_{" in right:
        return [(operand, by_einsum(shown, line))]
    letters = shown.formula.letters or (["x", "y", "z"] if len(shown.values) == 2 else ["x", "y"])
    names = {letter: value for letter, value in zip(letters, [*shown.values, shown.out]) if letter}
    names |= {f"{letters[-1]}_bar": shown.ct}
    if "[c]" in right or "not" in right:
        chosen = np.asarray(names["c"]).astype(bool)
        return [(operand, shown.ct * (chosen if "[c]" in right else ~chosen))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 0 * log 0
        found = evaluate(right, **{name: jnp.asarray(value) for name, value in names.items()})
    found = np.asarray(found) * np.ones_like(shown.out)
    ties = any("tie" in note.lower() or "one half" in note for note in shown.formula.notes)
    if ties:
        found = found + shown.ct * (shown.values[0] == shown.values[1]) / 2
    return [(operand, found)]


def by_einsum(shown, line):
    values = {"x": shown.values[0], "y": shown.values[1], r"\bar{z}": shown.ct}
    left, right = line.split(" += ")
    terms = re.findall(r"(\\bar\{z\}|x|y)(?:_\{(\w+)\})?", re.sub(r"\\sum_\{\w+\} ", "", right))
    (axes,) = re.findall(r"^\\bar\{[xy]\}(?:_\{(\w+)\})?", left)
    return np.einsum(",".join(a for _, a in terms) + "->" + axes, *[values[name] for name, _ in terms])


def to_shape(found, shape):
    """What was stretched by broadcasting is summed, as the note below the formula says."""
    found = np.asarray(found)
    found = found.sum(axis=tuple(range(found.ndim - len(shape)))) if found.ndim > len(shape) else found
    stretched = tuple(d for d, n in enumerate(shape) if n == 1 and found.shape[d] != 1)
    return found.sum(axis=stretched, keepdims=True) if stretched else found


def check(shown, where):
    sums = {}
    for line in shown.formula.backward:
        for operand, found in carried_out(shown, line):
            found = to_shape(found, shown.values[operand].shape)
            sums[operand] = sums.get(operand, 0) + found
    for operand, tensor in enumerate(shown.x):
        if not shown.wants[operand]:
            continue
        expected = np.asarray(shown.grads[tensor])
        assert operand in sums, f"{where}: nothing is shown for operand {operand}"
        if "A real operand gets the real part." in shown.formula.notes and not np.iscomplexobj(expected):
            sums[operand] = np.real(sums[operand])
        finite = np.isfinite(sums[operand])  # at a pole, and where 0 log 0 is taken as its limit, there is no number
        np.testing.assert_allclose(
            np.where(finite, sums[operand], expected),
            expected,
            rtol=2e-6,
            atol=1e-9,
            err_msg=f"{where}: {shown.formula.backward}",
        )


# Where jax's own gradient is not that of the function, so that no formula of the function can be.
NOT_OF_THE_FUNCTION = {
    ("gather", 4): "an index out of range is clipped on the way forward, and dropped on the way back"
}


def samples():
    for family, entries in FAMILIES.items():
        if family in MANY_DEVICES:
            continue
        for primitive, of_it in entries.items():
            for number, sample in enumerate(of_it):
                if (str(primitive), number) in NOT_OF_THE_FUNCTION:
                    continue
                dtypes = sample.dtypes or ("float64",)
                dtype = next((d for d in ("float64", "complex128") if d in dtypes), dtypes[0])
                yield str(primitive), number, sample, np.dtype(jnp.dtype(dtype))


@pytest.mark.slow
def test_every_shown_formula_evaluated_is_the_engines_gradient(capsys):
    with jax.enable_x64(True):
        counts, general, wrong = collections.Counter(), collections.Counter(), []
        for name, number, sample, dtype in samples():
            if dtype.itemsize < 8:  # of half precision only: the same rule, and no digits to compare
                continue
            rng = np.random.default_rng(number)
            shown = Shown(sample.function, [np.asarray(make(rng, dtype)) for make in sample.arguments])
            if shown.action is None:
                continue  # no derivative, so none is shown
            if shown.general:
                general[name] += 1
                continue
            try:
                check(shown, f"{name} {number}")
                counts[name] += 1
            except Exception as error:
                wrong.append(f"{name} {number}: {type(error).__name__}: {error}"[:700])
    with capsys.disabled():
        print(f"\nformulas: {len(counts)} rules, {counts.total()} samples equal the engine's gradient; ", end="")
        print(
            f"{general.total()} samples of {len(general)} rules are shown as a derivative in general, by their primitives"
        )
    assert not wrong, "\n".join(wrong)
    assert len(counts) >= 50
    assert counts.total() >= 150


def array(*shape, seed=0, low=0.3):
    return np.random.default_rng(seed).uniform(low, 2.0, shape)


OPS = {
    "var": (lambda x: tj.numpy.var(x), 1, 0), "var, ddof": (lambda x: tj.numpy.var(x, ddof=1), 1, 1),
    "mean": (lambda x: tj.numpy.mean(x), 1, 0), "norm": (lambda x: tj.numpy.linalg.norm(x), 1, 0),
    "norm, of order 1": (lambda x: tj.numpy.linalg.norm(x, ord=1, axis=0), 1, 0), "square": (lambda x: x**2, 1, 0),
    "cube": (lambda x: x**3, 1, 0), "power": (lambda x: x**1.5, 1, 0), "softmax": (lambda x: tj.nn.softmax(x), 1, 0),
    "log_softmax": (lambda x: tj.nn.log_softmax(x), 1, 0), "logsumexp": (lambda x: tj.nn.logsumexp(x), 1, 0),
    "logsumexp, weighted": (lambda x: tj.nn.logsumexp(x, b=2.0), 1, 0), "silu": (lambda x: tj.nn.silu(x), 1, 0),
    "log_sigmoid": (lambda x: tj.nn.log_sigmoid(x), 1, 0), "clip": (lambda x: tj.numpy.clip(x, 0.5, 1.5), 1, 0),
    "clip from below": (lambda x: tj.numpy.clip(x, 0.5), 1, 0), "max": (lambda x: x.max(), 1, 0), "T": (lambda x: x.T, 1, 0),
    "max over a part": (lambda x: tj.numpy.max(x, where=np.eye(2, 3) > 0, initial=-9.0), 1, 0),
    "sum over a part": (lambda x: tj.numpy.sum(x, where=np.eye(2, 3) > 0), 1, 0),
    "product with itself": (lambda x: x * x, 1, 0), "quotient": (lambda x, y: x / y, 2, 0),
    "reciprocal": (lambda x: 1.0 / x, 1, 0), "difference": (lambda x: 2.0 - x, 1, 0),
    "a sum that is called mean": (tj.lift(lambda x: jnp.sum(x) ** 3, name="mean"), 1, 0),
    "a square in one op": (tj.lift(lambda x: x * x, name="mul"), 1, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", OPS)
def test_ops_as_people_call_them(name):
    function, count, less = OPS[name]
    with jax.enable_x64(True):
        x = [tj.tensor(array(2, 3, seed=i), requires_grad=True) for i in range(count)]
        with tj.Tape() as tape:
            result = function(*x)
        (action,) = tape
        shown = Shown.__new__(Shown)
        shown.action, shown.formula, shown.function = action, formula_of(action), function
        if shown.general:
            return
        rng = np.random.default_rng(3)
        shown.ct, shown.out = np.asarray(rng.standard_normal(result.shape)), result.numpy()
        shown.grads = tape.backward(result, shown.ct)
        known = {t.id.number: t for t in x}
        constants = iter([2.0, 0.5, 1.5] if "clip" not in name else [0.5, 1.5])
        shown.x = [known.get(id.number) for id in action.inputs]
        literals = {"power": 1.5, "reciprocal": 1.0, "difference": 2.0}
        shown.values = [
            t.numpy() if t is not None else np.asarray(literals.get(name, next(constants, 0.0))) for t in shown.x
        ]
        shown.wants = [t is not None for t in shown.x]
        shown.params, shown.m = {}, 6 - less
        check_by_tensor(shown, name)


def check_by_tensor(shown, where):
    """As `check`, where one tensor may be several operands: its gradient is the sum of what they get."""
    sums = {}
    for line in shown.formula.backward:
        for operand, found in carried_out(shown, line):
            tensor = shown.x[operand]
            if tensor is not None:
                sums[tensor.id.number] = sums.get(tensor.id.number, 0) + to_shape(found, tensor.shape)
    for tensor in shown.x:
        if tensor is not None:
            np.testing.assert_allclose(sums[tensor.id.number], shown.grads[tensor], rtol=1e-9, err_msg=where)


def test_options_that_make_another_function_show_no_formula_of_the_plain_one():
    with jax.enable_x64(True):
        for name in ("norm, of order 1", "logsumexp, weighted", "sum over a part", "a sum that is called mean"):
            with tj.Tape() as tape:
                OPS[name][0](tj.tensor(array(2, 3), requires_grad=True))
            assert r"\partial" in "".join(formula_of(tape[0]).backward), name
