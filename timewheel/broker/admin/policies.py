"""Policies of topics and namespaces as values, with their encoding in the admin API.

A policy on a topic overrides its namespace's, which overrides the broker's setting (broker-facts: policies-of-topics).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

from timewheel.broker.admin.http import AdminHttp
from timewheel.broker.admin.names import topic_path
from timewheel.core.clock import Clock, pause
from timewheel.core.errors import TopologyError

T = TypeVar("T")

Level = Literal["topic", "namespace"]
QuotaAction = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]

UNLIMITED: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogQuota:
    """The broker's action once a backlog is too large or too old."""

    limit_bytes: int = UNLIMITED  # applies to `SIZE_QUOTA`; -1: no limit
    limit_s: int = UNLIMITED  # applies to `AGE_QUOTA`; -1: no limit
    action: QuotaAction = "producer_request_hold"  # the first two block producers; the last one drops messages


@dataclass(frozen=True, slots=True, kw_only=True)
class InactiveTopic:
    """Deletion of unused topics by the broker."""

    delete: bool  # `deleteWhileInactive`
    after_s: int = 60  # seconds of inactivity before the deletion
    # which topics count as inactive
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
    """Delayed delivery by the broker, and its precision."""

    active: bool  # if false, delayed messages are delivered at once
    tick_ms: int = 1_000  # milliseconds; messages are up to a tick early or late
    max_delay_ms: int = 0  # longest delay that is accepted from a producer; 0: no limit

    def refuses(self, delay_ms: int) -> bool:
        """Return whether the broker refuses messages with such a delay."""
        return 0 < self.max_delay_ms < delay_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistence:
    """The bookies on which entries are stored; 0 anywhere: the broker's setting."""

    ensemble: int  # bookies that a ledger is spread over
    write_quorum: int  # copies of each entry
    ack_quorum: int  # copies that must be written before a send is confirmed
    mark_deletes_per_s: float = 0.0  # limit of cursor writes per second


@dataclass(frozen=True, slots=True)
class Policy(Generic[T]):
    """A policy: its endpoints in the admin API, and the encoding of its value as JSON."""

    name: str | None  # its endpoint below a topic; None: there is no topic level
    namespace_name: str  # its endpoint below a namespace; empty: there is no namespace level
    document_key: str  # its key in a namespace's policies
    encode: Callable[[T], Any]  # value to JSON
    decode: Callable[[Any], T]  # JSON to value
    quota: str | None = None  # which of the two backlog quotas
    topic_query: bool = False  # the topic level takes the value in the query, not as a body

    def __str__(self) -> str:
        return f"{self.name or self.namespace_name}{f' ({self.quota})' if self.quota else ''}"

    @property
    def query(self) -> dict[str, str] | None:
        """The query that selects it, beside its endpoint."""
        return None if self.quota is None else {"backlogQuotaType": self.quota}

    def read(self, stored: Any) -> T | None:
        """Parse the value in the answer of a GET; None if it is not set at that level."""
        if self.quota is not None and isinstance(stored, Mapping):
            stored = stored.get(self.quota)
        return None if stored is None else self.decode(stored)


def _object(
    make: Callable[..., T], optional: str = "", /, **keys: str
) -> tuple[Callable[[T], Any], Callable[[Any], T]]:
    """Return how a value is encoded and decoded as JSON, by the key of each field; old brokers lack one of them."""
    return (
        lambda value: {key: getattr(value, name) for name, key in keys.items()},
        lambda stored: make(**{name: stored[key] for name, key in keys.items() if key in stored or name != optional}),
    )


_encode_quota, _decode_quota = _object(
    BacklogQuota, "limit_s", limit_bytes="limitSize", limit_s="limitTime", action="policy"
)


def _quota_policy(kind: str) -> Policy[BacklogQuota]:
    def decode(stored: Any) -> BacklogQuota:
        return _decode_quota({"limitSize": stored.get("limit", UNLIMITED), **stored})  # called limit before 2.9

    return Policy("backlogQuota", "backlogQuota", "backlog_quota_map", _encode_quota, decode, quota=kind)


MESSAGE_TTL_S: Final[Policy[int]] = Policy(
    "messageTTL", "messageTTL", "message_ttl_in_seconds", int, int, topic_query=True
)
"""Seconds from publish after which a message is dropped, delayed or not; 0: never."""

SIZE_QUOTA: Final = _quota_policy("destination_storage")
AGE_QUOTA: Final = _quota_policy("message_age")
NO_QUOTA: Final = BacklogQuota()

INACTIVE_TOPIC: Final[Policy[InactiveTopic]] = Policy(
    "inactiveTopicPolicies",
    "inactiveTopicPolicies",
    "inactive_topic_policies",
    *_object(
        InactiveTopic,
        delete="deleteWhileInactive",
        after_s="maxInactiveDurationSeconds",
        mode="inactiveTopicDeleteMode",
    ),
)
KEEP_INACTIVE: Final = InactiveTopic(delete=False)

DEDUPLICATION: Final[Policy[bool]] = Policy("deduplicationEnabled", "deduplication", "deduplicationEnabled", bool, bool)
"""A set value is not yet in force: a loaded topic switches a moment later; see `TopicStats.deduplication`."""

RETENTION: Final[Policy[Retention]] = Policy(
    "retention",
    "retention",
    "retention_policies",
    *_object(Retention, time_min="retentionTimeInMinutes", size_mb="retentionSizeInMB"),
)

DELAYED_DELIVERY: Final[Policy[DelayedDelivery]] = Policy(
    "delayedDelivery",
    "delayedDelivery",
    "delayed_delivery_policies",
    # The maximum is new in 3.x.
    *_object(
        DelayedDelivery, "max_delay_ms", active="active", tick_ms="tickTime", max_delay_ms="maxDeliveryDelayInMillis"
    ),
)

MAX_UNACKED_PER_CONSUMER: Final[Policy[int]] = Policy(
    "maxUnackedMessagesOnConsumer", "maxUnackedMessagesPerConsumer", "max_unacked_messages_per_consumer", int, int
)
"""Limit of unacknowledged messages of a consumer; 0: no limit. Bounds the local hold
(broker-facts: bounded-local-hold)."""

SUBSCRIPTION_EXPIRY_MIN: Final[Policy[int]] = Policy(
    None, "subscriptionExpirationTime", "subscription_expiration_time_minutes", int, int
)
"""Minutes after which an unused subscription is removed, with its backlog; 0: never. It has no topic level."""

MAX_UNACKED_PER_SUBSCRIPTION: Final[Policy[int]] = Policy(
    "maxUnackedMessagesOnSubscription",
    "maxUnackedMessagesPerSubscription",
    "max_unacked_messages_per_subscription",
    int,
    int,
)
"""Limit of unacknowledged messages of all consumers of a subscription together; 0: no limit."""

PERSISTENCE: Final[Policy[Persistence]] = Policy(
    "persistence",
    "persistence",
    "persistence",
    *_object(
        Persistence,
        ensemble="bookkeeperEnsemble",
        write_quorum="bookkeeperWriteQuorum",
        ack_quorum="bookkeeperAckQuorum",
        mark_deletes_per_s="managedLedgerMaxMarkDeleteRate",
    ),
)
"""Applies to ledgers that are opened from now on."""

PAUSE_ON_ACK_STATE: Final[Policy[bool]] = Policy(
    "dispatcherPauseOnAckStatePersistent",
    "dispatcherPauseOnAckStatePersistent",
    "dispatcherPauseOnAckStatePersistentEnabled",
    lambda _: None,
    bool,
)
"""At the limit on gaps, stop delivery rather than forget acknowledgements. Setting it needs no value: it is on then.
For a topic without this policy brokers return False: only the value in force can be read there."""

MAX_MESSAGE_BYTES: Final[Policy[int]] = Policy("maxMessageSize", "", "", int, int)
"""The largest accepted message; it can only be lower than the broker's ``maxMessageSize``. No namespace level."""

COMPACTION_BYTES: Final[Policy[int]] = Policy(
    "compactionThreshold", "compactionThreshold", "compaction_threshold", int, int
)
"""Backlog in bytes from which the broker compacts the topic; 0: never by itself."""

REPLICATION_CLUSTERS: Final[Policy[tuple[str, ...]]] = Policy(
    "replication", "replication", "replication_clusters", list, tuple
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


DEFAULT_WAIT_S = 10.0
POLL_MS = 50


class TopicPolicies:
    """Policies on the topic itself; of a partitioned topic by its own name, never by that of a partition.

    The topic must exist. A policy travels through a system topic of its namespace, so that other brokers, and the
    loaded topic itself, apply it a moment after `set` returned: `await_value` waits for that.
    """

    def __init__(self, http: AdminHttp, clock: Clock) -> None:
        self._http = http
        self._clock = clock

    def get(self, topic: str, policy: Policy[T], *, applied: bool = False) -> T | None:
        """Return the value that is set on the topic, or None; or that in force, from topic, namespace or broker."""
        path = _path(topic, policy)
        if policy.quota is not None:
            path += "Map"  # both quotas are read at once
        return policy.read(self._http.get(path, {"applied": "true"} if applied else None))

    def set(self, topic: str, policy: Policy[T], value: T) -> None:
        """Set the policy on the topic."""
        body = policy.encode(value)
        if policy.topic_query:
            self._http.call("POST", _path(topic, policy), query={str(policy.name): str(body)})
        else:
            self._http.call("POST", _path(topic, policy), query=policy.query, body=body)

    def remove(self, topic: str, policy: Policy[Any]) -> None:
        """Remove the policy from the topic, so that its namespace's policy applies again; no error if it is not set."""
        self._http.call("DELETE", _path(topic, policy), query=policy.query)

    def await_value(
        self,
        topic: str,
        policy: Policy[T],
        value: T | None,
        *,
        timeout_s: float = DEFAULT_WAIT_S,
        applied: bool = False,
    ) -> None:
        """Read the policy until it has this value; TopologyError: it has another value when the time is over."""
        deadline_ms = self._clock.monotonic_ms() + int(timeout_s * 1000)
        while (found := self.get(topic, policy, applied=applied)) != value:
            if self._clock.monotonic_ms() >= deadline_ms:
                raise TopologyError(
                    topic,
                    f"its policy {policy} is {found!r}, not {value!r}, {timeout_s:g} s after it was set",
                    "see whether another program sets it, and whether topicLevelPoliciesEnabled is on",
                )
            pause(self._clock, POLL_MS)


def _path(topic: str, policy: Policy[Any]) -> str:
    if policy.name is None:
        raise ValueError(f"{policy} has no topic level: set it on the namespace")
    return f"{topic_path(topic)}/{policy.name}"
