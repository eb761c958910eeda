"""Settings in force on a topic, and their origin: the topic beats its namespace, which beats the broker (broker-facts:
policies-of-topics).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar, cast

from timewheel.broker.admin import policies
from timewheel.core.broker_profile import BrokerProfile
from timewheel.core.errors import ProfileError
from timewheel.core.escapes import pulsar_admin
from timewheel.inspect.doctor.seen import Seen, SeenTopic
from timewheel.provision.foreign_settings import Settings, number

T = TypeVar("T")
Place = Literal["topic", "namespace", "broker"]

GB_BYTES = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce(Generic[T]):
    """A value in force, with its origin: the level that sets it, and the topic, the namespace or ``the broker``."""

    value: T
    place: Place
    subject: str

    @property
    def where(self) -> str:
        """The origin, worded as the end of a sentence."""
        return "of the broker" if self.place == "broker" else f"set on the {self.place} {self.subject}"


def is_on(settings: Settings | None, name: str, *, default: bool) -> bool:
    """Return a boolean setting of the broker."""
    return {"true": True, "false": False}.get((settings or {}).get(name, "").lower(), default)


def _quota(settings: Settings) -> policies.BacklogQuota | None:
    if not is_on(settings, "backlogQuotaCheckEnabled", default=True):
        return None
    limit_gb = float(settings.get("backlogQuotaDefaultLimitGB") or -1)
    limit_bytes = int(limit_gb * GB_BYTES) if limit_gb > 0 else number(settings, "backlogQuotaDefaultLimitBytes", -1)
    action: Any = settings.get("backlogQuotaDefaultRetentionPolicy", "producer_request_hold")
    return policies.BacklogQuota(
        limit_bytes=limit_bytes, limit_s=number(settings, "backlogQuotaDefaultLimitSecond", -1), action=action
    )


BROKER_DEFAULTS: Final[Mapping[policies.Policy[Any], Callable[[Settings], Any]]] = {
    policies.MESSAGE_TTL_S: lambda settings: number(settings, "ttlDurationDefaultInSeconds", 0),
    policies.SIZE_QUOTA: _quota,
    policies.AGE_QUOTA: _quota,
    policies.INACTIVE_TOPIC: lambda settings: policies.InactiveTopic(
        delete=is_on(settings, "brokerDeleteInactiveTopicsEnabled", default=True),
        after_s=number(
            settings,
            "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
            number(settings, "brokerDeleteInactiveTopicsFrequencySeconds", 60),
        ),
        mode=cast("Any", settings.get("brokerDeleteInactiveTopicsMode", "delete_when_no_subscriptions")),
    ),
    policies.DEDUPLICATION: lambda settings: is_on(settings, "brokerDeduplicationEnabled", default=False),
    policies.RETENTION: lambda settings: policies.Retention(
        time_min=number(settings, "defaultRetentionTimeInMinutes", 0),
        size_mb=number(settings, "defaultRetentionSizeInMB", 0),
    ),
    policies.DELAYED_DELIVERY: lambda settings: policies.DelayedDelivery(
        active=is_on(settings, "delayedDeliveryEnabled", default=True),
        tick_ms=number(settings, "delayedDeliveryTickTimeMillis", 1_000),
        max_delay_ms=number(settings, "delayedDeliveryMaxDelayInMillis", 0),
    ),
    policies.MAX_UNACKED_PER_CONSUMER: lambda settings: number(settings, "maxUnackedMessagesPerConsumer", 50_000),
    policies.MAX_UNACKED_PER_SUBSCRIPTION: lambda settings: number(
        settings, "maxUnackedMessagesPerSubscription", 200_000
    ),
    policies.PERSISTENCE: lambda settings: policies.Persistence(
        ensemble=number(settings, "managedLedgerDefaultEnsembleSize", 2),
        write_quorum=number(settings, "managedLedgerDefaultWriteQuorum", 2),
        ack_quorum=number(settings, "managedLedgerDefaultAckQuorum", 2),
    ),
    policies.SUBSCRIPTION_EXPIRY_MIN: lambda settings: number(settings, "subscriptionExpirationTimeMinutes", 0),
}
"""Values from a broker's settings, in force where neither topic nor namespace sets a policy."""


def in_force(seen: Seen, topic: SeenTopic, policy: policies.Policy[T]) -> InForce[T] | None:
    """Return the value in force on a topic; None if unknown."""
    own = topic.state.policies.get(policy)
    if own is not None:
        return InForce(value=own, place="topic", subject=topic.name)
    found = of_namespace(seen, topic.namespace, policy)
    if found is None and topic.applied.get(policy) is not None:
        return InForce(value=topic.applied[policy], place="broker", subject="the broker")
    return found


def all_in_force(seen: Seen, policy: policies.Policy[T]) -> Iterator[tuple[SeenTopic, InForce[T]]]:
    """Yield each existing topic with the value in force on it; those where it is unknown are left out."""
    for topic in seen.topics:
        if topic.exists and (found := in_force(seen, topic, policy)) is not None:
            yield topic, found


def of_namespace(seen: Seen, namespace: str, policy: policies.Policy[T]) -> InForce[T] | None:
    """Return the value in force on those topics of a namespace that set none themselves; None if unknown."""
    own = seen.namespaces.get(namespace)
    if own is not None and (found := own.get(policy)) is not None:
        return InForce(value=found, place="namespace", subject=namespace)
    if seen.settings is None:
        return None
    of_broker = cast("Callable[[Mapping[str, str]], T | None]", BROKER_DEFAULTS[policy])
    default = of_broker(seen.settings)
    return None if default is None else InForce(value=default, place="broker", subject="the broker")


def profile_by(settings: Settings | None, version: str) -> BrokerProfile:
    """Return the broker's limits; a setting that is invalid for a profile counts as unset, all others apply."""
    sound = {name: value for name, value in (settings or {}).items() if _is_sound(name, value)}
    return BrokerProfile.from_broker_settings(sound, version)


def _is_sound(name: str, value: str) -> bool:
    try:
        BrokerProfile.from_broker_settings({name: value})
    except ProfileError:
        return False
    return True


def broker_command(seen: Seen, name: str, value: object) -> str:
    """Return the command, or the instruction, that changes a setting of the broker."""
    if name in seen.dynamic:
        return pulsar_admin("brokers", "update-dynamic-config", "--config", name, "--value", value)
    return f"write {name}={value} into broker.conf, and restart the brokers one by one"
