"""Tests send what no client sends: the raw producer stores it as it is."""

from __future__ import annotations

from tests.broker.due_topic import now_ms
from tests.support.raw_producer import RawEntry, RawProducer, metadata_of
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.entries import Entry
from timewheel.broker.protocol.reading import EntryReader
from timewheel.testing import Broker


def test_entries_are_stored_as_they_were_handed_in(pulsar_broker: Broker) -> None:
    topic = f"persistent://public/default/raw-{now_ms()}"
    due_ms = now_ms() + 3_600_000
    with RawProducer(pulsar_broker.service_url, topic) as producer:
        first = producer.send(metadata_of(deliver_at_ms=due_ms, schema_version=b"\x00" * 8), b"one")
        others = producer.send_all(RawEntry(metadata_of(properties={"number": str(n)})) for n in range(1_000))
    with EntryReader(Dialer(pulsar_broker.service_url), topic, keep_payload=True) as reader:
        read: list[Entry] = []
        while len(read) < 1_001:
            read += reader.read(10_000)
    assert [entry.position for entry in read] == [first, *others]
    assert (read[0].deliver_at_ms, read[0].schema_version, read[0].payload) == (due_ms, b"\x00" * 8, b"one")
    assert [entry.properties["number"] for entry in read[1:]] == [str(n) for n in range(1_000)]
