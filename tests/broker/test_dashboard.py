"""The dashboard on a real Prometheus while things go wrong: no panel stays empty, and every line has a name."""

from __future__ import annotations

import datetime as dt
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pulsar
import pytest
from prometheus_client import CollectorRegistry

from tests.broker.due_topic import running
from tests.broker.relay_service import RelayProcess
from tests.broker.test_monitoring import PLAN, Exporting
from tests.support import dashboard, prometheus
from tests.support.dashboard import PAGE
from tests.support.dashboard_picture import Line, lines_of, write_picture
from tests.support.own_broker import own_broker
from timewheel.broker.admin import AdminClient
from timewheel.consumers import DelayedConsumer, DelayedMessage
from timewheel.core.names import Names, partition_topic
from timewheel.core.planfile import save_plan
from timewheel.core.steps import steps
from timewheel.hooks import log_event
from timewheel.metrics import Metrics, metrics_page
from timewheel.producers import DelayedProducer
from timewheel.provision import ensure
from timewheel.serving import LOOPBACK, HttpServer
from timewheel.testing import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Evidence
    from tests.support.prometheus import Prometheus
    from timewheel.testing import LocalPulsar

ROWS = {title for title, _ in dashboard.ROWS}
FLAT = {"Late and without a relay", "Hops under way", "Sessions begun anew"}
"""What does not happen here, or is over between two scrapes."""
MAX_LINES = 15
TROUBLED = "persistent://public/default/troubled"
LIMIT = 3_000
PLAYED_S = 75
"""Growth is known after looks over a minute."""
STEP_S = 1
UNLOAD_EVERY_S = 20


@pytest.fixture
def broker() -> Iterator[LocalPulsar]:
    with own_broker({"managedLedgerMaxUnackedRangesToPersist": str(LIMIT)}) as started:
        yield started


class Flaky:
    """A handler that fails now and then."""

    def __init__(self) -> None:
        self._source = random.Random(7)

    def __call__(self, message: DelayedMessage) -> None:
        if self._source.random() < 0.1:
            raise RuntimeError(f"a handler that fails: {message.timer_id}")


@contextmanager
def watched(broker: LocalPulsar, client: Any, folder: Path) -> Iterator[Prometheus]:
    """A service, a relay and an exporter at work, and a Prometheus that scrapes them each second."""
    plan_file = folder / "reminders.toml"
    save_plan(PLAN, plan_file)
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    hooks = (log_event, metrics.count_event)
    server = HttpServer(LOOPBACK, 0, {"/metrics": metrics_page(registry)})
    exporter = ("--admin-url", broker.admin_url, "--every", "1s")
    with (
        RelayProcess(broker, PLAN, folder) as relay,
        Exporting(folder, str(plan_file), "public/default", *exporter) as exporting,
        prometheus.started(
            folder,
            {
                "service": f"{LOOPBACK}:{server.port}",
                "relay": f"{LOOPBACK}:{relay.port}",
                "exporter": f"{LOOPBACK}:{exporting.port}",
            },
        ) as scraping,
        metrics.watch_producer(DelayedProducer(client, PLAN, hooks=hooks)) as producer,
        running(metrics.watch_consumer(DelayedConsumer(client, PLAN, "billing", hooks=hooks)), Flaky()),
        sending(producer),
    ):
        eventually(exporting.is_ready, 60)
        relay.await_ready()
        yield scraping
    server.close()


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
def test_every_panel_has_something_to_show(
    broker: LocalPulsar, tmp_path: Path, say: Callable[[object], None], evidence: Evidence
) -> None:
    prometheus.need("prometheus")
    panels: list[dict[str, Any]] = json.loads(PAGE.read_text(encoding="utf-8"))["panels"]
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with AdminClient(broker.admin_url) as admin, ExitStack() as stack:
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
            for panel in panels
        }
    write_picture(panels, drawn, tmp_path / "dashboard.png")
    say(f"drawn: {tmp_path / 'dashboard.png'}")

    empty = [panel["title"] for panel in panels if panel["type"] != "row" and not drawn[panel["id"]]]
    assert empty == []
    flat = [
        panel["title"] for panel in panels if not any(value for one in drawn[panel["id"]] for _, value in one.points)
    ]
    assert not {*flat} - ROWS - FLAT, "a panel that nothing moves"
    for panel in panels:
        names = [line.legend for line in drawn[panel["id"]]]
        assert len(set(names)) == len(names), (panel["title"], names)
        assert len(names) <= MAX_LINES, (panel["title"], names)
        assert panel["type"] != "timeseries" or all(names), panel["title"]
    shown = [panel for panel in panels if panel["type"] != "row"]
    evidence(
        "every panel of the dashboard has something to show",
        {
            "panels": len(shown),
            "lines": sum(len(drawn[panel["id"]]) for panel in shown),
            "empty": len(empty),
            "flat": len({*flat} - ROWS),
            "played (s)": PLAYED_S,
        },
    )
