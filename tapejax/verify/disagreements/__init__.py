"""Where tapejax and the installed jax disagree, and who is right: what `tapejax disagreements` runs."""

from tapejax.verify.disagreements.survey import Survey, survey

__all__ = ["Survey", "survey"]
