"""A connection driven by a transport and by its caller. It has no thread of its own.

A session belongs to a single thread at a time, which calls it at least every `CALL_EVERY_MS`: a broker drops a client
that sent nothing for twice its ``keepAliveIntervalSeconds``. A caller that is late gets `BrokerLost` from its next
call; nothing else happens.
"""

from __future__ import annotations

from collections.abc import Iterable

from timewheel.broker.protocol.authentication import Authentication
from timewheel.broker.protocol.connection import KEEP_ALIVE_MS, Connection
from timewheel.broker.protocol.errors import BinaryProtocolError, BrokerLost, BrokerSilent, ConsumerLost
from timewheel.broker.protocol.events import (
    Broken,
    Connected,
    ConsumerClosed,
    CredentialsAsked,
    Event,
    LookedUp,
    Refused,
)
from timewheel.broker.protocol.transport import Transport
from timewheel.core.clock import Clock

REQUEST_MS = 30_000
"""Time-out of an answer, as in pulsar-client. A broker that loads a large topic takes some seconds."""
CALL_EVERY_MS = KEEP_ALIVE_MS


class Session:
    """An open connection to a broker.

    Args:
        transport: Closed with the session.
        authentication: The client's credentials.
        clock: For time-outs.
        broker: Address of the broker that the proxy at the other end shall connect to; None: no proxy.
        keep_payload: Whether entries keep their payloads.
        request_ms: Time-out of an answer.

    Attributes:
        server: The broker's version text.
        address: Host and port of the other side.

    Raises:
        BinaryProtocolError: The broker does not accept the connection; the transport is closed then.
    """

    def __init__(
        self,
        transport: Transport,
        authentication: Authentication,
        *,
        clock: Clock,
        broker: str | None = None,
        keep_payload: bool = False,
        request_ms: int = REQUEST_MS,
    ) -> None:
        self._transport = transport
        self.address = transport.address
        self._authentication = authentication
        self._clock = clock
        self._request_ms = request_ms
        self.connection = Connection(keep_payload=keep_payload)
        self._aside: list[Event] = []
        self._failure: BinaryProtocolError | None = None
        try:
            self.server = self._shake_hands(broker).server
        except BaseException:
            self.close()
            raise

    def _shake_hands(self, broker: str | None) -> Connected:
        method, data = self._authentication.method, self._authentication.data()
        self.connection.connect(self._clock.monotonic_ms(), method=method, data=data, broker=broker)
        deadline_ms = self._clock.monotonic_ms() + self._request_ms
        while True:
            for event in self._turn(deadline_ms):
                if isinstance(event, Connected):
                    return event
            if self._clock.monotonic_ms() >= deadline_ms:
                raise BrokerSilent("answer to CONNECT", self._request_ms)

    def look_up(self, topic: str, *, is_authoritative: bool) -> LookedUp:
        """Ask which broker serves a topic.

        Raises:
            BinaryProtocolError: No answer came, or an error.
        """
        found = self.answer(self.connection.look_up(topic, is_authoritative=is_authoritative), topic=topic)
        assert isinstance(found, LookedUp), "the connection has seen to that"
        return found

    def events(self, timeout_ms: int) -> list[Event]:
        """Return new events, and wait if there are none: one turn, so rarely more than `RECEIVE_BYTES` of them.

        Args:
            timeout_ms: How long to wait for the first event; 0: do not wait.

        Raises:
            BinaryProtocolError: The connection cannot be used any more.
        """
        if self._aside:
            events, self._aside = self._aside, []
            return events
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while True:
            events = self._turn(deadline_ms)
            if events or self._clock.monotonic_ms() >= deadline_ms:
                return events

    def put_back(self, events: list[Event]) -> None:
        """Put events back: `events` returns them before newer events."""
        self._aside = events + self._aside

    def answer(self, request_id: int, *, topic: str, consumer_id: int | None = None) -> Event:
        """Wait for the answer to a request; other events are kept for `events`.

        Args:
            request_id: Id of the request.
            topic: For errors.
            consumer_id: Consumer whose end also ends the wait.

        Raises:
            BinaryProtocolError: No answer came, or an error.
        """
        deadline_ms = self._clock.monotonic_ms() + self._request_ms
        events, self._aside = self._aside, []
        while True:
            for at, event in enumerate(events):
                if isinstance(event, ConsumerClosed) and event.consumer_id == consumer_id:
                    raise ConsumerLost(topic, event.reason)
                if getattr(event, "request_id", None) == request_id:
                    self._aside += events[at + 1 :]
                    if isinstance(event, Refused):
                        raise event.error
                    return event
                self._aside.append(event)
            if self._clock.monotonic_ms() >= deadline_ms:
                raise BrokerSilent("answer", self._request_ms)
            events = self._turn(deadline_ms)

    def flush(self) -> None:
        """Send the requests so far, without waiting for an answer.

        Raises:
            BrokerLost: They cannot be sent.
        """
        if self._failure is not None:
            raise self._failure
        if data := self.connection.to_send():
            try:
                self._transport.send(data, self._request_ms)
            except BrokerLost as error:
                raise self._fail(error) from error

    def close(self) -> None:
        """Close the connection without a command, which a broker understands."""
        if self._failure is None:
            self._fail(BrokerLost(self.address, "it was closed here", "open another one"))

    def _turn(self, deadline_ms: int) -> list[Event]:
        """Send, wait for bytes once, and return their events."""
        self.flush()
        now_ms = self._clock.monotonic_ms()
        wait_ms = min(deadline_ms, self.connection.wake_ms()) - now_ms
        try:
            data = self._transport.receive(max(wait_ms, 0))
        except BrokerLost as error:
            raise self._fail(error) from error
        now_ms = self._clock.monotonic_ms()
        events = self.connection.receive(data, now_ms) if data else []
        events += self.connection.on_time(now_ms)
        events = list(self._seen(events))
        if self._failure is None:
            self.flush()
        elif not events:
            raise self._failure
        return events

    def _seen(self, events: Iterable[Event]) -> Iterable[Event]:
        """Handle the events that concern the session itself, and yield the others."""
        for event in events:
            if isinstance(event, Broken):
                self._fail(event.error)
            elif isinstance(event, CredentialsAsked):
                self.connection.show_credentials(method=self._authentication.method, data=self._authentication.data())
            else:
                yield event

    def _fail(self, error: BinaryProtocolError) -> BinaryProtocolError:
        self._failure = error
        self.connection.end(error)
        self._transport.close()
        return error
