"""The formulas that are shown are true: each is evaluated, and compared with jax's derivative."""

import linecache
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tapejax as tj
from tapejax.view import formulas, mathematics
from tapejax.view.formulas import formula_of
from tests.some import one_in


class Python:
    """A writer of mathematics.py that makes Python of a formula: what stands side by side is multiplied."""

    def row(self, items):
        items = [item for item in items if item]
        parts = []
        for item in items:
            if parts and self.ends(parts[-1]) and self.begins(item):
                parts.append("*")
            parts.append(item)
        # a function without brackets takes what follows: log 2
        text = " ".join(parts)
        return re.sub(r"(jnp\.\w+) \(", r"\1(", re.sub(r"(jnp\.\w+) (\w+)", r"\1(\2)", text))

    def ends(self, item):
        return item not in ("<=", ">=") and item not in "+-*/=,([<>|" and item != "+=" and not item.startswith("jnp.")

    def begins(self, item):
        return item not in ("<=", ">=") and item not in "+-*/=,)]<>|" and item != "+="

    def space(self):
        return ""

    def gap(self, *, wide):
        return ""

    def leaf(self, token):
        return {"⊙": "*", "·": "*", "≥": ">=", "≤": "<=", "σ": "jax.nn.sigmoid", "π": "jnp.pi"}.get(token, token)

    def function(self, name):
        return {"erf": "jax.scipy.special.erf", "max": "jnp.maximum", "min": "jnp.minimum"}.get(name, f"jnp.{name}")

    def bar(self, inner):
        return f"{inner}_bar"

    def sqrt(self, inner):
        return f"jnp.sqrt({inner})"

    def frac(self, above, below):
        return f"(({above}) / ({below}))"

    def scripts(self, base, below, above, *, limits):
        if below is not None:
            base = f"{base}{below}"  # log_2 is jnp.log2
        return base if above is None else f"({base} ** ({above}))"


def evaluate(latex, **names):
    source = mathematics._Reader(latex, Python()).everything()
    source = source.replace("jax.nn.sigmoid *", "jax.nn.sigmoid").replace(
        "jax.scipy.special.erf *", "jax.scipy.special.erf"
    )
    source = source.replace("jnp.log10 *", "jnp.log10").replace("jnp.log2 *", "jnp.log2")
    source = re.sub(r"\[ ?(\w+) < (\w+) < (\w+) ?\]", r"[ \1 < \2 ] * [ \2 < \3 ]", source)
    source = re.sub(r"\[(.+?)\]", r"((\1) * 1.0)", source)  # 1 where it holds
    source = re.sub(r"\|(.+?)\|", r"jnp.abs(\1)", source)
    return eval(source, {"jnp": jnp, "jax": jax, **names})


POINTS = {"arccosh": [1.5, 2.5], "arctanh": [-0.4, 0.6], "arcsin": [-0.4, 0.6], "arccos": [-0.4, 0.6]}


@pytest.mark.parametrize("name", one_in(3, sorted(formulas._SLOPES)))
def test_a_slope_is_the_derivative_of_what_stands_beside_it(name):
    value, slope = formulas._SLOPES[name]
    signed = name not in ("log", "log1p", "log2", "log10", "sqrt", "rsqrt", "cbrt")
    with jax.enable_x64(True):
        x = jnp.array(POINTS.get(name, [-0.7, 1.3] if signed else [0.4, 1.3]), jnp.float64)
        y = evaluate(value, x=x)
        ours = getattr(jnp, name, None) or getattr(jax.nn, {"logistic": "sigmoid"}.get(name, name), None)
        ours = ours or getattr(jax.lax, name, None) or getattr(jax.scipy.special, name)
        np.testing.assert_allclose(y, ours(x), rtol=1e-12)
        np.testing.assert_allclose(
            evaluate(slope, x=x, y=y) * jnp.ones(2), jax.jit(jax.vmap(jax.grad(ours)))(x), rtol=1e-9
        )


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "power", "maximum", "minimum"])
def test_a_rule_of_two_operands_is_true(name):
    forward, lines = formulas._TABLE[name]
    with jax.enable_x64(True):
        x, y = jnp.array([0.7, 1.9]), jnp.array([1.1, 0.4])
        z, pull = jax.vjp(getattr(jnp, name), x, y)
        ct = jnp.array([0.3, -2.0])
        np.testing.assert_allclose(evaluate(forward.removeprefix("z ="), x=x, y=y), z)
        for line, expected in zip([line for line in lines if "+=" in line], pull(ct), strict=True):
            _, shown = line.split("+=")
            np.testing.assert_allclose(evaluate(shown, x=x, y=y, z=z, z_bar=ct), expected, rtol=1e-9)


def test_a_wrong_slope_would_be_seen(monkeypatch):
    monkeypatch.setitem(formulas._SLOPES, "tanh", (r"\tanh(x)", r"(1 - x^2)"))
    with pytest.raises(AssertionError):
        test_a_slope_is_the_derivative_of_what_stands_beside_it("tanh")


def test_every_formula_can_be_drawn():
    for forward, lines in formulas._TABLE.values():
        for line in (forward, *lines):
            assert mathematics.mathml(line, ["x", "y"]).startswith("<math")
            assert "\\" not in mathematics.text(line)
    assert mathematics.text(r"\bar{x} += \frac{\bar{y}}{x^2}") == "x̄ += ȳ/x²"
    with pytest.raises(ValueError, match="not known"):
        mathematics.mathml(r"\unheard")


def first_action(function, *shapes):
    tensors = [tj.tensor(np.ones(shape, np.float32), requires_grad=True) for shape in shapes]
    with tj.Tape() as tape:
        function(*tensors)
    return tape[0]


def test_which_formula_an_action_gets():
    assert formula_of(first_action(lambda x: x @ x, (2, 2))).forward == formulas._TABLE["matmul"][0]
    assert "max_i" in formula_of(first_action(lambda x: x.max(), (3,))).forward
    assert r"\max(x, y)" in formula_of(first_action(tj.numpy.maximum, (3,), (3,))).forward
    assert any("broadcast" in note for note in formula_of(first_action(lambda x, b: x + b, (2, 3), (3,))).notes)
    assert formula_of(first_action(lambda x: x + 1.0, (3,))).backward == [formulas._TABLE["add"][1][0]]
    composite = formula_of(first_action(tj.lift(lambda x: jnp.sin(x) * x), (3,)))
    assert [name for name, *_ in composite.parts] == ["sin", "mul"]


def test_actions_of_ones_own_show_their_words_and_code():
    class Twice(tj.TapeAction):
        """Twice as much."""

        def backward(self, grads):
            grads.insert(self.inputs[0], 2 * grads[self.outputs[0]])

    found = formula_of(Twice())
    assert found.notes == ["Twice as much."]
    assert "2 * grads" in found.source
    made = type("Made", (tj.TapeAction,), {"backward": eval("lambda self, grads: None")})
    assert formula_of(made()).source == ""


def test_evaluated_code_is_not_shown_with_the_text_of_the_command(monkeypatch):
    lines = ["import sys; exec(sys.stdin.read())\n"]
    monkeypatch.setitem(linecache.cache, "<string>", (len(lines[0]), None, lines, "<string>"))  # as Python 3.13 does
    made = type("Made", (tj.TapeAction,), {"backward": eval("lambda self, grads: None")})
    assert formula_of(made()).source == ""


PRODUCTS = [
    ("vector and matrix", lambda x, y: x @ y, (3,), (3, 4)),
    ("matrix and vector", lambda x, y: x @ y, (2, 3), (3,)),
    ("two vectors", lambda x, y: x @ y, (3,), (3,)),
    ("tensordot over two axes", lambda x, y: jax.lax.dot_general(x, y, (((1, 2), (0, 1)), ((), ()))), (2, 3, 4), (3, 4, 5)),
    ("a batch", lambda x, y: jax.lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))), (2, 3, 4), (2, 4, 5)),
    ("the second axes", lambda x, y: jax.lax.dot_general(x, y, (((1,), (1,)), ((), ()))), (2, 3), (4, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("function", "left", "right"), [p[1:] for p in PRODUCTS], ids=[p[0] for p in PRODUCTS])
def test_a_product_is_shown_by_the_axes_that_its_operands_have(function, left, right):
    rng = np.random.default_rng(0)
    x, y = (tj.tensor(rng.standard_normal(shape).astype("f"), requires_grad=True) for shape in (left, right))
    with tj.Tape() as tape:
        z = tj.lift(function, name="matmul")(x, y)
    found = formula_of(tape[0])
    ct = rng.standard_normal(z.shape).astype("f")
    grads = tape.backward(z, ct)
    values = {"x": x.numpy(), "y": y.numpy(), r"\bar{z}": ct}
    for line, tensor in zip(found.backward, (x, y), strict=True):
        _, right_side = line.split(" += ")
        terms = re.findall(r"(\\bar\{z\}|x|y)(?:_\{(\w+)\})?", re.sub(r"\\sum_\{\w+\} ", "", right_side))
        (axes,) = re.findall(r"^\\bar\{[xy]\}(?:_\{(\w+)\})?", line)
        equation = ",".join(axes_of_term for _, axes_of_term in terms) + "->" + axes
        evaluated = np.einsum(equation, *[values[name] for name, _ in terms])
        np.testing.assert_allclose(evaluated, grads[tensor], rtol=1e-5, atol=1e-6)


def test_a_product_with_itself_has_two_terms_and_two_edges():
    from tapejax.view import svg
    from tapejax.view.graph import graph_of

    x = tj.tensor([1.0, 2.0], requires_grad=True)
    with tj.Tape() as tape:
        x * x
    assert len(formula_of(tape[0]).backward) == 2
    graph = graph_of(tape.actions)
    assert svg._actions(graph, graph.actions).count('class="edge"') == 2
