"""The verdict: findings of all checks, and the kinds that could not be checked."""

from __future__ import annotations

from dataclasses import dataclass

from timewheel.inspect.doctor.checks import CHECKS
from timewheel.inspect.doctor.finding import Finding, Kind, Severity
from timewheel.inspect.doctor.seen import Seen

KINDS: tuple[Kind, ...] = tuple(kind for check in CHECKS for kind in check.kinds)
"""All kinds of findings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Findings in a setup.

    Args:
        target: The user's name for the target.
        at_ms: Time of the read, UTC milliseconds.
        topics: Number of topics read.
        findings: Findings, the worst first.
        clear: Kinds that were checked and not found.
        left_out: Kinds that were not found but could not be checked everywhere.
        is_blind: True if data is unread without which a setup cannot be declared sound.
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
    """Run all checks that apply to the state."""
    unread = {one.source for one in seen.unread}
    findings: list[Finding] = []
    clear: list[Kind] = []
    left_out: list[Kind] = []
    for check in CHECKS:
        if seen.plan is None and not check.of_any_topic:
            continue
        found = list(check.inspect(seen))
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
