"""Commands and readers look at entries, odd ones among them: each is seen as it was sent, and costs nobody."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import cramjam
import pulsar
import pytest

from tests.broker.due_topic import now_ms
from tests.conftest import Evidence
from tests.support.odd_entries import odd_entry
from tests.support.own_broker import own_broker
from tests.support.raw_producer import RawEntry, RawProducer, metadata_of
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.entries import StoredEntry
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.entries import Entry
from timewheel.broker.protocol.reading import EntryReader
from timewheel.cli.connecting import Access
from timewheel.client.positions import EntryPosition
from timewheel.core.connection import DEFAULTS, Connection
from timewheel.core.errors import AdminError, AdminMissing
from timewheel.inspect.sample import sample
from timewheel.shadow.stored_entries import MAX_OPENED_BYTES, StoredEntries
from timewheel.testing import Broker, LocalPulsar

if TYPE_CHECKING:
    from tests.conftest import Evidence


DECLARED = 64 << 20
BOMB = bytes(cramjam.zstd.compress(bytes(DECLARED)))


@pytest.fixture
def topic(pulsar_broker: Broker) -> Iterator[str]:
    name = f"persistent://public/default/looked-at-{now_ms()}"
    with AdminClient(pulsar_broker.admin_url) as admin:
        admin.topics.create_unpartitioned(name)
        admin.subscriptions.create(name, "billing")
        yield name


def looking(broker: Broker, **given: Any) -> Any:
    """As commands make it."""
    return Access(Connection(admin_url=broker.admin_url, **given).over(DEFAULTS), ()).admin()


def without_headers(entry: StoredEntry) -> tuple[Any, ...]:
    return tuple(getattr(entry, name) for name in StoredEntry.__dataclass_fields__ if name != "producer")


@pytest.mark.parametrize("with_service_url", [False, True])
def test_an_entry_that_says_it_is_huge_is_opened_by_nobody(
    pulsar_broker: Broker, topic: str, with_service_url: bool
) -> None:
    given = {"service_url": pulsar_broker.service_url.replace("localhost", "127.0.0.1")} if with_service_url else {}
    with RawProducer(pulsar_broker.service_url, topic) as raw, looking(pulsar_broker, **given) as admin:
        bomb = raw.send(metadata_of(deliver_at_ms=now_ms() + 10**6, compression=3, uncompressed_bytes=DECLARED), BOMB)
        for _ in range(3):
            raw.send(metadata_of(), b"good")
        with pytest.raises(AdminError, match=f"{DECLARED} bytes are declared, the limit is {MAX_OPENED_BYTES}"):
            admin.topics.entry(topic, bomb)
        taken = sample(admin, topic, now_ms=now_ms())
        assert (len(taken.entries), taken.unread, taken.unreadable) == (3, 1, 1)


def test_it_reads_what_the_admin_api_shows(pulsar_broker: Broker, topic: str) -> None:
    client = pulsar.Client(pulsar_broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    positions = []
    for kind in (pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4, pulsar.CompressionType.ZSTD):
        producer = client.create_producer(topic, compression_type=kind, batching_enabled=False)
        facts: dict[str, Any] = {"properties": {"colour": "red"}, "partition_key": "k", "event_timestamp": 5}
        kinds: list[dict[str, Any]] = [{}, {"deliver_at": now_ms() + 10**6}, {"ordering_key": "o"}]
        for more in kinds:
            found = producer.send(b"renew" * 100, **(facts | more))
            positions.append(EntryPosition(found.ledger_id(), found.entry_id()))
        producer.close()
    batches = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=10_000)
    for number in range(5):
        batches.send_async(str(number).encode(), lambda *_: None, properties={"number": str(number)})
    batches.flush()
    client.close()
    positions.append(EntryPosition(positions[-1].ledger, positions[-1].entry + 1))
    with AdminClient(pulsar_broker.admin_url) as plain, looking(pulsar_broker) as admin:
        for position in positions:
            ours, theirs = admin.topics.entry(topic, position), plain.topics.entry(topic, position)
            assert without_headers(ours) == without_headers(theirs)
        assert admin.topics.entry(topic, positions[-1]).batch_messages == 5


@pytest.mark.parametrize("entry", [7, 10**6])
def test_an_entry_that_is_not_there_is_missing(pulsar_broker: Broker, topic: str, entry: int) -> None:
    with RawProducer(pulsar_broker.service_url, topic) as raw, looking(pulsar_broker) as admin:
        last = raw.send(metadata_of(), b"good")
        with pytest.raises(AdminMissing):
            admin.topics.entry(topic, EntryPosition(last.ledger, last.entry + entry))
        with pytest.raises(AdminMissing):
            admin.topics.entry(topic.replace("looked", "never"), last)


def test_where_the_brokers_cannot_be_reached_the_admin_api_is_asked(pulsar_broker: Broker, topic: str) -> None:
    with RawProducer(pulsar_broker.service_url, topic) as raw:
        position = raw.send(metadata_of(), b"good")
    with looking(pulsar_broker, service_url="pulsar://127.0.0.1:1") as admin:
        assert admin.topics.entry(topic, position).payload == b"good"


def test_what_is_no_time_is_that_entry_s_alone(pulsar_broker: Broker, topic: str) -> None:
    with RawProducer(pulsar_broker.service_url, topic) as raw, looking(pulsar_broker) as admin:
        for facts in ({"deliver_at_ms": 1 << 62}, {"publish_ms": 1 << 62}):
            position = raw.send(metadata_of(**facts), b"odd")  # type: ignore[arg-type]
            with pytest.raises(AdminError, match="cannot be read"):
                admin.topics.entry(topic, position)
        assert isinstance(admin._entries, StoredEntries)


MEGABYTES = 900
AT_ONCE = 3
HEAP_MB = 1_024


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_looks_by_the_admin_api_end_a_broker_that_commands_leave_alone(evidence: Evidence) -> None:
    """What the page about security says of the admin API; a broker that bounds what it opens makes this red."""
    writer = cramjam.zstd.Compressor()
    for _ in range(MEGABYTES):
        writer.compress(bytes(1_000_000))
    bomb = bytes(writer.finish())
    topic = "persistent://public/default/huge"
    with own_broker({}, partial(LocalPulsar, heap_mb=HEAP_MB)) as broker, ThreadPoolExecutor(AT_ONCE) as pool:
        with RawProducer(broker.service_url, topic) as raw:
            metadata = metadata_of(compression=3, uncompressed_bytes=MEGABYTES * 1_000_000)
            positions = [raw.send(metadata, bomb) for _ in range(AT_ONCE)]
        with looking(broker) as admin:
            for error in pool.map(partial(error_of, admin, topic), positions):
                assert "bytes are declared, the limit is" in str(error)
        assert broker.pid is not None
        with AdminClient(broker.admin_url, retry_for_s=0) as plain:
            assert all(pool.map(partial(error_of, plain, topic), positions))
        assert broker.wait(60) != 0
    evidence(
        "entries that say they are huge, looked at by the admin API",
        {"entries": AT_ONCE, "bytes each": len(bomb), "each says, MB": MEGABYTES, "heap, MB": HEAP_MB, "ended": 1},
    )


def error_of(admin: AdminClient, topic: str, position: EntryPosition) -> AdminError | None:
    try:
        admin.topics.entry(topic, position)
    except AdminError as error:
        return error
    return None


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
