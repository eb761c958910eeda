"""Policies of topics and namespaces as values, with their encoding in the admin API.

A policy on a topic overrides its namespace's, which overrides the broker's setting (broker-facts: policies-of-topics).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

T = TypeVar("T")

Level = Literal["topic", "namespace"]
QuotaAction = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]

UNLIMITED: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogQuota:
    """The broker's action once a backlog is too large or too old.

    Args:
        limit_bytes: Applies to `SIZE_QUOTA`; -1: no limit.
        limit_s: Applies to `AGE_QUOTA`; -1: no limit.
        action: The first two block producers; the last one drops messages.
    """

    limit_bytes: int = UNLIMITED
    limit_s: int = UNLIMITED
    action: QuotaAction = "producer_request_hold"


@dataclass(frozen=True, slots=True, kw_only=True)
class InactiveTopic:
    """Deletion of unused topics by the broker.

    Args:
        delete: ``deleteWhileInactive``.
        after_s: Seconds of inactivity before the deletion.
        mode: Which topics count as inactive.
    """

    delete: bool
    after_s: int = 60
    mode: Literal["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"] = (
        "delete_when_no_subscriptions"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Retention of acknowledged messages; 0: none, -1: no limit."""

    time_min: int
    size_mb: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedDelivery:
    """Delayed delivery by the broker, and its precision.

    Args:
        active: If false, delayed messages are delivered at once.
        tick_ms: Milliseconds; messages are up to a tick early or late.
        max_delay_ms: Longest delay that is accepted from a producer; 0: no limit.
    """

    active: bool
    tick_ms: int = 1_000
    max_delay_ms: int = 0

    def refuses(self, delay_ms: int) -> bool:
        """Return whether the broker refuses messages with such a delay."""
        return 0 < self.max_delay_ms < delay_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistence:
    """The bookies on which entries are stored; 0 anywhere: the broker's setting.

    Args:
        ensemble: Bookies that a ledger is spread over.
        write_quorum: Copies of each entry.
        ack_quorum: Copies that must be written before a send is confirmed.
        mark_deletes_per_s: Limit of cursor writes per second.
    """

    ensemble: int
    write_quorum: int
    ack_quorum: int
    mark_deletes_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(Generic[T]):
    """A policy: its endpoints in the admin API, and the encoding of its value as JSON.

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
        """Parse the value in the answer of a GET; None if it is not set at that level."""
        if self.quota is not None and isinstance(stored, Mapping):
            stored = stored.get(self.quota)
        return None if stored is None else self.decode(stored)


def _quota_json(quota: BacklogQuota) -> Any:
    return {"limitSize": quota.limit_bytes, "limitTime": quota.limit_s, "policy": quota.action}


def _quota(stored: Any) -> BacklogQuota:
    size = stored.get("limitSize", stored.get("limit", UNLIMITED))  # called limit before 2.9
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
"""A set value is not yet in force: a loaded topic switches a moment later; see `TopicStats.deduplication`."""

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
"""Limit of unacknowledged messages of a consumer; 0: no limit. Bounds the local hold
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
"""Limit of unacknowledged messages of all consumers of a subscription together; 0: no limit."""

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
"""Applies to ledgers that are opened from now on."""

PAUSE_ON_ACK_STATE: Final[Policy[bool]] = Policy(
    name="dispatcherPauseOnAckStatePersistent",
    namespace_name="dispatcherPauseOnAckStatePersistent",
    document_key="dispatcherPauseOnAckStatePersistentEnabled",
    encode=lambda _: None,
    decode=bool,
)
"""At the limit on gaps, stop delivery rather than forget acknowledgements. Setting it needs no value: it is on then.
For a topic without this policy brokers return False: only the value in force can be read there."""

MAX_MESSAGE_BYTES: Final[Policy[int]] = Policy(
    name="maxMessageSize",
    namespace_name="",
    document_key="",
    encode=int,
    decode=int,
)
"""The largest accepted message; it can only be lower than the broker's ``maxMessageSize``. No namespace level."""

COMPACTION_BYTES: Final[Policy[int]] = Policy(
    name="compactionThreshold",
    namespace_name="compactionThreshold",
    document_key="compaction_threshold",
    encode=int,
    decode=int,
)
"""Backlog in bytes from which the broker compacts the topic; 0: never by itself."""

REPLICATION_CLUSTERS: Final[Policy[tuple[str, ...]]] = Policy(
    name="replication",
    namespace_name="replication",
    document_key="replication_clusters",
    encode=list,
    decode=tuple,
)
"""Clusters that the topic is replicated to, its own cluster included."""

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
"""The policies for which a broker returns both the value in force and the value that is set. Of the other policies here
it returns only one of them, or they are only read."""
