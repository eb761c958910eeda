"""`timewheel relay`: runs the relays of any number of plans as a separate process, and aborts a plan."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from typer import Argument, Option

from timewheel.cli import long_running
from timewheel.cli.connecting import ConnectionOptions, warn
from timewheel.cli.options import FAILED, command_group, keep_plan_file
from timewheel.cli.terminal import print_line, show_line
from timewheel.core.clock import SystemClock, pause
from timewheel.core.durations import format_duration, parse_duration, span
from timewheel.core.errors import AdminError, PlanError, TopologyError
from timewheel.core.escapes import timewheel_command, visible
from timewheel.core.extras import ExtraMissing
from timewheel.core.plan import Native
from timewheel.core.plurals import counted
from timewheel.core.rng import system_random

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.console import Console

    from timewheel.broker.admin.client import AdminClient
    from timewheel.broker.protocol.dialing import Dialer
    from timewheel.cli.connecting import Access
    from timewheel.core.plan import Plan
    from timewheel.core.planfile import PlanFiles as Files
    from timewheel.core.planfile import PlanTexts
    from timewheel.core.topology import FormerTopic
    from timewheel.hooks import Hook
    from timewheel.metrics import Metrics
    from timewheel.relay import Relay
    from timewheel.relay.relay import PartitionStatus
    from timewheel.relay.service import RelayLike
    from timewheel.serving import Page


def metrics_of_service() -> tuple[Metrics | None, dict[str, Page]]:
    """Return metrics on a registry of their own, and their page; without the extra, a page that names it."""
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


@dataclass(slots=True)
class RelayFactory:
    """Makes relays, or with a dialer shadows, with the same options, and shares the memory among them.

    `plans` returns the plans that are served now: topics of all other plans are former topics.
    """

    client: Any
    admin: AdminClient
    plans: Callable[[], tuple[Plan, ...]]
    relay_id: str | None
    hop_linger_ms: int | None
    memory_bytes: int
    hooks: tuple[Hook, ...]
    dialer: Dialer | None = None
    hold_ms: int = 0
    _outdated: dict[str, str] = field(default_factory=dict)

    def relay_of(self, plan: Plan) -> RelayLike:
        """Make a relay or a shadow that is not started yet."""
        from timewheel.relay import Relay
        from timewheel.shadow.shadow import Shadow

        if self.dialer is None:
            return Relay(self.client, plan, **self._options(plan))
        return Shadow(self.client, plan, self.dialer, self.admin, hold_ms=self.hold_ms, **self._options(plan))

    def _options(self, plan: Plan) -> dict[str, Any]:
        from timewheel.provision.former_topics import FormerTopics

        def former_topics() -> tuple[FormerTopic, ...]:
            self._report_outdated(plan)
            # By the plans served at this moment: a topic that another plan uses is no former topic.
            return FormerTopics(self.admin, plan, beside=self.plans())()

        return {
            "relay_id": self.relay_id,
            "hop_linger_ms": self.hop_linger_ms,
            "memory_bytes": self.memory_bytes // max(len(self.plans()), 1),
            "former_topics": former_topics,
            "hooks": self.hooks,
        }

    def _report_outdated(self, plan: Plan) -> None:
        """Report a plan that is not that by which its due topic was provisioned last, once per reason."""
        from timewheel.client.hooks import Hooks
        from timewheel.events import RelayPlanOutdated
        from timewheel.provision.provisioned import outdated, provisioned

        with suppress(AdminError):  # a role that may not read it relays all the same
            reason = outdated(plan, provisioned(self.admin, plan.due_topic))
            if reason and self._outdated.get(plan.due_topic) != reason:
                Hooks(self.hooks).emit(RelayPlanOutdated(due_topic=plan.due_topic, reason=reason))
            self._outdated[plan.due_topic] = reason

    def watch(self, metrics: Metrics, relays: Callable[[], Sequence[RelayLike]]) -> None:
        """Register the relays of each moment with the metrics."""
        from timewheel.shadow.shadow import Shadow

        metrics.watch_relays(relays)
        if self.dialer is not None:
            metrics.watch_shadows(lambda: [one for one in relays() if isinstance(one, Shadow)])

    def share_memory(self, relays: Sequence[RelayLike]) -> None:
        """Share the memory equally among these relays; there may be none."""
        for relay in relays:
            relay.resize_memory(self.memory_bytes // len(relays))

    def waiting(self, plan: Plan) -> int | None:
        """Return the number of entries that wait in the plan's holding topics; None: the broker did not answer."""
        from timewheel.provision.former_topics import held_backlog

        try:
            return held_backlog(self.admin, plan)
        except AdminError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions(ConnectionOptions):
    """Options of a relay service: a group for `timewheel.cli.options.with_options`."""

    kind: ClassVar[str] = "relay"  # the first word of the command

    plan_files: Annotated[
        list[Path], Argument(metavar="PLAN...", help="Plan files, or folders of them.", show_default=False)
    ]
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
    processes: Annotated[int, Option(min=1, help="Number of processes that share the work; each uses one core.")] = 1
    http: long_running.HttpAddress = None
    ready_file: Annotated[Path | None, Option(help="A file that exists while all relays are ready.")] = None
    log_format: long_running.LogFormat = long_running.Format.AUTO
    log_level: long_running.LogLevel = long_running.Level.INFO
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
    from timewheel.core.planfile import PlanFiles

    long_running.call_at_hangup()
    long_running.log_to_stderr(asked.log_format, asked.log_level)
    address = long_running.address_of(asked.http)
    drain_ms = parse_duration(asked.drain)
    files = PlanFiles(asked.plan_files)
    texts = files.read()
    if asked.processes > 1:
        asked.merged()  # an invalid connection is refused before any process starts
        with long_running.or_say_why_not():
            raise typer.Exit(_run_processes(asked, texts.plans(), drain_ms, address))
    _run_here(asked, files, texts, drain_ms, address)


def _run_here(
    asked: ServiceOptions, files: Files, texts: PlanTexts, drain_ms: int, address: tuple[str, int] | None
) -> None:
    from timewheel.cli.relay_processes import reporter
    from timewheel.hooks import log_event
    from timewheel.relay.service import Reloading, Service

    # Without an address no client could scrape the metrics.
    metrics, pages = (None, {}) if address is None else metrics_of_service()
    # Hooks of everything here: expired tokens and refused plans are counted as well as events of relays.
    hooks: tuple[Hook, ...] = (log_event,) if metrics is None else (log_event, metrics.count_event)
    access = asked.access(hooks)
    # Any broker of the cluster will do.
    plans = texts.plans()
    with access.client_and_admin(plans[0].due_topic) as (client, admin, url):
        hop_linger_ms = None if asked.hop_linger is None else parse_duration(asked.hop_linger)
        hold = asked.journal_hold
        crew = RelayFactory(
            client,
            admin,
            lambda: plans,
            asked.relay_id,
            hop_linger_ms,
            asked.memory_mb << 20,
            hooks,
            dialer=None if hold is None else access.dialer(url),
            hold_ms=0 if hold is None else parse_duration(hold),
        )
        service = Service(
            [crew.relay_of(plan) for plan in plans],
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
        long_running.call_at_hangup(reloading.ask_from_signal)
        long_running.call_at_end(service.end_from_signal)
        if asked.with_stdin:
            _end_with_stdin(service.end_from_signal)
        with long_running.or_say_why_not():
            service.run(reloading)


def _run_processes(
    asked: ServiceOptions, plans: tuple[Plan, ...], drain_ms: int, address: tuple[str, int] | None
) -> int:
    """Run this command in several processes, and return the exit status."""
    import sys
    import tempfile

    from timewheel.cli.relay_processes import Child, Processes, reporter
    from timewheel.relay.relay import new_relay_id

    count, ready_file = asked.processes, asked.ready_file
    arguments = _arguments_of_each(asked, plans)
    if asked.token is not None:
        os.environ["PULSAR_TOKEN"] = asked.token  # not as an argument, which all users of the host can read
    base = asked.relay_id or new_relay_id()
    with tempfile.TemporaryDirectory(prefix="timewheel-relay-") as folder:
        children = []
        for number in range(count):
            own = ["--relay-id", f"{base}-{number}", "--ready-file", f"{folder}/{number}", "--with-stdin"]
            if address is not None and address[1]:
                # The child's own port for metrics, counted from the service's port so that it is known.
                host = f"[{address[0]}]" if ":" in address[0] else address[0]
                own += ["--http", f"{host}:{address[1] + 1 + number}"]
            command = [sys.executable, "-m", "timewheel", asked.kind, "run", *arguments, *own]
            children.append(Child(f"{base}-{number}", command, Path(folder, str(number)), system_random()))
        running = Processes(
            children=children,
            drain_ms=drain_ms,
            address=address,
            ready_file=ready_file,
            clock=SystemClock(),
            report_well=reporter(),
        )
        long_running.call_at_hangup(running.hang_up_from_signal)
        long_running.call_at_end(running.end_from_signal)
        return running.run()


HANDED_ON = (
    "service_url", "admin_url", "drain", "hop_linger", "journal_hold", "token_file", "tls_ca", "connection",
    "log_format", "log_level",
)  # fmt: skip
"""Options that each process is given as they are."""


def _arguments_of_each(asked: ServiceOptions, plans: tuple[Plan, ...]) -> list[str]:
    # A partition held by relays has one receiving process; all processes receive from a partition held by the broker.
    shared_mb = asked.memory_mb if all(plan.holds_in_relay for plan in plans) else asked.memory_mb // asked.processes
    options = {"memory_mb": max(shared_mb, 1)} | {name: getattr(asked, name) for name in HANDED_ON}
    given = {f"--{name.replace('_', '-')}": str(value) for name, value in options.items() if value is not None}
    return [*map(str, asked.plan_files), *(word for option in given.items() for word in option)]


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


relay = command_group("relay", "Run relays as a service; leave a plan.")


@relay.command()
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
def abort(
    plan_file: Annotated[
        Path, Argument(metavar="PLAN", help="The plan file, now native.", show_default=False, callback=keep_plan_file)
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
    if not put_back(plan_file, cluster.access()):
        raise typer.Exit(FAILED)


LOOK_MS = 500
EMPTY_LOOKS = 2  # a timer that moves from one topic to another is in neither for a moment
REPORT_MS = 15_000  # interval between two progress lines if the output is no terminal
STALLED_MS = 15_000  # the reason is shown after this time without progress


def await_empty(
    console: Console, waiting: Callable[[], int], *, settle_ms: int = 0, why_stalled: Callable[[], str] = lambda: ""
) -> None:
    """Poll until no entry waits outside the due topic."""
    from rich.text import Text

    clock = SystemClock()
    began_ms = moved_ms = reported_ms = clock.monotonic_ms()
    first = least = waiting()
    entries, empty_looks, reason = first, 0, ""
    with console.status("looking") as shown:
        while True:
            now_ms = clock.monotonic_ms()
            if entries < least:
                least, moved_ms, reason = entries, now_ms, ""
            empty_looks = 0 if entries else empty_looks + 1
            if empty_looks >= EMPTY_LOOKS and now_ms >= began_ms + settle_ms:
                return
            if entries and now_ms - moved_ms >= STALLED_MS:
                reason, moved_ms = why_stalled(), now_ms
            done, took_ms = first - entries, now_ms - began_ms
            left = f", about {span(entries * took_ms / done)} left" if done > 0 and entries and took_ms else ""
            waits = counted(entries, "entry waits", "entries wait")
            line = f"{waits} outside the topic{left}" + (f": {reason}" if reason else "")
            shown.update(Text(visible(line)))
            if not console.is_terminal and now_ms - reported_ms >= REPORT_MS:
                reported_ms = now_ms
                show_line(console, line)
            pause(clock, LOOK_MS)
            entries = waiting()


def put_back(plan_file: Path, access: Access) -> bool:
    """Run a relay of the `native` plan until no holding topic of an earlier plan has anything.

    Returns True if nothing waits, nothing became a dead letter, and no client of an earlier plan is connected.
    """
    from rich.console import Console

    from timewheel.core.planfile import load_plan
    from timewheel.provision.former_topics import FormerTopics, findings_of
    from timewheel.provision.provisioned import provisioned, with_noted_namespaces
    from timewheel.relay import Relay

    plan, clock, console = load_plan(plan_file), SystemClock(), Console(stderr=True)
    file = str(plan_file)
    _check_native(plan, file)
    with access.client(plan.due_topic) as client, access.admin() as admin:
        # A native plan need not name the namespace in which an earlier plan held its timers.
        plan = with_noted_namespaces(plan, provisioned(admin, plan.due_topic))
        _check_topics(admin, plan, clock.now_ms(), file)
        inspect = FormerTopics(admin, plan)
        relay = Relay(client, plan, hooks=(warn,), former_topics=inspect)
        # A relay releases a partition that stays empty, and drops its counts.
        partitions: dict[str, PartitionStatus] = {}

        def waiting() -> int:
            partitions.update({partition.topic: partition for partition in relay.status().partitions})
            return sum(topic.backlog for topic in inspect() if topic.holding is not None)

        began_ms = clock.monotonic_ms()
        relay.start()
        try:
            await_empty(console, waiting, why_stalled=lambda: _why_stalled(admin, plan, inspect(), relay))
        finally:
            relay.stop()
        waiting()
        took = span(clock.monotonic_ms() - began_ms)
        moved, cancelled, dead = (
            sum(getattr(partition, count) for partition in partitions.values())
            for count in ("forwarded", "dropped", "dead")
        )
        print_line(f"{plan.due_topic}: nothing waits in holding topics")
        back, dead_letters = counted(moved, "timer"), counted(dead, "dead letter")
        print_line(f"put back by this process in {took}: {back}; {cancelled:,} cancelled, {dead_letters}")
        former = inspect()
    others = [topic for topic in former if topic.holding is None and topic.backlog]
    for finding in findings_of(plan, others):
        print_line(str(finding))
    senders = [topic for topic in former if topic.producers]
    if senders:
        print_line(
            f"producers of an earlier plan are connected to {_named(senders)}: restart those services with this plan, "
            f"then run again: {timewheel_command('relay', 'abort', file)}"
        )
    if dead:
        print_line(f"see why there are dead letters: {timewheel_command('dead-letters', 'list', file)}")
    if not senders and not others:
        print_line(f"remove the empty topics: {timewheel_command('topics', 'ensure', file, '--remove-drained')}")
    return not senders and not dead and all(topic.is_followed for topic in others)


def _check_native(plan: Plan, file: str) -> None:
    if plan.intake:
        way_out = timewheel_command("shadow", "abort", file)
        raise PlanError("intake", plan.intake, f"false here; the way out of a shadow is {way_out}").in_file(file)
    if not isinstance(plan.scheme, Native):
        raise PlanError(
            "scheme",
            type(plan.scheme).__name__.lower(),
            "native to leave: write [native] in place of that table, run timewheel topics ensure PLAN "
            "--ignore-former-topics, restart the services with it, then run this again",
        ).in_file(file)


def _check_topics(admin: AdminClient, plan: Plan, now_ms: int, file: str) -> None:
    """Verify, before any timer moves, that the broker would accept all timers that come back."""
    from timewheel.provision.provisioning import ensure

    report = ensure(admin, plan, now_ms=now_ms, dry_run=True, ignore_former_topics=True, target=file)
    for finding in report.errors:
        raise TopologyError(finding.subject, f"{finding.read}. {finding.why}", finding.cure)
    if report.steps:
        step = report.steps[0]
        remedy = f"run: {timewheel_command('topics', 'ensure', file, '--ignore-former-topics')}"
        raise TopologyError(step.topic, f"is not as the native plan needs it ({step})", remedy)


def _why_stalled(admin: AdminClient, plan: Plan, former: Iterable[FormerTopic], relay: Relay) -> str:
    """Return why a holding topic does not become empty: other clients, or the broker; empty: no reason can be seen."""
    from timewheel.broker.admin.policies import DELAYED_DELIVERY
    from timewheel.provision.foreign_settings import set_delayed_delivery

    topics = [topic for topic in former if topic.holding is not None and topic.backlog]
    senders = [topic for topic in topics if topic.producers]
    if senders:
        return f"producers of an earlier plan still send to {_named(senders)}; restart them with this plan"
    readers = {other for topic in topics for other in topic.relays} - {relay.relay_id}
    if readers:
        return f"other relays read there too ({', '.join(sorted(readers))}); restart those that run an earlier plan"
    delays = admin.topic_policies.get(plan.due_topic, DELAYED_DELIVERY, applied=True)
    if delays is not None and delays.max_delay_ms > 0:
        return (
            f"the broker takes delays up to {format_duration(delays.max_delay_ms)} in {plan.due_topic}, and refuses a "
            f"timer that is due later; {set_delayed_delivery(plan.due_topic, delays)}"
        )
    return next((part.reason for part in relay.status().partitions if part.reason is not None), "")


def _named(topics: Iterable[FormerTopic]) -> str:
    return ", ".join(topic.name for topic in topics)
