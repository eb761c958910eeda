"""`timewheel doctor`: finds settings that would lose, delay or repeat timers, and prints the remedy for each."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from timewheel.cli.connecting import AdminOptions
from timewheel.cli.options import ALARM, ATTENTION, FAILED, AsJson, need_folders, writing
from timewheel.cli.terminal import render, say, show_finding
from timewheel.core.plan import Plan
from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from timewheel.broker.admin.client import AdminClient
    from timewheel.inspect.doctor import Finding, Seen, Verdict
    from timewheel.provision.provision_steps import Step

FAIL_AT = ("warning", "error")


def doctor(
    target: Annotated[
        str,
        Argument(
            metavar="TARGET", help="A plan file; or any topic, persistent://tenant/namespace/topic.", show_default=False
        ),
    ],
    *,
    fix: Annotated[
        bool, Option("--fix", help="Create the plan's missing topics, set their policies, then check again.")
    ] = False,
    fail_at: Annotated[str, Option(help="warning or error: see exit status.")] = "warning",
    cluster: AdminOptions,
    junit: Annotated[
        Path | None, Option(help="Also write JUnit's XML to this file, for a pipeline.", dir_okay=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check brokers, namespaces, topics, clients and clocks, before the first message or on a schedule.

    Nothing is changed without --fix. Exit status: 4 if timers would be lost, refused, early or stuck; 3 if timers would
    be late or handled twice, or lost after one more failure; 1 if the checks could not be completed; else 0.
    """
    from timewheel.inspect.doctor import fix as repair
    from timewheel.inspect.doctor import verdict_on
    from timewheel.inspect.doctor.verdict import facts_of, junit_of

    plan = Plan.load(Path(target)) if target.endswith(".toml") or Path(target).is_file() else None
    _refuse(plan, fail_at, fix=fix, junit=junit)
    with cluster.admin() as admin:
        verdict = verdict_on(_look(admin, plan, target))
        done = repair(admin, plan, verdict.findings) if fix and plan is not None else ()
        if done:
            verdict = verdict_on(_look(admin, plan, target))
    if junit is not None:
        with writing(junit, "--junit"):
            junit.write_text(junit_of(verdict) + "\n", encoding="utf-8")
    render(facts_of(verdict, done), lambda console: show_verdict(console, verdict, done), as_json=as_json)
    raise typer.Exit(exit_status(verdict, fail_at))


def exit_status(verdict: Verdict, fail_at: str) -> int:
    """Return the exit status for a scheduled job; checks that could not be made are never "ok"."""
    from timewheel.inspect.doctor import Severity

    if verdict.worst is Severity.ERROR:
        return ALARM
    if verdict.worst is Severity.WARNING and fail_at == "warning":
        return ATTENTION
    return FAILED if verdict.is_blind else 0


def _refuse(plan: Plan | None, fail_at: str, *, fix: bool, junit: Path | None) -> None:
    """Refuse invalid options before any request."""
    if fail_at not in FAIL_AT:
        raise typer.BadParameter(f"one of {', '.join(FAIL_AT)}, not {fail_at}", param_hint="--fail-at")
    if fix and plan is None:
        raise typer.BadParameter("only a plan's own topics are repaired: name the plan file", param_hint="--fix")
    need_folders({"--junit": junit})


def _look(admin: AdminClient, plan: Plan | None, target: str) -> Seen:
    from timewheel.inspect.doctor import inspect_plan, inspect_topic

    if plan is not None:
        return inspect_plan(admin, plan, target=target)
    return inspect_topic(admin, target if "://" in target else f"persistent://{target}")


def show_verdict(console: Console, verdict: Verdict, done: Sequence[Step]) -> None:
    """Print repairs, findings (the worst first, and those that topics share once) and a summary."""
    fixed: defaultdict[str, list[str]] = defaultdict(list)
    for step in done:
        fixed[step.topic].append(str(step))
    for topic, steps in fixed.items():
        say(console, f"fixed: {topic}: {', '.join(steps)}")
    for findings in _alike(verdict.findings):
        _show(console, findings)
    if verdict.findings or done:
        say(console, "")
    for text in _summary(verdict):
        say(console, text, style="bold")


def _alike(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Group findings of the same kind that were read in the same place of different topics."""
    together: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        together.setdefault((finding.slug, finding.read.replace(finding.subject, "")), []).append(finding)
    return list(together.values())


def _show(console: Console, findings: list[Finding]) -> None:
    first, others = findings[0], findings[1:]
    more = f" and {len(others)} more" if others else ""
    show_finding(console, first, first.severity.word, more)
    if others and len({finding.cure for finding in findings}) > 1:
        say(console, f"      the same for {', '.join(finding.subject for finding in others)}", indent=2)
    if first.fix is not None:
        say(console, f"fix   --fix does it: {first.fix}", indent=2)


def _summary(verdict: Verdict) -> list[str]:
    from timewheel.inspect.doctor import Severity

    counts = [
        f"{counted(count, word)}"
        for severity, word in ((Severity.ERROR, "error"), (Severity.WARNING, "warning"), (Severity.INFO, "note"))
        if (count := verdict.count(severity))
    ]
    topics = f"{counted(verdict.topics, 'topic')}"
    looked = len(verdict.clear) + len({finding.slug for finding in verdict.findings})
    said = f"{', '.join(counts) or 'nothing found'}; {topics}, {looked} checks"
    if verdict.left_out:
        said += f", {len(verdict.left_out)} more left out or incomplete, since their data could not be read"
    lines = [said]
    if verdict.is_blind:
        lines.append("Required data could not be read, so this setup is not known to be in order.")
    return lines
