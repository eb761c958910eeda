"""Reads single entries by their positions, without consuming them: each by a reader with a single permit.

The broker decompresses no payload on the way, whatever the entry's metadata contain.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from timewheel.broker.protocol.commands import ConsumerClosed, SubscriptionType
from timewheel.broker.protocol.dialing import Dialer
from timewheel.broker.protocol.entries import Entry
from timewheel.broker.protocol.errors import BinaryProtocolError, ConsumerLost
from timewheel.broker.protocol.session import Session
from timewheel.client.positions import EntryPosition
from timewheel.core.clock import Clock, SystemClock
from timewheel.core.rng import Random, system_random

PEEK_MS = 5_000
"""Time-out of an entry. None comes if the broker has only its own markers left, or messages of open transactions."""
MAX_IDLE = 16
"""Connections that are kept for the next read."""


class EntryPeeker:
    """Reads entries by position; safe to share between threads.

    Args:
        dial: Returns the dialer for the broker of a topic.
        rng: Source of randomness for the readers' names, shown in the topic's stats.
        clock: None: the system's clock.
    """

    def __init__(self, dial: Callable[[str], Dialer], *, rng: Random | None = None, clock: Clock | None = None) -> None:
        self._dial = dial
        self._clock = clock or SystemClock()
        self._name = f"timewheel-look-{int((rng or system_random()).random() * (1 << 48)):012x}"
        self._lock = threading.Lock()
        self._looks = 0
        self._idle: deque[tuple[str, Session]] = deque()

    def peek(self, topic: str, position: EntryPosition) -> Entry | None:
        """Return the entry at a position, with its payload; or the next that consumers receive; None: there is none.

        Args:
            topic: A partition, or a topic without partitions, by its full name.
            position: The entry's position.

        Raises:
            BinaryProtocolError: The entry could not be requested.
        """
        session = self._kept(topic)
        if session is not None:
            try:
                return self._peek(session, topic, position)
            except BinaryProtocolError:
                session.close()  # it may have been idle for too long, or the topic has moved
        session = self._dial(topic).reach(topic, keep_payload=True)
        try:
            return self._peek(session, topic, position)
        except BaseException:
            session.close()
            raise

    def _peek(self, session: Session, topic: str, position: EntryPosition) -> Entry | None:
        with self._lock:
            self._looks += 1
            name = f"{self._name}-{self._looks}"
        request_id, reader = session.connection.subscribe(
            topic, name, SubscriptionType.EXCLUSIVE, name=name, start=position
        )
        session.answer(request_id, topic=topic, consumer_id=reader)
        session.connection.grant(reader, 1)
        entry = self._first(session, topic, reader)
        session.answer(session.connection.close_consumer(reader), topic=topic)
        self._keep(topic, session)
        return entry

    def _first(self, session: Session, topic: str, reader: int) -> Entry | None:
        until_ms = self._clock.monotonic_ms() + PEEK_MS
        while (left_ms := until_ms - self._clock.monotonic_ms()) > 0:
            for event in session.events(left_ms):
                if isinstance(event, Entry) and event.consumer_id == reader:
                    return event
                if isinstance(event, ConsumerClosed) and event.consumer_id == reader:
                    raise ConsumerLost(topic, event.reason)
        return None

    def _kept(self, topic: str) -> Session | None:
        with self._lock:
            for at, (name, session) in enumerate(self._idle):
                if name == topic:
                    del self._idle[at]
                    return session
        return None

    def _keep(self, topic: str, session: Session) -> None:
        with self._lock:
            self._idle.append((topic, session))
            oldest = self._idle.popleft()[1] if len(self._idle) > MAX_IDLE else None
        if oldest is not None:
            oldest.close()

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            idle, self._idle = self._idle, deque()
        for _, session in idle:
            session.close()
