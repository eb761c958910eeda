"""Hops to a relay-held topic that leave as one entry, gathered and numbered (broker-facts: batched-hops).

A group is complete before its first message is handed to the client, since all its messages carry the number of its
last position: wherever a crash cuts, a position up to the broker's mark is stored, and a position above it is not. Two
cases must never occur: a group that straddles the mark as of the opening of the producer, and a group that the client
cuts in two. The code here prevents the first; the batch index of the last message reveals the second.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from timewheel.client.native import carry, flush_soon
from timewheel.core.grouping import GROUP_BYTES, GROUP_MESSAGES
from timewheel.relay.driver.hop_producers import HopProducers


class Member(NamedTuple):
    """A message of a group.

    Args:
        ordinal: Ordinal of the command, for its confirmation.
        message: The message as it was received.
        properties: Properties that replace its own.
        size: Approximate bytes of payload and properties.
    """

    ordinal: int
    message: Any
    properties: dict[str, str]
    size: int


class HopBatch:
    """Messages for the same topic with the same schema version, sent as one entry.

    Args:
        topic: Destination, without a partition suffix.
        version: The schema version in the source.
        producer: The named producer.
        mark: The highest sequence id that the broker had stored from the producer when it was opened.
    """

    __slots__ = ("_mark", "_size", "end", "members", "producer", "topic", "version")

    def __init__(self, topic: str, version: int, producer: Any, mark: int) -> None:
        self.topic = topic
        self.version = version
        self.producer = producer
        self._mark = mark
        self.members: list[Member] = []
        self._size = 0
        self.end = -1
        """The sequence id of the last position."""

    @property
    def is_new(self) -> bool:
        """True if the broker can have it from no earlier session."""
        return self.end > self._mark

    def takes(self, sequence_id: int, size: int) -> bool:
        """True if another message may join: by the broker's mark, by count and by bytes."""
        if not self.members:
            return True
        straddles = self.end <= self._mark < sequence_id
        return not straddles and len(self.members) < GROUP_MESSAGES and self._size + size <= GROUP_BYTES

    def add(self, member: Member, sequence_id: int) -> None:
        """Append the next message."""
        self.members.append(member)
        self._size += member.size
        self.end = sequence_id


class HopBatches:
    """The incomplete groups of a source partition; for a single thread.

    Args:
        hops: Opens producers.
        on_sent: Called with the outcome of a group: ``on_sent(group, result, message_id)``, of its last message.
    """

    __slots__ = ("_hops", "_on_sent", "_open")

    def __init__(self, hops: HopProducers, on_sent: Callable[[HopBatch, Any, Any], None]) -> None:
        self._hops = hops
        self._on_sent = on_sent
        self._open: dict[tuple[str, int], HopBatch] = {}

    def add(self, topic: str, version: int, sequence_id: int, member: Member) -> None:
        """Add a message to the group of its destination and schema version; a full group is sent first.

        Raises:
            LeaseHeld: Another client has the name of the producer.
            PulsarException: The producer could not be opened.
        """
        key = topic, version
        group = self._open.get(key)
        if group is not None and not group.takes(sequence_id, member.size):
            del self._open[key]
            self._send(group)
            group = None
        if group is None:
            producer, mark = self._hops.for_groups(topic, version)
            group = self._open[key] = HopBatch(topic, version, producer, mark)
        group.add(member, sequence_id)

    def send(self) -> None:
        """Send all groups."""
        groups, self._open = self._open, {}
        for group in groups.values():
            self._send(group)

    def _send(self, group: HopBatch) -> None:
        producer, end = group.producer, group.end
        *others, last = group.members
        # All messages of an entry have the same outcome: the last message reports it.
        for member in others:
            carry(producer, member.message, None, member.properties, sequence_id=end)
        carry(producer, last.message, partial(self._on_sent, group), last.properties, sequence_id=end)
        flush_soon(producer)
