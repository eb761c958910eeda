"""Reads the entries of a topic without consuming them: nothing of it is kept on the broker.

What is read is acknowledged for the reader itself, as other clients' readers do: else a broker's statistics tell of a
backlog that only grows, and whoever watches backlogs is alarmed.

The broker delivers as many messages as it has permits for, and gets new ones when the caller comes back for more: what
nobody takes is not sent. What is read ahead is at most `transport.RECEIVE_BYTES` and one frame; as Python's objects an
entry takes a multiple of its bytes, which matters for one with very many properties.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from timewheel.binary_protocol.command_types import SubscriptionType
from timewheel.binary_protocol.connection import MAX_PERMITS
from timewheel.binary_protocol.dialing import Dialer
from timewheel.binary_protocol.entries import Entry
from timewheel.binary_protocol.errors import BinaryProtocolError, ConsumerLost, ProtocolViolation, TooManyRequests
from timewheel.binary_protocol.events import ConsumerClosed, Event, LastPosition
from timewheel.core.chance import Chance, system_chance
from timewheel.wire.positions import EntryPosition

__all__ = ["DEFAULT_PERMITS", "EARLIEST", "EntryReader"]

DEFAULT_PERMITS = 2_000
"""Messages that the broker may have sent and nobody has taken yet."""
_PERMITS_END = 1 << 32
"""Brokers count permits with 32 bits, from where they begin again at the other end."""
EARLIEST = EntryPosition(-1, -1)
"""Before the first entry that the topic still has."""


class EntryReader:
    """One reader of one topic. It belongs to one thread at a time, which calls it every `session.CALL_EVERY_MS`.

    Any error ends it: open another one behind `position`, and nothing is missed or seen twice.

    Args:
        dialer: Knows the cluster.
        topic: A partition, or a topic without partitions, by its full name. It is not made if it is not there.
        after: The entry behind which to begin. If the topic has it no more, it begins with the next that is there. A
            position beyond the topic's end is an error as soon as an entry comes.
        permits: How many messages may be under way.
        keep_payload: Whether entries have their payloads, as they are stored.
        chance: Names the reader, for whoever looks at the topic.

    Attributes:
        topic: As it was given.
        position: Of the last entry that was read; `after` if none was.

    Raises:
        BinaryProtocolError: It cannot be opened.
    """

    def __init__(
        self,
        dialer: Dialer,
        topic: str,
        *,
        after: EntryPosition = EARLIEST,
        permits: int = DEFAULT_PERMITS,
        keep_payload: bool = False,
        chance: Chance | None = None,
    ) -> None:
        if not 1 <= permits <= MAX_PERMITS:
            raise TooManyRequests("permits", permits, MAX_PERMITS)
        self.topic = topic
        self.position = after
        self._permits = permits
        self._taken = 0
        self._acknowledged = after
        self._before_first: EntryPosition | None = after
        name = f"timewheel-look-{int((chance or system_chance()).random() * (1 << 48)):012x}"
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
        """The next entries, in the order of the topic.

        Args:
            timeout_ms: How long the first of them is waited for; 0: what is there.

        Returns:
            Some entries; none if none came in time. A topic that was terminated says nothing at its end: see
            `last_position`.

        Raises:
            ConsumerLost: The topic moves, was unloaded or is gone.
            BrokerLost: There is no connection any more.
            BinaryProtocolError: The broker sends what it must not.
        """
        self._go_on()
        try:
            events = self._session.events(timeout_ms)
            entries, rest = self._entries_of(events)
            if events and not entries and not rest:  # the entry that is left out came alone, as it may once
                entries, rest = self._entries_of(self._session.events(timeout_ms))
            if rest and not entries:
                self._see(rest.pop(0))
            self._session.put_back(rest)  # it comes behind what was read before it
        except BinaryProtocolError:
            self.close()
            raise
        if entries:
            self.position = entries[-1].position
            self._taken += sum(entry.message_count for entry in entries)
        return entries

    def _entries_of(self, events: list[Event]) -> tuple[list[Entry], list[Event]]:
        """Entries that can be given, up to the first event that changes something; and that event with what follows."""
        entries: list[Entry] = []
        last = self.position
        for at, event in enumerate(events):
            if isinstance(event, Entry) and event.position == self._before_first:
                # A broker begins with the very entry that it was given, if it has it. The entry behind it cannot be
                # asked for: where there is none yet, it would begin with the first of all
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
        """Of the topic's last entry at this moment; entry -1: its last ledger is empty.

        Raises:
            BinaryProtocolError: As `read`.
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
        """End it; what is under way is forgotten."""
        self._session.close()

    def _go_on(self) -> None:
        """Acknowledge what was taken, and give its permits back when it is worth a command."""
        if self.position != self._acknowledged:
            self._acknowledged = self.position
            self._session.connection.acknowledge_up_to(self._consumer_id, self.position)
        self._taken %= _PERMITS_END
        while self._taken * 2 >= self._permits:
            permits = min(self._taken, MAX_PERMITS)
            self._session.connection.grant(self._consumer_id, permits)
            self._taken -= permits
