r"""The rule of an op in mathematical form: what ran, and what each input's gradient gets.

x̄ is the gradient of the loss with respect to x. Ops with one operand are y = f(x), with two z = f(x, y).
An op that is not in the table is shown by the rules of the primitives it is made of, an action of
somebody's own by its docstring.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from dataclasses import dataclass, field
from typing import Any

from tapejax.plan.plan import OpAction
from tapejax.rules import lookup
from tapejax.tape.action import TapeAction
from tapejax.view import mathematics

X, Y, Z = r"\bar{x}", r"\bar{y}", r"\bar{z}"

# slope of y = f(x): both sides in LaTeX
_SLOPES = {
    "exp": (r"\exp(x)", "y"),
    "exp2": (r"2^x", r"y \log 2"),
    "expm1": (r"\exp(x) - 1", r"\exp(x)"),
    "log": (r"\log(x)", r"\frac{1}{x}"),
    "log1p": (r"\log(1 + x)", r"\frac{1}{1 + x}"),
    "log2": (r"\log_2(x)", r"\frac{1}{x \log 2}"),
    "log10": (r"\log_{10}(x)", r"\frac{1}{x \log 10}"),
    "sin": (r"\sin(x)", r"\cos(x)"),
    "cos": (r"\cos(x)", r"(-\sin(x))"),
    "tan": (r"\tan(x)", r"(1 + y^2)"),
    "arcsin": (r"\arcsin(x)", r"\frac{1}{\sqrt{1 - x^2}}"),
    "arccos": (r"\arccos(x)", r"\frac{-1}{\sqrt{1 - x^2}}"),
    "arctan": (r"\arctan(x)", r"\frac{1}{1 + x^2}"),
    "sinh": (r"\sinh(x)", r"\cosh(x)"),
    "cosh": (r"\cosh(x)", r"\sinh(x)"),
    "tanh": (r"\tanh(x)", r"(1 - y^2)"),
    "arcsinh": (r"\arcsinh(x)", r"\frac{1}{\sqrt{1 + x^2}}"),
    "arccosh": (r"\arccosh(x)", r"\frac{1}{\sqrt{x^2 - 1}}"),
    "arctanh": (r"\arctanh(x)", r"\frac{1}{1 - x^2}"),
    "square": (r"x^2", r"2x"),
    "sqrt": (r"\sqrt{x}", r"\frac{1}{2y}"),
    "rsqrt": (r"\frac{1}{\sqrt{x}}", r"(-\frac{y^3}{2})"),
    "cbrt": (r"x^{1/3}", r"\frac{1}{3 y^2}"),
    "reciprocal": (r"\frac{1}{x}", r"(-y^2)"),
    "logistic": (r"\sigma(x)", r"y (1 - y)"),
    "erf": (r"\erf(x)", r"\frac{2}{\sqrt{\pi}} \exp(-x^2)"),
    "abs": (r"|x|", r"([x \ge 0] - [x < 0])"),
    "relu": (r"\max(x, 0)", r"[x > 0]"),
    "softplus": (r"\log(1 + \exp(x))", r"\sigma(x)"),
    "silu": (r"x \, \sigma(x)", r"(\sigma(x) + y (1 - \sigma(x)))"),
    "log_sigmoid": (r"\log(\sigma(x))", r"\sigma(-x)"),
}
_SAME = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh",
         "sigmoid": "logistic", "swish": "silu", "absolute": "abs", "fabs": "abs", "expit": "logistic"}  # fmt: skip

_TABLE: dict[str, tuple[str, list[str]]] = {
    name: (f"y = {value}", [f"{X} += {Y} \\odot {slope}"]) for name, (value, slope) in _SLOPES.items()
}
_TABLE |= {name: _TABLE[other] for name, other in _SAME.items()}


def _put(names: str, forward: str, *backward: str) -> None:
    for name in names.split():
        _TABLE[name] = (forward, list(backward))


_put("add", "z = x + y", f"{X} += {Z}", f"{Y} += {Z}")
_put("subtract sub", "z = x - y", f"{X} += {Z}", f"{Y} += -{Z}")
_put("multiply mul", r"z = x \odot y", rf"{X} += {Z} \odot y", rf"{Y} += {Z} \odot x")
_put(
    "divide true_divide div",
    r"z = \frac{x}{y}",
    rf"{X} += \frac{{{Z}}}{{y}}",
    rf"{Y} += -\frac{{{Z} \odot z}}{{y}}",
)
_put("negative neg", "y = -x", f"{X} += -{Y}")
_put("power pow float_power", "z = x^y", rf"{X} += {Z} \odot y \, x^{{y-1}}", rf"{Y} += {Z} \odot z \log x")
_put("integer_pow", "y = x^n", rf"{X} += {Y} \odot n \, x^{{n-1}}")  # shown with its n: see _by_parameters
_put(
    "maximum max", r"z = \max(x, y)", rf"{X} += {Z} \odot [x > y]", rf"{Y} += {Z} \odot [y > x]",
    r"\text{where x = y, each gets one half}",
)  # fmt: skip
_put(
    "minimum min", r"z = \min(x, y)", rf"{X} += {Z} \odot [x < y]", rf"{Y} += {Z} \odot [y < x]",
    r"\text{where x = y, each gets one half}",
)  # fmt: skip
_put("matmul dot", "z = x \\, y", rf"{X} += {Z} \, y^\top", rf"{Y} += x^\top {Z}")
_put(
    "dot_general", r"z_{ij} = \sum_k x_{ik} \, y_{kj}",
    rf"{X}_{{ik}} += \sum_j {Z}_{{ij}} \, y_{{kj}}", rf"{Y}_{{kj}} += \sum_i x_{{ik}} \, {Z}_{{ij}}",
)  # fmt: skip
_put("outer", r"z = x \, y^\top", rf"{X} += {Z} \, y", rf"{Y} += {Z}^\top x")
_put("sum reduce_sum", r"y = \sum_i x_i", rf"{X}_i += {Y}")
_put("mean", r"y = \frac{1}{n} \sum_i x_i", rf"{X}_i += \frac{{{Y}}}{{n}}")
_put(
    "var", r"y = \frac{1}{m} \sum_i (x_i - \mu)^2", rf"{X}_i += {Y} \, \frac{{2}}{{m}} (x_i - \mu)",
    r"\text{m is how many there are, less ddof}",
)  # fmt: skip
_put("prod reduce_prod", r"y = \prod_i x_i", rf"{X}_i += {Y} \prod_{{j \ne i}} x_j")
_put("max_ amax reduce_max", r"y = \max_i x_i", rf"{X}_i += {Y} [x_i = y]", r"\text{those that tie share it}")
_put("min_ amin reduce_min", r"y = \min_i x_i", rf"{X}_i += {Y} [x_i = y]", r"\text{those that tie share it}")
_put("cumsum", r"y_i = \sum_{j \le i} x_j", rf"{X}_j += \sum_{{i \ge j}} {Y}_i")
_put(
    "softmax", r"y_i = \frac{\exp(x_i)}{\sum_j \exp(x_j)}",
    rf"{X}_i += y_i \, ({Y}_i - \sum_j {Y}_j y_j)",
)  # fmt: skip
_put(
    "log_softmax", r"y_i = x_i - \log \sum_j \exp(x_j)",
    rf"{X}_i += {Y}_i - \exp(y_i) \sum_j {Y}_j",
)  # fmt: skip
_put("logsumexp", r"y = \log \sum_j \exp(x_j)", rf"{X}_i += {Y} \exp(x_i - y)")
_put("transpose T matrix_transpose swapaxes moveaxis", r"y = x^\top", rf"{X} += {Y}^\top")
_put(
    "reshape ravel flatten squeeze expand_dims",
    r"y = \text{x in another shape}",
    rf"{X} += \text{{ȳ in the shape of x}}",
)
_put(
    "broadcast_in_dim broadcast_to", r"y = \text{copies of x}",
    rf"{X} += \sum_{{\text{{copies}}}} {Y}",
)  # fmt: skip
_put("getitem slice dynamic_slice gather take", r"y = x[i]", rf"{X}[i] += {Y}", r"\text{and zero elsewhere}")
_put("scan_slice", r"y = x[t]", rf"{X}[t] += {Y}", r"\text{and zero elsewhere}")
_put("concatenate stack hstack vstack scan_stack", r"y = [x_1, x_2, \ldots]", rf"{X}_k += {Y}[\text{{part k}}]")
_put(
    "where select_n",
    r"y = c \, ? \, a : b",
    r"\bar{a} += \bar{y} \odot [c]",
    r"\bar{b} += \bar{y} \odot [\text{not } c]",
)
_put(
    "clip clamp", r"y = \min(\max(x, a), b)", rf"{X} += {Y} \odot [a < x < b]",
    rf"\bar{{a}} += {Y} \odot [x < a]", rf"\bar{{b}} += {Y} \odot [x > b]",
)  # fmt: skip
_put("convert_element_type astype copy", r"y = x", rf"{X} += {Y}")
_put("rev flip", r"y = \text{x reversed}", rf"{X} += \text{{ȳ reversed}}")
_put("linalg_norm norm", r"y = \sqrt{\sum_i x_i^2}", rf"{X}_i += {Y} \, \frac{{x_i}}{{y}}")
_put(
    "conv_general_dilated conv", r"z = x \star y",
    rf"{X} += \text{{z̄ ⋆ (y flipped)}}", rf"{Y} += x \star {Z}",
)  # fmt: skip
_put("inv", r"y = x^{-1}", rf"{X} += -y^\top {Y} y^\top")
_put("det", r"y = \det x", rf"{X} += {Y} y \, x^{{-\top}}")
_put("Alias", r"y = x", rf"{X} += {Y}")


# Actions of the library itself that stand for more than one op.
_OWN = {"CheckpointAction": "Runs its function again from its inputs, and goes back through what that records."}


@dataclass(slots=True)
class Formula:
    """A rule to show. LaTeX in `forward` and `backward`, words in `notes`, code in `source`."""

    forward: str = ""
    backward: list[str] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)  # what the operands, then the results are called in it
    parts: list[tuple[str, str, str]] = field(default_factory=list)  # of a composite: name, forward, backward
    notes: list[str] = field(default_factory=list)
    source: str = ""

    def html(self) -> dict[str, Any]:
        return {
            "forward": mathematics.mathml(self.forward, self.letters) if self.forward else "",
            "backward": [mathematics.mathml(line, self.letters) for line in self.backward],
            "parts": [
                [name, *(mathematics.mathml(half) if half else "" for half in halves)] for name, *halves in self.parts
            ],
            "notes": self.notes,
            "source": self.source,
        }


def formula_of(action: TapeAction) -> Formula:
    """The rule of an action, as well as it is known."""
    if not isinstance(action, OpAction):
        return _of_ones_own(action)
    plan = action.plan
    found = _known(plan)
    result = _generic(action) if found is None else _filled(found, action)
    if found is None:
        _open(action, result)
    if any(_stretched(plan, i) for i, wanted in enumerate(plan.wrt) if wanted) and _is_elementwise(found):
        result.notes.append("An operand was stretched by broadcasting: its gradient is summed over the stretched axes.")
    if any(kind.aval.dtype.kind == "c" for kind in plan.out_kinds) and any(
        wanted and aval.dtype.kind != "c" for aval, wanted in zip(plan.examples, plan.wrt)
    ):
        result.notes.append("A real operand gets the real part.")
    if plan.foreign:
        result.notes.append(f"Differentiated by jax's own rule: {', '.join(plan.foreign)}.")
    return result


def _known(plan: Any) -> tuple[str, list[str]] | None:
    """The formulas of an op: by the one primitive that it is, or by its name if it is a function of jax's."""
    program = plan.flat_program
    if [eqn.name for eqn in program.eqns] == ["dot_general"]:
        return _product(plan)
    if len(program.eqns) == 1:
        (eqn,) = program.eqns
        whole = list(eqn.inputs) == list(program.inputs) and eqn.outputs == tuple(program.outputs)
        if whole and not eqn.name.startswith("custom_"):
            return _by_parameters(eqn, plan)
    # `max` over axes and `max` of two numbers have one name
    name = f"{plan.name}_" if plan.name in ("max", "min") and plan.n_in == 1 else plan.name
    module = getattr(getattr(plan.function, "__wrapped__", plan.function), "__module__", "") or ""
    if module.partition(".")[0] not in ("jax", "tapejax") or not _as_written(name, plan):
        return None  # a function of the user's may be called like one of jax's
    return _TABLE.get(name)


def _by_parameters(eqn: Any, plan: Any) -> tuple[str, list[str]] | None:
    """The formulas of a primitive as it was called."""
    found, params = _TABLE.get(eqn.name), eqn.params
    dtypes = {aval.dtype.kind for aval, wanted in zip(plan.examples, plan.wrt) if wanted}
    if eqn.name == "integer_pow":
        n = params["y"]
        slope = {2: "2x", 1: "1"}.get(n, rf"{n} \, x^{{{n - 1}}}")
        return f"y = x^{{{n}}}", [rf"{X} += {Y} \odot ({slope})"]
    if eqn.name == "cumsum" and params["reverse"]:
        return r"y_i = \sum_{j \ge i} x_j", [rf"{X}_j += \sum_{{i \le j}} {Y}_i"]
    if eqn.name == "transpose" and len(params["permutation"]) != 2:
        return r"y = \text{x with its axes in another order}", [rf"{X} += \text{{ȳ with its axes in the order of x}}"]
    if eqn.name == "select_n" and plan.n_in != 3:
        return None
    if eqn.name == "conv_general_dilated":
        one = lambda sizes: all(size == 1 for size in sizes)
        plain = one(params["window_strides"]) and one(params["lhs_dilation"]) and one(params["rhs_dilation"])
        return found if plain and params["feature_group_count"] == params["batch_group_count"] == 1 else None
    if "c" in dtypes and eqn.name in ("abs", "sign", "convert_element_type"):
        return None  # of complex numbers it is another rule
    return found


def _as_written(name: str, plan: Any) -> bool:
    """Whether an op's program is what the table says under its name: options may make it another function."""
    made_of = {eqn.name for eqn in plan.flat_program.eqns}
    if any(aval.dtype.kind == "c" for aval in plan.examples) and name in ("var", "norm", "linalg_norm", "abs"):
        return False
    if name in ("sum", "mean", "prod", "var", "softmax", "log_softmax") and "where" in made_of | set(
        plan.shown.split()
    ):
        return False
    if name in ("sum", "mean", "prod", "max_", "min_", "amax", "amin") and "select_n" in made_of:
        return False  # over a part of the elements only
    if name in ("norm", "linalg_norm"):
        return "sqrt" in made_of and not made_of & {"svd", "pow", "reduce_max", "reduce_min"}
    if name == "logsumexp":
        return "mul" not in made_of  # weights
    if name in ("clip", "clamp"):
        return plan.n_in == 3
    if name in ("where", "select_n"):
        return plan.n_in == 3
    if name in _TABLE and _TABLE[name][0].startswith("z "):
        return plan.n_in == 2
    return True


def _product(plan: Any) -> tuple[str, list[str]] | None:
    """A product of arrays by the axes that its operands have; None if there is more to it."""
    program = plan.flat_program
    eqns, shapes = program.eqns, [aval.shape for aval in plan.examples]
    if [eqn.name for eqn in eqns] != ["dot_general"] or list(eqns[0].inputs) != list(program.inputs):
        return None
    if eqns[0].outputs != tuple(program.outputs):
        return None
    left, right, result = axes_of_product(eqns[0].params["dimension_numbers"], *map(len, shapes))
    if (left, right, result) == ("ik", "kj", "ij"):
        return _TABLE["matmul"]
    at = lambda letter, axes: f"{letter}_{{{axes}}}" if axes else letter
    only = lambda axes, others: "".join([axis for axis in axes if axis not in others])

    def product(a: str, b: str, over: str) -> str:
        return (rf"\sum_{{{over}}} " if over else "") + a + r" \, " + b

    x, y, z = at("x", left), at("y", right), at(Z, result)
    forward = f"{at('z', result)} = {product(x, y, only(left, result))}"
    to_x, to_y = product(z, y, only(right, left)), product(x, z, only(left, right))
    return forward, [f"{at(X, left)} += {to_x}", f"{at(Y, right)} += {to_y}"]


def axes_of_product(dimension_numbers: Any, n_left: int, n_right: int) -> tuple[str, str, str]:
    """A letter for each axis of two operands and of their product, as in einsum."""
    (sum_left, sum_right), (batch_left, batch_right) = dimension_numbers
    left, right = [""] * n_left, [""] * n_right
    for letters, pairs in (("bcdef", zip(batch_left, batch_right)), ("klmno", zip(sum_left, sum_right))):
        for letter, (i, j) in zip(letters, pairs):
            left[i] = right[j] = letter
    for letters, axes in (("ipqrs", left), ("jtuvw", right)):
        free = iter(letters)
        axes[:] = [letter or next(free) for letter in axes]
    batch = [left[i] for i in batch_left]
    apart = [a for a in left if a not in right] + [a for a in right if a not in left]
    return "".join(left), "".join(right), "".join(batch + apart)


def _filled(found: tuple[str, list[str]], action: OpAction) -> Formula:
    forward, lines = found
    backward = [line for line in lines if "+=" in line]
    words = [mathematics.text(line) for line in lines if "+=" not in line]
    letters = ["x", "y", "z"]
    if forward.startswith("y") and "x_1" not in forward:  # further operands are indices and the like
        letters = ["x", *[""] * (len(action.inputs) - 1), "y"]
    if r"\max(x, a)" in forward:
        letters = ["x", "a", "b", "y"] if action.plan.name == "clip" else ["a", "x", "b", "y"]
    if "?" in forward:
        letters = ["c", "b", "a", "y"] if action.plan.name == "select_n" else ["c", "a", "b", "y"]
    wrt = action.plan.wrt
    if len(wrt) == 2 and len(backward) == 2:
        backward = [line for line, wanted in zip(backward, wrt) if wanted]
    elif len(wrt) == 3:
        unwanted = [rf"\bar{{{letter}}}" for letter, wanted in zip(letters, wrt) if letter and not wanted]
        backward = [line for line in backward if not line.startswith(tuple(unwanted))]
    if len(action.inputs) + len(action.numbers) != len(letters):
        letters = []
    return Formula(forward, backward, letters, notes=[word[:1].upper() + word[1:] + "." for word in words])


def _generic(action: OpAction) -> Formula:
    count = len(action.inputs)
    names = ["x"] if count == 1 else ["x", "y"] if count == 2 else [f"x_{i + 1}" for i in range(min(count, 9))]
    out = "z" if count == 2 else "y"
    if count > 9 or len(action.numbers) != 1:
        return Formula(r"y = f(x_1, x_2, \ldots)", [r"\bar{x}_k += (\frac{\partial y}{\partial x_k})^\top \bar{y}"], [])
    name = action.plan.name.strip("<>_") or "f"
    backward = [
        rf"\bar{{{letter[0]}}}{letter[1:]} += (\frac{{\partial {out}}}{{\partial {letter}}})^\top \bar{{{out}}}"
        for letter, wanted in zip(names, action.plan.wrt)
        if wanted
    ]
    shown = f"\\text{{{name}}}" if not set("{}\\") & set(name) else "f"
    return Formula(rf"{out} = {shown}({', '.join(names)})", backward[:4], [*names, out] if count < 3 else [])


def _open(action: OpAction, result: Formula) -> None:
    """Show what a composite op is made of: the formulas of its primitives, or the words of their rules."""
    seen = set()
    for eqn in action.plan.flat_program.eqns:
        entry = lookup(eqn.primitive)
        if eqn.name in seen or getattr(entry, "kind", "rule") != "rule":
            continue
        seen.add(eqn.name)
        found = _TABLE.get(eqn.name)
        if found is not None:
            result.parts.append((eqn.name, found[0], r" \quad ".join(line for line in found[1] if "+=" in line)))
        elif getattr(entry, "doc", ""):
            words = entry.doc.splitlines()[0]
            plain = re.sub(r"[^\w\s.,;:=+*/()-]", " ", words).replace("_", " ")
            result.parts.append((eqn.name, rf"\text{{{plain}}}", ""))
    if len(result.parts) > 8:
        result.notes.append(f"and {len(result.parts) - 8} primitives more")
        del result.parts[8:]
    if len(result.parts) > 1:
        result.notes.insert(0, "The chain rule through its primitives:")


def _of_ones_own(action: TapeAction) -> Formula:
    name = type(action).__name__
    if name in _TABLE:
        forward, backward = _TABLE[name]
        return Formula(forward, list(backward), ["x", "y"])
    custom = getattr(action, "custom", None)
    function = getattr(custom, "_backward", None) or type(action).backward
    doc = inspect.getdoc(function) if function.__doc__ else inspect.getdoc(type(action))
    doc = "" if doc == inspect.getdoc(TapeAction) or doc == inspect.getdoc(TapeAction.backward) else doc or ""
    if type(action).__module__.startswith("tapejax.") and custom is None:
        return Formula(notes=[_OWN.get(name) or doc.partition("\n")[0]])
    source = _source(function)
    lines = source.splitlines()
    if len(lines) > 14:
        source = "\n".join([*lines[:13], "    ..."])
    return Formula(notes=[doc.splitlines()[0]] if doc else [], source=source)


def _source(function: Any) -> str:
    """A function's text; empty if nobody kept it. "<string>" is the name of all that was evaluated, and of `python -c`
    too, whose text Python 3.13 keeps: that one is not the function's."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or code.co_filename == "<string>":
        return ""
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return ""


def _stretched(plan: Any, position: int) -> bool:
    return plan.n_out == 1 and plan.examples[position].shape != plan.out_kinds[0].aval.shape


def _is_elementwise(found: tuple[str, list[str]] | None) -> bool:
    return found is not None and found[0].startswith("z ") and found not in (_TABLE["matmul"], _TABLE["dot_general"], _TABLE["outer"], _TABLE["conv"])  # fmt: skip
