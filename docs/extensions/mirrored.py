"""The directive `mirrored`: the names that a namespace shares with jax, each with a link to jax's own page."""

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from tapejax.ops.surface.names import LIFTED, PLAIN, survey
from tapejax.ops.surface.tables import MODULES

JAX = "https://docs.jax.dev/en/latest/_autosummary/"


class Mirrored(SphinxDirective):
    required_arguments = 1

    def run(self):
        module = self.arguments[0]
        entries = [entry for entry in survey() if entry.module == module]
        made = []
        for kind, title in ((LIFTED, "Recorded"), (PLAIN, "By value only")):
            names = [entry for entry in entries if entry.kind == kind]
            if names:
                made += [nodes.paragraph("", "", nodes.strong("", f"{title} ({len(names)}): "), *self.listed(names))]
        return made

    def listed(self, names):
        for position, entry in enumerate(names):
            if position:
                yield nodes.Text(", ")
            link = nodes.reference("", "", refuri=f"{JAX}{MODULES[entry.module]}.{entry.name}.html", internal=False)
            if entry.reason:
                link["reftitle"] = entry.reason
            yield link
            link += nodes.literal("", entry.name)


def setup(app):
    app.add_directive("mirrored", Mirrored)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
