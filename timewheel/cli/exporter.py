"""`timewheel exporter`: exports gaps of any topics and timers of plans to Prometheus."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer
from typer import Argument, Option

from timewheel.cli import long_running
from timewheel.cli.connecting import AdminOptions
from timewheel.cli.options import AtOnce, Everything, GapLimit, every_ms_of, names_and_plans
from timewheel.cli.terminal import print_line

DEFAULT_HTTP = "127.0.0.1:9409"
FRESH_LOOKS = 3  # the exporter is ready for this many intervals after a successful look


def exporter(
    targets: Annotated[
        list[str] | None,
        Argument(
            metavar="[TARGET]...",
            help="Topics, namespaces (acme/crm), tenants, plan files; for plan files also their timers.",
            show_default=False,
        ),
    ] = None,
    *,
    everything: Everything = False,
    http: long_running.HttpAddress = DEFAULT_HTTP,
    every: Annotated[str, Option(help="Interval between the starts of two snapshots.")] = "30s",
    limit: GapLimit = None,
    most: Annotated[
        int, Option("--limit", min=1, help="Subscriptions to export, the worst first; each is a dozen series.")
    ] = 500,
    samples: Annotated[int, Option(min=1, max=100_000, help="Entries of each plan to sample for each snapshot.")] = 200,
    at_once: AtOnce = 16,
    cluster: AdminOptions,
    log_format: long_running.LogFormat = long_running.Format.AUTO,
    log_level: long_running.LogLevel = long_running.Level.INFO,
) -> None:
    """Export gaps, the entries that an unload would repeat, and the due times of timers to Prometheus, until SIGTERM or
    Ctrl-C.

    The exporter makes a snapshot once in each interval; a scrape of /metrics returns the last snapshot. /readyz answers
    503 if no snapshot was completed in the last three intervals. Nothing is consumed or changed. Requires the extra
    ``metrics``.
    """
    from timewheel.hooks import log_event

    if not targets and not everything:
        raise typer.BadParameter(
            "name a topic, a namespace, a tenant or a plan file, or give --all", param_hint="TARGET"
        )
    every_ms = every_ms_of(every)
    address = long_running.address_of(http)
    assert address is not None, "there is a default"
    from timewheel.metrics import Exporter, metrics_page  # first of all: without the extra this raises a clear error

    long_running.log_to_stderr(log_format, log_level)
    from prometheus_client import CollectorRegistry

    from timewheel.inspect.gaps.snapshot import EVERYTHING
    from timewheel.serving import LIVE_PATH, METRICS_PATH, READY_PATH, Answer, HttpServer

    names, plans = names_and_plans(targets or [])
    with cluster.admin(hooks=(log_event,)) as admin:
        told = Exporter(
            admin,
            [EVERYTHING] if everything else names,
            plans,
            gap_limit=limit,
            most=most,
            reads=samples,
            at_once=at_once,
        )
        registry = CollectorRegistry()
        registry.register(told)
        pages = {
            METRICS_PATH: metrics_page(registry),
            LIVE_PATH: lambda: Answer(200, b"alive\n"),
            READY_PATH: lambda: (
                Answer(200, b"the last snapshot is fresh\n")
                if told.is_fresh(every_ms * FRESH_LOOKS)
                else Answer(503, b"no look has come to an end lately: see the log\n")
            ),
        }
        long_running.stop_at_end()
        with suppress(long_running.Stopped):
            with long_running.or_say_why_not():
                server = HttpServer(*address, pages)
            try:
                print_line(f"http://{address[0]}:{server.port}{METRICS_PATH}", to_stderr=True)
                told.run(every_ms)
            finally:
                server.close()
