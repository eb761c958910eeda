"""Topics and their subscriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from timewheel.broker.admin.entries import EntrySource, StoredEntry, read_entry
from timewheel.broker.admin.http import LOOKUP, AdminHttp, Repeat
from timewheel.broker.admin.names import namespace_path, subscription_path, topic_path
from timewheel.broker.admin.stats import (
    InternalStats,
    PartitionedStats,
    TopicStats,
    read_internal_stats,
    read_partitioned_stats,
    read_topic_stats,
    stats_query,
)
from timewheel.client.positions import EntryPosition
from timewheel.core.errors import AdminError, AdminMissing, AdminUnreachable, OwnerUnreachable

_START = {
    "earliest": {"ledgerId": -1, "entryId": -1, "partitionIndex": -1},
    "latest": {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1},
}
MAX_UNANSWERED = 16
"""Limit of consecutive entry reads without an answer: below it, only that entry counts as unreadable."""
_NOT_WRITTEN_YET = "LastConfirmedEntry is"


def _existing(http: AdminHttp, topic: str) -> str:
    """Return the path of a topic; AdminMissing if it does not exist. This question does not harm a namespace that is
    created later (broker-facts: bundles-of-a-missing-namespace).
    """
    path = topic_path(topic)
    http.get(f"{path}/partitions")
    return path


class Topics:
    """Operations on topics. Names are in full: ``persistent://tenant/namespace/topic``, or its ``...-partition-N``.

    Timewheel's own topics are partitioned (broker-facts: failover-and-takeover); the methods with ``unpartitioned`` in
    their names are for due topics without partitions, and for topics of other programs.
    """

    def __init__(self, http: AdminHttp, entries: EntrySource | None = None) -> None:
        self._http = http
        self._entries = entries
        self._unanswered = 0  # without a lock: what threads count at once and is lost costs another look

    def create(self, topic: str, partitions: int) -> bool:
        """Create a partitioned topic with all its partitions.

        Returns:
            False if a topic of that name exists already, of any kind and count: see `partitions`.

        Raises:
            AdminMissing: The tenant or namespace does not exist.
        """
        if partitions < 1:
            raise ValueError(f"a partitioned topic has at least 1 partition, not {partitions}")
        return self._http.make(f"{topic_path(topic)}/partitions", body=partitions)

    def create_unpartitioned(self, topic: str) -> bool:
        """Create a topic without partitions; False if a topic of that name exists already."""
        return self._http.make(topic_path(topic))

    def partitions(self, topic: str) -> int | None:
        """Return the number of partitions: 0 for a topic without partitions, None if the topic does not exist."""
        try:
            metadata = self._http.get(f"{topic_path(topic)}/partitions")
        except AdminMissing:
            return None
        return int(metadata["partitions"])

    def update_partitions(self, topic: str, partitions: int) -> None:
        """Raise the number of partitions, with their subscriptions. To lower it is an AdminError of status 422."""
        self._http.call("POST", f"{topic_path(topic)}/partitions", body=partitions)

    def create_missed_partitions(self, topic: str) -> None:
        """Create the partitions that the metadata names and that do not exist, as after a half failed creation."""
        self._http.call("POST", f"{topic_path(topic)}/createMissedPartitions")

    def delete(self, topic: str, *, force: bool = False) -> bool:
        """Delete a partitioned topic with its subscriptions and their backlogs; False if it does not exist.

        Unless it is forced, the broker refuses while clients are connected (412); a backlog does not matter. Never
        force it under a living producer: its next send would succeed into a new topic without subscriptions
        (broker-facts: removing-a-topic).
        """
        query = {"force": "true"} if force else None
        return self.partitions(topic) is not None and self._http.remove(f"{topic_path(topic)}/partitions", query)

    def delete_unpartitioned(self, topic: str, *, force: bool = False) -> bool:
        """Delete a topic without partitions; see `delete`."""
        query = {"force": "true"} if force else None
        return self.partitions(topic) is not None and self._http.remove(topic_path(topic), query)

    def list_partitioned(self, namespace: str) -> tuple[str, ...]:
        """List the namespace's partitioned topics, without suffixes."""
        return tuple(self._http.get(f"/persistent/{namespace_path(namespace)}/partitioned"))

    def list(self, namespace: str) -> tuple[str, ...]:
        """List all persistent topics of a namespace: each partition, and the topics without partitions."""
        return tuple(self._http.get(f"/persistent/{namespace_path(namespace)}"))

    def properties(self, topic: str) -> dict[str, str]:
        """Return the properties of a topic, partitioned or not.

        Raises:
            AdminMissing: The topic does not exist, or the broker is older than 2.11 and stores no properties.
        """
        return dict(self._http.get(f"{_existing(self._http, topic)}/properties") or {})

    def update_properties(self, topic: str, properties: Mapping[str, str]) -> None:
        """Set these properties of a topic, partitioned or not; other properties stay. Raises as `properties`."""
        self._http.call("PUT", f"{_existing(self._http, topic)}/properties", body=dict(properties))

    def terminate(self, topic: str) -> dict[int, EntryPosition]:
        """Terminate a partitioned topic: sends are refused from now on, its messages are still delivered.

        Returns:
            The last position in each partition; entry -1: the partition is empty.
        """
        ends = self._http.read_json(self._http.call("POST", f"{topic_path(topic)}/terminate/partitions"))
        return {int(partition): EntryPosition(end["ledgerId"], end["entryId"]) for partition, end in ends.items()}

    def unload(self, topic: str) -> None:
        """Make the broker unload a topic and all its partitions; it is loaded again at its next use."""
        self._http.call("PUT", f"{topic_path(topic)}/unload")

    def stats(self, topic: str, *, precise_backlog: bool = False, clients: bool = False) -> TopicStats:
        """Return the stats of a partition, or of a topic without partitions; see `partitioned_stats` for a whole topic.

        Args:
            topic: Full name.
            precise_backlog: Make the broker walk the cursors for the backlog.
            clients: Also return producers and consumers.
        """
        query = stats_query(precise_backlog=precise_backlog, clients=clients)
        return read_topic_stats(self._http.get(f"{topic_path(topic)}/stats", query), clients=clients)

    def partitioned_stats(
        self, topic: str, *, per_partition: bool = True, precise_backlog: bool = False, clients: bool = False
    ) -> PartitionedStats:
        """Return the stats of a partitioned topic in one call, or the sum only; arguments as for `stats`."""
        query = stats_query(precise_backlog=precise_backlog, clients=clients)
        query["perPartition"] = "true" if per_partition else "false"
        return read_partitioned_stats(self._http.get(f"{topic_path(topic)}/partitioned-stats", query), clients=clients)

    def service_url(self, topic: str) -> str | None:
        """Return the service URL of the broker that serves a partition; None: the broker advertises no such URL.

        It is one with TLS if this client's URL uses HTTPS, else one without if the broker has it.
        """
        found = self._http.get(topic_path(topic), base=LOOKUP)
        secure = found.get("brokerUrlTls")
        url: str | None = secure if self._http.is_secure else found.get("brokerUrl") or secure
        return url

    def internal_stats(self, topic: str) -> InternalStats:
        """Return the internal stats of a partition, or of a topic without partitions; they grow with the gaps."""
        return read_internal_stats(self._http.get(f"{topic_path(topic)}/internalStats"))

    def partitioned_internal_stats(self, topic: str) -> dict[str, InternalStats]:
        """Return the internal stats of each partition, by its full name, in one call."""
        stored = self._http.get(f"{topic_path(topic)}/partitioned-internalStats")
        return {
            name: read_internal_stats(partition) for name, partition in sorted(stored.get("partitions", {}).items())
        }

    def last_position(self, topic: str) -> EntryPosition:
        """Return the last entry's position in a partition, or in a topic without partitions; entry -1: it is empty."""
        found = self._http.get(f"{_existing(self._http, topic)}/lastMessageId")
        return EntryPosition(found["ledgerId"], found["entryId"])

    def position_at(self, topic: str, at_ms: int) -> EntryPosition:
        """Return the position of the first entry of a partition that was published at a time (UTC milliseconds) or
        later.

        A single call, in which the broker searches by halving, so it reads some of its entries: 17 of 100,000. If
        publish times are not in order, because the clocks of producers differ, the position is approximate. It may be
        directly behind the last entry.
        """
        found = self._http.get(f"{topic_path(topic)}/messageid/{at_ms}")
        return EntryPosition(found["ledgerId"], found["entryId"])

    def entry(self, topic: str, position: EntryPosition) -> StoredEntry:
        """Read a stored entry of a partition; nothing is consumed.

        Raises:
            AdminMissing: The entry does not exist, or not yet.
            AdminError: The entry cannot be opened, its metadata cannot be read, or no readable answer came.
        """
        try:
            found = None if self._entries is None else self._entries.entry(topic, position)
            if found is None:
                found = self._peeked(topic, position)
        except (AdminUnreachable, OwnerUnreachable) as error:
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
            # WRITE, though it reads: a 500 means here that the entry does not exist, and a second call would return it
            # again.
            return read_entry(self._http.call("GET", path, repeat=Repeat.WRITE))
        except AdminError as error:
            if _NOT_WRITTEN_YET in error.reason:
                raise AdminMissing(error.status, error.endpoint, error.reason) from error
            raise


class Subscriptions:
    """Operations on subscriptions. For a partitioned topic they apply to all its partitions."""

    def __init__(self, http: AdminHttp) -> None:
        self._http = http

    def create(self, topic: str, subscription: str, *, start: Literal["earliest", "latest"] = "earliest") -> bool:
        """Create a durable subscription before all messages of an existing topic or behind them, on partitions that
        lack it.

        Returns:
            False if it existed on every partition already; its position stays as it is.

        Raises:
            AdminMissing: The topic does not exist. (Checked first: brokers with topic auto-creation would create one
                without partitions by this call.)
        """
        _existing(self._http, topic)
        return self._http.make(subscription_path(topic, subscription), body=_START[start])

    def list(self, topic: str) -> tuple[str, ...]:
        """Return the names of the topic's subscriptions."""
        return tuple(self._http.get(f"{topic_path(topic)}/subscriptions"))

    def delete(self, topic: str, subscription: str, *, force: bool = False) -> bool:
        """Delete a subscription with its backlog; False if it or the topic does not exist.

        Unless it is forced, the broker refuses while consumers are connected (412).
        """
        return self._http.remove(subscription_path(topic, subscription), {"force": "true"} if force else None)

    def clear(self, topic: str, subscription: str) -> None:
        """Acknowledge the whole backlog, delayed messages included, without delivering it."""
        self._http.call("POST", f"{subscription_path(topic, subscription)}/skip_all")

    def skip(self, topic: str, subscription: str, messages: int) -> None:
        """Acknowledge the next entries of a partition, this many, without delivering them.

        The call is not repeated when its answer is lost: it would skip again.
        """
        path = f"{subscription_path(topic, subscription)}/skip/{messages}"
        self._http.call("POST", path, repeat=Repeat.NEVER)
