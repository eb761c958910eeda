"""Acknowledges originals in the due topic, on every subscription, on behalf of consumers that do not notice it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from timewheel.broker.admin.stats import SHADOW_ACKER
from timewheel.broker.protocol.commands import SubscriptionType
from timewheel.broker.protocol.consumers import EntryAcknowledger
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.errors import BrokerRefused, ConsumerLost
from timewheel.client.positions import EntryPosition
from timewheel.core.clock import Clock

JOIN_EVERY_MS = 500
"""On Key_Shared a consumer is assigned keys while it is connected, and their messages wait meanwhile: so the striker
joins, acknowledges and leaves (broker-facts: acknowledging-for-others)."""
KEEP_ALIVE_MS = 10_000
_OTHER_TYPE = "different type"
"""The brokers' error text for a consumer whose type differs from the others'."""


class Subscription(NamedTuple):
    """A subscription of the due topic.

    Args:
        name: Its name.
        joins: Whether a consumer without permits may stay in it: it is Shared, and has other consumers. Otherwise the
            striker joins for moments only.
        by_key: Whether it is Key_Shared; brokers refuse a consumer of another type. Without consumers: its type before.
        delays: Whether brokers delay there. They do not on Exclusive and Failover: there an original is delivered when
            it is sent, so there is no delivery to prevent, and no other consumer can join.
    """

    name: str
    joins: bool
    by_key: bool = False
    delays: bool = True


class KnowsSubscriptions(Protocol):
    """The striker's view of subscriptions; a `TopicInspector` implements it."""

    def subscriptions(self, part: str) -> Sequence[Subscription]:
        """Return all subscriptions, as last seen."""
        ...

    def there_now(self, part: str) -> Collection[str] | None:
        """Return the names of all current subscriptions; None: they are unknown."""
        ...

    def inspect_soon(self) -> None:
        """Mark the last view as outdated."""
        ...


class OriginalAcker:
    """Acknowledges entries in a partition of a due topic; for a single thread.

    Any error leaves it usable: the same entries are acknowledged again, which does no harm.

    Args:
        dialer: Knows the cluster.
        part: Full name of the partition, or of a due topic without partitions.
        inspector: Asked before each acknowledge.
        clock: For pauses.
    """

    def __init__(self, dialer: Dialer, part: str, inspector: KnowsSubscriptions, clock: Clock) -> None:
        self._dialer = dialer
        self.part = part
        self._inspector = inspector
        self._clock = clock
        self._joined: dict[str, EntryAcknowledger] = {}
        self._visited_ms: int | None = None
        self._called_ms = clock.monotonic_ms()

    def wait_ms(self) -> int:
        """Return how long an acknowledgement waits, so that subscriptions are not joined for moments too often."""
        if self._visited_ms is None or all(one.joins for one in self._delaying()):
            return 0
        return max(self._visited_ms + JOIN_EVERY_MS - self._clock.monotonic_ms(), 0)

    def ack(self, positions: Sequence[EntryPosition]) -> None:
        """Acknowledge these entries on every subscription that delays; returns when the broker has confirmed all.

        Raises:
            BinaryProtocolError: It has not confirmed some of them.
        """
        self.ack_on(dict.fromkeys(self._delaying(), positions))

    def ack_on(self, wanted: Mapping[Subscription, Sequence[EntryPosition]]) -> None:
        """Acknowledge the entries of each subscription.

        Raises:
            BinaryProtocolError: As for `ack`.
        """
        self._leave_what_is_not_joined()
        for subscription, positions in wanted.items():
            if not positions:
                continue
            if subscription.joins:
                self._acknowledge(subscription.name, positions)
            else:
                self._visit(subscription, positions)
        self._called_ms = self._clock.monotonic_ms()

    def keep_alive(self) -> None:
        """Keep connections alive; to be called every few seconds while no original is to be acknowledged.

        Raises:
            BinaryProtocolError: The topic was reloaded, or the connection is lost: acknowledgements may be forgotten.
        """
        self._leave_what_is_not_joined()
        if self._clock.monotonic_ms() - self._called_ms < KEEP_ALIVE_MS:
            return
        self._called_ms = self._clock.monotonic_ms()
        for name, member in tuple(self._joined.items()):
            try:
                member.keep_alive()
            except BaseException:
                self._joined.pop(name, None)
                raise

    def close(self) -> None:
        """Leave all subscriptions."""
        joined, self._joined = self._joined, {}
        for member in joined.values():
            member.close()

    def _delaying(self) -> list[Subscription]:
        return [one for one in self._inspector.subscriptions(self.part) if one.delays]

    def _leave_what_is_not_joined(self) -> None:
        # A consumer that stays alone in a subscription decides its type, and hides that all other consumers are gone.
        joins = {one.name for one in self._inspector.subscriptions(self.part) if one.joins}
        for name in self._joined.keys() - joins:
            self._joined.pop(name).close()

    def _acknowledge(self, name: str, positions: Sequence[EntryPosition]) -> None:
        member = self._joined.pop(name, None) or self._open(name, SubscriptionType.SHARED)
        member.acknowledge(positions)  # an error has closed it
        self._joined[name] = member

    def _visit(self, subscription: Subscription, positions: Sequence[EntryPosition]) -> None:
        member = self._open(
            subscription.name, SubscriptionType.KEY_SHARED if subscription.by_key else SubscriptionType.SHARED
        )
        try:
            member.acknowledge(positions)
        except BaseException:
            member.close()
            raise
        member.leave()
        self._visited_ms = self._clock.monotonic_ms()

    def _open(
        self, name: str, kind: Literal[SubscriptionType.SHARED, SubscriptionType.KEY_SHARED]
    ) -> EntryAcknowledger:
        # A broker creates a missing subscription, from the earliest entry; it would have no reader, and the journal
        # would wait for it for ever. If the subscriptions are unknown, to keep timers waiting would be worse.
        there = self._inspector.there_now(self.part)
        if there is not None and name not in there:
            self._inspector.inspect_soon()
            raise ConsumerLost(self.part, f"subscription {name} is gone")
        try:
            return EntryAcknowledger(self._dialer, self.part, name, kind=kind, name=SHADOW_ACKER)
        except BrokerRefused as error:
            if _OTHER_TYPE in error.reason:
                self._inspector.inspect_soon()
            raise
