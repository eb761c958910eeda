"""Opening the client's consumer on a due topic: the checks before it, and the options that timewheel sets."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pulsar

from timewheel.client.partitioned import partition_count, unpartitioned_problem
from timewheel.client.positions import Position
from timewheel.client.surface import ClientLike, ConsumerLike
from timewheel.consumers.errors import SubscribeRefused
from timewheel.core.clock import Clock
from timewheel.core.errors import TopologyError, did_you_mean
from timewheel.core.limits import hold_bound_ms
from timewheel.core.names import Names
from timewheel.core.plan import Plan

OWNED: Mapping[str, str] = {
    "consumer_type": "it is a parameter of its own",
    "initial_position": "always Earliest: with the client's default, timers sent before this are missed",
    "message_listener": "use run(handler): it holds what is early and keeps a key on one worker",
    "is_read_compacted": "a due topic is never compacted: that would drop timers of the same key",
    "pattern_auto_discovery_period": "the plan names the topics",
    "regex_subscription_mode": "the plan names the topics",
    "schema": "it is a parameter of its own",
    "subscription_name": "it is a parameter of its own",
    "topic": "the plan names the topics",
}
"""Options of pulsar-client's ``subscribe`` that timewheel sets itself, each with the reason for refusing it."""

_PASSED_THROUGH = frozenset(inspect.signature(pulsar.Client.subscribe).parameters) - OWNED.keys() - {"self"}
_OF_CONSUMERS = (
    *("consumer_type", "schema", "clock", "rng", "hooks", "max_held", "max_rate", "handled_window", "relay"),
    *("former_topics", "relay_memory_bytes", "retry", "overdue", "inbox", "middleware"),
)
"""Arguments of the consumers themselves, which a misspelt option may mean."""

CONSUMER_TYPES = (pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared)


@dataclass(slots=True, eq=False)
class Subscribed:
    """An open consumer of the client, and its unacknowledged messages.

    Args:
        topic: The topic, without a partition suffix; the first of several.
        consumer: The client's consumer.
        active_ms: Time of the last event of its messages, on the monotonic clock.
    """

    topic: str
    consumer: ConsumerLike
    active_ms: int
    _unanswered: set[Position] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def took(self, position: Position, monotonic_ms: int) -> None:
        """Record that a message was taken from the consumer."""
        with self._lock:
            self._unanswered.add(position)
            self.active_ms = max(self.active_ms, monotonic_ms)

    def answered(self, position: Position, quiet_from_ms: int) -> None:
        """Record that a message was acknowledged, or will be redelivered by ``quiet_from_ms`` (monotonic)."""
        with self._lock:
            self._unanswered.discard(position)
            self.active_ms = max(self.active_ms, quiet_from_ms)

    def quiet_since_ms(self) -> int | None:
        """Return the time since which it is quiet, on the monotonic clock; None while a message is unacknowledged."""
        with self._lock:
            return None if self._unanswered else self.active_ms


class Subscribing:
    """Opens consumers of a plan's subscription, all with the same options.

    Args:
        client: The user's client.
        plan: Names the topics and the subscriptions.
        subscription: A subscription of the plan.
        consumer_type: Shared or Key_Shared.
        schema: The user's schema.
        options: pulsar-client's own keyword arguments of ``subscribe``.
        clock: The consumer's clock.

    Raises:
        SubscribeRefused: An argument cannot be honoured.
    """

    def __init__(
        self,
        client: ClientLike,
        plan: Plan,
        subscription: str,
        *,
        consumer_type: Any,
        schema: Any,
        options: Mapping[str, Any],
        clock: Clock,
    ) -> None:
        self._check(plan, subscription, consumer_type, options)
        self.subscription = subscription
        self.ack_timeout_ms: int | None = options.get("unacked_messages_timeout_ms") or None
        self.redelivery_delay_ms: int = options.get("negative_ack_redelivery_delay_ms", 60_000)
        self._client = client
        self._names = Names(plan)
        self._clock = clock
        self._options = {
            **options,
            "consumer_type": consumer_type,
            "schema": schema,
            # On every subscribe, also where the subscription should exist already (broker-facts: earliest-always).
            "initial_position": pulsar.InitialPosition.Earliest,
        }

    def problem_with(self, topic: str) -> TopologyError | None:
        """Return why a topic cannot be subscribed to, or None: it must exist as planned. The lookup does not create it.

        Raises:
            pulsar.PulsarException: The broker did not answer.
        """
        if not self._names.is_partitioned(topic):
            return unpartitioned_problem(self._client, self._names, topic)
        return None if partition_count(self._client, topic) else missing_topic(topic)

    def open(self, *topics: str) -> Subscribed:
        """Subscribe to existing topics, with a single consumer of the client.

        Raises:
            TopologyError: A topic does not exist as planned. Subscribing all the same could create it without the
                policies that keep its timers.
            pulsar.PulsarException: The broker refused or did not answer.
        """
        for topic in topics:
            if (problem := self.problem_with(topic)) is not None:
                raise problem
        where = topics[0] if len(topics) == 1 else list(topics)
        consumer = self._client.subscribe(where, self.subscription, **self._options)
        return Subscribed(topics[0], consumer, self._clock.monotonic_ms())

    @staticmethod
    def _check(plan: Plan, subscription: str, consumer_type: Any, options: Mapping[str, Any]) -> None:
        if subscription not in plan.subscriptions:
            near = did_you_mean(subscription, plan.subscriptions)
            raise SubscribeRefused(
                "subscription",
                subscription,
                f"the plan's are {', '.join(plan.subscriptions)}{near}; a subscription outside the plan "
                "is not provisioned, and misses earlier messages",
            )
        if consumer_type not in CONSUMER_TYPES:
            raise SubscribeRefused(
                "consumer_type",
                consumer_type,
                "only Shared and Key_Shared honour a delay; on Exclusive and Failover the broker delivers every timer "
                "at once",
            )
        for name, value in options.items():
            if name in OWNED:
                raise SubscribeRefused(name, value, f"is set by timewheel: {OWNED[name]}")
            if name not in _PASSED_THROUGH:
                near = did_you_mean(name, (*_PASSED_THROUGH, *_OF_CONSUMERS))
                known = f"; these pass through: {', '.join(sorted(_PASSED_THROUGH))}"
                raise SubscribeRefused(name, value, f"no option of a consumer{near or known}")
        if options.get("receiver_queue_size") == 0:
            raise SubscribeRefused(
                "receiver_queue_size", 0, "the client can neither wait for a time nor read partitions without a queue"
            )
        timeout_ms = options.get("unacked_messages_timeout_ms") or 0
        if 0 < timeout_ms <= hold_bound_ms(plan):
            raise SubscribeRefused(
                "unacked_messages_timeout_ms",
                timeout_ms,
                f"must be over {hold_bound_ms(plan)} ms: so long a timer may be held here until it is due, and the "
                "client counts from when it received it",
            )


def missing_topic(topic: str) -> TopologyError:
    """Return the error for a topic that should have been provisioned."""
    return TopologyError(
        topic,
        "does not exist as a partitioned topic",
        "run `timewheel topics ensure PLAN` before the first send",
    )
