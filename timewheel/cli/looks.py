"""Options and arguments of the commands that look at gaps, once or periodically."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timewheel.core.plurals import counted

if TYPE_CHECKING:
    from timewheel.core.plan import Plan

__all__ = ["AtOnce", "Everything", "GapLimit", "entries_wait", "every_ms_of", "names_and_plans", "type_words"]

LEAST_EVERY_MS = 1_000

Everything = Annotated[bool, typer.Option("--all", help="All tenants; needs a superuser.")]
GapLimit = Annotated[
    int | None, typer.Option("--gap-limit", min=1, help="The broker's limit on gaps, if the role may not read it.")
]
AtOnce = Annotated[int, typer.Option("--concurrency", min=1, max=256, help="Concurrent requests.")]


def every_ms_of(every: str) -> int:
    """Return ``--every`` in milliseconds; an interval below one second is a usage error."""
    from timewheel.core.durations import parse_duration

    every_ms = parse_duration(every)
    if every_ms < LEAST_EVERY_MS:
        raise typer.BadParameter("at least 1s", param_hint="--every")
    return every_ms


def names_and_plans(targets: Sequence[str]) -> tuple[list[str], list[Plan]]:
    """Separate targets into names of topics, namespaces and tenants, and plans loaded from files."""
    from timewheel.core.plan import Plan

    is_plan = {target: target.endswith(".toml") or Path(target).is_file() for target in targets}
    names = [target for target in targets if not is_plan[target]]
    return names, [Plan.load(Path(target)) for target in targets if is_plan[target]]


def type_words(subscription_type: str) -> str:
    """Describe a subscription's type; the broker knows no type if no consumer has been connected."""
    return "no consumer" if subscription_type == "None" else subscription_type


def entries_wait(entries: int, of: str, listing: str) -> str:
    """Describe the entries that wait for an operator: the broker counts these, and a batch is a single entry.

    Args:
        entries: Their number.
        of: ``dead letters`` or ``parked timers``.
        listing: Command that lists each message.
    """
    waits = counted(entries, f"entry of {of} waits", f"entries of {of} wait")
    return f"{waits} for you, with one or many in each: {listing}"
