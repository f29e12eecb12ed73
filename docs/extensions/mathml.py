"""Formulas as MathML, which browsers show by themselves: no script, no font, no network."""

from docutils.nodes import SkipNode
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.util import logging

log = logging.getLogger(__name__)


def formula(node, as_block):
    try:
        return tex2mathml(node.astext(), as_block=as_block)
    except MathError as error:
        log.warning("%s in %s", error, node.astext(), location=node, type="mathml")
        return ""


def inline(translator, node):
    translator.body.append(formula(node, False))
    raise SkipNode


def block(translator, node):
    translator.body.append(f'<div class="formula">{formula(node, True)}</div>\n')
    raise SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
