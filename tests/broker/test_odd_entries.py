"""Odd entries between good ones stop no reader: each good one comes, and each that cannot be read has its reason."""

from __future__ import annotations

import random

import pytest

from tests.broker.due_topic import now_ms
from tests.conftest import Evidence
from tests.support.odd_entries import odd_entry
from tests.support.raw_producer import RawEntry, RawProducer, metadata_of
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.entries import Entry
from timewheel.broker.protocol.reading import EntryReader
from timewheel.testing import Broker

GOOD_EVERY = 10
"""One good entry behind so many odd ones."""


@pytest.mark.parametrize(
    "count", [pytest.param(2_000, id="short"), pytest.param(100_000, id="long", marks=pytest.mark.proof)]
)
def test_a_reader_is_given_each_good_entry_between_odd_ones(
    pulsar_broker: Broker, count: int, seed: int, evidence: Evidence
) -> None:
    topic, rng = f"persistent://public/default/odd-{now_ms()}", random.Random(seed)
    every: list[RawEntry] = []
    for number in range(count):
        every.append(odd_entry(rng, now_ms()))
        if number % GOOD_EVERY == GOOD_EVERY - 1:
            every.append(RawEntry(metadata_of(properties={"good": str(number // GOOD_EVERY)}), b"good"))
    with RawProducer(pulsar_broker.service_url, topic) as producer:
        last = producer.send_all(every)[-1]
    assert last is not None
    found: list[Entry] = []
    with EntryReader(Dialer(pulsar_broker.service_url), topic, keep_payload=True) as reader:
        while not found or found[-1].position < last:
            entries = reader.read(20_000)
            assert entries, f"nothing comes behind {reader.position} of {last}"
            found += entries
    good = [name for entry in found if (name := entry.properties.get("good")) is not None]
    assert good == [str(number) for number in range(count // GOOD_EVERY)]
    defects = sum(entry.defect is not None for entry in found)
    evidence("odd entries between good ones", {"odd": count, "defects": defects, "good": len(good)}, seed=seed)
