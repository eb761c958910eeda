"""The verdict: findings of all checks, and kinds that were not checked; as JSON and JUnit; the repairs of `--fix`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.policies import DELAYED_DELIVERY
from timewheel.core.escapes import visible
from timewheel.core.plan import Plan
from timewheel.inspect.doctor.checks.cursors import CURSORS, DELAYS
from timewheel.inspect.doctor.checks.layout import LAYOUT, PLACES, SIGHT
from timewheel.inspect.doctor.checks.relays import CLIENTS, CLOCKS, HOPS, RELAYS, SHADOWS
from timewheel.inspect.doctor.checks.storage import EXPIRY, KEEPING, QUOTAS, STORAGE
from timewheel.inspect.doctor.seen import Check, Seen
from timewheel.provision.findings import Finding, Kind, Severity
from timewheel.provision.provision_steps import SetPolicy, Step
from timewheel.provision.provisioning import ensure

CHECKS: tuple[Check, ...] = (
    *LAYOUT,
    *EXPIRY,
    *QUOTAS,
    *KEEPING,
    *DELAYS,
    *CURSORS,
    *STORAGE,
    *HOPS,
    *CLIENTS,
    *RELAYS,
    *SHADOWS,
    *PLACES,
    *CLOCKS,
    *SIGHT,
)
"""All checks, in the order in which their findings are reported."""
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


def facts_of(verdict: Verdict, done: Iterable[Step] = ()) -> dict[str, Any]:
    """Return a verdict as plain values.

    Args:
        verdict: Verdict after the fixes.
        done: Steps that `--fix` took.
    """
    return {
        "target": verdict.target,
        "at_ms": verdict.at_ms,
        "topics": verdict.topics,
        "worst": verdict.worst.word if verdict.findings else "ok",
        "errors": verdict.count(Severity.ERROR),
        "warnings": verdict.count(Severity.WARNING),
        "notes": verdict.count(Severity.INFO),
        "findings": [finding.facts() for finding in verdict.findings],
        "left_out": [kind.slug for kind in verdict.left_out],
        "is_blind": verdict.is_blind,
        "fixed": [{"topic": step.topic, "step": str(step)} for step in done],
    }


def junit_of(verdict: Verdict) -> str:
    """Return a test suite with a case for each kind: failed from warnings on, skipped if its sources could not be read.

    Notes are the output of passing cases.
    """
    found: dict[str, list[Finding]] = {}
    for finding in verdict.findings:
        found.setdefault(finding.slug, []).append(finding)
    suite = Element("testsuite", name=f"timewheel doctor {visible(verdict.target)}")
    for findings in found.values():
        _add_found(suite, findings)
    for kind in verdict.clear:
        _case(suite, kind)
    for kind in verdict.left_out:
        SubElement(_case(suite, kind), "skipped", message="what it needs could not be read")
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", "0")
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    return tostring(suite, encoding="unicode", xml_declaration=True)


def _case(suite: Element, kind: Kind) -> Element:
    return SubElement(suite, "testcase", classname="timewheel.doctor", name=kind.slug)


def _add_found(suite: Element, findings: list[Finding]) -> None:
    kind = findings[0].kind
    # XML cannot contain control characters, which names of subscriptions may contain.
    lines = [line for finding in findings for line in (f"{finding.subject}: {finding.read}", f"cure: {finding.cure}")]
    text = "\n".join(map(visible, lines))
    case = _case(suite, kind)
    if kind.severity is Severity.INFO:
        SubElement(case, "system-out").text = text
    else:
        SubElement(case, "failure", type=kind.severity.word, message=kind.why).text = text


def fix(admin: AdminClient, plan: Plan, findings: Iterable[Finding]) -> tuple[Step, ...]:
    """Create missing topics, partitions and subscriptions of a plan, and set the topics' own policies; nothing else is
    touched.

    Args:
        admin: Client whose role administers the tenant.
        plan: The plan.
        findings: Findings of the doctor; those with a fix are repaired.

    Returns:
        The steps taken.

    Raises:
        TopologyError: A topic exists in a form that cannot be repaired.
        AdminError: A call failed; a second run continues from there.
    """
    steps = [finding.fix for finding in findings if finding.fix is not None]
    if not steps:
        return ()
    # Timers left behind by an earlier plan are a finding of their own, and no reason to leave this plan broken.
    done = list(ensure(admin, plan, now_ms=admin.clock.now_ms(), ignore_former_topics=True).steps)
    for step in steps:
        # Provisioning leaves this policy alone, since a namespace may set it. A finding means that the value is wrong.
        if isinstance(step, SetPolicy) and step.policy is DELAYED_DELIVERY:
            admin.topic_policies.set(step.topic, step.policy, step.value)
            admin.topic_policies.await_value(step.topic, step.policy, step.value)
            done.append(step)
    return tuple(done)
