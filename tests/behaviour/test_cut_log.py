"""The log of cancellations on a real broker: read by everyone, kept short, never forgotten too early."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import cramjam
import pytest

from tests.behaviour.test_cancel import TIERED, nothing_is_left, plan_on, provisioned
from tests.broker.conftest import Connect
from tests.broker.due_topic import SUBSCRIPTION, Events, Handled, backlog, now_ms, running
from tests.broker.relay_stage import Stage, plan_of
from tests.support.raw_producer import RawProducer, batch_member, metadata_of
from timewheel.broker.admin import AdminClient
from timewheel.broker.protocol.wire import data_field, number_field
from timewheel.client.cancellation_log import CancellationLog
from timewheel.client.hooks import Hooks
from timewheel.consumers import DelayedConsumer
from timewheel.core.cancellations import Answer, Cancellation, packs
from timewheel.core.clock import SystemClock
from timewheel.core.durations import DAY_MS
from timewheel.core.grouping import LARGEST_BATCH
from timewheel.core.names import CANCELLATIONS_SUBSCRIPTION, Names, partition_topic
from timewheel.core.plan import Cancel, Plan
from timewheel.core.planfile import save_plan
from timewheel.events import CancellationsUnknown
from timewheel.hooks import Hook
from timewheel.producers import DelayedProducer
from timewheel.provision import ensure
from timewheel.relay import Relay, compactor
from timewheel.relay.compactor import compact, is_worth_it
from timewheel.testing import Broker, eventually

WAIT_S = 60


@pytest.fixture
def plan(pulsar_broker: Broker, topic: str) -> Plan:
    return provisioned(pulsar_broker, plan_on(topic))


@contextmanager
def reading(client: Any, plan: Plan, *hooks: Hook) -> Iterator[CancellationLog]:
    """A log that is read as a consumer reads it."""
    log = CancellationLog(client, plan, SystemClock(), Hooks(hooks or (Events(),)))
    log.start()
    try:
        yield log
    finally:
        log.stop()


def is_at_end(log: CancellationLog) -> bool:
    return log.await_answer(log.ask(), WAIT_S * 1_000)


def write(client: Any, plan: Plan, cancellations: Iterable[Cancellation], *, lines_each: int = 1) -> None:
    producer = client.create_producer(partition_topic(Names(plan).cancellations, 0), block_if_queue_full=True)
    lines = [one.line().encode() for one in cancellations]
    for start in range(0, len(lines), lines_each):
        producer.send_async(b"\n".join(lines[start : start + lines_each]), lambda *_: None)
    producer.flush()
    producer.close()


def cancellations(count: int, *, cut: int = 17, prefix: str = "t") -> list[Cancellation]:
    return [Cancellation("timer", f"{prefix}{number}", cut, now_ms() + DAY_MS) for number in range(count)]


def read_all(client: Any, plan: Plan) -> set[Cancellation]:
    with reading(client, plan) as log:
        assert is_at_end(log)
        return set(log.table.live())


def test_everyone_reads_the_same_and_an_answer_covers_what_was_confirmed_before(client: Any, plan: Plan) -> None:
    written = set(cancellations(500))
    with reading(client, plan) as first:
        assert is_at_end(first)
        assert not len(first.table)
        for number in range(20):
            write(client, plan, [Cancellation("timer", f"later{number}", 1, now_ms() + DAY_MS)])
            assert is_at_end(first)
            assert f"later{number}" in {one.name for one in first.table.live()}
        write(client, plan, written)
        assert is_at_end(first)
        assert written <= set(first.table.live())
        assert set(first.table.live()) == read_all(client, plan)


def test_packed_it_says_the_same_and_what_was_read_is_acknowledged(
    client: Any, pulsar_broker: Broker, plan: Plan
) -> None:
    written = [
        *cancellations(3_000),
        *cancellations(3_000, cut=18),
        Cancellation("group", "order 7", 3, now_ms() + DAY_MS),
    ]
    write(client, plan, written, lines_each=10)
    before = read_all(client, plan)
    assert len(before) == 3_001
    with reading(client, plan) as log:
        assert compact(client, log) == 3_001
        assert is_at_end(log)
        assert set(log.table.live()) == before
        assert log.loose == 0
        write(client, plan, cancellations(5, prefix="new"))
        assert is_at_end(log)
        assert log.loose == 5
    assert {one for one in read_all(client, plan) if not one.name.startswith("new")} == before
    # What the subscription still keeps is the pack, and what came after it.
    eventually(lambda: backlog(pulsar_broker, Names(plan).cancellations, CANCELLATIONS_SUBSCRIPTION) <= 6, WAIT_S)


def test_one_janitor_at_a_time_packs_and_two_do_no_harm(
    client: Any, connect: Connect, pulsar_broker: Broker, plan: Plan
) -> None:
    write(client, plan, cancellations(2_000), lines_each=10)
    packed: list[int | None] = []
    other = connect(pulsar_broker)
    with reading(client, plan) as one, reading(other, plan) as two:

        def pack(by: Any, log: CancellationLog) -> None:
            packed.append(compact(by, log))

        threads = [threading.Thread(target=pack, args=pair) for pair in [(client, one), (other, two)] * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    assert set(packed) <= {2_000, None}
    assert 2_000 in packed
    assert len(read_all(client, plan)) == 2_000


def test_a_relays_janitor_packs_when_it_is_worth_it(client: Any, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactor, "LEAST_LOOSE", 100)
    monkeypatch.setattr(compactor, "LOOK_EVERY_MS", 50)
    events = Events()
    with Relay(client, plan, hooks=(events,)):
        write(client, plan, cancellations(50))
        write(client, plan, cancellations(50, cut=18))
        write(client, plan, cancellations(50, cut=19))
        eventually(lambda: events.named("cancellations_compacted"), WAIT_S)
    assert events.named("cancellations_compacted")[0].fields["live"] == 50
    assert {one.cut for one in read_all(client, plan)} == {19}


@pytest.mark.parametrize(
    ("loose", "live", "worth"), [(10_000, 0, False), (10_001, 0, True), (15_000, 8_000, False), (16_001, 8_000, True)]
)
def test_a_log_is_packed_when_most_of_it_is_read_for_nothing(loose: int, live: int, worth: bool) -> None:
    assert is_worth_it(loose, live) is worth


@pytest.mark.parametrize("hold", ["relay", pytest.param("broker", marks=pytest.mark.short)])
def test_a_relay_drops_what_it_knows_to_be_dead(client: Any, pulsar_broker: Broker, topic: str, hold: Any) -> None:
    plan = provisioned(pulsar_broker, plan_on(topic, replace(TIERED, hold=hold)))
    handled = Handled()
    with Relay(client, plan) as relay, DelayedProducer(client, plan) as producer:
        eventually(lambda: relay.ready, WAIT_S)
        timers = [
            producer.send(b"x", deliver_after=dt.timedelta(seconds=6), timer_id=f"t{number}") for number in range(20)
        ]
        assert all(producer.cancel(timer).answer is Answer.CERTAIN for timer in timers[:10])
        eventually(lambda: relay.status().total("dropped") == 10, WAIT_S)
        assert now_ms() < timers[0].due_ms + 1_000
        with running(DelayedConsumer(client, plan, SUBSCRIPTION, relay=False), handled):
            eventually(lambda: len(handled.times) == 10, WAIT_S)
            eventually(lambda: nothing_is_left(pulsar_broker, plan), WAIT_S)
    assert dict(handled.times) == {f"t{number}": 1 for number in range(10, 20)}


KILLED_COMPACTOR = """
import sys
import pulsar
from timewheel.relay import compactor
from timewheel.core.clock import SystemClock
from timewheel.core.plan import Plan
from timewheel.client.cancellation_log import CancellationLog
from timewheel.client.hooks import Hooks

url, plan, step = sys.argv[1], Plan.load(sys.argv[2]), sys.argv[3]

def here(name):
    if name == step:
        print("here", flush=True)
        sys.stdin.read()

client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
sent = 0
class Producer:
    def __init__(self, inner):
        self._inner = inner
    def __getattr__(self, name):
        return getattr(self._inner, name)
    def send_async(self, *args, **options):
        global sent
        self._inner.send_async(*args, **options)
        sent += 1
        if sent == 2:
            self._inner.flush()
            here("between packs")
    def flush(self):
        self._inner.flush()
        here("before the acknowledgement")
class Client:
    def __getattr__(self, name):
        return getattr(client, name)
    def create_producer(self, *args, **options):
        here("before the packs")
        return Producer(client.create_producer(*args, **options))
compactor.packs = lambda live: __import__("timewheel.core.cancellations").core.cancellations.packs(live, 20_000)
log = CancellationLog(client, plan, SystemClock(), Hooks(()))
log.start()
compactor.compact(Client(), log)
here("after the acknowledgement")
"""


@pytest.mark.short
@pytest.mark.parametrize(
    "step", ["before the packs", "between packs", "before the acknowledgement", "after the acknowledgement"]
)
def test_a_janitor_that_is_killed_at_any_step_takes_nothing_back(
    client: Any, pulsar_broker: Broker, plan: Plan, tmp_path: Path, step: str
) -> None:
    write(client, plan, [*cancellations(3_000), *cancellations(3_000, cut=18)], lines_each=10)
    before = read_all(client, plan)
    save_plan(plan, tmp_path / "plan.toml")
    command = [sys.executable, "-c", KILLED_COMPACTOR, pulsar_broker.service_url, str(tmp_path / "plan.toml"), step]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        watchdog = threading.Timer(WAIT_S, child.kill)
        watchdog.start()
        assert child.stdout is not None
        came = child.stdout.readline()
        watchdog.cancel()
        os.kill(child.pid, signal.SIGKILL)
    assert came == "here\n"
    pulsar_broker.unload(partition_topic(Names(plan).cancellations, 0))
    assert read_all(client, plan) == before
    with reading(client, plan) as log:
        # The lease of the dead is over once the broker sees it gone.
        eventually(lambda: compact(client, log) == 3_000, WAIT_S)
    assert read_all(client, plan) == before


@pytest.mark.short
def test_a_million_cut_offs_in_packs_are_read_in_seconds(client: Any, plan: Plan, evidence: Any) -> None:
    producer = client.create_producer(
        partition_topic(Names(plan).cancellations, 0),
        batching_enabled=False,
        block_if_queue_full=True,
        max_pending_messages=16,
    )
    for pack in packs(cancellations(1_000_000)):
        producer.send_async(pack, lambda *_: None)
    producer.flush()
    producer.close()
    with reading(client, plan) as log:
        began_ms = now_ms()
        assert log.await_answer(log.ask(), 120_000)
        took_ms = now_ms() - began_ms
        assert len(log.table) == 1_000_000
        write(client, plan, cancellations(1, prefix="one more"))
        assert is_at_end(log)
        # Refused, so that memory is bounded, and it stays ready: nobody who writes there can hold all timers back.
        assert len(log.table) == 1_000_000
        assert log.ready
    evidence(
        "a million cancellations in packs", {"cancellations": "1,000,000", "read in, s": round(took_ms / 1_000, 1)}
    )


def test_a_reader_of_the_log_is_nobodys_foreign_subscription(client: Any, pulsar_broker: Broker, plan: Plan) -> None:
    with reading(client, plan) as log, AdminClient(pulsar_broker.admin_url) as admin:
        assert is_at_end(log)
        names = admin.topics.stats(partition_topic(log.topic, 0)).subscriptions
        assert len(names) == 2
        report = ensure(admin, plan, now_ms=now_ms())
        assert not [finding for finding in report.findings if "cancellations" in finding.subject]


NO_TEXT = metadata_of(properties={"p": "\udcff"})
KEY = data_field(13, data_field(1, b"key") + data_field(2, b"\x01" * 32)) + data_field(15, bytes(12))
ENCRYPTED = metadata_of(more=KEY)
SEALED = metadata_of(more=KEY, batch_size=50_000)
ZIPPED = metadata_of(compression=2, uncompressed_bytes=100)
CHUNK = metadata_of(more=data_field(26, b"raw-0") + number_field(28, 30) + number_field(27, 3) + number_field(29, 0))
MARKER = metadata_of(more=number_field(20, 10))


def good(name: str) -> Cancellation:
    return Cancellation("timer", name, 1, now_ms() + DAY_MS)


def unknown(events: Events) -> int:
    return sum(event.count for event in events.events if isinstance(event, CancellationsUnknown))


ODD = {
    "properties that are no UTF-8": [NO_TEXT] * 6,
    "encrypted": [ENCRYPTED],
    "an encrypted batch": [SEALED],
    "a payload that does not open": [ZIPPED],
    "a chunk alone": [CHUNK],
    "a marker": [MARKER],  # which a broker may keep to itself
    "all of them": [NO_TEXT, ENCRYPTED, ZIPPED, CHUNK, MARKER] * 2,
}


@pytest.mark.real
def test_odd_entries_at_the_end_of_the_log_hold_up_no_answer(pulsar_broker: Broker) -> None:
    events = Events()
    with Stage(pulsar_broker, plan_of(cancel=Cancel())) as stage:
        part = partition_topic(stage.names.cancellations, 0)
        with RawProducer(pulsar_broker.service_url, part) as raw, reading(stage.client, stage.plan, events) as log:
            for kind, odd in ODD.items():
                for metadata in odd:
                    raw.send(metadata, b"x")
                assert is_at_end(log), f"no answer behind {kind}; {events.events}"
                last = stage.admin.topics.last_position(part)
                read_all(stage.client, stage.plan)
                assert stage.admin.topics.last_position(part) == last, f"{kind}: it waited for another message"
                raw.send(metadata_of(), good(f"behind {kind}").line().encode())
                assert is_at_end(log), kind
                assert log.ready
            assert {one.name for one in log.table.live()} == {f"behind {kind}" for kind in ODD}
            assert compact(stage.client, log) == len(ODD)
    assert unknown(events) >= len(ODD) - 1
    assert not events.named("cancellations_not_read")


@pytest.mark.real
def test_of_a_huge_batch_some_thousand_are_read_and_then_what_stands_behind_it(pulsar_broker: Broker) -> None:
    events = Events()
    body = batch_member(b"x") * 200_000
    packed = bytes(cramjam.zstd.compress(body))
    assert len(packed) < 10_000
    with Stage(pulsar_broker, plan_of(cancel=Cancel())) as stage:
        with RawProducer(pulsar_broker.service_url, partition_topic(stage.names.cancellations, 0)) as raw:
            large = metadata_of(compression=3, uncompressed_bytes=len(body), batch_size=200_000)
            raw.send(large, packed, messages=200_000)
            with reading(stage.client, stage.plan, events) as log:
                assert is_at_end(log)
                assert compact(stage.client, log) == 0, "it is acknowledged whole"
                raw.send(metadata_of(), good("behind").line().encode())
                assert is_at_end(log)
                assert {one.name for one in log.table.live()} == {"behind"}
        eventually(lambda: backlog(pulsar_broker, stage.names.cancellations, CANCELLATIONS_SUBSCRIPTION) <= 2, 60)
    assert unknown(events) == LARGEST_BATCH + 1
