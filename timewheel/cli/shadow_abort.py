"""Implements `timewheel shadow abort`: a shadow of this process helps to send all timers back to the topic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from timewheel.cli.connecting import warn
from timewheel.cli.shadow_desired import need_shadow, note, plan_with_intake
from timewheel.cli.terminal import print_line, show_line
from timewheel.core.escapes import timewheel_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from timewheel.cli.access import Access
    from timewheel.core.plan import Plan

__all__ = ["last_words", "put_back"]

SETTLE_MS = 5_000
"""By then every running shadow has seen that it must move no more timers."""


def put_back(plan_file: Path, access: Access, *, reached_by: Sequence[str] = ()) -> None:
    """Store the request, run a shadow in this process until no timer waits, store that, and print the remaining steps.

    Args:
        plan_file: The plan's file.
        access: Makes the clients.
        reached_by: Options by which a command reaches the cluster.
    """
    from rich.console import Console

    from timewheel.cli.emptying import await_empty
    from timewheel.provision.former_topics import FormerTopics
    from timewheel.shadow.draining import Stalls, journaled, waiting, waiting_timers
    from timewheel.shadow.machine.states import State
    from timewheel.shadow.shadow import Shadow

    plan = plan_with_intake(plan_file)
    told = Console(stderr=True)
    with access.client(plan.due_topic) as client, access.admin() as admin:
        need_shadow(admin, plan, plan_file)
        timers = waiting_timers(admin, plan)  # first: from the request on, every running shadow sends timers back
        show_line(told, note(admin, plan, State.DRAINING))
        # Timers that were moved before the plan changed also go back, even if no other shadow runs to drain them.
        former = FormerTopics(admin, plan)
        dialer = access.dialer(access.service_url_of(plan.due_topic, admin))
        shadow = Shadow(client, plan, dialer, admin, hooks=(warn,), former_topics=former)
        shadow.start()
        try:
            stalls = Stalls(admin, plan)
            await_empty(told, lambda: waiting(admin, plan), settle_ms=SETTLE_MS, why_stalled=stalls)
        finally:
            shadow.stop()
        print_line(note(admin, plan, State.NATIVE))
        kept, now_ms = journaled(admin, plan), admin.clock.now_ms()
    for line in last_words(plan, str(plan_file), timers, kept=kept, now_ms=now_ms, reached_by=reached_by):
        print_line(line)


def last_words(
    plan: Plan, plan_file: str, timers: str, *, kept: int, now_ms: int, reached_by: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the result of an abort, whether `shadow run` must go on, and until when.

    Args:
        plan: Has an intake.
        plan_file: The path as the user typed it.
        timers: Timers that waited outside the topic, in words.
        kept: Entries that remain in the journals.
        now_ms: UTC milliseconds.
        reached_by: Options by which a command reaches the cluster.
    """
    from timewheel.cli.shadow_text import journal_words

    yield f"put back into {plan.due_topic}: {timers}"
    yield from journal_words(plan, plan_file, kept=kept, since_ms=now_ms, now_ms=now_ms, reached_by=reached_by)
    if kept:
        yield f"whether it is: {timewheel_command('shadow', 'status', plan_file, *reached_by)}"
