"""Topics and their subscriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from timewheel.admin.entries import EntrySource, StoredEntry, read_entry
from timewheel.admin.http import AdminHttp, read_json
from timewheel.admin.internals import EntryPosition, InternalStats, read_internal_stats
from timewheel.admin.names import namespace_path, subscription_path, topic_path
from timewheel.admin.redirects import LOOKUP
from timewheel.admin.retrying import Repeat
from timewheel.admin.stats import (
    PartitionedStats,
    TopicStats,
    read_partitioned_stats,
    read_topic_stats,
    stats_query,
)
from timewheel.core.errors import AdminError, AdminMissing, AdminUnreachable

__all__ = ["Subscriptions", "Topics"]

_START = {
    "earliest": {"ledgerId": -1, "entryId": -1, "partitionIndex": -1},
    "latest": {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1},
}
MAX_UNANSWERED = 16
"""Looks at entries in a row that had no answer: before, it is the entry that the broker has no answer for."""
_NOT_WRITTEN_YET = "LastConfirmedEntry is"


class Topics:
    """Verbs on topics. Names are full ones: ``persistent://tenant/namespace/topic``, or ``...-partition-N`` of it.

    Timewheel's own topics are partitioned (broker-facts: failover-and-takeover); the verbs with ``unpartitioned`` in
    their names are for due topics that are not, and for topics that others made.
    """

    def __init__(self, http: AdminHttp, entries: EntrySource | None = None) -> None:
        self._http = http
        self._entries = entries
        self._unanswered = 0  # without a lock: what threads count at once and is lost costs another look

    def create(self, topic: str, partitions: int) -> bool:
        """Create a partitioned topic with all its partitions.

        Returns:
            False if there is a topic of that name already, whatever its kind and count: see `partitions`.

        Raises:
            AdminMissing: There is no such tenant or namespace.
        """
        if partitions < 1:
            raise ValueError(f"a partitioned topic has at least 1 partition, not {partitions}")
        return self._http.make(f"{topic_path(topic)}/partitions", body=partitions)

    def create_unpartitioned(self, topic: str) -> bool:
        """Create a topic without partitions; False if there is one of that name already."""
        return self._http.make(topic_path(topic))

    def partitions(self, topic: str) -> int | None:
        """How many partitions the topic has: 0 for one without partitions, None if there is no such topic."""
        try:
            metadata = self._http.get(f"{topic_path(topic)}/partitions")
        except AdminMissing:
            return None
        return int(metadata["partitions"])

    def update_partitions(self, topic: str, partitions: int) -> None:
        """Raise the number of partitions; subscriptions are made on the new ones too. It cannot be lowered.

        Raises:
            AdminError: The number is lower than that now (status 422).
        """
        self._http.call("POST", f"{topic_path(topic)}/partitions", body=partitions)

    def create_missed_partitions(self, topic: str) -> None:
        """Make the partitions that the metadata names and that are not there, as after a half failed creation."""
        self._http.call("POST", f"{topic_path(topic)}/createMissedPartitions")

    def delete(self, topic: str, *, force: bool = False) -> bool:
        """Delete a partitioned topic with its subscriptions and whatever they have not consumed.

        Never force it under a living producer: its next send would succeed into a new topic without subscriptions
        (broker-facts: removing-a-topic).

        Args:
            topic: Full name.
            force: Disconnect clients; else they make the broker refuse (412). A backlog does not.

        Returns:
            False if there is no such topic.
        """
        return self._http.remove(f"{topic_path(topic)}/partitions", {"force": "true"} if force else None)

    def delete_unpartitioned(self, topic: str, *, force: bool = False) -> bool:
        """Delete a topic without partitions; see `delete`."""
        return self._http.remove(topic_path(topic), {"force": "true"} if force else None)

    def list_partitioned(self, namespace: str) -> tuple[str, ...]:
        """The namespace's partitioned topics, without suffixes."""
        return tuple(self._http.get(f"/persistent/{namespace_path(namespace)}/partitioned"))

    def list(self, namespace: str) -> tuple[str, ...]:
        """All persistent topics of a namespace: each partition, and those without partitions."""
        return tuple(self._http.get(f"/persistent/{namespace_path(namespace)}"))

    def properties(self, topic: str) -> dict[str, str]:
        """What somebody noted beside a topic, partitioned or not.

        Raises:
            AdminMissing: There is no such topic; or the broker is older than 2.11 and keeps none.
        """
        return dict(self._http.get(f"{topic_path(topic)}/properties") or {})

    def update_properties(self, topic: str, properties: Mapping[str, str]) -> None:
        """Note these beside a topic, partitioned or not; what is noted under other names stays.

        Raises:
            AdminError: As `properties`.
        """
        self._http.call("PUT", f"{topic_path(topic)}/properties", body=dict(properties))

    def terminate(self, topic: str) -> dict[int, EntryPosition]:
        """End a partitioned topic: sends are refused from now on, what it holds is still delivered.

        Returns:
            The last position in each partition; entry -1: an empty one.
        """
        ends = read_json(self._http.call("POST", f"{topic_path(topic)}/terminate/partitions"))
        return {int(partition): EntryPosition(end["ledgerId"], end["entryId"]) for partition, end in ends.items()}

    def unload(self, topic: str) -> None:
        """Make the broker let go of a topic and all its partitions; it is loaded again at its next use."""
        self._http.call("PUT", f"{topic_path(topic)}/unload")

    def stats(self, topic: str, *, precise_backlog: bool = False, clients: bool = False) -> TopicStats:
        """Stats of one partition, or of a topic without partitions.

        Args:
            topic: Full name; that of a partitioned topic itself is not found: see `partitioned_stats`.
            precise_backlog: Have the broker walk the cursors for the backlog.
            clients: Also producers and consumers.
        """
        query = stats_query(precise_backlog=precise_backlog, clients=clients)
        return read_topic_stats(self._http.get(f"{topic_path(topic)}/stats", query), clients=clients)

    def partitioned_stats(
        self, topic: str, *, per_partition: bool = True, precise_backlog: bool = False, clients: bool = False
    ) -> PartitionedStats:
        """Stats of a partitioned topic, in one call.

        Args:
            topic: Full name without a suffix.
            per_partition: False: the sum only.
            precise_backlog: Have the broker walk the cursors for the backlog.
            clients: Also producers and consumers.
        """
        query = stats_query(precise_backlog=precise_backlog, clients=clients)
        query["perPartition"] = "true" if per_partition else "false"
        return read_partitioned_stats(self._http.get(f"{topic_path(topic)}/partitioned-stats", query), clients=clients)

    def service_url(self, topic: str) -> str | None:
        """Where the broker that serves a partition speaks its own protocol: with TLS if this client's URL is of HTTPS,
        else without if it can; None: it tells of no such place.
        """
        found = self._http.get(topic_path(topic), base=LOOKUP)
        secure = found.get("brokerUrlTls")
        url: str | None = secure if self._http.is_secure else found.get("brokerUrl") or secure
        return url

    def internal_stats(self, topic: str) -> InternalStats:
        """How one partition, or a topic without partitions, lies on disk. Its answer grows with the gaps."""
        return read_internal_stats(self._http.get(f"{topic_path(topic)}/internalStats"))

    def partitioned_internal_stats(self, topic: str) -> dict[str, InternalStats]:
        """How each partition lies on disk, by its full name, in one call."""
        stored = self._http.get(f"{topic_path(topic)}/partitioned-internalStats")
        return {
            name: read_internal_stats(partition) for name, partition in sorted(stored.get("partitions", {}).items())
        }

    def last_position(self, topic: str) -> EntryPosition:
        """The last entry of one partition, or of a topic without partitions; entry -1: it is empty."""
        found = self._http.get(f"{topic_path(topic)}/lastMessageId")
        return EntryPosition(found["ledgerId"], found["entryId"])

    def position_at(self, topic: str, at_ms: int) -> EntryPosition:
        """Where the entries begin that were published at a time or later, in one partition; one call.

        The broker searches by halving, so it looks at some of its entries: 17 of 100,000. Where publish times are not
        in order, since clocks of producers differ, it is near.

        Args:
            topic: A partition, or a topic without partitions.
            at_ms: UTC milliseconds.

        Returns:
            The position may be one behind the last entry.
        """
        found = self._http.get(f"{topic_path(topic)}/messageid/{at_ms}")
        return EntryPosition(found["ledgerId"], found["entryId"])

    def entry(self, topic: str, position: EntryPosition) -> StoredEntry:
        """Look at one stored entry of a partition; nothing is consumed.

        Raises:
            AdminMissing: No such entry, or not yet.
            AdminError: It cannot be opened, its metadata cannot be read, or no answer came that it could be read from.
        """
        try:
            found = None if self._entries is None else self._entries.entry(topic, position)
            if found is None:
                found = self._peeked(topic, position)
        except AdminUnreachable as error:
            self._unanswered += 1
            if not error.sent or self._unanswered >= MAX_UNANSWERED:
                raise
            raise AdminError(None, error.endpoint, f"the entry cannot be read: {error.reason}") from error
        except AdminError:
            self._unanswered = 0
            raise
        self._unanswered = 0
        return found

    def _peeked(self, topic: str, position: EntryPosition) -> StoredEntry:
        path = f"{topic_path(topic)}/ledger/{position.ledger}/entry/{position.entry}"
        try:
            # WRITE, though it reads: here a 500 says that the entry is not there, and asking again says it again.
            return read_entry(self._http.call("GET", path, repeat=Repeat.WRITE))
        except AdminError as error:
            if _NOT_WRITTEN_YET in error.reason:
                raise AdminMissing(error.status, error.endpoint, error.reason) from error
            raise


class Subscriptions:
    """Verbs on subscriptions. Given a partitioned topic they count for all its partitions."""

    def __init__(self, http: AdminHttp) -> None:
        self._http = http

    def create(self, topic: str, subscription: str, *, start: Literal["earliest", "latest"] = "earliest") -> bool:
        """Create a durable subscription, on the partitions that lack it.

        Args:
            topic: Full name; it must exist.
            subscription: Its name.
            start: Where it begins: before all that the topic holds, or after.

        Returns:
            False if it was on every partition already; its position is left as it is.

        Raises:
            AdminMissing: There is no such topic. (Asked for first: brokers with topic auto-creation would make one
                without partitions out of this call.)
        """
        self._http.get(f"{topic_path(topic)}/partitions")
        return self._http.make(subscription_path(topic, subscription), body=_START[start])

    def list(self, topic: str) -> tuple[str, ...]:
        """Names of the topic's subscriptions."""
        return tuple(self._http.get(f"{topic_path(topic)}/subscriptions"))

    def delete(self, topic: str, subscription: str, *, force: bool = False) -> bool:
        """Delete a subscription with its backlog.

        Args:
            topic: Full name.
            subscription: Its name.
            force: Disconnect its consumers; else they make the broker refuse (412).

        Returns:
            False if there is no such subscription or topic.
        """
        return self._http.remove(subscription_path(topic, subscription), {"force": "true"} if force else None)

    def clear(self, topic: str, subscription: str) -> None:
        """Acknowledge the whole backlog, delayed messages included, without delivering it."""
        self._http.call("POST", f"{subscription_path(topic, subscription)}/skip_all")

    def skip(self, topic: str, subscription: str, messages: int) -> None:
        """Acknowledge the next so many entries of one partition without delivering them.

        Not repeated when its answer is lost: it would skip again.
        """
        path = f"{subscription_path(topic, subscription)}/skip/{messages}"
        self._http.call("POST", path, repeat=Repeat.NEVER)
