"""`timewheel relay`: runs the relays of any number of plans as a separate process, and aborts a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from timewheel.cli.connecting import ConnectionOptions
from timewheel.cli.options import FAILED, command_group, keep_plan_file, with_options
from timewheel.cli.relay_service import ServiceOptions, run_service

relay = command_group("relay", "Run relays as a service; leave a plan.")


@relay.command()
@with_options
def run(asked: ServiceOptions) -> None:
    """Hold and forward the timers of all given plans until SIGTERM or Ctrl-C.

    Several such processes share the partitions and take over from each other. A process that is stuck ends itself, so
    run it under a supervisor that restarts it. The relay drains holding topics of earlier plans by the routing of the
    present plan; to find them it lists topics (--admin-url) at the start and once a minute. The log goes to standard
    error.

    Plan files are read again when they change, and at SIGHUP: relays of added plans start, relays of removed plans
    drain and end, relays of changed plans do both. An invalid file changes nothing. A folder stands for all its *.toml
    files.

    With --processes N the command starts N processes, restarts those that end, and is ready when all are ready.
    """
    run_service(asked)


@relay.command()
@with_options
def abort(
    plan_file: Annotated[
        Path,
        typer.Argument(metavar="PLAN", help="The plan file, now native.", show_default=False, callback=keep_plan_file),
    ],
    *,
    cluster: ConnectionOptions,
) -> None:
    """Leave a plan: send all timers in holding topics back to the due topic, under their exact due times.

    First make the plan native, run `topics ensure`, and restart the services with it. Then this process, and all relays
    that have the plan, send back at once the timers in tiers and rings of the earlier plan. The command may be killed
    and run again. From then on the broker delays all timers, and gaps come back.

    Exit status 1 if producers of an earlier plan are connected, or if timers wait where no client of this plan reads.
    """
    from timewheel.cli.relay_abort import put_back

    complete = put_back(plan_file, cluster.access())
    if not complete:
        raise typer.Exit(FAILED)
