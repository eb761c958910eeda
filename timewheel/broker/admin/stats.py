"""The stats of a topic as typed values: gaps, backlog, delayed index."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from timewheel.broker.admin.names import subscription_of
from timewheel.client.positions import EntryPosition

DEDUPLICATION = "pulsar.dedup"
"""The cursor under which a broker stores producers' names; written every thousand entries."""
TERMINATED = "Terminated"
"""State of a terminated topic's ledgers: it accepts no more messages."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_RANGE = re.compile(r"\((-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)\]")


class AckedRange(NamedTuple):
    """Acknowledged entries: those after ``after``, up to and including ``upto``."""

    after: EntryPosition
    upto: EntryPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A ledger; ``entries`` counts written entries, also in the ledger that is still open."""

    ledger_id: int
    entries: int
    size_bytes: int
    offloaded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorStats:
    """A subscription's cursor.

    Args:
        mark_delete: All entries up to here are acknowledged.
        read: Next entry to read from the ledgers.
        gap_count: Ranges behind ``mark_delete``.
        entries_since_mark_delete: Entries from the first unacknowledged entry to the read position.
        consumed: Entries acknowledged, in ranges or below, since the topic was loaded.
        cursor_ledger: Ledger in which the cursor itself is stored; -1: none is open.
        state: The cursor's state, as the broker names it.
        acked_text: The ranges as the broker writes them, hundreds of kB for an unhealthy topic; see `acked_ranges`.
        property_count: Numbers stored beside the position; the broker's own cursor of deduplication (`DEDUPLICATION`)
            stores a number for each producer's name.
    """

    mark_delete: EntryPosition
    read: EntryPosition
    gap_count: int
    entries_since_mark_delete: int
    consumed: int
    cursor_ledger: int
    state: str
    acked_text: str
    property_count: int = 0

    def acked_ranges(self) -> tuple[AckedRange, ...]:
        """Parse the ranges, in topic order; parsed at each call."""
        return tuple(
            AckedRange(EntryPosition(int(found[1]), int(found[2])), EntryPosition(int(found[3]), int(found[4])))
            for found in _RANGE.finditer(self.acked_text)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalStats:
    """Internal stats of a partition, or of a topic without partitions.

    Args:
        entries: Entries on disk.
        entries_added: Entries written since the topic was loaded.
        size_bytes: Size of all ledgers.
        last_confirmed: The last entry that is safely written.
        state: The managed ledger's state, as the broker names it (``LedgerOpened``, ``Terminated``).
        ledgers: The ledgers, in order.
        cursors: By subscription, under the name that its users know; also the broker's own cursors, such as that of
            deduplication.
        ledger_since_ms: Time when the last ledger was created, UTC milliseconds, by the broker's clock; None: unknown.
    """

    entries: int
    entries_added: int
    size_bytes: int
    last_confirmed: EntryPosition
    state: str
    ledgers: tuple[Ledger, ...]
    cursors: Mapping[str, CursorStats]
    ledger_since_ms: int | None = None

    @property
    def newest_ledger(self) -> int:
        """The ledger that is written to; a broker that loads a topic begins a new ledger. -1: there is none."""
        return self.ledgers[-1].ledger_id if self.ledgers else -1


def read_internal_stats(stored: Mapping[str, Any]) -> InternalStats:
    """Parse internal stats from the broker's JSON."""
    ledgers = [
        Ledger(
            ledger_id=ledger["ledgerId"],
            entries=ledger["entries"],
            size_bytes=ledger["size"],
            offloaded=ledger.get("offloaded", False),
        )
        for ledger in stored.get("ledgers", ())
    ]
    if ledgers and ledgers[-1].entries == 0:
        # Brokers list the open ledger with 0 entries and count its entries elsewhere.
        ledgers[-1] = Ledger(
            ledger_id=ledgers[-1].ledger_id,
            entries=stored.get("currentLedgerEntries", 0),
            size_bytes=stored.get("currentLedgerSize", 0),
            offloaded=False,
        )
    return InternalStats(
        entries=stored["numberOfEntries"],
        entries_added=stored["entriesAddedCounter"],
        size_bytes=stored["totalSize"],
        last_confirmed=EntryPosition.parse(stored["lastConfirmedEntry"]),
        state=stored["state"],
        ledgers=tuple(ledgers),
        cursors={subscription_of(name): _cursor(cursor) for name, cursor in stored.get("cursors", {}).items()},
        ledger_since_ms=_read_ms(stored.get("lastLedgerCreatedTimestamp")),
    )


def utc_ms(moment: dt.datetime) -> int:
    """Return a moment with a time zone as UTC milliseconds."""
    return (moment - _EPOCH) // dt.timedelta(milliseconds=1)


def _read_ms(text: str | None) -> int | None:
    """Parse a time as brokers write it; an invalid time is unknown."""
    try:
        found = dt.datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return None if found.tzinfo is None else utc_ms(found)


def _cursor(stored: Mapping[str, Any]) -> CursorStats:
    return CursorStats(
        mark_delete=EntryPosition.parse(stored["markDeletePosition"]),
        read=EntryPosition.parse(stored["readPosition"]),
        gap_count=stored["totalNonContiguousDeletedMessagesRange"],
        entries_since_mark_delete=stored["numberOfEntriesSinceFirstNotAckedMessage"],
        consumed=stored["messagesConsumedCounter"],
        cursor_ledger=stored["cursorLedger"],
        state=stored["state"],
        acked_text=stored["individuallyDeletedMessages"],
        property_count=len(stored.get("properties") or ()),
    )


DELAYING_TYPES = frozenset({"Shared", "Key_Shared"})
"""Types of subscriptions on which brokers delay (broker-facts: delays-need-shared)."""
IN_ORDER_TYPES = frozenset({"Exclusive", "Failover"})
"""Types of subscriptions on which a single consumer receives all messages, at once and in order."""

SHADOW_ACKER = "timewheel-shadow"
"""Name of the consumers by which shadows acknowledge originals: they receive no messages."""

_OWN_CURSORS = ("pulsar.", "__")
"""Prefixes of the broker's own cursors."""


def is_users(subscription: str) -> bool:
    """Return whether a subscription is a user's and not the broker's own."""
    return not subscription.startswith(_OWN_CURSORS)


CHEAP_QUERY: Mapping[str, str] = {
    "getPreciseBacklog": "false",
    "subscriptionBacklogSize": "false",
    "getEarliestTimeInBacklog": "false",
    "excludePublishers": "true",
    "excludeConsumers": "true",
}
"""Counters that cost the broker nothing; the first three, if true, make it walk cursors and read entries."""


T = TypeVar("T")
_MISSING: Mapping[type, Any] = {int: 0, float: 0.0, str: "", bool: False}


@cache
def _keys(kind: type) -> tuple[tuple[str, str, Any], ...]:
    """Return name, key and the value of a missing key, for each field that is annotated with a key of the JSON."""
    hints = get_type_hints(kind, include_extras=True).items()
    annotated = ((name, get_args(hint)) for name, hint in hints if get_origin(hint) is Annotated)
    return tuple((name, key, _MISSING[of_type]) for name, (of_type, key) in annotated)


def _read(kind: type[T], stored: Mapping[str, Any], **fields: Any) -> T:
    """Make a value from the broker's JSON; a field that this broker's version lacks, or sends as null, is 0."""
    for name, key, missing in _keys(kind):  # type: ignore[arg-type]
        found = stored.get(key)
        fields[name] = missing if found is None else found
    return kind(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStats:
    """A connected consumer.

    Args:
        name: Its consumer name.
        address: Address of its connection; empty in sums over partitions.
        unacked: Messages delivered to it and not acknowledged.
        permits: Messages that it would accept now.
        blocked: It has too many unacknowledged messages and gets no more.
        last_acked_at_ms: Time of its last acknowledgement, UTC milliseconds; 0: never.
        connected_since: Time as the broker writes it.
        key_ranges: Hash ranges of keys assigned to it (Key_Shared), as the broker writes them.
        client: Its client version, such as ``Pulsar-Java-v4.0.7``; empty: it sent none, or in sums over partitions.
        properties: Properties from its subscribe request; none in sums over partitions.
    """

    name: Annotated[str, "consumerName"]
    address: Annotated[str, "address"]
    unacked: Annotated[int, "unackedMessages"]
    permits: Annotated[int, "availablePermits"]
    blocked: Annotated[bool, "blockedConsumerOnUnackedMsgs"]
    last_acked_at_ms: Annotated[int, "lastAckedTimestamp"] = 0
    connected_since: Annotated[str, "connectedSince"] = ""
    key_ranges: tuple[str, ...] = ()
    client: Annotated[str, "clientVersion"] = ""
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStats:
    """A connected producer.

    Args:
        name: Its producer name.
        address: Address of its connection; empty in sums over partitions.
        client: Its client version, as in `ConsumerStats`.
    """

    name: Annotated[str, "producerName"]
    address: Annotated[str, "address"]
    client: Annotated[str, "clientVersion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStats:
    """A subscription of a topic, or of all partitions of a topic together.

    Args:
        type: ``Shared``, ``Failover``, ...; ``None`` (a text) while no consumer has connected since the topic was
            loaded, and in sums over partitions.
        gap_count: Ranges of acknowledged entries behind the mark-delete position.
        gap_bytes: Size of those ranges when they are written to the cursor.
        backlog: Entries not acknowledged; from counters, and walked only if a precise backlog was requested.
        delayed: Messages that the broker holds until their delivery time.
        delayed_index_bytes: Memory of the index of delayed messages.
        unacked: Messages delivered and not acknowledged.
        expired: Messages dropped by TTL since the topic was loaded.
        expired_per_s: Rate of messages dropped by TTL.
        redelivered_per_s: Rate of redeliveries.
        delivered: Messages delivered since the topic was loaded, redeliveries included.
        blocked: Too many messages are unacknowledged: delivery has stopped.
        active_consumer: Name of the consumer that gets messages (Failover, Exclusive).
        consumers: The connected consumers; None if they were not requested.
        is_durable: Its cursor is stored; the cursors of readers are not.
        asked_at_ms: Time when a consumer last granted permits, by the broker's clock; 0: none has since the topic was
            loaded.
    """

    type: str
    gap_count: Annotated[int, "nonContiguousDeletedMessagesRanges"]
    gap_bytes: Annotated[int, "nonContiguousDeletedMessagesRangesSerializedSize"]
    backlog: Annotated[int, "msgBacklog"]
    delayed: Annotated[int, "msgDelayed"]
    delayed_index_bytes: Annotated[int, "delayedMessageIndexSizeInBytes"]
    unacked: Annotated[int, "unackedMessages"]
    expired: Annotated[int, "totalMsgExpired"]
    expired_per_s: Annotated[float, "msgRateExpired"]
    redelivered_per_s: Annotated[float, "msgRateRedeliver"]
    delivered: Annotated[int, "msgOutCounter"]
    blocked: Annotated[bool, "blockedSubscriptionOnUnackedMsgs"]
    active_consumer: str | None
    consumers: tuple[ConsumerStats, ...] | None
    is_durable: bool = True
    asked_at_ms: Annotated[int, "lastConsumedFlowTimestamp"] = 0

    @property
    def is_consumed(self) -> bool:
        """True if any consumer but a shadow's is connected; the consumers must have been requested."""
        return any(one.name != SHADOW_ACKER for one in self.consumers or ())

    @property
    def stale_entries(self) -> int:
        """Lower bound of the delayed messages that are acknowledged (broker-facts: stale-index-entries-starve)."""
        return max(self.delayed - self.backlog, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats:
    """A partition, a topic without partitions, or all partitions of a topic together.

    Args:
        published: Messages accepted since the topic was loaded; a reload restarts at 0.
        published_bytes: Their size as stored.
        storage_bytes: Size on disk, acknowledged or not.
        delayed_index_bytes: Sum over all subscriptions.
        deduplication: ``Enabled`` only when it is in force; empty in sums over partitions.
        owner: Broker that serves the topic; empty in sums over partitions.
        publishers: Number of connected producers; None if they were not requested.
        subscriptions: By name.
        producers: The connected producers; empty if they were not requested.
    """

    published: Annotated[int, "msgInCounter"]
    published_bytes: Annotated[int, "bytesInCounter"]
    storage_bytes: Annotated[int, "storageSize"]
    delayed_index_bytes: Annotated[int, "delayedMessageIndexSizeInBytes"]
    deduplication: Annotated[str, "deduplicationStatus"]
    owner: Annotated[str, "ownerBroker"]
    publishers: int | None
    subscriptions: Mapping[str, SubscriptionStats]
    producers: tuple[ProducerStats, ...] = ()

    @property
    def gap_count(self) -> int:
        """Gaps over all subscriptions."""
        return sum(subscription.gap_count for subscription in self.subscriptions.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedStats:
    """A partitioned topic: the sum, and each partition by its full name.

    A partition that no broker has loaded yet is missing from ``partitions``, and its counts from the sum.
    """

    partition_count: int
    total: TopicStats
    partitions: Mapping[str, TopicStats]


def stats_query(*, precise_backlog: bool, clients: bool) -> dict[str, str]:
    """Build a query that costs the broker no more than requested."""
    query = dict(CHEAP_QUERY)
    if precise_backlog:
        query["getPreciseBacklog"] = "true"
    if clients:
        del query["excludePublishers"], query["excludeConsumers"]
    return query


def read_topic_stats(stored: Mapping[str, Any], *, clients: bool) -> TopicStats:
    """Parse stats from the broker's JSON; a field that this broker's version lacks counts as 0."""
    publishers = stored.get("publishers", ())
    return _read(
        TopicStats,
        stored,
        publishers=len(publishers) if clients else None,
        subscriptions={
            name: _subscription(subscription, clients=clients)
            for name, subscription in stored.get("subscriptions", {}).items()
        },
        producers=tuple(_read(ProducerStats, publisher) for publisher in publishers) if clients else (),
    )


def read_partitioned_stats(stored: Mapping[str, Any], *, clients: bool) -> PartitionedStats:
    """Parse stats of a partitioned topic from the broker's JSON."""
    return PartitionedStats(
        partition_count=stored["metadata"]["partitions"],
        total=read_topic_stats(stored, clients=clients),
        partitions={
            name: read_topic_stats(partition, clients=clients)
            for name, partition in sorted(stored.get("partitions", {}).items())
        },
    )


def _subscription(stored: Mapping[str, Any], *, clients: bool) -> SubscriptionStats:
    return _read(
        SubscriptionStats,
        stored,
        type=stored.get("type") or "None",
        active_consumer=stored.get("activeConsumerName") or None,
        consumers=tuple(map(_consumer, stored.get("consumers", ()))) if clients else None,
        is_durable=stored.get("durable", True),
    )


def _consumer(stored: Mapping[str, Any]) -> ConsumerStats:
    ranges = tuple(map(str, stored.get("keyHashRanges") or ()))
    return _read(ConsumerStats, stored, key_ranges=ranges, properties=stored.get("metadata") or {})
