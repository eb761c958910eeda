"""Looks at all that virtual brokers store and acknowledge, and finds at once what would be lost or doubled later."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

from timewheel.client.positions import EntryPosition
from timewheel.core.envelope import Envelope
from timewheel.core.errors import EnvelopeError
from timewheel.core.names import RELAY_SUBSCRIPTION, partition_of
from timewheel.testing.virtual.brokers import BrokerProducer, Topic
from timewheel.testing.virtual.ledgers import Entry
from timewheel.testing.virtual.subscriptions import BrokerConsumer, Subscription


class Copy(NamedTuple):
    """A stored copy of a timer."""

    hops: int
    attempt: int
    only_for: str
    is_named: bool  # by a producer whose repeats the broker drops: it stands for a copy that was there before


class Audit:
    """What is stored of each timer, and two promises that hold at every step.

    A message is acknowledged only after its timer was stored anew, handled, or cancelled. Relays store each hop of a
    copy once; a hop that is late they may store again, unless they stored it before it was late.

    Args:
        is_handled: Whether a subscription has handled a timer.
        is_cancelled: Whether a timer may have been cancelled.
        found: Called with a sentence for each promise that is broken.

    Attributes:
        late: Timers that were stored by a hop that is at least once.
        relays_may_repeat: Whether names of producers have changed: after that, the broker detects no repeat.
    """

    def __init__(
        self,
        is_handled: Callable[[str, str], bool],
        is_cancelled: Callable[[str], bool],
        found: Callable[[str], None],
    ) -> None:
        self._is_handled = is_handled
        self._is_cancelled = is_cancelled
        self._found = found
        self._copies: defaultdict[str, list[Copy]] = defaultdict(list)
        self.late: set[str] = set()
        self.relays_may_repeat = False

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look at the brokers of this process."""
        publish, acknowledge, acknowledge_to = Topic.publish, BrokerConsumer.acknowledge, BrokerConsumer.acknowledge_to

        def published(topic: Topic, producer: BrokerProducer, entry: Entry) -> EntryPosition:
            position = publish(topic, producer, entry)
            self._stored(topic, producer.name, entry)
            return position

        def acknowledged(consumer: BrokerConsumer, positions: Sequence[EntryPosition]) -> None:
            subscription = consumer.subscription
            for position in positions:
                if not subscription.cursor.is_acked(position):
                    self._acknowledged(subscription, subscription.topic.log.read(position))
            acknowledge(consumer, positions)

        def acknowledged_to(consumer: BrokerConsumer, position: EntryPosition) -> None:
            subscription = consumer.subscription
            for entry in subscription.topic.log.all_after(subscription.cursor.mark_delete):
                if entry.position > position:
                    break
                self._acknowledged(subscription, entry)
            acknowledge_to(consumer, position)

        with (
            mock.patch.object(Topic, "publish", published),
            mock.patch.object(BrokerConsumer, "acknowledge", acknowledged),
            mock.patch.object(BrokerConsumer, "acknowledge_to", acknowledged_to),
        ):
            yield

    def _stored(self, topic: Topic, by: str, entry: Entry) -> None:
        name, is_named = partition_of(topic.name)[0], by.startswith("tw|")
        for timer in timers_of(entry):
            copies, life = self._copies[timer.timer_id], timer.life
            copies.append(Copy(timer.hops, life.attempt, life.only_for, is_named))
            if not timer.hops:
                continue
            if not is_named:
                self.late.add(timer.timer_id)
            if self.relays_may_repeat:
                continue
            alike = [copy for copy in copies if (copy.attempt, copy.only_for) == (life.attempt, life.only_for)]
            before = sum(copy.hops == timer.hops - 1 for copy in alike)
            here = [copy for copy in alike if copy.hops == timer.hops]
            named = sum(copy.is_named for copy in here)
            # Of a hop that is late, the relay finds out whether it was stored when it was not.
            if named > before or (named and not is_named and len(here) > before):
                self._found(
                    f"{by} stores {timer.timer_id} in {name}: hop {timer.hops} of {before} copies for the "
                    f"{len(here)}th time, {named} by relays with numbers"
                )

    def _acknowledged(self, subscription: Subscription, entry: Entry | None) -> None:
        for timer in timers_of(entry) if entry is not None else ():
            if not self._is_done_with(subscription.name, timer):
                self._found(
                    f"{timer.timer_id} after {timer.hops} hops is acknowledged by {subscription.name} of "
                    f"{subscription.topic.name}, and was neither stored anew nor handled"
                )

    def _is_done_with(self, subscription: str, timer: Envelope) -> bool:
        timer_id, life = timer.timer_id, timer.life
        if self._is_cancelled(timer_id):
            return True
        copies = self._copies[timer_id]
        if any(copy.attempt == life.attempt and copy.hops > timer.hops for copy in copies):
            return True
        if subscription == RELAY_SUBSCRIPTION:
            return False
        return (
            life.only_for not in ("", subscription)
            or self._is_handled(timer_id, subscription)
            or any(copy.attempt > life.attempt and copy.only_for in ("", subscription) for copy in copies)
        )


def timers_of(entry: Entry) -> Iterable[Envelope]:
    """Yield the envelopes of an entry's timers."""
    for sent in entry.messages:
        try:
            envelope = Envelope.read(sent.properties)
        except EnvelopeError:
            continue
        if envelope is not None:
            yield envelope
