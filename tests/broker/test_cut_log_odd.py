"""Odd entries in the log of cancellations: whoever may write there stops no reader of it."""

from __future__ import annotations

import cramjam

from tests.broker.due_topic import Events, backlog, now_ms
from tests.broker.relay_stage import Stage, plan_of
from tests.support.raw_producer import RawProducer, batch_member, metadata_of
from timewheel.broker.protocol.fields import data_field, number_field
from timewheel.client.cancellation_log import CancellationLog
from timewheel.client.hooks import Hooks
from timewheel.core.cancel_policy import Cancel
from timewheel.core.cancellations import Cancellation
from timewheel.core.clock import SystemClock
from timewheel.core.durations import DAY_MS
from timewheel.core.grouping import LARGEST_BATCH
from timewheel.core.names import CANCELLATIONS_SUBSCRIPTION, partition_topic
from timewheel.events import CancellationsUnknown
from timewheel.relay.compactor import compact
from timewheel.testing import Broker, eventually

WAIT_MS = 30_000

NO_TEXT = metadata_of(properties={"p": "\udcff"})
KEY = data_field(13, data_field(1, b"key") + data_field(2, b"\x01" * 32)) + data_field(15, bytes(12))
ENCRYPTED = metadata_of(more=KEY)
SEALED = metadata_of(more=KEY, batch_size=50_000)
ZIPPED = metadata_of(compression=2, uncompressed_bytes=100)
CHUNK = metadata_of(more=data_field(26, b"raw-0") + number_field(28, 30) + number_field(27, 3) + number_field(29, 0))
MARKER = metadata_of(more=number_field(20, 10))


def good(name: str) -> Cancellation:
    return Cancellation("timer", name, 1, now_ms() + DAY_MS)


def log_of(stage: Stage, events: Events) -> CancellationLog:
    return CancellationLog(stage.client, stage.plan, SystemClock(), Hooks((events,)))


def answers(log: CancellationLog) -> bool:
    """Whether one that begins now reads to the end."""
    log.start()
    try:
        return log.await_answer(log.ask(), WAIT_MS)
    finally:
        log.stop()


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


def test_odd_entries_at_the_end_of_the_log_hold_up_no_answer(pulsar_broker: Broker) -> None:
    events = Events()
    with Stage(pulsar_broker, plan_of(cancel=Cancel())) as stage:
        log, part = log_of(stage, events), partition_topic(stage.names.cancellations, 0)
        with RawProducer(pulsar_broker.service_url, part) as raw:
            log.start()
            try:
                for kind, odd in ODD.items():
                    for metadata in odd:
                        raw.send(metadata, b"x")
                    assert log.await_answer(log.ask(), WAIT_MS), f"no answer behind {kind}; {events.events}"
                    last = stage.admin.topics.last_position(part)
                    assert answers(log_of(stage, Events())), kind
                    assert stage.admin.topics.last_position(part) == last, f"{kind}: it waited for another message"
                    raw.send(metadata_of(), good(f"behind {kind}").line().encode())
                    assert log.await_answer(log.ask(), WAIT_MS), kind
                    assert log.ready
                assert {one.name for one in log.table.live()} == {f"behind {kind}" for kind in ODD}
                assert compact(stage.client, log) == len(ODD)
            finally:
                log.stop()
    assert unknown(events) >= len(ODD) - 1
    assert not events.named("cancellations_not_read")


def test_of_a_huge_batch_some_thousand_are_read_and_then_what_stands_behind_it(
    pulsar_broker: Broker,
) -> None:
    events = Events()
    body = batch_member(b"x") * 200_000
    packed = bytes(cramjam.zstd.compress(body))
    assert len(packed) < 10_000
    with Stage(pulsar_broker, plan_of(cancel=Cancel())) as stage:
        log = log_of(stage, events)
        with RawProducer(pulsar_broker.service_url, partition_topic(stage.names.cancellations, 0)) as raw:
            large = metadata_of(compression=3, uncompressed_bytes=len(body), batch_size=200_000)
            raw.send(large, packed, messages=200_000)
            log.start()
            try:
                assert log.await_answer(log.ask(), WAIT_MS), "at the end of the log"
                assert compact(stage.client, log) == 0, "it is acknowledged whole"
                raw.send(metadata_of(), good("behind").line().encode())
                assert log.await_answer(log.ask(), WAIT_MS)
                assert {one.name for one in log.table.live()} == {"behind"}
            finally:
                log.stop()
        eventually(lambda: backlog(pulsar_broker, stage.names.cancellations, CANCELLATIONS_SUBSCRIPTION) <= 2, 60)
    assert unknown(events) == LARGEST_BATCH + 1
