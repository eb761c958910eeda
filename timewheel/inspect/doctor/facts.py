"""Convert a verdict to plain JSON values, and to JUnit XML for pipelines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from timewheel.core.escapes import visible
from timewheel.inspect.doctor.finding import Finding, Kind, Severity
from timewheel.inspect.doctor.verdict import Verdict
from timewheel.provision.provision_steps import Step


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
        "findings": [_finding(finding) for finding in verdict.findings],
        "left_out": [kind.slug for kind in verdict.left_out],
        "is_blind": verdict.is_blind,
        "fixed": [{"topic": step.topic, "step": str(step)} for step in done],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "slug": finding.slug,
        "severity": finding.severity.word,
        "subject": finding.subject,
        "read": finding.read,
        "why": finding.why,
        "cure": finding.cure,
        "fix": None if finding.fix is None else str(finding.fix),
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
