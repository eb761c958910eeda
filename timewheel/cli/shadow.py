"""`timewheel shadow`: relieves a topic of gaps while its producers and consumers stay unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from timewheel.cli.connecting import AdminOptions, ConnectionOptions, warn
from timewheel.cli.options import PlanFile, command_group, with_options
from timewheel.cli.relay_service import ShadowServiceOptions, run_service
from timewheel.cli.shadow_common import need_shadow, note, plan_with_intake
from timewheel.cli.shadow_start import start
from timewheel.cli.shadow_status import status
from timewheel.cli.shadow_verify import verify
from timewheel.cli.terminal import print_line, show_line
from timewheel.core.escapes import timewheel_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from timewheel.cli.access import Access
    from timewheel.core.plan import Plan

shadow = command_group("shadow", "Cure a topic without a change to its producers and consumers.")
# Commands that inspect a shadow have their own files.
shadow.command()(start)
shadow.command()(status)
shadow.command()(verify)


@shadow.command()
@with_options
def run(asked: ShadowServiceOptions) -> None:
    """Shadow the due topics of all given plans until SIGTERM or Ctrl-C, as requested by start, pause and abort.

    Timers far from due are moved out of the topic, wait in holding topics, and come back near their due time;
    producers and consumers do not notice. The process is also the relay of these plans. Several such processes share
    the partitions and take over from each other. A process that is stuck ends itself, so run it under a supervisor that
    restarts it. Plan files are read again when they change, as in `timewheel relay run`. The log goes to standard
    error.
    """
    run_service(asked)


@shadow.command()
@with_options
def pause(
    plan_file: PlanFile,
    *,
    cluster: AdminOptions,
) -> None:
    """Stop moving; moved timers go on and come back in time. `shadow start` resumes moving."""
    from timewheel.cli.shadow_common import need_shadow, note, plan_with_intake, refuse_pause
    from timewheel.shadow.desired_state import State

    plan = plan_with_intake(plan_file)
    with cluster.admin() as admin:
        before = need_shadow(admin, plan, plan_file)
        refuse_pause(plan, plan_file, before)
        print_line(note(admin, plan, State.PAUSED, before))


@shadow.command()
@with_options
def abort(
    plan_file: PlanFile,
    *,
    cluster: ConnectionOptions,
) -> None:
    """End the shadow: send all moved timers back to the topic, under their exact due times.

    First all shadows stop moving; then this process, and those that run, send back all waiting timers, in order. The
    command may be killed and run again. Keep `shadow run` running until `shadow status` reports an empty journal: until
    then a broker that is killed may deliver originals again, and only a shadow can acknowledge these. At its end the
    command prints the latest time until which this is necessary.
    """
    access = cluster.access()
    put_back(plan_file, access, reached_by=cluster.words)


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

    from timewheel.cli.relay import await_empty
    from timewheel.provision.former_topics import FormerTopics
    from timewheel.shadow.desired_state import State
    from timewheel.shadow.draining import Stalls, journaled, waiting, waiting_timers
    from timewheel.shadow.shadow import Shadow

    plan = plan_with_intake(plan_file)
    told = Console(stderr=True)
    with access.client_and_admin(plan.due_topic) as (client, admin, url):
        before = need_shadow(admin, plan, plan_file)
        timers = waiting_timers(admin, plan)  # first: from the request on, every running shadow sends timers back
        show_line(told, note(admin, plan, State.DRAINING, before))
        # Timers that were moved before the plan changed also go back, even if no other shadow runs to drain them.
        former = FormerTopics(admin, plan)
        shadow = Shadow(client, plan, access.dialer(url), admin, hooks=(warn,), former_topics=former)
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
    from timewheel.cli.shadow_common import journal_words

    yield f"put back into {plan.due_topic}: {timers}"
    yield from journal_words(plan, plan_file, kept=kept, since_ms=now_ms, now_ms=now_ms, reached_by=reached_by)
    if kept:
        yield f"whether it is: {timewheel_command('shadow', 'status', plan_file, *reached_by)}"
