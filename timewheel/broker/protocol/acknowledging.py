"""Acknowledges entries of a subscription that other consumers read: by position, delivered to any consumer or to none.

The acknowledger joins as a consumer that grants no permits. On a Shared subscription the other consumers do not notice
it. On Key_Shared a broker assigns it keys, and messages with those keys wait until it has left: join for moments only
(broker-facts: acknowledging-for-others).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Literal, Self

from timewheel.broker.protocol.command_types import SubscriptionType
from timewheel.broker.protocol.connection import MAX_POSITIONS
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.errors import BinaryProtocolError, ConsumerLost
from timewheel.broker.protocol.events import ConsumerClosed
from timewheel.client.positions import EntryPosition

MAX_UNANSWERED = 4
"""Acknowledgements under way: enough to keep the broker busy while an answer travels."""


class EntryAcknowledger:
    """A consumer that only acknowledges. It belongs to a single thread at a time, which calls it every
    `session.CALL_EVERY_MS`.

    Any error ends it: open another acknowledger and acknowledge the same entries again, which does no harm.

    Args:
        dialer: Knows the cluster.
        topic: A partition, or a topic without partitions, by its full name. A missing topic is not created.
        subscription: Must exist: a broker would create a missing subscription and keep all messages for it.
        kind: Its type.
        name: Name of the consumer, shown in the topic's stats. On Key_Shared it decides which keys are assigned.

    Attributes:
        topic: The topic, as given.

    Raises:
        BinaryProtocolError: The consumer cannot be opened.
    """

    def __init__(
        self,
        dialer: Dialer,
        topic: str,
        subscription: str,
        *,
        kind: Literal[SubscriptionType.SHARED, SubscriptionType.KEY_SHARED] = SubscriptionType.SHARED,
        name: str = "timewheel-acknowledger",
    ) -> None:
        self.topic = topic
        self._session = dialer.reach(topic)
        try:
            request_id, self._consumer_id = self._session.connection.subscribe(topic, subscription, kind, name=name)
            self._session.answer(request_id, topic=topic, consumer_id=self._consumer_id)
        except BaseException:
            self._session.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def acknowledge(self, positions: Sequence[EntryPosition]) -> None:
        """Acknowledge entries, each as a whole; acknowledging an entry twice does no harm.

        Returns when the broker has confirmed all of them. They need not be on disk by then: the broker writes its
        cursor later.

        Raises:
            ConsumerLost: The topic moves, was unloaded or is gone; some of the entries may be acknowledged.
            BrokerRefused: The broker refused; some of the entries may be acknowledged.
            BinaryProtocolError: The connection failed; some of the entries may be acknowledged.
        """
        try:
            self._acknowledge(positions)
        except BinaryProtocolError:
            self.close()
            raise

    def keep_alive(self) -> None:
        """Check that the broker still has this consumer, for a caller with nothing to acknowledge.

        Raises:
            BinaryProtocolError: The broker has closed it.
        """
        try:
            for event in self._session.events(0):
                if isinstance(event, ConsumerClosed):
                    raise ConsumerLost(self.topic, event.reason)
        except BinaryProtocolError:
            self.close()
            raise

    def leave(self) -> None:
        """Leave, and wait for the broker's answer: on Key_Shared other consumers own the keys from then on.

        Raises:
            BinaryProtocolError: No answer came; the connection is closed all the same.
        """
        try:
            self._await(self._session.connection.close_consumer(self._consumer_id))
        finally:
            self.close()

    def close(self) -> None:
        """Leave without waiting; the broker notices when the connection ends."""
        self._session.close()

    def _acknowledge(self, positions: Sequence[EntryPosition]) -> None:
        unanswered: deque[int] = deque()
        for start in range(0, len(positions), MAX_POSITIONS):
            if len(unanswered) >= MAX_UNANSWERED:
                self._await(unanswered.popleft())
            chunk = positions[start : start + MAX_POSITIONS]
            unanswered.append(self._session.connection.acknowledge(self._consumer_id, chunk))
            self._session.flush()
        while unanswered:
            self._await(unanswered.popleft())

    def _await(self, request_id: int) -> None:
        self._session.answer(request_id, topic=self.topic, consumer_id=self._consumer_id)
