"""The service behind `timewheel relay run` and `timewheel shadow run`, for any number of plans."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from typer import Argument, Option

from timewheel.cli.connecting import ConnectionOptions
from timewheel.cli.long_running import (
    Format,
    HttpAddress,
    Level,
    LogFormat,
    LogLevel,
    address_of,
    call_at_end,
    call_at_hangup,
    log_to_stderr,
    or_say_why_not,
)
from timewheel.core.clock import SystemClock
from timewheel.core.durations import parse_duration
from timewheel.core.errors import AdminError
from timewheel.core.extras import ExtraMissing
from timewheel.core.rng import system_random

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from timewheel.broker.admin.client import AdminClient
    from timewheel.broker.protocol.dialing import Dialer
    from timewheel.core.former_topics import FormerTopic
    from timewheel.core.plan import Plan
    from timewheel.core.plan_files import PlanFiles as Files
    from timewheel.core.plan_files import PlanTexts
    from timewheel.hooks import Hook
    from timewheel.metrics import Metrics
    from timewheel.relay.registry import RelayLike
    from timewheel.serving import Page


def metrics_of_service() -> tuple[Metrics | None, dict[str, Page]]:
    """Return metrics on a separate registry, and the page that serves them; without the extra, a page that names the
    extra.
    """
    from timewheel.serving import METRICS_PATH, Answer

    try:
        from timewheel.metrics import Metrics, metrics_page
    except ExtraMissing as error:
        told = Answer(501, f"{error}\n".encode())
        return None, {METRICS_PATH: lambda: told}
    from prometheus_client import CollectorRegistry
    from prometheus_client.platform_collector import PlatformCollector
    from prometheus_client.process_collector import ProcessCollector

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return Metrics(registry), {METRICS_PATH: metrics_page(registry)}


class RelayFactory:
    """Makes relays with the same options, and shares the memory among them."""

    def __init__(
        self,
        client: Any,
        admin: AdminClient,
        plans: tuple[Plan, ...],
        relay_id: str | None,
        hop_linger_ms: int | None,
        memory_bytes: int,
        hooks: tuple[Hook, ...],
    ) -> None:
        self._client, self._admin = client, admin
        self._relay_id, self._hop_linger_ms = relay_id, hop_linger_ms
        self._memory_bytes = memory_bytes
        self._hooks = hooks
        self._outdated: dict[str, str] = {}
        self.plans: Callable[[], tuple[Plan, ...]] = lambda: plans
        """Returns the plans that are served now: topics of all other plans are former topics."""

    def relay_of(self, plan: Plan) -> RelayLike:
        """Make a relay that is not started yet."""
        from timewheel.relay import Relay

        return Relay(self._client, plan, **self._options(plan))

    def _options(self, plan: Plan) -> dict[str, Any]:
        from timewheel.provision.former_topics import FormerTopics

        def former_topics() -> tuple[FormerTopic, ...]:
            self._report_outdated(plan)
            # By the plans served at this moment: a topic that another plan uses is no former topic.
            return FormerTopics(self._admin, plan, beside=self.plans())()

        return {
            "relay_id": self._relay_id,
            "hop_linger_ms": self._hop_linger_ms,
            "memory_bytes": self._memory_bytes // max(len(self.plans()), 1),
            "former_topics": former_topics,
            "hooks": self._hooks,
        }

    def _report_outdated(self, plan: Plan) -> None:
        """Report a plan that is not that by which its due topic was provisioned last, once per reason."""
        from timewheel.client.hooks import Hooks
        from timewheel.events import RelayPlanOutdated
        from timewheel.provision.provisioned import outdated, provisioned

        with suppress(AdminError):  # a role that may not read it relays all the same
            reason = outdated(plan, provisioned(self._admin, plan.due_topic))
            if reason and self._outdated.get(plan.due_topic) != reason:
                Hooks(self._hooks).emit(RelayPlanOutdated(due_topic=plan.due_topic, reason=reason))
            self._outdated[plan.due_topic] = reason

    def watch(self, metrics: Metrics, relays: Callable[[], Sequence[RelayLike]]) -> None:
        """Register the relays of each moment with the metrics."""
        metrics.watch_relays(relays)

    def share_memory(self, relays: Sequence[RelayLike]) -> None:
        """Share the memory equally among these relays; there may be none."""
        for relay in relays:
            relay.resize_memory(self._memory_bytes // len(relays))

    def waiting(self, plan: Plan) -> int | None:
        """Return the number of entries that wait in the plan's holding topics; None: the broker did not answer."""
        from timewheel.provision.former_topics import held_backlog

        try:
            return held_backlog(self._admin, plan)
        except AdminError:
            return None


class ShadowFactory(RelayFactory):
    """Makes shadows with the same options."""

    def __init__(self, *relay_factories: Any, dialer: Dialer, hold_ms: int) -> None:
        super().__init__(*relay_factories)
        self._dialer, self._hold_ms = dialer, hold_ms

    def relay_of(self, plan: Plan) -> RelayLike:
        """Make a shadow that is not started yet."""
        from timewheel.shadow.shadow import Shadow

        return Shadow(self._client, plan, self._dialer, self._admin, hold_ms=self._hold_ms, **self._options(plan))

    def watch(self, metrics: Metrics, relays: Callable[[], Sequence[RelayLike]]) -> None:
        from timewheel.shadow.shadow import Shadow

        super().watch(metrics, relays)
        metrics.watch_shadows(lambda: [one for one in relays() if isinstance(one, Shadow)])


PlanFiles = Annotated[
    list[Path], Argument(metavar="PLAN...", help="Plan files, or folders of them.", show_default=False)
]
Processes = Annotated[
    int, Option("--processes", min=1, help="Number of processes that share the work; each uses one core.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions(ConnectionOptions):
    """Options of a relay service: a group for `timewheel.cli.options.with_options`."""

    kind: ClassVar[str] = "relay"
    """The first word of the command."""

    plan_files: PlanFiles
    relay_id: Annotated[
        str | None, Option(help="Name of this relay: unique among running relays, the same after a restart.")
    ] = None
    drain: Annotated[str, Option(help="At SIGTERM: how long to wait for hops under way.")] = "30s"
    hop_linger: Annotated[
        str | None,
        Option(
            help="How long hops into a relay-held topic wait, to be written as one entry.",
            show_default="1s, or a tenth of the plan's guard if that is less",
        ),
    ] = None
    memory_mb: Annotated[
        int, Option(min=1, help="Memory for messages received ahead and hops under way, of all plans together.")
    ] = 512
    processes: Processes = 1
    http: HttpAddress = None
    ready_file: Annotated[Path | None, Option(help="A file that exists while all relays are ready.")] = None
    log_format: LogFormat = Format.AUTO
    log_level: LogLevel = Level.INFO
    with_stdin: Annotated[bool, Option("--with-stdin", hidden=True, help="End when standard input ends.")] = False
    journal_hold: str | None = field(init=False, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowServiceOptions(ServiceOptions):
    """Options of a service that shadows."""

    kind: ClassVar[str] = "shadow"

    journal_hold: Annotated[
        str,
        Option(
            help="How long copies are kept beyond need: longer than a broker takes to write acknowledgements to disk."
        ),
    ] = "3m"


def run_service(asked: ServiceOptions) -> None:
    """Run until SIGTERM or Ctrl-C."""
    from timewheel.core.plan_files import PlanFiles

    call_at_hangup()
    log_to_stderr(asked.log_format, asked.log_level)
    address = address_of(asked.http)
    drain_ms = parse_duration(asked.drain)
    files = PlanFiles(asked.plan_files)
    texts = files.read()
    if asked.processes > 1:
        asked.merged()  # an invalid connection is refused before any process starts
        with or_say_why_not():
            raise typer.Exit(_run_processes(asked, texts.plans(), drain_ms, address))
    _run_here(asked, files, texts, drain_ms, address)


def _run_here(
    asked: ServiceOptions, files: Files, texts: PlanTexts, drain_ms: int, address: tuple[str, int] | None
) -> None:
    """Run the service in this process."""
    from timewheel.cli.relay_processes import reporter
    from timewheel.hooks import log_event
    from timewheel.relay.reloading import Reloading
    from timewheel.relay.service import Service

    # Without an address no client could scrape the metrics.
    metrics, pages = (None, {}) if address is None else metrics_of_service()
    # Hooks of everything here: expired tokens and refused plans are counted as well as events of relays.
    hooks: tuple[Hook, ...] = (log_event,) if metrics is None else (log_event, metrics.count_event)
    access = asked.access(hooks)
    # Any broker of the cluster will do.
    topic = texts.plans()[0].due_topic
    with access.client_and_admin(topic) as (client, admin, url):
        dialer = access.dialer(url) if asked.kind == "shadow" else None
        crew = _crew(asked, dialer, client, admin, texts.plans(), hooks)
        service = Service(
            [crew.relay_of(plan) for plan in texts.plans()],
            drain_ms=drain_ms,
            address=address,
            pages=pages,
            ready_file=asked.ready_file,
            report_well=reporter(),
        )
        crew.plans = lambda: service.registry.plans
        if metrics is not None:
            # Only the working relays: a relay is also made to check whether a new plan could be served.
            crew.watch(metrics, lambda: service.registry.relays)
        reloading = Reloading(
            service.registry,
            files,
            texts,
            crew.relay_of,
            waiting=crew.waiting,
            settle=lambda: crew.share_memory(service.registry.relays),
            drain_ms=drain_ms,
            hooks=hooks,
        )
        call_at_hangup(reloading.ask_from_signal)
        call_at_end(service.end_from_signal)
        if asked.with_stdin:
            _end_with_stdin(service.end_from_signal)
        with or_say_why_not():
            service.run(reloading)


def _crew(
    asked: ServiceOptions,
    dialer: Dialer | None,
    client: Any,
    admin: AdminClient,
    plans: tuple[Plan, ...],
    hooks: tuple[Hook, ...],
) -> RelayFactory:
    hop_linger_ms = None if asked.hop_linger is None else parse_duration(asked.hop_linger)
    alike = (client, admin, plans, asked.relay_id, hop_linger_ms, asked.memory_mb << 20, hooks)
    if dialer is None or asked.journal_hold is None:
        return RelayFactory(*alike)
    return ShadowFactory(*alike, dialer=dialer, hold_ms=parse_duration(asked.journal_hold))


def _run_processes(
    asked: ServiceOptions, plans: tuple[Plan, ...], drain_ms: int, address: tuple[str, int] | None
) -> int:
    """Run this command in several processes, and return the exit status."""
    import sys
    import tempfile

    from timewheel.cli.relay_processes import Child, Processes
    from timewheel.relay.relay import new_relay_id

    count, ready_file = asked.processes, asked.ready_file
    arguments = [*map(str, asked.plan_files), *_given(_options_of_each(asked, plans))]
    if asked.token is not None:
        os.environ["PULSAR_TOKEN"] = asked.token  # not as an argument, which all users of the host can read
    base = asked.relay_id or new_relay_id()
    with tempfile.TemporaryDirectory(prefix="timewheel-relay-") as folder:
        children = []
        for number in range(count):
            own = ["--relay-id", f"{base}-{number}", "--ready-file", f"{folder}/{number}", "--with-stdin"]
            own += _http_of_child(address, number)
            command = [sys.executable, "-m", "timewheel", asked.kind, "run", *arguments, *own]
            children.append(Child(f"{base}-{number}", command, Path(folder, str(number)), system_random()))
        running = Processes(children, drain_ms=drain_ms, address=address, ready_file=ready_file, clock=SystemClock())
        call_at_hangup(running.hang_up_from_signal)
        call_at_end(running.end_from_signal)
        return running.run()


def _options_of_each(asked: ServiceOptions, plans: tuple[Plan, ...]) -> dict[str, Any]:
    # A partition held by relays has one receiving process; all processes receive from a partition held by the broker.
    shared_mb = asked.memory_mb if all(plan.holds_in_relay for plan in plans) else asked.memory_mb // asked.processes
    return {
        "--service-url": asked.service_url,
        "--admin-url": asked.admin_url,
        "--drain": asked.drain,
        "--hop-linger": asked.hop_linger,
        "--memory-mb": max(shared_mb, 1),
        "--journal-hold": asked.journal_hold,
        "--token-file": asked.token_file,
        "--tls-ca": asked.tls_ca,
        "--connection": asked.connection,
        "--log-format": asked.log_format.value,
        "--log-level": asked.log_level.value,
    }


def _http_of_child(address: tuple[str, int] | None, number: int) -> list[str]:
    """Return the option with the child's own port for metrics, counted from the service's port so that it is known."""
    if address is None or not address[1]:
        return []
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return ["--http", f"{host}:{address[1] + 1 + number}"]


def _given(options: dict[str, Any]) -> list[str]:
    return [text for name, value in options.items() if value is not None for text in (name, str(value))]


def _end_with_stdin(end: Callable[[], None]) -> None:
    """End when standard input closes: the parent process holds its other end, and has gone then."""
    import sys

    stdin = sys.stdin.fileno()

    def read() -> None:
        # Not with sys.stdin: this thread would hold its lock forever, and the interpreter aborts on that at its end.
        while os.read(stdin, 1_024):
            pass
        end()

    threading.Thread(target=read, name="timewheel-relay-stdin", daemon=True).start()
