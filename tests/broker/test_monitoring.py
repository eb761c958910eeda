"""A real Prometheus reads a service, a relay, the exporter and the broker: queries answer, panels show something."""

from __future__ import annotations

import datetime as dt
import math
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import httpx
import pulsar
import pytest
from prometheus_client import CollectorRegistry

from tests.broker.due_topic import running
from tests.broker.relay_service import RelayProcess
from tests.broker.shadow_stage import ShadowStage
from tests.packaging.test_monitoring import BROKERS, panels, queries
from tests.support import prometheus
from tests.support.own_broker import own_broker
from timewheel.broker.admin import AdminClient
from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.core.names import Names, partition_topic
from timewheel.core.plan import Plan, Tiered
from timewheel.core.planfile import save_plan
from timewheel.core.steps import steps
from timewheel.errors import PayloadTooLarge, TimewheelError
from timewheel.hooks import log_event
from timewheel.metrics import Metrics, metrics_page
from timewheel.producers import DelayedProducer, Timer
from timewheel.provision import ensure
from timewheel.serving import LOOPBACK, HttpServer
from timewheel.shadow.desired_state import State
from timewheel.testing import Broker, eventually
from timewheel.testing.plugin import MakeLocalPulsar
from timewheel.testing.ports import free_ports

if TYPE_CHECKING:
    from tests.conftest import Evidence
    from tests.support.prometheus import Prometheus
    from timewheel.testing import LocalPulsar


DUE = "persistent://public/default/monitored"
PLAN = Plan(
    due_topic=DUE,
    subscriptions=("billing",),
    scheme=Tiered(window_ms=2_000, tiers_ms=(2_000,)),
    max_delay_ms=3_600_000,
    guard_ms=500,
    relay="service",
)
SHADOWED = replace(PLAN, due_topic=f"{PLAN.due_topic}-shadowed", readers="any", intake=True)
ABSENT = {"bottomk(10, timewheel_gap_limit_reached_seconds)": "growth is known after looks over a minute"}
"""Queries of the dashboard without an answer here, and why."""
EVENTS = "sum by (event, level) (increase(timewheel_events_total[5m])) > 0"  # answers if something happened


@pytest.fixture
def broker(make_local_pulsar: MakeLocalPulsar) -> Broker:
    return make_local_pulsar(config={"exposeManagedCursorMetricsInPrometheus": "true"})


@pytest.fixture
def client(broker: Broker) -> Iterator[Any]:
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def raising(error: TimewheelError | None, timer: Timer) -> None:
    raise RuntimeError(f"a callback that raises: {timer.id} {error}")


class Exporting:
    """``timewheel exporter`` as a process; killed at the end if it still runs."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        (self.port,) = free_ports(1)
        self.log = folder / "exporter.log"
        command = [sys.executable, "-m", "timewheel", "exporter", *arguments, "--http", f":{self.port}"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def ask(self, path: str) -> Any:
        return httpx.get(f"http://{LOOPBACK}:{self.port}{path}", timeout=10, trust_env=False)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return bool(self.ask("/readyz").status_code == 200)
        except httpx.TransportError:
            return False


class Work(NamedTuple):
    """A service, an exporter beside it, and the Prometheus that scrapes them and a relay."""

    scraping: Prometheus
    metrics: Metrics
    producer: DelayedProducer
    consumer: DelayedConsumer
    exporter: Exporting


@contextmanager
def at_work(
    broker: Broker,
    client: Any,
    folder: Path,
    *plans: Plan,
    rules: Sequence[Path] = (),
    targets: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Work]:
    """A service and a relay of `PLAN`, and an exporter of it and more plans; its consumer is not started yet."""
    prometheus.need("prometheus")
    files = [folder / f"{number}.toml" for number in range(1 + len(plans))]
    for plan, file in zip((PLAN, *plans), files, strict=True):
        save_plan(plan, file)
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    hooks = (log_event, metrics.count_event)
    server = HttpServer(LOOPBACK, 0, {"/metrics": metrics_page(registry)})
    exported = (*map(str, files), "public/default", "--admin-url", broker.admin_url, "--every", "1s")
    with (
        RelayProcess(broker, PLAN, folder) as relay,
        Exporting(folder, *exported) as exporter,
        prometheus.started(
            folder,
            {
                "service": f"{LOOPBACK}:{server.port}",
                "relay": f"{LOOPBACK}:{relay.port}",
                "exporter": f"{LOOPBACK}:{exporter.port}",
                **targets,
            },
            rules,
        ) as scraping,
        metrics.watch_producer(DelayedProducer(client, PLAN, hooks=hooks)) as producer,
    ):
        consumer = metrics.watch_consumer(DelayedConsumer(client, PLAN, "billing", hooks=hooks))
        eventually(exporter.is_ready, 60, message=exporter.log.read_text())
        relay.await_ready()
        yield Work(scraping, metrics, producer, consumer, exporter)
    server.close()


@pytest.mark.timeout(300)
@pytest.mark.short
def test_every_query_and_every_alert_answers(broker: Broker, client: Any, tmp_path: Path) -> None:
    with AdminClient(broker.admin_url) as admin:
        ensure(admin, PLAN, now_ms=time.time_ns() // 1_000_000)
    of_broker = {"broker": broker.admin_url.removeprefix("http://") + "/metrics/"}
    with (
        ShadowStage(broker, SHADOWED) as shadowed,
        at_work(broker, client, tmp_path, SHADOWED, rules=prometheus.RULES, targets=of_broker) as work,
        work.consumer as consumer,
    ):
        scraping, metrics, producer, _, exporter = work
        shadowed.desired(State.SHADOWING)
        shadow = shadowed.shadow()
        metrics.watch_shadows(lambda: (shadow,))
        plain = shadowed.plain_producer()
        for number in range(40):
            producer.send(b"x", deliver_after=dt.timedelta(seconds=0.2 * number if number % 2 else 1_800))
        with pytest.raises(PayloadTooLarge):
            producer.send(b"x" * 6_000_000)
        for _ in range(20):
            consumer.acknowledge(consumer.receive(dt.timedelta(seconds=30)))

        def unanswered() -> list[str]:
            return [query for query in queries() if query not in {*ABSENT, EVENTS} and not scraping.query(query)]

        def all_answer() -> bool:
            plain.send(b"x", deliver_at=time.time_ns() // 1_000_000 + 600_000)  # it is moved
            assert unanswered() == []
            return True

        assert EVENTS in queries()
        eventually(all_answer, 60)
        for query in ABSENT:
            assert scraping.query(query) == [], "it answers after all"

        def value(query: str) -> float:
            ours = PLAN.due_topic
            (found,) = [one for one in scraping.query(query) if one["metric"].get("due_topic", ours) == ours]
            return float(found["value"][1])

        assert value("timewheel_producer_stored_total") == 40
        assert value("timewheel_producer_refused_total") == 1
        eventually(lambda: value("timewheel_consumer_done_total") == 20, 60)
        assert value("timewheel_consumer_lateness_seconds_count") == 20
        eventually(lambda: value('sum(timewheel_relay_hops_total{job="relay", lane="on_time"})') > 0, 60)
        eventually(lambda: value('timewheel_timers{due="next_hour"}') == 20, 60)
        for name in BROKERS:
            assert scraping.query(name), name
        rules = [rule for group in scraping.groups() for rule in group["rules"]]
        assert {rule["name"] for rule in rules} == set(prometheus.alerts())
        assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
        assert [rule["name"] for rule in rules if rule["alerts"]] == [], "all is well here"
        producer.send_async(b"x", raising)
        eventually(lambda: scraping.query('ALERTS{alertname="TimewheelError", event="send_callback_failed"}'), 60)
        eventually(lambda: scraping.query(EVENTS), 60)

        exporter.process.send_signal(signal.SIGTERM)
        assert exporter.process.wait(30) == 0, exporter.log.read_text()


def test_an_exporter_without_a_broker_tells_nothing_and_says_so(tmp_path: Path) -> None:
    (nobody,) = free_ports(1)
    with Exporting(
        tmp_path, "public/default", "--admin-url", f"http://{LOOPBACK}:{nobody}", "--every", "1s"
    ) as exporter:
        eventually(lambda: "snapshot_failed" in exporter.log.read_text(), 60)
        told = exporter.ask("/metrics").text
        assert re.search(r"timewheel_exporter_snapshots_failed_total [1-9]", told)
        assert "timewheel_gaps{" not in told
        assert "timewheel_exporter_last_look" not in told
        assert exporter.ask("/readyz").status_code == 503
        assert exporter.ask("/livez").status_code == 200
        assert "Traceback" not in exporter.log.read_text()


FLAT = {"Late and without a relay", "Hops under way", "Sessions begun anew"}
"""What does not happen here, or is over between two scrapes."""
MAX_LINES = 15
TROUBLED = "persistent://public/default/troubled"
LIMIT = 3_000
PLAYED_S = 75  # growth is known after looks over a minute
STEP_S = 1
UNLOAD_EVERY_S = 20


class Line(NamedTuple):
    """A series of a panel: its legend, and (UTC seconds, value) in order."""

    legend: str
    points: Sequence[tuple[float, float]]


def lines_of(target: Mapping[str, Any], answer: Sequence[Mapping[str, Any]]) -> list[Line]:
    """Return the lines that a panel draws for a query."""
    found = []
    for series in answer:
        points = [(float(at), float(value)) for at, value in series["values"] if math.isfinite(float(value))]
        legend = Template(target["legendFormat"].replace("{{", "${").replace("}}", "}")).substitute(series["metric"])
        if points:
            found.append(Line(legend, points))
    return found


class Flaky:
    """A handler that fails now and then."""

    def __init__(self) -> None:
        self._source = random.Random(7)

    def __call__(self, message: DelayedMessage) -> None:
        if self._source.random() < 0.1:
            raise RuntimeError(f"a handler that fails: {message.timer_id}")


@contextmanager
def watched(broker: LocalPulsar, client: Any, folder: Path) -> Iterator[Prometheus]:
    """A service, a relay and an exporter that are busy, and a Prometheus that scrapes them each second."""
    with at_work(broker, client, folder) as work, running(work.consumer, Flaky()), sending(work.producer):
        yield work.scraping


@contextmanager
def sending(producer: DelayedProducer) -> Iterator[None]:
    """Timers all the time, some of them for later."""
    ended = threading.Event()

    def send() -> None:
        source = random.Random(7)
        while not ended.wait(0.05):
            after_s = source.choice((0.3, 3, 6, 1_800))
            producer.send_async(b"x", lambda _error, _timer: None, deliver_after=dt.timedelta(seconds=after_s))

    thread = threading.Thread(target=send, name="test-sends")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(30)


def trouble(client: Any, admin: AdminClient, until_s: float) -> None:
    """A topic with mixed delays, a message that no relay can read, and reloads."""
    source = random.Random(7)
    stranger = client.create_producer(partition_topic(Names(PLAN).of_step(steps(PLAN)[0])[0], 0))
    consumer = client.subscribe(TROUBLED, "billing", pulsar.ConsumerType.Shared)
    producer = client.create_producer(TROUBLED, batching_enabled=False)
    unload_s = time.time() + UNLOAD_EVERY_S
    while time.time() < until_s:
        if source.random() < 0.05:
            stranger.send(b"no timer")
        for number in range(20):
            producer.send(b"x", deliver_after=dt.timedelta(hours=number % 2, seconds=1))
        for _ in range(10):
            consumer.acknowledge(consumer.receive(20_000))
        if time.time() > unload_s:
            unload_s += UNLOAD_EVERY_S
            admin.topics.unload(PLAN.due_topic)


@pytest.mark.proof
@pytest.mark.timeout(400)
def test_every_panel_has_something_to_show(tmp_path: Path, evidence: Evidence) -> None:
    shown = [panel for panel in panels() if panel["type"] != "row"]
    limited = own_broker({"managedLedgerMaxUnackedRangesToPersist": str(LIMIT)})
    with limited as broker, AdminClient(broker.admin_url) as admin, ExitStack() as stack:
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        stack.callback(client.close)
        ensure(admin, PLAN, now_ms=time.time_ns() // 1_000_000)
        scraping = stack.enter_context(watched(broker, client, tmp_path))
        began_s = time.time()
        trouble(client, admin, began_s + PLAYED_S)
        drawn: dict[int, list[Line]] = {
            panel["id"]: [
                line
                for target in panel.get("targets", ())
                for line in lines_of(target, scraping.over(target["expr"], began_s, time.time(), STEP_S))
            ]
            for panel in shown
        }
    empty = [panel["title"] for panel in shown if not drawn[panel["id"]]]
    assert empty == []
    flat = {
        panel["title"] for panel in shown if not any(value for one in drawn[panel["id"]] for _, value in one.points)
    }
    assert not flat - FLAT, "a panel that nothing moves"
    for panel in shown:
        names = [line.legend for line in drawn[panel["id"]]]
        assert len(set(names)) == len(names), (panel["title"], names)
        assert len(names) <= MAX_LINES, (panel["title"], names)
        assert panel["type"] != "timeseries" or all(names), panel["title"]
    lines = sum(map(len, drawn.values()))
    figures = {"panels": len(shown), "lines": lines, "empty": len(empty), "flat": len(flat), "played (s)": PLAYED_S}
    evidence("every panel of the dashboard has something to show", figures)
