"""`timewheel relay run`: the relays of any number of plans, as a process of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timewheel.cli.connecting import (
    AdminUrl,
    ConnectionFile,
    ServiceUrl,
    Token,
    TokenFile,
    TrustFile,
    access_of,
    connection_of,
)
from timewheel.cli.http import HttpAddress, address_of, or_say_why_not
from timewheel.cli.logs import Format, Level, LogFormat, LogLevel, log_to_stderr

if TYPE_CHECKING:
    from collections.abc import Callable

    from timewheel.hooks import Hook


__all__ = ["relay"]

relay = typer.Typer(name="relay", no_args_is_help=True, help="Run relays as a service.")


@relay.callback()
def _group() -> None:
    """A group with one command keeps its name."""


@relay.command()
def run(
    plan_files: Annotated[
        list[Path], typer.Argument(metavar="PLAN...", help="Plan files, or folders of them.", show_default=False)
    ],
    *,
    service_url: ServiceUrl = None,
    admin_url: AdminUrl = None,
    relay_id: Annotated[
        str | None,
        typer.Option("--relay-id", help="Unique among relays that run at once, the same after a restart."),
    ] = None,
    drain: Annotated[str, typer.Option("--drain", help="At SIGTERM: how long to wait for hops under way.")] = "30s",
    hop_linger: Annotated[
        str | None,
        typer.Option(
            "--hop-linger",
            help="How long hops into a topic that a relay holds wait for each other, to go as one entry.",
            show_default="1s, or a tenth of the plan's guard if that is less",
        ),
    ] = None,
    memory_mb: Annotated[
        int,
        typer.Option("--memory-mb", min=1, help="What may be received ahead and on its way, of all plans together."),
    ] = 512,
    processes: Annotated[
        int,
        typer.Option("--processes", min=1, help="So many processes share the work: one uses one core."),
    ] = 1,
    http: HttpAddress = None,
    ready_file: Annotated[
        Path | None, typer.Option("--ready-file", help="A file that exists while all relays are ready.")
    ] = None,
    token: Token = None,
    token_file: TokenFile = None,
    tls_ca: TrustFile = None,
    connection: ConnectionFile = None,
    log_format: LogFormat = Format.AUTO,
    log_level: LogLevel = Level.INFO,
    with_stdin: Annotated[
        bool, typer.Option("--with-stdin", hidden=True, help="End when standard input does.")
    ] = False,
) -> None:
    """Hold and forward the timers of all these plans until SIGTERM or Ctrl-C.

    Several such processes share the partitions and take over from each other. A process that is stuck ends itself:
    let something start it again. Holding topics of earlier plans are drained by the routing of the present one; to
    find them it lists topics (--admin-url), at the start and once a minute. Its log goes to standard error.

    Plan files are read again when they change, and at SIGHUP: relays of added plans begin, those of removed ones drain
    and end, those of changed ones do both. A file that is wrong changes nothing. All files *.toml of a folder count.

    With --processes it starts so many of itself, starts those again that end, and is ready when all are.
    """
    import sys

    import pulsar

    from timewheel.cli.relay_crew import RelayCrew
    from timewheel.cli.relay_metrics import metrics_of_service
    from timewheel.cli.stopping import call_at_end, call_at_hangup
    from timewheel.cli.systemd import teller
    from timewheel.consumers.relay.reloading import Reloading
    from timewheel.consumers.relay.service import Service
    from timewheel.core.durations import parse_duration
    from timewheel.core.plan_files import PlanFiles
    from timewheel.hooks import log_event

    call_at_hangup()
    log_to_stderr(log_format, log_level)
    address = address_of(http)
    drain_ms = parse_duration(drain)
    hop_linger_ms = None if hop_linger is None else parse_duration(hop_linger)
    files = PlanFiles(plan_files)
    texts = files.read()
    plans = texts.plans()
    urls = {"service_url": service_url, "admin_url": admin_url}
    given: dict[str, Any] = {**urls, "token": token, "token_file": token_file, "tls_ca": tls_ca, "file": connection}
    way = connection_of(**given)
    if processes > 1:
        options = {
            "--service-url": service_url,
            "--admin-url": admin_url,
            "--drain": drain,
            "--hop-linger": hop_linger,
            # Of a partition that relays hold one process receives, of one that the broker holds all do.
            "--memory-mb": memory_mb if all(plan.holds_in_relay for plan in plans) else max(memory_mb // processes, 1),
            "--token-file": token_file,
            "--tls-ca": tls_ca,
            "--connection": connection,
            "--log-format": log_format.value,
            "--log-level": log_level.value,
        }
        with or_say_why_not():
            code = _run_processes(
                processes,
                [*map(str, plan_files), *_given(options)],
                relay_id=relay_id,
                token=token,
                drain_ms=drain_ms,
                address=address,
                ready_file=ready_file,
            )
        raise typer.Exit(code)
    # Nobody could ask for them without an address.
    metrics, pages = (None, {}) if address is None else metrics_of_service()
    # Of everything here: an expired token and a plan that is refused are counted as well as what relays tell.
    hooks: tuple[Hook, ...] = (log_event,) if metrics is None else (log_event, metrics.count_event)
    access = access_of(way, hooks)
    try:
        with access.client() as client, access.admin() as admin:
            crew = RelayCrew(client, admin, plans, relay_id, hop_linger_ms, memory_mb << 20, hooks)
            service = Service(
                [crew.relay_of(plan) for plan in plans],
                drain_ms=drain_ms,
                address=address,
                pages=pages,
                ready_file=ready_file,
                tell_well=teller(),
            )
            crew.plans = lambda: service.roster.plans
            if metrics is not None:
                # Of those that work: a relay is also made to see whether a new plan could be served.
                metrics.watch_relays(lambda: service.roster.relays)
            reloading = Reloading(
                service.roster,
                files,
                texts,
                crew.relay_of,
                waiting=crew.waiting,
                settle=lambda: crew.share_memory(service.roster.relays),
                drain_ms=drain_ms,
                hooks=hooks,
            )
            call_at_hangup(reloading.ask_from_signal)
            call_at_end(service.end_from_signal)
            if with_stdin:
                _end_with_stdin(service.end_from_signal)
            with or_say_why_not():
                service.run(reloading)
    except pulsar.PulsarException as error:
        print(f"timewheel: {way.service_url}: {error}", file=sys.stderr)
        raise typer.Exit(1) from error


def _run_processes(
    count: int,
    arguments: list[str],
    *,
    relay_id: str | None,
    token: str | None,
    drain_ms: int,
    address: tuple[str, int] | None,
    ready_file: Path | None,
) -> int:
    """Run so many of this command, and return the exit status."""
    import os
    import sys
    import tempfile

    from timewheel.cli.relay_processes import Child, Processes
    from timewheel.cli.stopping import call_at_end, call_at_hangup
    from timewheel.consumers.relay.relay import new_relay_id
    from timewheel.core.chance import system_chance
    from timewheel.core.clock import SystemClock

    if token is not None:
        os.environ["PULSAR_TOKEN"] = token  # not as an argument, which everybody on the host can read
    base = relay_id or new_relay_id()
    with tempfile.TemporaryDirectory(prefix="timewheel-relay-") as folder:
        children = []
        for number in range(count):
            own = ["--relay-id", f"{base}-{number}", "--ready-file", f"{folder}/{number}", "--with-stdin"]
            own += _http_of_child(address, number)
            command = [sys.executable, "-m", "timewheel", "relay", "run", *arguments, *own]
            children.append(Child(f"{base}-{number}", command, Path(folder, str(number)), system_chance()))
        running = Processes(children, drain_ms=drain_ms, address=address, ready_file=ready_file, clock=SystemClock())
        call_at_hangup(running.hang_up_from_signal)
        call_at_end(running.end_from_signal)
        return running.run()


def _http_of_child(address: tuple[str, int] | None, number: int) -> list[str]:
    """The port behind that of the whole, for the child's own metrics; of any free one nobody would know."""
    if address is None or not address[1]:
        return []
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return ["--http", f"{host}:{address[1] + 1 + number}"]


def _given(options: dict[str, Any]) -> list[str]:
    return [text for name, value in options.items() if value is not None for text in (name, str(value))]


def _end_with_stdin(end: Callable[[], None]) -> None:
    """The process that started this one has the other end of standard input: it is gone when that closes."""
    import os
    import sys
    import threading

    stdin = sys.stdin.fileno()

    def read() -> None:
        # Not by Python's own reader, whose lock this thread would hold for ever: an interpreter that ends aborts on it.
        while os.read(stdin, 1_024):
            pass
        end()

    threading.Thread(target=read, name="timewheel-relay-stdin", daemon=True).start()
