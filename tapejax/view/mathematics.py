"""Formulas in a small subset of LaTeX, as MathML (which browsers draw by themselves) and as text.

>>> text(r"\\bar{x} += \\frac{\\bar{y}}{x^2}")
'x̄ += ȳ/x²'
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from html import escape

SYMBOLS = {
    "cdot": "·", "odot": "⊙", "times": "×", "top": "⊤", "sum": "∑", "prod": "∏", "partial": "∂", "infty": "∞", "in": "∈",
    "le": "≤", "ge": "≥", "ne": "≠", "to": "→", "ldots": "…", "star": "⋆", "pm": "±", "mid": "|", "dagger": "†",
}  # fmt: skip
GREEK = {"alpha": "α", "beta": "β", "gamma": "γ", "epsilon": "ε", "lambda": "λ", "mu": "μ", "sigma": "σ", "pi": "π", "phi": "φ", "Phi": "Φ"}  # fmt: skip
FUNCTIONS = {
    "sin", "cos", "tan", "sinh", "cosh", "tanh", "exp", "log", "arcsin", "arccos", "arctan", "arcsinh", "arccosh",
    "arctanh", "max", "min", "sign", "erf", "det",
}  # fmt: skip
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+\.?\d*|\+=|[A-Za-z]|\S|\s+")
_SUPERSCRIPTS = str.maketrans("0123456789-+n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ")


def mathml(latex: str, letters: Sequence[str] = ()) -> str:
    """The formula as a <math> element. These letters are marked by their place, to be filled in with names."""
    return f'<math display="inline">{_Reader(latex, _Mathml(letters)).everything()}</math>'


def text(latex: str) -> str:
    """The formula in one line of letters."""
    line = re.sub(r"\s+", " ", _Reader(latex, _Text()).everything()).strip()
    return unicodedata.normalize("NFC", line)


class _Reader:
    """Reads one formula, telling a writer what there is."""

    def __init__(self, latex: str, writer: _Mathml | _Text):
        self.tokens = _TOKEN.findall(latex)
        self.at = 0
        self.writer = writer

    def everything(self) -> str:
        return self.row(stop=None)

    def row(self, stop: str | None) -> str:
        items: list[str] = []
        while self.at < len(self.tokens):
            if self.tokens[self.at] == stop:
                self.at += 1
                break
            items.append(self.scripted())
        return self.writer.row(items)

    def scripted(self) -> str:
        token = self.tokens[self.at]
        base = self.atom()
        below = above = None
        while self.at < len(self.tokens) and self.tokens[self.at] in "^_":
            mark = self.tokens[self.at]
            self.at += 1
            if mark == "^":
                above = self.atom()
            else:
                below = self.atom()
        return self.writer.scripts(base, below, above, limits=token in ("\\sum", "\\prod"))

    def atom(self) -> str:
        token = self.tokens[self.at]
        self.at += 1
        if token == "{":
            return self.row(stop="}")
        if not token.startswith("\\"):
            return self.writer.space() if token.isspace() else self.writer.leaf(token)
        name = token[1:]
        if name in ("bar", "hat", "sqrt"):
            return getattr(self.writer, name)(self.atom())
        if name == "frac":
            return self.writer.frac(self.atom(), self.atom())
        if name in ("text", "mathrm"):
            return self.writer.words(self.raw())
        if name in GREEK:
            return self.writer.leaf(GREEK[name])
        if name in SYMBOLS:
            return self.writer.leaf(SYMBOLS[name])
        if name in FUNCTIONS:
            return self.writer.function(name)
        if name in (",", "quad"):
            return self.writer.gap(wide=name == "quad")
        if len(name) == 1:
            return self.writer.leaf(name)  # \{ and the like
        raise ValueError(f"the formula has \\{name}, which is not known here")

    def raw(self) -> str:
        assert self.tokens[self.at] == "{"
        self.at += 1
        words = []
        while self.tokens[self.at] != "}":
            words.append(self.tokens[self.at])
            self.at += 1
        self.at += 1
        return "".join(words)


class _Mathml:
    def __init__(self, letters: Sequence[str] = ()):
        self.slots = {letter: place for place, letter in enumerate(letters)}

    def row(self, items: list[str]) -> str:
        items = [item for item in items if item]
        return items[0] if len(items) == 1 else f"<mrow>{''.join(items)}</mrow>"

    def space(self) -> str:
        return ""

    def gap(self, *, wide: bool) -> str:
        return f'<mspace width="{1.4 if wide else 0.2}em"/>'

    def leaf(self, token: str) -> str:
        if token[0].isdigit():
            return f"<mn>{token}</mn>"
        if token.isalpha():
            slot = f' data-slot="{self.slots[token]}"' if token in self.slots else ""
            return f"<mi{slot}>{token}</mi>"
        stretchy = ' stretchy="false"' if token in "()[]|" else ""
        token = {"-": "−", "*": "∗"}.get(token, token)
        return f"<mo{stretchy}>{escape(token)}</mo>"

    def function(self, name: str) -> str:
        return f'<mi mathvariant="normal">{name}</mi><mo>&#x2061;</mo>'

    def words(self, words: str) -> str:
        return f"<mtext>{escape(words)}</mtext>"

    def bar(self, inner: str) -> str:
        return f'<mrow class="over">{inner}</mrow>'

    def hat(self, inner: str) -> str:
        return f'<mover accent="true">{inner}<mo stretchy="false">^</mo></mover>'

    def sqrt(self, inner: str) -> str:
        return f"<msqrt>{inner}</msqrt>"

    def frac(self, above: str, below: str) -> str:
        return f"<mfrac>{above}{below}</mfrac>"

    def scripts(self, base: str, below: str | None, above: str | None, *, limits: bool) -> str:
        if below is None and above is None:
            return base
        low, high, both = ("munder", "mover", "munderover") if limits else ("msub", "msup", "msubsup")
        base = f"<mrow>{base}</mrow>"
        if above is None:
            return f"<{low}>{base}{below}</{low}>"
        if below is None:
            return f"<{high}>{base}{above}</{high}>"
        return f"<{both}>{base}{below}{above}</{both}>"


class _Text:
    def row(self, items: list[str]) -> str:
        return "".join(items)

    def space(self) -> str:
        return " "

    def gap(self, *, wide: bool) -> str:
        return "   " if wide else " "

    def leaf(self, token: str) -> str:
        return token

    def function(self, name: str) -> str:
        return name

    def words(self, words: str) -> str:
        return words

    def bar(self, inner: str) -> str:
        return f"{inner}\u0304"

    def hat(self, inner: str) -> str:
        return f"{inner}\u0302"

    def sqrt(self, inner: str) -> str:
        return f"√{_group(inner)}"

    def frac(self, above: str, below: str) -> str:
        return f"{_group(above)}/{_group(below)}"

    def scripts(self, base: str, below: str | None, above: str | None, *, limits: bool) -> str:
        if below is not None:
            base += f"_{_group(below)}" if len(below) > 1 else f"_{below}"
        if above is not None:
            raised = above.translate(_SUPERSCRIPTS)
            base += (
                "ᵀ" if above == "⊤" else raised if all(c in "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ" for c in raised) else f"^{_group(above)}"
            )
        return base


def _group(inner: str) -> str:
    return f"({inner})" if re.search(r"[-+*/ ·⊙]", inner.strip()) else inner.strip()
