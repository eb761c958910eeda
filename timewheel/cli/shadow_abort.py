"""What `timewheel shadow abort` does: waits, and helps, until all is back in the topic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from timewheel.cli.connecting import warn
from timewheel.cli.shadow_wish import note, plan_with_intake
from timewheel.cli.terminal import print_line, show_line

if TYPE_CHECKING:
    from timewheel.cli.access import Access

__all__ = ["put_back"]

SETTLE_MS = 5_000
"""By then every shadow that runs has seen that nothing is to be lifted any more."""


def put_back(plan_file: Path, access: Access) -> None:
    """Note the wish, run a shadow of this process until nothing waits, and note that.

    Args:
        plan_file: Of the plan.
        access: Makes the clients.
    """
    from rich.console import Console

    from timewheel.cli.emptying import await_empty
    from timewheel.ops.former_topics import FormerTopics
    from timewheel.shadow.draining import Stalls, waiting
    from timewheel.shadow.machine.states import State
    from timewheel.shadow.shadow import Shadow

    plan = plan_with_intake(plan_file)
    told = Console(stderr=True)
    with access.client() as client, access.admin() as admin:
        show_line(told, note(admin, plan, State.DRAINING))
        # What was lifted before the plan changed goes back too, whether or not another shadow runs that would drain it.
        former = FormerTopics(admin, plan)
        shadow = Shadow(client, plan, access.dialer(), admin, hooks=(warn,), former_topics=former)
        shadow.start()
        try:
            stalls = Stalls(admin, plan)
            await_empty(told, lambda: waiting(admin, plan), settle_ms=SETTLE_MS, why_stalled=stalls)
        finally:
            shadow.stop()
        print_line(note(admin, plan, State.NATIVE))
