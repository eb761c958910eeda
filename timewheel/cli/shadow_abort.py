"""Implements `timewheel shadow abort`: a shadow of this process helps to send all timers back to the topic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from timewheel.cli.connecting import access_of, connection_of, warn
from timewheel.cli.shadow_wish import note, plan_with_intake
from timewheel.cli.terminal import print_line, show_line

__all__ = ["put_back"]

SETTLE_MS = 5_000
"""By then every running shadow has seen that it must lift no more timers."""


def put_back(plan_file: Path, **connection: Any) -> None:
    """Store the request, run a shadow in this process until no timer waits, and store that.

    Args:
        plan_file: The plan's file.
        connection: Arguments of `connection_of`.
    """
    from rich.console import Console

    from timewheel.cli.emptying import await_empty
    from timewheel.ops.former_topics import FormerTopics
    from timewheel.shadow.draining import Stalls, waiting
    from timewheel.shadow.machine.states import State
    from timewheel.shadow.shadow import Shadow

    plan = plan_with_intake(plan_file)
    access = access_of(connection_of(**connection))
    told = Console(stderr=True)
    with access.client() as client, access.admin() as admin:
        show_line(told, note(admin, plan, State.DRAINING))
        # Timers that were lifted before the plan changed also go back, even if no other shadow runs to drain them.
        former = FormerTopics(admin, plan)
        shadow = Shadow(client, plan, access.dialer(), admin, hooks=(warn,), former_topics=former)
        shadow.start()
        try:
            stalls = Stalls(admin, plan)
            await_empty(told, lambda: waiting(admin, plan), settle_ms=SETTLE_MS, why_stalled=stalls)
        finally:
            shadow.stop()
        print_line(note(admin, plan, State.NATIVE))
