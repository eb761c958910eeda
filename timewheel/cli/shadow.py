"""`timewheel shadow`: relieves a topic of gaps while its producers and consumers stay unchanged."""

from __future__ import annotations

from timewheel.cli.connecting import AdminOptions, ConnectionOptions
from timewheel.cli.groups import command_group
from timewheel.cli.options import PlanFile, with_options
from timewheel.cli.relay_service import ShadowServiceOptions, run_service
from timewheel.cli.shadow_start import start
from timewheel.cli.shadow_status import status
from timewheel.cli.shadow_verify import verify
from timewheel.cli.terminal import print_line

__all__ = ["shadow"]

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
    from timewheel.cli.shadow_desired import need_shadow, note, plan_with_intake, refuse_pause
    from timewheel.shadow.machine.states import State

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
    from timewheel.cli.shadow_abort import put_back

    access = cluster.access()
    put_back(plan_file, access, reached_by=cluster.words)
