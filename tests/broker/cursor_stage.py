"""Cursors of a real broker in a chosen state, and what comes again after an unload; counted by who receives it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pulsar
from numpy.typing import NDArray

from tests.broker.due_topic import now_ms
from tests.support.own_broker import own_broker
from timewheel.broker.admin.client import AdminClient
from timewheel.core.broker_profile import AckFormat
from timewheel.testing import LocalPulsar, eventually

Flags = NDArray[np.bool_]

RECEIVE_TIMEOUT_MS = 20_000
JOIN_TIMEOUT_S = 120.0
SETTLE_TIMEOUT_S = 40.0  # acknowledgements are grouped by the client and counted by the broker a moment later


FORMATS = ("ranges", "bitmap")  # both versions know both formats; 4.0 writes ranges unless told otherwise, 4.2 a bitmap


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A broker of one format."""

    broker: LocalPulsar
    client: Any
    admin: AdminClient
    ack_format: AckFormat


@contextmanager
def staged(broker: LocalPulsar, ack_format: AckFormat) -> Iterator[Stage]:
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with closing(client), AdminClient(broker.admin_url) as admin:
        yield Stage(broker=broker, client=client, admin=admin, ack_format=ack_format)


@contextmanager
def stage_of(settings: Mapping[str, str], ack_format: AckFormat) -> Iterator[Stage]:
    """Start a broker with these settings, and end it."""
    as_bitmap = {"managedLedgerPersistIndividualAckAsLongArray": str(ack_format == "bitmap").lower()}
    with own_broker({**settings, **as_bitmap}) as broker, staged(broker, ack_format) as stage:
        yield stage


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorState:
    """One subscription before an unload."""

    topic: str
    subscription: str
    acknowledged: Flags  # of each entry, in position order
    ranges: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """A topic with its messages."""

    topic: str
    ids: tuple[Any, ...]  # of the messages, in position order
    sent_ms: NDArray[np.int64]  # when each was handed to the client, UTC milliseconds


def fill(client: Any, topic: str, entries: int, due_ms: Sequence[int] | None = None) -> Filled:
    """Publish so many numbered messages in order, one entry each; delayed if due times are given."""
    ids: dict[int, Any] = {}
    failed: list[Any] = []
    sent_ms = np.zeros(entries, np.int64)

    def confirmed(number: int) -> Any:
        def note(result: Any, message_id: Any) -> None:
            if result == pulsar.Result.Ok:
                ids[number] = message_id
            else:
                failed.append(result)

        return note

    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for number in range(entries):
        sent_ms[number] = now_ms()
        producer.send_async(
            _payload(number), confirmed(number), deliver_at=None if due_ms is None else int(due_ms[number])
        )
    producer.flush()
    eventually(lambda: len(ids) + len(failed) == entries, SETTLE_TIMEOUT_S, message=f"{len(ids)} of {entries} sent")
    producer.close()
    assert not failed, failed[0]
    return Filled(topic=topic, ids=tuple(ids[number] for number in range(entries)), sent_ms=sent_ms)


def acknowledge_by_id(
    client: Any, admin: AdminClient, filled: Filled, subscription: str, acknowledged: Flags
) -> CursorState:
    """Acknowledge a subset of a topic's entries one by one, and wait until the broker has counted them all.

    An acknowledgement names an entry; whether its message was received before is all the same to the cursor.
    """
    consumer = client.subscribe(
        filled.topic, subscription, consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=0
    )
    for number in np.flatnonzero(acknowledged).tolist():
        consumer.acknowledge(filled.ids[number])
    consumer.close()  # what the client has grouped is sent with it
    return _settled(admin, filled.topic, subscription, acknowledged)


def backlog_of(admin: AdminClient, topic: str, subscription: str) -> int:
    """Entries that the cursor has as not acknowledged, walked and not from a counter."""
    return admin.topics.stats(topic, precise_backlog=True).subscriptions[subscription].backlog


def received_again(client: Any, admin: AdminClient, state: CursorState, due: Flags | None = None) -> int:
    """After an unload: receive until the broker must have delivered all that it forgot.

    Args:
        admin: Its backlog tells when to stop; what is counted are the messages that come.
        due: Entries that are due by now; None: all.

    Returns:
        Different entries that had been acknowledged and came again.
    """
    was_open = ~state.acknowledged
    forgotten = backlog_of(admin, state.topic, state.subscription) - int(was_open.sum())
    assert forgotten >= 0, "an unload acknowledges nothing"
    # Up to the last acknowledged entry the open ones, too: among them a forgotten entry would come that the backlog
    # left out.
    end = int(np.flatnonzero(state.acknowledged)[-1]) + 1 if state.acknowledged.any() else 0
    awaited = set(np.flatnonzero((was_open if due is None else was_open & due)[:end]).tolist())
    again: set[int] = set()
    consumer = client.subscribe(state.topic, state.subscription, consumer_type=pulsar.ConsumerType.Shared)
    while awaited or len(again) < forgotten:
        number = _number(consumer.receive(RECEIVE_TIMEOUT_MS))
        awaited.discard(number)
        if state.acknowledged[number]:
            again.add(number)
    consumer.close()
    return len(again)


class Listener(threading.Thread):
    """A subscription whose consumer receives all, and acknowledges what falls due up to a moment.

    By due times and not by the clock, so that a machine that stalls moves nothing: the state is that of a consumer
    that is up to date.
    """

    def __init__(self, client: Any, topic: str, subscription: str) -> None:
        super().__init__(name=f"listener-{subscription}")
        self.subscription = subscription
        self._topic = topic
        self._due_ms: NDArray[np.int64] = np.zeros(0, np.int64)
        self._until_ms = 0.0
        self._acknowledged: Flags = np.zeros(0, np.bool_)
        self._error: BaseException | None = None
        self._consumer = client.subscribe(topic, subscription, consumer_type=pulsar.ConsumerType.Shared)

    def begin(self, due_ms: NDArray[np.int64], until_ms: float) -> None:
        """Acknowledge up to this moment, UTC milliseconds, given when each message is due."""
        self._due_ms, self._until_ms = due_ms, until_ms
        self._acknowledged = np.zeros(len(due_ms), np.bool_)
        self.start()

    def run(self) -> None:
        try:
            left = set(range(len(self._due_ms)))
            while left:
                message = self._consumer.receive(RECEIVE_TIMEOUT_MS)
                number = _number(message)
                left.discard(number)
                if self._due_ms[number] <= self._until_ms:
                    self._consumer.acknowledge(message)
                    self._acknowledged[number] = True
            self._consumer.close()
        except BaseException as error:  # noqa: BLE001 - a thread's error is told by `settled`, in the test's own
            self._error = error

    def settled(self, admin: AdminClient) -> CursorState:
        """The state once the moment has passed and the broker has counted all acknowledgements."""
        self.join(JOIN_TIMEOUT_S)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error
        return _settled(admin, self._topic, self.subscription, self._acknowledged)


def _settled(admin: AdminClient, topic: str, subscription: str, acknowledged: Flags) -> CursorState:
    waiting = int((~acknowledged).sum())
    eventually(lambda: backlog_of(admin, topic, subscription) == waiting, SETTLE_TIMEOUT_S)
    return CursorState(
        topic=topic,
        subscription=subscription,
        acknowledged=acknowledged,
        ranges=admin.topics.stats(topic).subscriptions[subscription].gap_count,
    )


def _payload(number: int) -> bytes:
    return number.to_bytes(4, "big")


def _number(message: Any) -> int:
    return int.from_bytes(message.data(), "big")
