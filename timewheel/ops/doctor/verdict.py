"""The verdict: what all checks found, and which of them could not be made."""

from __future__ import annotations

from dataclasses import dataclass

from timewheel.ops.doctor.checks import CHECKS
from timewheel.ops.doctor.finding import Finding, Kind, Severity
from timewheel.ops.doctor.seen import Seen

__all__ = ["KINDS", "Verdict", "verdict_on"]

KINDS: tuple[Kind, ...] = tuple(kind for check in CHECKS for kind in check.kinds)
"""Everything that can be found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is wrong with a setup.

    Args:
        target: As the user named it.
        at_ms: When it was looked at, UTC milliseconds.
        topics: How many were looked at.
        findings: The worst first.
        clear: Kinds that were looked for and not found.
        left_out: Kinds that could not be looked for, or not everywhere, and were not found.
        is_blind: Something could not be read without which nobody can say that all is well.
    """

    target: str
    at_ms: int
    topics: int
    findings: tuple[Finding, ...]
    clear: tuple[Kind, ...]
    left_out: tuple[Kind, ...]
    is_blind: bool

    @property
    def worst(self) -> Severity:
        return max((finding.severity for finding in self.findings), default=Severity.INFO)

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)


def verdict_on(seen: Seen) -> Verdict:
    """Make all checks that make sense for what was looked at."""
    unread = {one.source for one in seen.unread}
    findings: list[Finding] = []
    clear: list[Kind] = []
    left_out: list[Kind] = []
    for check in CHECKS:
        if seen.plan is None and not check.of_any_topic:
            continue
        found = list(check.look(seen))
        findings += found
        quiet = [kind for kind in check.kinds if all(finding.kind is not kind for finding in found)]
        (left_out if check.needs & unread else clear).extend(quiet)
    return Verdict(
        target=seen.target,
        at_ms=seen.at_ms,
        topics=len(seen.topics),
        findings=tuple(sorted(findings, key=lambda finding: -finding.severity)),
        clear=tuple(clear),
        left_out=tuple(left_out),
        is_blind=seen.is_blind,
    )
