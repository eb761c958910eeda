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
TERMINATED = "Terminated"  # state of a terminated topic's ledgers: it accepts no more messages

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
    """A subscription's cursor."""

    mark_delete: EntryPosition  # all entries up to here are acknowledged
    read: EntryPosition  # next entry to read from the ledgers
    gap_count: int  # ranges behind `mark_delete`
    entries_since_mark_delete: int  # entries from the first unacknowledged entry to the read position
    consumed: int  # entries acknowledged, in ranges or below, since the topic was loaded
    cursor_ledger: int  # ledger in which the cursor itself is stored; -1: none is open
    state: str  # the cursor's state, as the broker names it
    acked_text: str  # the ranges as the broker writes them, hundreds of kB for an unhealthy topic; see `acked_ranges`
    # numbers stored beside the position; the broker's own cursor of deduplication (`DEDUPLICATION`) stores a number
    # for each producer's name
    property_count: int = 0
    is_read: bool = True  # a read is under way, or waits for the next entry

    def acked_ranges(self) -> tuple[AckedRange, ...]:
        """Parse the ranges, in topic order; parsed at each call."""
        return tuple(
            AckedRange(EntryPosition(int(found[1]), int(found[2])), EntryPosition(int(found[3]), int(found[4])))
            for found in _RANGE.finditer(self.acked_text)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalStats:
    """Internal stats of a partition, or of a topic without partitions."""

    entries: int  # entries on disk
    entries_added: int  # entries written since the topic was loaded
    size_bytes: int  # size of all ledgers
    last_confirmed: EntryPosition  # the last entry that is safely written
    state: str  # the managed ledger's state, as the broker names it (`LedgerOpened`, `Terminated`)
    ledgers: tuple[Ledger, ...]  # the ledgers, in order
    # by subscription, under the name that its users know; also the broker's own cursors, such as that of
    # deduplication
    cursors: Mapping[str, CursorStats]
    # time when the last ledger was created, UTC milliseconds, by the broker's clock; None: unknown
    ledger_since_ms: int | None = None
    # time when the broker last failed to create a ledger, by its clock; None: it has created one since, or always has
    no_ledger_since_ms: int | None = None

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
    since_ms = _read_ms(stored.get("lastLedgerCreatedTimestamp"))
    failed_ms = _read_ms(stored.get("lastLedgerCreationFailureTimestamp"))
    return InternalStats(
        entries=stored["numberOfEntries"],
        entries_added=stored["entriesAddedCounter"],
        size_bytes=stored["totalSize"],
        last_confirmed=EntryPosition.parse(stored["lastConfirmedEntry"]),
        state=stored["state"],
        ledgers=tuple(ledgers),
        cursors={subscription_of(name): _cursor(cursor) for name, cursor in stored.get("cursors", {}).items()},
        ledger_since_ms=since_ms,
        no_ledger_since_ms=failed_ms if (failed_ms or 0) > (since_ms or 0) else None,
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


_READS = ("waitingReadOp", "pendingReadOps", "subscriptionHavePendingRead", "subscriptionHavePendingReplayRead")


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
        is_read=any(stored.get(name, True) for name in _READS),
    )


DELAYING_TYPES = frozenset({"Shared", "Key_Shared"})
"""Types of subscriptions on which brokers delay (broker-facts: delays-need-shared)."""
IN_ORDER_TYPES = frozenset({"Exclusive", "Failover"})
"""Types of subscriptions on which a single consumer receives all messages, at once and in order."""

SHADOW_ACKER = "timewheel-shadow"
"""Name of the consumers by which shadows acknowledge originals: they receive no messages."""

_OWN_CURSORS = ("pulsar.", "__")  # prefixes of the broker's own cursors


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
    """A connected consumer."""

    name: Annotated[str, "consumerName"]  # its consumer name
    address: Annotated[str, "address"]  # address of its connection; empty in sums over partitions
    unacked: Annotated[int, "unackedMessages"]  # messages delivered to it and not acknowledged
    permits: Annotated[int, "availablePermits"]  # messages that it would accept now
    blocked: Annotated[bool, "blockedConsumerOnUnackedMsgs"]  # it has too many unacknowledged messages and gets no more
    # time of its last acknowledgement, UTC milliseconds; 0: never
    last_acked_at_ms: Annotated[int, "lastAckedTimestamp"] = 0
    connected_since: Annotated[str, "connectedSince"] = ""  # time as the broker writes it
    key_ranges: tuple[str, ...] = ()  # hash ranges of keys assigned to it (Key_Shared), as the broker writes them
    # its client version, such as `Pulsar-Java-v4.0.7`; empty: it sent none, or in sums over partitions
    client: Annotated[str, "clientVersion"] = ""
    # properties from its subscribe request; none in sums over partitions
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStats:
    """A connected producer."""

    name: Annotated[str, "producerName"]  # its producer name
    address: Annotated[str, "address"]  # address of its connection; empty in sums over partitions
    client: Annotated[str, "clientVersion"]  # its client version, as in `ConsumerStats`


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionStats:
    """A subscription of a topic, or of all partitions of a topic together."""

    # `Shared`, `Failover`, ...; `None` (a text) while no consumer has connected since the topic was loaded, and in
    # sums over partitions
    type: str
    # ranges of acknowledged entries behind the mark-delete position
    gap_count: Annotated[int, "nonContiguousDeletedMessagesRanges"]
    # size of those ranges when they are written to the cursor
    gap_bytes: Annotated[int, "nonContiguousDeletedMessagesRangesSerializedSize"]
    # entries not acknowledged; from counters, and walked only if a precise backlog was requested
    backlog: Annotated[int, "msgBacklog"]
    delayed: Annotated[int, "msgDelayed"]  # messages that the broker holds until their delivery time
    delayed_index_bytes: Annotated[int, "delayedMessageIndexSizeInBytes"]  # memory of the index of delayed messages
    unacked: Annotated[int, "unackedMessages"]  # messages delivered and not acknowledged
    expired: Annotated[int, "totalMsgExpired"]  # messages dropped by TTL since the topic was loaded
    expired_per_s: Annotated[float, "msgRateExpired"]  # rate of messages dropped by TTL
    redelivered_per_s: Annotated[float, "msgRateRedeliver"]  # rate of redeliveries
    delivered: Annotated[int, "msgOutCounter"]  # messages delivered since the topic was loaded, redeliveries included
    # too many messages are unacknowledged: delivery has stopped
    blocked: Annotated[bool, "blockedSubscriptionOnUnackedMsgs"]
    active_consumer: str | None  # name of the consumer that gets messages (Failover, Exclusive)
    consumers: tuple[ConsumerStats, ...] | None  # the connected consumers; None if they were not requested
    is_durable: bool = True  # its cursor is stored; the cursors of readers are not
    # time when a consumer last granted permits, by the broker's clock; 0: none has since the topic was loaded
    asked_at_ms: Annotated[int, "lastConsumedFlowTimestamp"] = 0

    @property
    def is_consumed(self) -> bool:
        """True if any consumer but a shadow's is connected; the consumers must have been requested."""
        return any(one.name != SHADOW_ACKER for one in self.consumers or ())

    @property
    def should_be_read(self) -> bool:
        """True if messages wait, none delayed or unacknowledged, and a consumer that may get them asks for them."""
        getting = [one for one in self.consumers or () if self.active_consumer in {None, "", one.name}]
        return self.backlog > 0 and not (self.delayed or self.unacked) and any(one.permits > 0 for one in getting)

    @property
    def stale_entries(self) -> int:
        """Lower bound of the delayed messages that are acknowledged (broker-facts: stale-index-entries-starve)."""
        return max(self.delayed - self.backlog, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats:
    """A partition, a topic without partitions, or all partitions of a topic together."""

    published: Annotated[int, "msgInCounter"]  # messages accepted since the topic was loaded; a reload restarts at 0
    published_bytes: Annotated[int, "bytesInCounter"]  # their size as stored
    storage_bytes: Annotated[int, "storageSize"]  # size on disk, acknowledged or not
    delayed_index_bytes: Annotated[int, "delayedMessageIndexSizeInBytes"]  # sum over all subscriptions
    # `Enabled` only when it is in force; empty in sums over partitions
    deduplication: Annotated[str, "deduplicationStatus"]
    owner: Annotated[str, "ownerBroker"]  # broker that serves the topic; empty in sums over partitions
    publishers: int | None  # number of connected producers; None if they were not requested
    subscriptions: Mapping[str, SubscriptionStats]  # by name
    producers: tuple[ProducerStats, ...] = ()  # the connected producers; empty if they were not requested

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
