"""Reads the entries of a topic without consuming them: the broker stores nothing about the reader.

Entries that were read are acknowledged for the reader itself, as other clients' readers do: otherwise a broker's
statistics show a backlog that only grows, and a monitor of backlogs raises an alarm.

The broker delivers as many messages as it has permits for, and gets new permits when the caller reads again: entries
that are not taken are not sent. At most `transport.RECEIVE_BYTES` and one frame are read ahead. As Python objects an
entry takes several times its bytes, which matters for an entry with very many properties.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from timewheel.broker.protocol.command_types import SubscriptionType
from timewheel.broker.protocol.connection import MAX_PERMITS
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.entries import Entry
from timewheel.broker.protocol.errors import BinaryProtocolError, ConsumerLost, ProtocolViolation, TooManyRequests
from timewheel.broker.protocol.events import ConsumerClosed, Event, LastPosition
from timewheel.client.positions import EntryPosition
from timewheel.core.rng import Random, system_random

DEFAULT_PERMITS = 2_000
"""Messages that the broker may have sent and the caller has not taken yet."""
_PERMITS_END = 1 << 32
"""Brokers count permits in 32 bits, and wrap around at this number."""
EARLIEST = EntryPosition(-1, -1)
"""Position before the first entry that the topic still has."""


class EntryReader:
    """A reader of a topic. It belongs to a single thread at a time, which calls it every `session.CALL_EVERY_MS`.

    Any error ends it: open another reader behind `position`, and no entry is missed or seen twice.

    Args:
        dialer: Knows the cluster.
        topic: A partition, or a topic without partitions, by its full name. A missing topic is not created.
        after: Position of the entry to begin behind. If the topic no longer has that entry, reading begins with the
            next entry of the topic. A position beyond the topic's end is an error as soon as an entry comes.
        permits: How many messages may be under way.
        keep_payload: Whether entries keep their payloads, as stored.
        rng: Source of randomness for the reader's name, shown in the topic's stats.

    Attributes:
        topic: The topic, as given.
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
        self.topic = topic
        self.position = after
        self._permits = permits
        self._taken = 0
        self._acknowledged = after
        self._before_first: EntryPosition | None = after
        name = f"timewheel-look-{int((rng or system_random()).random() * (1 << 48)):012x}"
        self._session = dialer.reach(topic, keep_payload=keep_payload)
        try:
            self._consumer_id = self._open(name, after)
            self._session.connection.grant(self._consumer_id, permits)
            self._session.flush()
        except BaseException:
            self._session.close()
            raise

    def _open(self, name: str, after: EntryPosition) -> int:
        request_id, consumer_id = self._session.connection.subscribe(
            self.topic, name, SubscriptionType.EXCLUSIVE, name=name, start=after
        )
        self._session.answer(request_id, topic=self.topic, consumer_id=consumer_id)
        return consumer_id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

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
        try:
            events = self._session.events(timeout_ms)
            entries, rest = self._entries_of(events)
            if events and not entries and not rest:  # only the skipped first entry came, which happens at most once
                entries, rest = self._entries_of(self._session.events(timeout_ms))
            if rest and not entries:
                self._see(rest.pop(0))
            self._session.put_back(rest)  # goes behind the events read before it
        except BinaryProtocolError:
            self.close()
            raise
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
        """Return the position of the topic's last entry at this moment; entry -1: its last ledger is empty.

        Raises:
            BinaryProtocolError: As for `read`.
        """
        try:
            request_id = self._session.connection.ask_last_position(self._consumer_id)
            answer = self._session.answer(request_id, topic=self.topic, consumer_id=self._consumer_id)
        except BinaryProtocolError:
            self.close()
            raise
        assert isinstance(answer, LastPosition), "the connection has seen to that"
        return answer.position

    def close(self) -> None:
        """Close the reader; entries under way are dropped."""
        self._session.close()

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
