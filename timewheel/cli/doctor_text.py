"""Output of `timewheel doctor` on a terminal: the worst findings first, and findings that topics share only once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from timewheel.cli.terminal import say
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from timewheel.inspect.doctor import Finding, Verdict
    from timewheel.provision.provision_steps import Step

__all__ = ["show_verdict"]

STYLES = {"error": "bold red", "warning": "bold yellow", "info": "bold"}
INDENT = 2


def show_verdict(console: Console, verdict: Verdict, done: Sequence[Step]) -> None:
    """Print repairs, findings and a summary."""
    for topic, steps in _by_topic(done).items():
        say(console, f"fixed: {topic}: {', '.join(steps)}")
    for findings in _alike(verdict.findings):
        _show(console, findings)
    if verdict.findings or done:
        say(console, "")
    for text in _summary(verdict):
        say(console, text, style="bold")


def _by_topic(done: Iterable[Step]) -> dict[str, list[str]]:
    steps: dict[str, list[str]] = {}
    for step in done:
        steps.setdefault(step.topic, []).append(str(step))
    return steps


def _alike(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Group findings of the same kind that were read in the same place of different topics."""
    together: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        together.setdefault((finding.slug, finding.read.replace(finding.subject, "")), []).append(finding)
    return list(together.values())


def _show(console: Console, findings: list[Finding]) -> None:
    first, others = findings[0], findings[1:]
    more = f" and {len(others)} more" if others else ""
    say(console, f"{first.severity.word}: {first.slug}: {first.subject}{more}", style=STYLES[first.severity.word])
    say(console, f"read  {first.read}", indent=INDENT)
    say(console, f"why   {first.why}", indent=INDENT)
    say(console, f"cure  {first.cure}", indent=INDENT)
    if others and len({finding.cure for finding in findings}) > 1:
        say(console, f"      the same for {', '.join(finding.subject for finding in others)}", indent=INDENT)
    if first.fix is not None:
        say(console, f"fix   --fix does it: {first.fix}", indent=INDENT)


def _summary(verdict: Verdict) -> list[str]:
    from timewheel.inspect.doctor import Severity

    counts = [
        f"{counted(count, word)}"
        for severity, word in ((Severity.ERROR, "error"), (Severity.WARNING, "warning"), (Severity.INFO, "note"))
        if (count := verdict.count(severity))
    ]
    topics = f"{counted(verdict.topics, 'topic')}"
    looked = len(verdict.clear) + len({finding.slug for finding in verdict.findings})
    said = f"{', '.join(counts) or 'nothing found'}; {topics}, {looked} things looked for"
    if verdict.left_out:
        said += f", {len(verdict.left_out)} not or not everywhere, since what they need could not be read"
    lines = [said]
    if verdict.is_blind:
        lines.append("Not all could be read that must be before anybody can say that this setup is in order.")
    return lines
