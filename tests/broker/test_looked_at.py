"""Commands and readers look at entries, odd ones among them: each is seen as it was sent, and costs nobody."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import cramjam
import pulsar
import pytest

from tests.broker.due_topic import now_ms
from tests.conftest import Evidence
from tests.support.own_broker import own_broker
from tests.support.raw_producer import RawEntry, RawProducer, batch_member, metadata_of
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.admin.entries import StoredEntry
from timewheel.broker.protocol.consumers import EntryReader
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.entries import Entry
from timewheel.broker.protocol.wire import data_field, number_field
from timewheel.cli.connecting import Access
from timewheel.client.positions import EntryPosition
from timewheel.core.connection import DEFAULTS, Connection
from timewheel.core.errors import AdminError, AdminMissing
from timewheel.inspect.sample import sample
from timewheel.shadow.stored_entries import MAX_OPENED_BYTES, StoredEntries
from timewheel.testing import Broker, LocalPulsar

HOUR_MS = 3_600_000
NUMBERS = (0, 1, -1, 2, 127, 128, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 32, 1 << 53, (1 << 63) - 1, -(1 << 63))
NAMES = ("", "a", "tw-timer", "tw-id", "tw-due", "tw-from", "tw-for", "tw-group", "tw-dead-reason", "tw-parked-from")
TEXTS = (
    "",
    "1",
    "1 2 3",
    "1 9999999999999 0 0 0 1",
    "3 anything",
    "9" * 5_000,
    "nobody",
    "\x1b]0;x\x07",
    "ü",
    "\udcff\udc80",
)


def odd_entry(rng: random.Random, now_ms: int) -> RawEntry:
    """Make a random odd entry.

    Args:
        now_ms: UTC milliseconds.
    """
    return rng.choice(_KINDS)(rng, now_ms)


def _fields(rng: random.Random, now_ms: int) -> dict[str, Any]:
    """Fields of metadata, with some absurd values."""
    some: dict[str, Callable[[], Any]] = {
        "sequence_id": lambda: rng.choice(NUMBERS),
        "publish_ms": lambda: rng.choice((now_ms, *NUMBERS)),
        "properties": lambda: {rng.choice(NAMES): rng.choice(TEXTS) for _ in range(rng.randint(1, 4))},
        "key": lambda: rng.choice((*TEXTS, b"\xff\xfe")),
        "ordering_key": lambda: rng.randbytes(rng.choice((0, 1, 16))),
        "schema_version": lambda: rng.randbytes(rng.choice((0, 1, 200))),
        "compression": lambda: rng.choice((0, 1, 2, 3, 4, 5, -1)),
        "uncompressed_bytes": lambda: rng.choice(NUMBERS),
        "batch_size": lambda: rng.choice(NUMBERS),
    }
    chosen = rng.sample(sorted(some), rng.randint(0, 4))
    found = {name: some[name]() for name in chosen}
    if rng.random() < 0.8:
        found["deliver_at_ms"] = rng.choice((now_ms + 3 * HOUR_MS, now_ms + 10**12, now_ms, *NUMBERS))
    return found


def _valid(rng: random.Random, now_ms: int) -> RawEntry:
    return RawEntry(metadata_of(**_fields(rng, now_ms)), rng.randbytes(rng.randint(0, 40)))


def _more_fields(rng: random.Random, now_ms: int) -> RawEntry:
    """Numbers and data under any field number, including those of encryption, chunks, markers and transactions."""
    more = b"".join(
        number_field(rng.randint(0, 31), rng.choice(NUMBERS))
        if rng.random() < 0.5
        else data_field(rng.randint(0, 31), rng.randbytes(rng.choice((0, 1, 2, 4, 7, 12))))
        for _ in range(rng.randint(1, 5))
    )
    return RawEntry(metadata_of(**_fields(rng, now_ms), more=more), b"x" * rng.randint(0, 40))


def _mutated(rng: random.Random, now_ms: int) -> RawEntry:
    data = bytearray(metadata_of(**_fields(rng, now_ms)))
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at : at + 1] = rng.randbytes(1)
            case 1:
                data[at:at] = rng.randbytes(rng.randint(1, 4))
            case 2:
                del data[at : at + rng.randint(1, 4)]
            case _:
                del data[at:]
    return RawEntry(bytes(data), rng.randbytes(rng.randint(0, 40)))


def _garbage(rng: random.Random, _now_ms: int) -> RawEntry:
    return RawEntry(rng.randbytes(rng.randint(0, 60)), rng.randbytes(rng.randint(0, 20)))


def _head(rng: random.Random, now_ms: int) -> RawEntry:
    """A wrong or missing checksum, a broker's own metadata, or wrong sizes."""
    heads = (
        b"",
        b"\x0e\x02" + struct.pack(">I", 3) + b"\x08\x01\x10",
        b"\x0e\x02" + struct.pack(">I", 3) + b"\x08\x01\x10\x0e\x01" + rng.randbytes(4),
        b"\x0e\x02" + rng.randbytes(4),
        struct.pack(">I", rng.choice((0, 5, 1 << 31, (1 << 32) - 1))),
    )
    return RawEntry(metadata_of(**_fields(rng, now_ms)), b"x" * 30, head=rng.choice(heads))


def _batch(rng: random.Random, now_ms: int) -> RawEntry:
    payload = b"".join(
        batch_member(b"x" * rng.randint(0, 5), {rng.choice(NAMES): rng.choice(TEXTS[:5])})
        for _ in range(rng.randint(1, 5))
    )
    if rng.random() < 0.5:
        at = rng.randrange(len(payload))
        payload = payload[:at] + rng.randbytes(2) + payload[at + rng.randint(0, 4) :]
    fields = {**_fields(rng, now_ms), "batch_size": rng.choice((1, 2, 5, 1_000, *NUMBERS))}
    if fields.get("compression") == 2:
        fields["uncompressed_bytes"], payload = len(payload), zlib.compress(payload)
    return RawEntry(metadata_of(**fields), payload)


_BOMB = b"0" * (1 << 20)
_BOMBS = (
    (1, bytes(cramjam.lz4.compress_block(_BOMB, store_size=False))),
    (2, zlib.compress(_BOMB)),
    (3, bytes(cramjam.zstd.compress(_BOMB))),
    (4, bytes(cramjam.snappy.compress_raw(_BOMB))),
)


def _bomb(rng: random.Random, now_ms: int) -> RawEntry:
    kind, payload = rng.choice(_BOMBS)
    fields = {**_fields(rng, now_ms), "compression": kind}
    fields["uncompressed_bytes"] = rng.choice((0, 1_000, 1 << 20, (1 << 20) + 1, (1 << 32) - 1))
    return RawEntry(metadata_of(**fields), payload)


_KINDS = (_valid, _more_fields, _mutated, _mutated, _garbage, _head, _batch, _bomb)


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


GOOD_EVERY = 10  # one good entry behind so many odd ones


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
