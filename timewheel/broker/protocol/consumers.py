"""Consumers on a session of their own: they read entries without consuming them, or acknowledge them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, Self

from timewheel.broker.protocol.commands import ConsumerClosed, Event, LastPosition, SubscriptionType
from timewheel.broker.protocol.connection import MAX_PERMITS, MAX_POSITIONS
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.entries import Entry
from timewheel.broker.protocol.errors import BinaryProtocolError, ConsumerLost, ProtocolViolation, TooManyRequests
from timewheel.broker.protocol.session import Session
from timewheel.client.positions import EntryPosition
from timewheel.core.names import LOOK_PREFIX
from timewheel.core.rng import Random, system_random

DEFAULT_PERMITS = 2_000  # messages that the broker may have sent and the caller has not taken yet
_PERMITS_END = 1 << 32  # brokers count permits in 32 bits, and wrap around at this number
EARLIEST = EntryPosition(-1, -1)  # position before the first entry that the topic still has


class Consumer:
    """A consumer of a topic on a session of its own; any error ends it, and the session with it."""

    def __init__(
        self,
        session: Session,
        topic: str,
        subscription: str,
        kind: SubscriptionType,
        *,
        name: str,
        start: EntryPosition | None = None,
    ) -> None:
        self.topic = topic
        self._session = session
        try:
            request_id, self._consumer_id = session.connection.subscribe(
                topic, subscription, kind, name=name, start=start
            )
            self._await(request_id)
        except BaseException:
            session.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave without waiting; the broker notices when the connection ends."""
        self._session.close()

    @contextmanager
    def _closed_by_errors(self) -> Iterator[None]:
        try:
            yield
        except BinaryProtocolError:
            self.close()
            raise

    def _await(self, request_id: int) -> Event:
        return self._session.answer(request_id, topic=self.topic, consumer_id=self._consumer_id)


def look_name(rng: Random) -> str:
    """Return a new name for a reader, shown in the topic's stats."""
    return f"{LOOK_PREFIX}{int(rng.random() * (1 << 48)):012x}"


class EntryReader(Consumer):
    """Reads a topic; the broker stores nothing about it. Any error ends it: open another reader behind `position`, and
    no entry is missed or seen twice. It belongs to a single thread at a time, which calls it every
    `session.CALL_EVERY_MS`.

    Entries that were read are acknowledged for the reader itself, as other clients' readers do: otherwise a broker's
    statistics show a backlog that only grows, and a monitor of backlogs raises an alarm.

    The broker delivers as many messages as it has permits for, and gets new permits when the caller reads again:
    entries that are not taken are not sent. At most `session.RECEIVE_BYTES` and one frame are read ahead. As Python
    objects an entry takes several times its bytes, which matters for an entry with very many properties.

    Args:
        dialer: Knows the cluster.
        topic: A partition, or a topic without partitions, by its full name. A missing topic is not created.
        after: Position of the entry to begin behind. If the topic no longer has that entry, reading begins with the
            next entry of the topic. A position beyond the topic's end is an error as soon as an entry comes.
        permits: How many messages may be under way.
        keep_payload: Whether entries keep their payloads, as stored.
        rng: Source of randomness for the reader's name, shown in the topic's stats.

    Attributes:
        position: Position of the last entry that was read; `after` if none was.

    Raises:
        BinaryProtocolError: The reader cannot be opened.
    """

    def __init__(
        self,
        dialer: Dialer,
        topic: str,
        *,
        after: EntryPosition = EARLIEST,
        permits: int = DEFAULT_PERMITS,
        keep_payload: bool = False,
        rng: Random | None = None,
    ) -> None:
        if not 1 <= permits <= MAX_PERMITS:
            raise TooManyRequests("permits", permits, MAX_PERMITS)
        self.position = after
        self._permits = permits
        self._taken = 0
        self._acknowledged = after
        self._before_first: EntryPosition | None = after
        name = look_name(rng or system_random())
        session = dialer.reach(topic, keep_payload=keep_payload)
        super().__init__(session, topic, name, SubscriptionType.EXCLUSIVE, name=name, start=after)
        session.connection.grant(self._consumer_id, permits)
        session.flush()

    def read(self, timeout_ms: int) -> list[Entry]:
        """Return the next entries, in the order of the topic.

        Args:
            timeout_ms: How long to wait for the first of them; 0: do not wait.

        Returns:
            Some entries, or none if none came in time. A terminated topic does not report its end: see `last_position`.

        Raises:
            ConsumerLost: The topic moves, was unloaded or is gone.
            BrokerLost: The connection was lost.
            BinaryProtocolError: The broker broke the protocol.
        """
        self._go_on()
        with self._closed_by_errors():
            events = self._session.events(timeout_ms)
            entries, rest = self._entries_of(events)
            if events and not entries and not rest:  # only the skipped first entry came, which happens at most once
                entries, rest = self._entries_of(self._session.events(timeout_ms))
            if rest and not entries:
                self._see(rest.pop(0))
            self._session.put_back(rest)  # goes behind the events read before it
        if entries:
            self.position = entries[-1].position
            self._taken += sum(entry.message_count for entry in entries)
        return entries

    def _entries_of(self, events: list[Event]) -> tuple[list[Entry], list[Event]]:
        """Split events into the readable entries at their head, and the rest from the first other event on."""
        entries: list[Entry] = []
        last = self.position
        for at, event in enumerate(events):
            if isinstance(event, Entry) and event.position == self._before_first:
                # A broker begins with the very entry of the given position, if it has that entry. The entry behind it
                # cannot be requested: if it does not exist yet, the broker begins with the first of all
                # (broker-facts: reading-by-position).
                self._taken += event.message_count
            elif isinstance(event, Entry) and event.position > last:
                entries.append(event)
                last = event.position
            else:
                return entries, events[at:]
            self._before_first = None
        return entries, []

    def _see(self, event: Event) -> None:
        match event:
            case ConsumerClosed():
                raise ConsumerLost(self.topic, event.reason)
            case Entry(position=here):
                raise ProtocolViolation(
                    f"entry {here.text} behind {self.position.text}",
                    "a reader gets entries in the order of their topic",
                    "was the topic deleted and made again? read it from the start",
                )
            case _:
                pass

    def last_position(self) -> EntryPosition:
        """Return the position of the topic's last entry now; entry -1: its last ledger is empty. Raises as `read`."""
        with self._closed_by_errors():
            answer = self._await(self._session.connection.ask_last_position(self._consumer_id))
        assert isinstance(answer, LastPosition), "the connection has seen to that"
        return answer.position

    def _go_on(self) -> None:
        """Acknowledge the taken entries, and grant their permits again once they are worth a command."""
        if self.position != self._acknowledged:
            self._acknowledged = self.position
            self._session.connection.acknowledge_up_to(self._consumer_id, self.position)
        self._taken %= _PERMITS_END
        while self._taken * 2 >= self._permits:
            permits = min(self._taken, MAX_PERMITS)
            self._session.connection.grant(self._consumer_id, permits)
            self._taken -= permits


MAX_UNANSWERED = 4  # acknowledgements under way: enough to keep the broker busy while an answer travels


class EntryAcknowledger(Consumer):
    """Acknowledges entries of a subscription that other consumers read: by position, delivered to any consumer or to
    none.

    It joins as a consumer that grants no permits. On a Shared subscription the other consumers do not notice it. On
    Key_Shared a broker assigns it keys, and messages with those keys wait until it has left: join for moments only
    (broker-facts: acknowledging-for-others).

    It belongs to a single thread at a time, which calls it every `session.CALL_EVERY_MS`. Any error ends it: open
    another acknowledger and acknowledge the same entries again, which does no harm.

    Args:
        dialer: Knows the cluster.
        topic: A partition, or a topic without partitions, by its full name. A missing topic is not created.
        subscription: Must exist: a broker would create a missing subscription and keep all messages for it.
        kind: Its type.
        name: Name of the consumer, shown in the topic's stats. On Key_Shared it decides which keys are assigned.

    Raises:
        BinaryProtocolError: The consumer cannot be opened.
    """

    def __init__(
        self,
        dialer: Dialer,
        topic: str,
        subscription: str,
        *,
        kind: Literal[SubscriptionType.SHARED, SubscriptionType.KEY_SHARED] = SubscriptionType.SHARED,
        name: str = "timewheel-acknowledger",
    ) -> None:
        super().__init__(dialer.reach(topic), topic, subscription, kind, name=name)

    def acknowledge(self, positions: Sequence[EntryPosition]) -> None:
        """Acknowledge entries, each as a whole; acknowledging an entry twice does no harm.

        Returns when the broker has confirmed all of them. They need not be on disk by then: the broker writes its
        cursor later.

        Raises:
            ConsumerLost: The topic moves, was unloaded or is gone; some of the entries may be acknowledged.
            BinaryProtocolError: The broker refused, or the connection failed; some of the entries may be acknowledged.
        """
        unanswered: deque[int] = deque()
        with self._closed_by_errors():
            for start in range(0, len(positions), MAX_POSITIONS):
                if len(unanswered) >= MAX_UNANSWERED:
                    self._await(unanswered.popleft())
                chunk = positions[start : start + MAX_POSITIONS]
                unanswered.append(self._session.connection.acknowledge(self._consumer_id, chunk))
                self._session.flush()
            while unanswered:
                self._await(unanswered.popleft())

    def keep_alive(self) -> None:
        """Check that the broker still has this consumer, with nothing to acknowledge; raises as `acknowledge`."""
        with self._closed_by_errors():
            for event in self._session.events(0):
                if isinstance(event, ConsumerClosed):
                    raise ConsumerLost(self.topic, event.reason)

    def leave(self) -> None:
        """Leave, and wait for the broker's answer: on Key_Shared other consumers own the keys from then on.

        Raises:
            BinaryProtocolError: No answer came; the connection is closed all the same.
        """
        try:
            self._await(self._session.connection.close_consumer(self._consumer_id))
        finally:
            self.close()
