"""What a wrong gradient is owed to: a custom rule if there is a wrong one, else the first wrong action."""

from __future__ import annotations

from collections.abc import Sequence

from tapejax.errors import TapejaxError
from tapejax.verify.actions import verify_subject
from tapejax.verify.custom import verify_rules_of
from tapejax.verify.report import CUSTOM_RULE, JAX, TAPEJAX, UNDECIDED, Report
from tapejax.verify.subject import Subject


def diagnose(report: Report, subject: Subject, intended: Sequence[str] = ()) -> None:
    """Put the culprit into a report on a subject: the report that names it, and who that is."""
    if report.culprit is not None:
        return
    order = max((finding.order for finding in report.findings), default=1)
    before = report.verdict
    if before in (CUSTOM_RULE, UNDECIDED) and subject.has_custom_rules:
        found = _tried(lambda: verify_rules_of(subject, skip=intended, order=order))
        if found is not None and found.wrong:
            report.culprit = found
            report.blamed = JAX if found.first_wrong.by_jax else CUSTOM_RULE
            return
    found = _tried(lambda: verify_subject(subject)) if order == 1 else None
    if found is None or not found.wrong:
        return
    report.culprit = found
    if before in (CUSTOM_RULE, UNDECIDED) and found.first_wrong.blame in (JAX, TAPEJAX):
        report.blamed = found.first_wrong.blame


def _tried(look):
    try:
        return look()
    except (TapejaxError, TypeError, ValueError):  # nothing in there to look at, or it cannot be opened
        return None
