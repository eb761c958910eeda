"""`timewheel shadow`: relieves a topic of gaps while its producers and consumers stay unchanged."""

from __future__ import annotations

from typing import Annotated

import typer

from timewheel.cli.connecting import (
    AdminUrl,
    ConnectionFile,
    PlanFile,
    ServiceUrl,
    Token,
    TokenFile,
    TrustFile,
    access_to,
    admin_client,
    typed_words,
)
from timewheel.cli.groups import command_group
from timewheel.cli.http import HttpAddress
from timewheel.cli.logs import Format, Level, LogFormat, LogLevel
from timewheel.cli.relay_service import (
    Drain,
    HopLinger,
    MemoryMb,
    PlanFiles,
    Processes,
    ReadyFile,
    RelayId,
    ServiceOptions,
    WithStdin,
    run_service,
)
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

JournalHold = Annotated[
    str,
    typer.Option(
        "--journal-hold",
        help="How long copies are kept beyond need: longer than a broker takes to write acknowledgements to disk.",
    ),
]


@shadow.command()
def run(
    plan_files: PlanFiles,
    *,
    service_url: ServiceUrl = None,
    admin_url: AdminUrl = None,
    relay_id: RelayId = None,
    drain: Drain = "30s",
    hop_linger: HopLinger = None,
    memory_mb: MemoryMb = 512,
    processes: Processes = 1,
    http: HttpAddress = None,
    ready_file: ReadyFile = None,
    token: Token = None,
    token_file: TokenFile = None,
    tls_ca: TrustFile = None,
    connection: ConnectionFile = None,
    log_format: LogFormat = Format.AUTO,
    log_level: LogLevel = Level.INFO,
    with_stdin: WithStdin = False,
    journal_hold: JournalHold = "3m",
) -> None:
    """Shadow the due topics of all given plans until SIGTERM or Ctrl-C, as requested by start, pause and abort.

    Timers far from due are moved out of the topic, wait in holding topics, and come back near their due time;
    producers and consumers do not notice. The process is also the relay of these plans. Several such processes share
    the partitions and take over from each other. A process that is stuck ends itself, so run it under a supervisor that
    restarts it. Plan files are read again when they change, as in `timewheel relay run`. The log goes to standard
    error.
    """
    run_service(
        ServiceOptions(
            kind="shadow",
            plan_files=plan_files,
            service_url=service_url,
            admin_url=admin_url,
            relay_id=relay_id,
            drain=drain,
            hop_linger=hop_linger,
            memory_mb=memory_mb,
            processes=processes,
            http=http,
            ready_file=ready_file,
            token=token,
            token_file=token_file,
            tls_ca=tls_ca,
            connection=connection,
            log_format=log_format,
            log_level=log_level,
            with_stdin=with_stdin,
            journal_hold=journal_hold,
        )
    )


@shadow.command()
def pause(
    plan_file: PlanFile,
    *,
    admin_url: AdminUrl = None,
    token: Token = None,
    token_file: TokenFile = None,
    tls_ca: TrustFile = None,
    connection: ConnectionFile = None,
) -> None:
    """Stop moving; moved timers go on and come back in time. `shadow start` resumes moving."""
    from timewheel.cli.shadow_desired import need_shadow, note, plan_with_intake, refuse_pause
    from timewheel.shadow.machine.states import State

    plan = plan_with_intake(plan_file)
    with admin_client(admin_url, token, token_file, tls_ca, connection) as admin:
        before = need_shadow(admin, plan, plan_file)
        refuse_pause(plan, plan_file, before)
        print_line(note(admin, plan, State.PAUSED, before))


@shadow.command()
def abort(
    context: typer.Context,
    plan_file: PlanFile,
    *,
    service_url: ServiceUrl = None,
    admin_url: AdminUrl = None,
    token: Token = None,
    token_file: TokenFile = None,
    tls_ca: TrustFile = None,
    connection: ConnectionFile = None,
) -> None:
    """End the shadow: send all moved timers back to the topic, under their exact due times.

    First all shadows stop moving; then this process, and those that run, send back all waiting timers, in order. The
    command may be killed and run again. Keep `shadow run` running until `shadow status` reports an empty journal: until
    then a broker that is killed may deliver originals again, and only a shadow can acknowledge these. At its end the
    command prints the latest time until which this is necessary.
    """
    from timewheel.cli.shadow_abort import put_back

    access = access_to(service_url, admin_url, token, token_file, tls_ca, connection)
    put_back(plan_file, access, reached_by=typed_words(context))
