"""Policies of topics and namespaces as values, and how each is written on the wire.

A policy on a topic beats its namespace's, which beats the broker's setting (broker-facts: policies-of-topics).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

__all__ = [
    "AGE_QUOTA",
    "COMPACTION_BYTES",
    "DEDUPLICATION",
    "DELAYED_DELIVERY",
    "INACTIVE_TOPIC",
    "KEEP_INACTIVE",
    "MAX_MESSAGE_BYTES",
    "MAX_UNACKED_PER_CONSUMER",
    "MAX_UNACKED_PER_SUBSCRIPTION",
    "MESSAGE_TTL_S",
    "NO_QUOTA",
    "PAUSE_ON_ACK_STATE",
    "PERSISTENCE",
    "POLICIES",
    "REPLICATION_CLUSTERS",
    "RETENTION",
    "SIZE_QUOTA",
    "SUBSCRIPTION_EXPIRY_MIN",
    "BacklogQuota",
    "DelayedDelivery",
    "InactiveTopic",
    "Level",
    "Persistence",
    "Policy",
    "Retention",
]

T = TypeVar("T")

Level = Literal["topic", "namespace"]
QuotaAction = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]

UNLIMITED: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogQuota:
    """What the broker does once a backlog is too big or too old.

    Args:
        limit_bytes: Counts for `SIZE_QUOTA`; -1: no limit.
        limit_s: Counts for `AGE_QUOTA`; -1: no limit.
        action: The first two block producers; the last one drops messages.
    """

    limit_bytes: int = UNLIMITED
    limit_s: int = UNLIMITED
    action: QuotaAction = "producer_request_hold"


@dataclass(frozen=True, slots=True, kw_only=True)
class InactiveTopic:
    """Whether the broker deletes a topic that nobody uses.

    Args:
        delete: ``deleteWhileInactive``.
        after_s: Seconds of inactivity before it does.
        mode: Which topics count as inactive.
    """

    delete: bool
    after_s: int = 60
    mode: Literal["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"] = (
        "delete_when_no_subscriptions"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long acknowledged messages are kept; 0: not at all, -1: no limit."""

    time_min: int
    size_mb: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedDelivery:
    """Whether the broker delays at all, and how finely.

    Args:
        active: If false, delayed messages are delivered at once.
        tick_ms: Milliseconds; messages are up to a tick early or late.
        max_delay_ms: Longest delay that is taken from a producer; 0: no limit.
    """

    active: bool
    tick_ms: int = 1_000
    max_delay_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistence:
    """On how many bookies entries lie; 0 anywhere: the broker's setting.

    Args:
        ensemble: Bookies that a ledger is spread over.
        write_quorum: Copies of each entry.
        ack_quorum: Copies that must be written before a send is confirmed.
        mark_deletes_per_s: How often a cursor is written at the most.
    """

    ensemble: int
    write_quorum: int
    ack_quorum: int
    mark_deletes_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(Generic[T]):
    """One policy: where it lies in the admin API, and its value as JSON.

    Args:
        name: Its endpoint below a topic; None: there is no topic level.
        namespace_name: Its endpoint below a namespace; empty: there is no namespace level.
        document_key: Its key in a namespace's policies.
        encode: Value to JSON.
        decode: JSON to value.
        quota: Which of the two backlog quotas.
        topic_query: The topic level takes the value in the query, not as a body.
    """

    name: str | None
    namespace_name: str
    document_key: str
    encode: Callable[[T], Any]
    decode: Callable[[Any], T]
    quota: str | None = None
    topic_query: bool = False

    def __str__(self) -> str:
        return f"{self.name or self.namespace_name}{f' ({self.quota})' if self.quota else ''}"

    def read(self, stored: Any) -> T | None:
        """The value from what a GET returned; None if it is not set at that level."""
        if self.quota is not None and isinstance(stored, Mapping):
            stored = stored.get(self.quota)
        return None if stored is None else self.decode(stored)


def _quota_json(quota: BacklogQuota) -> Any:
    return {"limitSize": quota.limit_bytes, "limitTime": quota.limit_s, "policy": quota.action}


def _quota(stored: Any) -> BacklogQuota:
    size = stored.get("limitSize", stored.get("limit", UNLIMITED))  # before 2.9 it was called limit
    return BacklogQuota(limit_bytes=size, limit_s=stored.get("limitTime", UNLIMITED), action=stored["policy"])


def _quota_policy(kind: str) -> Policy[BacklogQuota]:
    return Policy(
        name="backlogQuota",
        namespace_name="backlogQuota",
        document_key="backlog_quota_map",
        encode=_quota_json,
        decode=_quota,
        quota=kind,
    )


MESSAGE_TTL_S: Final[Policy[int]] = Policy(
    name="messageTTL",
    namespace_name="messageTTL",
    document_key="message_ttl_in_seconds",
    encode=int,
    decode=int,
    topic_query=True,
)
"""Seconds from publish after which a message is dropped, delayed or not; 0: never."""

SIZE_QUOTA: Final = _quota_policy("destination_storage")
AGE_QUOTA: Final = _quota_policy("message_age")
NO_QUOTA: Final = BacklogQuota()

INACTIVE_TOPIC: Final[Policy[InactiveTopic]] = Policy(
    name="inactiveTopicPolicies",
    namespace_name="inactiveTopicPolicies",
    document_key="inactive_topic_policies",
    encode=lambda value: {
        "deleteWhileInactive": value.delete,
        "maxInactiveDurationSeconds": value.after_s,
        "inactiveTopicDeleteMode": value.mode,
    },
    decode=lambda stored: InactiveTopic(
        delete=stored["deleteWhileInactive"],
        after_s=stored["maxInactiveDurationSeconds"],
        mode=stored["inactiveTopicDeleteMode"],
    ),
)
KEEP_INACTIVE: Final = InactiveTopic(delete=False)

DEDUPLICATION: Final[Policy[bool]] = Policy(
    name="deduplicationEnabled",
    namespace_name="deduplication",
    document_key="deduplicationEnabled",
    encode=bool,
    decode=bool,
)
"""Set is not yet in force: a loaded topic switches a moment later; see `TopicStats.deduplication`."""

RETENTION: Final[Policy[Retention]] = Policy(
    name="retention",
    namespace_name="retention",
    document_key="retention_policies",
    encode=lambda value: {"retentionTimeInMinutes": value.time_min, "retentionSizeInMB": value.size_mb},
    decode=lambda stored: Retention(time_min=stored["retentionTimeInMinutes"], size_mb=stored["retentionSizeInMB"]),
)

DELAYED_DELIVERY: Final[Policy[DelayedDelivery]] = Policy(
    name="delayedDelivery",
    namespace_name="delayedDelivery",
    document_key="delayed_delivery_policies",
    encode=lambda value: {
        "active": value.active,
        "tickTime": value.tick_ms,
        "maxDeliveryDelayInMillis": value.max_delay_ms,
    },
    decode=lambda stored: DelayedDelivery(
        active=stored["active"],
        tick_ms=stored["tickTime"],
        max_delay_ms=stored.get("maxDeliveryDelayInMillis", 0),  # new in 3.x
    ),
)

MAX_UNACKED_PER_CONSUMER: Final[Policy[int]] = Policy(
    name="maxUnackedMessagesOnConsumer",
    namespace_name="maxUnackedMessagesPerConsumer",
    document_key="max_unacked_messages_per_consumer",
    encode=int,
    decode=int,
)
"""Messages that a consumer may hold unacknowledged; 0: no limit. Bounds the local hold
(broker-facts: bounded-local-hold)."""

SUBSCRIPTION_EXPIRY_MIN: Final[Policy[int]] = Policy(
    name=None,
    namespace_name="subscriptionExpirationTime",
    document_key="subscription_expiration_time_minutes",
    encode=int,
    decode=int,
)
"""Minutes after which an unused subscription is removed, with its backlog; 0: never. It has no topic level."""

MAX_UNACKED_PER_SUBSCRIPTION: Final[Policy[int]] = Policy(
    name="maxUnackedMessagesOnSubscription",
    namespace_name="maxUnackedMessagesPerSubscription",
    document_key="max_unacked_messages_per_subscription",
    encode=int,
    decode=int,
)
"""The same for all consumers of a subscription together."""

PERSISTENCE: Final[Policy[Persistence]] = Policy(
    name="persistence",
    namespace_name="persistence",
    document_key="persistence",
    encode=lambda value: {
        "bookkeeperEnsemble": value.ensemble,
        "bookkeeperWriteQuorum": value.write_quorum,
        "bookkeeperAckQuorum": value.ack_quorum,
        "managedLedgerMaxMarkDeleteRate": value.mark_deletes_per_s,
    },
    decode=lambda stored: Persistence(
        ensemble=stored["bookkeeperEnsemble"],
        write_quorum=stored["bookkeeperWriteQuorum"],
        ack_quorum=stored["bookkeeperAckQuorum"],
        mark_deletes_per_s=stored["managedLedgerMaxMarkDeleteRate"],
    ),
)
"""Counts for ledgers that are opened from now on."""

PAUSE_ON_ACK_STATE: Final[Policy[bool]] = Policy(
    name="dispatcherPauseOnAckStatePersistent",
    namespace_name="dispatcherPauseOnAckStatePersistent",
    document_key="dispatcherPauseOnAckStatePersistentEnabled",
    encode=lambda _: None,
    decode=bool,
)
"""At the limit on gaps deliver nothing more, rather than forget what was acknowledged. Set without a value: it is on.
Of a topic without it brokers say False: only what is in force can be known there."""

MAX_MESSAGE_BYTES: Final[Policy[int]] = Policy(
    name="maxMessageSize",
    namespace_name="",
    document_key="",
    encode=int,
    decode=int,
)
"""The largest message that is taken; it can only be lower than the broker's ``maxMessageSize``. No namespace level."""

COMPACTION_BYTES: Final[Policy[int]] = Policy(
    name="compactionThreshold",
    namespace_name="compactionThreshold",
    document_key="compaction_threshold",
    encode=int,
    decode=int,
)
"""From a backlog of so many bytes on the broker compacts the topic; 0: never by itself."""

REPLICATION_CLUSTERS: Final[Policy[tuple[str, ...]]] = Policy(
    name="replication",
    namespace_name="replication",
    document_key="replication_clusters",
    encode=list,
    decode=tuple,
)
"""Where the topic is replicated to, its own cluster included."""

POLICIES: Final[tuple[Policy[Any], ...]] = (
    MESSAGE_TTL_S,
    SIZE_QUOTA,
    AGE_QUOTA,
    INACTIVE_TOPIC,
    DEDUPLICATION,
    RETENTION,
    DELAYED_DELIVERY,
    MAX_UNACKED_PER_CONSUMER,
    SUBSCRIPTION_EXPIRY_MIN,
    MAX_UNACKED_PER_SUBSCRIPTION,
    PERSISTENCE,
)
"""The policies of which a broker tells what is in force, and whether it is set. The others that are known here are only
read, or of them it tells one of both."""
