"""Every odd message that can be stored, between good ones, in every place: the good ones come, once and not early."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import cramjam
import pulsar
import pytest

from tests.broker.due_topic import now_ms
from tests.broker.odd_neighbours import GOOD, Handled, unacknowledged
from tests.broker.relay_stage import BUSINESS, plan_of
from tests.broker.shadow_stage import ShadowStage
from tests.conftest import Evidence
from tests.support.raw_producer import RawProducer, metadata_of
from timewheel.broker.admin.client import AdminClient
from timewheel.broker.protocol.wire import data_field, number_field
from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import Envelope, Life
from timewheel.core.names import RELAY_SUBSCRIPTION
from timewheel.core.plan import Calendar, Plan, Ring, Tiered, Wheel
from timewheel.core.routing import Hold
from timewheel.core.topology import topology
from timewheel.shadow.desired_state import State
from timewheel.shadow.stored_entries import timers_in
from timewheel.testing import Broker, eventually

Texts = tuple[tuple[bytes, bytes], ...]

LARGEST_BYTES = 5 * 1024 * 1024
NOT_TEXT = b"\xff\xfe\x80"
UUID = bytes(range(0x80, 0x90))
FAR_MS = 253_402_300_799_999
DIGITS = b"9" * 5_000


class Odd(NamedTuple):
    """An odd message, in addition to the needs of its place."""

    name: str
    properties: Texts = ()  # follow the properties of its place; a property of the same name replaces that of the place
    fields: bytes = b""
    payload: bytes = b"odd"
    messages: int = 0  # number of messages that it declares; 0: it is no batch
    without: tuple[bytes, ...] = ()


def put(producer: RawProducer, odd: Odd, properties: Texts, deliver_at_ms: int) -> EntryPosition:
    """Store an odd message, with the properties that its place needs.

    Raises:
        ConnectionError: The broker rejects it.
    """
    hidden = {name for name, _ in odd.properties}.union(odd.without)
    given = (*((name, text) for name, text in properties if name not in hidden), *odd.properties)
    batch = number_field(11, odd.messages) if odd.messages else b""
    metadata = metadata_of(deliver_at_ms=deliver_at_ms or None, more=_pairs(given) + batch + odd.fields)
    return producer.send(metadata, odd.payload, messages=max(odd.messages, 1))


def put_good(producer: RawProducer, properties: Texts, deliver_at_ms: int, payload: bytes) -> EntryPosition:
    """Store a message with only the properties that its place needs."""
    return producer.send(metadata_of(deliver_at_ms=deliver_at_ms or None, more=_pairs(properties)), payload)


def _pairs(properties: Texts) -> bytes:
    return b"".join(data_field(4, data_field(1, name) + data_field(2, text)) for name, text in properties)


def _texts() -> Iterator[Odd]:
    """Names, keys and properties."""
    yield Odd("a property that is no UTF-8", ((b"colour", NOT_TEXT),))
    yield Odd("a name of a property that is no UTF-8", ((NOT_TEXT, b"red"),))
    yield Odd("a lone surrogate", ((b"colour", b"\xed\xa0\x80"),))
    yield Odd("an overlong encoding", ((b"colour", b"\xc0\xaf"),))
    yield Odd("NUL in a name and in a value", ((b"co\x00lour", b"r\x00ed"),))
    yield Odd("escapes of a terminal", ((b"\x1b[31mcolour", b"\x1b]0;owned\x07"),))
    yield Odd("controls of writing direction", ((b"colour", "\u202egnp.\u2066".encode()),))
    yield Odd("an empty name of a property", ((b"", b"red"),))
    yield Odd("a property twice", ((b"colour", b"red"), (b"colour", b"blue")))
    yield Odd("3,000 properties", tuple((b"p%d" % number, b"x") for number in range(3_000)))
    yield Odd("a property of a MB", ((b"colour", b"x" * 1_000_000),))
    yield Odd("a key that is no UTF-8", fields=data_field(6, NOT_TEXT))
    yield Odd("a key of bytes", fields=data_field(6, b"gIGCg4SFhoc=") + number_field(17, 1))
    yield Odd("a key of bytes that is no base 64", fields=data_field(6, b"***") + number_field(17, 1))
    yield Odd("an empty key", fields=data_field(6, b""))
    yield Odd("no key, and said so", fields=number_field(30, 1))
    yield Odd("a key of 100 kB", fields=data_field(6, b"k" * 100_000))
    yield Odd("an ordering key of bytes", fields=data_field(18, UUID))
    yield Odd("an ordering key of text", fields=data_field(18, b"order"))
    yield Odd("a producer whose name is no UTF-8", fields=data_field(1, NOT_TEXT))
    yield Odd("a uuid that is no UTF-8", fields=data_field(26, NOT_TEXT))
    yield Odd("replicated from elsewhere", fields=data_field(5, b"elsewhere"))
    yield Odd("to be replicated nowhere", fields=data_field(7, b"__local__"))


def _envelopes() -> Iterator[Odd]:
    """Values of timewheel's own properties."""
    lines = {
        "garbage": b"garbage",
        "an empty line": b"",
        "a later version": b"3 anything",
        "a far later version": b"999999999 1",
        "5,000 digits": b"1 " + DIGITS,
        "digits of another alphabet": "1 \u0661\u0662\u0663 0 0 0 1".encode(),
        "due in the year 9999, entered in 1970": b"1 %d 0 0 0 1" % FAR_MS,
        "due and entered in the year 9999": b"1 %d 0 0 %d 1" % (FAR_MS, FAR_MS),
        "due in 1970": b"1 0 0 0 0 1",
        "as many hops as there is room for": b"1 %d 0 999999 0 1" % FAR_MS,
        "the highest generation and revision": b"2 %d 9999999999999999 0 0 9999999999 999999 %d" % (FAR_MS, FAR_MS),
        "a space too many": b"1 1 0 0  0 1",
        "no UTF-8": NOT_TEXT,
    }
    for name, line in lines.items():
        yield Odd(f"envelope: {name}", ((b"tw-timer", line), (b"tw-id", b"forged")))
    due = b"%d" % (time.time_ns() // 1_000_000 + 1_000)
    long = b"2 " + due + b" 0 0 " + due + b" 1 1 " + due
    yield Odd("envelope: no id", ((b"tw-timer", b"1 " + due + b" 0 0 " + due + b" 1"),), without=(b"tw-id",))
    yield Odd("envelope: an empty id", ((b"tw-id", b""),))
    yield Odd("envelope: an id of 5,000 characters", ((b"tw-id", b"x" * 5_000),))
    yield Odd("envelope: an id of escapes and lines", ((b"tw-id", b"\x1b[2J\r\nline"),))
    yield Odd("envelope: an id that is no UTF-8", ((b"tw-id", NOT_TEXT),))
    yield Odd("envelope: for an unknown subscription", ((b"tw-timer", long), (b"tw-for", b"nobody"), (b"tw-id", b"f1")))
    yield Odd("envelope: for a subscription of 5,000 characters", ((b"tw-timer", long), (b"tw-for", b"x" * 5_000)))
    yield Odd("envelope: a garbled group", ((b"tw-timer", long), (b"tw-group", b"group"), (b"tw-id", b"f2")))
    yield Odd("envelope: a group of 5,000 characters", ((b"tw-timer", long), (b"tw-group", b"1 " + b"g" * 5_000)))
    for name, text in {
        "5,000 digits": DIGITS,
        "seconds": b"1795626858",
        "nanoseconds": b"1795626858649521075",
        "negative": b"-1",
        "a fraction": b"1.5",
        "empty": b"",
        "other digits": "\u0661\u0662".encode(),
        "the year 9999": b"%d" % FAR_MS,
        "no UTF-8": NOT_TEXT,
    }.items():
        yield Odd(f"tw-due: {name}", ((b"tw-due", text),))
    for name, text in {
        "an entry of others": b"0:0 1",
        "5,000 digits": DIGITS + b":0 1",
        "garbage": b"garbage",
        "the largest position": b"9223372036854775807:9223372036854775807 0",
    }.items():
        yield Odd(f"tw-from: {name}", ((b"tw-from", text),))
    yield Odd("marked as a probe", ((b"tw-probe", b"somebody"),))
    yield Odd("marked for the broker's sake", ((b"tw-nudge", due),))
    yield Odd("a dead letter's schema of 30 digits", ((b"tw-dead-schema", b"9" * 30),))
    yield Odd("a dead letter's origin", ((b"tw-dead-from", b"persistent://a/b/c-partition-" + DIGITS),))
    yield Odd("a dead letter's reason of escapes", ((b"tw-dead-reason", b"\x1b]0;owned\x07"),))
    yield Odd("a parked timer's notes", ((b"tw-parked-from", b"nowhere"), (b"tw-parked-reason", b"x" * 100_000)))
    yield Odd("a property that is kept for later", ((b"tw-later", b"1"),))


def _payloads() -> Iterator[Odd]:
    """Compressed, batched, encrypted and chunked payloads, schemas, and null values."""
    text = b"odd " * 100
    size = number_field(9, len(text))
    codecs = {
        "LZ4": (1, bytes(cramjam.lz4.compress_block(text, store_size=False))),
        "ZLIB": (2, zlib.compress(text)),
        "ZSTD": (3, bytes(cramjam.zstd.compress(text))),
        "SNAPPY": (4, bytes(cramjam.snappy.compress_raw(text))),
    }
    for name, (codec, data) in codecs.items():
        kind = number_field(8, codec)
        yield Odd(name, fields=kind + size, payload=data)
        yield Odd(f"{name}: it does not open", fields=kind + size, payload=b"\x00\xffgarbage")
        yield Odd(f"{name}: larger than it says", fields=kind + number_field(9, 4), payload=data)
        yield Odd(f"{name}: smaller than it says", fields=kind + number_field(9, 1_000), payload=data)
        yield Odd(f"{name}: it says 64 MB", fields=kind + number_field(9, 64 << 20), payload=data)
        yield Odd(f"{name}: no size", fields=kind, payload=data)
    yield Odd("ZSTD: 64 MB of zeros that say 1,000 bytes", fields=number_field(8, 3) + number_field(9, 1_000),
              payload=bytes(cramjam.zstd.compress(b"\x00" * (64 << 20))))  # fmt: skip
    yield Odd("an unknown compression", fields=number_field(8, 9) + size)
    single = number_field(3, 1)
    member = struct.pack(">I", len(single)) + single + b"x"
    yield Odd("a batch of three", payload=member * 3, messages=3)
    yield Odd("a batch of one", payload=member, messages=1)
    yield Odd("a batch that says 1,000 and has three", payload=member * 3, messages=1_000)
    yield Odd("a batch of garbage", payload=b"\xff" * 40, messages=5)
    liar = number_field(3, 1 << 30)
    liars = (struct.pack(">I", len(liar)) + liar + b"x") * 2
    yield Odd("a batch whose members lie about their sizes", payload=liars, messages=2)
    nothing = number_field(3, 0)
    empty = (struct.pack(">I", len(nothing)) + nothing) * 10_000
    yield Odd("a batch of 10,000 empty messages", payload=zlib.compress(empty), messages=10_000,
              fields=number_field(8, 2) + number_field(9, len(empty)))  # fmt: skip
    yield Odd(
        "encrypted",
        fields=data_field(13, data_field(1, b"key") + data_field(2, b"\x01" * 32)) + data_field(15, b"\x02" * 12),
    )
    yield Odd("encrypted, with no key said", fields=data_field(14, b"AES") + data_field(15, b"\x02" * 12))
    for name, uuid, parts, place, size_bytes in (
        ("the first of three parts, alone", b"raw-0", 3, 0, 30),
        ("the last of three parts, alone", b"raw-1", 3, 2, 30),
        ("a part beyond the last", b"raw-2", 3, 7, 30),
        ("a part of a message of 64 MB", b"raw-3", 400, 0, 64 << 20),
    ):
        numbers = number_field(27, parts) + number_field(28, size_bytes) + number_field(29, place)
        yield Odd(name, fields=data_field(26, uuid) + numbers)
    for name, number in {
        "99": struct.pack(">q", 99),
        "of one byte": b"\x01",
        "of 200 bytes": b"\xff" * 200,
        "empty": b"",
    }.items():
        yield Odd(f"a schema version {name}", fields=data_field(16, number))
    yield Odd("of a transaction", fields=number_field(22, 1) + number_field(23, 1))
    yield Odd("no value", fields=number_field(25, 1), payload=b"")
    yield Odd("no value, and a payload", fields=number_field(25, 1))
    yield Odd("an empty payload", payload=b"")
    yield Odd("published in 1970", fields=number_field(3, 0))
    yield Odd("published in the far future", fields=number_field(3, (1 << 62)))
    yield Odd("an event in the far future", fields=number_field(12, (1 << 63) - 1))
    yield Odd("a highest sequence id", fields=number_field(24, (1 << 62)))
    yield Odd("a field that nobody knows", fields=number_field(99, 1) + data_field(100, b"x" * 100))
    yield Odd("as large as a broker takes", payload=os.urandom(LARGEST_BYTES - 4_096))
    yield Odd("nearly as large as a broker takes", payload=os.urandom(LARGEST_BYTES - 70_000))


KILLERS = (
    "LZ4: it does not open",
    "LZ4: smaller than it says",
    "LZ4: it says 64 MB",
    "SNAPPY: larger than it says",
    "SNAPPY: no size",
    "a batch that says 1,000 and has three",
    "a batch of garbage",
    "a batch whose members lie about their sizes",
)
"""Messages by which pulsar-client itself reads or writes beyond its memory, so that a consumer's process may crash: no
SDK on it can prevent that.
"""
STALLERS = ("the last of three parts, alone", "a part beyond the last")
"""Messages that a broker delivers to no consumer of a Shared subscription, and before which it reads no further
entries: no client can prevent that (broker-facts: parts-alone-stall).
"""
_ALL = (*_texts(), *_envelopes(), *_payloads())
KILLING: Sequence[Odd] = tuple(one for one in _ALL if one.name in KILLERS)
ODD: Sequence[Odd] = tuple(one for one in _ALL if one.name not in KILLERS)  # all other messages; each name once
STALLING: Sequence[Odd] = tuple(one for one in ODD if one.name in STALLERS)
SHARED: Sequence[Odd] = tuple(one for one in ODD if one.name not in STALLERS)
"""Messages that may stand in a topic with a Shared subscription."""
WHOLE: Sequence[Odd] = tuple(one for one in ODD if " part" not in one.name)
"""Messages that may stand where a Shared subscription is reopened with a receiver queue of one entry, as a relay does
after messages of 64 MB: behind a first part, even a plain consumer that does so receives no more messages
(broker-facts: parts-alone-stall).
"""


AHEAD_MS = 25_000  # so much later than the play begins is all due: longer than sending takes
PATIENCE_S = 90
TIERS = Tiered(window_ms=1_500, tiers_ms=(1_500, 4_000))


class Place(NamedTuple):
    """Where the messages are put."""

    plan: Callable[[], Plan]  # of the topics
    topic: Callable[[ShadowStage, int], str]  # into which they go, without a partition suffix, for what is due then
    # what a message there has: properties and the delivery that is asked for; by its id and due time
    asks: Callable[[ShadowStage, str, int], tuple[Texts, int]]
    is_plain: bool = False  # whether a plain client reads the due topic, beside a shadow
    odd: Sequence[Odd] = SHARED  # which are put there


def encoded(properties: dict[str, str]) -> Texts:
    return tuple((name.encode(), text.encode()) for name, text in properties.items())


def timer(stage: ShadowStage, timer_id: str, due_ms: int) -> tuple[Texts, int]:
    """Of a timer that is sent now; where the broker delays, it is asked to."""
    at_ms = now_ms()
    route = stage.router.route(due_ms, at_ms)
    return encoded(Envelope(timer_id, due_ms, at_ms).properties()), route.deliver_at_ms if isinstance(
        route, Hold
    ) else 0


def due_timer(stage: ShadowStage, timer_id: str, due_ms: int) -> tuple[Texts, int]:
    at_ms = now_ms()
    return encoded(Envelope(timer_id, due_ms, at_ms).properties()), stage.router.to_due(due_ms, at_ms).deliver_at_ms


def again(stage: ShadowStage, timer_id: str, due_ms: int) -> tuple[Texts, int]:
    at_ms = now_ms()
    life = Life(attempt=1, first_due_ms=at_ms, only_for=BUSINESS)
    due = stage.router.to_due(due_ms, at_ms, BUSINESS)
    return encoded(Envelope(timer_id, due_ms, at_ms, life=life).properties()), due.deliver_at_ms


def held_in(stage: ShadowStage, due_ms: int) -> str:
    route = stage.router.route(due_ms, now_ms())
    assert isinstance(route, Hold)
    return route.topic


def of_intake(_: ShadowStage, timer_id: str, due_ms: int) -> tuple[Texts, int]:
    return ((b"tw-id", timer_id.encode()), (b"tw-due", b"%d" % due_ms)), 0


def shadowed() -> Plan:
    return plan_of(TIERS, relay="service", readers="any", intake=True)


PLACES = {
    "tier": Place(lambda: plan_of(TIERS), held_in, timer, odd=ODD),
    "tier that the broker holds": Place(
        lambda: plan_of(Tiered(window_ms=1_500, tiers_ms=(1_500, 4_000), hold="broker")), held_in, timer, odd=WHOLE
    ),
    "slot": Place(
        lambda: plan_of(Wheel(rings=(Ring(slot_ms=4_000, slots=10, headstart_ms=500),)), max_delay_ms=30_000),
        held_in,
        timer,
        odd=ODD,
    ),
    "due topic": Place(lambda: plan_of(TIERS), lambda stage, _: stage.plan.due_topic, due_timer),
    "day of a calendar": Place(
        lambda: plan_of(Calendar(interval_ms=60_000), max_delay_ms=120_000),
        lambda stage, due_ms: stage.names.calendar_topic(due_ms // stage.router.interval_ms),
        due_timer,
    ),
    "topic of retries": Place(lambda: plan_of(TIERS, retry=True), lambda stage, _: stage.names.retry(BUSINESS), again),
    "intake": Place(shadowed, lambda stage, _: stage.names.intake, of_intake, odd=ODD),
    "topic with a shadow": Place(
        shadowed, lambda stage, _: stage.plan.due_topic, lambda *asked: ((), asked[-1]), is_plain=True
    ),
}
SHORT = ("tier", "slot")  # those that CI plays too


def put_all(stage: ShadowStage, place: Place, odd: Sequence[Odd], due_ms: int) -> list[str]:
    """Store all of them, a good one before and behind each; returns the names of those that the broker refused."""
    refused = []
    topic = stage.names.part(place.topic(stage, due_ms), 0)
    with RawProducer(stage.broker.service_url, topic) as producer:
        for number, one in enumerate(odd):
            good = f"{GOOD}{number}"
            put_good(producer, *place.asks(stage, good, due_ms), good.encode())
            try:
                put(producer, one, *place.asks(stage, f"odd-{number}", due_ms))
            except ConnectionError:
                refused.append(one.name)
        good = f"{GOOD}{len(odd)}"
        put_good(producer, *place.asks(stage, good, due_ms), good.encode())
    return refused


def await_rest(stage: ShadowStage) -> int:
    """Wait until relays hold only timers due in the year 9999, which go from tier to tier until they have made as many
    hops as any timer may; returns their number.
    """
    counts: list[int] = []

    def only_far() -> bool:
        held = [topic.name for topic in topology(stage.plan, now_ms()).holding]
        waiting = [(name, entry) for name in held for entry in unacknowledged(stage, name, RELAY_SUBSCRIPTION)]
        dues = [(name, entry.position.text, [one.due_ms for one in timers_in(entry)]) for name, entry in waiting]
        assert [due for due in dues if set(due[-1]) != {FAR_MS}] == []
        counts.append(sum(len(due) for *_, due in dues))
        return True

    eventually(only_far, PATIENCE_S, poll=0.5)
    return counts[-1]


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [pytest.param(name, id=f"{name}-short" if name in SHORT else name) for name in PLACES])
def test_no_odd_message_keeps_a_good_one_from_coming_once_and_in_its_time(
    pulsar_broker: Broker, name: str, say: Callable[[object], None], evidence: Evidence
) -> None:
    place = PLACES[name]
    odd = place.odd
    with ShadowStage(pulsar_broker, place.plan()) as stage, ExitStack() as stack:
        if stage.plan.intake:
            stage.desired(State.SHADOWING)
        due_ms = now_ms() + AHEAD_MS
        refused = put_all(stage, place, odd, due_ms)
        say(f"stored {len(odd) - len(refused)} of {len(odd)} odd messages; refused by the broker: {refused}")
        if stage.plan.intake:
            stage.shadow()
        elif stage.plan.needs_relay:
            stage.relay()
        if place.is_plain:
            discard = pulsar.ConsumerCryptoFailureAction.DISCARD
            handled = Handled.plainly_by(stage, due_ms, stack, crypto_failure_action=discard)
        else:
            handled = Handled.by(stage, due_ms, stack)
        wanted = [f"{GOOD}{number}" for number in range(len(odd) + 1)]
        try:
            figures = handled.await_good(wanted, PATIENCE_S)
        finally:
            missing = [number for number, good in enumerate(wanted) if good not in handled.good]
            if missing:
                say(f"{len(missing)} good ones are missing, the first behind: {odd[max(missing[0] - 1, 0)].name}")
            say(f"{name}: handled {handled.odd.total()} odd ones")
            say(Counter(event.name for event in stage.events.events))
        far = await_rest(stage)
        evidence(
            f"odd messages: {name}",
            {"kinds": len(odd), "refused by the broker": len(refused), **figures, "held for the year 9999": far},
        )


READS_ON = """
import pulsar, sys
client = pulsar.Client(sys.argv[1], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
consumer = client.subscribe(sys.argv[2], "plain", initial_position=pulsar.InitialPosition.Earliest)
while (message := consumer.receive(60_000)).data() != b"last":
    consumer.acknowledge(message)
client.close()
"""
"""A plain consumer without anything of timewheel's."""


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_some_odd_messages_end_the_process_of_any_client(pulsar_broker: Broker, evidence: Evidence) -> None:
    """What the page about security says of pulsar-client; who mends the client makes this red."""
    ended: dict[str, int] = {}
    controls = [one for one in ODD if one.name in {"LZ4", "SNAPPY", "a batch of three"}]
    for number, one in enumerate([*KILLING, *controls]):
        topic = f"persistent://public/default/ends-{now_ms()}-{number}"
        with RawProducer(pulsar_broker.service_url, topic) as producer:
            put(producer, one, (), 0)
            put_good(producer, (), 0, b"last")
        child = [sys.executable, "-c", READS_ON, pulsar_broker.service_url, topic]
        ended[one.name] = subprocess.run(child, capture_output=True, timeout=120, check=False).returncode
    assert [ended[one.name] for one in controls] == [0] * len(controls), "the same, but honest"
    by_signal = sorted(name for name, code in ended.items() if code < 0)
    assert set(by_signal) <= {one.name for one in KILLING}
    assert len(by_signal) >= 3
    evidence(
        "messages that end a plain client",
        {"pulsar-client": version("pulsar-client"), "kinds": len(KILLING), "ended by a signal": "; ".join(by_signal)},
    )


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_parts_of_a_message_alone_stop_the_shared_subscription_of_any_client(
    pulsar_broker: Broker, pulsar_client: Any, evidence: Evidence
) -> None:
    """Why these are not put where a Shared subscription reads; a broker that is mended makes this red."""
    named = {one.name: one for one in ODD}
    first, batch = named["the first of three parts, alone"], named["a batch of three"]
    shared, by_key = pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared
    stopping = [(one, shared, False) for one in STALLING]
    stopping += [(one, shared, True) for one in (first, named["a part of a message of 64 MB"])]
    controls = [(batch, shared, False), (batch, shared, True), (first, shared, False)]
    stopped = []
    with AdminClient(pulsar_broker.admin_url) as admin:
        for number, (one, consumer_type, anew) in enumerate([*stopping, *controls, (STALLING[0], by_key, False)]):
            topic = f"persistent://public/default/stops-{now_ms()}-{number}"
            subscribe = partial(pulsar_client.subscribe, topic, "plain", consumer_type=consumer_type)
            consumer = subscribe(receiver_queue_size=1 if anew else 1_000)
            with RawProducer(pulsar_broker.service_url, topic) as producer:
                put(producer, one, (), 0)
                if anew:  # Two of them, so that its queue is full when it closes.
                    for _ in range(2):
                        put_good(producer, (), 0, b"first")
                    consumer.receive(20_000)
                    eventually(partial(is_full, admin, topic), 20)
                    consumer.close()
                    consumer = subscribe(receiver_queue_size=1)
                put_good(producer, (), 0, b"last")
            if not comes(consumer, b"last", 5_000):
                stopped.append((one, consumer_type, anew))
                admin.subscriptions.skip(topic, "plain", 1)
                assert comes(consumer, b"last", 60_000), "what the page about security says that helps"
            consumer.close()
    assert stopped == stopping
    evidence(
        "parts of a message that stop a plain Shared subscription",
        {"cases": len(stopping), "stopped": len(stopped), "gone on once skipped": len(stopped)},
    )


def is_full(admin: AdminClient, topic: str) -> bool:
    """Whether its consumer has room for nothing more."""
    consumers = admin.topics.stats(topic, clients=True).subscriptions["plain"].consumers or ()
    return bool(consumers) and consumers[0].permits <= 0


def comes(consumer: Any, payload: bytes, within_ms: int) -> bool:
    """Whether a message with this payload comes to a plain consumer, which acknowledges all."""
    try:
        while (message := consumer.receive(within_ms)).data() != payload:
            consumer.acknowledge(message)
    except pulsar.Timeout:
        return False
    return True


def test_kinds_have_one_name_each() -> None:
    names = Counter(one.name for one in ODD)
    assert max(names.values()) == 1
    assert len(names) >= 60
