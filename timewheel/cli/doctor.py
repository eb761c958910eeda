"""`timewheel doctor`: finds settings that would lose, delay or repeat timers, and prints the remedy for each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timewheel.cli.connecting import AdminOptions
from timewheel.cli.doctor_text import show_verdict
from timewheel.cli.exit_status import ALARM, ATTENTION, FAILED
from timewheel.cli.options import AsJson, with_options

if TYPE_CHECKING:
    from timewheel.broker.admin.client import AdminClient
    from timewheel.core.plan import Plan
    from timewheel.inspect.doctor import Seen, Verdict

__all__ = ["doctor", "exit_status"]

FAIL_AT = ("warning", "error")


@with_options
def doctor(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="A plan file; or any topic, persistent://tenant/namespace/topic.", show_default=False
        ),
    ],
    *,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="Create the plan's missing topics, set their policies, then check again."),
    ] = False,
    fail_at: Annotated[str, typer.Option("--fail-at", help="warning or error: see exit status.")] = "warning",
    cluster: AdminOptions,
    junit: Annotated[
        Path | None,
        typer.Option("--junit", help="Also write JUnit's XML to this file, for a pipeline.", dir_okay=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check brokers, namespaces, topics, clients and clocks, before the first message or on a schedule.

    Nothing is changed without --fix. Exit status: 4 if timers would be lost, refused, early or stuck; 3 if timers would
    be late or handled twice, or lost after one more failure; 1 if the checks could not be completed; else 0.
    """
    import json

    from rich.console import Console

    from timewheel.inspect.doctor import fix as repair
    from timewheel.inspect.doctor import verdict_on
    from timewheel.inspect.doctor.facts import facts_of

    plan = _plan(target)
    _refuse(plan, fail_at, fix=fix, junit=junit)
    with cluster.admin() as admin:
        verdict = verdict_on(_look(admin, plan, target))
        done = repair(admin, plan, verdict.findings) if fix and plan is not None else ()
        if done:
            verdict = verdict_on(_look(admin, plan, target))
    if junit is not None:
        _write_junit(junit, verdict)
    if as_json:
        print(json.dumps(facts_of(verdict, done)))
    else:
        show_verdict(Console(highlight=False), verdict, done)
    status = exit_status(verdict, fail_at)
    if status:
        raise typer.Exit(status)


def exit_status(verdict: Verdict, fail_at: str) -> int:
    """Return the exit status for a scheduled job; checks that could not be made are never "ok".

    Args:
        verdict: The last verdict.
        fail_at: A value of `FAIL_AT`.
    """
    from timewheel.inspect.doctor import Severity

    if verdict.worst is Severity.ERROR:
        return ALARM
    if verdict.worst is Severity.WARNING and fail_at == "warning":
        return ATTENTION
    return FAILED if verdict.is_blind else 0


def _plan(target: str) -> Plan | None:
    from timewheel.core.plan import Plan

    return Plan.load(Path(target)) if target.endswith(".toml") or Path(target).is_file() else None


def _refuse(plan: Plan | None, fail_at: str, *, fix: bool, junit: Path | None) -> None:
    """Refuse invalid options before any request."""
    if fail_at not in FAIL_AT:
        raise typer.BadParameter(f"one of {', '.join(FAIL_AT)}, not {fail_at}", param_hint="--fail-at")
    if fix and plan is None:
        raise typer.BadParameter("only a plan's own topics are repaired: name the plan file", param_hint="--fix")
    if junit is not None and not junit.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {junit.parent}", param_hint="--junit")


def _look(admin: AdminClient, plan: Plan | None, target: str) -> Seen:
    from timewheel.inspect.doctor import inspect_plan, inspect_topic

    if plan is not None:
        return inspect_plan(admin, plan, target=target)
    return inspect_topic(admin, target if "://" in target else f"persistent://{target}")


def _write_junit(path: Path, verdict: Verdict) -> None:
    from timewheel.inspect.doctor.facts import junit_of

    try:
        path.write_text(junit_of(verdict) + "\n", encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--junit") from error
